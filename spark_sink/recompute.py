"""The expected fate of every record of `D.components`, computed again from the log with the project's own core.

The records of a partition go through `uow.processor.core.partition` in offset order, and each gets exactly one *fate*: part of a
unit, rejected, dropped as a duplicate, passed, sent on to another partition, given up with its group, or still open.

Time. A group's deadline follows from its components' append times, and a group that closes by time closes *at* its deadline, whenever a worker
noticed it. An arriving record moves the clock first, so every group that was due before the last record of a partition is decided by the
log alone. A group that became due later was, or will be, closed by a worker's wall clock, which is in no log. Such a group is computed as if it
had closed at its deadline, and its rows have `due`: the audit accepts the recorded outcome, and checks that it was allowed.

Commands come from a log of their own. The position at which a command was decided, and the groups that the clock had closed by then, follow from
the ledger record of its transaction: the part of the input that the poll had read, and the clock before it. Within a poll append times
decide, as in the worker. Groups that the clock had closed by then also have `due`.

Groups by rule. Their rows come from `A-rules`, so that they are formed by what was in force then. What time closes among them is closed once the
routers' inputs are read, which no log of the destination tells; so such a group is closed here where the ledger says that the worker closed it, if its
deadline had passed then. Like every group that time closes it has `due`, and its record is judged.

Belongs here: fates and groups as rows, from records alone. Does not belong here: Spark's reading and comparing (`uow.spark_sink.audit`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from enum import StrEnum
from hashlib import sha256
from itertools import takewhile
from types import MappingProxyType
from typing import Final, NamedTuple

from uow.processor.core.changes import (
    Answered,
    Closed,
    DeadlineWarning,
    Delivered,
    Dropped,
    Effect,
    Passed,
    Rejected,
    Rerouted,
    TakenOut,
    Undelivered,
)
from uow.processor.core.decide import Situation, decide_due, pieces_given_up
from uow.processor.core.gathered import NEVER
from uow.processor.core.group import Group
from uow.processor.core.partition import Partition
from uow.processor.core.partition_state import PartitionAddress
from uow.processor.core.plan_size import UNBOUNDED
from uow.processor.core.rule_documents import rule_formats
from uow.processor.core.virtual_message import UnitMaker, target_of
from uow.schemas import formats
from uow.schemas.checksum import by_reference
from uow.schemas.claim_check import external_bytes
from uow.schemas.component import decode_component, encode_component
from uow.schemas.error_classes import (
    MisroutedComponentError,
    UnitTooLargeError,
    UowError,
)
from uow.schemas.records import (
    ComponentRecord,
    Reason,
    UnitOutcome,
    bounded_ranges,
    ranges_text,
)
from uow.spark_sink.destination_rules import NO_RULES
from uow.spark_sink.told_placement import ToldPlacement
from uow.topics import headers as names
from uow.topics.catalogue import HEADERS_LIMIT, RECORD_LIMIT_BYTES, DestinationTopics
from uow.topics.command_keys import LOG_APPEND_TIME
from uow.topics.commands import Command, CommandReader
from uow.topics.grouping import GroupPolicy
from uow.topics.headers import Reading
from uow.topics.policies import (
    DestinationPolicy,
    ExpirationPolicy,
    Oversize,
    Shape,
    ValueFormat,
)
from uow.topics.record_size import INPUT_LIMIT_BYTES, RecordLimit, record_size
from uow.topics.routes import topics_of
from uow.topics.rules import ResolvedRow
from uow.topics.runs import first_of_many_gaps, record_headers, unit_part

Headers = Sequence[tuple[str, bytes | None]]


class Fate(StrEnum):
    """The fate of a record (W-216). `partial` units count as delivered; a rerouted record counts as passed on the partition that it leaves."""

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
    """The core lost it, which is a bug of the project."""


FATE_OF: Final = {
    UnitOutcome.COMPLETE: Fate.DELIVERED,
    UnitOutcome.PARTIAL: Fate.DELIVERED,
    UnitOutcome.EXPIRED: Fate.EXPIRED,
    UnitOutcome.CANCELLED: Fate.CANCELLED,
    UnitOutcome.FAILED: Fate.FAILED,
}


class Row(NamedTuple):
    """One row of the result, for a record (`kind` = `record`) or a closed group (`kind` = `group`).

    Attributes:
        kind: `record` or `group`.
        fate: See `Fate`.
        partition: Of `D.components`.
        offset: Of the record; of a group the input position when it closed.
        id: Group id; None if none can be read.
        generation: Of the group.
        unit_id: Unit id of the group.
        position: Place in the unit, from 1.
        seq: Sequence number.
        end: End mark.
        component_id: `uow-component-id`.
        at: Append time, epoch ms.
        content: Digest of key, value and headers.
        content_before: The same digest as an earlier version would give, for a component of a unit of shape `consecutive`.
        header_count: Number of headers of the record.
        error_class: Error class of a refused record or of a given-up group.
        error_case: Its error case.
        to_errors: True if the group's components go to `D.errors`.
        due: The clock value from which the group may be closed, if the log alone does not decide it; else None.
        outcome: Outcome of the group.
        reason: Reason of the outcome.
        opened_at: Epoch ms, as the other times.
        closed_at: The partition's clock at that time.
        expires_at: None for never.
        size: Number of components held.
        held_bytes: Sum of their sizes; for a record its own size.
        missing: Ranges as text.
        key: The unit's key.
        headers: The unit's headers.
        topics: Topics that the unit goes to by its routes, or the target of its rule; for a component those of its unit.
        document: Digest of the unit's value, where its rule makes a document of it.
        is_listed: False for a component that is in no table beside the unit: its unit is a document in XML.
        is_run: True for a unit of shape `consecutive`, whose components are rows of their own in either form of the tables.
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
    key: bytes | None = None
    headers: list[tuple[str, bytes | None]] | None = None
    topics: list[str] | None = None
    document: bytes | None = None
    is_listed: bool = True
    is_run: bool = False


COLUMNS: Final = (
    "kind STRING, fate STRING, partition INT, offset BIGINT, id STRING, generation BIGINT, unit_id STRING, position INT, seq INT, "
    "`end` BOOLEAN, component_id STRING, at BIGINT, content BINARY, content_before BINARY, header_count INT, error_class STRING, error_case STRING, to_errors BOOLEAN, "
    "due BIGINT, outcome STRING, reason STRING, opened_at BIGINT, closed_at BIGINT, expires_at BIGINT, size INT, held_bytes BIGINT, "
    "missing STRING, key BINARY, headers ARRAY<STRUCT<name: STRING, value: BINARY>>, topics ARRAY<STRING>, document BINARY, is_listed BOOLEAN, is_run BOOLEAN"
)
"""The fields of `Row` as Spark DDL."""

RECORD: Final = "record"
GROUP: Final = "group"


class Arrived:
    """A record of `D.components` as the core reads it.

    Args:
        offset: Its offset.
        at: Append time, epoch ms.
        key: Key.
        value: Value.
        headers: Headers, all of them, in order; None if the worker's client cannot read them.
        kind: Of its timestamp.
    """

    __slots__ = ("_headers", "_key", "_offset", "_timestamp", "_value")

    def __init__(
        self,
        offset: int,
        at: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None,
        kind: int = LOG_APPEND_TIME,
    ) -> None:
        self._offset, self._timestamp, self._key, self._value, self._headers = offset, (kind, at), key, value, headers

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def timestamp(self) -> tuple[int, int]:
        return self._timestamp

    def headers(self) -> Headers:
        """The headers. Raises UnicodeDecodeError if they cannot be read, as the worker's client does."""
        if self._headers is None:
            raise UnicodeDecodeError("utf-8", b"", 0, 1, "headers that cannot be read")
        return self._headers

    @property
    def shown(self) -> Headers:
        """The headers, as far as they can be read."""
        return self._headers or ()


class Decided(NamedTuple):
    """The commands that one transaction decided, from its ledger record.

    Attributes:
        partition: Partition number of both `D.components` and `D.commands`.
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
    """A command with the position at which it was decided; the attributes are those of `Decided`."""

    start: int
    stop: int
    clock: int
    record: Arrived

    def follows(self, other: Arrived) -> bool:
        """True if the worker had judged a record of the input before it decided this command."""
        arrived = other.timestamp()[1] <= self.record.timestamp()[1]
        return other.offset() < self.start or (other.offset() < self.stop and arrived)


class Tick(NamedTuple):
    """A transaction without input and commands, from its ledger record: what time did to groups.

    Attributes:
        position: Input position of it.
        until: What was due by then may have been done, epoch ms: the partition's clock after it, or the append time of the record if that is earlier.
        closed: Id and generation of each group that it closed.
    """

    position: int
    until: int
    closed: frozenset[tuple[bytes, int]]

    def follows(self, other: Arrived) -> bool:
        """True if the worker had judged a record of the input before."""
        return other.offset() < self.position


Known = tuple[int, bytes, int]
"""Key of a command in ledger and answers: partition, what it is remembered by, append time."""


def orders_of(
    decided: Iterable[Decided], commands: Iterable[tuple[int, Arrived]], reader: CommandReader
) -> dict[Known, Order]:
    """Every command that was decided and can still be read, in the order of its partition's ledger.

    Args:
        decided: From the ledger, each partition in order.
        commands: Records of `D.commands` with their partitions, each partition in order.
        reader: Reads them.
    """
    said: dict[Known, Arrived] = {}
    for partition, record in commands:
        command = reader.read(record.shown, record)
        if isinstance(command, Command) and not command.dry_run:
            said.setdefault((partition, command.known_as, record.timestamp()[1]), record)
    return {
        known: Order(one.start, one.stop, one.clock, said[known])
        for one in decided
        for known in ((one.partition, *command) for command in one.commands)
        if known in said
    }


class Happening(NamedTuple):
    """The fate of one record, or of a group with all records that it held.

    Attributes:
        effect: The meaning of it; None for a group that is still open.
        record: The record, if it stands alone.
        group: The group otherwise.
        due: The clock value from which the group may be closed, if the log alone does not decide it; else None.
    """

    effect: Effect | None
    record: Arrived | None = None
    group: Group | None = None
    due: int | None = None


class Recomputation:
    """Computes the fates of one partition's records.

    Args:
        place: Address of the partition.
        policy: Of the destination.
        orders: The commands that were decided, and with rules the ticks, in order.
        partition: The state to go on from; by default that of a partition without records.
        placement: Under path routing, the `partition_for` of its address.
        asides: By offset, why a record was set aside: at it the code failed, or a command said so, which no log of the input tells.
    """

    def __init__(
        self,
        place: PartitionAddress,
        policy: DestinationPolicy,
        orders: Iterable[Order | Tick] = (),
        partition: Partition | None = None,
        placement: ToldPlacement | None = None,
        asides: Mapping[int, UowError] = MappingProxyType({}),
    ) -> None:
        self._asides = asides
        self._policy, self._placement = policy, placement
        self._partition = partition or empty_partition(place, policy)
        self._maker = UnitMaker(place.destination, place.topic, place.partition, self._partition.reading)
        self._orders: deque[Order | Tick] = deque(orders)

    @property
    def partition(self) -> Partition:
        """Its state."""
        return self._partition

    def obey(self, orders: Iterable[Order | Tick]) -> None:
        """Takes further commands and ticks; they must be known before the records that came after them."""
        self._orders.extend(orders)

    def on_records(self, records: Sequence[Arrived]) -> Iterator[Happening]:
        """Takes the next records, in offset order. Yields the fates that are now known."""
        if not records:
            return
        assert records[0].offset() >= self._partition.position, "records come in offset order"
        while self._orders:
            before = len([*takewhile(self._orders[0].follows, records)])
            if before == len(records):
                break
            yield from self._judge(records[:before])
            records = records[before:]
            yield from self._obey(self._orders.popleft())
        yield from self._judge(records)

    def _judge(self, records: Sequence[Arrived]) -> Iterator[Happening]:
        for portion in self._apart(records):
            why = self._asides.get(portion[0].offset()) if portion else None
            if why is not None:
                self._partition.set_aside(portion[0], why)
            elif self._placement is None:
                self._partition.on_records(portion)
            else:
                for part in self._placement.portions(portion):
                    self._partition.on_records(part)
                    yield from self._happened({each.offset(): each for each in part})
            yield from self._happened({each.offset(): each for each in portion})

    def _apart(self, records: Sequence[Arrived]) -> Iterator[Sequence[Arrived]]:
        """The records, with each one apart that was set aside."""
        first = 0
        for number, record in enumerate(records) if self._asides else ():
            if record.offset() in self._asides:
                if first < number:
                    yield records[first:number]
                yield records[number : number + 1]
                first = number + 1
        if first < len(records):
            yield records[first:]

    def _obey(self, order: Order | Tick) -> Iterator[Happening]:
        if isinstance(order, Tick):
            may_be_due = not self._only_delivers_what_was_left(order)
            self._partition.advance(order.until)
            if may_be_due:
                self._partition.follow_time(order.until, order.closed)
            yield from self._happened({}, by_clock=True)
            return
        self._partition.advance(order.clock)
        yield from self._happened({}, by_clock=True)
        with nullcontext() if self._placement is None else self._placement.judging_command():
            self._partition.on_commands([order.record], lambda at: True)
        yield from self._happened({})

    def _only_delivers_what_was_left(self, tick: Tick) -> bool:
        """True if it moves no clock and closes what is closed here already, where no plan is full: then time did nothing to any other group."""
        closes_any = any(self._partition.of_generation(*each) is not None for each in tick.closed)
        return bool(tick.closed) and not closes_any and tick.until <= self._partition.clock

    def _happened(self, here: Mapping[int, Arrived], by_clock: bool = False) -> Iterator[Happening]:
        for effect, record, group in self._partition.take_happened().effects:
            match effect:
                case Undelivered() if group is None:
                    pass  # none of its components was held
                case Delivered() | Undelivered():
                    assert group is not None
                    amended = self._amended(group, effect)
                    yield Happening(amended, None, group, amended.closed.at if by_clock else None)
                case TakenOut():
                    if not by_clock:  # else a piece of a group with `due`, and is told of with it
                        yield Happening(effect, None, group)
                case DeadlineWarning() | Answered():
                    pass
                case _:
                    assert record is not None
                    yield Happening(effect, here[record.offset()])

    def settle(self) -> Iterator[Happening]:
        """Carries out all commands: no record follows that came before one of them. Yields their effects."""
        while self._orders:
            yield from self._obey(self._orders.popleft())

    def finish(self) -> Iterator[Happening]:
        """Takes the last commands. Yields their effects and the groups still open; groups that time may have closed since have `due`."""
        yield from self.settle()
        for group in self._partition.groups.values():
            due = group.closes_at(self._policy)
            if due == NEVER:
                yield Happening(None, None, group)
                continue
            effects = decide_due(Situation(group, None, None, due, self._partition.position, self._policy)).effects
            if not effects:  # by rule: it waits, or gets one more age
                yield Happening(None, None, group)
            for effect in effects:
                assert isinstance(effect, Delivered | Undelivered)
                yield Happening(self._amended(group, effect), None, group, due)

    def _amended(self, group: Group, effect: Delivered | Undelivered) -> Delivered | Undelivered:
        """The effect as a worker writes it: a unit that does not fit into records in any shape fails (W-115)."""
        policy = group.policy(self._policy)
        if isinstance(effect, Undelivered) or shape_of(self._maker, policy, group, effect.closed) is not None:
            return effect
        failed = effect.closed._replace(outcome=UnitOutcome.FAILED, reason=Reason.LIMIT)
        self._partition.fail_written(group, effect.closed, failed)
        return Undelivered(failed, UnitTooLargeError)


def held_policy(policy: DestinationPolicy) -> DestinationPolicy:
    """The policy under which groups are held here: with whole components, also where a worker leaves values in the input (W-117)."""
    if not policy.has_external_values:
        return policy
    return replace(policy, shape=Shape.CONSECUTIVE, oversize=Oversize.REFERENCE)  # for which it still `may_refer`


def empty_partition(
    place: PartitionAddress, policy: DestinationPolicy, rules: Mapping[str, ResolvedRow] = NO_RULES.rows
) -> Partition:
    """The state of a partition without records, in which a worker's decisions are made again.

    Args:
        place: Its address.
        policy: Of the destination.
        rules: Every row that a record can name.
    """
    table = None
    if rules:
        from uow.processor.rules.row_table import RowTable  # needs the extra `rules`

        table = RowTable(rules, place.destination, policy)
    partition = Partition(place, held_policy(policy), UNBOUNDED, table, RECORD_LIMIT_BYTES * 9 // 10)
    partition.rules_read_before = NEVER
    return partition


def shape_of(maker: UnitMaker, policy: DestinationPolicy, group: Group, closed: Closed) -> Shape | None:
    """The shape in which a worker writes the unit; None if it fits in none (W-115, W-208).

    Args:
        maker: Makes the unit.
        policy: Of the group.
        group: The group.
        closed: Its closing.
    """
    shape = policy.shape
    if group.bytes <= HEADERS_LIMIT and len(group.held) <= _SURELY_LISTED:
        return shape
    if shape is Shape.ENVELOPE and _fits(maker, policy, group, closed, group.in_order()):
        return shape
    otherwise = policy.oversize.value if shape is Shape.ENVELOPE else shape.value
    if otherwise == Shape.CONSECUTIVE:
        fits = all(_LIMIT.fits(group.id, part.value, said) for part, said in _run(maker, group, closed))
        return Shape.CONSECUTIVE if fits else None
    if otherwise == Shape.REFERENCE:
        places = [encode_component(by_reference(decode_component(body))) for body in group.in_order()]
        return Shape.REFERENCE if _fits(maker, policy, group, closed, places) else None
    return None


def _fits(maker: UnitMaker, policy: DestinationPolicy, group: Group, closed: Closed, bodies: Sequence[bytes]) -> bool:
    tail = maker.tail(group)
    unit_id = maker.unit_id(group.id, group.generation, tail)
    missing = group.missing() if closed.outcome is UnitOutcome.PARTIAL else ()
    if (document := document_of(maker, group, closed, bodies)) is not None:
        length = len(document)
    elif policy.value_format is ValueFormat.AVRO:
        length = _FRAME_BYTES + len(maker.body(b"", group, closed, unit_id, missing, bodies))
    else:
        to_text = formats.to_json if policy.value_format is ValueFormat.JSON else formats.to_xml
        unit = maker.record(group, closed, unit_id, missing)
        length = len(to_text(replace(unit, components=tuple(map(decode_component, bodies)))))
    headers = maker.headers(group, closed, unit_id, tail, missing)
    key = group.id if group.ruled is None else target_of(group, "")[1]
    return _LIMIT.fits(key, None, headers, length)


def document_of(maker: UnitMaker, group: Group, closed: Closed, bodies: Sequence[bytes]) -> bytes | None:
    """The value of a unit by rule that is a document, with these bodies of its components; None for any other."""
    if group.ruled is None:
        return None
    row = group.ruled.policy
    make = rule_formats(row).get(row.value_format)
    if make is None:
        return None
    unit_id = maker.unit_id(group.id, group.generation, maker.tail(group))
    missing = group.missing() if closed.outcome is UnitOutcome.PARTIAL else ()
    unit = maker.record(group, closed, unit_id, missing)
    return make(replace(unit, components=tuple(map(decode_component, bodies))), group.ruled.called)


def _run(maker: UnitMaker, group: Group, closed: Closed) -> Iterator[tuple[ComponentRecord, Headers]]:
    """Components and headers of the records of a unit of shape `consecutive`."""
    tail = maker.tail(group)
    unit_id = maker.unit_id(group.id, group.generation, tail)
    missing = group.missing() if closed.outcome is UnitOutcome.PARTIAL else ()
    is_user_header = maker.reading.is_user_header
    unit_headers = maker.headers(group, closed, unit_id, tail, missing)
    common = unit_part(unit_headers, group.opened_at, closed.at, group.bytes, is_user_header)
    for position, component in enumerate(map(decode_component, group.in_order()), 1):
        headers = record_headers(common, component, position, len(group.held), is_user_header)
        yield component, first_of_many_gaps(headers, missing) if position == 1 else headers


class RowMaker:
    """Makes the rows of fates.

    Args:
        place: Address of the partition.
        policy: Of the destination.
    """

    def __init__(self, place: PartitionAddress, policy: DestinationPolicy) -> None:
        self._place, self._policy = place, policy
        self._maker = UnitMaker(place.destination, place.topic, place.partition, Reading.of(policy))
        self._units = DestinationTopics("", place.destination).units

    def rows(self, happening: Happening) -> Iterator[Row]:
        """The rows: of a closed group its own first, then those of its components."""
        effect, record, group, due = happening
        match effect:
            case Delivered() | Undelivered():
                assert group is not None
                row = self.group(group, effect, due)
                yield row
                yield from self._components(group, effect.closed, row)
                yield from self.pieces(group, effect.closed, due)
            case TakenOut():
                assert group is not None
                yield self.taken_out(group, effect)
            case None:
                assert group is not None
                shared = self._row(RECORD, Fate.OPEN, group)
                bodies = group.in_order()
                yield from (self._component(shared, n, body) for n, body in enumerate(bodies, 1))
                yield from (self._component(shared, None, body) for body in group.bodies()[len(bodies) :])
            case _:
                assert record is not None
                yield self.alone(record, effect)

    def _row(self, kind: str, fate: Fate, group: Group) -> Row:
        return Row(kind, fate, self._place.partition, id=group.id.decode(), generation=group.generation)

    def _elsewhere(self, record: Arrived) -> tuple[bytes | None, bytes | None, Headers]:
        """Key, value and headers of a record as on `D.units` and `D.errors`, where it must not look like a unit (line 2)."""
        return record.key(), record.value(), self._origin(record.shown)

    def _origin(self, headers: Headers) -> Headers:
        return names.as_origin(headers) if self._policy.forms_units else headers

    def alone(self, record: Arrived, effect: Effect) -> Row:
        """The row of a record that no group holds."""
        key, value, headers = record.key(), record.value(), record.shown
        size = record_size(key, value, headers)
        row = Row(
            RECORD,
            "",
            self._place.partition,
            record.offset(),
            content=digest(key, value, headers),
            header_count=len(headers),
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
            case Passed() if record_size(*self._elsewhere(record)) > RECORD_LIMIT_BYTES:
                # only its compressed form was small enough for the input
                return row._replace(fate=Fate.REJECTED, error_class=UnitTooLargeError.__name__, error_case="bytes")
            case Passed():
                return row._replace(fate=Fate.PASSED, content=digest(*self._elsewhere(record)))
            case Rerouted() if size + len(names.REROUTED) + 17 > INPUT_LIMIT_BYTES or len(headers) >= HEADERS_LIMIT:
                # with one more header it would be too large for the input
                return row._replace(fate=Fate.REJECTED, error_class=MisroutedComponentError.__name__, error_case="")
            case Rerouted():
                return row._replace(fate=Fate.REROUTED)
            case Dropped(case):
                return row._replace(fate=Fate.DROPPED, error_case=case)
        raise AssertionError(effect)

    def group(self, group: Group, effect: Delivered | Undelivered, due: int | None) -> Row:
        """The row of a closed group."""
        closed = effect.closed
        tail = self._maker.tail(group)
        unit_id = self._maker.unit_id(group.id, group.generation, tail)
        missing = () if closed.outcome is UnitOutcome.COMPLETE else group.missing()
        is_unit = isinstance(effect, Delivered)
        headers: Headers | None = None
        key, topics = group.id, list[str]()
        document: bytes | None = None
        is_listed, is_run = True, False
        policy = group.policy(self._policy)
        if is_unit:
            headers = self._maker.headers(group, closed, unit_id, tail, missing)
            topics = topics_of(self._policy.routes, self._policy.route_matching, self._units, headers)
            if isinstance(policy, GroupPolicy):
                topic, key = target_of(group, self._units)
                topics = [topic]
            shape = shape_of(self._maker, policy, group, closed)
            is_run = shape is Shape.CONSECUTIVE
            if is_run:
                _, headers = next(_run(self._maker, group, closed))
            else:
                bodies = group.in_order()
                if shape is Shape.REFERENCE:
                    bodies = [encode_component(by_reference(decode_component(body))) for body in bodies]
                made = document_of(self._maker, group, closed, bodies)
                document = None if made is None else sha256(made).digest()
                is_listed = made is None or policy.value_format is not ValueFormat.XML
        return Row(
            GROUP,
            FATE_OF[closed.outcome],
            self._place.partition,
            closed.before,
            group.id.decode(),
            group.generation,
            unit_id.decode(),
            error_class=effect.error.__name__ if isinstance(effect, Undelivered) else None,
            error_case=closed.reason.value if isinstance(effect, Undelivered) else None,
            to_errors=not is_unit and goes_to_errors(closed, policy, len(group.held)),
            due=due,
            outcome=closed.outcome.value,
            reason=closed.reason.value,
            opened_at=group.opened_at,
            closed_at=closed.at,
            expires_at=group.expires_at or None,
            size=len(group.held),
            held_bytes=group.bytes,
            missing=ranges_text(missing if is_unit else bounded_ranges(missing)),
            key=key if is_unit else None,
            headers=None if headers is None else [*headers],
            topics=topics or None,
            document=document,
            is_listed=is_listed,
            is_run=is_run,
        )

    def _components(self, group: Group, closed: Closed, row: Row) -> Iterator[Row]:
        shared = self._row(RECORD, FATE_OF[closed.outcome], group)._replace(
            unit_id=row.unit_id,
            error_class=row.error_class,
            error_case=row.error_case,
            to_errors=row.to_errors,
            due=row.due,
            missing=row.missing,
            topics=row.topics,
            is_listed=row.is_listed,
        )
        made = (self._component(shared, position, body) for position, body in enumerate(group.in_order(), 1))
        if not row.is_run:
            yield from made
            return
        for part, (component, _) in zip(made, _run(self._maker, group, closed), strict=True):
            # a run of an earlier version has the user headers, with the group id as key
            own = [pair for pair in component.headers if self._maker.reading.is_user_header(pair[0])]
            yield part._replace(content_before=digest(group.id, component.value, own))

    def taken_out(self, group: Group, effect: TakenOut) -> Row:
        """A component that a command removed goes to `D.errors` alone (W-76), and so does a piece of one that never was whole (B-124)."""
        shared = self._row(RECORD, FATE_OF[effect.outcome], group)._replace(
            error_class=UowError.__name__,
            error_case=effect.reason.value,
            to_errors=True,
            missing=ranges_text(bounded_ranges(effect.missing)),
        )
        return self._component(shared, None, effect.body)

    def pieces(self, group: Group, closed: Closed, due: int | None) -> Iterator[Row]:
        """The pieces of a group that only the clock closes; those of any other are told of one by one (B-124)."""
        if due is not None:
            yield from (self.taken_out(group, each)._replace(due=due) for each in pieces_given_up(group, closed))

    def given_up(self, group: Group, closed: Closed, row: Row) -> Iterator[Row]:
        """The rows of the components of a group that was given up, if they go to `D.errors`."""
        return self._components(group, closed, row) if row.to_errors else iter(())

    def _component(self, shared: Row, position: int | None, body: bytes) -> Row:
        component = decode_component(body)
        headers = self._origin(component.headers) if shared.to_errors else component.headers
        return shared._replace(
            offset=component.source.offset,
            position=position,
            seq=component.seq,
            end=component.end,
            component_id=component.component_id,
            at=component.timestamp,
            content=digest(component.key, component.value, headers),
            header_count=len(component.headers),
            held_bytes=len(body) + external_bytes(body),
        )


def digest(key: bytes | None, value: bytes | None, headers: Headers) -> bytes:
    """The same digest of key, value and headers as by `uow.spark_sink.comparison.content`."""
    pairs = ",".join(
        f"{name.encode().hex().upper()}={'-' if raw is None else raw.hex().upper()}" for name, raw in headers
    )
    both = "/".join("-" if data is None else sha256(data).hexdigest() for data in (key, value))
    return sha256(f"{both}/{pairs}".encode()).digest()


_SURELY_LISTED: Final = 10_000
"""Up to this number of components, a list of references always fits into one record."""
_FRAME_BYTES: Final = 10
_LIMIT: Final = RecordLimit()
"""Of every topic that a worker writes."""


def goes_to_errors(closed: Closed, policy: DestinationPolicy, count: int) -> bool:
    """True if the components of a given-up group go to `D.errors` (W-71, W-78 to W-80, W-207, B-50, B-81).

    Args:
        closed: Its closing.
        policy: Of the group.
        count: Number of components that it held.
    """
    if isinstance(policy, GroupPolicy) and (count < policy.min_count or closed.reason is Reason.MANIFEST):
        return True
    leaves_nothing = policy.expiration_policy in (ExpirationPolicy.DISCARD, ExpirationPolicy.LOG)
    return closed.outcome is not UnitOutcome.EXPIRED or not leaves_nothing


def recompute(
    place: PartitionAddress,
    policy: DestinationPolicy,
    batches: Iterable[Sequence[Arrived]],
    orders: Iterable[Order | Tick] = (),
    rules: Mapping[str, ResolvedRow] = NO_RULES.rows,
) -> Iterator[Row]:
    """Rows of one partition, from all of its records in offset order, in any number of batches, and its commands.

    Raises:
        UowError: A bug of the project (`InvariantViolation`), with the state that shows it.
    """
    recomputation = Recomputation(place, policy, orders, empty_partition(place, policy, rules))
    maker = RowMaker(place, policy)
    for batch in batches:
        for happening in recomputation.on_records(batch):
            yield from maker.rows(happening)
    for happening in recomputation.finish():
        yield from maker.rows(happening)
