"""How long the driver waits after a doubt, and how plans are grouped into transactions (ER-11, ER-14, F20)."""

from __future__ import annotations

from uow.processor.engine.ports import Doubt, Plan, Refused, StaleGeneration, Tp
from uow.processor.engine.recovery import BACK_OFF_S, REBALANCE_CHANCE_S, Recovery

PLANS = [Plan(Tp("D.components", number), "groups", "closed", 0, "D.commands", 0) for number in range(3)]


def test_the_wait_grows_with_each_doubt_and_starts_anew_after_a_commit() -> None:
    recovery = Recovery()
    waits = [recovery.on_doubt(Doubt("timed out")) for _ in range(len(BACK_OFF_S) + 2)]
    assert waits == [*BACK_OFF_S, BACK_OFF_S[-1], BACK_OFF_S[-1]]
    recovery.on_committed()
    assert recovery.on_doubt(Doubt("timed out")) == BACK_OFF_S[0]


def test_a_stale_generation_waits_for_its_rebalance() -> None:
    recovery = Recovery()
    assert recovery.on_doubt(StaleGeneration("unknown member")) == REBALANCE_CHANCE_S
    for _ in range(len(BACK_OFF_S)):
        longest = recovery.on_doubt(StaleGeneration("unknown member"))
    assert longest == BACK_OFF_S[-1]


def test_a_refused_record_is_looked_for_at_once_and_counts_as_a_doubt() -> None:
    recovery = Recovery()
    assert [recovery.on_doubt(Refused("too large")) for _ in range(3)] == [0.0, 0.0, 0.0]
    assert recovery.doubts == 3


def test_plans_are_written_together_and_one_by_one_until_a_turn_was_committed_after_a_refusal() -> None:
    recovery = Recovery()
    assert recovery.transactions(PLANS) == [PLANS]
    recovery.write_one_by_one()
    assert recovery.transactions(PLANS) == [[plan] for plan in PLANS]
    recovery.on_committed()
    assert recovery.transactions(PLANS) == [PLANS]
