"""Back-off after doubts, and writing plans one by one while a refused one is searched (ER-11, F20). No I/O.

Belongs here: how long to wait, and how plans are grouped into transactions. Does not belong here: replacing the producer, restoring
(`uow.processor.engine.driver`).
"""

from __future__ import annotations

from collections.abc import Sequence

from uow.processor.engine.ports import Doubt, Plan, Refused, StaleGeneration

BACK_OFF_S = (0.0, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0)
"""Wait before starting over, by the number of doubts since the last commit."""

REBALANCE_CHANCE_S = 0.3
"""Longest wait for the rebalance that explains a stale generation."""


class Recovery:
    """Doubts since the last commit.

    Attributes:
        doubts: How many.
    """

    def __init__(self) -> None:
        self.doubts = 0
        self._one_by_one = False

    def on_doubt(self, doubt: Doubt) -> float:
        """Counts it. Returns the seconds to wait before starting over."""
        wait_s = BACK_OFF_S[min(self.doubts, len(BACK_OFF_S) - 1)]
        self.doubts += 1
        if isinstance(doubt, Refused):
            return 0.0
        return max(wait_s, REBALANCE_CHANCE_S) if isinstance(doubt, StaleGeneration) else wait_s

    def write_one_by_one(self) -> None:
        """A transaction was refused, and nobody knows for which plan: from now on each plan has its own, until all of a turn are committed."""
        self._one_by_one = True

    def transactions(self, plans: Sequence[Plan]) -> list[Sequence[Plan]]:
        """The plans of each transaction to be written now."""
        return [[plan] for plan in plans] if self._one_by_one else [plans]

    def on_committed(self) -> None:
        """All plans of a turn are committed."""
        self.doubts, self._one_by_one = 0, False
