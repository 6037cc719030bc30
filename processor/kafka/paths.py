"""The path map's log on librdkafka: reads it, and claims ways in it (W-105). For workers and senders alike.

A claim is a plain record, outside transactions: it counts from the moment it is written, whatever becomes of the component for which it was made.
The reader is `read_committed`, since ways are ended in workers' transactions. So a claim is read back when the transactions before it in
the log are over: at most `transaction_timeout_ms` later, if a worker died in one.

Belongs here: producing and polling. Does not belong here: what the records come to (`topics.paths`), who claims when (`processor.engine.ways`,
`uow.paths`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

import confluent_kafka as ck

from processor.engine.ports import Doubt, Meanwhile
from topics.catalogue import PATH_TOMBSTONES_MS
from topics.paths import PARTITION, PathMap, claim_key, claim_value

log = logging.getLogger("uow.paths")

CLAIM_S = 15.0
"""Longest wait for claims to be read back: a worker that died in a transaction holds readers back for ten seconds by default."""
SLEEP_S = PATH_TOMBSTONES_MS / 2000
"""Who has not looked for so long may have missed the end of a way: compaction takes tombstones then. The map is read anew."""
STEP_S = 0.1
CHUNK = 10_000


class KafkaPathLog:
    """Port `PathLog`.

    Args:
        topic: `A-D-path-map`.
        paths: The map that is read into.
        make_consumer: Makes a `read_committed` consumer that is assigned by hand, and begins where the log does when its offset is gone.
        make_producer: Makes a plain producer.
        end_offset: The log's end, as a `read_uncommitted` reader sees it; insists on an answer.
        monotonic: Seconds, from anywhere.
    """

    def __init__(
        self,
        topic: str,
        paths: PathMap,
        make_consumer: Callable[[], Any],
        make_producer: Callable[[], Any],
        end_offset: Callable[[Meanwhile], int] = lambda meanwhile: 0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._topic, self._paths = topic, paths
        self._make_consumer, self._make_producer = make_consumer, make_producer
        self._end_offset, self._monotonic = end_offset, monotonic
        self._consumer: Any = None
        self._producer: Any = None
        self._looked = 0.0
        self._next = 0

    def catch_up(self) -> None:
        """Takes what is there."""
        now = self._monotonic()
        if self._consumer is None or now - self._looked > SLEEP_S:
            self._begin()
        self._looked = now
        while self._poll(0):
            pass

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
        self._paths.clear()
        self._next = 0
        self._consumer.assign([ck.TopicPartition(self._topic, PARTITION, ck.OFFSET_BEGINNING)])

    def _poll(self, timeout: float) -> list[bytes | None]:
        """Takes some records into the map; their keys."""
        keys = []
        for message in self._consumer.consume(CHUNK, timeout):
            error = message.error()
            if error is None:
                keys.append(message.key())
                self._paths.read(message.key(), message.value(), message.timestamp()[1])
                self._next = message.offset() + 1
            elif error.code() == ck.KafkaError._PARTITION_EOF:
                self._next = message.offset()
            else:
                log.warning("path map: %s: %s", error.name(), error.str())
        return keys

    def close(self) -> None:
        """Closes the handles."""
        if self._consumer is not None:
            self._consumer.close()
        self._consumer = self._producer = None
