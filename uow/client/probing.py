"""Looking for a record whose fate nobody knows: is it in the log (R-04, R-05, R-71)?

Belongs here: reading its partitions from where it can lie up to their ends. Does not belong here: which errors say that one is in doubt
(`uow.client.library_errors`, `uow.client.transaction`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from typing import Any, Final

from confluent_kafka import OFFSET_END, KafkaException, TopicPartition

from uow.client.kafka_port import STEP_S, ConsumerHandle, LogWatch, check_topic, coordinates, raw_headers
from uow.client.sending import Sent
from uow.client.session_state import Life
from uow.errors import DestinationUnavailableError, ReconnectTimeoutError, Suspect
from uow.processor.kafka.error_table import Meaning, meaning_of
from uow.schemas.error_classes import DecodeError
from uow.topics.headers import COMPONENT_ID

CLOCK_LEAD_S: Final = 3600.0
"""Where no end offset was known before a record was sent, it is looked for from this long before: a broker's clock may be behind by as much."""

Make = Callable[[Any], ConsumerHandle]


class Recovered(StrEnum):
    """The end of a transaction whose commit was not answered."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"


def find(make: Make, suspect: Suspect, life: Life) -> Sent | None:
    """The place of a record; None if it is certainly not in the log, as far as the consumer reads.

    Args:
        make: Makes a consumer that is told of the ends of partitions, and reads to the isolation level asked for.
        suspect: The record.
        life: Of the connection.

    Raises:
        DestinationUnavailableError: A partition cannot be read to its end in time: nobody can say that it is absent.
    """
    handle = make(LogWatch().logger)
    begun = life.clock()
    try:
        unread = _starts(handle, suspect, life)
        handle.assign([TopicPartition(suspect.topic, number, start) for number, start in unread.items()])
        while unread:
            if life.clock() - begun >= life.waits.answer_s:
                names = ", ".join(f"{suspect.topic}/{number}" for number in sorted(unread))
                raise DestinationUnavailableError(f"{names} cannot be read to the end within {life.waits.answer_s:g} s")
            place = _next(handle, suspect, unread)
            if place is not None:
                return place
        return None
    except (KafkaException, ReconnectTimeoutError, TypeError) as failure:  # no watermarks in time: None
        raise DestinationUnavailableError(f"{suspect.topic} cannot be read: {failure}") from failure
    finally:
        handle.close()


def _starts(handle: ConsumerHandle, suspect: Suspect, life: Life) -> dict[int, int]:
    """The first offset at which the record may lie, by partition, where there is anything from there on."""
    count = check_topic(handle, suspect.topic, life=life)
    numbers = range(count) if suspect.partition < 0 else (suspect.partition,)
    found: dict[int, int] = {}
    for number in numbers:
        row = TopicPartition(suspect.topic, number)
        start = suspect.ends.get((suspect.topic, number))
        if start is None:
            row.offset = max(0, round((suspect.at - CLOCK_LEAD_S) * 1000))
            (row,) = handle.offsets_for_times([row], life.waits.answer_s)
            if row.error is not None:
                raise KafkaException(row.error)
            start = row.offset
        first, end = handle.get_watermark_offsets(TopicPartition(suspect.topic, number), life.waits.answer_s)
        if start != OFFSET_END and max(start, first) < end:
            found[number] = max(start, first)
    return found


def _next(handle: ConsumerHandle, suspect: Suspect, unread: dict[int, int]) -> Sent | None:
    """The place of the record if it is the next one."""
    record = handle.poll(STEP_S)
    if record is None:
        return None
    error = record.error()
    if error is not None:
        if meaning_of(error) is Meaning.END:
            unread.pop(record.partition() or 0, None)
        elif meaning_of(error) is not Meaning.PASSING:
            raise KafkaException(error)
        return None
    place = coordinates(record)
    with suppress(DecodeError):  # ours can be read
        if (COMPONENT_ID, suspect.component_id.encode()) in raw_headers(record):
            return Sent(*place)
    return None
