"""Units of shape `reference`: their components are read where they stayed, and checked (W-117).

Components are asked for in number order and lie in order of arrival, so they are fetched in portions: each portion is read in order of
offsets, with a jump over what is far away.

A reference is part of a record, and may say anything. Before anything is fetched it must name a record that can be there: one of the destination's
own `D.components`, each once, in a partition that exists and before its end. A reference to a record that is not there is an error of
the unit, raised at once; only brokers are waited for.

Belongs here: finding a component by its reference. Does not belong here: what a unit is (`uow.client.reader`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from confluent_kafka import KafkaException, TopicPartition

from uow.client.kafka_port import (
    BLOCKING_S,
    ConsumedRecord,
    ConsumerHandle,
    LogWatch,
    check_topic,
    raw_headers,
)
from uow.client.library_errors import read_error
from uow.errors import DestinationUnavailableError, ReconnectTimeoutError
from uow.processor.kafka.error_table import GONE
from uow.schemas.checksum import reference_to
from uow.schemas.error_classes import DecodeError
from uow.schemas.records import ComponentRecord, Reference, Source

END_EVENTS: Final[Mapping[str, Any]] = {"enable.partition.eof": True}
PORTION_BYTES: Final = 1_048_576
"""Values fetched at a time where a unit streams."""
JUMP_BYTES: Final = 524_288
"""About how many bytes between two components are read and dropped; over a larger distance the consumer jumps, which fetches anew."""
RECORD_BYTES: Final = 200
"""About how many bytes a record has beside its value."""
ANSWER_S: Final = 30.0
STEP_S: Final = 0.5
MOST_BYTES: Final = 2**31 - 1
MOST_OFFSETS: Final = 2**63 - 1
CASE: Final = "reference"


class References:
    """Fetches components; opens its consumer when it is first asked to. For one thread.

    Args:
        topic: `D.components`: references to any other topic are refused.
        make: Makes a consumer that tells the end of a partition.
        clock: Seconds, for waiting.
    """

    def __init__(
        self,
        topic: str,
        make: Callable[[logging.Logger], ConsumerHandle],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._topic = topic
        self._ends: dict[int, int] = {}
        self._make = make
        self._clock = clock
        self._handle: ConsumerHandle | None = None
        self._where: tuple[str, int] | None = None
        self._next = 0

    def fetch(
        self, components: Iterable[ComponentRecord], portion_bytes: int | None = None
    ) -> Iterator[ComponentRecord]:
        """The components with key, value and headers, in the same order; those that are no references as they are.

        Args:
            components: Of one unit.
            portion_bytes: How much is in memory at a time; None: all of it.

        Raises:
            DecodeError: One is not there any more, or is another record; case `reference`.
            UowError: The broker does not answer.
        """
        portion: list[ComponentRecord] = []
        size = 0
        seen: set[Source] = set()
        for component in components:
            if component.reference is not None:
                self._check(component, component.reference, seen)
                size += component.reference.length
            portion.append(component)
            if portion_bytes is not None and size >= portion_bytes:
                yield from self._portion(portion)
                portion, size = [], 0
        yield from self._portion(portion)

    def _check(self, component: ComponentRecord, reference: Reference, seen: set[Source]) -> None:
        """Checks that a reference can be true; `seen` are the places of the unit's components before it."""
        source = component.source
        if source.topic != self._topic:
            raise DecodeError(CASE, f"{_described(component)} is no record of {self._topic}")
        if source in seen:
            raise DecodeError(CASE, f"{_described(component)} is another component's place as well")
        if not -1 <= reference.length <= MOST_BYTES:
            raise DecodeError(CASE, f"{_described(component)} cannot have {reference.length} bytes")
        if not 0 <= source.offset < MOST_OFFSETS or source.offset >= self._end(source):
            raise _gone(component)
        seen.add(source)

    def _end(self, source: Source) -> int:
        """End offset of a partition, asked for anew where a place lies behind what is known of it; 0 where there is no such partition."""
        if source.offset >= self._ends.get(source.partition, 0):
            handle = self._opened()
            try:
                partitions = check_topic(handle, self._topic)
            except DestinationUnavailableError:
                return 0
            if not 0 <= source.partition < partitions:
                return 0
            self._ends[source.partition] = self._asked_end(handle, source.partition)
        return self._ends[source.partition]

    def _asked_end(self, handle: ConsumerHandle, partition: int) -> int:
        try:
            bounds: Any = handle.get_watermark_offsets(TopicPartition(self._topic, partition), BLOCKING_S)
        except KafkaException as failure:
            raise ReconnectTimeoutError(f"end of {self._topic}/{partition}: {failure.args[0].str()}") from failure
        if bounds is None:
            raise ReconnectTimeoutError(f"end of {self._topic}/{partition}: no broker answered within {BLOCKING_S:g} s")
        end: int = bounds[1]
        return end

    def _portion(self, components: Sequence[ComponentRecord]) -> Iterator[ComponentRecord]:
        wanted = [(at, each, each.reference) for at, each in enumerate(components) if each.reference is not None]
        each_bytes = sum(reference.length for _, _, reference in wanted) // max(len(wanted), 1) + RECORD_BYTES
        found: dict[int, ComponentRecord] = {}
        for at, component, reference in sorted(
            wanted, key=lambda each: (each[1].source.partition, each[1].source.offset)
        ):
            found[at] = _whole(component, reference, self._record(component, each_bytes))
        for at, component in enumerate(components):
            yield found.pop(at, component)

    def _record(self, component: ComponentRecord, each_bytes: int) -> ConsumedRecord:
        """The record at the component's source; records about there have about so many bytes."""
        handle, deadline = self._handle_at(component.source, each_bytes), self._clock() + ANSWER_S
        while self._clock() < deadline:
            record = handle.poll(STEP_S)
            if record is None:
                continue
            error = record.error()
            if error is None:
                self._next = (record.offset() or 0) + 1
                if self._next > component.source.offset:
                    return record
            elif error.code() in GONE:
                self._where = None
                raise _gone(component)
            elif (raised := read_error(error, component.source.topic)) is not None:
                raise raised
        raise ReconnectTimeoutError(f"{_described(component)} was not read within {ANSWER_S:g} s")

    def _handle_at(self, source: Source, each_bytes: int) -> ConsumerHandle:
        """The consumer, about to read `source`: with a jump, or soon."""
        handle = self._opened()
        ahead = source.offset - self._next
        if self._where != (source.topic, source.partition) or not 0 <= ahead * each_bytes <= JUMP_BYTES:
            handle.assign([TopicPartition(source.topic, source.partition, source.offset)])
            self._where, self._next = (source.topic, source.partition), source.offset
        return handle

    def _opened(self) -> ConsumerHandle:
        if self._handle is None:
            self._handle = self._make(LogWatch().logger)
        return self._handle

    def close(self) -> None:
        """Closes the consumer."""
        if self._handle is not None:
            self._handle.close()


def _whole(component: ComponentRecord, reference: Reference, record: ConsumedRecord) -> ComponentRecord:
    """The component as it was held, if `record` is what it was made of."""
    if record.offset() != component.source.offset:
        raise _gone(component)
    value = record.value()
    if reference_to(value) != reference or record.timestamp()[1] != component.timestamp:
        raise DecodeError(
            CASE, f"the record at the place of {_described(component)} is another one: length, checksum or time differ"
        )
    return replace(component, key=record.key(), value=value, headers=tuple(raw_headers(record)), reference=None)


def _gone(component: ComponentRecord) -> DecodeError:
    return DecodeError(CASE, f"{_described(component)} is not there any more: retention of that topic was too short")


def _described(component: ComponentRecord) -> str:
    return f"component {component.seq}, {component.source},"
