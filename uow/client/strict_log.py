"""Reading all of `D.registry`, alone and committing nothing.

Belongs here: reading. Does not belong here: the meaning of the records (`uow.topics.strict_registry`), following it (`uow.client.strict_order`),
and writing it (`uow.ops.eras`; subscriptions and gaps go in the transactions of readers).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, TopicPartition

from uow.client.kafka_port import BLOCKING_S, ConsumerHandle, check_topic, coordinates
from uow.client.library_errors import read_error
from uow.client.outgoing import OutgoingRecord
from uow.errors import DestinationUnavailableError, ReconnectTimeoutError
from uow.processor.kafka.error_table import Meaning, meaning_of
from uow.schemas.error_classes import DecodeError
from uow.topics.catalogue import DestinationTopics
from uow.topics.strict_registry import Era, Lease, OrderGap, StrictRegistry, StrictRules, Subscription

STEP_S: Final = 0.5
PARTITION: Final = 0


def registry_topic(destination: str) -> str:
    """Name of `D.registry`."""
    return DestinationTopics("", destination).registry


def record_of(destination: str, entry: StrictRules | Era | Subscription | OrderGap | Lease) -> OutgoingRecord:
    """An entry as the record to be written."""
    return OutgoingRecord(registry_topic(destination), entry.key(), entry.value(), [], PARTITION)


def read_registry(
    handle: ConsumerHandle, destination: str, wait_s: float = BLOCKING_S, clock: Callable[[], float] = time.monotonic
) -> StrictRegistry:
    """All of `D.registry`, as it is now; empty if there is no such topic.

    Args:
        handle: A consumer that tells the end of a partition, and has no other work.
        destination: `D`.
        wait_s: Longest wait for the topic, and for each next record.
        clock: Seconds, from anywhere.

    Raises:
        ReconnectTimeoutError: No broker answered in time.
        DecodeError: A record of ours cannot be read.
        UowError: As any reader: not allowed to read it, for one.
    """
    topic = registry_topic(destination)
    found = StrictRegistry(destination)
    try:
        check_topic(handle, topic, wait_s)
    except DestinationUnavailableError:
        return found
    handle.assign([TopicPartition(topic, PARTITION, OFFSET_BEGINNING)])
    deadline = clock() + wait_s
    while True:
        record = handle.poll(min(STEP_S, wait_s))
        if record is None:
            if clock() >= deadline:
                raise ReconnectTimeoutError(f"{topic} was not read: nothing came within {wait_s:g} s")
            continue
        deadline = clock() + wait_s
        error = record.error()
        if error is None:
            try:
                found.apply(record.key(), record.value())
            except DecodeError as unreadable:
                raise unreadable.at(*coordinates(record)) from unreadable
        elif meaning_of(error) is Meaning.END:
            return found
        elif (raised := read_error(error, topic)) is not None:
            raise raised
