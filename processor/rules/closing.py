"""Groups played under the conditions of a row, to see if one of them can ever hold (B-15). Pure.

What a group can come to is tried in all its combinations: each number of components at which a count changes its mind, and each other condition met or
not. Time always passes, so what time fulfils is met in the end; inside `not(...)` it is asked as of the last arrival, so it may be unmet for good.

Belongs here: that question. Does not belong here: the meaning of conditions while a group is open (`uow.processor.core.conditions`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from math import prod
from typing import Final, NamedTuple

from uow.processor.rules.conditions import TIMED
from uow.topics.conditions import (
    AllOf,
    AnyOf,
    ComponentDeadline,
    Condition,
    Count,
    EndFlagWithoutGaps,
    Manifest,
    Not,
    PerSource,
)

MOST_TRIED: Final = 20_000
"""Combinations; a condition that has more counts as one that can hold."""
_CAN: Final = (False, True)
_NEVER: Final = (False,)


class Closing:
    """The ways in which groups of one row can close.

    Attributes:
        most: Most components of a group.

    Args:
        numbered: Their senders number the components, and can mark the last one.
        has_sources: The rule has sources.
        has_delays: The rule has limits by item.
        most: Most components of a group.
    """

    def __init__(self, *, numbered: bool, has_sources: bool, has_delays: bool, most: int) -> None:
        lacks = {
            EndFlagWithoutGaps: "" if numbered else "end_flag_without_gaps needs sequence = 'given'",
            PerSource: "" if has_sources else "per_source needs sources",
            ComponentDeadline: "" if has_delays else "component_deadline needs a delay of an item",
        }
        self._lacks: dict[type, str] = {kind: why for kind, why in lacks.items() if why}
        self.most = most

    def can_hold(self, condition: Condition) -> bool:
        """False if no group, whatever comes and however long it waits, meets the condition."""
        asked = list(dict.fromkeys(_asked(condition)))
        counts = {part.n for part, _ in asked if isinstance(part, Count)}
        least = 0 if any(isinstance(part, Manifest) for part, _ in asked) else 1  # a call may have no reply
        sizes = {size for n in counts for size in (n - 1, n) if least <= size <= self.most} | {least, 1}
        free = [each for each in asked if not isinstance(each.condition, Count)]
        chances = [_NEVER if type(each.condition) in self._lacks else _CAN for each in free]
        if len(sizes) * prod(map(len, chances)) > MOST_TRIED:
            return True
        return any(
            _holds(condition, size, dict(zip(free, met, strict=True))) for size in sizes for met in product(*chances)
        )

    def why(self, condition: Condition) -> str:
        """The reason, of a condition that cannot hold."""
        asked = [each.condition for each in _asked(condition)]
        lacks = dict.fromkeys(self._lacks[type(part)] for part in asked if type(part) in self._lacks)
        above = [part.n for part in asked if isinstance(part, Count) and part.n > self.most]
        too_many = [f"a group has at most {self.most} components (max_components)"] * bool(above)
        return "; ".join([*lacks, *too_many]) or "its parts exclude each other"


class _Asked(NamedTuple):
    """A simple condition as it is asked: one of time may be unmet at the last arrival, and met after it."""

    condition: Condition
    at_last_arrival: bool


def _as_asked(condition: Condition, is_inside: bool) -> _Asked:
    return _Asked(condition, is_inside and isinstance(condition, TIMED))


def _asked(condition: Condition, is_inside: bool = False) -> Iterator[_Asked]:
    match condition:
        case AnyOf(several) | AllOf(several):
            for each in several:
                yield from _asked(each, is_inside)
        case Not(one):
            yield from _asked(one, True)
        case _:
            yield _as_asked(condition, is_inside)


def _holds(condition: Condition, size: int, met: Mapping[_Asked, bool], is_inside: bool = False) -> bool:
    match condition:
        case AnyOf(several):
            return any(_holds(each, size, met, is_inside) for each in several)
        case AllOf(several):
            return all(_holds(each, size, met, is_inside) for each in several)
        case Not(one):
            return not _holds(one, size, met, True)
        case Count(n):
            return size >= n
        case _:
            return met[_as_asked(condition, is_inside)]
