"""Sets of sequence numbers as rising ranges: what a command waived may be one number or two thousand million.

Belongs here: arithmetic on `Range`. Does not belong here: what the numbers mean.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from schemas.records import Range

Ranges = tuple[Range, ...]


def union(one: Ranges, other: Ranges) -> Ranges:
    """Numbers in either; neighbours are joined."""
    joined: list[Range] = []
    for each in sorted((*one, *other), key=lambda numbers: numbers.first):
        if joined and each.first <= joined[-1].last + 1:
            joined[-1] = Range(joined[-1].first, max(joined[-1].last, each.last))
        else:
            joined.append(each)
    return tuple(joined)


def without(ranges: Ranges, numbers: Iterable[int]) -> Ranges:
    """The same without these numbers."""
    left = list(ranges)
    for number in numbers:
        for at, each in enumerate(left):
            if each.first <= number <= each.last:
                parts = Range(each.first, number - 1), Range(number + 1, each.last)
                left[at : at + 1] = [part for part in parts if part.first <= part.last]
                break
    return tuple(left)


def first_in(ranges: Ranges, numbers: Iterable[int]) -> int | None:
    """The least of the numbers that one of the ranges has, or None."""
    lasts = [each.last for each in ranges]

    def is_in(number: int) -> bool:
        at = bisect_left(lasts, number)
        return at < len(ranges) and ranges[at].first <= number

    return min(filter(is_in, numbers), default=None)


def count_up_to(ranges: Ranges, last: int) -> int:
    """How many of the numbers are not above `last`."""
    return sum(min(each.last, last) - each.first + 1 for each in ranges if each.first <= last)
