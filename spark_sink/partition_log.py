"""Reading one partition of a topic where the work is done: in a Spark task, with the client and the properties of the workers.

The library's client reads several times as fast as records come from Spark's source through Arrow into Python, and shows headers exactly as the
worker saw them.

Belongs here: committed records in offset order. Does not belong here: the meaning of records.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from uow.processor.kafka.header_lookup import HeaderLookup, LookupTimeoutError
from uow.schemas.error_classes import StateCorruptedError
from uow.spark_sink.kafka import TIMEOUT_S, Cluster

_BATCH_RECORDS: Final = 2_000
_POLL_S: Final = 1.0
_OWN: Final = {
    "group.id": "uow-audit",
    "enable.auto.commit": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
    "fetch.wait.max.ms": 20,
    "queued.max.messages.kbytes": 16_384,
    "log_level": 0,
}
_DELETED: Final = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
_PASSING: Final = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)
_LOG: Final = logging.getLogger(__name__)


class PartitionLog:
    """The committed records of one partition (W-49). Close it after use.

    Args:
        cluster: The cluster.
        topic: Name of the topic.
        partition: Number of the partition.
        start: First offset; None for the log start.
        clock: Seconds, from anywhere.
        may_be_cut: If `start` was deleted, begin at the log start instead.
    """

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        partition: int,
        start: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        may_be_cut: bool = False,
    ) -> None:
        self._topic, self._partition = topic, partition
        self._where = f"{topic}/{partition}"
        self._clock, self._position = clock, start or 0
        self._is_at_end = False
        own: dict[str, Any] = {**_OWN, "bootstrap.servers": cluster.bootstrap_servers}
        if start is None or may_be_cut:
            own["auto.offset.reset"] = "earliest"
        self._consumer = Consumer({**cluster.kafka, **own}, logger=_LOG)
        self._lookup = HeaderLookup({**cluster.kafka, **own}, TIMEOUT_S)
        self._consumer.assign([TopicPartition(topic, partition, 0 if start is None else start)])
        self._ahead: list[Message] = []

    def until(self, end: int) -> Iterator[list[Message]]:
        """Batches of the records before an offset that is committed.

        Raises:
            StateCorruptedError: Records were deleted by retention meanwhile.
            KafkaException: The broker does not answer, or refuses.
        """
        for batch in self._batches(end):
            before = [message for message in batch if offset_of(message) < end]
            self._ahead = batch[len(before) :]
            if before:
                yield before
            if self._ahead:
                return

    def rest(self) -> Iterator[list[Message]]:
        """Batches of the remaining records, up to the end of the log at this time. Raises like `until`."""
        if self._ahead:
            yield self._ahead
        yield from self._batches(None)

    def hidden(self, offsets: Sequence[int]) -> set[int]:
        """Those of these records whose headers the client does not show: the worker has refused them.

        Args:
            offsets: Of records that the client shows without headers, rising.

        Raises:
            KafkaException: The broker does not answer.
        """
        try:
            return self._lookup.hidden(self._topic, self._partition, offsets)
        except LookupTimeoutError as late:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, str(late))) from late

    def _batches(self, end: int | None) -> Iterator[list[Message]]:
        heard = self._clock()
        while not self._is_at_end if end is None else self._position < end:
            records = []
            for message in self._present():
                error = message.error()
                if error is None:
                    records.append(message)
                    self._is_at_end = False
                elif error.code() == KafkaError._PARTITION_EOF:  # told once, until further records come
                    self._position, self._is_at_end = offset_of(message), True
                elif error.code() in _DELETED:
                    why = f"{self._where}: records were deleted by retention while they were read"
                    raise StateCorruptedError([], why, "run it again")
                elif not error.retriable() and error.code() not in _PASSING:
                    raise KafkaException(error)
            if records or self._is_at_end:
                heard = self._clock()
            if records:
                self._position = max(self._position, offset_of(records[-1]) + 1)
                yield records
            elif self._clock() - heard > TIMEOUT_S:
                late = f"{self._where} was not read in {TIMEOUT_S:g} s"
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, late))

    def _present(self) -> list[Message]:
        """Messages that are there; it waits for the first one only."""
        first = self._consumer.poll(_POLL_S)
        return [] if first is None else [first, *self._consumer.consume(_BATCH_RECORDS - 1, 0)]

    def close(self) -> None:
        """Closes the consumers."""
        self._lookup.close()
        self._consumer.close()


def offset_of(message: Message) -> int:
    """The offset of a message that was read."""
    offset = message.offset()
    assert offset is not None
    return offset
