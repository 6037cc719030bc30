"""The plain case of the decision table, in bulk: hold, complete, deliver. What it cannot judge goes to `Partition.arrive`.

A plain row meets a group in which nothing special ever happened, or none: its number is free and not above the end, its end mark does
not contradict anything, no limit is reached and no deadline passed. All of that is line 15. A differential test holds this loop and
`decide` together: the same stream, row by row through `arrive`, gives the same groups, effects and counts.

Belongs here: that one loop, and nothing that depends on a policy beyond the limits. Does not belong here: any other line of the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from processor.core.changes import Closed, Delivered
from processor.core.columns import Columns
from processor.core.group import UNKNOWN_END, Group
from schemas.records import Reason, UnitOutcome

if TYPE_CHECKING:
    from processor.core.partition import Partition


def judge(partition: Partition, columns: Columns) -> None:
    """Judges the rows of one poll in offset order.

    Args:
        partition: Whose groups change.
        columns: The rows.
    """
    groups, closed_ids, elsewhere, arrive = (
        partition.groups,
        partition.closed.by_id,
        partition.elsewhere,
        partition.arrive,
    )
    max_components, max_bytes = (
        partition.policy.max_components,
        partition.policy.max_bytes,
    )
    records, tails, timed = columns.records, columns.tails, partition.timed
    clock, due = partition.clock, partition.due
    happened = partition.happened
    note_held = happened.held.append
    count = size = 0
    rows = zip(
        columns.ids,
        columns.seqs,
        columns.ends,
        columns.times,
        columns.offsets,
        columns.bodies,
        records,
        strict=True,
    )
    for group_id, seq, end, at, offset, body, record in rows:
        if at > clock:
            clock = at
        group = groups.get(group_id) if group_id is not None else None
        if group is not None:
            held = group.held
            plain = not (
                group.special
                or seq in held
                or seq > group.end
                or (end and (group.end != UNKNOWN_END or seq < group.highest))
                or len(held) >= max_components
                or group.bytes + len(body) > max_bytes
            )
        else:
            plain = (
                group_id is not None
                and group_id not in closed_ids
                and len(body) <= max_bytes
                and elsewhere(group_id) is None
            )
        if not plain or clock >= due:
            partition.clock = clock
            arrive(record)
            clock, due = partition.clock, partition.due
            continue
        opens = group is None
        if group is None:
            assert group_id is not None
            group = groups[group_id] = Group(group_id, 1, at)
            held = group.held
        held[seq] = body
        group.bytes += len(body)
        count += 1
        size += len(body)
        if at > group.last_at:
            group.last_at = at
        if seq > group.highest:
            group.highest = seq
        if end:
            group.end, group.marked, group.tail = seq, True, tails[offset]
        note_held((group, seq, end, offset, None))
        if len(held) == group.end:
            closed = Closed(
                group.id,
                group.generation,
                UnitOutcome.COMPLETE,
                Reason.END,
                seq if end else group.end,
                offset + 1,
                clock,
            )
            del groups[group.id]
            partition.close(group, closed)
            happened.effects.append((Delivered(closed), None, group))
        elif opens and timed:
            partition.schedule(group)
            due = partition.due
    partition.clock = clock
    partition.counts.held += count
    partition.held_bytes += size
