"""Readers: iterators over finished units, or over single messages.

Belongs here: telling units from plain records, decoding in every value format and framing, waiting. Does not belong here: consumer
groups and acknowledging (`uow.client.consumption`), the values handed out (`uow.client.received`).
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

import uow
from uow.client.blocking import OrderBlocked
from uow.client.consumption import Consumption
from uow.client.dead_letters import DeadLetters, NotYet, Part
from uow.client.decoding import unit_of_record
from uow.client.handling import HandlerLoop
from uow.client.kafka_port import (
    STEP_S,
    ConsumedRecord,
    Headers,
    coordinates,
    raw_headers,
)
from uow.client.open_runs import OpenRun, is_left_over
from uow.client.ownership import Ownership, Tp
from uow.client.received import Message, ReceivedComponent, ReceivedDocument, ReceivedUnit
from uow.client.references import References
from uow.client.session_state import Patience
from uow.client.unshown_headers import UnshownHeaders
from uow.client.verdict import Failure
from uow.errors import OrderBlockedError, OrderConfigError
from uow.schemas.codec import SchemaSource
from uow.schemas.error_classes import DecodeError, UowError
from uow.schemas.records import ComponentRecord, Unit
from uow.topics.headers import POS
from uow.topics.pipeline import PipelineVersions
from uow.topics.runs import position_of, unit_headers

T_co = TypeVar("T_co", covariant=True)


@contextmanager
def located(record: ConsumedRecord) -> Iterator[None]:
    """A `DecodeError` raised inside gets the record's coordinates, and keeps its bytes."""
    try:
        yield
    except DecodeError as error:
        if error.data is None:
            error.data = record.value()
        error.at(*coordinates(record))
        raise


class Interpreter(Protocol[T_co]):
    """Makes what a reader hands out of a record; None for a record that it passes over."""

    def __call__(self, record: ConsumedRecord, consumption: Consumption, ownership: Ownership) -> T_co | None: ...


class ReaderSession(Protocol):
    """The calls of a reader to the client session that it belongs to."""

    def _before_receive(self) -> None: ...
    def _received(self, message: Any) -> None: ...


class Reader(Generic[T_co]):
    """An iterator and a context manager, for one thread. Several readers of one group need a thread each: at a rebalance they wait for each other.

    `next()` waits for ever, `receive(timeout)` so many seconds. Iterating again goes on where it stopped. Leaving a loop does not close the
    reader, so that what it handed out can still be acknowledged; `close()`, the end of a `with` block and closing the connection do, and
    so does a new reader for the same topic and group once this one is no longer referenced.

    No record stops it: what cannot be read goes to an errors topic, or is passed over, is logged and counted, and the next one is handed out.

    Attributes:
        given_up: Number of units not handed out, by reason: `expired`, `redelivery-limit`, `failed` (cannot be read).
    """

    def __init__(
        self,
        consumption: Consumption,
        interpret: Interpreter[T_co],
        given_up: Counter[Failure],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.given_up = given_up
        self._session: ReaderSession | None = None
        self._consumption = consumption
        self._interpret = interpret
        self._clock = clock
        self._stopping = threading.Event()
        self._is_interrupted = False
        self._open: Callable[[Any], Reader[T_co]] | None = None
        self._renew_on: Any = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T_co:
        received = self.receive(None)
        assert received is not None
        return received

    def receive(self, timeout: float | None = None) -> T_co | None:
        """The next one, or None when none came within `timeout` seconds (None: waits for ever).

        While no broker answers, it waits for the blocking time at most (R-43, R-44). Under strict order one that was handed out and is not done
        with comes again: nothing passes it (S-06).

        Raises:
            ReconnectTimeoutError: No broker answered in time; call again.
            CommitPendingError: The same, while the commit of what was forwarded goes on; call again.
            TransactionRolledBackError: What was forwarded is rolled back: those messages come again; call again.
            StaleConnectionError: A loss event ended the reader, which the policy does not refresh.
            OrderBlockedError: Under strict order: nothing came in time, and a partition stands at a record that failed.
            DestinationChangedError: Under strict order: the topic was made again, or has another partition count.
            AlreadyAttachedError: Under strict order with `strict_attach` = `fail`: other readers have all partitions.
            SubscriptionExpiredError: The committed offset is gone, or there is none and `start` is `committed`.
            ClientClosedError: Closed.
            UowError: Any other error that reading meets (R-82).
        """
        received = self._next(timeout)
        self._hand_out(received)
        return received

    def _next(self, timeout: float | None) -> T_co | None:
        """As `receive`, for a caller that hands it out."""
        received = self._receive(timeout)
        if received is None and self._consumption.blocks:
            raise OrderBlockedError("; ".join(self._blocked()))
        return received

    def _hand_out(self, received: Any) -> None:
        """The application has it now: the next commit of its session includes it."""
        if self._session is not None and received is not None:
            self._session._received(received)

    def _for_handler(self, timeout: float) -> T_co | None:
        received = self._receive(timeout)
        self._hand_out(received)
        return received

    def _before_receive(self) -> None:
        if self._session is not None:
            self._session._before_receive()

    def _blocked(self) -> Iterator[str]:
        for (topic, partition), block in self._consumption.blocks.items():
            yield f"{topic}/{partition} stands at {block.position} since {block.failures} failures: {block.cause}"

    def _receive(self, timeout: float | None) -> T_co | None:
        self._before_receive()
        self._begin_anew()
        self._consumption.take_back()
        deadline = None if timeout is None else self._clock() + timeout
        patience = Patience(self._consumption.life)
        while True:
            self._begin_anew()
            left = STEP_S if deadline is None else max(0.0, deadline - self._clock())
            polled = self._poll(min(left, STEP_S))
            if polled is not None:
                received = self._read(*polled)
                if received is not None:
                    return received
                if polled[1].run is not None:  # the rest of a unit that has begun lies ready
                    continue
            is_late = self._is_interrupted or (deadline is not None and self._clock() >= deadline)
            if polled is None or is_late:  # what was given up need not wait for more
                self._consumption.write_dead_letters()
            patience.spend(is_late)
            if is_late:
                return None

    def receive_nowait(self) -> T_co | None:
        """The next one, if it lies ready; never waits for a connection (R-45). Raises as `receive`."""
        return self.receive(0.0)

    def _poll(self, timeout: float) -> tuple[ConsumedRecord, Ownership] | None:
        return self._consumption.poll(timeout)

    def _read(self, record: ConsumedRecord, ownership: Ownership) -> T_co | None:
        with self._consumption.handling():  # whoever ends the reader waits: handles that are in use must not go
            self._consumption.require_open()
            return self._interpreted(record, ownership)

    def _interpreted(self, record: ConsumedRecord, ownership: Ownership) -> T_co | None:
        first = coordinates(record)[2] if ownership.run is None else ownership.run.first
        try:
            received = self._interpret(record, self._consumption, ownership)
            if received is not None or ownership.has_much_waiting:
                self._consumption.write_dead_letters()
        except NotYet:
            ownership.go_back(first)
            return None
        except UowError:  # not the record's fault (a broker or a registry that does not answer): read again
            ownership.go_back(first)
            raise
        if ownership.rewind is not None and ownership.rewind <= first:
            return None
        if received is not None:
            self._consumption.hand_out(ownership, first)
        return received

    def run(
        self,
        handler: Callable[[T_co], object],
        *,
        on_blocked: Callable[[OrderBlocked], object] | None = None,
        concurrency: int = 1,
        max_batch_size: int = 1,
    ) -> None:
        """Calls `handler` with each one, in order, until `stop`: it is acknowledged when the handler returns.

        One for which the handler raises stays first: its partition stands at it, other partitions are read on, and it is tried again, after
        1, 5, 15, 60, then 300 seconds each time, or at `resume` (S-12, S-14). Only what an application may catch (`Exception`) counts as a failure.

        Args:
            handler: Gets one unit or message; has done its work when it returns.
            on_blocked: Called when a partition begins to stand still.
            concurrency: Only 1 is supported; strict order overrides other values, with a warning.
            max_batch_size: The same.

        Raises:
            ConfigError: Another concurrency or batch size than 1, without strict order.
            TypeError: The handler is a coroutine function: it returns before its work is done.
            UowError: As `receive`.
        """
        try:
            self._run(self._stopping, handler, on_blocked, concurrency, max_batch_size)
        finally:
            self._stopping.clear()

    def _run(
        self,
        stopping: threading.Event,
        handler: Callable[[T_co], object],
        on_blocked: Callable[[OrderBlocked], object] | None,
        concurrency: int,
        max_batch_size: int,
    ) -> None:
        if on_blocked is not None:
            self._consumption.on_block = on_blocked
        HandlerLoop(lambda: self._consumption, self._for_handler, handler).run(
            stopping, concurrency=concurrency, max_batch_size=max_batch_size
        )

    def stop(self) -> None:
        """Ends `run` once the handler returns; may be called from any thread, and from the handler. Called before `run`, it ends that at once."""
        self._stopping.set()

    def resume(self) -> None:
        """Tries records at which partitions stand again, now; from the thread of the reader, or its handler."""
        self._consumption.resume()

    def seek(self, topic: str, partition: int, offset: int, *, break_order: str = "") -> None:
        """Reads a partition from another offset. Going back is free: what is not acknowledged comes again.

        Under strict order, going forward past what is not acknowledged needs a reason: it is recorded as an order gap (S-33).

        Args:
            topic: As of what was handed out.
            partition: Its partition.
            offset: Where to go on.
            break_order: The reason for going forward.

        Raises:
            OrderConfigError: Forward under strict order, without a reason.
            LostServerError: The partition is not read here.
            UowError: The position or the gap could not be written: nothing has changed.
        """
        ownership = self._consumption.owned(topic, partition)
        strict, position = self._consumption.strict, ownership.acknowledged
        if offset <= position or strict is None:
            ownership.go_back(offset)
            return
        if not break_order:
            rule = f"goes forward past records from {position} on, which are not acknowledged: give break_order=WHY"
            raise OrderConfigError("offset", offset, rule)
        gap = strict.gap(partition, max(position, 0), offset - 1, break_order)
        self._consumption.pass_over(ownership, offset, [gap])

    def roll_back(self) -> None:
        """Goes back to what is acknowledged: what was handed out since then comes again, with a `delivery_count` one higher (W-52)."""
        self._consumption.roll_back()

    def renew(self, connection: uow.Connection) -> None:
        """Opens this reader anew on a connection, as it was opened first: the next call that receives does it, in its own thread (R-60).

        For a destination that has moved to another cluster, and after the end of the connection that the reader was made by. The group's committed
        offsets there say where it begins. What was handed out before can no longer be acknowledged. From any thread, and from a listener.
        """
        self._renew_on = connection

    def _begin_anew(self) -> None:
        """Raises as opening a reader; then the next call tries again."""
        connection = self._renew_on
        if connection is None:
            return
        assert self._open is not None
        self._consumption.close()
        fresh = self._open(connection)
        connection._session.hand_over(fresh._consumption, self)
        fresh.given_up.update(self.given_up)
        fresh._consumption.on_block = self._consumption.on_block
        kept = {name: self.__dict__[name] for name in ("_session", "_stopping", "_is_interrupted", "_clock", "_open")}
        self.__dict__ |= fresh.__dict__ | kept  # with it, nothing is asked for any more

    def close(self) -> None:
        """Leaves the group. Units that were not acknowledged come again to the next reader."""
        self._consumption.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def message_of(
    record: ConsumedRecord,
    headers: Headers,
    consumption: Consumption,
    ownership: Ownership,
    registry: SchemaSource | None = None,
) -> Message:
    """A record as it is; `registry` is for units of another destination in it."""
    topic, partition, offset = coordinates(record)
    redelivered = ownership.hand_out(offset)
    return Message(
        topic,
        partition,
        offset,
        record.timestamp()[1],
        headers,
        consumption,
        ownership,
        redelivered,
        record.key(),
        record.value(),
        consumption.token(),
        registry,
    )


class MessageInterpreter:
    """Any record as it is; one whose headers cannot be read is given up, also if the client shows none of them."""

    def __init__(self, dead_letters: DeadLetters, hidden: UnshownHeaders, registry: SchemaSource | None) -> None:
        self._dead_letters, self._hidden, self._registry = dead_letters, hidden, registry
        self._versions: dict[Tp, PipelineVersions] = {}

    def __call__(self, record: ConsumedRecord, consumption: Consumption, ownership: Ownership) -> Message | None:
        try:
            headers = raw_headers(record)
            if not headers:
                self._hidden.check(record)
        except DecodeError as error:
            self._dead_letters.cannot_be_read(error, [(record, [])], consumption, ownership)
            return None
        if consumption.keeps_order:
            offset = coordinates(record)[2]
            cause = self._versions.setdefault(ownership.tp, PipelineVersions()).complaint(offset, headers)
            if cause:
                consumption.block(ownership, offset, cause)
                return None
        return self.message(record, headers, consumption, ownership)

    def message(
        self, record: ConsumedRecord, headers: Headers, consumption: Consumption, ownership: Ownership
    ) -> Message | None:
        """The message of a record whose headers can be read."""
        return message_of(record, headers, consumption, ownership, self._registry)


class Plain(Protocol):
    """Handles a record that is no unit."""

    def __call__(
        self, record: ConsumedRecord, headers: Headers, consumption: Consumption, ownership: Ownership
    ) -> Message | None: ...


def pass_over(record: ConsumedRecord, headers: Headers, consumption: Consumption, ownership: Ownership) -> None:
    """A plain record among units: done with as soon as a later unit is acknowledged."""


def component_of_run(
    record: ConsumedRecord, headers: Headers, ownership: Ownership, destination: str
) -> ComponentRecord | None:
    """The next component of the partition's run, which a first record begins; None for what a broken run left over.

    A record that does not go on with the run breaks it: the unit is not handed out, and that record is read again for what it is.

    Raises:
        DecodeError: The run is broken (W-12), or the record cannot be read.
    """
    run = ownership.run
    if run is None:
        if is_left_over(headers, ownership.broken):
            return None
        run = ownership.run = OpenRun(record, headers, destination)
    try:
        return run.component(record, headers)
    except DecodeError:
        ownership.run, ownership.broken = None, run.unit.unit_id
        if run.taken:
            ownership.go_back(coordinates(record)[2])
        raise


def broken_off(ownership: Ownership, run: OpenRun) -> DecodeError:
    """The error for a run whose partition ends inside it: a worker writes all of a unit in one transaction, and so it becomes visible."""
    ownership.run, ownership.broken = None, run.unit.unit_id
    error = DecodeError(POS, f"the partition ends behind place {run.taken}/{run.unit.count} of unit {run.unit.unit_id}")
    error.at(*ownership.tp, run.last)
    return error


@dataclass(frozen=True, slots=True)
class Handling:
    """The parts that a reader of units works with.

    Attributes:
        destination: Whose units they are.
        registry: For units in Confluent framing.
        references: For units of shape `reference`.
        dead_letters: Decides which units are not handed out.
    """

    destination: str
    registry: SchemaSource | None
    references: References
    dead_letters: DeadLetters


class UnitInterpreter:
    """Units as units; plain records that passed through a destination (W-121) as `plain` says."""

    def __init__(self, handling: Handling, plain: Plain) -> None:
        self._handling = handling
        self._dead_letters = handling.dead_letters
        self._plain = plain

    def __call__(
        self, record: ConsumedRecord, consumption: Consumption, ownership: Ownership
    ) -> ReceivedUnit | Message | None:
        run = ownership.run
        headers: Headers = []
        try:
            with located(record):
                headers = raw_headers(record)
                return self._interpret(record, headers, consumption, ownership)
        except DecodeError as error:
            parts = run.parts if run is not None else [(record, headers)]
            self._dead_letters.cannot_be_read(error, parts, consumption, ownership)
            return None

    def _interpret(
        self, record: ConsumedRecord, headers: Headers, consumption: Consumption, ownership: Ownership
    ) -> ReceivedUnit | Message | None:
        if ownership.run is None and not self._dead_letters.is_unit(headers):
            return self._plain(record, headers, consumption, ownership)
        if ownership.run is not None or position_of(headers) is not None:
            return self._collect(record, headers, consumption, ownership)
        parts = [(record, headers)]
        verdict = self._dead_letters.before_opening(coordinates(record)[2], consumption, ownership)
        if verdict is not None:
            self._dead_letters.carry_out(verdict, parts, consumption, ownership)
            return None
        unit, document = unit_of_record(headers, record.value(), self._handling.destination, self._handling.registry)
        return self._received(unit, parts, consumption, ownership, document)

    def _collect(
        self, record: ConsumedRecord, headers: Headers, consumption: Consumption, ownership: Ownership
    ) -> ReceivedUnit | None:
        """Takes one record of a run; the unit once it is whole."""
        component = component_of_run(record, headers, ownership, self._handling.destination)
        run = ownership.run
        if component is None or run is None:
            return None
        if not run.parts:
            run.verdict = self._dead_letters.before_opening(run.first, consumption, ownership)
        run.components.append(component)
        run.parts.append((record, headers))
        if not run.is_whole:
            return None
        ownership.run = None
        if run.verdict is not None:
            self._dead_letters.carry_out(run.verdict, run.parts, consumption, ownership)
            return None
        unit = replace(run.unit, components=tuple(run.components))
        return self._received(unit, run.parts, consumption, ownership)

    def _received(
        self,
        unit: Unit,
        parts: Sequence[Part],
        consumption: Consumption,
        ownership: Ownership,
        document: bytes | None = None,
    ) -> ReceivedUnit | None:
        """The unit, unless it is given up."""
        first, headers = parts[0]
        if position_of(headers) is not None:
            headers = unit_headers(parts[-1][1])
        verdict = self._dead_letters.against(unit, consumption)
        if verdict is not None:
            self._dead_letters.carry_out(verdict, parts, consumption, ownership)
            return None
        if any(component.reference is not None for component in unit.components):
            unit = replace(unit, components=tuple(self._handling.references.fetch(unit.components)))
        topic, partition, offset = coordinates(first)
        redelivered = ownership.hand_out(offset)
        common = (
            topic,
            partition,
            offset,
            first.timestamp()[1],
            headers,
            consumption,
            ownership,
            redelivered,
            unit,
            ownership.deliveries.of(offset),
            tuple([ReceivedComponent(component, self._handling.registry) for component in unit.components]),
            coordinates(parts[-1][0])[2],
        )
        return ReceivedUnit(*common) if document is None else ReceivedDocument(*common, document)


class UnitsOnly(UnitInterpreter):
    """Units and nothing else."""

    def __init__(self, handling: Handling) -> None:
        super().__init__(handling, pass_over)

    def __call__(self, record: ConsumedRecord, consumption: Consumption, ownership: Ownership) -> ReceivedUnit | None:
        received = super().__call__(record, consumption, ownership)
        return received if isinstance(received, ReceivedUnit) else None
