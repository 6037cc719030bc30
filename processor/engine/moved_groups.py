"""A destination gets more partitions while groups are open: what belongs elsewhere then moves, once (W-107). Pure.

Theory of operation. Under hash routing another partition count gives many ids another partition. Nobody may assemble meanwhile, and the input
stays where it lies: a component that is unread on its old partition is sent on by line 6 of the decision table. What moves is what workers
know: rows of open groups, from changelog partition to changelog partition, as they are; closed ids, as entries of the new partition's
ledger; ids of decided commands. Each partition's part of it is a plan like that of a poll, and all plans are one transaction with the
positions of every partition, the new ones included. So either nothing has moved, or everything, and the partition count that stands beside
each committed offset says which. A ledger that gets more closed ids than fit one record gets several, all of the same position.

Of rules also what is of no open group: components without one, and units that wait for their topic, go where their id belongs, which is where
the next generation opens. A live version of a row holds on every partition, as the command that tells it goes to all of them. A release in advance was given
to one partition, and stays there.

A move to another cluster or to other topics is the same with every partition in its place (`carry`): all that workers know goes, and reading
begins where the input is mirrored to.

Belongs here: which rows and entries go where. Does not belong here: who may do it when, and how it is sent (`uow.ops.repartition`,
`uow.ops.migration`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TypeVar

from uow.processor.core.changes import Closed
from uow.processor.core.group import Group
from uow.processor.core.plan_size import ENTRY_BYTES
from uow.processor.engine.context import TaskContext
from uow.processor.engine.group_storage import storage_of
from uow.processor.engine.ports import Output, Plan, Tp
from uow.processor.engine.rows import GROUP_ROW_KEY_END, KEPT_KEY, ledger_value, promotion_rows
from uow.processor.engine.target_topics import WAITING_KEY, serial_of, waiting_key
from uow.processor.engine.task import LIVE_KEY, PartitionTask, offset_metadata
from uow.schemas.component import decode_component
from uow.schemas.records import SETTINGS_KEY
from uow.topics.catalogue import RECORD_LIMIT_BYTES
from uow.topics.grouping import GroupPolicy
from uow.topics.headers import ID

LEDGER_BYTES = RECORD_LIMIT_BYTES // 4
"""Most bytes of closed ids, and of commands, in one record of the ledger."""
E = TypeVar("E", bound=tuple[object, ...])

Rows = Mapping[bytes, bytes]
"""Live rows of one partition of the groups' changelog."""


@dataclass(slots=True)
class Moved:
    """Counts of all that moves to another partition, or to other topics.

    Attributes:
        groups: Open groups.
        components: Held in them.
        closed: Remembered ids of closed groups.
    """

    groups: int = 0
    components: int = 0
    closed: int = 0


@dataclass(slots=True)
class _Share:
    """Rows, tombstones and closed groups that a partition gets by the move; `uncounted` are the rows and tombstones of which no count is kept."""

    rows: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    gone: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    uncounted: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    closed: list[Closed] = field(default_factory=list)
    clocks: list[int] = field(default_factory=list)


def move(
    context: TaskContext, tasks: Mapping[int, PartitionTask], rows: Mapping[int, Rows], starts: Mapping[int, int]
) -> tuple[list[Plan], Moved]:
    """The plans of all partitions for the new count.

    Args:
        context: Of the destination, with the new count.
        tasks: The old partitions as restored under the old count.
        rows: Their changelogs.
        starts: Where reading of each new partition begins: its log start; 0 where nothing is said.
    """
    shares: Mapping[int, _Share] = defaultdict(_Share)
    moved = Moved()
    for number, task in tasks.items():
        _share_groups(context, number, task, rows[number], shares, moved)
        _share_strays(context, number, task, rows[number], shares)
        away = set[bytes]()
        for closed in task.partition.closed.order:  # each unit of an id: the components of all are known (B-38)
            home = context.partition_for(closed.id, context.partitions)
            # an earlier growth leaves entries behind, which know nothing of what was delivered since
            if number == context.partition_for(closed.id, len(tasks)) != home:
                shares[home].closed.append(closed)
                shares[home].clocks.append(task.partition.clock)
                away.add(closed.id)
        moved.closed += len(away)
    _share_kept(context, rows, shares)
    _share_waiting(context, rows, shares)
    _share_live(context, tasks, shares)
    commands = [each for task in tasks.values() for each in task.partition.commands.at_by_id.items()]
    plans = []
    for number in range(context.partitions):
        task = tasks.get(number) or _new(context, number, starts.get(number, 0), shares[number].clocks)
        plans.append(_plan(context, task, shares[number], commands))
    return plans, moved


def carry(
    context: TaskContext,
    tasks: Mapping[int, PartitionTask],
    rows: Mapping[int, Rows],
    starts: Mapping[int, tuple[int, int]],
) -> tuple[list[Plan], Moved]:
    """The plans that write all that the workers of a destination know into other topics, each partition into the one of its number.

    Args:
        context: Of the destination as it will be, with `recorded_settings`: they are written beside it.
        tasks: Every partition as restored where it was.
        rows: Their changelogs.
        starts: Where reading begins there, in `D.components` and in `D.commands`.
    """
    moved, plans = Moved(), []
    for number, task in tasks.items():
        share, partition = _Share(), task.partition
        for key, value in rows[number].items():
            if key != SETTINGS_KEY:
                (share.uncounted if key in partition.strays else share.rows).append((key, value))
        by_group = _by_group(rows[number])
        for group in task.groups.values():
            share.rows += [] if _own_rows(group, by_group) else promotion_rows(group, {})
            moved.groups += 1
            moved.components += len(group.held)
        share.closed = list(partition.closed.order)
        moved.closed += len(partition.closed)
        there = PartitionTask(Tp(context.topics.components, number), context)
        position, command_position = starts[number]
        there.restore(position, partition.clock, (), 0, command_position)
        plan = _plan(context, there, share, partition.commands.at_by_id.items())
        if context.recorded_settings is not None:
            plan.changelog.append((SETTINGS_KEY, context.recorded_settings.value))
        plans.append(plan)
    return plans, moved


def _by_group(rows: Rows) -> Mapping[bytes, list[tuple[bytes, bytes | None]]]:
    found: dict[bytes, list[tuple[bytes, bytes | None]]] = defaultdict(list)
    for key, value in rows.items():
        found[key[:-4]].append((key, value))
    return found


def _own_rows(
    group: Group, by_group: Mapping[bytes, list[tuple[bytes, bytes | None]]]
) -> list[tuple[bytes, bytes | None]]:
    """The rows that a group has, one that waits for its first reply has none of a component; empty if it is replayable."""
    storage = storage_of(group)
    return [] if storage is None else by_group[storage.row_key]


def _share_groups(
    context: TaskContext,
    number: int,
    task: PartitionTask,
    rows: Rows,
    shares: Mapping[int, _Share],
    moved: Moved,
) -> None:
    """Rows of groups that stay are left alone; replayable groups get rows, so that no input need be read again."""
    by_group = _by_group(rows)
    for group in task.groups.values():
        home = context.partition_for(group.id, context.partitions)
        own = _own_rows(group, by_group)
        if own and home == number:
            continue
        shares[home].rows += own or promotion_rows(group, {})
        if home != number:
            keys = sorted((key for key, _ in own), key=lambda key: key[-4:] != GROUP_ROW_KEY_END[1:])
            shares[number].gone += [(key, None) for key in keys]
            shares[home].clocks.append(task.partition.clock)
            moved.groups += 1
            moved.components += len(group.held)


def _share_strays(
    context: TaskContext, number: int, task: PartitionTask, rows: Rows, shares: Mapping[int, _Share]
) -> None:
    for key, stray in task.partition.strays.items():
        home = context.partition_for(stray.id, context.partitions)
        if home != number:
            shares[home].uncounted.append((key, rows[key]))
            shares[number].uncounted.append((key, None))


def _share_kept(context: TaskContext, rows: Mapping[int, Rows], shares: Mapping[int, _Share]) -> None:
    """Components that are kept for corrections (B-205) go where the closed id goes."""
    for number, found in rows.items():
        for key in [key for key in found if key[:1] == KEPT_KEY]:
            home = context.partition_for(key[1:-5], context.partitions)
            if home != number:
                shares[home].rows.append((key, found[key]))
                shares[number].gone.append((key, None))


def _share_waiting(context: TaskContext, rows: Mapping[int, Rows], shares: Mapping[int, _Share]) -> None:
    """Units of one id leave in the order in which they closed, so those that wait go where the next ones will."""
    waiting = {number: sorted(key for key in found if key[:1] == WAITING_KEY) for number, found in rows.items()}
    serials = {number: serial_of(keys[-1]) for number, keys in waiting.items() if keys}
    for number, keys in waiting.items():
        for key in keys:
            value = rows[number][key]
            group_id = dict(decode_component(value).headers).get(ID)
            home = number if group_id is None else context.partition_for(group_id, context.partitions)
            if home != number:
                serials[home] = serials.get(home, 0) + 1
                shares[home].rows.append((waiting_key(serials[home]), value))
                shares[number].gone.append((key, None))


def _share_live(context: TaskContext, tasks: Mapping[int, PartitionTask], shares: Mapping[int, _Share]) -> None:
    latest: dict[str, GroupPolicy] = {}
    for task in tasks.values():
        for row_key, row in task.partition.live.items():
            if row_key not in latest or latest[row_key].version < row.version:
                latest[row_key] = row
    for number in range(context.partitions):
        known = tasks[number].partition.live if number in tasks else {}
        for row_key, row in latest.items():
            if row_key not in known or known[row_key].version < row.version:
                rows = shares[number].uncounted if row_key in known else shares[number].rows
                rows.append((LIVE_KEY + row_key.encode(), row.rule.encode()))


def _new(context: TaskContext, number: int, start: int, clocks: Iterable[int]) -> PartitionTask:
    """A partition that was added. Its clock is the slowest of those whose groups it gets: nothing expires by moving."""
    task = PartitionTask(Tp(context.topics.components, number), context)
    task.restore(start, min(clocks, default=0), (), 0)
    return task


def _plan(context: TaskContext, task: PartitionTask, share: _Share, commands: Iterable[tuple[bytes, int]]) -> Plan:
    """Tombstones before rows, and one ledger record that begins and ends at the position: there is nothing to replay."""
    topics, partition, position = context.topics, task.partition, task.position
    # of what lies in this partition so far nothing belongs to a group that comes from another one
    closed = [each._replace(before=position) for each in share.closed]
    about = (position, position, position, partition.clock, partition.reading.code, ())
    contents = zip_longest(_portions(closed), _portions(commands), fillvalue=())
    first, *further = [ledger_value(*about, *portion) for portion in contents] or [ledger_value(*about, ())]
    return Plan(
        task.tp,
        topics.groups_changelog,
        topics.closed_changelog,
        position,
        topics.commands,
        task.command_position,
        offset_metadata(position, task.rows + len(share.rows) - len(share.gone), partition.clock, context),
        share.gone + share.rows + share.uncounted,
        first,
        [Output(topics.closed_changelog, task.tp.partition, None, value, []) for value in further],
    )


def _portions(entries: Iterable[E]) -> Iterator[list[E]]:
    """Entries of the ledger, so many at a time as may stand in one record."""
    portion: list[E] = []
    left_bytes = LEDGER_BYTES
    for entry in entries:
        portion.append(entry)
        left_bytes -= ENTRY_BYTES + sum(len(each) for each in entry if isinstance(each, bytes))
        if left_bytes < 0:
            yield portion
            portion, left_bytes = [], LEDGER_BYTES
    if portion:
        yield portion
