"""Blocked partitions: why, when each is tried again, and which upkeep its groups still need (EN-08). No I/O.

The reason may pass: a broker's disk is repaired, a limit is raised, offsets are reset. So each partition is tried again by itself, first
soon, then seldom: a try costs a restore, or one record.

A partition that stopped at a record, with its state whole, still gets two kinds of upkeep: rows in the changelog for all it holds, since the
input may be gone before somebody repairs it; and the deadlines that passed before that record was appended.

Belongs here: causes and times. Does not belong here: pausing, restoring and reading (`uow.processor.engine.owned_partitions`).
"""

from __future__ import annotations

from uow.processor.engine.ports import Blocked, Tp

RETRY_MS = (1_000, 5_000, 15_000, 60_000, 300_000)
"""Wait before a blocked partition is tried again, by the number of tries that failed."""


class Quarantine:
    """Blocked partitions, and those of which a try is under way. Times are monotonic milliseconds."""

    def __init__(self) -> None:
        self._causes: dict[Tp, Blocked] = {}
        self._retry_at: dict[Tp, int] = {}
        self._failures: dict[Tp, int] = {}
        self._unsaved: set[Tp] = set()
        self._tick_until: dict[Tp, int] = {}

    def __contains__(self, tp: object) -> bool:
        return tp in self._causes

    def block(self, tp: Tp, cause: Blocked, now_ms: int) -> None:
        """It cannot go on, or a try has failed."""
        failures = self._failures.get(tp, 0)
        self._causes[tp], self._failures[tp] = cause, failures + 1
        self._retry_at[tp] = now_ms + RETRY_MS[min(failures, len(RETRY_MS) - 1)]

    def hurry(self, tp: Tp, now_ms: int) -> None:
        """Somebody has acted: it is tried now, if it is blocked."""
        if tp in self._causes:
            self._retry_at[tp] = now_ms

    def take_due(self, now_ms: int) -> list[Tp]:
        """The partitions to be tried now. They count as blocked no longer, until the try fails."""
        due = [tp for tp in self._causes if self._retry_at[tp] <= now_ms]
        for tp in due:
            del self._causes[tp]
            self._tick_until.pop(tp, None)
        return due

    def stopped_at(self, tp: Tp, append_time: int) -> None:
        """A blocked partition stopped at a record, and its state is whole: it needs upkeep.

        Args:
            tp: The partition.
            append_time: Of that record; 0: unknown.
        """
        self._unsaved.add(tp)
        self.tick_later(tp, append_time)

    def tick_later(self, tp: Tp, append_time: int) -> None:
        """Deadlines up to this time are still to be applied; 0: none."""
        if append_time:
            self._tick_until[tp] = append_time

    @property
    def needs_upkeep(self) -> bool:
        """True if `take_unsaved` or `take_ticks` may have something."""
        return bool(self._unsaved or self._tick_until)

    def take_unsaved(self) -> list[Tp]:
        """Blocked partitions that may hold components of which no row is in the changelog. Each is returned once."""
        unsaved, self._unsaved = [tp for tp in self._unsaved if tp in self._causes], set()
        return unsaved

    def take_ticks(self) -> dict[Tp, int]:
        """The time up to which deadlines are to be applied, by partition. Each is returned once."""
        ticks, self._tick_until = self._tick_until, {}
        return ticks

    def recovered(self, tp: Tp) -> bool:
        """A batch of it was written, or it was restored. Returns True if it had been blocked before; its failures are forgotten then."""
        return tp not in self._causes and self._failures.pop(tp, None) is not None

    def forget(self, tp: Tp) -> None:
        """It was taken away."""
        for each in (self._causes, self._retry_at, self._failures, self._tick_until):
            each.pop(tp, None)
        self._unsaved.discard(tp)
