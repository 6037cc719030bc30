"""Readers: iterators over finished units, or over single messages.

Belongs here: telling units from plain records, decoding in every value format and framing, waiting. Does not belong here: consumer
groups and acknowledging (`uow.consumption`), the values handed out (`uow.received`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Generic, Protocol, Self, TypeVar

from schemas.codec import SchemaSource, decode_as
from schemas.errors import DecodeError, UowError
from schemas.formats import from_json, from_xml
from schemas.records import Unit
from topics.headers import POS
from uow.consumption import Consumption, Ownership
from uow.forward import is_unit
from uow.handles import ConsumedRecord, Headers, coordinates, raw_headers
from uow.received import Message, ReceivedComponent, ReceivedUnit

T_co = TypeVar("T_co", covariant=True)

_STEP_S: Final = 0.5
"""Longest single wait inside the library, so that Ctrl-C is heard."""


class Interpreter(Protocol[T_co]):
    """Makes what a reader hands out of a record; None for a record that it passes over."""

    def __call__(self, record: ConsumedRecord, consumption: Consumption, ownership: Ownership) -> T_co | None: ...


class Reader(Generic[T_co]):
    """An iterator and a context manager, for one thread. Several readers of one group need a thread each: at a rebalance they wait for each other.

    `next()` waits for ever, `receive(timeout)` as long as told. Iterating again goes on where it stopped. Leaving a loop does not close the
    reader, so that what it handed out can still be acknowledged; `close()`, the end of a `with` block and closing the connection do, and
    so does a new reader for the same topic and group once nobody holds this one any more.
    """

    def __init__(
        self, consumption: Consumption, interpret: Interpreter[T_co], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._consumption = consumption
        self._interpret = interpret
        self._clock = clock

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T_co:
        while True:
            received = self.receive(_STEP_S)
            if received is not None:
                return received

    def receive(self, timeout: float | None = None) -> T_co | None:
        """The next one, or None when none came within `timeout` seconds (None: waits for ever).

        Raises:
            DecodeError: A record cannot be read; it names the coordinates and keeps the bytes. Reading goes on behind it with the next call;
                the record counts as done as soon as a later one of its partition is acknowledged.
            SubscriptionExpiredError: The committed offset is gone, or there is none and `start` is `committed`.
            ClientClosedError: Closed.
            UowError: What else keeps from reading (failover section 3).
        """
        deadline = None if timeout is None else self._clock() + timeout
        while True:
            left = _STEP_S if deadline is None else max(0.0, deadline - self._clock())
            polled = self._consumption.poll(min(left, _STEP_S))
            if polled is not None:
                received = self._read(*polled)
                if received is not None:
                    return received
            if deadline is not None and self._clock() >= deadline:
                return None

    def _read(self, record: ConsumedRecord, ownership: Ownership) -> T_co | None:
        topic, partition, offset = coordinates(record)
        try:
            return self._interpret(record, self._consumption, ownership)
        except DecodeError as error:
            if error.data is None:
                error.data = record.value()
            error.at(topic, partition, offset)
            raise
        except UowError:
            ownership.go_back(offset)  # not the record's fault (a registry that does not answer): it is read again
            raise

    def roll_back(self) -> None:
        """Goes back to what is acknowledged: what was handed out since then comes again, with a `delivery_count` one higher (W-52)."""
        self._consumption.roll_back()

    def close(self) -> None:
        """Leaves the group. What was not acknowledged comes again to the next reader."""
        self._consumption.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_message(record: ConsumedRecord, consumption: Consumption, ownership: Ownership) -> Message:
    """Any record, as it is."""
    topic, partition, offset = coordinates(record)
    return Message(
        topic,
        partition,
        offset,
        record.timestamp()[1],
        raw_headers(record),
        consumption,
        ownership,
        record.key(),
        record.value(),
        consumption.token(),
    )


class Plain(Protocol):
    """What becomes of a record that is no unit."""

    def __call__(self, record: ConsumedRecord, consumption: Consumption, ownership: Ownership) -> Message | None: ...


def pass_over(record: ConsumedRecord, consumption: Consumption, ownership: Ownership) -> None:
    """A plain record among units: done with as soon as a later unit is acknowledged."""


class UnitInterpreter:
    """Units as units; plain records that passed through a destination (W-121) as `plain` says."""

    def __init__(self, registry: SchemaSource | None, plain: Plain) -> None:
        self._registry = registry
        self._plain = plain

    def __call__(
        self, record: ConsumedRecord, consumption: Consumption, ownership: Ownership
    ) -> ReceivedUnit | Message | None:
        headers = raw_headers(record)
        if not is_unit(headers):
            return self._plain(record, consumption, ownership)
        unit = self._unit(record.value(), headers)
        topic, partition, offset = coordinates(record)
        components = tuple([ReceivedComponent(component) for component in unit.components])
        count = ownership.count_delivery(offset)
        return ReceivedUnit(
            topic, partition, offset, record.timestamp()[1], headers, consumption, ownership, unit, components, count
        )

    def _unit(self, value: bytes | None, headers: Headers) -> Unit:
        if any(name == POS for name, _ in headers):
            raise DecodeError(POS, "units of shape consecutive are not read by this version")
        return decode_unit(value, self._registry)


class UnitsOnly(UnitInterpreter):
    """Units and nothing else."""

    def __init__(self, registry: SchemaSource | None) -> None:
        super().__init__(registry, pass_over)

    def __call__(self, record: ConsumedRecord, consumption: Consumption, ownership: Ownership) -> ReceivedUnit | None:
        received = super().__call__(record, consumption, ownership)
        return received if isinstance(received, ReceivedUnit) else None


def decode_unit(value: bytes | None, registry: SchemaSource | None = None) -> Unit:
    """A unit's value in any format and framing, told apart by the first byte (W-95, contract section 11).

    Raises:
        DecodeError: It is none, or broken.
        UowError: The registry does not answer.
    """
    if value is None:
        raise DecodeError("body", "a unit without a value")
    if value[:1] == b"{":
        return from_json(value)
    if value[:1] == b"<":
        return from_xml(value)
    return decode_as(Unit, value, registry=registry)
