"""Kafka as Spark sees it: connection properties of Java's clients, and the options that every read of ours has.

Belongs here: from our settings (librdkafka's names) to Spark's Kafka source. Does not belong here: what the records mean.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from schemas.errors import StateCorruptedError

TIMEOUT_S: Final = 30.0

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
        start = {each.partition: _watermarks(consumer, each)[0] for each in partitions}
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
        there = {
            each.partition: _watermarks(consumer, each)
            for each in _partitions(consumer, topic)
            if each.partition in wanted
        }
    kept = {p: (max(low, wanted[p][0]), min(high, wanted[p][1])) for p, (low, high) in there.items()}
    kept = {partition: (first, end) for partition, (first, end) in kept.items() if first < end}
    return Span({p: first for p, (first, _) in kept.items()}, {p: end for p, (_, end) in kept.items()})


def begins(cluster: Cluster, topic: str) -> dict[int, int]:
    """Where the log of each partition begins.

    Raises:
        StateCorruptedError: There is no such topic.
    """
    with _consumer(cluster, "uow-sink") as consumer:
        return {each.partition: _watermarks(consumer, each)[0] for each in _partitions(consumer, topic)}


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


def _watermarks(consumer: Consumer, partition: TopicPartition) -> tuple[int, int]:
    low, high = consumer.get_watermark_offsets(partition, TIMEOUT_S)
    return low, high


RECORD: Final = (
    "topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, key BINARY, value BINARY, "
    "headers ARRAY<STRUCT<name: STRING, value: BINARY>>"
)
"""Columns of what this module reads."""


def _named(records: DataFrame) -> DataFrame:
    """Headers as `array<struct<name, value>>`, never null."""
    pairs = sql.expr("coalesce(transform(headers, h -> struct(h.key AS name, h.value AS value)), array())")
    return records.select("topic", "partition", "offset", "timestamp", "key", "value", pairs.alias("headers"))
