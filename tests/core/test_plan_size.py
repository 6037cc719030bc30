"""A plan closes so much and no more: what a close and a header weigh, and when a plan is full (`uow.processor.core.plan_size`)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.script import RowByRow, Sent, c, context_of, ms, policy_of, story, told
from tests.fake_record import FakeRecord
from uow.processor.core.changes import Answered
from uow.processor.core.partition import Partition
from uow.processor.core.plan_size import CLOSE_BYTES, ENTRY_BYTES, HEADER_BYTES, LEDGER_SHARE
from uow.topics.policies import Fingerprints, HandlingPolicy, ViolationPolicy

PLENTY = 1 << 40
BOTH = pytest.mark.parametrize("kind", [Partition, RowByRow])


def partition(plan_bytes: int = PLENTY, kind: type[Partition] = Partition, **settings: Any) -> Partition:
    policy = policy_of(**settings)
    return kind(context_of(policy).place(0), policy, plan_bytes)


def records(*steps: Sent) -> list[FakeRecord]:
    return story().records(steps)


def weight(closing: Partition) -> int:
    return PLENTY - closing.left_bytes


@pytest.mark.parametrize("kept", [Fingerprints.ALWAYS, Fingerprints.AS_NEEDED])
def test_unit_delivered_in_bulk_weighs_its_bytes_and_its_entry_of_the_ledger(kept: Fingerprints) -> None:
    delivering = partition(fingerprints=kept)
    delivering.on_records(records(c(1), c(2, end=True)))
    [(group, closed)] = delivering.happened.closed
    assert group is not None
    assert bool(closed.prints) == (kept is Fingerprints.ALWAYS)
    assert weight(delivering) == group.bytes + LEDGER_SHARE * (ENTRY_BYTES + len(closed.prints))


def test_groups_closed_one_by_one_weigh_for_each_component_as_well() -> None:
    delivering = partition(kind=RowByRow, fingerprints=Fingerprints.ALWAYS)
    delivering.on_records(records(c(1), c(2, end=True)))
    [(group, closed)] = delivering.happened.closed
    assert group is not None
    assert closed.prints
    assert weight(delivering) == group.bytes + 3 * CLOSE_BYTES + LEDGER_SHARE * (ENTRY_BYTES + len(closed.prints))

    expiring = partition(incomplete_expiration_ms=1000)
    expiring.on_records(records(c(1, id="b"), c(2, id="b"), c(3, id="b")))
    held = expiring.groups[b"b"].bytes
    assert expiring.advance(ms(2))
    assert weight(expiring) == held + 4 * CLOSE_BYTES + LEDGER_SHARE * ENTRY_BYTES

    failing = partition(violation_policy=ViolationPolicy.FAIL_GROUP)
    failing.on_records(records(c(0)))
    assert weight(failing) == CLOSE_BYTES + LEDGER_SHARE * ENTRY_BYTES, "nothing was held"


@BOTH
@pytest.mark.parametrize(
    "closing",
    [[c(1, end=True)], [c(1, end=True, priority=4)], [c(1, count=2), c(2)]],
    ids=["in bulk", "by the table, of one component", "by the table, of a group that is open"],
)
def test_plan_is_full_below_zero_and_not_at_zero(kind: type[Partition], closing: list[Sent]) -> None:
    count = len(closing)
    sent = records(*closing, c(1, id="b"), c(1, id="c", end=True, count=1))
    alone = partition(kind=kind)
    alone.on_records(sent[:count])
    exactly, one_less = (partition(plan_bytes, kind) for plan_bytes in (weight(alone), weight(alone) - 1))
    assert exactly.on_records(sent)
    assert (exactly.position, list(exactly.groups), list(exactly.closed.by_id)) == (count + 2, [b"b"], [b"a", b"c"])
    assert not one_less.on_records(sent)
    assert (one_less.position, one_less.is_cut, one_less.counts.received) == (count, True, count)
    assert (list(one_less.groups), list(one_less.closed.by_id)) == ([], [b"a"])


@BOTH
def test_full_plan_takes_nothing_more_and_the_next_one_takes_the_rest(kind: type[Partition]) -> None:
    full = partition(0, kind)
    first, then = records(c(1, id="a", end=True), c(1, id="b", end=True)), records(c(1, id="c"))
    assert not full.on_records(first)
    assert full.take_happened().closed
    assert not full.is_cut
    assert full.on_records(first[1:])
    assert not full.is_cut, "nothing was left"
    full.on_records([])
    assert not full.is_cut
    then[0].offset_ = 2
    assert not full.on_records(then)
    assert (full.is_cut, full.position, full.counts.received) == (True, 2, 2)
    full.take_happened()
    assert full.on_records(then)
    assert (list(full.groups), full.counts.received) == ([b"c"], 3)


def test_records_with_many_headers_weigh_for_each_of_them() -> None:
    many = [(f"h{number}", "x") for number in range(70)]
    held = partition()
    held.on_records(records(c(1, user=many), c(2, user=many[:62])))
    assert weight(held) == 72 * HEADER_BYTES, "up to 64 are free"
    passing = partition(handling_policy=HandlingPolicy.PASS_THROUGH)
    passing.on_records(records(c(1), c(2, user=many)))
    assert weight(passing) == (2 + 72) * HEADER_BYTES


@pytest.mark.parametrize("handling", [HandlingPolicy.SINGLE_MESSAGE_DELIVERY, HandlingPolicy.PASS_THROUGH])
def test_records_behind_one_that_fills_the_plan_by_its_headers_wait_for_the_next(handling: HandlingPolicy) -> None:
    many = [(f"h{number}", "x") for number in range(70)]
    sent = records(c(1, user=many), c(2, user=many), c(3))
    for record, offset in zip(sent, (3, 5, 9), strict=True):
        record.offset_ = offset
    cut = partition(72 * HEADER_BYTES - 1, handling_policy=handling)
    assert not cut.on_records(sent)
    assert (cut.position, cut.is_cut, cut.counts.received) == (5, True, 1)


def test_command_waits_until_the_next_plans_have_closed_all_that_is_due_before_it_w203() -> None:
    waiting = partition(0, incomplete_expiration_ms=1000)
    waiting.on_records(records(c(1, id="a"), c(1, id="b"), c(1, id="c")))
    extend = story().command(told("extend", "c", until=500))
    assert not waiting.advance(ms(5))
    seen = []
    for _ in range(2):
        waiting.take_happened()
        waiting.on_commands([extend], lambda at: True)
        seen.append((list(waiting.closed.by_id), waiting.is_cut, waiting.command_position))
    assert seen == [([b"a", b"b"], True, 0), ([b"a", b"b", b"c"], False, 1)]
    [answer] = [effect for effect, *_ in waiting.happened.effects if isinstance(effect, Answered)]
    assert not answer.done, "the group is closed"


def test_clock_of_a_full_plan_stands_at_the_last_deadline_that_it_dealt_with() -> None:
    cut = partition(0, incomplete_expiration_ms=1000)
    cut.on_records(records(c(1, id="a", at=0), c(1, id="b", at=0.5)))
    assert not cut.advance(ms(9))
    assert (list(cut.closed.by_id), cut.clock) == ([b"a"], ms(1) + 1)
    cut.take_happened()
    assert cut.advance(ms(9))
    assert (list(cut.closed.by_id), cut.clock) == ([b"a", b"b"], ms(9))
