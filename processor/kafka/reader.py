"""The engine's log reader on librdkafka: committed offsets, end offsets and stretches of logs, for restore and for people who look.

Belongs here: the three questions of the restore barrier (ER-06) and their patience. Does not belong here: what the rows mean
(`processor.engine.restore`). Never joins the group; whoever did is called back between any two requests (ER-17).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import confluent_kafka as ck

from processor.engine.ports import Blocked, Committed, Meanwhile, Stretch, Tp
from processor.engine.restore import hints
from processor.kafka.clients import Clients
from processor.kafka.messages import apart, by_partition

log = logging.getLogger("uow.reader")

CHUNK = 10_000
REQUEST_S = 5.0
RETRY_S = 0.1
SAY_AFTER_S = 10.0
"""A read whose position stands still this long says why: most often an open transaction of a dead worker (ER-10)."""


class KafkaLogReader:
    """Port `LogReader`.

    Args:
        clients: Makes handles.
        meanwhile: Called between any two requests, and while brokers do not answer or a transaction stays open.
        stall_ms: A position that does not move this long, though brokers answer and no transaction is open, is an error.
    """

    def __init__(self, clients: Clients, meanwhile: Meanwhile = lambda: None, stall_ms: int = 60_000) -> None:
        self._clients, self._meanwhile, self._stall_s = clients, meanwhile, stall_ms / 1000
        self._asking: dict[str, ck.Consumer] = {}

    def committed(self, tps: Sequence[Tp], isolation: str = "read_committed") -> Mapping[Tp, Committed]:
        """Stable committed offsets: a `read_committed` consumer makes the broker wait for pending transactional commits (ER-06 step 1)."""
        answers: dict[Tp, Committed] = {}
        asked = [ck.TopicPartition(*tp) for tp in tps]

        def ask() -> bool:
            rows = self._asker(isolation).committed(asked, timeout=REQUEST_S)
            for row in rows:
                if row.error is not None:
                    raise ck.KafkaException(row.error)
                offset = row.offset if row.offset >= 0 else None
                answers[Tp(row.topic, row.partition)] = Committed(
                    offset, row.metadata or "" if offset is not None else ""
                )
            return True

        if asked:
            self._insist(ask, "committed offsets")
        return answers

    def bounds(self, tps: Sequence[Tp]) -> Mapping[Tp, tuple[int, int]]:
        """(log start, end offset); the end of a `read_uncommitted` reader, never the last stable offset (ER-06 step 2)."""
        return self._bounds(tps, "read_uncommitted")

    def _bounds(self, tps: Sequence[Tp], isolation: str) -> dict[Tp, tuple[int, int]]:
        answers: dict[Tp, tuple[int, int]] = {}
        for tp in tps:

            def ask(tp: Tp = tp) -> bool:
                asker: Any = self._asker(isolation)  # answers None after the time-out, whatever its stub says
                bounds = asker.get_watermark_offsets(ck.TopicPartition(*tp), timeout=REQUEST_S)
                if bounds is None:
                    return False
                answers[tp] = bounds
                return True

            self._insist(ask, f"end offset of {tp.topic}/{tp.partition}")
        return answers

    def stable_bounds(self, tps: Sequence[Tp]) -> Mapping[Tp, tuple[int, int]]:
        """(log start, how far a `read_committed` reader gets now). For people who look, and wait for nobody's transaction."""
        return self._bounds(tps, "read_committed")

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
        moved = told = time.monotonic()
        while ends:
            messages: list[Any] = consumer.consume(1, RETRY_S)
            if messages:
                messages += consumer.consume(CHUNK, 0.005)
                moved = told = time.monotonic()
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
            self._strike_off(consumer, ends, reached)
            self._meanwhile()
            now = time.monotonic()
            if ends and now - told > min(SAY_AFTER_S, self._stall_s):
                told = now
                if (why := self._reason(ends)) is not None:
                    log.warning("restore stands still for %.0f s before %s: %s", now - moved, sorted(ends), why)
                elif now - moved > self._stall_s:
                    raise Blocked(
                        f"reading {sorted(ends)} does not get on for {now - moved:.0f} s, though brokers answer and no transaction is open: "
                        "look at these partitions with Kafka's tools, then restart the worker"
                    )

    def _reason(self, ends: Mapping[tuple[str, int], int]) -> str | None:
        """Why nothing comes; None where nothing explains it."""
        for tp, end in ends.items():
            try:
                asker: Any = self._asker("read_committed")
                bounds = asker.get_watermark_offsets(ck.TopicPartition(*tp), timeout=REQUEST_S)
            except ck.KafkaException as failure:
                return f"no broker: {failure.args[0].str()}"
            if bounds is None:
                return "no broker answers"
            if bounds[1] < end:
                return (
                    f"a transaction is open in {tp[0]}/{tp[1]} at offset {bounds[1]}; it ends with its time-out (ER-10)"
                )
        return None

    @staticmethod
    def _strike_off(
        consumer: ck.Consumer,
        ends: dict[tuple[str, int], int],
        reached: Mapping[tuple[str, int], int],
    ) -> None:
        """Partitions whose position has reached their end are done: not fetched any further."""
        done = []
        for at in consumer.position([ck.TopicPartition(*tp) for tp in ends]):
            tp = (at.topic, at.partition)
            if max(at.offset, reached.get(tp, -1)) >= ends[tp]:
                done.append(ck.TopicPartition(*tp))
                del ends[tp]
        if done and ends:
            consumer.pause(done)

    @staticmethod
    def _on_error(message: Any, error: ck.KafkaError, reached: dict[tuple[str, int], int]) -> None:
        if error.code() == ck.KafkaError._PARTITION_EOF:
            reached[(message.topic(), message.partition())] = message.offset()
        elif error.fatal() or not (error.retriable() or error.code() in _PATIENT):
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
                if error.fatal() or not (error.retriable() or error.code() in _PATIENT):
                    raise
                trouble = error.str()
            if not said and time.monotonic() - since > SAY_AFTER_S:
                said = True
                log.warning("still waiting for %s: %s", what, trouble)
            time.sleep(RETRY_S)

    def close(self) -> None:
        """Closes the handles that asked."""
        for consumer in self._asking.values():
            consumer.close()
        self._asking.clear()


def recorded_counts(clients: Clients, topic: str, partitions: int) -> set[int]:
    """Partition counts that stand beside the group's committed offsets (W-107). Waits for nobody's transaction: the count is in each of them.

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
    found = {hints(Committed(row.offset, row.metadata or "")).partitions for row in rows}
    return {count for count in found if count is not None}


_PATIENT = frozenset(
    {
        ck.KafkaError._TIMED_OUT,
        ck.KafkaError._TRANSPORT,
        ck.KafkaError._ALL_BROKERS_DOWN,
        ck.KafkaError._DESTROY_BROKER,  # its connections were cut off and its addresses asked for anew
        ck.KafkaError._RESOLVE,
        ck.KafkaError._WAIT_COORD,
        ck.KafkaError._TIMED_OUT_QUEUE,
        ck.KafkaError.UNSTABLE_OFFSET_COMMIT,
        ck.KafkaError.COORDINATOR_NOT_AVAILABLE,
        ck.KafkaError.NOT_COORDINATOR,
        ck.KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        ck.KafkaError.LEADER_NOT_AVAILABLE,
        ck.KafkaError.NOT_LEADER_FOR_PARTITION,
        ck.KafkaError.REQUEST_TIMED_OUT,
        ck.KafkaError.UNKNOWN_LEADER_EPOCH,
        ck.KafkaError.FENCED_LEADER_EPOCH,
    }
)
"""Errors that pass by themselves, whatever their `retriable` flag says."""
