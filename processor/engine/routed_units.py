"""Units of a destination with routes: each goes, whole, to the topics that its headers choose (W-98 to W-101).

Belongs here: the writer of such a destination; any other has the plain one and pays nothing. Does not belong here: what a route is
(`uow.topics.routes`), what a unit looks like (`uow.processor.engine.outputs`).
"""

from __future__ import annotations

from uow.processor.core.changes import Delivered
from uow.processor.core.happened import Outward
from uow.processor.engine.context import TaskContext
from uow.processor.engine.outputs import OutputWriter, WrittenOutputs
from uow.topics.headers import Reading
from uow.topics.routes import topics_of


class RoutedWriter(OutputWriter):
    """Makes the outputs of one partition whose units may leave `D.units` for another topic; the partition number stays (W-103)."""

    def write(self, outward: Outward, written: WrittenOutputs) -> None:
        """Adds the records of one effect; those of a unit to the topics of its routes. Raises as `OutputWriter.write`."""
        before = len(written.outputs)
        super().write(outward, written)
        effect, _, group = outward
        if not isinstance(effect, Delivered) or (group is not None and group.ruled is not None):
            return  # a rule names its target itself
        made = written.outputs[before:]
        unit = [output for output in made if output.topic == self.units]
        policy = self.context.policy
        # of one of shape `consecutive`, the last record has the user headers that an envelope would have
        topics = topics_of(policy.routes, policy.route_matching, self.units, unit[-1].headers)
        written.outputs[before:] = [output._replace(topic=topic) for topic in topics for output in unit]
        written.outputs += [output for output in made if output.topic != self.units]


def writer_of(context: TaskContext, partition: int, reading: Reading) -> OutputWriter:
    """The writer that a destination needs."""
    return (RoutedWriter if context.policy.routes else OutputWriter)(context, partition, reading)
