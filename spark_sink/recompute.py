"""What should have become of every record of `D.components`, computed again from the log with the project's own core.

The records of a partition go through `processor.core.partition` in offset order, and each comes out with exactly one *fate*: part of a
unit, rejected, dropped as a duplicate, passed, sent on to another partition, given up with its group, or still open.

Time. A group's deadline is a matter of its components' append times, and what closes by time closes *at* its deadline, whenever a worker
noticed. An arriving record moves the clock first, so everything that was due before the last record of a partition is decided by the
log alone. What falls due after it was, or will be, closed by a worker's wall clock, which no log tells. Such a group is computed as it
closes then, and its rows carry `due`: the audit takes what was recorded as fact, and checks that it is legal.

Commands come from a log of their own. Behind which record one was decided, and what the clock had closed by then, follows from the
ledger record of its transaction: which part of the input the poll had read, and the clock before it. Within a poll append times decide, as
in the worker. What the clock closed by then carries `due` as well.

Belongs here: fates and groups as rows, from records alone. Does not belong here: Spark's reading and comparing (`spark_sink.audit`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from hashlib import sha256
from itertools import takewhile
from typing import Any, Final, NamedTuple

from processor.core.changes import Answered, Closed, Delivered, Dropped, GivenUp, Passed, Rejected, Rerouted, TakenOut
from processor.core.decide import decide_due
from processor.core.group import NEVER, Group
from processor.core.partition import Partition, Place
from processor.core.unit import UnitMaker
from schemas import formats
from schemas.checksum import by_reference
from schemas.component import decode_component, encode_component
from schemas.errors import DecodeError, MisroutedComponentError, UnitTooLargeError, UowError
from schemas.records import Component, Reason, UnitOutcome, bounded_ranges, ranges_text
from schemas.stayed import stays
from topics import headers as names
from topics.catalogue import HEADERS_LIMIT, RECORD_LIMIT_BYTES, DestinationTopics
from topics.commands import Command, read_command
from topics.policies import DestinationPolicy, ExpirationPolicy, Shape, ValueFormat
from topics.routes import topics_of
from topics.runs import first_of_many_gaps, record_headers, unit_part

Headers = Sequence[tuple[str, bytes | None]]


class Fate(StrEnum):
    """What became of a record (W-216). `partial` units count as delivered; a rerouted record counts as passed on the partition it leaves."""

    DELIVERED = "delivered"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    FAILED = "failed"
    OPEN = "open"
    REJECTED = "rejected"
    DROPPED = "dropped"
    PASSED = "passed"
    REROUTED = "rerouted"
    UNACCOUNTED = "unaccounted"
    """The core lost it: our bug."""


FATE_OF: Final = {
    UnitOutcome.COMPLETE: Fate.DELIVERED,
    UnitOutcome.PARTIAL: Fate.DELIVERED,
    UnitOutcome.EXPIRED: Fate.EXPIRED,
    UnitOutcome.CANCELLED: Fate.CANCELLED,
    UnitOutcome.FAILED: Fate.FAILED,
}


class Row(NamedTuple):
    """One row of the result: of a record (`kind` = `record`) or of a closed group (`kind` = `group`).

    Attributes:
        kind: `record` or `group`.
        fate: See `Fate`.
        partition: Of `D.components`.
        offset: Of the record; of a group the last one that it held.
        id: Group id, None where none can be read.
        generation: Of the group.
        unit_id: Of the group; on a passed record what its own header says.
        position: Place in the unit, from 1.
        seq: Sequence number.
        end: End mark.
        component_id: `uow-component-id`.
        at: Append time, epoch ms.
        content: Digest of key, value and headers.
        content_before: Of a component of a unit of shape `consecutive`: the same of what an earlier version told of it.
        header_count: How many headers the record has.
        error_class: Of a refused record, or of a given-up group.
        error_case: The same.
        to_errors: Whether the group's components go to `D.errors`.
        due: Where the log alone does not tell whether the group closed: the clock value from which it may. Else None.
        outcome: How the group closed.
        reason: Why.
        opened_at: Epoch ms, as the other times.
        closed_at: The partition's clock.
        expires_at: None for never.
        size: Components held.
        held_bytes: Sum of their sizes; of a record, its own.
        missing: Ranges as text.
        headers: The unit's headers.
        topics: Where the unit goes by its routes; of a component, where its unit does.
    """

    kind: str
    fate: str
    partition: int
    offset: int | None = None
    id: str | None = None
    generation: int | None = None
    unit_id: str | None = None
    position: int | None = None
    seq: int | None = None
    end: bool | None = None
    component_id: str | None = None
    at: int | None = None
    content: bytes | None = None
    content_before: bytes | None = None
    header_count: int | None = None
    error_class: str | None = None
    error_case: str | None = None
    to_errors: bool = False
    due: int | None = None
    outcome: str | None = None
    reason: str | None = None
    opened_at: int | None = None
    closed_at: int | None = None
    expires_at: int | None = None
    size: int | None = None
    held_bytes: int | None = None
    missing: str | None = None
    headers: list[tuple[str, bytes | None]] | None = None
    topics: list[str] | None = None


COLUMNS: Final = (
    "kind STRING, fate STRING, partition INT, offset BIGINT, id STRING, generation BIGINT, unit_id STRING, position INT, seq INT, "
    "`end` BOOLEAN, component_id STRING, at BIGINT, content BINARY, content_before BINARY, header_count INT, error_class STRING, error_case STRING, to_errors BOOLEAN, "
    "due BIGINT, outcome STRING, reason STRING, opened_at BIGINT, closed_at BIGINT, expires_at BIGINT, size INT, held_bytes BIGINT, "
    "missing STRING, headers ARRAY<STRUCT<name: STRING, value: BINARY>>, topics ARRAY<STRING>"
)
"""The fields of `Row` as Spark DDL."""

RECORD: Final = "record"
GROUP: Final = "group"


class Arrived:
    """A record of `D.components` as the core reads it, and a digest to know it by.

    Args:
        offset: Its offset.
        at: Append time, epoch ms.
        key: Key.
        value: Value.
        headers: Headers, all of them, in order.
        content: Digest of key, value and headers.
    """

    __slots__ = ("_at", "_headers", "_key", "_offset", "_value", "content")

    def __init__(
        self, offset: int, at: int, key: bytes | None, value: bytes | None, headers: Headers, content: bytes | None
    ) -> None:
        self._offset, self._at, self._key, self._value, self._headers = offset, at, key, value, headers
        self.content = content

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def timestamp(self) -> tuple[int, int]:
        return 2, self._at

    def headers(self) -> Headers:
        """The headers, as the worker's client gives them: it cannot give any where a name is no UTF-8.

        Java puts U+FFFD where a name cannot be read. Too many headers are to the client like none.
        """
        if len(self._headers) > HEADERS_LIMIT:
            return ()
        if self.is_broken:
            raise UnicodeDecodeError("utf-8", b"", 0, 1, "a header name is no UTF-8")
        return self._headers

    @property
    def is_broken(self) -> bool:
        """Whether the worker's client cannot show the headers: a name that is no UTF-8, or too many of them."""
        return len(self._headers) > HEADERS_LIMIT or any("\ufffd" in name for name, _ in self._headers)

    @property
    def header_count(self) -> int:
        """How many headers the worker saw."""
        return 0 if self.is_broken else len(self._headers)

    @property
    def unit_id(self) -> str | None:
        """What the record says if it is a finished unit that was sent on."""
        found = [value for name, value in self._headers if name == names.UNIT_ID and value is not None]
        return found[-1].decode("utf-8", "replace") if found else None


class Decided(NamedTuple):
    """What a ledger record tells of the commands that its transaction decided.

    Attributes:
        partition: Of `D.components`, as of `D.commands`.
        start: Input position before it.
        stop: Input position after it.
        clock: The partition's clock before it.
        commands: Their ids and append times.
    """

    partition: int
    start: int
    stop: int
    clock: int
    commands: Sequence[tuple[bytes, int]]


class Order(NamedTuple):
    """A command where it was decided; the attributes are those of `Decided`."""

    start: int
    stop: int
    clock: int
    record: Arrived

    def follows(self, other: Arrived) -> bool:
        """Whether the worker had judged a record of the input when it decided this."""
        arrived = other.timestamp()[1] <= self.record.timestamp()[1]
        return other.offset() < self.start or (other.offset() < self.stop and arrived)


Known = tuple[int, bytes, int]
"""What a command is known by in ledger and answers: partition, its id, append time."""


def orders_of(decided: Iterable[Decided], commands: Iterable[tuple[int, Arrived]]) -> dict[Known, Order]:
    """Every command that was decided and can still be read, in the order of its partition's ledger.

    Args:
        decided: From the ledger, each partition in order.
        commands: Records of `D.commands` with their partitions, each partition in order.
    """
    said: dict[Known, Arrived] = {}
    for partition, record in commands:
        command = None if record.is_broken else read_command(record.headers())
        if isinstance(command, Command) and not command.dry_run:
            said.setdefault((partition, command.id, record.timestamp()[1]), record)
    return {
        known: Order(one.start, one.stop, one.clock, said[known])
        for one in decided
        for known in ((one.partition, *command) for command in one.commands)
        if known in said
    }


class Recomputation:
    """Computes the fates of one partition's records.

    Args:
        place: Which partition.
        policy: Of the destination.
        orders: The commands that were decided, in order.
    """

    def __init__(self, place: Place, policy: DestinationPolicy, orders: Iterable[Order] = ()) -> None:
        self._place = place
        self._policy = policy
        self._partition = Partition(place, policy)
        self._maker = UnitMaker(place.destination, place.topic, place.partition, self._partition.reading)
        self._units = DestinationTopics("", place.destination).units
        self._arrived: dict[int, tuple[bytes | None, bytes | None, int]] = {}
        self._orders = deque(orders)

    def feed(self, records: Sequence[Arrived]) -> Iterator[Row]:
        """What the next records, in offset order, bring about: rows of records whose fate is now known, and of groups now closed."""
        if not records:
            return
        assert records[0].offset() >= self._partition.position, "records come in offset order"
        for each in records:
            self._arrived[each.offset()] = each.content, self._content_elsewhere(each), each.header_count
        while self._orders:
            before = len([*takewhile(self._orders[0].follows, records)])
            if before == len(records):
                break
            yield from self._judge(records[:before])
            records = records[before:]
            yield from self._obey(self._orders.popleft())
        yield from self._judge(records)

    def _elsewhere(self, record: Arrived) -> tuple[bytes | None, bytes | None, Headers]:
        """Key, value and headers of a record where it must not look like a unit: on `D.units` and `D.errors` (line 2)."""
        headers = record.headers() if not record.is_broken else ()
        return record.key(), record.value(), names.as_origin(headers) if self._policy.forms_units else headers

    def _content_elsewhere(self, record: Arrived) -> bytes | None:
        there = self._elsewhere(record)
        return record.content if record.is_broken or there[2] == [*record.headers()] else digest(*there)

    def _judge(self, records: Sequence[Arrived]) -> Iterator[Row]:
        self._partition.feed(records)
        yield from self._happened({each.offset(): each for each in records})

    def _obey(self, order: Order) -> Iterator[Row]:
        self._partition.advance(order.clock)
        yield from self._happened({}, by_clock=True)
        self._partition.obey([order.record], lambda at: True)
        yield from self._happened({})

    def _happened(self, here: Mapping[int, Arrived], by_clock: bool = False) -> Iterator[Row]:
        for effect, record, group in self._partition.settle().effects:
            match effect:
                case GivenUp() if group is None:
                    pass  # nothing was held of it
                case Delivered() | GivenUp():
                    assert group is not None
                    amended = self._amended(group, effect)
                    yield from self._closed(group, amended, amended.closed.at if by_clock else None)
                case TakenOut():
                    assert group is not None
                    yield self._taken_out(group, effect)
                case Answered():
                    pass
                case _:
                    assert record is not None
                    yield self._alone(here[record.offset()], effect)

    def finish(self) -> Iterator[Row]:
        """The last commands, and the groups that are open then: those that time may have closed since carry `due`."""
        while self._orders:
            yield from self._obey(self._orders.popleft())
        for group in self._partition.groups.values():
            due = group.due_at(self._policy)
            if due == NEVER:
                yield from self._records(group, Fate.OPEN)
                continue
            for effect in decide_due(group, due, self._partition.position, self._policy).effects:
                assert isinstance(effect, Delivered | GivenUp)
                yield from self._closed(group, self._amended(group, effect), due)
        for offset, (content, _, header_count) in self._arrived.items():
            yield Row(
                RECORD, Fate.UNACCOUNTED, self._place.partition, offset, content=content, header_count=header_count
            )

    def _amended(self, group: Group, effect: Delivered | GivenUp) -> Delivered | GivenUp:
        """A unit that fits its records in no way fails while it is written (W-115)."""
        if isinstance(effect, GivenUp) or self._shape(group, effect.closed) is not None:
            return effect
        failed = effect.closed._replace(outcome=UnitOutcome.FAILED, reason=Reason.LIMIT)
        self._partition.amend(effect.closed, failed, len(group.held))
        return GivenUp(failed, UnitTooLargeError)

    def _shape(self, group: Group, closed: Closed) -> Shape | None:
        """The shape that a worker writes the unit in; None where it fits in none (W-115, W-208)."""
        shape = self._policy.shape
        if group.bytes <= HEADERS_LIMIT and len(group.held) <= _SURELY_LISTED:
            return shape
        if shape is Shape.ENVELOPE and self._fits(group, closed, group.in_order()):
            return shape
        otherwise = self._policy.oversize.value if shape is Shape.ENVELOPE else shape.value
        if otherwise == Shape.CONSECUTIVE:
            run = self._run(group, closed)
            fits = all(fits_record(record_bytes(group.id, part.value, said), said) for part, said in run)
            return Shape.CONSECUTIVE if fits else None
        if otherwise == Shape.REFERENCE:
            places = [encode_component(by_reference(decode_component(body))) for body in group.in_order()]
            return Shape.REFERENCE if self._fits(group, closed, places) else None
        return None

    def _fits(self, group: Group, closed: Closed, bodies: Sequence[bytes]) -> bool:
        tail = self._maker.tail(group)
        unit_id = self._maker.unit_id(group.id, group.generation, tail)
        missing = group.missing() if closed.outcome is UnitOutcome.PARTIAL else ()
        if self._policy.value_format is ValueFormat.AVRO:
            length = _FRAME_BYTES + len(self._maker.body(b"", group, closed, unit_id, missing, bodies))
        else:
            to_text = formats.to_json if self._policy.value_format is ValueFormat.JSON else formats.to_xml
            unit = self._maker.record(group, closed, unit_id, missing)
            length = len(to_text(replace(unit, components=tuple(map(decode_component, bodies)))))
        headers = self._maker.headers(group, closed, unit_id, tail, missing)
        return fits_record(length + record_bytes(group.id, None, headers), headers)

    def _run(self, group: Group, closed: Closed) -> Iterator[tuple[Component, Headers]]:
        """Components and headers of the records of a unit of shape `consecutive`."""
        tail = self._maker.tail(group)
        unit_id = self._maker.unit_id(group.id, group.generation, tail)
        missing = group.missing() if closed.outcome is UnitOutcome.PARTIAL else ()
        is_user_header = self._maker.reading.is_user_header
        unit_headers = self._maker.headers(group, closed, unit_id, tail, missing)
        common = unit_part(unit_headers, group.opened_at, closed.at, group.bytes, is_user_header)
        for position, component in enumerate(map(decode_component, group.in_order()), 1):
            headers = record_headers(common, component, position, len(group.held), is_user_header)
            yield component, first_of_many_gaps(headers, missing) if position == 1 else headers

    def _alone(self, record: Arrived, effect: Any) -> Row:
        content, elsewhere, header_count = self._arrived.pop(record.offset())
        size = record_bytes(record.key(), record.value(), () if record.is_broken else record.headers())
        row = Row(
            RECORD,
            "",
            self._place.partition,
            record.offset(),
            content=content,
            header_count=header_count,
            held_bytes=size,
        )
        match effect:
            case Rejected(refusal):
                return row._replace(
                    fate=Fate.REJECTED,
                    id=None if refusal.id is None else refusal.id.decode(),
                    error_class=refusal.error.__name__,
                    error_case=refusal.case,
                )
            case Passed() if record.is_broken:
                # the worker's client shows such headers as none; whether they are is found out before it passes
                return row._replace(fate=Fate.REJECTED, error_class=DecodeError.__name__, error_case="headers")
            case Passed() if record_bytes(*self._elsewhere(record)) > RECORD_LIMIT_BYTES:
                # small enough for the input only while it was compressed
                return row._replace(fate=Fate.REJECTED, error_class=UnitTooLargeError.__name__, error_case="bytes")
            case Passed():
                return row._replace(fate=Fate.PASSED, unit_id=record.unit_id, content=elsewhere)
            case Rerouted() if (
                size + len(names.REROUTED) + 17 > _INPUT_LIMIT_BYTES or record.header_count >= HEADERS_LIMIT
            ):
                # with one more header it would not fit the input again
                return row._replace(fate=Fate.REJECTED, error_class=MisroutedComponentError.__name__, error_case="")
            case Rerouted():
                return row._replace(fate=Fate.REROUTED)
            case Dropped(case):
                return row._replace(fate=Fate.DROPPED, error_case=case)
        raise AssertionError(effect)

    def _closed(self, group: Group, effect: Delivered | GivenUp, due: int | None) -> Iterator[Row]:
        closed = effect.closed
        tail = self._maker.tail(group)
        unit_id = self._maker.unit_id(group.id, group.generation, tail)
        missing = () if closed.outcome is UnitOutcome.COMPLETE else group.missing()
        is_unit = isinstance(effect, Delivered)
        headers = self._maker.headers(group, closed, unit_id, tail, missing) if is_unit else None
        routes, matching = self._policy.routes, self._policy.route_matching
        fate = FATE_OF[closed.outcome]
        shared = Row(
            GROUP,
            fate,
            self._place.partition,
            id=group.id.decode(),
            generation=group.generation,
            unit_id=unit_id.decode(),
            error_class=effect.error.__name__ if isinstance(effect, GivenUp) else None,
            error_case=closed.reason.value if isinstance(effect, GivenUp) else None,
            to_errors=not is_unit and goes_to_errors(closed, self._policy),
            due=due,
            missing=ranges_text(missing if is_unit else bounded_ranges(missing)),
            topics=None if headers is None else topics_of(routes, matching, self._units, headers),
        )
        rows: Iterable[Row] = [*self._records(group, fate, shared)]
        row = shared._replace(
            outcome=closed.outcome.value,
            reason=closed.reason.value,
            opened_at=group.opened_at,
            closed_at=closed.at,
            expires_at=group.expires_at or None,
            offset=max((each.offset for each in rows if each.offset is not None), default=None),
            size=len(group.held),
            held_bytes=group.bytes,
            headers=headers,
        )
        if is_unit and self._shape(group, closed) is Shape.CONSECUTIVE:
            run = [*self._run(group, closed)]
            row = row._replace(headers=[*run[0][1]])
            rows = map(self._in_run, rows, [component for component, _ in run])
        yield row
        yield from rows

    def _in_run(self, row: Row, component: Component) -> Row:
        """What a record of a run told of a component before runs told all: its user headers, under the group id."""
        own = [pair for pair in component.headers if self._maker.reading.is_user_header(pair[0])]
        return row._replace(content_before=digest((row.id or "").encode(), component.value, own))

    def _records(self, group: Group, fate: Fate, shared: Row | None = None) -> Iterator[Row]:
        shared = shared or Row(RECORD, fate, self._place.partition, id=group.id.decode(), generation=group.generation)
        for position, body in enumerate(group.in_order(), 1):
            yield self._component(shared, position, body)

    def _taken_out(self, group: Group, effect: TakenOut) -> Row:
        """A component that a command removed goes to `D.errors` alone (W-76)."""
        shared = Row(
            RECORD,
            Fate.CANCELLED,
            self._place.partition,
            id=group.id.decode(),
            generation=group.generation,
            error_class=UowError.__name__,
            error_case=Reason.COMMAND.value,
            to_errors=True,
            missing=ranges_text(bounded_ranges(effect.missing)),
        )
        return self._component(shared, None, effect.body)

    def _component(self, shared: Row, position: int | None, body: bytes) -> Row:
        component = decode_component(body)
        offset = component.source.offset
        content, elsewhere, header_count = self._arrived.pop(offset)
        return shared._replace(
            kind=RECORD,
            offset=offset,
            position=position,
            seq=component.seq,
            end=component.end,
            component_id=component.component_id,
            at=component.timestamp,
            content=elsewhere if shared.to_errors else content,
            header_count=header_count,
            held_bytes=len(body) + stays(body),
        )


def digest(key: bytes | None, value: bytes | None, headers: Headers) -> bytes:
    """What `spark_sink.comparison.content` makes of key, value and headers."""
    pairs = ",".join(
        f"{name.encode().hex().upper()}={'-' if raw is None else raw.hex().upper()}" for name, raw in headers
    )
    both = "/".join("-" if data is None else sha256(data).hexdigest() for data in (key, value))
    return sha256(f"{both}/{pairs}".encode()).digest()


_SURELY_LISTED: Final = 10_000
"""So many components are surely no too long list of references."""
_FRAME_BYTES: Final = 10
_INPUT_LIMIT_BYTES: Final = 1_048_588
"""Record limit of `D.components`: Kafka's default, which we leave as it is."""
_OVERHEAD_BYTES: Final = 1024
"""Room that a worker leaves for a record's own fields."""


def record_bytes(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Bytes of a record as a worker reckons them, generously, against the limit of every topic that it writes."""
    named = sum(len(name) + len(raw or b"") + 16 for name, raw in headers)
    return len(key or b"") + len(value or b"") + named + _OVERHEAD_BYTES


def fits_record(size_bytes: int, headers: Headers) -> bool:
    """Whether a record of so many bytes holds these headers."""
    return size_bytes <= RECORD_LIMIT_BYTES and len(headers) <= HEADERS_LIMIT


def goes_to_errors(closed: Closed, policy: DestinationPolicy) -> bool:
    """Whether the components of a group that was given up go to `D.errors` (W-71, W-78 to W-80, W-207)."""
    leaves_nothing = policy.expiration_policy in (ExpirationPolicy.DISCARD, ExpirationPolicy.LOG)
    return closed.outcome is not UnitOutcome.EXPIRED or not leaves_nothing


def recompute(
    place: Place, policy: DestinationPolicy, batches: Iterable[Sequence[Arrived]], orders: Iterable[Order] = ()
) -> Iterator[Row]:
    """Rows of one partition, from all of its records in offset order, in as many batches as one likes, and its commands.

    Raises:
        UowError: Our bug (`InvariantViolation`), with the state that shows it.
    """
    recomputation = Recomputation(place, policy, orders)
    for batch in batches:
        yield from recomputation.feed(batch)
    yield from recomputation.finish()
