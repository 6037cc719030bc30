"""Avro by hand for what the worker writes per record: components, units, changelog rows. Standard library only.

A component is encoded once, on arrival; those bytes are the state, the changelog value and its place in the unit, so a unit is a head, a
join of held bytes and a zero byte. The general codec (`uow.schemas.codec`) takes 119 microseconds for a unit of five, this module about
ten; tests require the same bytes of both and of the official `avro` package. Field order: `schemas/definitions/*.avsc`.

Belongs here: bytes of the records on the hot path. Does not belong here: framing (`uow.schemas.framing`) and anything read or written rarely.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from uow.schemas.error_classes import DecodeError
from uow.schemas.records import (
    ComponentRecord,
    Range,
    Reason,
    Reference,
    Source,
    UnitOutcome,
)


def varint(number: int) -> bytes:
    """Avro's variable-length coding of an unsigned number."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


_SMALL = [varint(number) for number in range(1 << 14)]
_PAIR = [bytes((number & 127 | 128, number >> 7 | 128)) for number in range(1 << 14)]
_BEGINNINGS = _PAIR[::2]


def long(number: int) -> bytes:
    """Avro's zigzag long: 64 bits, signed."""
    zigzag = number << 1 if number >= 0 else (-number << 1) - 1
    if zigzag < 1 << 14:
        return _SMALL[zigzag]
    if zigzag < 1 << 28:
        return _PAIR[zigzag & 16383] + _SMALL[zigzag >> 14]
    if zigzag < 1 << 42:
        return _PAIR[zigzag & 16383] + _PAIR[zigzag >> 14 & 16383] + _SMALL[zigzag >> 28]
    return varint(zigzag)


BLOCK_BITS = 13
"""Number of low bits within a block: numbers that are equal in all higher bits are encoded from one `block`."""


def block(number: int) -> tuple[list[bytes], bytes]:
    """First bytes of `long` by `number & (1 << BLOCK_BITS) - 1`, and the last bytes that all non-negative numbers of a block have in common."""
    above = number >> BLOCK_BITS
    return (_BEGINNINGS, varint(above)) if above else (LENGTHS, b"")


def longs(numbers: Sequence[int]) -> list[bytes]:
    """`long` of each of several rising, non-negative numbers."""
    coded: list[bytes] = []
    begin, within = 0, (1 << BLOCK_BITS) - 1
    while begin < len(numbers):
        low, high = block(numbers[begin])
        end = bisect_right(numbers, numbers[begin] | within, begin)
        coded += [low[number & within] + high for number in numbers[begin:end]]
        begin = end
    return coded


LENGTHS = _SMALL[::2]
"""Zigzag lengths of short data: a list look-up instead of a call."""


def sized(data: bytes) -> bytes:
    """Avro's bytes or string: length, then the bytes."""
    length = len(data)
    return (LENGTHS[length] if length < 4096 else long(length)) + data


def header_chunk(name: str) -> bytes:
    """A header's name and the union branch of its non-null value; the sized value follows."""
    return sized(name.encode()) + b"\x02"


NULL = b"\x00"
END_CHUNKS = {True: b"\x01", False: b"\x00"}


def encode_headers(headers: Iterable[tuple[str, bytes | None]]) -> bytes:
    """An array of `Header`; order, repeats and raw bytes survive (W-95)."""
    chunks = [sized(name.encode()) + (NULL if value is None else b"\x02" + sized(value)) for name, value in headers]
    return long(len(chunks)) + b"".join(chunks) + NULL if chunks else NULL


def optional(data: bytes | None) -> bytes:
    """A union of null and bytes (or string)."""
    return NULL if data is None else b"\x02" + sized(data)


def source_head(topic: str, partition: int) -> bytes:
    """The bytes before the offset in a `Source`."""
    return sized(topic.encode()) + long(partition)


def encode_component(component: ComponentRecord) -> bytes:
    """A component's Avro body, without framing."""
    cid, source, reference = (
        component.component_id,
        component.source,
        component.reference,
    )
    return b"".join(
        (
            long(component.seq),
            END_CHUNKS[component.end],
            optional(None if cid is None else cid.encode()),
            optional(component.key),
            optional(component.value),
            encode_headers(component.headers),
            long(component.timestamp),
            source_head(source.topic, source.partition),
            long(source.offset),
            NULL if reference is None else b"\x02" + long(reference.length) + long(reference.crc32c),
        )
    )


class Cursor:
    """Reads Avro's primitive types from bytes. Raises `DecodeError` if they are wrong or incomplete."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self.at = at

    def long(self) -> int:
        """A zigzag long of at most ten bytes."""
        data, at, shift, number = self.data, self.at, 0, 0
        try:
            while True:
                byte = data[at]
                at += 1
                number |= (byte & 127) << shift
                if byte < 128:
                    break
                shift += 7
                if shift > 63:
                    raise DecodeError("body", "a number has more than ten bytes")
        except IndexError:
            raise DecodeError("body", "the record ends inside a number") from None
        self.at = at
        return number >> 1 ^ -(number & 1)

    def bytes(self) -> bytes:
        """A length and that many bytes."""
        length = self.long()
        start = self.at
        self.at = start + length
        if length < 0 or self.at > len(self.data):
            raise DecodeError(
                "body",
                f"the record claims {length} bytes where {len(self.data) - start} are left",
            )
        return self.data[start : self.at]

    def text(self) -> str:
        """A string."""
        try:
            return self.bytes().decode()
        except UnicodeDecodeError:
            raise DecodeError("body", "a string is no UTF-8") from None

    def branch(self) -> bool:
        """The branch of a union of null and another type. True if a value of that type follows."""
        branch = self.long()
        if branch not in (0, 1):
            raise DecodeError("body", f"a union has no branch {branch}")
        return branch == 1

    def boolean(self) -> bool:
        """One byte, 0 or 1."""
        byte = self.data[self.at : self.at + 1]
        self.at += 1
        if byte not in (b"\x00", b"\x01"):
            raise DecodeError("body", "a boolean is neither 0 nor 1")
        return byte == b"\x01"


def items(cursor: Cursor) -> Iterator[None]:
    """Yields once for each item of the array at the cursor; the caller reads the item before the next. Blocks of bounded size only."""
    while count := cursor.long():
        if not 0 < count <= len(cursor.data):
            raise DecodeError("body", f"an array claims {count} items")
        for _ in range(count):
            yield None


def read_component(cursor: Cursor) -> ComponentRecord:
    """The component at the cursor, as `encode_component` and the worker write it."""
    seq, end = cursor.long(), cursor.boolean()
    component_id = cursor.text() if cursor.branch() else None
    key = cursor.bytes() if cursor.branch() else None
    value = cursor.bytes() if cursor.branch() else None
    headers = tuple((cursor.text(), cursor.bytes() if cursor.branch() else None) for _ in items(cursor))
    timestamp = cursor.long()
    source = Source(cursor.text(), cursor.long(), cursor.long())
    reference = Reference(cursor.long(), cursor.long()) if cursor.branch() else None
    return ComponentRecord(seq, end, component_id, key, value, headers, timestamp, source, reference)


def value_of(body: bytes) -> bytes | None:
    """The value in a component's Avro body; the rest is not read."""
    cursor = Cursor(body)
    cursor.long()
    cursor.boolean()
    for _ in ("component id", "key"):
        if cursor.branch():
            cursor.bytes()
    return cursor.bytes() if cursor.branch() else None


def component_id_of(body: bytes) -> bytes | None:
    """The component id in a component's Avro body; the rest is not read."""
    cursor = Cursor(body)
    cursor.long()
    cursor.boolean()
    return cursor.bytes() if cursor.branch() else None


def decode_component(body: bytes) -> ComponentRecord:
    """The component in `body`. Raises `DecodeError` if the bytes are not exactly one component."""
    cursor = Cursor(body)
    component = read_component(cursor)
    if cursor.at != len(body):
        raise DecodeError("body", f"{len(body) - cursor.at} bytes follow the component")
    return component


_MOMENTS: dict[int, bytes] = {}


def moment(at: int) -> bytes:
    """`long` of a time, with a cache of the latest ones, since times repeat within a poll."""
    chunk = _MOMENTS.get(at)
    if chunk is None:
        if len(_MOMENTS) > 65_536:
            _MOMENTS.clear()
        chunk = _MOMENTS[at] = long(at)
    return chunk


OUTCOME_CHUNKS = {outcome: long(index) for index, outcome in enumerate(UnitOutcome)}
REASON_CHUNKS = {reason: long(index) for index, reason in enumerate(Reason)}


def encode_ranges(ranges: Sequence[Range]) -> bytes:
    """An array of `Range`."""
    return (
        long(len(ranges)) + b"".join(long(item.first) + long(item.last) for item in ranges) + NULL if ranges else NULL
    )


class Closing(Protocol):
    """The facts about a group's closing that its unit contains."""

    @property
    def generation(self) -> int: ...
    @property
    def outcome(self) -> UnitOutcome: ...
    @property
    def reason(self) -> Reason: ...
    @property
    def at(self) -> int: ...


def unit_body(
    framing: bytes,
    group_id: bytes,
    unit_id: bytes,
    sized_destination: bytes,
    closing: Closing,
    opened_at: int,
    expires_at: int,
    size: int,
    missing: Sequence[Range],
    bodies: Sequence[bytes],
) -> bytes:
    """A unit's Avro body around components that are already encoded.

    Args:
        framing: Framing in front of the body.
        group_id: UTF-8 bytes of the id, at most 4095, as is `unit_id`.
        unit_id: W-90.
        sized_destination: Name of the destination, with its length.
        closing: Generation, outcome, reason, and the partition's clock then, epoch ms.
        opened_at: Append time of the first component held, epoch ms.
        expires_at: Epoch ms, 0 for never (W-92).
        size: Bytes of the encoded components.
        missing: Numbers that a partial unit lacks.
        bodies: Encoded components in number order.
    """
    count = LENGTHS[len(bodies)] if len(bodies) < 4096 else long(len(bodies))
    generation = closing.generation
    return b"".join(
        (
            framing,
            LENGTHS[len(group_id)],
            group_id,
            LENGTHS[len(unit_id)],
            unit_id,
            sized_destination,
            b"\x02" if generation == 1 else long(generation),
            OUTCOME_CHUNKS[closing.outcome],
            REASON_CHUNKS[closing.reason],
            moment(opened_at),
            moment(closing.at),
            b"\x02" + long(expires_at) if expires_at else NULL,
            count,
            long(size),
            encode_ranges(missing) if missing else NULL,
            count if bodies else b"",
            *bodies,
            NULL,
        )
    )


def outcome_body(
    group_id: bytes,
    unit_id: bytes,
    destination: bytes,
    generation: int,
    outcome: UnitOutcome,
    reason: Reason,
    opened_at: int,
    closed_at: int,
    count: int,
    size: int,
    missing: Sequence[Range],
    command_id: bytes | None = None,
    last_arrived: tuple[int, bytes | None] | None = None,
    rule: bytes | None = None,
    deadline_at: int | None = None,
    per_source: Sequence[tuple[bytes, int]] = (),
    target: bytes | None = None,
    supersedes: bytes | None = None,
) -> bytes:
    """An `Outcome`'s Avro body; arguments as in `unit_body`, `count` is the number of components held.

    `last_arrived` is number and component id of the one that arrived last; `per_source` the components of each source.
    """
    last = NULL if last_arrived is None else b"\x02" + long(last_arrived[0]) + optional(last_arrived[1])
    return b"".join(
        (
            sized(group_id),
            sized(unit_id),
            sized(destination),
            long(generation),
            OUTCOME_CHUNKS[outcome],
            REASON_CHUNKS[reason],
            long(opened_at),
            long(closed_at),
            long(count),
            long(size),
            encode_ranges(missing),
            optional(rule),
            optional(command_id),
            last,
            NULL if deadline_at is None else b"\x02" + long(deadline_at),
            long(len(per_source)) + b"".join(sized(name) + long(n) for name, n in per_source) + NULL
            if per_source
            else NULL,
            optional(target),
            optional(supersedes),
        )
    )
