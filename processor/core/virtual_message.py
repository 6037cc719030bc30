"""The virtual message: identity, headers and body of a unit (W-89 to W-97). Pure.

Belongs here: identity, headers and body of a unit. Does not belong here: framing and topics (`uow.processor.engine.outputs`).
"""

from __future__ import annotations

import json
from binascii import hexlify
from collections.abc import Iterator, Sequence
from hashlib import sha1
from struct import Struct
from uuid import UUID

from uow.processor.core.changes import Closed, Tail
from uow.processor.core.conditions import bytes_limit
from uow.processor.core.erasure import is_erased
from uow.processor.core.gathered import Called
from uow.processor.core.group import Group
from uow.processor.core.layout import unit_properties
from uow.processor.core.ranges import as_ranges
from uow.schemas.component import decode_component, sized, unit_body
from uow.schemas.records import (
    ComponentRecord,
    Range,
    Reason,
    Unit,
    UnitOutcome,
    bounded_ranges,
    ranges_text,
)
from uow.topics import headers as names
from uow.topics.headers import Reading
from uow.topics.manifests import ReplyContext, read_manifest
from uow.topics.policies import Shape, ValueFormat

NAMESPACE = UUID("6f1c2f0c-3f0e-5d0a-9b52-0d6f3c7b1a55")
"""UUID namespace of unit ids; part of the wire contract (`uow-unit-id`)."""

_DIGITS = Struct("8s4sc3sc3s12s")
"""A UUID's digits: the fields of its text, version and variant apart."""
_VARIANTS = {b"%x" % digit: b"89ab"[digit & 3 :][:1] for digit in range(16)}
"""The first digit of a UUID's clock field, with the variant's two bits set."""
_SIZES = [(names.SIZE, b"%d" % size) for size in range(1024)]
_KIND = (names.KIND, names.KIND_UNIT)
_GENERATION_1 = (names.GENERATION, b"1")
_OUTCOMES = {outcome: (names.OUTCOME, outcome.value.encode()) for outcome in UnitOutcome}
_REASONS = {reason: (names.REASON, reason.value.encode()) for reason in Reason}
_PERSISTENT = b"persistent"
_DELIVERY_MODE = names.DELIVERY_MODE.encode()
_DEPTH = names.DEPTH.encode()


UNIFORM = (names.EXPIRES_AT, names.PRIORITY, names.DELIVERY_MODE)
"""Of these the components of a unit should all say the same (W-133)."""


def _said_after(body: bytes, name: bytes) -> bytes:
    """The value that seems to follow a header's name in a component's Avro body: equal ones need no closer look."""
    at = body.rfind(name)  # headers come last
    if at < 0:
        return b""
    at += len(name)
    return body[at : at + 2 + (body[at + 1] >> 1)] if at + 1 < len(body) else b""


def collection_name(template: str, correlation: bytes) -> bytes:
    """Name of a collection: its correlation text in the place of the `*` (B-102); an empty template `*` of an empty text is an empty name."""
    before, star, after = template.encode().partition(b"*")
    return before + correlation + after if star else before


def _replied(properties: tuple[tuple[str, bytes | None], ...], called: Called) -> tuple[tuple[str, bytes | None], ...]:
    """The headers that the unit of a fan-out takes over from its last reply, those that its call asked for in their place (B-91)."""
    reply = read_manifest(called.text).reply
    asked = [(name, value.encode()) for name, value in reply.headers]
    if reply.correlation_id is not None:
        asked.append((names.CORRELATION_ID, reply.correlation_id.encode()))
    own = {names.CORRELATION_ID, *(name for name, _ in asked)}  # that of a reply is the id of its request
    return (*[pair for pair in properties if pair[0] not in own], *asked)


def target_of(group: Group, units: str) -> tuple[str, bytes]:
    """Topic and key of the unit of a group by rule: what its call asked for, else that of its row, else `units` and the id (B-57, B-91)."""
    assert group.ruled is not None
    called = group.ruled.called
    reply = ReplyContext() if called is None else read_manifest(called.text).reply
    topic = reply.topic or group.ruled.policy.target_topic or units
    return topic, group.id if topic == units or reply.key is None else reply.key.encode()


class UnitMaker:
    """Makes units of one partition of one destination.

    Args:
        destination: Its name.
        topic: Name of `D.components`: with partition and offset the identity of an end component without `uow-component-id`.
        partition: The partition.
        reading: How headers are read.
    """

    def __init__(self, destination: str, topic: str, partition: int, reading: Reading) -> None:
        self.destination = destination.encode()
        self._sized_destination = sized(self.destination)
        self.reading = reading
        self._uniform = [spelling.encode() for spelling, meant in reading.names.items() if meant in UNIFORM]
        self._place = f"{topic}/{partition}/".encode()
        self._hash = sha1(NAMESPACE.bytes + self.destination + b"\0", usedforsecurity=False)

    def tail(self, group: Group) -> Tail:
        """The `Tail` of the unit's end component: the one marked, else the highest number held (W-91)."""
        if group.tail is not None:
            return group.tail
        called = group.ruled.called if group.ruled is not None else None
        if group.held:
            tail = self._tail_of(decode_component(group.held[group.highest]))
        else:
            tail = Tail(None if called is None else called.command_id, 0)
        return tail if called is None else tail._replace(properties=_replied(tail.properties, called))

    def _tail_of(self, component: ComponentRecord) -> Tail:
        component_id, source = component.component_id, component.source
        place = f"{source.topic}/{source.partition}/".encode()
        properties = unit_properties(component.headers, self.reading)
        return Tail(
            None if component_id is None else component_id.encode(),
            source.offset,
            properties,
            None if place == self._place else place,
        )

    def unit_id(self, group_id: bytes, generation: int, tail: Tail) -> bytes:
        """`uow-unit-id`: UUIDv5 over destination, id, generation and the end component's identity, never over time or worker (W-90)."""
        state = self._hash.copy()
        if tail.component_id is not None:
            state.update(b"%b\0%d\0%b" % (group_id, generation, tail.component_id))
        else:
            state.update(b"%b\0%d\0%b%d" % (group_id, generation, tail.place or self._place, tail.offset))
        first, second, _, third, variant, fourth, last = _DIGITS.unpack_from(hexlify(state.digest()))
        return b"%b-%b-5%b-%b%b-%b" % (first, second, third, _VARIANTS[variant], fourth, last)

    def headers(
        self, group: Group, closed: Closed, unit_id: bytes, tail: Tail, missing: tuple[Range, ...]
    ) -> list[tuple[str, bytes | None]]:
        """The unit's headers. Never `uow-seq`, `uow-end` or `uow-reply-to` (W-94, W-96)."""
        size = len(group.held)
        made: list[tuple[str, bytes | None]] = [
            (names.ID, group.id),
            _KIND,
            (names.UNIT_ID, unit_id),
            _GENERATION_1 if group.generation == 1 else (names.GENERATION, b"%d" % group.generation),
            _OUTCOMES[closed.outcome],
            _REASONS[closed.reason],
            _SIZES[size] if size < len(_SIZES) else (names.SIZE, b"%d" % size),
        ]
        if closed.outcome is UnitOutcome.PARTIAL:
            made.append((names.MISSING, ranges_text(bounded_ranges(missing)).encode()))
        if group.supersedes:
            made.append((names.SUPERSEDES, group.supersedes))
        if group.ruled is not None:
            made += self._by_rule(group, closed)
        if not group.is_uniform:
            if group.expires_at:
                made.append((names.EXPIRES_AT, b"%d" % group.expires_at))
            if mode := self._delivery_mode(group):
                made.append((names.DELIVERY_MODE, mode))
            erased = as_ranges(seq for seq, body in group.held.items() if is_erased(body))
            if erased:
                made.append((names.ERASED, ranges_text(bounded_ranges(erased)).encode()))
            deep = [decode_component(body).headers for body in group.held.values() if _DEPTH in body]
            if deep and (depth := names.deepest(deep)) > 1:
                made.append((names.DEPTH, b"%d" % depth))
        if tail.properties:
            made += tail.properties
        return made

    def _by_rule(self, group: Group, closed: Closed) -> Iterator[tuple[str, bytes | None]]:
        """Headers that only a unit by rule has."""
        assert group.ruled is not None
        policy = group.ruled.policy
        yield names.RULE, policy.rule.encode()
        if policy.value_format is ValueFormat.XML and policy.shape is not Shape.CONSECUTIVE:
            yield names.CONTENT_TYPE, b"application/xml"
            yield names.OPENED_AT, b"%d" % group.opened_at  # the document does not tell them
            yield names.CLOSED_AT, b"%d" % closed.at
            yield names.BYTES, b"%d" % group.bytes
        text = group.id.partition(b"/")[2]
        if policy.name_template is not None:
            yield names.COLLECTION, collection_name(policy.name_template, text)
        if policy.sources:
            yield names.CORRELATION_ID, text
        if group.ruled.called is not None:
            yield names.FOLDERS, json.dumps(read_manifest(group.ruled.called.text).folders).encode()
        limit = bytes_limit(policy.complete_when)
        if limit is not None and group.ruled.gathered.value_bytes > limit.n:
            yield names.WARNING, b"one component, larger than the %d bytes of its rule" % limit.n

    def _delivery_mode(self, group: Group) -> bytes | None:
        """`persistent` if any component is, else what the components say, if they say anything (W-93)."""
        said: set[bytes] = set()
        for body in group.held.values():
            if _DELIVERY_MODE in body or b"JMSDeliveryMode" in body:
                marks = self.reading.properties(decode_component(body).headers)
                said |= {value for value in marks.get(names.DELIVERY_MODE, ()) if value}
        return _PERSISTENT if _PERSISTENT in said else min(said, default=None)

    def is_mixed(self, group: Group) -> bool:
        """True if expiry, priority or delivery mode differ between the components of a unit (W-133)."""
        bodies = group.held.values()
        if all(len({_said_after(body, name) for body in bodies}) == 1 for name in self._uniform):
            return False
        said = [self.reading.properties(decode_component(body).headers) for body in bodies]
        return any(len({tuple(marks.get(name, ())) for marks in said}) > 1 for name in UNIFORM)

    def body(
        self,
        framing: bytes,
        group: Group,
        closed: Closed,
        unit_id: bytes,
        missing: tuple[Range, ...],
        bodies: Sequence[bytes] | None = None,
    ) -> bytes:
        """The unit's Avro body behind its framing (W-95), with the components as they are held, or as `bodies` has them, in number order."""
        return unit_body(
            framing,
            group.id,
            unit_id,
            self._sized_destination,
            closed,
            group.opened_at,
            group.expires_at,
            group.bytes,
            missing,
            group.in_order() if bodies is None else bodies,
        )

    def record(self, group: Group, closed: Closed, unit_id: bytes, missing: tuple[Range, ...]) -> Unit:
        """The unit as a record, for the formats that are not Avro."""
        return Unit(
            group.id.decode(),
            unit_id.decode(),
            self.destination.decode(),
            group.generation,
            closed.outcome,
            closed.reason,
            group.opened_at,
            closed.at,
            group.expires_at or None,
            len(group.held),
            group.bytes,
            missing,
            tuple(map(decode_component, group.in_order())),
        )
