"""Components that lie unread in `D.components` are assembled before groups move to other partitions (W-82, W-107).

A component that a worker sends on to its new partition gets a new append time there, and one that came in time would be late. So this process, which
is alone in the workers' group, does first what a worker would do: it reads each partition to its end, with the commands that lie there, and writes what
comes of it with the worker's sink. No group is closed by the wall clock meanwhile.

What it cannot do stays unread, and workers send it on: components by rule, whose rows only a worker with the rules' source may believe; what was sent
with another partition count in mind; a record at which the task fails; what an open transaction holds back.

Belongs here: what is read, and how far. Does not belong here: what a record does to a group (`uow.processor.engine.task`), and the move (`uow.ops.repartition`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from math import inf
from typing import Any

from uow.processor.core.columns import Seen, looked_at
from uow.processor.engine.batch import Batch
from uow.processor.engine.hidden_headers import HiddenHeaders
from uow.processor.engine.ports import Plan, RawRecord, Refused, Tp
from uow.processor.engine.task import PartitionTask
from uow.processor.kafka.log_reader import KafkaLogReader
from uow.processor.kafka.sink import KafkaSink
from uow.topics import headers as names

log = logging.getLogger("uow.repartition")


@dataclass(slots=True)
class Assembled:
    """The result.

    Attributes:
        records: How many records of `D.components` were read.
        left: Partitions in which some were left, each with the reason.
    """

    records: int = 0
    left: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UnreadInput:
    """Reads the partitions of one destination to their ends.

    Args:
        reader: Reads them.
        sink: Writes plans.
        token: The group's metadata, for the sink.
        hidden: As of a worker; None where no record's value is looked at.
        latest_ms: An append time after this is not believed.
    """

    reader: KafkaLogReader
    sink: KafkaSink
    token: Any
    hidden: HiddenHeaders | None
    latest_ms: int

    def assemble(self, tasks: Mapping[int, PartitionTask]) -> Assembled:
        """Reads on in each partition from where its task stands.

        Raises:
            Doubt: It is not known whether the last plan was written.
            KafkaException: No broker answers.
        """
        done = Assembled()
        for number, task in tasks.items():
            try:
                why = self._assemble(task, done)
            except Refused as refused:
                self.sink.replace()
                why = f"a broker refuses what comes of it: {refused}"
            if why:
                done.left[number] = why
                log.warning("%s/%d: workers will send on what lies unread there: %s", *task.tp, why)
        return done

    def _assemble(self, task: PartitionTask, done: Assembled) -> str:
        """Returns why it ended before the end; empty if it did not."""
        components, commands = task.tp, Tp(task.context.topics.commands, task.tp.partition)
        # The commands' end first: what was appended before one of them lies below the other end, then.
        till = {commands: self.reader.stable_bounds([commands])[commands][1]}
        ends = self.reader.bounds([components]), self.reader.stable_bounds([components])
        till[components] = ends[1][components][1]
        is_held_back = till[components] < ends[0][components][1]
        orders = [
            record
            for _, some in self.reader.read({commands: (task.command_position, till[commands])})
            for record in some
        ]
        for _, records in self.reader.read({components: (task.position, till[components])}):
            ours = [*takewhile(lambda record: _is_ours(task, record), _seen(records))]
            if ours:
                if why := self._write(task, ours, _before(task, orders, ours[-1].timestamp()[1]), done):
                    return why
                orders = [order for order in orders if order.offset() >= task.command_position]
            if len(ours) < len(records):
                return "a component by rule, or one for another partition, comes next"
        if is_held_back:
            return "a transaction is open"
        return self._write(task, [], _before(task, orders), done)

    def _write(
        self, task: PartitionTask, records: Sequence[RawRecord], commands: Sequence[RawRecord], done: Assembled
    ) -> str:
        """All of these, by as many plans as it takes."""
        while records or commands:
            batch = Batch(task.tp, records=[*records], commands=commands, latest=self.latest_ms)
            if self.hidden is not None:
                self.hidden.replace([batch])
            with batch:
                batch.apply(task)
            plan = batch.outcome
            if not isinstance(plan, Plan):
                return str(plan)
            if plan.awaits_rule is not None:
                return f"the row {plan.awaits_rule} is not known"
            self.sink.write([plan], self.token)
            left = [record for record in records if record.offset() >= plan.next_offset]
            done.records += len(records) - len(left)
            records = left
            commands = [command for command in commands if command.offset() >= plan.next_command]
        return ""


def _seen(records: Sequence[RawRecord]) -> Iterator[RawRecord]:
    return (Seen(record, pairs) for pairs, record in looked_at(records))


def _is_ours(task: PartitionTask, record: RawRecord) -> bool:
    """True of what this partition keeps under the count that it has: a record that is sent on twice would be refused."""
    headers = record.headers() or ()
    if any(name == names.RULE for name, _ in headers):
        return False
    marks = task.partition.reader.reading.read(headers, record.value())
    return marks is None or marks.id is None or _is_at_home(task, marks.id)


def _before(task: PartitionTask, orders: Sequence[RawRecord], at: float = inf) -> list[RawRecord]:
    """The commands that are older than this moment, up to one for another partition."""
    return [*takewhile(lambda order: order.timestamp()[1] < at and _is_at_home(task, order.key()), orders)]


def _is_at_home(task: PartitionTask, group_id: bytes | None) -> bool:
    context = task.context
    return group_id is None or context.partition_for(group_id, context.partitions) == task.tp.partition
