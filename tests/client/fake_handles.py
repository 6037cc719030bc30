"""Fakes at the client's port (`uow.client.kafka_port`): a producer and a consumer in memory that do what a test's script says."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition

import uow
from tests.fake_record import FakeRecord
from uow.processor.engine.ports import Tp


def failure(
    code: int, *, fatal: bool = False, retriable: bool = False, abort: bool = False, text: str = "by script"
) -> KafkaException:
    return KafkaException(KafkaError(code, text, fatal, retriable, abort))


def consumed(
    value: bytes | None = b"{}",
    *,
    key: bytes | None = b"k",
    headers: Any = None,
    topic: str = "t",
    partition: int = 0,
    offset: int = 0,
    timestamp: int = 1000,
    error: KafkaError | None = None,
) -> FakeRecord:
    """A record of some topic."""
    return FakeRecord(offset, headers, value, key, timestamp, Tp(topic, partition), error_=error)


def topic_metadata(partitions: int) -> Any:
    return SimpleNamespace(error=None, partitions=dict.fromkeys(range(partitions)))


class FakeProducer:
    """Keeps what is committed apart from what is open; `script` holds exceptions to raise by call name, one per call."""

    def __init__(self, properties: dict[str, Any], logger: logging.Logger, broker: FakeBroker) -> None:
        self.properties = properties
        self.logger = logger
        self.broker = broker
        self.calls: list[str] = []
        self.open: list[FakeSent] = []
        self.positions: list[TopicPartition] = []
        self.undelivered: list[tuple[Callable[[KafkaError | None, Any], None], FakeSent]] = []

    def _called(self, name: str) -> None:
        self.calls.append(name)
        self.broker.calls.append(name)
        if name in self.broker.before:
            self.broker.before[name]()
        queue = self.broker.script.get(name)
        if queue and (error := queue.pop(0)) is not None:
            raise error

    def produce(
        self, topic: str, value: bytes | None, key: bytes | None, partition: int, *, on_delivery: Any, headers: Any
    ) -> None:
        self._called("produce")
        sent = FakeSent(topic, key, value, headers, partition)
        self.undelivered.append((on_delivery, sent))
        if "transactional.id" in self.properties:
            self.open.append(sent)
        else:
            self.broker.visible.append(sent)

    def poll(self, timeout: float) -> int:
        for line in self.broker.log_lines:
            self.logger.info(line)
        self.broker.log_lines = []
        if not self.broker.answers:
            return 0
        waiting, self.undelivered = self.undelivered, []
        for on_delivery, sent in waiting:
            errors = self.broker.delivery_errors
            on_delivery(errors.pop(0) if errors else None, sent)
        return len(waiting)

    def flush(self, timeout: float) -> int:
        self._called("flush")
        self.poll(0)
        return len(self.undelivered)

    def purge(self) -> None:
        self._called("purge")

    def list_topics(self, topic: str, timeout: float) -> Any:
        self._called("list_topics")
        count = self.broker.topics.get(topic, 0 if self.broker.topics or topic.endswith(".registry") else 4)
        return SimpleNamespace(topics={topic: topic_metadata(count)} if count else {})

    def init_transactions(self, timeout: float) -> None:
        self._called("init_transactions")

    def begin_transaction(self) -> None:
        self._called("begin_transaction")
        self.open, self.positions = [], []

    def send_offsets_to_transaction(self, positions: list[TopicPartition], group_metadata: Any, timeout: float) -> None:
        self._called("send_offsets")
        self.positions = positions
        self.broker.tokens.append(group_metadata)

    def commit_transaction(self, timeout: float) -> None:
        self._called("commit_transaction")
        self.broker.visible += self.open
        for row in self.positions:
            self.broker.committed[row.topic, row.partition] = (row.offset, row.metadata or "")
        if self.broker.lost_answers:
            self.broker.lost_answers -= 1
            raise failure(KafkaError._TIMED_OUT)

    def abort_transaction(self, timeout: float) -> None:
        self._called("abort_transaction")
        self.open = []


class FakeSent:
    """A produced record, and the message a delivery report carries."""

    def __init__(self, topic: str, key: bytes | None, value: bytes | None, headers: Any, partition: int = -1) -> None:
        self.name, self.key, self.value, self.headers, self.to = topic, key, value, list(headers), partition

    def topic(self) -> str:
        return self.name

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 7

    @property
    def marks(self) -> dict[str, bytes]:
        return dict(self.headers)


class FakeConsumer:
    """Hands out the broker's records; a test moves partitions with `assigned`, `revoked` and `lost`."""

    def __init__(self, properties: dict[str, Any], logger: logging.Logger, broker: FakeBroker) -> None:
        self.properties = properties
        self.broker = broker
        self.positions: dict[tuple[str, int], int] = {}
        self.paused: set[tuple[str, int]] = set()
        self.told: dict[tuple[str, int], int] = {}
        self.closed = False
        self.generation = 1
        self.subscribed: list[str] = []
        self._callbacks: dict[str, Any] = {}
        self._events: list[Callable[[], None]] = []
        self._is_in_callback = False

    def subscribe(self, topics: list[str], *, on_assign: Any, on_revoke: Any, on_lost: Any) -> None:
        self.subscribed = topics
        self._callbacks = {"assign": on_assign, "revoke": on_revoke, "lost": on_lost}
        self.moved("assign", *range(self.broker.topics.get(topics[0], 1)), topic=topics[0])

    def moved(self, what: str, *partitions: int, topic: str = "t") -> None:
        """A rebalance event, served inside the next `poll`."""

        def event() -> None:
            self.generation += 1
            self._is_in_callback = True
            self._callbacks[what](self, [TopicPartition(topic, partition) for partition in partitions])
            self._is_in_callback = False

        self._events.append(event)

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.broker.assigned.append([row.offset for row in partitions])
        self.positions, self.told = {}, {}
        self.incremental_assign(partitions)

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        for row in partitions:
            self.positions[row.topic, row.partition] = max(row.offset, 0)

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        if partitions and not self.positions:
            raise KafkaException(KafkaError(KafkaError._INVALID_ARG))
        for row in partitions:
            self.positions.pop((row.topic, row.partition), None)

    def poll(self, timeout: float) -> FakeRecord | None:
        self.broker.now += timeout
        while self._events:
            self._events.pop(0)()
        if self.broker.read_errors:
            return consumed(error=self.broker.read_errors.pop(0))
        for place, start in self.broker.starts.items():
            if self.positions.get(place, start) < start:
                return consumed(error=KafkaError(KafkaError._AUTO_OFFSET_RESET))
        for place, position in self.positions.items():
            if place not in self.paused and position in self.broker.unfetchable.get(place, ()):
                return consumed(error=KafkaError(KafkaError._BAD_COMPRESSION), topic=place[0], partition=place[1])
        for record in self.broker.records:
            place = (record.topic(), record.partition())
            if place in self.paused:
                continue
            if place in self.positions and record.offset() >= self.positions[place]:
                self.positions[place] = record.offset() + 1
                return record
        return self._end() if self.properties.get("enable.partition.eof") else None

    def _end(self) -> FakeRecord | None:
        """Each end is told once, until something is read there again."""
        for place, position in self.positions.items():
            if place not in self.paused and self.told.get(place) != position:
                self.told[place] = position
                error = KafkaError(KafkaError._PARTITION_EOF)
                return consumed(error=error, topic=place[0], partition=place[1], offset=position)
        return None

    def seek(self, partition: TopicPartition) -> None:
        self.told.pop((partition.topic, partition.partition), None)
        self.positions[partition.topic, partition.partition] = partition.offset

    def pause(self, partitions: list[TopicPartition]) -> None:
        self.paused |= {(row.topic, row.partition) for row in partitions}

    def resume(self, partitions: list[TopicPartition]) -> None:
        self.paused -= {(row.topic, row.partition) for row in partitions}

    def committed(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        nothing = (-1001, "")
        queue = self.broker.script.get("committed")
        if queue and (error := queue.pop(0)) is not None:
            raise error
        return [
            TopicPartition(row.topic, row.partition, *self.broker.committed.get((row.topic, row.partition), nothing))
            for row in partitions
        ]

    def offsets_for_times(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        assert all(row.offset == OFFSET_BEGINNING for row in partitions)
        if self._start_is_refused():
            raise KafkaException(KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION))
        return [TopicPartition(row.topic, row.partition, 0) for row in partitions]

    def get_watermark_offsets(self, partition: TopicPartition, timeout: float) -> tuple[int, int]:
        end = self.broker.ends.get((partition.topic, partition.partition), len(self.broker.records))
        return (end if self._start_is_refused() else 0, end)  # as the library does (2.16)

    def _start_is_refused(self) -> bool:
        self.broker.refused_starts -= 1
        return self.broker.refused_starts >= 0

    def list_topics(self, topic: str | None, timeout: float) -> Any:
        assert not self._is_in_callback, "the library would abort the process at its next callback (2.16)"
        if topic is None:
            return SimpleNamespace(topics={name: topic_metadata(count) for name, count in self.broker.topics.items()})
        count = self.broker.topics.get(topic, 0 if topic.endswith(("-path-map", ".registry")) else 1)
        return SimpleNamespace(topics={topic: topic_metadata(count)} if count else {})

    def consumer_group_metadata(self) -> Any:
        return f"generation {self.generation}"

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> Any:
        queue = self.broker.script.get("commit")
        if queue and (error := queue.pop(0)) is not None:
            raise error
        self.broker.commits.append([(row.partition, row.offset) for row in offsets])
        for row in offsets:
            self.broker.committed[row.topic, row.partition] = (row.offset, row.metadata or "")
        return offsets

    def close(self) -> None:
        self.closed = True


class FakeHeaderLookup:
    """Tells which records have headers that are to look at like none."""

    def __init__(self, offsets: set[int]) -> None:
        self.offsets = offsets

    def hidden(self, topic: str, partition: int, offsets: Sequence[int]) -> set[int]:
        return self.offsets.intersection(offsets)

    def close(self) -> None: ...


class FakeWatch:
    """The handle by which a connection hears whether a broker answers."""

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker

    def poll(self, timeout: float) -> int:
        return 0

    def list_topics(self, topic: str, timeout: float) -> Any:
        if self.broker.asked:
            raise self.broker.asked.pop(0)
        return SimpleNamespace(topics={})


class FakeBroker:
    """What handles share, and the port that makes them.

    Attributes:
        script: Exceptions by call name, one per call; None lets a call through.
        before: Called before a call of that name.
        log_lines: What the library logs at the next poll.
        lost_answers: How many commits of transactions take place and are not answered.
        answers: Whether delivery reports come.
        refused_starts: How many times a leader that moves does not tell where a partition begins.
        starts: Where partitions begin whose oldest records are gone.
        ends: End offsets of partitions, where that is not the number of all records.
        unfetchable: Offsets that the library fails to read, by partition.
        assigned: Offsets of each assignment by hand.
        visible: Records that a `read_committed` reader sees.
        hidden: Offsets of records whose headers the library does not show.
        asked: What the watch over a connection is answered first.
        looks: How many times somebody opened a look at such headers.
        watches: How many connections were begun.
    """

    def __init__(self) -> None:
        self.script: dict[str, list[BaseException | None]] = {}
        self.before: dict[str, Callable[[], object]] = {}
        self.log_lines: list[str] = []
        self.lost_answers = 0
        self.delivery_errors: list[KafkaError | None] = []
        self.read_errors: list[KafkaError] = []
        self.answers = True
        self.topics: dict[str, int] = {}
        self.visible: list[FakeSent] = []
        self.records: list[FakeRecord] = []
        self.refused_starts = 0
        self.starts: dict[tuple[str, int], int] = {}
        self.ends: dict[tuple[str, int], int] = {}
        self.assigned: list[list[int]] = []
        self.unfetchable: dict[tuple[str, int], range] = {}
        self.committed: dict[tuple[str, int], tuple[int, str]] = {}
        self.commits: list[list[tuple[int, int]]] = []
        self.tokens: list[Any] = []
        self.calls: list[str] = []
        self.producers: list[FakeProducer] = []
        self.consumers: list[FakeConsumer] = []
        self.now = 0.0
        self.hidden: set[int] = set()
        self.looks = 0
        self.watches = 0
        self.asked: list[KafkaException] = []

    def producer(self, properties: dict[str, Any], logger: logging.Logger) -> Any:
        if "error_cb" in properties:
            self.watches += 1
            return FakeWatch(self)
        self.producers.append(FakeProducer(properties, logger, self))
        return self.producers[-1]

    def consumer(self, properties: dict[str, Any], logger: logging.Logger) -> FakeConsumer:
        self.consumers.append(FakeConsumer(properties, logger, self))
        return self.consumers[-1]

    def readers_of(self, topic: str) -> list[FakeConsumer]:
        """Consumers that have subscribed to it."""
        return [each for each in self.consumers if topic in each.subscribed]

    def header_lookup_handle(self, properties: dict[str, Any]) -> FakeHeaderLookup:
        self.looks += 1
        return FakeHeaderLookup(self.hidden)

    @staticmethod
    def kill(connection: uow.Connection) -> bool:
        """As if its process died: nothing is settled or committed."""
        connection._session._watch.close(0)
        return connection._session.life.close()

    def connect(self, **options: Any) -> uow.Connection:
        """A connection all of whose objects are refreshed, unless a test says otherwise."""
        return uow.connect("fake:9092", kafka_port=self, **({"reconnect_policy": "all"} | options))
