"""Conditions that hold for no group, whatever comes and however long it stays open: a row with such a one would never close, or only by accident (B-15). Pure.

A condition looks at a few numbers of a group: how many components, how many bytes, how long. It changes its answer where one of them passes a number in
its text, so a group just below and one just at each of these is enough to try. Whatever else it asks (expressions, sources, manifests, calendars)
may be true or not, but for what the rule rules out.

Belongs here: trying them. Does not belong here: what a condition means for a group that exists (`uow.processor.core.conditions`).
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import product
from math import prod
from typing import Final

from uow.topics.conditions import Age, AllOf, AnyOf, Bytes, Condition, Count, Idle, Not
from uow.topics.grouping import parts_of

MOST_TRIES: Final = 50_000
"""A condition with more cases than these is taken for one that can hold."""


def can_hold(condition: Condition, most: int, ruled_out: Collection[type] = ()) -> bool:
    """True unless it holds for no group.

    Args:
        condition: The condition.
        most: Components that a group may have.
        ruled_out: Conditions that never hold under the rule.
    """
    parts = [*dict.fromkeys(parts_of(condition))]
    sizes = {each for part in parts if isinstance(part, Count) for each in (part.n - 1, part.n) if 1 <= each <= most}
    numbers: dict[type, list[int]] = {Count: sorted(sizes | {1})}
    for kind, name in ((Bytes, "n"), (Age, "ms"), (Idle, "ms")):
        numbers[kind] = sorted({0, *(getattr(part, name) + 1 for part in parts if isinstance(part, kind))})
    others = [part for part in parts if type(part) not in numbers]
    choices = [[False] if type(part) in ruled_out else [False, True] for part in others]
    if prod([*map(len, numbers.values()), *map(len, choices)]) > MOST_TRIES:
        return True
    return any(
        _holds(condition, dict(zip(numbers, values, strict=True)), dict(zip(others, said, strict=True)))
        for values in product(*numbers.values())
        for said in product(*choices)
    )


def _holds(condition: Condition, numbers: dict[type, int], others: dict[Condition, bool]) -> bool:
    match condition:
        case AnyOf(several):
            return any(_holds(each, numbers, others) for each in several)
        case AllOf(several):
            return all(_holds(each, numbers, others) for each in several)
        case Not(one):
            return not _holds(one, numbers, others)
        case Count(n):
            return numbers[Count] >= n
        case Bytes(n):
            return numbers[Bytes] > n
        case Age(ms) | Idle(ms):
            return numbers[type(condition)] > ms
        case _:
            return others[condition]
