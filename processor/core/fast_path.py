"""The fast path: the plain case of the decision table, in bulk. It holds, completes and delivers; every other row goes to `Partition.on_record`.

A plain row meets a group in which nothing special ever happened, or none: its number is free and not above the end, its end mark does
not contradict anything, no limit is reached, no deadline passed and the plan is not full. All of that is line 15, and the loop over such rows is
`group.hold_rows`. A poll of a router's records has a loop of its own (`counted_groups`). A differential test holds both and `decide` together: the
same stream, row by row through `on_record`, gives the same groups, effects and counts.

Belongs here: what the loop takes from a partition, and the partition's sums after it. Does not belong here: any other line of the table, and the
loop itself, which writes the fields of groups (`group`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from uow.processor.core.columns import Columns, Record
from uow.processor.core.counted_groups import hold_routed_rows
from uow.processor.core.group import RowTarget, hold_rows
from uow.processor.core.partition_state import PartitionState


def process_rows(partition: PartitionState, columns: Columns, on_record: Callable[[Record, bytes], None]) -> None:
    """Deals with the rows of one poll in offset order.

    The loop keeps `clock` and `left_bytes` to itself: they are written back before `on_record` looks at them, and at the end. What it held and
    delivered is added to `held_bytes` and the counts at the end; `on_record` accounts for its rows itself.

    Args:
        partition: Whose groups change.
        columns: The rows.
        on_record: Judges one record by the whole table; gets the Avro body as well, where the row has one.
    """
    if 2 * len(columns.routed) > len(columns.offsets):
        hold_routed_rows(partition, columns, on_record)
        return
    odd: list[bytes] = []

    def on_odd(offset: int, body: bytes, clock: int, left_bytes: int) -> tuple[int, int, int]:
        partition.clock, partition.left_bytes = clock, left_bytes
        on_record(columns.records[bisect_left(columns.offsets, offset)], body)
        odd.append(body)
        return partition.clock, partition.due, partition.left_bytes

    policy, happened, closed = partition.policy, partition.happened, partition.closed
    target = RowTarget(
        partition.groups,
        closed.by_id,
        policy.sure_components,
        policy.max_bytes,
        partition.latest,
        policy.tells_duplicates_apart,
        partition.may_open,
        partition.unit_deadlines.schedule if partition.timed else None,
        on_odd,
        happened.held.append,
        happened.closed.append,
        closed.order.append,
        happened.effects.append,
    )
    result = hold_rows(target, columns, partition.clock, partition.due, partition.left_bytes)
    partition.clock, partition.left_bytes = result.clock, result.left_bytes
    partition.held_bytes += sum(map(len, columns.bodies)) - sum(map(len, odd)) - result.closed_bytes
    partition.counts.held += len(columns.offsets) - len(odd)
    partition.counts.delivered += result.delivered
