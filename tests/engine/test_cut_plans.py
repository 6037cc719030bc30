"""A plan that would close too much is cut (`uow.processor.core.plan_size`); what all of them come to is what one plan would have been."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from tests.core.script import c, context_of, policy_of
from tests.core.streams import TP, Tick, World, call, draw_policy, draw_stream, new_task, polls, state_of
from tests.fake_record import FakeRecord
from uow.processor.engine.ports import Plan
from uow.processor.engine.rows import read_ledger
from uow.processor.engine.task import PartitionTask
from uow.topics.catalogue import RECORD_LIMIT_BYTES


def in_cut_plans(task: PartitionTask, one: list[FakeRecord] | Tick) -> Iterator[Plan | None]:
    """Hands over once more what a plan left, as the driver does."""
    while True:
        plan = call(task, one)
        yield plan
        if plan is None or not plan.is_cut:
            return
        if not isinstance(one, Tick):
            one = [record for record in one if record.offset() >= plan.next_offset]


@pytest.mark.parametrize("plan_bytes", [0, 10_000, 40_000])
@pytest.mark.parametrize("seed", range(40))
def test_cut_plans_come_to_what_one_plan_does(seed: int, plan_bytes: int) -> None:
    rnd = Random(seed)
    policy = draw_policy(rnd)
    whole, cut = new_task(policy), new_task(policy, plan_bytes=plan_bytes)
    one_world, other_world = World(), World()
    for one in polls(rnd, draw_stream(rnd, 120), longest=40):
        one_world.add(call(whole, one))
        for plan in in_cut_plans(cut, one):
            other_world.add(plan)
            closed = read_ledger(plan.ledger or b"")[1] if plan is not None else ()
            assert plan_bytes or len(closed) <= 2, "what is due before a record, and what the record itself closes"
        assert state_of(cut) == state_of(whole)
        assert cut.counts == whole.counts
    assert other_world.seen() == one_world.seen()


def test_groups_that_expire_at_once_fit_the_ledgers_topic_and_the_rest_is_due_at_once() -> None:
    task = PartitionTask(TP, context_of(policy_of(incomplete_expiration_ms=1000)))
    count = 12_000
    task.process([FakeRecord(each, c(1, id=f"{each:0250}").headers, b"v", None, 0, TP) for each in range(count)])
    plans: list[Plan] = []
    while (deadline := task.next_deadline()) is not None:
        assert deadline < 5000
        plan = task.tick(5000)
        assert plan is not None
        plans.append(plan)
    assert [plan.is_cut for plan in plans] == [True] * (len(plans) - 1) + [False]
    assert sum(len(read_ledger(plan.ledger or b"")[1]) for plan in plans) == count
    assert max(len(plan.ledger or b"") for plan in plans) < RECORD_LIMIT_BYTES / 4
