"""Restore: from committed offset, changelog and ledger back to the state of a partition (ER-06, ER-07, ER-20; architecture section 5).

The order is the barrier: stable committed offsets first, then the end offsets, asked `read_uncommitted`, then both topics are read
`read_committed` until the position has reached those ends. Then the input is read again, from the replay floor to the committed offset,
for the young groups. Replay selects, it never decides: no rule about groups is asked here.

Belongs here: the steps and the checks that refuse to start on state that does not agree. Does not belong here: how a log is read
(`LogReader`), the bytes of rows (`rows`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from processor.core.changes import Closed, Held
from processor.engine.outputs import TaskContext
from processor.engine.ports import Committed, LogReader, RawRecord, Tp
from processor.engine.replay import Window
from processor.engine.rows import ROW_HEADER, read_ledger, read_row
from processor.engine.task import PartitionTask
from schemas.component import Cursor, decode_component
from schemas.errors import DecodeError, StateCorruptedError
from schemas.records import GROUP_ROW, LedgerRecord
from topics.policies import NEVER_MS

STRETCH = 5_000
"""Input records of one partition that a replay selects from at a time."""

_REMEDY_OFFSETS = (
    "the group's committed offsets do not belong to this state: put the old offsets back, or, to begin anew, stop all workers and delete "
    "the destination's two changelog topics together with the offsets"
)
_REMEDY_LEDGER = (
    "retention of the ledger topic was shorter than the downtime: put its records back; or begin anew: stop all workers, delete the "
    "destination's two changelog topics, and set the group's offset back to where the oldest open group began; units delivered since then "
    "are delivered again"
)


@dataclass(slots=True)
class _Found:
    """What the logs hold for one partition."""

    window: Window
    rows: dict[bytes, bytes] = field(default_factory=dict)
    closed: list[Closed] = field(default_factory=list)

    @property
    def last(self) -> LedgerRecord | None:
        """The newest ledger record."""
        return self.window.last


def restore(reader: LogReader, contexts: Mapping[str, TaskContext], tps: Sequence[Tp]) -> dict[Tp, PartitionTask]:
    """State of the partitions as of their committed offsets; reads only, so people who look use it as well.

    Args:
        reader: Where to read from.
        contexts: By name of `D.components`.
        tps: Partitions of `D.components`.

    Returns:
        A task for each; its `position` is where reading goes on. A task is `blocked` when its input is gone already (W-120).

    Raises:
        StateCorruptedError: Offsets and logs do not agree, or a row cannot be read.
    """
    while True:
        committed = reader.committed(tps)
        try:
            return _restore(reader, contexts, tps, committed)
        except StateCorruptedError:
            if reader.committed(tps) == committed:
                raise  # else the owner has committed meanwhile: whoever looks, or was thrown out of the group, reads once more


def _restore(
    reader: LogReader, contexts: Mapping[str, TaskContext], tps: Sequence[Tp], committed: Mapping[Tp, Committed]
) -> dict[Tp, PartitionTask]:
    changelogs = {Tp(contexts[tp.topic].topics.groups_changelog, tp.partition): tp for tp in tps}
    ledgers = {Tp(contexts[tp.topic].topics.closed_changelog, tp.partition): tp for tp in tps}
    bounds = reader.bounds([*tps, *changelogs, *ledgers])
    found = {tp: _Found(Window(*tp)) for tp in tps}
    rows_of: dict[tuple[str, int], dict[bytes, bytes]] = {log: found[tp].rows for log, tp in changelogs.items()}
    for record in reader.read({log: bounds[log] for log in (*changelogs, *ledgers)}):
        at = record.topic(), record.partition()  # a plain tuple finds a `Tp`, and is made in a third of the time
        key, value = record.key(), record.value()
        rows = rows_of.get(at)
        if rows is None:
            log = Tp(*at)
            _take_ledger(found[ledgers[log]], log, record.offset(), value)
        elif key is None:
            raise StateCorruptedError(
                [Tp(*at)],
                f"a row without a key at offset {record.offset()}",
                "restore the topic from a backup",
            )
        elif value is None:
            rows.pop(key, None)
        else:
            rows[key] = value
    tasks = {}
    for tp in tps:
        task = tasks[tp] = PartitionTask(tp, contexts[tp.topic])
        _fill(task, found[tp], committed[tp], bounds[tp])
    _replay(reader, tasks, found, bounds)
    for task in tasks.values():
        task.restored()
    return tasks


def _replay(
    reader: LogReader,
    tasks: Mapping[Tp, PartitionTask],
    found: Mapping[Tp, _Found],
    bounds: Mapping[Tp, tuple[int, int]],
) -> None:
    """Reads the input from the replay floors to the positions, and takes what belongs to young groups."""
    floors = {tp: found[tp].window.check(task.position, bounds[tp][0]) for tp, task in tasks.items()}
    ranges = {tp: (floor, tasks[tp].position) for tp, floor in floors.items() if floor < tasks[tp].position}
    selections = {tp: found[tp].window.selection(frozenset(tasks[tp].groups)) for tp in ranges}
    stretches: dict[Tp, list[RawRecord]] = {tp: [] for tp in ranges}

    def take(tp: Tp) -> None:
        for held in selections[tp].select(stretches[tp]):
            tasks[tp].replay(held)
        stretches[tp].clear()

    for record in reader.read(ranges):
        tp = Tp(record.topic(), record.partition())
        stretches[tp].append(record)
        if len(stretches[tp]) >= STRETCH:
            take(tp)
    for tp in ranges:
        take(tp)
        again = tasks[tp].young.floor(tasks[tp].position)
        if again != floors[tp]:
            why = f"the replay floor is {floors[tp]}, but the first component found again is at {again}"
            raise StateCorruptedError([tp], why, _REMEDY_OFFSETS)


def _take_ledger(found: _Found, log: Tp, offset: int, value: bytes | None) -> None:
    try:
        ledger, closed = read_ledger(value or b"")
    except (DecodeError, IndexError, ValueError) as error:
        raise StateCorruptedError(
            [log],
            f"ledger record at offset {offset}: {error}",
            "start the version that wrote it",
        ) from error
    found.window.add(ledger, closed)
    found.closed += closed


def _fill(task: PartitionTask, found: _Found, committed: Committed, bounds: tuple[int, int]) -> None:
    start, end = bounds
    position = _position(task.tp, found, committed, bounds)
    if position < start:
        task.blocked = f"records {position} to {start - 1} of {task.tp.topic}/{task.tp.partition} were deleted before they were read (W-120)"
    elif position > end:
        raise StateCorruptedError(
            [task.tp],
            f"committed offset {position} lies behind the end offset {end}",
            _REMEDY_OFFSETS,
        )
    task.restore(position, found.last.clock if found.last is not None else 0, found.closed)
    idle = task.context.policy.idle_expiration_ms != NEVER_MS
    try:
        for group_id, generation, opened_at, held in _rows(found.rows):
            if idle:  # the only thing that asks for each component's own append time
                held = held._replace(at=decode_component(held.body).timestamp)
            task.restore_row(group_id, generation, opened_at, held)
    except (DecodeError, IndexError) as error:
        raise StateCorruptedError([task.tp], f"changelog: {error}", "start the version that wrote it") from error


def _position(tp: Tp, found: _Found, committed: Committed, bounds: tuple[int, int]) -> int:
    if committed.offset is None:
        if found.rows or found.last is not None:  # ER-20: never replay from the start into existing state
            raise StateCorruptedError(
                [tp],
                "the group has no committed offset, but its changelogs hold state",
                _REMEDY_OFFSETS,
            )
        return bounds[0]
    if found.last is not None and found.last.to_offset != committed.offset:
        why = f"the ledger ends at {found.last.to_offset}, the committed offset is {committed.offset}"
        raise StateCorruptedError([tp], why, _REMEDY_OFFSETS)
    floor = _hinted_floor(committed)
    if found.last is None and floor is not None and floor < committed.offset:
        why = f"components from {floor} on are to be read again, but the ledger that says which has no record left"
        raise StateCorruptedError([tp], why, _REMEDY_LEDGER)
    return committed.offset


def _hinted_floor(committed: Committed) -> int | None:
    """The replay floor beside the committed offset; None if someone else set the offset."""
    found = re.fullmatch(r"1;F=(\d+)", committed.metadata)
    return int(found[1]) if found else None


def _rows(rows: Mapping[bytes, bytes]) -> Iterator[tuple[bytes, int, int, Held]]:
    """(id, generation, opened at, component) of each row. The plain row is read in line: a restore reads hundreds of thousands a second."""
    first = len(ROW_HEADER)
    heads: dict[bytes, tuple[bytes, int, int]] = {}  # by id: rows of one group begin alike, and stand apart
    unread = (b"\xff", 0, 0)
    for key, value in rows.items():
        group_id, seq = key[1:-5], int.from_bytes(key[-4:], "big")
        if len(key) < 7 or key[0] != 1 or key[-5] != 0 or seq == GROUP_ROW:
            raise DecodeError("changelog-key", "no component row of a known version", data=key)
        head, generation, opened_at = heads.get(group_id, unread)
        if not value.startswith(head):
            if not value.startswith(ROW_HEADER):
                raise DecodeError("changelog", "no component row of a known version", data=value[:64])
            cursor = Cursor(value, first)
            generation, opened_at = cursor.long(), cursor.long()
            head = value[: cursor.at]
            heads[group_id] = head, generation, opened_at
        at = len(head)
        shift = offset = 0
        while (byte := value[at]) > 127:
            offset |= (byte & 127) << shift
            shift += 7
            at += 1
        offset = (offset | byte << shift) >> 1
        end = value[at + 1] == 1
        if value[at + 2]:
            row = read_row(value)
            yield (
                group_id,
                generation,
                opened_at,
                Held(group_id, seq, end, opened_at, offset, row.payload, row.attributes),
            )
            continue
        at += 3
        shift = length = 0
        while (byte := value[at]) > 127:
            length |= (byte & 127) << shift
            shift += 7
            at += 1
        length = (length | byte << shift) >> 1
        body = value[at + 1 :]
        if len(body) != length:
            raise DecodeError(
                "changelog",
                f"a row claims {length} bytes and has {len(body)}",
                data=value[:64],
            )
        yield (
            group_id,
            generation,
            opened_at,
            Held(group_id, seq, end, opened_at, offset, body),
        )
