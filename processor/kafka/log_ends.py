"""Offsets of logs, asked for many partitions at once and without waiting: for everybody who wants to know where logs end.

A question that is under way is not put again, and its answer counts however late it comes. One leader that hangs keeps the answers of a
whole request waiting, since the library hands them over together; so a partition that failed to answer is asked by itself from then on, until it answers.

Belongs here: questions under way, and their answers. Does not belong here: sending one (`log_offsets`), and what follows from an answer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Final, NamedTuple

import confluent_kafka as ck

from uow.processor.engine.ports import Tp
from uow.processor.kafka.error_table import is_passing
from uow.processor.kafka.log_offsets import Answers, error_of, offset_of
from uow.processor.kafka.outage import Outage

log = logging.getLogger("uow.ends")

TOGETHER_S: Final = 5.0
"""Longest that a leader may hang before the other partitions of the same request have their answers."""
ALONE_S: Final = 30.0
"""The same for a partition that is asked by itself: nobody else waits for it."""
AGAIN_MS: Final = 200.0
"""Before a question that failed is put again."""

Question = Callable[[Sequence[Tp], float], Answers]


class Answer(NamedTuple):
    """An offset, and the moment of its question, monotonic milliseconds."""

    offset: int
    asked_ms: float


class _Open(NamedTuple):
    """A question under way."""

    asked_ms: float
    answer: Future[Any]


def monotonic_ms() -> float:
    """Milliseconds from anywhere."""
    return time.monotonic() * 1000


class LogEnds:
    """One side of logs: starts, ends, or stable ends. For one thread, which never waits.

    Args:
        question: Puts it, see `uow.processor.kafka.log_offsets.LogOffsets`.
        monotonic: Milliseconds, from anywhere.
    """

    def __init__(self, question: Question, monotonic: Callable[[], float] = monotonic_ms) -> None:
        self._question, self._monotonic = question, monotonic
        self._answers: dict[Tp, Answer] = {}
        self._open: dict[Tp, _Open] = {}
        self._wanted: set[Tp] = set()
        self._failures: dict[Tp, tuple[float, ck.KafkaError]] = {}
        self._outage = Outage(lambda: self._monotonic() / 1000)

    def answer(self, tp: Tp, since_ms: float) -> Answer | None:
        """The latest answer to a question put after this moment; None: there is none yet, and `send` puts it."""
        if tp in self._open:
            self._take(tp)
        known = self._answers.get(tp)
        if known is not None and known.asked_ms > since_ms:
            return known
        if tp not in self._open:
            self._wanted.add(tp)
        return None

    def failure(self, tp: Tp) -> ck.KafkaError | None:
        """The error of the last question, if that will not pass; None if there is no such."""
        _, error = self._failures.get(tp, (0.0, None))
        return None if error is None or is_passing(error) else error

    def send(self) -> None:
        """Puts what is wanted: one request for all that answer, and one for each that failed to."""
        if not self._wanted:
            return
        now = self._monotonic()
        alone = sorted(self._wanted & self._failures.keys())
        together = sorted(self._wanted - self._failures.keys())
        self._wanted.clear()
        self._put(together, TOGETHER_S, now)
        for tp in alone:
            if now - self._failures[tp][0] >= AGAIN_MS:
                self._put([tp], ALONE_S, now)

    def ask_again(self, tp: Tp) -> None:
        """The question about this partition is put once more, unless it is under way."""
        if tp not in self._open:
            self._wanted.add(tp)

    def _put(self, tps: Sequence[Tp], timeout_s: float, now: float) -> None:
        if tps:
            self._open |= {tp: _Open(now, answer) for tp, answer in self._question(tps, timeout_s).items()}

    def _take(self, tp: Tp) -> None:
        asked, answer = self._open[tp]
        if not answer.done():
            return
        del self._open[tp]
        try:
            self._answers[tp] = Answer(offset_of(tp.topic, answer), asked)
            self._failures.pop(tp, None)
        except Exception as failure:  # noqa: BLE001 - whatever the library puts there: the question failed
            error = error_of(failure.with_traceback(None))  # its frames hold the answer, and it them
            self._failures[tp] = self._monotonic(), error
            if (
                line := self._outage.line(f"{tp.topic}/{tp.partition}: its offsets are not told: {error.str()}")
            ) is not None:
                log.warning("%s", line)
