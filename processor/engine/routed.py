"""Units of a destination with routes: each goes, whole, to the topics that its headers choose (W-98 to W-101).

Belongs here: the writer of such a destination; any other has the plain one and pays nothing. Does not belong here: what a route is
(`topics.routes`), what a unit looks like (`processor.engine.outputs`).
"""

from __future__ import annotations

from processor.core.changes import Delivered
from processor.core.partition import Outward
from processor.engine.context import TaskContext
from processor.engine.outputs import Writer, Written
from topics.headers import Reading
from topics.routes import topics_of


class RoutedWriter(Writer):
    """Makes the outputs of one partition whose units may leave `D.units` for another topic; the partition number stays (W-103)."""

    def write(self, outward: Outward, written: Written) -> None:
        """Adds the records of one effect; those of a unit to the topics of its routes. Raises as `Writer.write`."""
        before = len(written.outputs)
        super().write(outward, written)
        if not isinstance(outward[0], Delivered):
            return
        made = written.outputs[before:]
        unit = [output for output in made if output.topic == self.units]
        policy = self.context.policy
        # of one of shape `consecutive`, the last record has the user headers that an envelope would have
        topics = topics_of(policy.routes, policy.route_matching, self.units, unit[-1].headers)
        written.outputs[before:] = [output._replace(topic=topic) for topic in topics for output in unit]
        written.outputs += [output for output in made if output.topic != self.units]


def writer_of(context: TaskContext, partition: int, reading: Reading) -> Writer:
    """The writer that a destination needs."""
    return (RoutedWriter if context.policy.routes else Writer)(context, partition, reading)
