"""The engine's log reader on librdkafka: committed offsets, end offsets and stretches of logs, for restore and for commands that inspect.

Belongs here: the three questions of the restore barrier (ER-06) and their patience. Does not belong here: what the rows mean
(`uow.processor.engine.restore`). Never joins the group; a caller that is a member is called back between any two requests (ER-17).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

import confluent_kafka as ck

from uow.processor.engine.ports import (
    Blocked,
    Committed,
    Meanwhile,
    Stretch,
    Tp,
)
from uow.processor.engine.restore import Hints, hints
from uow.processor.kafka.clients import Clients
from uow.processor.kafka.consumed import apart, by_partition
from uow.processor.kafka.error_table import Meaning, is_passing, meaning_of
from uow.processor.kafka.leader_epochs import UNKNOWN, LeaderEpochs, was_cut
from uow.processor.kafka.log_ends import LogEnds, Question, monotonic_ms
from uow.processor.kafka.log_offsets import LogOffsets

log = logging.getLogger("uow.reader")

CHUNK = 10_000
REQUEST_S = 5.0
RETRY_S = 0.1
NO_ANSWER = "no broker answers for its topics"
SAY_AFTER_S = 10.0
"""A read whose position stands still this long says why: most often an open transaction of a dead worker (ER-10)."""


class KafkaLogReader:
    """Port `LogReader`.

    Args:
        clients: Makes handles.
        meanwhile: Called between any two requests, and while brokers do not answer or a transaction stays open.
        stall_ms: A position that does not move this long, though brokers answer and no transaction is open, is an error.
        epochs: Are told those beside committed offsets.
    """

    def __init__(
        self,
        clients: Clients,
        meanwhile: Meanwhile = lambda: None,
        stall_ms: int = 60_000,
        epochs: LeaderEpochs | None = None,
    ) -> None:
        self._clients, self._meanwhile, self._stall_s = clients, meanwhile, stall_ms / 1000
        self._epochs = epochs or LeaderEpochs()
        self._asking: dict[str, ck.Consumer] = {}
        self._offsets = LogOffsets(clients)

    def committed(self, tps: Sequence[Tp], isolation: str = "read_committed") -> Mapping[Tp, Committed]:
        """Stable committed offsets: a `read_committed` consumer makes the broker wait for pending transactional commits (ER-06 step 1)."""
        answers: dict[Tp, Committed] = {}
        asked = [ck.TopicPartition(*tp) for tp in tps]

        def ask() -> bool:
            rows = self._asker(isolation).committed(asked, timeout=REQUEST_S)
            for row in rows:
                if row.error is not None:
                    raise ck.KafkaException(row.error)
                tp, offset = Tp(row.topic, row.partition), row.offset if row.offset >= 0 else None
                answers[tp] = Committed(offset, row.metadata or "" if offset is not None else "")
                self._epochs.committed(tp, row.offset, row.leader_epoch)
            return True

        if asked:
            self._insist(ask, "committed offsets")
        return answers

    def bounds(self, tps: Sequence[Tp]) -> Mapping[Tp, tuple[int, int]]:
        """(log start, end offset); the end of a `read_uncommitted` reader, never the last stable offset (ER-06 step 2)."""
        return self._bounds(tps, self._offsets.ends)

    def _bounds(self, tps: Sequence[Tp], ends_of: Question) -> dict[Tp, tuple[int, int]]:
        starts, ends = self._offsets_of(tps, self._offsets.starts), self._offsets_of(tps, ends_of)
        return {tp: (starts[tp], ends[tp]) for tp in tps}

    def _offsets_of(self, tps: Sequence[Tp], question: Question) -> dict[Tp, int]:
        found: dict[Tp, int] = {}

        def ask() -> bool:
            missing = None
            for tp, answer in question([tp for tp in tps if tp not in found], REQUEST_S).items():
                try:
                    found[tp] = self._awaited(answer).offset
                except ck.KafkaException as failure:
                    if not is_passing(failure.args[0]):
                        raise
                    missing = failure
            if missing is not None:
                raise missing
            return True

        self._insist(ask, f"end offsets of {sorted({tp.topic for tp in tps})}")
        return found

    def _awaited(self, answer: Future[Any]) -> Any:
        """Waits for an answer and serves the group meanwhile; the request has its own time-out."""
        while True:
            try:
                return answer.result(RETRY_S)
            except TimeoutError:
                self._meanwhile()

    def stable_bounds(self, tps: Sequence[Tp]) -> Mapping[Tp, tuple[int, int]]:
        """(log start, how far a `read_committed` reader gets now). For commands that inspect, and do not wait for an open transaction."""
        return self._bounds(tps, self._offsets.stable_ends)

    def read(self, ranges: Mapping[Tp, tuple[int, int]]) -> Iterator[Stretch]:
        """Yields until the *position* has reached each end; markers and compaction leave no record there (ER-07)."""
        ends = {(tp.topic, tp.partition): end for tp, (start, end) in ranges.items() if end > start}
        if not ends:
            return
        consumer = self._clients.log_consumer("read_committed")
        try:
            consumer.assign(
                [ck.TopicPartition(tp.topic, tp.partition, start) for tp, (start, end) in ranges.items() if end > start]
            )
            yield from self._read(consumer, ends)
        finally:
            consumer.close()

    def _read(self, consumer: ck.Consumer, ends: dict[tuple[str, int], int]) -> Iterator[Stretch]:
        moved = said = told = time.monotonic()
        while ends:
            messages: list[Any] = consumer.consume(1, RETRY_S)
            if messages:
                messages += consumer.consume(CHUNK, 0.005)
                moved = said = time.monotonic()
            reached: dict[tuple[str, int], int] = {}
            records, events = apart(messages)
            for event in events:
                self._on_error(event, event.error(), reached)
            for tp, stretch in by_partition(records):
                end = ends.get(tp, 0)
                if stretch[-1].offset() >= end:
                    stretch = [record for record in stretch if record.offset() < end]
                if stretch:
                    yield tp, stretch
            left = self._strike_off(consumer, ends, reached)
            self._meanwhile()
            now = time.monotonic()
            if ends and now - told > SAY_AFTER_S:
                told = now
                log.info("restore: %s offsets of %d partitions are still to be read", f"{left:,}", len(ends))
            if ends and now - said > min(SAY_AFTER_S, self._stall_s):
                said = now
                if (why := self._reason(ends)) is not None:
                    log.warning("restore stands still for %.0f s before %s: %s", now - moved, sorted(ends), why)
                elif now - moved > self._stall_s:
                    raise Blocked(
                        f"reading {sorted(ends)} has made no progress for {now - moved:.0f} s, though brokers answer and no transaction is open: "
                        "look at these partitions with Kafka's tools, then restart the worker"
                    )

    def _reason(self, ends: Mapping[tuple[str, int], int]) -> str | None:
        """The reason why nothing comes; None if nothing explains it."""
        tps = [Tp(*tp) for tp in ends]
        for tp, answer in self._offsets.stable_ends(tps, REQUEST_S).items():
            try:
                at = self._awaited(answer).offset
            except ck.KafkaException as failure:
                return f"no broker: {failure.args[0].str()}"
            if at < ends[tp]:
                return f"a transaction is open in {tp.topic}/{tp.partition} at offset {at}; it ends with its time-out"
        return None

    @staticmethod
    def _strike_off(
        consumer: ck.Consumer,
        ends: dict[tuple[str, int], int],
        reached: Mapping[tuple[str, int], int],
    ) -> int:
        """Partitions whose position has reached their end are done: not fetched any further. Returns how many offsets of the others are left."""
        done, left = [], 0
        for at in consumer.position([ck.TopicPartition(*tp) for tp in ends]):
            tp = (at.topic, at.partition)
            if max(at.offset, reached.get(tp, -1)) >= ends[tp]:
                done.append(ck.TopicPartition(*tp))
                del ends[tp]
            else:
                left += ends[tp] - max(at.offset, 0)
        if done and ends:
            consumer.pause(done)
        return left

    @staticmethod
    def _on_error(message: Any, error: ck.KafkaError, reached: dict[tuple[str, int], int]) -> None:
        if meaning_of(error) is Meaning.END:
            reached[(message.topic(), message.partition())] = message.offset()
        elif not is_passing(error):
            raise ck.KafkaException(error)
        else:
            log.warning("restore: %s: %s", error.name(), error.str())

    # -- questions

    def _asker(self, isolation: str) -> ck.Consumer:
        if isolation not in self._asking:
            self._asking[isolation] = self._clients.log_consumer(isolation)
        return self._asking[isolation]

    def _insist(self, ask: Callable[[], bool], what: str) -> None:
        """Asks until there is an answer: an unanswered question is no answer."""
        since, said = time.monotonic(), False
        while True:
            self._meanwhile()
            trouble = "no answer"
            try:
                if ask():
                    return
            except ck.KafkaException as failure:
                error = failure.args[0]
                if not is_passing(error):
                    raise
                trouble = error.str()
            if not said and time.monotonic() - since > SAY_AFTER_S:
                said = True
                log.warning("still waiting for %s: %s", what, trouble)
            time.sleep(RETRY_S)

    def cut_off(self, tps: Sequence[Tp]) -> dict[Tp, int]:
        """Committed offsets of those of the logs that were cut off before them (`uow.processor.kafka.leader_epochs`)."""
        make = partial(self._clients.log_consumer, "read_committed")
        known = [(tp, each.offset) for tp, each in self.committed(tps).items() if each.offset is not None]
        epochs = [(tp, offset, self._epochs.before(tp, offset)) for tp, offset in known]
        return {tp: offset for tp, offset, epoch in epochs if epoch != UNKNOWN and was_cut(make, tp, offset, epoch)}

    def close(self) -> None:
        """Closes the handles that asked."""
        for consumer in self._asking.values():
            consumer.close()
        self._asking.clear()


class Readiness:
    """The partitions that can be restored without waiting for others: a port of the driver (`uow.processor.engine.driver.Ports.ready`).

    A restore must read to the end offset of each log; it stands before the open transaction of a worker that died, until that times out
    (ER-10), and before a partition that has no leader. This asks beforehand, for all at once, and does not wait: what is not answered yet counts at the
    next look. It decides nothing: the restore asks again.

    Args:
        clients: Makes the handle.
        logs: The topic partitions that a restore of one partition reads, those of the workers' own logs first, and how many these are.
    """

    def __init__(self, clients: Clients, logs: Callable[[Tp], tuple[Sequence[Tp], int]]) -> None:
        offsets = LogOffsets(clients)
        self._ends, self._stable, self._logs = LogEnds(offsets.ends), LogEnds(offsets.stable_ends), logs
        self._looks: dict[Tp, _Look] = {}
        self._said = 0.0

    def ready(self, tps: Sequence[Tp]) -> list[Tp]:
        """Those of them that need not wait."""
        now = monotonic_ms()
        self._looks = {tp: self._looks.get(tp) or _Look(now, now) for tp in tps}
        obstacles = {tp: self._obstacle(tp, look) for tp, look in self._looks.items()}
        self._ends.send()
        self._stable.send()
        ready = [tp for tp, why in obstacles.items() if why is None]
        for tp in ready:
            del self._looks[tp]
        self._tell({tp: why for tp, why in obstacles.items() if why is not None}, now)
        return ready

    def _obstacle(self, tp: Tp, look: _Look) -> str | None:
        """The reason why a partition has to wait; None if there is none. One whose question fails for good is left to the restore, which reports it."""
        logs, count = self._logs(tp)
        ends = self._offsets(self._ends, logs, look.since)
        if ends is None:
            return NO_ANSWER
        if look.stable_since is None:
            look.stable_since = (
                monotonic_ms()
            )  # behind the ends, or what was appended between the two looks like an open transaction
        stable = self._offsets(self._stable, logs[:count], look.stable_since)
        if stable is None:
            return NO_ANSWER
        for log, at in stable.items():
            if at < ends.get(log, 0):
                look.since, look.stable_since = monotonic_ms(), None
                return f"a transaction is open in {log.topic}/{log.partition} at offset {at}"
        return None

    @staticmethod
    def _offsets(side: LogEnds, logs: Sequence[Tp], since: float) -> dict[Tp, int] | None:
        """None while one of them is not known."""
        answers = {log: side.answer(log, since) for log in logs}
        if any(answer is None and side.failure(log) is None for log, answer in answers.items()):
            return None
        return {log: answer.offset for log, answer in answers.items() if answer is not None}

    def _tell(self, obstacles: Mapping[Tp, str], now: float) -> None:
        """One line now and then, for all that wait for long."""
        waiting = [tp for tp in obstacles if now - self._looks[tp].began > SAY_AFTER_S * 1000]
        if waiting and now - self._said > SAY_AFTER_S * 1000:
            self._said = now
            first = min(waiting)
            others = f", and {len(waiting) - 1} others" if len(waiting) > 1 else ""
            log.warning("%s/%d is not restored yet: %s%s", *first, obstacles[first], others)


@dataclass(slots=True)
class _Look:
    """A partition before its restore: since when it has been looked at, and since when both kinds of ends are asked for, monotonic ms."""

    began: float
    since: float
    stable_since: float | None = None


def recorded_hints(clients: Clients, topic: str, partitions: int) -> list[Hints]:
    """The texts beside the group's committed offsets. Waits for no open transaction: counts and marks are in each of them.

    Raises:
        KafkaException: No broker answers, or none that has the group's offsets.
    """
    consumer = clients.log_consumer("read_uncommitted")
    try:
        rows = consumer.committed([ck.TopicPartition(topic, number) for number in range(partitions)], REQUEST_S)
    finally:
        consumer.close()
    for row in rows:
        if row.error is not None:
            raise ck.KafkaException(row.error)
    return [hints(Committed(row.offset, row.metadata or "")) for row in rows]


def recorded_counts(found: Iterable[Hints]) -> set[int]:
    """The partition counts among them (W-107)."""
    return {each.partitions for each in found if each.partitions is not None}
