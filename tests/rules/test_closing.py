"""A condition that is told to hold never is one that the assembler finds to hold in some group (B-15)."""

from __future__ import annotations

import random

import pytest

from uow.processor.core.conditions import Standing, asked
from uow.processor.core.gathered import NEVER, Gathered
from uow.processor.rules.closing import Closing
from uow.schemas.records import Reason
from uow.topics.conditions import (
    Age,
    AllOf,
    AnyOf,
    Bytes,
    ComponentDeadline,
    Condition,
    Count,
    EndFlagWithoutGaps,
    Idle,
    Not,
)
from uow.topics.grouping import GroupPolicy

MOST = 5
POLICY = GroupPolicy()


def drawn(rng: random.Random, depth: int = 0) -> Condition:
    simple: list[Condition] = [Count(rng.randint(1, MOST + 1)), Age(rng.randint(1, 9)), Idle(rng.randint(1, 9))]
    simple += [Bytes(rng.randint(1, 9)), ComponentDeadline(), EndFlagWithoutGaps()]
    if depth > 2 or rng.random() < 0.3:
        return rng.choice(simple)
    several = tuple(drawn(rng, depth + 1) for _ in range(rng.randint(1, 3)))
    return rng.choice([AnyOf(several), AllOf(several), AllOf(several), Not(several[0])])


def a_group(rng: random.Random, has_delays: bool, numbered: bool) -> Standing:
    size = rng.randint(1, MOST)
    first, last = 100, 100 + rng.choice([0, *range(20)]) * (size > 1)
    limit = rng.choice([NEVER, first + rng.randint(0, 20)]) if has_delays else NEVER
    end = rng.choice([size, size + 1]) if numbered else NEVER
    gathered = Gathered(first, last, limit, rng.randint(0, 12), arrived_at=first)
    return Standing(size, 0, end, Reason.END, gathered)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_said_never_to_hold_holds_in_no_group_b15(seed: int) -> None:
    rng = random.Random(seed)
    said: set[bool] = set()
    for _ in range(100):
        has_delays, numbered = rng.random() < 0.5, rng.random() < 0.5
        closing = Closing(numbered=numbered, has_sources=False, has_delays=has_delays, most=MOST)
        condition = drawn(rng)
        can_hold = closing.can_hold(condition)
        said.add(can_hold)
        groups = [a_group(rng, has_delays, numbered) for _ in range(300)]
        found = any(asked(condition, group, POLICY).at < NEVER for group in groups)
        assert can_hold or not found, condition
    assert said == {False, True}
