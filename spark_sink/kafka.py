"""Reading Kafka with Spark: the options of every read, and offsets.

Belongs here: from the settings (with librdkafka's names) to Spark's Kafka source. Does not belong here: security (`uow.spark_sink.kafka_security`),
the meaning of records.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from uow.schemas.error_classes import StateCorruptedError
from uow.spark_sink.kafka_security import allow_token_endpoint, java_properties, with_contents
from uow.topics.access import explained
from uow.topics.admin import admin_client, require_group

TIMEOUT_S: Final = 30.0
SAMPLE: Final = 200
SAMPLE_S: Final = 2.0
SAMPLE_MORE_S: Final = 0.1
"""Number of records, time for the first and time for the others, from which the size of records is estimated."""
ASK_AGAIN_S: Final = 0.1

_PASSING: Final = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)
"""Errors after which the request for an offset is repeated: a leader has moved, a disk has failed, a broker does not know yet that it leads a topic which
the cluster has just made."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster to read from.

    Attributes:
        bootstrap_servers: `host:port`, comma-separated.
        kafka: librdkafka properties of `[kafka]`; with `with_contents` also for other machines.
        registry_url: Schema registry; empty for none.
    """

    bootstrap_servers: str
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    registry_url: str = field(default="", repr=False)


def source_options(cluster: Cluster, topics: Iterable[str]) -> dict[str, str]:
    """Options of every read: committed records only (W-49), from the beginning, and failing if records are lost."""
    security = java_properties(with_contents(cluster.kafka))
    return {f"kafka.{name}": value for name, value in security.items()} | {
        "kafka.bootstrap.servers": cluster.bootstrap_servers,
        "kafka.isolation.level": "read_committed",
        "subscribe": ",".join(topics),
        "startingOffsets": "earliest",
        "failOnDataLoss": "true",
        "includeHeaders": "true",
    }


def stream(spark: SparkSession, cluster: Cluster, topics: Iterable[str], max_records: int) -> DataFrame:
    """The topics as a stream with at most `max_records` in a batch."""
    options = source_options(cluster, topics) | {"maxOffsetsPerTrigger": str(max_records)}
    allow_token_endpoint(spark, cluster.kafka)
    return _named(spark.readStream.format("kafka").options(**options).load())


def between(
    spark: SparkSession,
    cluster: Cluster,
    topic: str,
    start: Mapping[int, int],
    end: Mapping[int, int],
    *,
    whole: bool = True,
) -> DataFrame:
    """The records of a topic from `start` to before `end`, by partition; one Spark partition for each of Kafka's, in offset order.

    If not `whole`, `start` and `end` may name only some partitions, or none, and records deleted by retention are skipped.
    """
    if not start:
        return spark.createDataFrame([], RECORD)
    options = source_options(cluster, [topic])
    allow_token_endpoint(spark, cluster.kafka)
    options |= {"startingOffsets": _bounds(topic, start), "endingOffsets": _bounds(topic, end)}
    if not whole:
        del options["subscribe"]
        options |= {"failOnDataLoss": "false", "assign": json.dumps({topic: sorted(start)})}
    return _named(spark.read.format("kafka").options(**options).load())


def _bounds(topic: str, offsets: Mapping[int, int]) -> str:
    return json.dumps({topic: {str(partition): offset for partition, offset in offsets.items()}})


@dataclass(frozen=True, slots=True)
class OffsetSpan:
    """A range of a topic: offsets by partition, from `start` to before `end`, which is never smaller."""

    start: Mapping[int, int]
    end: Mapping[int, int]

    @property
    def offsets(self) -> int:
        """Number of offsets in the range, not below the number of records."""
        return sum(end - self.start[partition] for partition, end in self.end.items())


def committed(cluster: Cluster, group: str, topic: str) -> OffsetSpan:
    """The range from the log start to a consumer group's committed offsets.

    Raises:
        StateCorruptedError: There is no such topic.
        KafkaException: This user may not use the group, or no broker answers.
    """
    with _consumer(cluster, group) as consumer:
        partitions = _partitions(consumer, topic)
        try:
            rows = consumer.committed(partitions, TIMEOUT_S)
        except KafkaException:  # a consumer that may not use its group waits until its time is over
            require_group(admin_client(cluster.bootstrap_servers, cluster.kafka), group)
            raise
        positions = {each.partition: each.offset for each in rows}
        start = _offsets(consumer, partitions, OFFSET_BEGINNING)
    return OffsetSpan(start, {partition: max(first, positions[partition]) for partition, first in start.items()})


def within(cluster: Cluster, topic: str, wanted: Mapping[int, tuple[int, int]]) -> OffsetSpan:
    """The existing part of some ranges of a topic, by partition; a range may name partitions or offsets that do not exist.

    Args:
        cluster: The cluster.
        topic: Name of the topic.
        wanted: First offset, and the one after the last, by partition.

    Raises:
        StateCorruptedError: There is no such topic.
    """
    with _consumer(cluster, "uow-sink") as consumer:
        partitions = [each for each in _partitions(consumer, topic) if each.partition in wanted]
        low, high = (_offsets(consumer, partitions, side) for side in (OFFSET_BEGINNING, OFFSET_END))
    kept = {p: (max(low[p], first), min(high[p], end)) for p, (first, end) in wanted.items() if p in low}
    kept = {partition: (first, end) for partition, (first, end) in kept.items() if first < end}
    return OffsetSpan({p: first for p, (first, _) in kept.items()}, {p: end for p, (_, end) in kept.items()})


def everything(cluster: Cluster, topic: str) -> OffsetSpan:
    """The range of a topic from its log start to its end; partitions without records are left out.

    Raises:
        StateCorruptedError: There is no such topic.
    """
    return within(cluster, topic, {partition: (first, _LAST) for partition, first in begins(cluster, topic).items()})


_LAST: Final = 2**63 - 1


def begins(cluster: Cluster, topic: str) -> dict[int, int]:
    """The log start offset of each partition.

    Raises:
        StateCorruptedError: There is no such topic.
    """
    with _consumer(cluster, "uow-sink") as consumer:
        return _offsets(consumer, _partitions(consumer, topic), OFFSET_BEGINNING)


def ends(cluster: Cluster, topic: str) -> dict[int, int]:
    """The end offset of each partition, records of open transactions included.

    Raises:
        StateCorruptedError: There is no such topic.
    """
    with _consumer(cluster, "uow-sink", "read_uncommitted") as consumer:
        return _offsets(consumer, _partitions(consumer, topic), OFFSET_END)


def topic_ids(cluster: Cluster, topics: Iterable[str]) -> dict[str, str]:
    """The id that Kafka gave to each topic, when it was created; topics without one are left out: the broker is older than these ids.

    Raises:
        StateCorruptedError: There is no such topic.
    """
    admin = AdminClient({**cluster.kafka, "bootstrap.servers": cluster.bootstrap_servers})
    found = {}
    for topic, future in admin.describe_topics(TopicCollection([*topics]), request_timeout=TIMEOUT_S).items():
        try:
            found[topic] = str(future.result().topic_id)
        except KafkaException as failure:
            if failure.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
            raise _missing(topic, failure.args[0]) from failure
    return {topic: given for topic, given in found.items() if given.strip("A")}


@dataclass(frozen=True, slots=True)
class Backlog:
    """The part of some topics that a stream has not read yet.

    Attributes:
        records: Number of offsets, of which some may be markers.
        record_bytes: Mean size of the first records; 0 if none could be read.
    """

    records: int
    record_bytes: int


def backlog(cluster: Cluster, topics: Iterable[str], reached: Mapping[str, Mapping[str, int]]) -> Backlog:
    """The backlog of a stream.

    Args:
        cluster: The cluster.
        topics: Its topics.
        reached: The offset after the last one it has read, by topic and partition; without one, it begins at the log start.

    Raises:
        StateCorruptedError: There is no such topic.
    """
    with _consumer(cluster, "uow-sink") as consumer:
        count, places = 0, []
        for topic in topics:
            partitions = _partitions(consumer, topic)
            low, high = (_offsets(consumer, partitions, side) for side in (OFFSET_BEGINNING, OFFSET_END))
            for number in low:
                first = max(low[number], reached.get(topic, {}).get(str(number), 0))
                if first < high[number]:
                    count += high[number] - first
                    places.append(TopicPartition(topic, number, first))
        sizes = _sizes(consumer, places) if count > SAMPLE else []
    return Backlog(count, sum(sizes) // len(sizes) if sizes else 0)


def _sizes(consumer: Consumer, places: list[TopicPartition]) -> list[int]:
    """Sizes of the first records from some places on."""
    consumer.assign(places)
    first = consumer.consume(1, SAMPLE_S)
    found = [each for each in first + consumer.consume(SAMPLE, SAMPLE_MORE_S) if each.error() is None]
    return [
        len(each) + sum(len(name) + len(value or b"") for name, value in dict(each.headers() or ()).items())
        for each in found
    ]


@contextmanager
def _consumer(cluster: Cluster, group: str, isolation: str = "read_committed") -> Iterator[Consumer]:
    own = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "group.id": group,
        "enable.auto.commit": False,
        "isolation.level": isolation,
    }
    consumer = Consumer({**cluster.kafka, **own})
    try:
        yield consumer
    finally:
        consumer.close()


def _partitions(consumer: Consumer, topic: str) -> list[TopicPartition]:
    until = time.monotonic() + TIMEOUT_S
    while (found := consumer.list_topics(topic, TIMEOUT_S).topics[topic]).error is not None:
        if found.error.code() != KafkaError.LEADER_NOT_AVAILABLE or time.monotonic() > until:
            raise _missing(topic, found.error)
        time.sleep(ASK_AGAIN_S)
    return [TopicPartition(topic, partition) for partition in sorted(found.partitions)]


def _missing(topic: str, error: KafkaError) -> StateCorruptedError:
    if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return StateCorruptedError([], f"{topic}: {error.str()}", explained(error.name(), "grant the right"))
    return StateCorruptedError([], f"{topic}: {error}", "create the topics with `uow topics create`")


def _offsets(consumer: Consumer, partitions: Sequence[TopicPartition], side: int) -> dict[int, int]:
    """Log start offsets (`OFFSET_BEGINNING`) or end offsets (`OFFSET_END`), by partition.

    They are asked for separately: the library's call for both (`get_watermark_offsets`, 2.16) returns the end offset as the log start when the
    broker refuses that request for a moment, and records would seem to be lost.

    Raises:
        KafkaException: The request was refused, or not answered in time.
    """
    until = time.monotonic() + TIMEOUT_S
    while partitions:
        try:
            found = consumer.offsets_for_times(
                [TopicPartition(p.topic, p.partition, side) for p in partitions], TIMEOUT_S
            )
            for each in found:
                if each.error is not None:
                    raise KafkaException(each.error)
            return {each.partition: each.offset for each in found}
        except KafkaException as failure:
            if failure.args[0].code() not in _PASSING or time.monotonic() > until:
                raise
        time.sleep(ASK_AGAIN_S)
    return {}


RECORD: Final = (
    "topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, key BINARY, value BINARY, "
    "headers ARRAY<STRUCT<name: STRING, value: BINARY>>"
)
"""Columns of the records that this module reads."""


def _named(records: DataFrame) -> DataFrame:
    """Headers as `array<struct<name, value>>`, never null. A cast that only renames fields costs nothing."""
    pairs = sql.expr("coalesce(CAST(headers AS ARRAY<STRUCT<name: STRING, value: BINARY>>), array())")
    return records.select("topic", "partition", "offset", "timestamp", "key", "value", pairs.alias("headers"))
