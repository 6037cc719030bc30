"""Views of groups for people, read from Kafka alone with the code of the restore, whether a worker runs or not (W-201). Changes nothing.

Theory of operation. A worker may commit during the inspection, so committed offsets, changelog and ledger cannot be read as of
one moment. The end of the changelog is asked for first, then the end of the ledger, and the position is taken from the
ledger's last record. So the ledger is never older than the changelog; a group that is in the changelog and that the
ledger says has closed is closed.

Belongs here: reading the state of a partition, and views of a group. Does not belong here: printing
(`uow.cli`), the state itself (`uow.processor.core`) and its bytes (`uow.processor.engine`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol

import confluent_kafka as ck

from uow.processor.core.changes import Closed
from uow.processor.core.group import Group
from uow.processor.engine.context import TaskContext
from uow.processor.engine.group_view import OpenGroup, arrivals, seen
from uow.processor.engine.ports import (
    Committed,
    LogReader,
    Stretch,
    Tp,
)
from uow.processor.engine.restore import restore
from uow.processor.engine.rows import read_ledger
from uow.processor.engine.task import PartitionTask
from uow.processor.kafka.error_table import Meaning, meaning_of
from uow.schemas.error_classes import DecodeError
from uow.schemas.records import ComponentRecord, UnitOutcome
from uow.topics.headers import GENERATION, ID, OUTCOME, UNIT_ID, decimal
from uow.topics.partitioner import partition_for

_TAIL = 16
"""Number of offsets at the end of the ledger in which its last record is searched: each transaction takes one for a record and one for a marker."""

COUNTED = 1_000
"""Up to this number, waiting records are counted one by one."""


class StableReader(LogReader, Protocol):
    """A log reader that does not wait for open transactions."""

    def stable_bounds(self, tps: Sequence[Tp]) -> Mapping[Tp, tuple[int, int]]:
        """(log start, last stable offset)."""
        ...


@dataclass(frozen=True, slots=True)
class WaitingUnit:
    """A unit that is made and waits for its topic (B-57): that could not be written to, or refuses the unit for what it is. Which of both the worker's log says, and no other.

    Attributes:
        id: Of its group, which is closed.
        generation: Of its group.
        outcome: Its outcome.
        topic: The topic that it waits for.
        partition: Of `D.components`.
    """

    id: str
    generation: int
    outcome: str
    topic: str
    partition: int

    def row(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Totals:
    """Totals of one partition, as the logs have it.

    Attributes:
        partition: Of `D.components`.
        position: Offset of the next input record.
        behind: Number of records that wait to be read; see `waiting`.
        groups: Number of open groups.
        components: Number of components held in them.
        bytes: Size of these components.
        waiting: Number of units that wait for their topics (B-57).
        closed: Number of remembered closed ids, by outcome.
    """

    partition: int
    position: int
    behind: int
    groups: int
    components: int
    bytes: int
    waiting: int
    closed: Mapping[UnitOutcome, int]


@dataclass(frozen=True, slots=True)
class ClosedGroupView:
    """A closed group, as far as the ledger remembers it (`closed_retention_ms`)."""

    id: str
    partition: int
    closed: Closed


@dataclass(frozen=True, slots=True)
class InspectedGroup:
    """The open and the closed group of one id, as `inspect_group` found them.

    Attributes:
        partition: Of `D.components`, where such a group is or would be.
        open: The open group, if there is one.
        components: Its components, in order of arrival.
        closed: The group of this id that closed last, if it is remembered.
        others: Generations of other open groups of this id.
        waiting: Its units that wait for their topic, oldest first.
    """

    partition: int
    open: OpenGroup | None = None
    components: tuple[ComponentRecord, ...] = ()
    closed: ClosedGroupView | None = None
    others: tuple[int, ...] = ()
    waiting: tuple[WaitingUnit, ...] = ()

    @property
    def is_known(self) -> bool:
        """True if anything of this id is open, remembered as closed, or waits: a unit may wait for longer than its closed id is remembered."""
        return self.open is not None or self.closed is not None or bool(self.waiting)


class Unfinished(NamedTuple):
    """The work of a destination that is not finished: open groups, the oldest first, and units that wait for their topics."""

    groups: list[OpenGroup]
    waiting: list[WaitingUnit]


def open_groups(reader: LogReader, context: TaskContext, now_ms: int = 0) -> list[OpenGroup]:
    """Open groups of a destination, the oldest first. Arguments and errors as of `unfinished`."""
    return unfinished(reader, context, now_ms).groups


def unfinished(reader: LogReader, context: TaskContext, now_ms: int = 0) -> Unfinished:
    """Open groups of a destination, and its units that wait for their topics.

    Args:
        reader: Where to read from.
        context: Of the destination.
        now_ms: The wall clock: some sources are waited for until then only.

    Raises:
        StateCorruptedError: The logs do not agree.
    """
    found = []
    waiting = []
    for task in restored_tasks(reader, context, range(context.partitions)):
        found += [seen(group, task.tp.partition, context.policy, now_ms) for group in open_in(task)]
        waiting += waiting_units(task)
    return Unfinished(sorted(found, key=lambda each: (each.opened_at, each.id)), waiting)


def waiting_units(task: PartitionTask) -> list[WaitingUnit]:
    """Units of a partition that wait for their topics, in the order in which they are to leave. One that is written as a run stands here once."""
    found: dict[bytes, WaitingUnit] = {}
    for output in task.waiting_records.outputs:
        said = dict(output.headers)
        found.setdefault(
            said.get(UNIT_ID) or b"",
            WaitingUnit(
                (said.get(ID) or b"").decode("utf-8", "backslashreplace"),
                decimal(said.get(GENERATION) or b"") or 0,
                (said.get(OUTCOME) or b"").decode("utf-8", "backslashreplace"),
                output.topic,
                task.tp.partition,
            ),
        )
    return [*found.values()]


def waiting(reader: StableReader, positions: Mapping[Tp, int]) -> dict[Tp, int]:
    """The number of records that wait to be read from these positions on, by partition.

    The difference of offsets is too large: transaction markers and aborted records have offsets too. So the records are read and counted, up to
    `COUNTED` in a partition. Beyond that, or when a batch cannot be fetched, the difference of offsets is returned.
    """
    bounds = reader.stable_bounds([*positions])
    return {tp: _waiting(reader, tp, max(position, bounds[tp][0]), bounds[tp][1]) for tp, position in positions.items()}


def _waiting(reader: LogReader, tp: Tp, start: int, end: int) -> int:
    count = 0
    try:
        for _, records in reader.read({tp: (start, end)}):
            count += len(records)
            if count > COUNTED:
                return end - start
    except ck.KafkaException as failure:
        if meaning_of(failure.args[0]) is not Meaning.UNFETCHABLE:
            raise
        return end - start  # a batch that cannot be fetched cannot be counted
    return count


def totals(reader: StableReader, context: TaskContext) -> list[Totals]:
    """Totals of each partition of a destination.

    Args:
        reader: Where to read from.
        context: Of the destination.

    Raises:
        StateCorruptedError: The logs do not agree.
    """
    found = []
    tasks = restored_tasks(reader, context, range(context.partitions))
    behind = waiting(reader, {task.tp: task.position for task in tasks})
    for task in tasks:
        groups = [*open_in(task)]
        outcomes = Counter(closed.outcome for closed in task.partition.closed)
        found.append(
            Totals(
                task.tp.partition,
                task.position,
                behind[task.tp],
                len(groups),
                sum(len(group.held) for group in groups),
                sum(group.bytes for group in groups),
                len(waiting_units(task)),
                {outcome: outcomes[outcome] for outcome in UnitOutcome},
            )
        )
    return found


def inspect_group(
    reader: LogReader, context: TaskContext, group_id: str, generation: int = 0, now_ms: int = 0
) -> InspectedGroup:
    """The groups of one id. Reads only the partition of the id; under path routing all of them, as only the path map knows which it is.

    Args:
        reader: Where to read from.
        context: Of the destination.
        group_id: The id.
        generation: Of the open group; 0: the oldest one.
        now_ms: The wall clock.

    Raises:
        StateCorruptedError: The logs do not agree.
    """
    raw = group_id.encode()
    homes = range(context.partitions) if context.policy.has_paths else [partition_for(raw, context.partitions)]
    tasks = restored_tasks(reader, context, homes)
    task = next((task for task in tasks if raw in task.groups or task.partition.closed.get(raw)), tasks[0])
    partition = task.tp.partition
    closed = task.partition.closed.get(raw)
    several = sorted((group for group in open_in(task) if group.id == raw), key=lambda each: each.generation)
    group = next((each for each in several if generation in (0, each.generation)), None)
    others = tuple([each.generation for each in several if each is not group])
    remembered = None if closed is None else ClosedGroupView(group_id, partition, closed)
    units = tuple([each for each in waiting_units(task) if each.id == group_id])
    if group is None:
        return InspectedGroup(partition, closed=remembered, others=others, waiting=units)
    opened = seen(group, partition, context.policy, now_ms)
    return InspectedGroup(partition, opened, tuple(arrivals(group)), remembered, others, units)


def restored_tasks(reader: LogReader, context: TaskContext, partitions: Sequence[int]) -> list[PartitionTask]:
    """The state of partitions.

    Raises:
        StateCorruptedError: The logs do not agree.
    """
    tps = [Tp(context.topics.components, partition) for partition in partitions]
    return [*restore(_LedgerFirst(reader, context), {context.topics.components: context}, tps).values()]


def open_in(task: PartitionTask) -> Iterator[Group]:
    """Its groups that the ledger does not say have closed. Of a key of a rule an earlier generation may be open while a later one has closed."""
    remembered = task.partition.closed
    exactly: set[tuple[bytes, int]] | None = None
    for group in task.groups.values():
        closed = remembered.get(group.id)
        if closed is not None and closed.generation >= group.generation:
            if group.ruled is None:
                continue
            if exactly is None:
                exactly = {(each.id, each.generation) for each in remembered.order}
            if (group.id, group.generation) in exactly:
                continue
        yield group


class _LedgerFirst:
    """A `LogReader` for inspections while a worker commits: see the theory of operation above."""

    def __init__(self, reader: LogReader, context: TaskContext) -> None:
        self._reader = reader
        self._topics = context.topics
        self._bounds: dict[Tp, tuple[int, int]] = {}

    def committed(self, tps: Sequence[Tp]) -> Mapping[Tp, Committed]:
        """Positions from the ledger, or the group's committed offsets where it is empty. An inspection reads no commands."""
        commands = [tp for tp in tps if tp.topic == self._topics.commands]
        inputs = [tp for tp in tps if tp.topic != self._topics.commands]
        ledgers = {Tp(self._topics.closed_changelog, tp.partition): tp for tp in inputs}
        self._bounds |= self._reader.bounds([Tp(self._topics.groups_changelog, tp.partition) for tp in inputs])
        self._bounds |= self._reader.bounds([*ledgers])
        self._bounds |= dict.fromkeys(commands, (0, 0))
        positions = dict.fromkeys(commands, Committed(None, "")) | dict(self._reader.committed(inputs))
        for ledger, tp in ledgers.items():
            position = self._last_position(ledger)
            if position is not None:
                positions[tp] = Committed(position, "")
        return positions

    def _last_position(self, ledger: Tp) -> int | None:
        start, end = self._bounds[ledger]
        size = _TAIL
        while True:
            first = max(start, end - size)
            stretches = self._reader.read({ledger: (first, end)})
            values = [record.value() for _, records in stretches for record in records]
            if values:
                return _to_offset(values[-1])
            if first == start:
                return None
            size *= 4

    def bounds(self, tps: Sequence[Tp]) -> Mapping[Tp, tuple[int, int]]:
        """Log start and end offset; the same as before for a partition that was asked for before."""
        fresh = [tp for tp in tps if tp not in self._bounds]
        return {**self._reader.bounds(fresh), **{tp: self._bounds[tp] for tp in tps if tp in self._bounds}}

    def read(self, ranges: Mapping[Tp, tuple[int, int]]) -> Iterator[Stretch]:
        return self._reader.read(ranges)


def _to_offset(value: bytes | None) -> int | None:
    """The position after a ledger record; None when the record cannot be read, which the restore then reports."""
    try:
        return read_ledger(value or b"")[0].to_offset
    except (DecodeError, IndexError, ValueError):
        return None
