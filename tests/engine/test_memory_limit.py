"""Which partition is paused or resumed for memory, and what is forgotten: numbers in, a decision out (ER-19)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import pytest

from uow.processor.engine.memory_limit import (
    LEAST_REMEMBERED_BYTES,
    TURN_MS,
    PauseDecision,
    decide_pause,
    forget_excess,
    remembered_limit,
)
from uow.processor.engine.ports import Tp

LIMIT = 1_000
NOTHING = PauseDecision()


def tp(number: int) -> Tp:
    return Tp("D.components", number)


def decided(
    *held: int, other: int = 0, paused: Collection[int] = (), blocked: Collection[int] = (), unchanged_ms: int = 0
) -> PauseDecision:
    by_tp = {tp(number): size for number, size in enumerate(held)}
    return decide_pause(LIMIT, by_tp, other, [*map(tp, paused)], {*map(tp, blocked)}, unchanged_ms)


def pauses(number: int) -> PauseDecision:
    return PauseDecision(pause=tp(number))


def resumes(*numbers: int) -> PauseDecision:
    return PauseDecision(resume=[*map(tp, numbers)])


def case(name: str, decision: PauseDecision, expected: PauseDecision) -> Any:
    return pytest.param(decision, expected, id=name)


@pytest.mark.parametrize(
    ("decision", "expected"),
    [
        case("nothing held", decided(), NOTHING),
        case("at the limit", decided(500, 500), NOTHING),
        case("over it, the fullest", decided(500, 501), pauses(1)),
        case("of equals the first", decided(501, 501), pauses(0)),
        case("the last heavy one goes on", decided(400, 700, 50, paused=[1]), NOTHING),
        case("until five quarters", decided(400, 800, 50, paused=[1]), NOTHING),
        case("and no further", decided(400, 801, 50, paused=[1]), pauses(0)),
        case("one that is blocked is not read anyway", decided(600, 600, blocked=[0]), NOTHING),
        case("beyond five quarters the other one", decided(700, 600, blocked=[0]), pauses(1)),
        case("light ones are not to blame", decided(900, 80, 30), NOTHING),
        case("at a quarter together still", decided(900, 125), NOTHING),
        case("whatever others hold", decided(10_000, 80, 30, paused=[0]), NOTHING),
        case("below nine tenths all go on", decided(400, 499, paused=[1, 0]), resumes(1, 0)),
        case("at nine tenths not yet", decided(400, 500, paused=[0]), NOTHING),
        case("nor a moment before its turn", decided(400, 500, paused=[0], unchanged_ms=TURN_MS - 1), NOTHING),
        case("then the one that waited longest", decided(400, 600, paused=[1, 0], unchanged_ms=TURN_MS), resumes(1)),
        case("above the limit as well", decided(400, 601, paused=[1, 0], unchanged_ms=TURN_MS), resumes(1)),
        case(
            "in place of the one that went on",
            decided(400, 700, 50, paused=[1], unchanged_ms=TURN_MS),
            PauseDecision(tp(0), [tp(1)]),
        ),
        case("if that is not blocked", decided(400, 700, paused=[1], blocked=[0], unchanged_ms=TURN_MS), resumes(1)),
        case("beyond five quarters nobody", decided(400, 801, 50, paused=[1, 0], unchanged_ms=TURN_MS), NOTHING),
        case("unless nothing is paused", decided(400, 499), NOTHING),
        case("other memory counts", decided(300, 300, other=401), pauses(0)),
        case("up to half of the limit", decided(250, 250, other=10**9), NOTHING),
        case("beyond which partitions are paused", decided(250, 251, other=10**9), pauses(1)),
    ],
)
def test_pausing(decision: PauseDecision, expected: PauseDecision) -> None:
    assert decision == expected


def test_no_sequence_of_turns_pauses_everything_below_five_quarters() -> None:
    held = {tp(number): 305 for number in range(4)}
    paused: set[Tp] = set()
    while (decision := decide_pause(LIMIT, held, 0, paused, ())).pause is not None:
        assert decision.pause not in paused
        paused.add(decision.pause)
    assert len(paused) == 3


@pytest.mark.parametrize("held", [[500, 100, 350], [400, 450, 80], [300, 300, 340]])
def test_each_partition_is_read_again_and_again_while_the_total_stays_just_below_the_limit(held: list[int]) -> None:
    """Partition 0 holds what it holds for good; the others grow whenever they are read, by so little that they only seldom cross the limit."""
    paused: dict[Tp, None] = {tp(1): None, tp(2): None}
    read = [0, 0, 0]
    changed_at = 0
    for now in range(0, 300_000, 500):
        for number in range(3):
            if tp(number) not in paused:
                read[number] += 1
        now_held = {tp(0): held[0], **{tp(number): held[number] + read[number] // 100 for number in (1, 2)}}
        decision = decide_pause(LIMIT, now_held, 0, paused, (), now - changed_at)
        if decision != NOTHING:
            changed_at = now
        if decision.pause is not None:
            paused[decision.pause] = None
        for each in decision.resume:
            del paused[each]
    assert min(read) > 100


@pytest.mark.parametrize("held", [[320, 690, 0], [500, 520, 30], [400, 400, 400]])
def test_each_partition_is_read_again_and_again_while_the_total_stays_above_the_limit(held: list[int]) -> None:
    """All of them hold more than a little, and none shrinks: not one stands for good."""
    paused: dict[Tp, None] = {}
    read, changed_at = [0, 0, 0], 0
    for now in range(0, 300_000, 500):
        read = [count + (tp(number) not in paused) for number, count in enumerate(read)]
        decision = decide_pause(LIMIT, {tp(n): size for n, size in enumerate(held)}, 0, [*paused], (), now - changed_at)
        if decision != NOTHING:
            changed_at = now
        for each in decision.resume:
            del paused[each]
        if decision.pause is not None:
            paused[decision.pause] = None
    assert min(read) > 100


@dataclass
class Remembering:
    """Forgets whole ids of ten bytes."""

    remembered_bytes: int
    at_once: int = 0

    def forget(self, spare_bytes: int, /) -> None:
        ids = -(-spare_bytes // 10)
        self.at_once = max(self.at_once, ids)
        self.remembered_bytes = max(0, self.remembered_bytes - 10 * ids)


def test_the_task_that_remembers_most_forgets_first_and_half_of_it_at_a_time_at_most() -> None:
    tasks = [Remembering(1_000), Remembering(300), Remembering(100)]
    assert forget_excess(tasks, 700) == 700 == sum(task.remembered_bytes for task in tasks)
    assert [task.remembered_bytes for task in tasks] == [300, 300, 100]
    assert tasks[0].at_once == 50


def test_within_the_limit_nothing_is_forgotten() -> None:
    tasks = [Remembering(350), Remembering(350)]
    assert forget_excess(tasks, 700) == 700
    assert forget_excess([], 700) == 0


def test_share_of_closed_ids_is_a_quarter_and_never_tiny() -> None:
    assert remembered_limit(1 << 30) == 1 << 28
    assert remembered_limit(1) == LEAST_REMEMBERED_BYTES
