"""Reading units component by component, in memory that does not grow with the unit (W-116).

Of shape `consecutive` a component is handed out as its record comes; while a unit streams, partitions other than its own are held back
after one record each. An envelope is one record and is in memory anyway.

Belongs here: the streaming reader and its units. Does not belong here: whole units (`uow.reader`), what a run is (`uow.runs`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from schemas.codec import SchemaSource
from schemas.errors import DecodeError
from schemas.records import Component
from topics.headers import POS
from topics.runs import position_of
from uow.consumption import Consumption, Ownership
from uow.decoding import decode_unit
from uow.errors import LostServerError, ReconnectTimeoutError
from uow.forward import is_unit
from uow.handles import ConsumedRecord, coordinates, raw_headers
from uow.reader import STEP_S, Reader, component_of_run, located
from uow.received import AnyUnit, ReceivedComponent
from uow.runs import OpenRun

SMALL_BUFFERS: Final[Mapping[str, Any]] = {
    "queued.max.messages.kbytes": 1024,
    "fetch.message.max.bytes": 1_048_576,
    "fetch.max.bytes": 2_097_152,
}
"""librdkafka reads ahead up to 64 MB otherwise."""

REST_S: Final = 30.0
"""Longest wait for the next record of a unit that has begun: all of them became visible together."""


@dataclass(frozen=True, slots=True, eq=False)
class StreamedUnit(AnyUnit):
    """A finished unit whose components come as they are asked for.

    Attributes:
        components: In number order, once. Raises `DecodeError` where the unit turns out to be broken (W-12), and `LostServerError` where its
            partition moves away meanwhile: the unit comes again.
    """

    components: Iterator[ReceivedComponent]
    _run: OpenRun | None = field(repr=False)

    @property
    def size(self) -> int:
        """Number of components."""
        return self.record.count

    def acknowledge(self) -> None:
        """As `Received.acknowledge`, behind its last record: what was not asked for is read, and checked, first (W-14).

        Raises:
            DecodeError: The unit is broken; it counts as done as soon as a later one of its partition is acknowledged.
        """
        for _ in self.components:
            pass
        if self._run is not None and not self._run.is_whole:
            raise DecodeError(POS, f"unit {self.unit_id} is broken off after {self._run.taken} of {self.size}")
        self._consumption.acknowledge(self._ownership, self.offset if self._run is None else self._run.last)


class UnitStream:
    """Makes streamed units of records; at most one is under way.

    Args:
        destination: Whose units they are.
        registry: For units in Confluent framing.
        clock: Seconds, for waiting.

    Attributes:
        kept: Records of other partitions that came while a unit streamed.
    """

    def __init__(
        self, destination: str, registry: SchemaSource | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._destination = destination
        self._registry = registry
        self._received = partial(ReceivedComponent, _registry=registry)
        self._clock = clock
        self.kept: deque[tuple[ConsumedRecord, Ownership]] = deque()
        self._under_way: Iterator[ReceivedComponent] = iter(())

    def finish(self) -> None:
        """Reads over what is left of the unit under way."""
        for _ in self._under_way:
            pass

    def __call__(self, record: ConsumedRecord, consumption: Consumption, ownership: Ownership) -> StreamedUnit | None:
        headers = raw_headers(record)
        if not is_unit(headers):
            return None
        run: OpenRun | None = None
        if position_of(headers) is None:
            unit = decode_unit(record.value(), self._registry)
            self._under_way = map(self._received, unit.components)
        else:
            first = component_of_run(record, headers, ownership, self._destination)
            run = ownership.run
            if first is None or run is None:
                return None
            unit = run.unit
            self._under_way = self._components(first, run, consumption, ownership)
        place, at = coordinates(record), record.timestamp()[1]
        count = ownership.count_delivery(place[2])
        return StreamedUnit(*place, at, headers, consumption, ownership, unit, count, self._under_way, run)

    def _components(
        self, component: Component, run: OpenRun, consumption: Consumption, ownership: Ownership
    ) -> Iterator[ReceivedComponent]:
        try:
            yield self._received(component)
            while not run.is_whole:
                yield self._received(self._next(run, consumption, ownership))
        finally:
            ownership.run = None
            consumption.let_go()

    def _next(self, run: OpenRun, consumption: Consumption, ownership: Ownership) -> Component:
        """The next component of the unit under way."""
        deadline = self._clock() + REST_S
        while consumption.is_ours(ownership, run.first):
            polled = consumption.poll(STEP_S)
            if polled is None:
                if self._clock() >= deadline:
                    ownership.go_back(run.first)
                    raise ReconnectTimeoutError(f"the rest of unit {run.unit.unit_id} did not come within {REST_S:g} s")
            elif polled[1] is not ownership:
                self.kept.append(polled)
                consumption.hold_back(polled[1])
            elif (component := self._part(polled[0], ownership)) is not None:
                return component
        topic, partition = ownership.tp
        raise LostServerError(f"{topic}/{partition}/{run.first} comes again")

    def _part(self, record: ConsumedRecord, ownership: Ownership) -> Component | None:
        with located(record):
            return component_of_run(record, raw_headers(record), ownership, self._destination)


class StreamReader(Reader[StreamedUnit]):
    """Hands out streamed units. Asking for the next one reads over what is left of the one before."""

    def __init__(self, consumption: Consumption, stream: UnitStream) -> None:
        super().__init__(consumption, stream)
        self._stream = stream

    def receive(self, timeout: float | None = None) -> StreamedUnit | None:
        """As `Reader.receive`.

        Raises:
            DecodeError: Also where the rest of the unit before is broken.
            UowError: As there.
        """
        self._stream.finish()
        return super().receive(timeout)

    def _poll(self, timeout: float) -> tuple[ConsumedRecord, Ownership] | None:
        while self._stream.kept:
            record, ownership = self._stream.kept.popleft()
            if self._consumption.is_ours(ownership, coordinates(record)[2]):
                return record, ownership
        return super()._poll(timeout)
