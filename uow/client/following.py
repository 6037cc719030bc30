"""Following a topic from its end of now on, alone and committing nothing: for answers and refusals.

Belongs here: `Follower`. Does not belong here: the meaning of the records (`uow.client.answers`, `uow.client.refusals`), and reading for
good (`uow.client.consumption`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from confluent_kafka import OFFSET_BEGINNING, KafkaException, TopicPartition

from uow.client.kafka_port import (
    BLOCKING_S,
    REFRESH_S,
    REFRESH_TIMEOUT_S,
    ConsumedRecord,
    ConsumerHandle,
    LogWatch,
    check_topic,
    coordinates,
)
from uow.errors import AccessDeniedError, DestinationUnavailableError, ReconnectTimeoutError
from uow.processor.kafka.error_table import Meaning, meaning_of
from uow.topics.access import explained

log = logging.getLogger(__name__)

Make = Callable[[logging.Logger], ConsumerHandle]


class Follower:
    """One consumer of all partitions of a topic, also of those that are added. For one thread at a time.

    Args:
        make: Makes the consumer.
        topic: The topic.
        clock: Seconds, from anywhere.

    Raises:
        DestinationUnavailableError: There is no such topic.
        ReconnectTimeoutError: No broker answered in time.
    """

    def __init__(self, make: Make, topic: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.topic = topic
        self._clock = clock
        self._next: dict[int, int] = {}
        self._handle = make(LogWatch().logger)
        try:
            self.skip()
        except BaseException:
            self.close()
            raise

    @property
    def partitions(self) -> set[int]:
        """Those of the topic, as far as known."""
        return {*self._next}

    def partitions_of(self, topic: str) -> int:
        """Number of partitions of any topic. Raises as the constructor."""
        return check_topic(self._handle, topic)

    def skip(self) -> None:
        """Goes on at the end of now. Raises as the constructor."""
        self._next = {number: self._end(number) for number in range(check_topic(self._handle, self.topic))}
        self._assign()

    def _end(self, number: int) -> int:
        try:
            return self._handle.get_watermark_offsets(TopicPartition(self.topic, number), BLOCKING_S)[1]
        except (KafkaException, TypeError) as failure:  # it answers None after the time-out
            raise ReconnectTimeoutError(f"the end offset of {self.topic}/{number} is not known: {failure}") from failure

    def _assign(self) -> None:
        self._handle.assign([TopicPartition(self.topic, *place) for place in self._next.items()])
        self._refresh_at = self._clock() + REFRESH_S

    def poll(self, timeout: float) -> ConsumedRecord | None:
        """The next record, or None. Errors are logged: the library goes on by itself, and where retention was faster the end is next.

        Raises:
            ReconnectTimeoutError: Retention was faster, and no broker tells the end.
            AccessDeniedError: This user may not read the topic.
        """
        if self._clock() >= self._refresh_at:
            self._add_partitions()
        record = self._handle.poll(timeout)
        if record is None:
            return None
        error = record.error()
        if error is None:
            _, number, offset = coordinates(record)
            self._next[number] = offset + 1
            return record
        meaning = meaning_of(error)
        if meaning is Meaning.OUT_OF_RANGE:
            log.warning(
                "%s: retention was faster than its reader, some records were missed: %s", self.topic, error.str()
            )
            self.skip()
        elif meaning is Meaning.NOT_AUTHORISED_FOR_TOPIC:
            raise AccessDeniedError(f"{self.topic}: {explained(error.name(), error.str())}")
        elif meaning is not Meaning.END:
            log.info("%s: %s", self.topic, error.str())
        return None

    def _add_partitions(self) -> None:
        self._refresh_at = self._clock() + REFRESH_S
        try:
            count = check_topic(self._handle, self.topic, REFRESH_TIMEOUT_S)
        except (DestinationUnavailableError, ReconnectTimeoutError) as failure:
            log.info("%s", failure)
            return
        if count > len(self._next):
            self._next |= dict.fromkeys(range(len(self._next), count), OFFSET_BEGINNING)
            self._assign()

    def close(self) -> None:
        """Closes the consumer."""
        self._handle.close()
