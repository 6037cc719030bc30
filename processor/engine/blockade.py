"""Partitions that cannot go on: why, when each is tried again, and what it still owes (engine rule 8).

Belongs here: causes and times. Does not belong here: pausing, restoring and reading (`processor.engine.driver`).

What blocks a partition may pass: a broker that mends its disk, a limit that is raised, offsets that are put back. So each is tried again by
itself, first soon, then seldom: a try costs a restore, or one record.
"""

from __future__ import annotations

from processor.engine.ports import Blocked, Tp

RETRY_MS = (1_000, 5_000, 15_000, 60_000, 300_000)
"""Wait before a blocked partition is tried again, by the number of tries that failed."""


class Blockade:
    """Blocked partitions, and those of which a try is under way. Times are milliseconds gone by, from anywhere."""

    def __init__(self) -> None:
        self._causes: dict[Tp, Blocked] = {}
        self._at: dict[Tp, int] = {}
        self._failed: dict[Tp, int] = {}
        self._unsaved: set[Tp] = set()
        self._heads: dict[Tp, int] = {}

    def __contains__(self, tp: object) -> bool:
        return tp in self._causes

    def add(self, tp: Tp, cause: Blocked, now_ms: int) -> None:
        """It cannot go on, or still not."""
        failed = self._failed.get(tp, 0)
        self._causes[tp], self._failed[tp] = cause, failed + 1
        self._at[tp] = now_ms + RETRY_MS[min(failed, len(RETRY_MS) - 1)]

    def due(self, now_ms: int) -> list[Tp]:
        """Those to be tried now: they count as blocked no longer, until a try fails."""
        due = [tp for tp in self._causes if self._at[tp] <= now_ms]
        for tp in due:
            del self._causes[tp]
            self._heads.pop(tp, None)
        return due

    def stand(self, tp: Tp, head: int) -> None:
        """It stands at a record, and its state is whole.

        Args:
            tp: The partition, which is blocked.
            head: Append time of that record; 0: nobody knows.
        """
        self._unsaved.add(tp)
        self.owe(tp, head)

    def owe(self, tp: Tp, head: int) -> None:
        """Time is still to pass there, up to that record."""
        if head:
            self._heads[tp] = head

    @property
    def owes(self) -> bool:
        """Whether there is anything to take."""
        return bool(self._unsaved or self._heads)

    def take_unsaved(self) -> list[Tp]:
        """Those that stand, and may hold what is in no changelog: each is told once."""
        unsaved, self._unsaved = [tp for tp in self._unsaved if tp in self._causes], set()
        return unsaved

    def take_heads(self) -> dict[Tp, int]:
        """Up to when time has passed in those that stand: likewise."""
        heads, self._heads = self._heads, {}
        return heads

    def goes_on(self, tp: Tp) -> bool:
        """It got on; whether it had been blocked."""
        return tp not in self._causes and self._failed.pop(tp, None) is not None

    def forget(self, tp: Tp) -> None:
        """It was taken away."""
        for each in (self._causes, self._at, self._failed, self._heads):
            each.pop(tp, None)
        self._unsaved.discard(tp)
