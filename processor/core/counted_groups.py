"""The short way of a component into a group by rule that counts (aggregation, 4.2, 4.3).

A *counted* group is of a row whose rule numbers its components, counts them and gives up by time; every other setting of the row has its default. A
routed row that meets a counted group, or opens one, is held here if nothing else is to be asked: it is no copy, fits, is in time, and nothing is due. All
of that is what `decide` says of it. Every other row goes to `Partition.on_record`, and a differential test holds both together.

Belongs here: which groups are counted, and that loop. Does not belong here: any other line of the table (`decide`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Final

from uow.processor.core.changes import Closed, Delivered, Opened, Tail
from uow.processor.core.columns import Columns, Record
from uow.processor.core.conditions import count_of
from uow.processor.core.gathered import NEVER, Counting
from uow.processor.core.group import Group
from uow.processor.core.partition_state import PartitionState
from uow.schemas.component import NULL, long
from uow.schemas.records import Reason, UnitOutcome
from uow.topics.catalogue import HELD_LIMIT_BYTES
from uow.topics.conditions import Age, ComponentDeadline, Condition, Count, Idle, alternatives
from uow.topics.grouping import GroupPolicy
from uow.topics.policies import DestinationPolicy

_LEFT_OUT: Final = frozenset(
    {
        *("rule", "rule_id", "complete_when", "give_up_when", "target_topic", "min_count", "below_min", "age_ms"),
        *("max_open_groups", "at_max_open_groups", "name_template", "rank", "by_source", "delivery_attempts"),
        *("reply_hold_ms", "reply_topics", "notice_topics"),
    }
)
"""Settings of a row that are looked at here, or play no part in holding a component."""
_OWN: Final = [
    each
    for each in fields(GroupPolicy)
    if each.name not in _LEFT_OUT and each.name not in {other.name for other in fields(DestinationPolicy)}
]
"""All others, which must have their defaults; one that is new is among them."""


def counted(policy: GroupPolicy, roll_over_bytes: int) -> Counting:
    """How the groups of a row count, of which one closes before its components have more bytes than `roll_over_bytes`."""
    waits = _waits(policy.give_up_when)
    is_counted = (
        all(getattr(policy, each.name) == each.default for each in _OWN)
        and waits is not None
        and all(isinstance(each, Count) for each in alternatives(policy.complete_when))
    )
    most = count_of(policy.complete_when) if is_counted else None
    if most is None or most > policy.sure_components:
        most = 0
    most_bytes = min(policy.max_bytes, HELD_LIMIT_BYTES, roll_over_bytes)
    return Counting(policy, most, min(waits or (), default=NEVER), most_bytes, policy.remembers_components)


def _waits(condition: Condition) -> list[int] | None:
    """The limits of time after any of which a group is given up, if there are no other conditions."""
    found = []
    for each in alternatives(condition):
        match each:
            case Age(ms) | Idle(ms):
                found.append(ms)
            case ComponentDeadline():
                pass
            case _:
                return None
    return found


def _known(partition: PartitionState, rule: str) -> Counting | None:
    """How the groups of the row of this name count, if it is known and they do."""
    found = partition.counted.get(rule)
    if found is None:
        policy = partition.rules.policy(rule)
        if policy is None:
            return None
        found = partition.counted[rule] = counted(policy, partition.roll_over_bytes)
    return found if found.most else None


def _counting(partition: PartitionState, group: Group) -> Counting | None:
    """How a group counts by the row that opened it, if nothing is special about it."""
    ruled = group.ruled
    if ruled is None or ruled.waits_since or group.waived or group.declared_end or group.deliver_at or group.expires_at:
        return None
    if group.watcher is not None:
        return None
    found = _known(partition, ruled.policy.rule)
    ruled.counting = found if found is not None and found.policy is ruled.policy else None
    return ruled.counting


def hold_routed_rows(partition: PartitionState, columns: Columns, on_record: Callable[[Record, bytes], None]) -> None:
    """Deals with the rows of one poll in offset order, of which most are routed rows.

    Args:
        partition: Whose groups change.
        columns: The rows.
        on_record: Judges one record by the whole table; gets the Avro body as well, where the row has one.
    """
    groups, aside, routed, deadlines = partition.groups, partition.aside, columns.routed, partition.unit_deadlines
    note_held, latest = partition.happened.held.append, partition.latest
    new = tuple.__new__  # a named tuple's own is a Python function
    held = held_bytes = 0
    named = own = None
    rows = zip(columns.records, map(routed.get, columns.offsets), columns.offsets, columns.bodies, strict=True)
    for record, row, offset, whole in rows:
        if row is None or partition.left_bytes < 0 or partition.is_cut:
            on_record(record, whole)
            continue
        group_id, rule, component_id, arrival, at, value_bytes, is_bare, rest = row
        if rule is not named:
            named, own = rule, _known(partition, rule)
        clock = partition.clock
        if clock < at <= latest:
            clock = at
        if own is None or clock >= deadlines.due or group_id in aside:
            on_record(record, whole)
            continue
        group = groups.get(group_id)
        if group is None:
            policy, seq, body = own.policy, 1, _HEADS[1] + rest
            if (
                len(body) > own.most_bytes
                or len(partition.by_rule.get(policy.rule_id, ())) >= policy.max_open_groups
                or partition.elsewhere(group_id) is not None
                or (own.remembers and _is_delivered(partition, clock, group_id, component_id))
            ):
                on_record(record, whole)
                continue
            partition.clock = clock
            partition.closed.trim(clock)
            group = partition.open(Opened(group_id, partition.next_generation(group_id), arrival, b"", policy))
            ruled, counting = group.ruled, own
        else:
            ruled = group.ruled  # it has the row that opened it
            of_group = ruled.counting if ruled is not None and ruled.counting else _counting(partition, group)
            seq = group.highest + 1
            body = (_HEADS[seq] if seq < _MANY else long(seq) + NULL) + rest
            if (
                ruled is None
                or of_group is None
                or (of_group is not own and of_group.policy.rule_id != own.policy.rule_id)
                or arrival >= ruled.scheduled
                or component_id in ruled.component_ids
                or group.bytes + len(body) > of_group.most_bytes
                or (of_group.remembers and _is_delivered(partition, clock, group_id, component_id))
            ):
                on_record(record, whole)
                continue
            counting, partition.clock = of_group, clock
        group.hold_routed(seq, body, at, arrival, value_bytes, component_id)
        held, held_bytes = held + 1, held_bytes + len(body)
        note_held((group, seq, False, offset, None))
        if len(group.held) >= counting.most:
            prints = group.id_prints() if counting.remembers else b""
            parts = group_id, group.generation, UnitOutcome.COMPLETE, Reason.COUNT, seq, offset + 1, clock, prints
            closed = new(Closed, parts)
            if is_bare:
                group.keep_tail(new(Tail, (component_id, offset, (), None)))
            del groups[group_id]
            partition.close(group, closed)
            partition.happened.effects.append((new(Delivered, (closed, None, 0)), None, group))
        elif ruled is not None and arrival + counting.wait_ms + 1 < ruled.scheduled:
            partition.rule_deadlines.put(group, arrival + counting.wait_ms + 1)
    partition.counts.held += held
    partition.held_bytes += held_bytes


def _is_delivered(partition: PartitionState, clock: int, group_id: bytes, component_id: bytes) -> bool:
    """True if a unit of the group's id that is remembered at this moment has the component (B-38)."""
    partition.closed.trim(clock)
    return partition.closed.has(group_id, component_id)


_MANY: Final = 1_024
_HEADS: Final = [long(seq) + NULL for seq in range(_MANY)]
"""Number and no end mark, as a component begins."""
