"""Looks at the ends of partitions whose deadlines have passed, and the schedule of these looks (W-82, W-83). No I/O.

A *look* is a question for the ends of a partition's two topics, put after the deadline. Once both are reached, whatever was appended before the
deadline is read, and time may close groups. A look is kept until then: under input that never stops a newer one would move away for ever. Nobody waits for an
answer; a late one counts.

Belongs here: which partitions are looked at, and when a look is reached. Does not belong here: deadlines (`uow.processor.engine.task`), asking and writing
(`uow.processor.engine.driver`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from uow.processor.engine.ports import EndQuestion, RecordSource, Tp

ASK_AGAIN_MS = 100
"""A partition that had nothing to write is not looked at again before this. By the monotonic clock: a wall clock that is put back delays nothing."""

CHECK_MS = 10_000
"""A look that is not reached for so long is checked: if the log was cut off below it, by an unclean election, it would never be."""

TICKS_A_TURN = 8
"""So many partitions at most close groups by time in one turn; the others are next. A full plan of each is some seconds of work together."""


@dataclass(slots=True)
class Look:
    """A look at one partition.

    Attributes:
        asked_at: The wall clock just before, epoch ms: what is due by then may close.
        settled: As of `Batch`.
        latest: A record that is read after the look, with an append time after this, came after all that counts.
        questions: By topic partition, that of `D.components` first.
        ends: The answers, as far as they are known.
        checked: When the questions were put, or put again, monotonic ms.
    """

    asked_at: int
    settled: int | None
    latest: int
    questions: dict[Tp, EndQuestion]
    checked: int
    ends: dict[Tp, int] = field(default_factory=dict)

    def is_reached(self, source: RecordSource, positions: Mapping[Tp, int], clock: int) -> bool:
        """True once everything below the ends is read.

        Args:
            source: Knows how far it has read.
            positions: Next offset by topic partition.
            clock: Of the partition: the latest append time that was read, and believed.

        For groups by rule only the ends count: the routers committed their records before the look, whatever any clock says.
        """
        components = next(iter(self.questions))
        for tp, question in self.questions.items():
            if (end := question.answer()) is not None:
                self.ends[tp] = min(end, self.ends.get(tp, end))
        return all(
            (tp in self.ends and source.has_read(tp, position, self.ends[tp]))
            or (tp == components and self.settled is None and clock > self.latest)
            for tp, position in positions.items()
        )

    def check(self, source: RecordSource, now_ms: int) -> None:
        """Puts the questions again, now and then: of two answers the lower one counts."""
        if now_ms - self.checked >= CHECK_MS and len(self.ends) == len(self.questions):
            self.checked = now_ms
            self.questions = {tp: source.end(tp) for tp in self.questions}


class TickSchedule:
    """The looks at one worker's partitions. Times are monotonic milliseconds.

    Attributes:
        looks: The looks that are not done with, by partition.
    """

    def __init__(self) -> None:
        self.looks: dict[Tp, Look] = {}
        self._waits_since: dict[Tp, int] = {}
        self._ask_at: dict[Tp, int] = {}
        self._last_turn: dict[Tp, int] = {}
        self._turns = 0

    def may_ask(self, tp: Tp, now_ms: int) -> bool:
        """True unless the partition was put off until later."""
        return now_ms >= self._ask_at.get(tp, now_ms)

    def has_waited(self, tp: Tp, now_ms: int) -> bool:
        """True once the routers had time to tell how far they are. A unit of work waits no longer for them than that."""
        return now_ms - self._waits_since.setdefault(tp, now_ms) >= ASK_AGAIN_MS

    def look(self, tp: Tp, look: Look) -> Look:
        """Keeps a look."""
        self._waits_since.pop(tp, None)
        self.looks[tp] = look
        return look

    def choose(self, due: Sequence[Tp]) -> Sequence[Tp]:
        """Chooses `TICKS_A_TURN` partitions at most of those with a passed deadline: the ones that have waited longest."""
        chosen = due
        if len(due) > TICKS_A_TURN:
            chosen = sorted(due, key=lambda tp: self._last_turn.get(tp, 0))[:TICKS_A_TURN]
        self._turns += 1
        self._last_turn.update(dict.fromkeys(chosen, self._turns))
        return chosen

    def put_off(self, tp: Tp, now_ms: int) -> None:
        """It had nothing to write: it is not asked for a while."""
        self._ask_at[tp] = now_ms + ASK_AGAIN_MS

    def forget(self, tp: Tp) -> None:
        """It was taken away."""
        for each in (self.looks, self._waits_since, self._ask_at, self._last_turn):
            each.pop(tp, None)
