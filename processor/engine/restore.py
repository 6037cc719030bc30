"""Restore: from committed offset, changelog and ledger back to the state of a partition (ER-06, ER-07, ER-20).

The order is the barrier: stable committed offsets first, then the end offsets, asked `read_uncommitted`, then both topics are read
`read_committed` until the position has reached those ends. Then the input is read again, from the replay floor to the committed offset,
for the replayable groups. Replay selects, it never decides: no rule about groups is asked here.

Belongs here: the steps and the checks that refuse to start on state that does not agree. Does not belong here: how a log is read
(`LogReader`), the bytes of rows (`rows`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from uow.processor.core.changes import Closed
from uow.processor.core.closed import ClosedMemory, memory_of
from uow.processor.core.columns import reader_of
from uow.processor.core.group import Group
from uow.processor.core.partition_state import COMPONENT_BYTES, GROUP_BYTES
from uow.processor.core.strays import Stray
from uow.processor.engine.context import TaskContext
from uow.processor.engine.memory_limit import RestoreRoom, memory_of_rows
from uow.processor.engine.ports import (
    Committed,
    LogReader,
    RawRecord,
    Tp,
)
from uow.processor.engine.replay import Window
from uow.processor.engine.rows import KEPT_KEY, read_group_row, read_ledger, take_rows, take_strays
from uow.processor.engine.settings_record import mark_in
from uow.processor.engine.target_topics import WAITING_KEY
from uow.processor.engine.task import CREDIT_KEY, LIVE_KEY, PartitionTask
from uow.schemas.error_classes import DecodeError, StateCorruptedError
from uow.schemas.records import SETTINGS_KEY, DecidedCommand, GroupRow, LedgerRecord
from uow.topics.policies import NEVER_MS, DestinationPolicy, HandlingPolicy

_REMEDY_OFFSETS = (
    "the group's committed offsets do not belong to this state: put the old offsets back, or, to begin anew, stop all workers and delete "
    "the destination's two changelog topics together with the offsets"
)
_REMEDY_BEGUN = (
    "stop all workers, delete the destination's two changelog topics, make them again (`uow topics create`), and set the group's offsets on "
    "this topic, in every partition, to where the workers had stopped; what lies behind is delivered, once more where it was before"
)
_REMEDY_LEDGER = (
    "retention of the ledger topic was shorter than the downtime: put its records back; or begin anew: stop all workers, delete the "
    "destination's two changelog topics, and set the group's offset back to where the oldest open group began; units delivered since then "
    "are delivered again"
)
_REMEDY_ROWS = (
    "restore the topic from a backup; or begin anew: stop all workers, delete the destination's two changelog topics, and set the group's "
    "offset back to where the oldest open group began; units delivered since then are delivered again"
)


SPARE_BYTES = 33_554_432
SPARE_CLOSED = 100_000
"""So many closed groups are taken from a ledger before those are let go that nobody remembers: it may tell of a day, a worker of an hour."""


@dataclass(slots=True)
class _Found:
    """Content of the logs, for one partition.

    `ledger` is the log start and end offset of its ledger: above 0 once retention has taken from it, and once there was one; `oldest` the
    clock of its first record that is left; `sift_at` and `sift_bytes`, and the spare ones, how many closed groups are too many; `forgotten_at`
    when the youngest closed of those that are forgotten before their time.
    """

    window: Window
    ledger: tuple[int, int]
    oldest: int | None = None
    rows: dict[bytes, bytes] = field(default_factory=dict)
    closed: list[Closed] = field(default_factory=list)
    closed_bytes: int = 0
    sift_at: int = 0
    sift_bytes: int = 0
    forgotten_at: int = 0
    commands: list[DecidedCommand] = field(default_factory=list)

    @property
    def last(self) -> LedgerRecord | None:
        """The newest ledger record."""
        return self.window.last


def restore(
    reader: LogReader,
    contexts: Mapping[str, TaskContext],
    tps: Collection[Tp],
    wanted: Callable[[], Collection[Tp]] | None = None,
    room: RestoreRoom | None = None,
) -> dict[Tp, PartitionTask]:
    """State of the partitions as of their committed offsets; reads only, so people who look use it as well.

    Args:
        reader: Where to read from.
        contexts: By name of `D.components`.
        tps: Partitions of `D.components`.
        wanted: Which of them are still to be restored; asked before anything is read again.
        room: The memory that they may take; None: any.

    Returns:
        A task for each; its `position` is where reading goes on. A task is `blocked` when its input is gone already (W-120).

    Raises:
        StateCorruptedError: Offsets and logs do not agree, or a row cannot be read.
        Blocked: There is no room for them.
        ConfigError: A worker with other settings has taken over since this one began (W-68).
    """
    _check_counts(contexts, tps)
    for context in {contexts[tp.topic].destination: contexts[tp.topic] for tp in tps}.values():
        context.rules.catch_up(wanted or tuple)
    while True:
        commands = {tp: Tp(contexts[tp.topic].topics.commands, tp.partition) for tp in tps}
        inputs = [*tps, *commands.values()]
        committed = reader.committed(inputs)
        try:
            return _restore(reader, contexts, commands, committed, room or RestoreRoom(), is_reader=wanted is None)
        except StateCorruptedError:
            if reader.committed(inputs) == committed:
                raise  # else the owner has committed meanwhile: whoever looks, or was thrown out of the group, reads once more
            tps = wanted() if wanted is not None else tps


def _check_counts(contexts: Mapping[str, TaskContext], tps: Collection[Tp]) -> None:
    """A partition that was added while the worker ran has no changelog yet, and ids may belong elsewhere now (W-107)."""
    for tp in tps:
        context = contexts[tp.topic]
        if tp.partition >= context.partitions and context.policy.is_bound_to_count:
            why = f"the topic had {context.partitions} partitions when this worker started"
            raise StateCorruptedError([tp], why, remedy_for_count(context.destination))


def remedy_for_count(destination: str) -> str:
    """The remedy for a partition count that changed while groups were open (W-107)."""
    return f"stop all workers and run `uow topics repartition {destination}`, which moves what belongs elsewhere now"


def _restore(
    reader: LogReader,
    contexts: Mapping[str, TaskContext],
    commands: Mapping[Tp, Tp],
    committed: Mapping[Tp, Committed],
    room: RestoreRoom,
    *,
    is_reader: bool,
) -> dict[Tp, PartitionTask]:
    tps = list(commands)
    changelogs = {Tp(contexts[tp.topic].topics.groups_changelog, tp.partition): tp for tp in tps}
    ledgers = {Tp(contexts[tp.topic].topics.closed_changelog, tp.partition): tp for tp in tps}
    bounds = reader.bounds([*tps, *commands.values(), *changelogs, *ledgers])
    found = {tp: _Found(Window(*tp), bounds[ledger]) for ledger, tp in ledgers.items()}
    admission = _Admission(room, found, {tp: hints(committed[tp]).rows for tp in tps})
    for log, records in reader.read({log: bounds[log] for log in (*changelogs, *ledgers)}):
        if log in changelogs:
            _replace_rows(found[changelogs[log]].rows, log, records)
            admission.check(records)
        else:
            tp = ledgers[log]
            for record in records:
                _add_ledger_record(found[tp], log, record.offset(), record.value())
            _sift(found[tp], contexts[tp.topic])
    tasks = {}
    for tp in tps:
        task = tasks[tp] = PartitionTask(tp, contexts[tp.topic])
        order = commands[tp]
        group_rows = _fill(
            task, found[tp], committed[tp], bounds[tp], _command_position(committed[order], bounds[order])
        )
        _fill_groups(task, group_rows, _UNREADABLE if is_reader else (DecodeError,))
    _replay(reader, tasks, found, bounds)
    for task in tasks.values():
        task.restored()
    return tasks


class _Admission:
    """Ends a restore early for which there is no room (R-73).

    Args:
        room: See there.
        found: What is read, by partition.
        rows: How many rows the changelog of each must have; None where nobody said.
    """

    def __init__(self, room: RestoreRoom, found: Mapping[Tp, _Found], rows: Mapping[Tp, int | None]) -> None:
        self._room, self._found, self._rows = room, found, rows
        self._most_bytes, self._room_bytes = 0, room.bytes_for(found)

    def check(self, records: Sequence[RawRecord]) -> None:
        """Takes note of records of a changelog: counts each as a group, and what is left of all once that is too much.

        A log that is not compacted yet tells first what was open long ago, which is no reason: there are fewer rows now.

        Raises:
            Blocked: There is no room for what is open.
        """
        kind: Any = type(records[0])
        values = filter(None, map(kind.value, records))
        self._most_bytes += sum(map(len, values)) + (COMPONENT_BYTES + GROUP_BYTES) * len(records)
        if self._most_bytes <= self._room_bytes:
            return
        size = sum(memory_of_rows(each.rows) for each in self._found.values())
        read = sum(len(each.rows) for each in self._found.values())
        rows = sum(len(each.rows) if (told := self._rows[tp]) is None else told for tp, each in self._found.items())
        if size > self._room_bytes and read <= rows:
            raise self._room.too_small(self._found, size * rows // read, rows)
        self._most_bytes = min(size, self._room_bytes // 2)  # of what is left soon, half is looked at again in any case


def _replay(
    reader: LogReader,
    tasks: Mapping[Tp, PartitionTask],
    found: Mapping[Tp, _Found],
    bounds: Mapping[Tp, tuple[int, int]],
) -> None:
    """Reads the input from the replay floors to the positions, and takes what belongs to replayable groups."""
    floors = {tp: found[tp].window.check(task.position, bounds[tp][0]) for tp, task in tasks.items()}
    ranges = {tp: (floor, tasks[tp].position) for tp, floor in floors.items() if floor < tasks[tp].position}
    selections = {
        tp: found[tp].window.selection(frozenset(tasks[tp].groups), reader_of(tasks[tp].context.policy))
        for tp in ranges
    }
    for tp, records in reader.read(ranges):
        tasks[tp].replay(selections[tp].select(records))
    for tp in ranges:
        again = tasks[tp].replayable.floor(tasks[tp].position)
        if again != floors[tp]:
            why = f"the replay floor is {floors[tp]}, but the first component found again is at {again}"
            raise StateCorruptedError([tp], why, _REMEDY_OFFSETS)


def live_rows(reader: LogReader, logs: Sequence[Tp]) -> dict[Tp, dict[bytes, bytes]]:
    """Live rows of partitions of a groups' changelog, by key."""
    found: dict[Tp, dict[bytes, bytes]] = {log: {} for log in logs}
    for log, records in reader.read(reader.bounds(logs)):
        _replace_rows(found[log], log, records)
    return found


def _replace_rows(rows: dict[bytes, bytes], log: Tp, records: Sequence[RawRecord]) -> None:
    """Adds changelog records, in bulk: the last value of each key counts, a tombstone takes the key away."""
    kind: Any = type(records[0])
    keys: list[Any] = list(map(kind.key, records))
    values: list[Any] = list(map(kind.value, records))
    if None in keys:
        why = f"a row without a key at offset {records[keys.index(None)].offset()}"
        raise StateCorruptedError([log], why, "restore the topic from a backup")
    if None not in values:
        rows.update(zip(keys, values, strict=True))
        return
    for key, value in zip(keys, values, strict=True):
        if value is None:
            rows.pop(key, None)  # a row of this key that follows takes a new place: places are the order of arrival
        else:
            rows[key] = value


def _add_ledger_record(found: _Found, log: Tp, offset: int, value: bytes | None) -> None:
    try:
        ledger, closed = read_ledger(value or b"")
    except (DecodeError, IndexError, ValueError) as error:
        raise StateCorruptedError(
            [log],
            f"ledger record at offset {offset}: {error}",
            "start the version that wrote it",
        ) from error
    if found.oldest is None:
        found.oldest = ledger.clock
    found.window.add(ledger, closed)
    found.closed += closed
    found.closed_bytes += sum(map(memory_of, closed))
    found.commands += ledger.commands


def _sift(found: _Found, context: TaskContext) -> None:
    """Lets go of closed groups that the worker would have forgotten by now, and of the oldest beyond what it may remember."""
    is_much = len(found.closed) > found.sift_at + SPARE_CLOSED or found.closed_bytes > found.sift_bytes + SPARE_BYTES
    if not is_much or found.last is None:
        return
    memory = ClosedMemory(context.policy.closed_retention_ms, context.policy.closed_max_groups)
    for one in found.closed:
        memory.add(one)
    memory.trim(found.last.clock)
    forgotten = memory.shrink(memory.memory_bytes - context.remembered_bytes)
    if forgotten is not None:
        found.forgotten_at = max(found.forgotten_at, forgotten.at)
    found.closed, found.closed_bytes = [*memory.order], memory.memory_bytes
    found.sift_at, found.sift_bytes = 2 * len(found.closed), found.closed_bytes


def _command_position(committed: Committed, bounds: tuple[int, int]) -> int:
    """Where reading of `D.commands` goes on: at its log start the first time, and where the log has another life than the offset.

    Nothing is lost or done twice by that: a command read again is known by its id.
    """
    start, end = bounds
    offset = committed.offset
    return offset if offset is not None and start <= offset <= end else start


def _fill(
    task: PartitionTask, found: _Found, committed: Committed, bounds: tuple[int, int], command_position: int
) -> list[_Row]:
    """Takes everything but the groups' own rows, which it returns."""
    start, end = bounds
    agreed = found.rows.pop(SETTINGS_KEY, None)
    strays = _strays(task.tp, found.rows)  # before rows are counted: nobody counted them
    context, hint = task.context, hints(committed)
    counted = hint.partitions
    if hint.moved is not None:
        raise StateCorruptedError([task.tp], *why_fenced(hint.moved))
    if counted not in (None, context.partitions) and context.policy.is_bound_to_count:
        why = f"its groups were assembled when the topic had {counted} partitions, now it has {context.partitions}"
        raise StateCorruptedError([task.tp], why, remedy_for_count(context.destination))
    position = _position(task.tp, found, committed, bounds, agreed is not None)
    if position < start:
        task.blocked = f"records {position} to {start - 1} of {task.tp.topic}/{task.tp.partition} were deleted before they were read"
    elif position > end:
        raise StateCorruptedError(
            [task.tp],
            f"committed offset {position} lies behind the end offset {end}",
            _REMEDY_OFFSETS,
        )
    clock = found.last.clock if found.last is not None else hint.clock or 0
    task.restore(position, clock, found.closed, len(found.rows), command_position, found.commands)
    task.forgets_until = _forgets_until(found, hint, context.policy)
    if found.forgotten_at:
        task.forgets_until = max(task.forgets_until, found.forgotten_at + context.policy.closed_retention_ms)
    with _decoding(task.tp):
        if (
            mark_in(committed.metadata) is not None
        ):  # else whoever committed last knew of no settings: an older version, `uow topics repartition`
            task.restore_agreement(agreed)
        kept = [key for key in found.rows if key[:1] == CREDIT_KEY]
        for key in kept:
            del found.rows[key]
        task.restore_credits(kept)
        task.restore_strays(strays)
        task.waiting_records.restore({key: found.rows.pop(key) for key in [*found.rows] if key[:1] == WAITING_KEY})
        task.restore_kept({key: found.rows.pop(key) for key in [*found.rows] if key[:1] == KEPT_KEY})
        task.restore_live({key: found.rows.pop(key) for key in [*found.rows] if key[:1] == LIVE_KEY})
        return [(key, group, read_group_row(row)) for key, group, row in take_rows(found.rows, task.restore_group)]


def _fill_groups(task: PartitionTask, rows: Sequence[_Row], errors: tuple[type[Exception], ...]) -> None:
    """Takes the groups' own rows. Where a worker restores, an error that is not among these is a defect that one group meets; whoever looks closes none."""
    with _decoding(task.tp, errors):
        for row in rows:
            task.restore_group_row(*row)
        if (
            task.context.policy.idle_expiration_ms != NEVER_MS
        ):  # the only thing that asks for each component's own append time
            task.read_last_at()


_Row = tuple[bytes, Group | None, GroupRow]
"""Key, group and content of a group's own row."""
_UNREADABLE = (DecodeError, LookupError)


@contextmanager
def _decoding(tp: Tp, errors: tuple[type[Exception], ...] = _UNREADABLE) -> Iterator[None]:
    try:
        yield
    except errors as error:
        raise StateCorruptedError([tp], f"changelog: {error}", "start the version that wrote it") from error


def _strays(tp: Tp, rows: dict[bytes, bytes]) -> list[Stray]:
    with _decoding(tp):
        return take_strays(rows)


def _forgets_until(found: _Found, hint: Hints, policy: DestinationPolicy) -> int:
    """Until when ids may come back that closed in a part of the ledger that is gone, and should be known (W-19); 0: none can.

    Where nothing stands beside the offset somebody else has set it, to begin anew: nothing is known on purpose.
    """
    last, oldest = found.last, found.oldest if found.last is not None else hint.clock
    if (
        not oldest
        or policy.handling_policy is HandlingPolicy.PASS_THROUGH
        or (last is not None and not found.ledger[0])
    ):
        return 0
    until = oldest + policy.closed_retention_ms
    return until if last is None or until > last.clock else 0


def _check_first_start(tp: Tp, found: _Found, has_agreed: bool) -> None:
    """Never from the start into existing state, nor where it was, and nothing but its traces are left (ER-20).

    The settings' row is the trace that no retention takes. An end of the ledger alone is none: an aborted transaction leaves one as well.
    """
    if found.last is not None:
        at = found.last.to_offset
        why, remedy = f"its ledger ends at {at}", f"{_REMEDY_OFFSETS}; the old offset of this partition is {at}"
    elif found.rows:
        why, remedy = f"its changelog holds {len(found.rows)} components", _REMEDY_LEDGER
    elif has_agreed or found.ledger[0] > 0:
        why, remedy = "workers have committed here before: it was kept for less than the downtime", _REMEDY_BEGUN
    else:
        return
    raise StateCorruptedError([tp], f"the group has no committed offset, but {why}", remedy)


def _position(tp: Tp, found: _Found, committed: Committed, bounds: tuple[int, int], has_agreed: bool) -> int:
    if committed.offset is None:
        _check_first_start(tp, found, has_agreed)
        return bounds[0]
    if found.last is not None and found.last.to_offset != committed.offset:
        why = f"the ledger ends at {found.last.to_offset}, the committed offset is {committed.offset}"
        raise StateCorruptedError([tp], why, _REMEDY_OFFSETS)
    floor, rows, *_ = hints(committed)
    if found.last is None and floor is None and (found.rows or found.ledger[1]):
        why = f"somebody else set the committed offset {committed.offset}, and the ledger has no record left to judge it by"
        raise StateCorruptedError([tp], why, _REMEDY_OFFSETS)
    if found.last is None and floor is not None and floor < committed.offset:
        why = f"components from {floor} on are to be read again, but the ledger that says which has no record left"
        raise StateCorruptedError([tp], why, _REMEDY_LEDGER)
    if rows is not None and rows != len(found.rows):
        why = f"the groups' changelog has {len(found.rows)} components, {rows} were committed: it was cut, emptied or deleted"
        raise StateCorruptedError([tp], why, _REMEDY_ROWS)
    return committed.offset


class Hints(NamedTuple):
    """The text that a worker wrote beside a committed offset, as values; None where it did not, or somebody else set the offset.

    Attributes:
        floor: The replay floor.
        rows: How many rows the changelog must have.
        partitions: How many partitions `D.components` had (W-107).
        clock: The partition's clock, for when the ledger has aged away.
        moved: `to PLACE` where its groups have moved, `from PLACE` where they are to come; no worker may work there.
    """

    floor: int | None = None
    rows: int | None = None
    partitions: int | None = None
    clock: int | None = None
    moved: str | None = None


_HINTS = re.compile(r"1;F=(\d+)(?:;R=(\d+))?(?:;P=(\d+))?(?:;C=(\d+))?(?:;S=[0-9a-f]+)?(?:;M=((?:to|from) [^;]*))?")


def hints(committed: Committed) -> Hints:
    """The values beside a committed offset."""
    found = _HINTS.fullmatch(committed.metadata)
    if found is None:
        return Hints()
    floor, rows, partitions, clock = (None if each is None else int(each) for each in found.groups()[:4])
    return Hints(floor, rows, partitions, clock, found[5])


def fenced(metadata: str, position: int, moved: str) -> str:
    """The text beside a committed offset with the mark that no worker may work here (`Hints.moved`)."""
    text = unfenced(metadata)
    return f"{text if _HINTS.fullmatch(text) else f'1;F={position}'};M={moved.replace(';', ',')}"


def unfenced(metadata: str) -> str:
    """The same without that mark."""
    return metadata.partition(";M=")[0]


def why_fenced(moved: str) -> tuple[str, str]:
    """The reason and the remedy, where no worker may work."""
    if moved.startswith("to "):
        return (
            f"its groups have moved {moved}",
            "take the destination out of this configuration; `uow migrate --undo` takes the move back, as long as no worker may work there",
        )
    return f"groups are to come {moved}", "run `uow migrate` there once more: it says when workers may start here"
