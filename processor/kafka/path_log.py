"""The path map's log on librdkafka: reads it, and appends claims to it (W-105). For workers and senders alike.

A claim is a plain record, outside transactions: it counts from the moment it is written, whatever becomes of the component for which it was made.
The reader is `read_committed`, since placements are ended in workers' transactions. So a claim is read back when the transactions before it in
the log are over: at most `transaction_timeout_ms` later, if a worker died in one.

Belongs here: producing and polling. Does not belong here: the map (`uow.topics.path_map`), and the decision to claim
(`uow.processor.engine.placement`, `uow.client.path_claims`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

import confluent_kafka as ck

from uow.processor.engine.ports import Doubt, Meanwhile
from uow.processor.kafka.error_table import Meaning, meaning_of
from uow.topics.catalogue import PATH_TOMBSTONES_MS, DestinationTopics
from uow.topics.path_map import (
    PARTITION,
    PathMap,
    claim_key,
    claim_value,
)

log = logging.getLogger("uow.paths")

CLAIM_S = 15.0
"""Longest wait for claims to be read back: a worker that died in a transaction holds readers back for ten seconds by default."""
SLEEP_S = PATH_TOMBSTONES_MS / 2000
"""A reader that has read nothing for so long may have missed the end of a placement, since compaction has removed its tombstone: the map is read anew."""
STEP_S = 0.1
CHUNK = 10_000
CHUNKS = 20
"""Most chunks in one go: somebody who appends faster than we read must not keep us here."""
COUNT_S = 5.0
ASK_AGAIN_S = 1.0


class KafkaPathLog:
    """Port `PathLog`.

    Args:
        topics: Of the destination.
        paths: The map that is read into.
        make_consumer: Makes a `read_committed` consumer that is assigned by hand, and begins where the log does when its offset is gone.
        make_producer: Makes a plain producer.
        end_offset: The log's end, as a `read_uncommitted` reader sees it; insists on an answer.
        monotonic: Seconds, from anywhere.
    """

    def __init__(
        self,
        topics: DestinationTopics,
        paths: PathMap,
        make_consumer: Callable[[], Any],
        make_producer: Callable[[], Any],
        end_offset: Callable[[Meanwhile], int] = lambda meanwhile: 0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._topic, self._components, self._paths = topics.path_map, topics.components, paths
        self._make_consumer, self._make_producer = make_consumer, make_producer
        self._end_offset, self._monotonic = end_offset, monotonic
        self._consumer: Any = None
        self._producer: Any = None
        self._read_at = self._asked = 0.0
        self._ignored = paths.ignored
        self._was_full = False
        self._next = -1

    def catch_up(self) -> None:
        """Reads the records that are there now."""
        now = self._monotonic()
        if self._next < 0 or now - self._read_at > SLEEP_S:
            self._begin()
        self._read_at = now
        for _ in range(CHUNKS):
            if not self._poll(0):
                break

    def read_all(self, meanwhile: Meanwhile) -> None:
        """Reads to the end offset of now."""
        self.catch_up()
        end = self._end_offset(meanwhile)
        while self._next < end:
            self._poll(STEP_S)
            meanwhile()

    def claim(self, wanted: Mapping[bytes, int]) -> None:
        """Appends the claims, and reads up to them."""
        self.catch_up()
        if self._producer is None:
            self._producer = self._make_producer()
        waiting: set[bytes | None] = set()
        for group_id, partition in wanted.items():
            key = claim_key(group_id, uuid4().bytes)
            self._produce(key, claim_value(partition))
            waiting.add(key)
        until = self._monotonic() + CLAIM_S
        self._producer.flush(0)  # sends; that they are read back says that they are written
        while waiting:
            self._producer.poll(0)
            waiting.difference_update(self._poll(STEP_S))
            if waiting and self._monotonic() > until:
                raise Doubt(f"{len(waiting)} claims in {self._topic} were not read back in {CLAIM_S:g} s")

    def _produce(self, key: bytes, value: bytes) -> None:
        while True:
            try:
                self._producer.produce(self._topic, value, key, PARTITION)
                return
            except BufferError:
                self._producer.poll(STEP_S)
            except ck.KafkaException as failure:
                raise Doubt(f"{self._topic}: {failure.args[0].str()}") from failure

    def _begin(self) -> None:
        """From the start of the log."""
        if self._consumer is None:
            self._consumer = self._make_consumer()
        self._count()
        self._paths.clear()
        self._consumer.assign([ck.TopicPartition(self._topic, PARTITION, ck.OFFSET_BEGINNING)])
        self._next = 0

    def _poll(self, timeout: float) -> list[bytes | None]:
        """Reads some records into the map; returns their keys."""
        keys = []
        for message in self._consumer.consume(CHUNK, timeout):
            error = message.error()
            if error is None:
                keys.append(message.key())
                self._paths.read(message.key(), message.value(), message.timestamp()[1])
                self._next = message.offset() + 1
            elif meaning_of(error) is Meaning.END:
                self._next = message.offset()
            else:
                log.warning("path map: %s: %s", error.name(), error.str())
        is_new = self._paths.ignored != self._ignored
        if self._paths.asks_for_count and (is_new or self._monotonic() - self._asked > ASK_AGAIN_S):
            self._count()
        self._warn_of_ignored()
        return keys

    def _count(self) -> None:
        """Asks how many partitions there are: only then a claim for one that we do not know of is ignored.

        Raises:
            Doubt: No broker answered, and a claim may or may not count.
        """
        self._asked = self._monotonic()
        try:
            found = self._consumer.list_topics(self._components, COUNT_S).topics.get(self._components)
        except ck.KafkaException as failure:
            raise Doubt(f"{self._components}: {failure.args[0].str()}") from failure
        if found is not None and found.partitions:
            self._paths.grow(len(found.partitions))

    def _warn_of_ignored(self) -> None:
        """Logs it once; their number is a metric."""
        if self._paths.ignored and not self._ignored:
            log.warning(
                "%s: a claim cannot be read, or is for a partition that does not exist, and is ignored; further ones are counted only. "
                "Check who may write to the topic",
                self._topic,
            )
        self._ignored = self._paths.ignored
        if self._paths.is_full and not self._was_full:
            log.warning(
                "%s: the placements of %d ids take more than their part of memory_limit_bytes; the oldest that nobody uses end early",
                self._topic,
                self._paths.ids,
            )
        self._was_full = self._paths.is_full

    def close(self) -> None:
        """Closes the handles."""
        if self._consumer is not None:
            self._consumer.close()
        self._consumer = self._producer = None
