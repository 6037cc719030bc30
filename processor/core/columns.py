"""A batch of one partition as parallel columns; one object per record is made for odd rows only.

Rows that are *plain* (`layout`) have their Avro body here. Every other row is *odd*: its id is None, and `Partition.on_record` judges the record
itself.

Belongs here: reading raw records into columns. Does not belong here: what a row says (`layout`), and any rule about groups.
"""

from __future__ import annotations

import marshal
import sys
from collections.abc import Iterator, Sequence
from itertools import chain, compress, repeat
from typing import Any, Final, NamedTuple, Protocol

from uow.processor.core.changes import Tail
from uow.processor.core.layout import (
    Layout,
    Pairs,
    Raw,
    Rows,
    apart,
    by_header,
    picker,
)
from uow.processor.core.routed_rows import RoutedLayout, RoutedRow
from uow.schemas.claim_check import encode_without_value
from uow.schemas.component import encode_component, source_head
from uow.schemas.records import ComponentRecord, Source
from uow.topics.headers import RULE, Marks, Reading
from uow.topics.policies import DestinationPolicy


class Record(Protocol):
    """The methods of a consumed record that are used here."""

    def offset(self) -> int: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def headers(self) -> Any: ...
    def timestamp(self) -> tuple[int, int]: ...


UNREADABLE: Final = (UnicodeDecodeError, SystemError)
"""Raised by a look at the headers when a name is no UTF-8. confluent_kafka means the first and raises the second."""
UNREADABLE_TEXT: Final = (
    "headers that cannot be read: a name is no UTF-8, there are more than 100,000, or they are broken"
)


class UnreadableRecord:
    """Stands in for a record whose headers cannot be read; made by `look_at_headers`, and by `uow.processor.engine.hidden_headers`."""

    __slots__ = ("key", "offset", "timestamp", "value")

    def __init__(self, record: Record) -> None:
        self.offset, self.key, self.value, self.timestamp = record.offset, record.key, record.value, record.timestamp

    def headers(self) -> Any:
        """Raises UnicodeDecodeError, every time."""
        raise UnicodeDecodeError("utf-8", b"", 0, 1, UNREADABLE_TEXT)


_MANY = 64
"""A record with more headers ends its portion, so that nobody has two such in hand at a time, and is kept packed."""


def look_at_headers(records: Sequence[Record]) -> Iterator[tuple[list[Any], Sequence[Record]]]:
    """The first look at the headers of records that come from outside. Nobody calls `headers()` of such a record before.

    Where a name is no UTF-8, confluent_kafka returns a list that has no object in the name's place, with an error set beside it. Touching
    that list kills the process. `map` sees the error; a call `record.headers()` sees it only until the interpreter has specialised it (from
    CPython 3.11 on, a dozen calls), and a second look never does.

    A header is five bytes on the wire and a hundred and fifty here, so a record with thousands of them ends a portion; mostly there is one.

    Yields:
        Headers of each record of a portion, None for one that cannot be read; and the records, with a stand-in for such a one.
    """
    if not records:
        return
    looks = map(type(records[0]).headers, records)
    begin, count = 0, len(records)
    while begin < count:
        found: list[Any] = []
        stand_ins: dict[int, UnreadableRecord] = {}
        while begin + len(found) < count and not _take(looks, found):
            stand_ins[len(found)] = UnreadableRecord(records[begin + len(found)])
            found.append(None)
        seen = records if len(found) == count else records[begin : begin + len(found)]
        if stand_ins:
            seen = [stand_ins.get(row, record) for row, record in enumerate(seen)]
        yield found, seen
        begin += len(found)


def _take(looks: Iterator[Any], found: list[Any]) -> bool:
    """Adds looks up to one that is heavy; False if it ends before one that cannot be read."""
    add = found.append
    while True:
        try:
            for pairs in looks:
                add(pairs)
                if len(pairs) > _MANY:
                    return True
        except UNREADABLE:
            return False
        except TypeError:  # a record without headers
            continue
        return True


def looked_at(records: Sequence[Record]) -> Iterator[tuple[Any, Record]]:
    """The same, one by one."""
    for headers, seen in look_at_headers(records):
        yield from zip(headers, seen, strict=True)


class Caps(NamedTuple):
    """How many headers a component may have, and how many characters their names (`max_headers`, `max_header_name_bytes`)."""

    headers: int
    name_bytes: int

    @classmethod
    def of(cls, policy: DestinationPolicy) -> Caps:
        """Those of a destination."""
        return cls(policy.max_headers, policy.max_header_name_bytes)

    def are_exceeded(self, heads: Sequence[str]) -> bool:
        """True if a component with these header names is refused."""
        return len(heads) > self.headers or sum([len(name.encode()) for name in heads]) > self.name_bytes


NO_CAPS: Final = Caps(sys.maxsize, sys.maxsize)
"""For what was held before, under whatever settings."""


class Seen:
    """A record with its headers, which nobody may ask the library for a second time (`look_at_headers`).

    A message of the library keeps the list of its headers once it was asked for. Of one with many the message is let go, and they are packed.
    """

    __slots__ = ("_headers", "_record")

    def __init__(self, record: Any, headers: Any) -> None:
        self._record, self._headers = record, headers
        if headers is not None and len(headers) > _MANY:
            self._record, self._headers = _Kept(record), marshal.dumps(headers, 2)

    def topic(self) -> str:
        return self._record.topic()  # type: ignore[no-any-return]

    def partition(self) -> int:
        return self._record.partition()  # type: ignore[no-any-return]

    def offset(self) -> int:
        return self._record.offset()  # type: ignore[no-any-return]

    def key(self) -> bytes | None:
        return self._record.key()  # type: ignore[no-any-return]

    def value(self) -> bytes | None:
        return self._record.value()  # type: ignore[no-any-return]

    def timestamp(self) -> tuple[int, int]:
        return self._record.timestamp()  # type: ignore[no-any-return]

    def headers(self) -> Any:
        """As the record's; raises what it would."""
        if isinstance(self._record, UnreadableRecord):
            return self._record.headers()
        return marshal.loads(self._headers) if isinstance(self._headers, bytes) else self._headers  # noqa: S302 - our own


class _Kept:
    """A record without its headers."""

    __slots__ = ("_key", "_offset", "_partition", "_timestamp", "_topic", "_value")

    def __init__(self, record: Any) -> None:
        self._topic, self._partition, self._offset = record.topic(), record.partition(), record.offset()
        self._key, self._value, self._timestamp = record.key(), record.value(), record.timestamp()

    def topic(self) -> Any:
        return self._topic

    def partition(self) -> Any:
        return self._partition

    def offset(self) -> Any:
        return self._offset

    def key(self) -> Any:
        return self._key

    def value(self) -> Any:
        return self._value

    def timestamp(self) -> Any:
        return self._timestamp


class Columns:
    """Parallel sequences, one entry per record in offset order; `ids[row]` is None for an odd row.

    Attributes:
        ids: Group ids.
        seqs: Sequence numbers.
        ends: End marks.
        times: Append times, epoch ms.
        offsets: Source offsets.
        bodies: Avro bodies.
        tails: By offset, for end components only; None where it is read from the body later.
        routed: By offset, the odd rows that are routed rows.
        header_count: Headers of the last record, if it has many; else 0.
        records: The raw records.
    """

    __slots__ = (
        "bodies",
        "ends",
        "header_count",
        "ids",
        "offsets",
        "records",
        "routed",
        "seqs",
        "tails",
        "times",
    )

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records
        self.ids: Sequence[bytes | None] = ()
        self.seqs: Sequence[int] = ()
        self.ends: Sequence[bool] = ()
        self.times: Sequence[int] = ()
        self.offsets: Sequence[int] = ()
        self.bodies: Sequence[bytes] = ()
        self.tails: dict[int, Tail | None] = {}
        self.routed: dict[int, RoutedRow] = {}
        self.header_count = 0

    def put_together(self, found: Sequence[Rows], order: Sequence[int]) -> None:
        """Takes rows that were read apart; `order` has the place of each. All others are odd."""
        count = len(self.records)
        places = range(len(order), len(order) + count)  # of the odd rows that stand behind those found
        at = list(places)
        for place, row in enumerate(order):
            at[row] = place
        pick = picker(at)
        self.ids = pick([*chain(*[rows.ids for rows in found]), *repeat(None, len(at))])
        self.seqs = pick([*chain(*[rows.seqs for rows in found]), *repeat(0, len(at))])
        self.ends = pick([*chain(*[rows.ends for rows in found]), *repeat(False, len(at))])
        self.bodies = pick([*chain(*[rows.bodies for rows in found]), *repeat(b"", len(at))])
        for rows in found:
            self.tails |= rows.tails

    def be_odd(self) -> None:
        """Makes all rows odd."""
        count = len(self.records)
        self.ids, self.seqs, self.ends, self.bodies = [None] * count, [0] * count, [False] * count, [b""] * count


_LAYOUTS_BYTES = 262_144
"""Most memory that a reader's layouts take."""
_LAYOUT_BYTES = 1_000
_HEAD_BYTES = 400
"""Memory of a layout, and of each of its names beside its letters."""


class ColumnReader:
    """Reads raw records of one partition into columns. Keeps look-up tables; what it returns depends on the records alone.

    Args:
        topic: Name of `D.components`.
        partition: Its partition.
        reading: How headers are read.
        caps: How many headers a component may have, and how many bytes of their names; records with more are odd rows.

    Attributes:
        memory_bytes: About what the look-up tables take.
    """

    def __init__(self, topic: str, partition: int, reading: Reading, caps: Caps = NO_CAPS) -> None:
        self.topic, self.partition, self.reading, self.caps = topic, partition, reading, caps
        self._source = source_head(topic, partition)
        self._layouts: dict[tuple[str, ...], Layout | RoutedLayout | None] = {}
        self.memory_bytes = 0

    def read(self, records: Sequence[Record]) -> Iterator[Columns]:
        """Columns of the records, which are in offset order; those of records with very many headers come in portions."""
        begin = 0
        for headers, seen in look_at_headers(records):
            portion = records if len(seen) == len(records) else records[begin : begin + len(seen)]
            columns = self._columns(headers, seen, portion)
            last = headers[-1]
            if last is not None and len(last) > _MANY:
                columns.header_count = len(last)
            yield columns
            begin += len(seen)

    def _columns(self, headers: list[Any], seen: Sequence[Record], records: Sequence[Record]) -> Columns:
        """It is the hottest code there is: records of one layout are read in bulk."""
        columns = Columns(seen)
        kind: Any = type(records[0])
        columns.offsets = list(map(kind.offset, records))
        columns.times = [at for _, at in map(kind.timestamp, records)]
        raw = Raw(columns.offsets, columns.times, list(map(kind.key, records)), list(map(kind.value, records)))
        turned = by_header(headers)
        layout = self._layout(turned[0]) if turned is not None else None
        if turned is not None and isinstance(layout, Layout) and (rows := layout.read(raw, turned[1])) is not None:
            columns.ids, columns.seqs, columns.ends, columns.bodies, columns.tails = rows
        elif turned is not None and isinstance(layout, RoutedLayout) and (routed := layout.read(raw, turned[1])):
            columns.be_odd()
            columns.routed = routed
        else:
            self._read_apart(headers, raw, columns)
        return columns

    def _read_apart(self, headers: Sequence[Pairs | None], raw: Raw, columns: Columns) -> None:
        """The same for records of several layouts, or with odd rows among them."""
        order: list[int] = []
        found: list[Rows] = []
        for at, heads, values in apart(headers):
            layout = self._layout(heads)
            if isinstance(layout, RoutedLayout):
                columns.routed |= _routed(layout, headers, raw, at)
            if not isinstance(layout, Layout):
                continue
            rows = layout.read(raw.of(at), values)
            if rows is None:  # one of them is not plain
                plain = list(map(layout.is_plain, zip(*values, strict=True)))
                at = list(compress(at, plain))
                rows = layout.read(raw.of(at), [list(compress(column, plain)) for column in values]) if at else None
            if rows is not None:
                order += at
                found.append(rows)
        columns.put_together(found, order)

    def _layout(self, heads: tuple[str, ...]) -> Layout | RoutedLayout | None:
        if heads in self._layouts:
            return self._layouts[heads]
        if self.caps.are_exceeded(heads):
            return None
        kind = RoutedLayout if RULE in heads else Layout
        layout = kind.of(heads, self.reading, self._source)
        cost = _LAYOUT_BYTES + sum(map(len, heads)) + _HEAD_BYTES * len(heads)
        if self.memory_bytes + cost > _LAYOUTS_BYTES:  # names made up per record must not fill the memory
            self._layouts, self.memory_bytes = {}, 0
        if cost <= _LAYOUTS_BYTES // 4:
            self._layouts[heads] = layout
            self.memory_bytes += cost
        return layout

    def encode(self, record: Record, marks: Marks) -> tuple[bytes, int]:
        """The Avro body of an odd row that turned out to be a component, and how many bytes of it stay where they are."""
        return encode_component(self.component(record, marks)), 0

    def component(self, record: Record, marks: Marks) -> ComponentRecord:
        """The whole component, as its marks have it."""
        component_id = marks.component_id
        return ComponentRecord(
            marks.seq,
            marks.end,
            None if component_id is None else component_id.decode(),
            record.key(),
            record.value(),
            tuple(read_headers(record) or ()),
            record.timestamp()[1],
            Source(self.topic, self.partition, record.offset()),
        )


def _routed(layout: RoutedLayout, headers: Sequence[Pairs | None], raw: Raw, at: Sequence[int]) -> dict[int, RoutedRow]:
    """The routed rows among those of one layout: all at once, or where one is none each by itself."""
    turned = by_header([headers[row] for row in at])
    found = layout.read(raw.of(at), turned[1]) if turned is not None else None
    if found is None and len(at) > 1:
        return {offset: one for row in at for offset, one in _routed(layout, headers, raw, [row]).items()}
    return found or {}


class ExternalValueReader(ColumnReader):
    """Leaves values where they are (W-117). Every row is odd: what such values cost elsewhere is far more than the look at each record."""

    def _columns(self, headers: list[Any], seen: Sequence[Record], records: Sequence[Record]) -> Columns:
        columns = Columns(seen)
        columns.offsets = [record.offset() for record in records]
        columns.times = [record.timestamp()[1] for record in records]
        columns.be_odd()
        return columns

    def encode(self, record: Record, marks: Marks) -> tuple[bytes, int]:
        """Without the value, unless it is short."""
        return encode_without_value(self.component(record, marks))


def reader_of(policy: DestinationPolicy) -> type[ColumnReader]:
    """The reader that a destination needs; any but one of shape `reference` pays nothing for it."""
    return ExternalValueReader if policy.has_external_values else ColumnReader


def read_headers(record: Record) -> list[tuple[str, bytes | None]] | None:
    """A record's headers; None where there are none, or for an `UnreadableRecord` one."""
    try:
        headers: list[tuple[str, bytes | None]] | None = record.headers()
    except UNREADABLE:
        return None
    return headers
