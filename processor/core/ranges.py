"""Sets of sequence numbers as rising ranges: what a command waived may be one number or two thousand million.

Belongs here: arithmetic on `Range`. Does not belong here: what the numbers mean.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator

from uow.schemas.records import Range

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


def as_ranges(numbers: Iterable[int]) -> Ranges:
    """Numbers, each given once, as ranges."""
    ranges: list[Range] = []
    first = last = 0
    for number in sorted(numbers):
        if number != last + 1 or not first:
            if first:
                ranges.append(Range(first, last))
            first = number
        last = number
    if first:
        ranges.append(Range(first, last))
    return tuple(ranges)


def without(ranges: Ranges, numbers: Iterable[int]) -> Ranges:
    """The same without these numbers."""
    left: list[Range] = []
    taken = sorted(those_in(ranges, numbers), reverse=True)
    for each in ranges:
        first = each.first
        while taken and taken[-1] <= each.last:
            number = taken.pop()
            if first < number:
                left.append(Range(first, number - 1))
            first = number + 1
        if first <= each.last:
            left.append(Range(first, each.last))
    return tuple(left)


def those_in(ranges: Ranges, numbers: Iterable[int]) -> Iterator[int]:
    """Those of the numbers that one of the ranges has."""

    def is_in(number: int) -> bool:
        at = bisect_left(ranges, number, key=_last)
        return at < len(ranges) and ranges[at].first <= number

    return filter(is_in, numbers)


def _last(numbers: Range) -> int:
    return numbers.last


def count_up_to(ranges: Ranges, last: int) -> int:
    """How many of the numbers are not above `last`."""
    return sum(min(each.last, last) - each.first + 1 for each in ranges if each.first <= last)
