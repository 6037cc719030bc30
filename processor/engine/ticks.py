"""The schedule by which partitions are asked for their end offsets, so that passed deadlines are applied (W-82, W-83). No I/O.

Belongs here: which partitions are asked in a turn. Does not belong here: deadlines (`uow.processor.engine.task`), asking and writing
(`uow.processor.engine.driver`).
"""

from __future__ import annotations

from collections.abc import Sequence

from uow.processor.engine.ports import Tp

ASK_AGAIN_MS = 100
"""A partition that was not at its end is not asked again before this. By the monotonic clock: a wall clock that is put back delays nothing."""

TICKS_A_TURN = 8
"""So many partitions at most close groups by time in one turn; the others are next. A full plan of each is some seconds of work together."""


class TickSchedule:
    """The ticks of one worker's partitions. Times are monotonic milliseconds."""

    def __init__(self) -> None:
        self._ask_at: dict[Tp, int] = {}
        self._last_turn: dict[Tp, int] = {}
        self._turns = 0

    def may_ask(self, tp: Tp, now_ms: int) -> bool:
        """True unless the partition was put off until later."""
        return now_ms >= self._ask_at.get(tp, now_ms)

    def choose(self, due: Sequence[Tp]) -> Sequence[Tp]:
        """Chooses `TICKS_A_TURN` partitions at most of those with a passed deadline: the ones that have waited longest."""
        chosen = due
        if len(due) > TICKS_A_TURN:
            chosen = sorted(due, key=lambda tp: self._last_turn.get(tp, 0))[:TICKS_A_TURN]
        self._turns += 1
        self._last_turn.update(dict.fromkeys(chosen, self._turns))
        return chosen

    def put_off(self, tp: Tp, now_ms: int) -> None:
        """It was not at its end, or had nothing to write: it is not asked for a while."""
        self._ask_at[tp] = now_ms + ASK_AGAIN_MS

    def forget(self, tp: Tp) -> None:
        """It was taken away."""
        self._ask_at.pop(tp, None)
        self._last_turn.pop(tp, None)
