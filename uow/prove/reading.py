"""Reads topics and offsets as any consumer could, `read_committed`, and a worker's counters from its metrics page.

Belongs here: the input of the checker. Does not belong here: the checks (`checker`). Uses only names of the product, not its code.
"""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

import confluent_kafka as ck

from uow.prove.definitions import SETTINGS_KEY
from uow.prove.seen_records import (
    Findings,
    Log,
    Logs,
    Rec,
)

Client = Mapping[str, str]
"""librdkafka properties of every client, including `bootstrap.servers`."""

GROUP = "uow-prove-checker"
READ_TIMEOUT_S = 120.0
METRIC = re.compile(r"^(uow_components_total|uow_open_components)\{(.*)\} (\S+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="([^"]*)"')


def topics_of(application: str, destination: str) -> dict[str, str]:
    """Names of the topics, by attribute of `Logs`."""
    names = {name: f"{destination}.{name}" for name in ("components", "units", "rejected", "errors", "outcomes")}
    names["changelog"] = f"{application}-{destination}-groups-changelog"
    names["ledger"] = f"{application}-{destination}-closed-changelog"
    return names


def read_logs(client: Client, application: str, destination: str) -> Logs:
    """The present content of all topics."""
    names = topics_of(application, destination)
    logs = Logs(committed=committed(client, application, names["components"]))
    for attribute, topic in names.items():
        setattr(logs, attribute, read_topic(client, topic))
    return logs


def _consumer(client: Client, group: str, isolation: str = "read_committed") -> ck.Consumer:
    return ck.Consumer(
        {
            **client,
            "group.id": group,
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,
            "log_level": 2,
        }
    )


def read_topic(client: Client, topic: str) -> Log:
    """All records of a topic, `read_committed`, up to the present `read_uncommitted` end offsets.

    Raises:
        TimeoutError: An end was not reached, because an open transaction holds readers back.
    """
    ends = end_offsets(client, topic)
    consumer = _consumer(client, GROUP)
    log: Log = {number: [] for number in ends}
    left = {number for number, end in ends.items() if end > 0}
    consumer.assign([ck.TopicPartition(topic, number, 0) for number in left])
    until = time.monotonic() + READ_TIMEOUT_S
    try:
        while left:
            for message in consumer.consume(10_000, 0.1):
                error, number = message.error(), message.partition()
                assert number is not None
                if error is None:
                    log[number].append(_record(message))
                elif error.code() != ck.KafkaError._PARTITION_EOF:
                    raise ck.KafkaException(error)
                elif (message.offset() or 0) >= ends[number]:
                    left.discard(number)
            if time.monotonic() > until:
                raise TimeoutError(f"{topic}: partitions {sorted(left)} cannot be read to their end: {ends}")
    finally:
        consumer.close()
    return log


def end_offsets(client: Client, topic: str, isolation: str = "read_uncommitted") -> dict[int, int]:
    """End offset of each partition: the high watermark, or for `read_committed` the last stable offset."""
    consumer = _consumer(client, GROUP, isolation)
    try:
        numbers = sorted(consumer.list_topics(topic, timeout=20).topics[topic].partitions)
        return {n: consumer.get_watermark_offsets(ck.TopicPartition(topic, n), timeout=20)[1] for n in numbers}
    finally:
        consumer.close()


def _record(message: ck.Message) -> Rec:
    told: Any = message  # the stubs allow None for values that a record always has
    headers = tuple((name, value) for name, value in told.headers() or ())
    return Rec(told.partition(), told.offset(), told.key(), told.value(), headers, told.timestamp()[1])


def committed(client: Client, application: str, topic: str) -> dict[int, int]:
    """Stable committed offsets of the group; 0 if there is none."""
    numbers = end_offsets(client, topic)
    consumer = _consumer(client, application)
    try:
        rows = consumer.committed([ck.TopicPartition(topic, number) for number in numbers], timeout=30)
        return {row.partition: max(row.offset, 0) for row in rows}
    finally:
        consumer.close()


def unread(client: Client, application: str, topic: str) -> int:
    """Number of partitions with a record at or after the committed offset. Markers do not count; an open transaction does."""
    positions, ends = committed(client, application, topic), end_offsets(client, topic)
    behind = {number: offset for number, offset in positions.items() if offset < ends[number]}
    consumer = _consumer(client, GROUP)
    consumer.assign([ck.TopicPartition(topic, number, offset) for number, offset in behind.items()])
    until, lagging = time.monotonic() + 10, set(behind)
    try:
        while lagging and time.monotonic() < until:
            message = consumer.poll(0.2)
            if message is None:
                continue
            error, number = message.error(), message.partition()
            assert number is not None
            if error is None:
                break
            if error.code() == ck.KafkaError._PARTITION_EOF and (message.offset() or 0) >= ends[number]:
                lagging.discard(number)
        return len(lagging)
    finally:
        consumer.close()


def still_held(client: Client, application: str, destination: str) -> int:
    """Number of live rows of the groups changelog: keys whose last record is not a tombstone."""
    log = read_topic(client, topics_of(application, destination)["changelog"])
    last = {(number, rec.key): rec.value for number, rows in log.items() for rec in rows if rec.key != SETTINGS_KEY}
    return sum(value is not None for value in last.values())


def open_transactions(client: Client, application: str, destination: str) -> list[str]:
    """Partitions whose last stable offset is before their end, because a transaction is still open there."""
    found = []
    for topic in topics_of(application, destination).values():
        stable, ends = end_offsets(client, topic, "read_committed"), end_offsets(client, topic)
        for number, end in ends.items():
            if stable[number] < end:
                found.append(f"{topic}/{number}: last stable offset {stable[number]}, end {end}")
    return found


def counters(text: str) -> dict[str, Counter[str]]:
    """A worker's counters by partition and result, from the text of its `/metrics`; `open` counts held components."""
    fates: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for name, labels, value in METRIC.findall(text):
        named = dict(LABEL.findall(labels))
        fate = named["fate"] if name == "uow_components_total" else "open"
        fates[named["partition"]][fate] += int(float(value))
    return fates


def conservation(page: str, text: str) -> Findings:
    """Checks that a worker's own counters add up, partition by partition (EN-10).

    Args:
        page: Name of the worker, for messages.
        text: Text of its `/metrics`.
    """
    findings, fates = Findings(), counters(text)
    for number, count in fates.items():
        went = sum(count[fate] for fate in ("held", "duplicate", "rejected", "passed", "ignored"))
        left = sum(count[fate] for fate in ("delivered", "expired", "cancelled", "failed", "open"))
        if count["received"] != went or count["held"] != left:
            findings.say("conservation", f"{page}, partition {number}: {dict(count)}")
    findings.counts["counted partitions"] = len(fates)
    return findings
