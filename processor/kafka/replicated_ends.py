"""End offsets of the input that count every record appended before the question, replicated or not.

Brokers answer with the high watermark: what a slow replica has not got yet lies above it, and becomes readable later (decision 23).
Belongs here: finding out if something is held back. Does not belong here: asking brokers (`log_offsets`), and using the end (`source`).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from uow.processor.engine.ports import Tp
from uow.processor.kafka.log_offsets import Answers, LogOffsets

ANSWER_S = 2.0

HELD_BACK_S = 60.0
"""So long the same end is doubted. Brokers wait less for a replica (`replica.lag.time.max.ms`, 30 s, looked at every 15 s); a log whose newest
record is never told of must not keep its groups for ever."""


class Ends:
    """Asks for one partition at a time.

    Args:
        offsets: Asks brokers.
        monotonic: Seconds, from anywhere.
    """

    def __init__(self, offsets: LogOffsets, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._offsets, self._monotonic = offsets, monotonic
        self._waits: dict[Tp, tuple[int, float]] = {}

    def end(self, tp: Tp) -> int | None:
        """None while something is held back.

        Raises:
            KafkaException: No broker answers.
        """
        end = self._ask(self._offsets.ends, tp)
        if not self._is_held_back(tp, end):
            self._waits.pop(tp, None)
            return end
        now = self._monotonic()
        if self._waits.get(tp, (-1, now))[0] != end:
            self._waits[tp] = end, now
        return end if now - self._waits[tp][1] >= HELD_BACK_S else None

    def _is_held_back(self, tp: Tp, end: int) -> bool:
        """True if the newest record lies at or above an end offset that was asked for before."""
        if self._offsets.replicas(tp, ANSWER_S) == 1:
            return False
        newest = self._ask(self._offsets.newest, tp)
        return newest >= end if newest >= 0 else self._ask(self._offsets.starts, tp) < end

    @staticmethod
    def _ask(side: Callable[..., Answers], tp: Tp) -> int:
        return int(side([tp], ANSWER_S)[tp].result().offset)
