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

from uow.processor.core.changes import Closed, Delivered, Opened
from uow.processor.core.columns import Columns, Record
from uow.processor.core.conditions import count_of
from uow.processor.core.gathered import NEVER, Counting
from uow.processor.core.partition_state import PartitionState
from uow.schemas.component import NULL, long
from uow.schemas.records import Reason, UnitOutcome
from uow.topics.catalogue import HELD_LIMIT_BYTES
from uow.topics.conditions import Age, AnyOf, ComponentDeadline, Condition, Count, Idle
from uow.topics.grouping import GroupPolicy
from uow.topics.policies import DestinationPolicy

_LEFT_OUT: Final = frozenset(
    {
        *("rule", "rule_id", "complete_when", "give_up_when", "target_topic", "min_count", "below_min", "age_ms"),
        *("max_open_groups", "at_max_open_groups", "name_template", "rank", "by_source", "delivery_attempts"),
        *("reply_hold_ms", "reply_topics"),
    }
)
"""Settings of a row that are looked at here, or play no part in holding a component."""
_OWN: Final = [
    each
    for each in fields(GroupPolicy)
    if each.name not in _LEFT_OUT and each.name not in {other.name for other in fields(DestinationPolicy)}
]
"""All others, which must have their defaults; one that is new is among them."""


def counted(policy: GroupPolicy) -> Counting:
    """How the groups of a row count."""
    waits = _waits(policy.give_up_when)
    is_counted = (
        all(getattr(policy, each.name) == each.default for each in _OWN)
        and waits is not None
        and all(isinstance(each, Count) for each in _any_of(policy.complete_when))
    )
    most = count_of(policy.complete_when) if is_counted else None
    return Counting(policy, most or 0, min(waits or (), default=NEVER))


def _waits(condition: Condition) -> list[int] | None:
    """The limits of time after any of which a group is given up, if there are no other conditions."""
    found = []
    for each in _any_of(condition):
        match each:
            case Age(ms) | Idle(ms):
                found.append(ms)
            case ComponentDeadline():
                pass
            case _:
                return None
    return found


def _any_of(condition: Condition) -> tuple[Condition, ...]:
    """The conditions of which any is enough."""
    return condition.conditions if isinstance(condition, AnyOf) else (condition,)


def _known(partition: PartitionState, rule: str) -> Counting | None:
    """How the groups of the row of this name count, if it is known and they do."""
    found = partition.counted.get(rule)
    if found is None:
        policy = partition.rules.policy(rule)
        if policy is None:
            return None
        found = partition.counted[rule] = counted(policy)
    return found if found.most else None


def hold_routed_rows(  # noqa: C901  # one loop, without a call for each test of a row
    partition: PartitionState, columns: Columns, on_record: Callable[[Record, bytes], None]
) -> None:
    """Deals with the rows of one poll in offset order, of which most are routed rows.

    Args:
        partition: Whose groups change.
        columns: The rows.
        on_record: Judges one record by the whole table; gets the Avro body as well, where the row has one.
    """
    groups, aside, routed, deadlines = partition.groups, partition.aside, columns.routed, partition.unit_deadlines
    note_held, latest, roll_over_bytes = partition.happened.held.append, partition.latest, partition.roll_over_bytes
    held = held_bytes = 0
    for record, offset, whole in zip(columns.records, columns.offsets, columns.bodies, strict=True):
        row = routed.get(offset)
        if row is None or partition.left_bytes < 0 or partition.is_cut:
            on_record(record, whole)
            continue
        group_id, rule, component_id, arrival, at, value_bytes, rest = row
        own, clock = _known(partition, rule), partition.clock
        if clock < at <= latest:
            clock = at
        if own is None or clock >= deadlines.due or group_id in aside:
            on_record(record, whole)
            continue
        policy, most, wait_ms = own
        group = groups.get(group_id)
        if group is None:
            seq, body = 1, _HEADS[1] + rest
            if (
                len(body) > min(policy.max_bytes, HELD_LIMIT_BYTES)
                or len(partition.by_rule.get(policy.rule_id, ())) >= policy.max_open_groups
                or partition.elsewhere(group_id) is not None
            ):
                on_record(record, whole)
                continue
            partition.clock = clock
            partition.closed.trim(clock)
            group = partition.open(Opened(group_id, partition.next_generation(group_id), arrival, b"", policy))
            is_new, is_earlier = True, False
        else:
            ruled = group.ruled
            if ruled is not None and ruled.policy is not policy:  # it has the row that opened it
                of_group = _known(partition, ruled.policy.rule) if ruled.policy.rule_id == policy.rule_id else None
                if of_group is not None:
                    policy, most, _ = of_group
            seq = group.highest + 1
            body = (_HEADS[seq] if seq < _MANY else long(seq) + NULL) + rest
            if (
                ruled is None
                or ruled.policy is not policy
                or arrival >= ruled.scheduled
                or component_id in ruled.component_ids
                or ruled.waits_since
                or group.waived
                or group.declared_end
                or group.deliver_at
                or group.expires_at
                or group.bytes + value_bytes > roll_over_bytes
                or group.bytes + len(body) > policy.max_bytes
                or len(body) > HELD_LIMIT_BYTES
                or len(group.held) >= policy.max_components
            ):
                on_record(record, whole)
                continue
            is_new, is_earlier = False, arrival < ruled.gathered.first_at
            partition.clock = clock
        group.hold_routed(seq, body, at, arrival, value_bytes, component_id)
        held, held_bytes = held + 1, held_bytes + len(body)
        note_held((group, seq, False, offset, None))
        if len(group.held) >= most:
            closed = Closed(group_id, group.generation, UnitOutcome.COMPLETE, Reason.COUNT, seq, offset + 1, clock, b"")
            del groups[group_id]
            partition.close(group, closed)
            partition.happened.effects.append((Delivered(closed, None), None, group))
        elif is_new:
            partition.rule_deadlines.put(group, arrival + wait_ms + 1)
        elif is_earlier:
            partition.schedule(group)
    partition.counts.held += held
    partition.held_bytes += held_bytes


_MANY: Final = 1_024
_HEADS: Final = [long(seq) + NULL for seq in range(_MANY)]
"""Number and no end mark, as a component begins."""
