"""Kafka as Spark sees it: connection properties of Java's clients, and the options that every read of ours has.

Belongs here: from our settings (librdkafka's names) to Spark's Kafka source. Does not belong here: what the records mean.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from schemas.errors import StateCorruptedError

TIMEOUT_S: Final = 30.0
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
    }
)
"""A leader moves, a disk has failed: asked again."""

_SAME: Final = ("security.protocol", "client.dns.lookup", "ssl.endpoint.identification.algorithm")
_LOGIN: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_PEM_FILES: Final = {
    "ssl.ca.location": ("ssl.truststore.type", "ssl.truststore.certificates"),
    "ssl.certificate.location": ("ssl.keystore.type", "ssl.keystore.certificate.chain"),
    "ssl.key.location": ("ssl.keystore.type", "ssl.keystore.key"),
}
_PEM_TEXTS: Final = {
    "ssl.ca.pem": ("ssl.truststore.type", "ssl.truststore.certificates"),
    "ssl.certificate.pem": ("ssl.keystore.type", "ssl.keystore.certificate.chain"),
    "ssl.key.pem": ("ssl.keystore.type", "ssl.keystore.key"),
}


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where to read.

    Attributes:
        bootstrap_servers: `host:port`, comma-separated.
        kafka: librdkafka properties of `[kafka]`.
        registry_url: Schema registry; empty for none.
    """

    bootstrap_servers: str
    kafka: Mapping[str, str] = field(default_factory=dict)
    registry_url: str = ""


def java_properties(kafka: Mapping[str, str]) -> dict[str, str]:
    """Security properties of librdkafka in the spelling of Java's clients; tuning properties mean nothing to Spark and are left out.

    Args:
        kafka: librdkafka properties.

    Returns:
        Properties without Spark's prefix `kafka.`.
    """
    found = {name: kafka[name] for name in _SAME if name in kafka}
    mechanism = kafka.get("sasl.mechanism", kafka.get("sasl.mechanisms", ""))
    if mechanism:
        found["sasl.mechanism"] = mechanism
    if mechanism in _LOGIN and "sasl.username" in kafka:
        user, password = _quoted(kafka["sasl.username"]), _quoted(kafka.get("sasl.password", ""))
        found["sasl.jaas.config"] = f"{_LOGIN[mechanism]} required username={user} password={password};"
    for name, (kind, target) in _PEM_FILES.items():
        if name in kafka:
            found |= {kind: "PEM", target: Path(kafka[name]).read_text()}
    for name, (kind, target) in _PEM_TEXTS.items():
        if name in kafka:
            found |= {kind: "PEM", target: kafka[name]}
    if "ssl.key.password" in kafka:
        found["ssl.key.password"] = kafka["ssl.key.password"]
    return found


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def source_options(cluster: Cluster, topics: Iterable[str]) -> dict[str, str]:
    """Options of every read: committed records only (W-49), from the beginning, and never past a hole in the log."""
    return {f"kafka.{name}": value for name, value in java_properties(cluster.kafka).items()} | {
        "kafka.bootstrap.servers": cluster.bootstrap_servers,
        "kafka.isolation.level": "read_committed",
        "subscribe": ",".join(topics),
        "startingOffsets": "earliest",
        "failOnDataLoss": "true",
        "includeHeaders": "true",
    }


def stream(spark: SparkSession, cluster: Cluster, topics: Iterable[str], max_records: int) -> DataFrame:
    """The topics as a stream of at most `max_records` a batch."""
    options = source_options(cluster, topics) | {"maxOffsetsPerTrigger": str(max_records)}
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

    Not `whole`: of some partitions, or none, and without what retention has taken.
    """
    if not start:
        return spark.createDataFrame([], RECORD)
    options = source_options(cluster, [topic])
    options |= {"startingOffsets": _bounds(topic, start), "endingOffsets": _bounds(topic, end)}
    if not whole:
        del options["subscribe"]
        options |= {"failOnDataLoss": "false", "assign": json.dumps({topic: sorted(start)})}
    return _named(spark.read.format("kafka").options(**options).load())


def everything(spark: SparkSession, cluster: Cluster, topics: Iterable[str]) -> DataFrame:
    """All records of some topics, as of now."""
    return _named(spark.read.format("kafka").options(**source_options(cluster, topics)).load())


LATEST: Final = -1
"""As an end: whatever is there when it is read."""


def _bounds(topic: str, offsets: Mapping[int, int]) -> str:
    return json.dumps({topic: {str(partition): offset for partition, offset in offsets.items()}})


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a topic: offsets by partition, from `start` to before `end`, which is never below it."""

    start: Mapping[int, int]
    end: Mapping[int, int]


def committed(cluster: Cluster, group: str, topic: str) -> Span:
    """What a consumer group has behind it.

    Raises:
        StateCorruptedError: There is no such topic.
    """
    with _consumer(cluster, group) as consumer:
        partitions = _partitions(consumer, topic)
        positions = {each.partition: each.offset for each in consumer.committed(partitions, TIMEOUT_S)}
        start = _offsets(consumer, partitions, OFFSET_BEGINNING)
    return Span(start, {partition: max(first, positions[partition]) for partition, first in start.items()})


def within(cluster: Cluster, topic: str, wanted: Mapping[int, tuple[int, int]]) -> Span:
    """The part of some stretches of a topic that is there, by partition: anybody may name a partition or an offset that is not.

    Args:
        cluster: Where to ask.
        topic: Name of the topic.
        wanted: First offset, and the one behind the last, by partition.

    Raises:
        StateCorruptedError: There is no such topic.
    """
    with _consumer(cluster, "uow-sink") as consumer:
        partitions = [each for each in _partitions(consumer, topic) if each.partition in wanted]
        low, high = (_offsets(consumer, partitions, side) for side in (OFFSET_BEGINNING, OFFSET_END))
    kept = {p: (max(low[p], first), min(high[p], end)) for p, (first, end) in wanted.items() if p in low}
    kept = {partition: (first, end) for partition, (first, end) in kept.items() if first < end}
    return Span({p: first for p, (first, _) in kept.items()}, {p: end for p, (_, end) in kept.items()})


def begins(cluster: Cluster, topic: str) -> dict[int, int]:
    """Where the log of each partition begins.

    Raises:
        StateCorruptedError: There is no such topic.
    """
    with _consumer(cluster, "uow-sink") as consumer:
        return _offsets(consumer, _partitions(consumer, topic), OFFSET_BEGINNING)


@contextmanager
def _consumer(cluster: Cluster, group: str) -> Iterator[Consumer]:
    own = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "group.id": group,
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
    }
    consumer = Consumer({**cluster.kafka, **own})
    try:
        yield consumer
    finally:
        consumer.close()


def _partitions(consumer: Consumer, topic: str) -> list[TopicPartition]:
    found = consumer.list_topics(topic, TIMEOUT_S).topics[topic]
    if found.error is not None:
        raise StateCorruptedError(
            [], f"{topic}: {found.error}", "`uow topics create` makes the topics of a destination"
        )
    return [TopicPartition(topic, partition) for partition in sorted(found.partitions)]


def _offsets(consumer: Consumer, partitions: Sequence[TopicPartition], side: int) -> dict[int, int]:
    """Where logs begin (`OFFSET_BEGINNING`) or end (`OFFSET_END`), by partition.

    One side at a time: the library's own question for both (`get_watermark_offsets`, 2.16) says that a log begins at its end where the broker
    refuses the first for a moment, and records would be taken for lost.

    Raises:
        KafkaException: Refused, or not answered in time.
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
"""Columns of what this module reads."""


def _named(records: DataFrame) -> DataFrame:
    """Headers as `array<struct<name, value>>`, never null."""
    pairs = sql.expr("coalesce(transform(headers, h -> struct(h.key AS name, h.value AS value)), array())")
    return records.select("topic", "partition", "offset", "timestamp", "key", "value", pairs.alias("headers"))
