"""Which idle partitions are asked for their ends in a turn (W-83)."""

from __future__ import annotations

from uow.processor.engine.ports import Tp
from uow.processor.engine.ticks import ASK_AGAIN_MS, TICKS_A_TURN, TickSchedule

TPS = [Tp("D.components", number) for number in range(2 * TICKS_A_TURN + 3)]


def test_few_partitions_have_their_turn_at_once() -> None:
    assert TickSchedule().choose(TPS[:TICKS_A_TURN]) == TPS[:TICKS_A_TURN]


def test_of_many_who_waited_longest_goes_first_so_that_all_have_their_turn() -> None:
    ticks = TickSchedule()
    chosen = [ticks.choose(TPS) for _ in range(3)]
    assert {len(each) for each in chosen} == {TICKS_A_TURN}
    assert {tp for each in chosen for tp in each} == set(TPS)
    assert not set(chosen[0]) & set(chosen[1])


def test_one_that_was_not_at_its_end_is_put_off_for_a_while() -> None:
    ticks, tp = TickSchedule(), TPS[0]
    assert ticks.may_ask(tp, 1_000)
    ticks.put_off(tp, 1_000)
    assert not ticks.may_ask(tp, 1_000 + ASK_AGAIN_MS - 1)
    assert ticks.may_ask(tp, 1_000 + ASK_AGAIN_MS)
    assert ticks.may_ask(TPS[1], 1_000)


def test_a_partition_that_comes_back_is_asked_at_once_and_first() -> None:
    ticks, tp = TickSchedule(), TPS[0]
    ticks.choose(TPS)
    ticks.put_off(tp, 1_000)
    ticks.forget(tp)
    assert ticks.may_ask(tp, 1_000)
    assert tp in ticks.choose(TPS)
