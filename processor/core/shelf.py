"""The plain case of the decision table, in bulk: hold, complete, deliver. What it cannot judge goes to `Partition.arrive`.

A plain row meets a group in which nothing special ever happened, or none: its number is free and not above the end, its end mark does
not contradict anything, no limit is reached, no deadline passed and the plan is not full. All of that is line 15. A differential test holds this loop and
`decide` together: the same stream, row by row through `arrive`, gives the same groups, effects and counts.

Belongs here: that one loop, and nothing that depends on a policy beyond the limits. Does not belong here: any other line of the table.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from processor.core.changes import Closed, Delivered
from processor.core.columns import Columns
from processor.core.group import UNKNOWN_END, Group
from processor.core.room import ENTRY_BYTES, LEDGER_SHARE
from schemas.fingerprint import fingerprints
from schemas.records import Reason, UnitOutcome

if TYPE_CHECKING:
    from processor.core.partition import Partition


def judge(partition: Partition, columns: Columns) -> None:
    """Judges the rows of one poll in offset order.

    Args:
        partition: Whose groups change.
        columns: The rows.
    """
    groups, closed_ids, elsewhere = partition.groups, partition.closed.by_id, partition.elsewhere
    arrive, records, offsets = partition.arrive, columns.records, columns.offsets
    max_components, max_bytes, timed = partition.policy.max_components, partition.policy.max_bytes, partition.timed
    is_printed = partition.policy.tells_duplicates_apart
    tails, clock, due, room = columns.tails, partition.clock, partition.due, partition.room
    latest = partition.latest
    note_held, note_effect = partition.happened.held.append, partition.happened.effects.append
    note_closed, note_order = partition.happened.closed.append, partition.closed.order.append
    complete, by_end = UnitOutcome.COMPLETE, Reason.END
    new = tuple.__new__  # a named tuple's own is a Python function
    delivered = closed_bytes = 0
    others: list[bytes] = []
    rows = zip(
        columns.ids,
        columns.seqs,
        columns.ends,
        columns.times,
        columns.offsets,
        columns.bodies,
        strict=True,
    )
    for group_id, seq, end, at, offset, body in rows:
        before = clock
        if clock < at <= latest:
            clock = at
        group = groups.get(group_id)  # None, an odd row, is no key of it
        if group is not None:
            held = group.held
            count = len(held)
            total = group.bytes + len(body)
            if (
                seq in held
                or seq > group.end
                or total > max_bytes
                or count >= max_components
                or clock >= due
                or group.special
                or (end and (group.end != UNKNOWN_END or seq < group.highest))
            ):
                partition.clock, partition.room = before, room
                arrive(records[bisect_left(offsets, offset)], body)
                others.append(body)
                clock, due, room = partition.clock, partition.due, partition.room
                due *= room >= 0
                continue
            group.bytes = total
            if at > group.last_at:
                group.last_at = at
        else:
            if (
                group_id is None
                or clock >= due
                or group_id in closed_ids
                or len(body) > max_bytes
                or elsewhere(group_id) is not None
            ):
                partition.clock, partition.room = before, room
                arrive(records[bisect_left(offsets, offset)], body)
                others.append(body)
                clock, due, room = partition.clock, partition.due, partition.room
                due *= room >= 0
                continue
            group = groups[group_id] = Group(group_id, 1, at)
            held = group.held
            count = 0
            group.bytes = len(body)
            if timed:
                partition.schedule(group)
                due = partition.due
        held[seq] = body
        if seq > group.highest:
            group.highest = seq
        if not group.is_young:
            note_held((group, seq, end, offset, None))
        if end:
            group.end, group.marked, group.tail = seq, True, tails[offset]
        if count + 1 == group.end:
            end_at = group.end
            prints = fingerprints(held) if is_printed else b""
            closed = new(Closed, (group_id, group.generation, complete, by_end, end_at, offset + 1, clock, prints))
            del groups[group_id]
            group.is_open = False
            closed_ids[group_id] = closed
            note_order(closed)
            note_closed((group, closed))
            note_effect((new(Delivered, (closed, None)), None, group))
            delivered += end_at
            closed_bytes += group.bytes
            room -= group.bytes + LEDGER_SHARE * (ENTRY_BYTES + len(prints))
            due *= room >= 0  # full: whatever follows is due to be left by `arrive`
    partition.clock, partition.room = clock, room
    partition.held_bytes += sum(map(len, columns.bodies)) - sum(map(len, others)) - closed_bytes
    partition.counts.held += len(offsets) - len(others)
    partition.counts.delivered += delivered
