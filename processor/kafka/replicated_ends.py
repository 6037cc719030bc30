"""End offsets of the input that count every record appended before the question, replicated or not.

Brokers answer with the high watermark: what a slow replica has not got yet lies above it, and becomes readable later (decision 23). Both are asked at once,
the end and the newest record, which brokers tell only if it is replicated. An end above it lies above all that was appended before; where it was replicated between
the two answers, the end is asked for again. None is derived from the newest record, of which brokers tell only where its batch begins.

Belongs here: finding out if something is held back. Does not belong here: questions under way (`log_ends`), and using the end (`source`).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from uow.processor.engine.ports import Tp
from uow.processor.kafka.log_ends import AGAIN_MS, TOGETHER_S, LogEnds, monotonic_ms
from uow.processor.kafka.log_offsets import LogOffsets

HELD_BACK_MS: Final = 60_000.0
"""After so long any end counts. Brokers wait less for a replica (`replica.lag.time.max.ms`, 30 s, looked at every 15 s); a log whose newest
record is never told of must not keep its groups for ever."""
REPLICAS_MS: Final = 300_000.0
"""An operator may give a topic more of them."""


class ReplicatedEnds:
    """Ends of many partitions. For one thread, which never waits.

    Args:
        offsets: Asks brokers.
        monotonic: Milliseconds, from anywhere.
    """

    def __init__(self, offsets: LogOffsets, monotonic: Callable[[], float] = monotonic_ms) -> None:
        self._offsets, self._monotonic = offsets, monotonic
        self._ends = LogEnds(offsets.ends, monotonic)
        self._newest = LogEnds(offsets.newest, monotonic)
        self._starts = LogEnds(offsets.starts, monotonic)
        self._counting: dict[str, tuple[float, Future[dict[int, int]]]] = {}
        self._counts: dict[str, dict[int, int]] = {}

    def end(self, tp: Tp, since_ms: float) -> int | None:
        """An offset below which everything lies that was appended before this moment; None: not known yet, `send` asks."""
        end = self._ends.answer(tp, since_ms)
        if self._replicas(tp) == 1:
            return None if end is None else end.offset
        newest = self._newest.answer(tp, since_ms)
        if end is None or newest is None:
            return None
        if 0 <= newest.offset < end.offset or end.asked_ms - since_ms >= HELD_BACK_MS:
            return end.offset
        if newest.offset < 0:
            start = self._starts.answer(tp, since_ms)  # is any record left?
            if start is not None and start.offset >= end.offset:
                return end.offset
            if start is None:
                return None
            self._newest.ask_again(tp)
            self._starts.ask_again(tp)
        self._ends.ask_again(tp)
        return None

    def send(self) -> None:
        """Puts the questions."""
        for side in (self._ends, self._newest, self._starts):
            side.send()

    def _replicas(self, tp: Tp) -> int:
        """Number of replicas of a partition; 0 if it is not known."""
        asked, answer = self._counting.get(tp.topic, (0.0, None))
        now = self._monotonic()
        if answer is not None and answer.done() and answer.exception() is None:
            self._counts[tp.topic] = answer.result()
        wait = REPLICAS_MS if tp.topic in self._counts else AGAIN_MS
        if answer is None or (answer.done() and now - asked >= wait):
            self._counting[tp.topic] = now, self._offsets.replicas(tp.topic, TOGETHER_S)
        return self._counts.get(tp.topic, {}).get(tp.partition, 0)
