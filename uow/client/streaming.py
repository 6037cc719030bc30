"""Reading units component by component, in memory that does not grow with the unit (W-116).

Of shape `consecutive` a component is handed out as its record comes; while a unit streams, partitions other than its own are held back
after one record each. Of shape `reference` components are fetched in portions. An envelope is one record, and in memory anyway; so is, as a
whole, a unit that is given up.

Belongs here: the streaming reader and its units. Does not belong here: whole units (`uow.client.reader`), what a run is (`uow.client.open_runs`).
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from uow.client.consumption import Consumption
from uow.client.dead_letters import Part
from uow.client.decoding import unit_of_record
from uow.client.kafka_port import STEP_S, ConsumedRecord, coordinates, raw_headers
from uow.client.open_runs import OpenRun
from uow.client.ownership import Ownership
from uow.client.reader import (
    Handling,
    Reader,
    broken_off,
    component_of_run,
    located,
)
from uow.client.received import AnyUnit, ReceivedComponent
from uow.client.references import PORTION_BYTES
from uow.client.verdict import Failure
from uow.errors import LostServerError, ReconnectTimeoutError
from uow.schemas.error_classes import DecodeError
from uow.schemas.records import ComponentRecord, Unit
from uow.topics.headers import POS
from uow.topics.runs import position_of, said_of_unit

SMALL_BUFFERS: Final[Mapping[str, Any]] = {
    "queued.max.messages.kbytes": 1024,
    "fetch.message.max.bytes": 1_048_576,
    "fetch.max.bytes": 2_097_152,
}
"""librdkafka reads ahead up to 64 MB otherwise."""

REST_S: Final = 30.0
"""Longest wait for the next record of a unit that has begun."""
END_S: Final = 6.0
"""The same where the broker says that there is no further record: a worker writes all of a unit in one transaction, and so it becomes visible."""


@dataclass(frozen=True, slots=True, eq=False)
class StreamedUnit(AnyUnit):
    """A finished unit whose components come as they are asked for.

    Of one of shape `consecutive`, `headers` lack the user headers of its end component, which comes last.

    Attributes:
        components: In number order, once. Raises `DecodeError` where the unit turns out to be broken (W-12): it is given up then, and the reader
            goes on with the next one. Raises `LostServerError` where its partition moves away meanwhile: the unit comes again.
        document: Of a unit by rule whose row says XML its value, which does not list components (B-53); None for any other.
    """

    components: Iterator[ReceivedComponent]
    _run: OpenRun | None = field(repr=False)
    document: bytes | None = None

    @property
    def size(self) -> int:
        """Number of components."""
        return self.record.count

    def acknowledge(self) -> None:
        """As `Message.acknowledge`, behind its last record: what was not asked for is read, and checked, first (W-14).

        Raises:
            DecodeError: The unit is broken, and given up.
        """
        self._acknowledge()

    def _acknowledge(self) -> None:
        for _ in self.components:
            pass
        if self._run is not None and not self._run.is_whole:
            raise DecodeError(POS, f"unit {self.unit_id} is broken off after {self._run.taken} of {self.size}")
        self._consumption.acknowledge(self._ownership, self.offset if self._run is None else self._run.last)


class _Begun(NamedTuple):
    """A unit that streams: its first record, its reader's consumption, and the offset handed out last before it."""

    part: Part
    consumption: Consumption
    ownership: Ownership
    before: int


class _Components(Iterator[ReceivedComponent]):
    """The components of a unit while it streams. It never ends before the unit does: once it failed, it fails again.

    Args:
        made: Makes them.
        begun: The unit.

    Attributes:
        failure: The error that ended it; None if there was none.
    """

    def __init__(self, made: Iterator[ReceivedComponent], begun: _Begun) -> None:
        self.failure: Exception | None = None
        self._made, self._begun = made, begun

    @property
    def is_over(self) -> bool:
        """True if there is nothing to be read of it here: it failed, or its partition goes back."""
        return self.failure is not None or self._begun.ownership.rewind is not None

    def __next__(self) -> ReceivedComponent:
        if self.failure is not None:
            raise self.failure
        try:
            return next(self._made)
        except StopIteration:
            raise
        except DecodeError as failure:
            self.failure = failure
            raise
        except BaseException:  # Ctrl-C as well: what was read is not handed out, and is read again
            ownership, first = self._begun.ownership, coordinates(self._begun.part[0])[2]
            if self._begun.consumption.is_ours(ownership, first):
                ownership.go_back(first)
            self.failure = LostServerError(
                f"{ownership.tp[0]}/{ownership.tp[1]}/{first} was cut short, and comes again"
            )
            raise


class UnitStream:
    """Makes streamed units of records; at most one is under way.

    Args:
        handling: The parts that a reader of units works with.
        clock: Seconds, for waiting.

    Attributes:
        kept: Records of other partitions that came while a unit streamed. Each is alone of its partition, which is held back as long as it lies here: one
            that was read on would come in between, behind a record that nobody has seen.
    """

    def __init__(self, handling: Handling, clock: Callable[[], float] = time.monotonic) -> None:
        self._handling = handling
        self._dead_letters = handling.dead_letters
        self._received = partial(ReceivedComponent, _registry=handling.registry)
        self._clock = clock
        self.kept: deque[tuple[ConsumedRecord, Ownership]] = deque()
        self._under_way: _Components | None = None

    def finish(self) -> None:
        """Reads over what is left of the unit under way; one that comes again, or that turned out broken, is not lost."""
        under_way, self._under_way = self._under_way, None
        if under_way is None or under_way.is_over:
            return
        with suppress(LostServerError, DecodeError):
            for _ in under_way:
                pass

    def __call__(self, record: ConsumedRecord, consumption: Consumption, ownership: Ownership) -> StreamedUnit | None:
        part: Part = (record, [])
        try:
            with located(record):
                part = (record, raw_headers(record))
                return self._interpret(part, consumption, ownership) if self._dead_letters.is_unit(part[1]) else None
        except DecodeError as error:
            self._dead_letters.cannot_be_read(error, [part], consumption, ownership)
            return None

    def _interpret(self, part: Part, consumption: Consumption, ownership: Ownership) -> StreamedUnit | None:
        record, headers = part
        if position_of(headers) is None:
            return self._envelope(part, consumption, ownership)
        first = component_of_run(record, headers, ownership, self._handling.destination)
        run = ownership.run
        if first is None or run is None:
            return None
        verdict = self._dead_letters.before_opening(run.first, consumption, ownership)
        verdict = verdict or self._dead_letters.against(run.unit, consumption)
        begun = _Begun(part, consumption, ownership, ownership.handed_out)
        components = _Components(self._components(first, run, begun), begun)
        if verdict is None:
            return self._begun(run.unit, part, components, run, consumption, ownership)
        run.parts = [part]
        with suppress(DecodeError):  # broken as well: given up for that
            for _ in components:
                pass
            self._dead_letters.carry_out(verdict, run.parts, consumption, ownership)
        return None

    def _envelope(self, part: Part, consumption: Consumption, ownership: Ownership) -> StreamedUnit | None:
        verdict = self._dead_letters.before_opening(coordinates(part[0])[2], consumption, ownership)
        if verdict is None:
            unit, document = unit_of_record(
                part[1], part[0].value(), self._handling.destination, self._handling.registry
            )
            verdict = self._dead_letters.against(unit, consumption)
            if verdict is None:
                begun = _Begun(part, consumption, ownership, ownership.handed_out)
                components = _Components(self._fetched(unit, begun), begun)
                return self._begun(unit, part, components, None, consumption, ownership, document)
        self._dead_letters.carry_out(verdict, [part], consumption, ownership)
        return None

    def _begun(
        self,
        unit: Unit,
        part: Part,
        components: _Components,
        run: OpenRun | None,
        consumption: Consumption,
        ownership: Ownership,
        document: bytes | None = None,
    ) -> StreamedUnit:
        record, headers = part
        if run is not None:
            headers = said_of_unit(headers)
        place, at = coordinates(record), record.timestamp()[1]
        redelivered = ownership.hand_out(place[2])
        self._under_way = components
        count = ownership.deliveries.of(place[2])
        return StreamedUnit(
            *place, at, headers, consumption, ownership, redelivered, unit, count, components, run, document
        )

    def _fetched(self, unit: Unit, begun: _Begun) -> Iterator[ReceivedComponent]:
        try:
            with located(begun.part[0]):
                yield from map(self._received, self._handling.references.fetch(unit.components, PORTION_BYTES))
        except DecodeError as error:
            self._dead_letter(error, begun, [begun.part], coordinates(begun.part[0])[2])
            raise

    def _components(self, component: ComponentRecord, run: OpenRun, begun: _Begun) -> Iterator[ReceivedComponent]:
        try:
            yield self._received(component)
            while not run.is_whole:
                yield self._received(self._next(run, begun.consumption, begun.ownership))
        except DecodeError as error:
            self._dead_letter(error, begun, run.parts or [begun.part], run.last)
            raise
        finally:
            if begun.ownership.run is run:  # else the unit came again meanwhile, and streams
                begun.ownership.run = None

    def _dead_letter(self, error: DecodeError, begun: _Begun, parts: Sequence[Part], last: int) -> None:
        """A unit turned out broken while it streamed: it waits for what was handed out before it, not for itself."""
        ownership, first = begun.ownership, coordinates(begun.part[0])[2]
        if begun.consumption.is_ours(ownership, first):
            ownership.handed_out = begun.before
            self._dead_letters.cannot_be_read(error, parts, begun.consumption, ownership, last)
            begun.consumption.write_dead_letters()

    def _next(self, run: OpenRun, consumption: Consumption, ownership: Ownership) -> ComponentRecord:
        """The next component of the unit under way."""
        begun = self._clock()
        while consumption.is_ours(ownership, run.first):
            polled = consumption.poll(STEP_S)
            if polled is None:
                waited = self._clock() - begun
                if ownership.is_at_end and waited >= END_S:
                    raise broken_off(ownership, run)
                if waited >= REST_S:
                    ownership.go_back(run.first)
                    raise ReconnectTimeoutError(f"the rest of unit {run.unit.unit_id} did not come within {REST_S:g} s")
            elif polled[1] is not ownership:
                # one that is there of the same partition is of before it went and came back
                self.kept = deque(each for each in self.kept if each[1].tp != polled[1].tp)
                self.kept.append(polled)
                consumption.hold_back(polled[1])
            elif (component := self._part(polled[0], run, ownership)) is not None:
                return component
        topic, partition = ownership.tp
        raise LostServerError(f"{topic}/{partition}/{run.first} comes again")

    def _part(self, record: ConsumedRecord, run: OpenRun, ownership: Ownership) -> ComponentRecord | None:
        with located(record):
            headers = raw_headers(record)
            if run.parts:  # of a unit that is given up
                run.parts.append((record, headers))
            return component_of_run(record, headers, ownership, self._handling.destination)


class StreamReader(Reader[StreamedUnit]):
    """Hands out streamed units. Asking for the next one reads over what is left of the one before."""

    def __init__(self, consumption: Consumption, stream: UnitStream, given_up: Counter[Failure]) -> None:
        super().__init__(consumption, stream, given_up)
        self._stream = stream

    def _receive(self, timeout: float | None) -> StreamedUnit | None:
        self._stream.finish()
        return super()._receive(timeout)

    def _poll(self, timeout: float) -> tuple[ConsumedRecord, Ownership] | None:
        while self._stream.kept:
            record, ownership = self._stream.kept.popleft()
            self._consumption.let_go(ownership.tp)
            if self._consumption.is_ours(ownership, coordinates(record)[2]):
                return record, ownership
        return super()._poll(timeout)
