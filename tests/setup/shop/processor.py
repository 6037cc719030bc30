"""The application's own, of the same name as a folder of this project."""

from collections.abc import Iterable


def total(prices: Iterable[int]) -> int:
    """The price of a whole order."""
    return sum(prices)
