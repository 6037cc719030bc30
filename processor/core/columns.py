"""A batch of one partition as parallel columns; one object per record is made for odd rows only.

A *plain* row has a valid id, number and end mark and no header that changes its treatment; its Avro body is made here, once, from
look-up tables. Every other row is *odd*: its id is None, and `Partition.arrive` judges the record itself.

Belongs here: reading raw records into columns, and encoding a component on arrival. Does not belong here: any rule about groups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from processor.core.changes import Tail
from schemas.component import (
    BLOCK_BITS,
    END_CHUNKS,
    LENGTHS,
    NULL,
    block,
    encode_component,
    header_chunk,
    long,
    optional,
    sized,
    source_head,
)
from schemas.records import Component, Source
from topics import headers as names
from topics.catalogue import HELD_LIMIT_BYTES
from topics.headers import Marks, Reading, decimal, is_text

Pairs = Sequence[tuple[str, bytes | None]]

PROPERTIES: Final = frozenset({names.CORRELATION_ID, names.PRIORITY, names.USER_ID, names.TYPE})
"""`uow-*` headers that a unit takes over from its end component (W-90, W-97)."""
_REPEATED: Final = frozenset(names.PARENTS)
"""Those that it takes over with all their repeats (W-205)."""


class Record(Protocol):
    """The methods of a consumed record that are used here."""

    def offset(self) -> int: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def headers(self) -> Any: ...
    def timestamp(self) -> tuple[int, int]: ...


UNREADABLE: Final = (UnicodeDecodeError, SystemError)
"""What a look at the headers raises when a name is no UTF-8. confluent_kafka means the first and raises the second."""


class Unreadable:
    """Stands in for a record with a header name that is no UTF-8; made by `look_at_headers`."""

    __slots__ = ("_record", "key", "offset", "timestamp", "value")

    def __init__(self, record: Record) -> None:
        self._record = record
        self.offset, self.key, self.value, self.timestamp = record.offset, record.key, record.value, record.timestamp

    def headers(self) -> Any:
        """Raises UnicodeDecodeError, every time."""
        raise UnicodeDecodeError("utf-8", b"", 0, 1, "a header name is no UTF-8")


def look_at_headers(records: Sequence[Record]) -> tuple[list[Any], Sequence[Record]]:
    """The first look at the headers of records that come from outside. Nobody calls `headers()` of such a record before.

    Where a name is no UTF-8, confluent_kafka returns a list that has no object in the name's place, with an error set beside it. Touching
    that list kills the process. `map` sees the error; a call `record.headers()` sees it only until the interpreter has specialised it (from
    CPython 3.11 on, a dozen calls), and a second look never does.

    Returns:
        Headers of each record, None for one that cannot be read; and the records, with a stand-in for such a one.
    """
    found: list[Any] = []
    if not records:
        return found, records
    seen: list[Record] | None = None
    looks = map(type(records[0]).headers, records)
    while True:
        try:
            found.extend(looks)  # what came before an error stays
            return found, records if seen is None else seen
        except UNREADABLE:
            seen = list(records) if seen is None else seen
            seen[len(found)] = Unreadable(records[len(found)])
            found.append(None)


class Columns:
    """Parallel sequences, one entry per record in offset order; `ids[row]` is None for an odd row.

    Attributes:
        ids: Group ids.
        seqs: Sequence numbers.
        ends: End marks.
        times: Append times, epoch ms.
        offsets: Source offsets.
        bodies: Avro bodies.
        tails: By offset, for end components only.
        records: The raw records.
    """

    __slots__ = (
        "bodies",
        "ends",
        "ids",
        "offsets",
        "records",
        "seqs",
        "tails",
        "times",
    )

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records
        self.ids: list[bytes | None] = []
        self.seqs: list[int] = []
        self.ends: list[bool] = []
        self.times: list[int] = []
        self.offsets: list[int] = []
        self.bodies: list[bytes] = []
        self.tails: dict[int, Tail] = {}


class _Mark(NamedTuple):
    """A pair of raw number and raw end mark, read once: what they mean, and the Avro that depends on them alone.

    Attributes:
        seq: The number.
        end: The mark.
        head: Number and mark, as a component begins.
        simple: The same, no component id, and that there is a key.
        headers: The two headers, number first.
    """

    seq: int
    end: bool
    head: bytes
    simple: bytes
    headers: bytes


_SEQ_CHUNK, _END_CHUNK = header_chunk(names.SEQ), header_chunk(names.END)
_MAX_MARKS = 65_536


class _Marks(dict[tuple[bytes | None, bytes | None], _Mark | None]):
    """Raw number and end mark to `_Mark`, None where one cannot be read; filled as they come, bounded."""

    def __missing__(self, raws: tuple[bytes | None, bytes | None]) -> _Mark | None:
        raw_seq, raw_end = raws
        seq = decimal(raw_seq) if raw_seq else None
        end = False if raw_end is None else names.ENDS.get(raw_end.lower())
        mark = None
        if seq is not None and end is not None and 1 <= seq <= names.MAX_SEQ:
            headers = _SEQ_CHUNK + sized(raw_seq or b"") + _END_CHUNK + sized(raw_end or b"")
            head = long(seq) + END_CHUNKS[end]
            mark = _Mark(seq, end, head, head + NULL + b"\x02", headers)
        if len(self) >= _MAX_MARKS:
            self.clear()
        if len(raw_seq or b"") + len(raw_end or b"") < 32:  # what is longer is nobody's habit, and must not be kept
            self[raws] = mark
        return mark


_MARKS = _Marks()


class Row(NamedTuple):
    """A plain row; `tail` for an end component."""

    id: bytes
    seq: int
    end: bool
    body: bytes
    tail: Tail | None


RowReader = Callable[[Record, Sequence[bytes | None], bytes, int], Row | None]
"""Reads one record of a layout from its raw header values, given the Avro before the offset, and the offset; None if it is odd."""

_SIMPLE_CHUNK = long(3) + header_chunk(names.ID)
_SHORT = len(LENGTHS)
_SIZED_VALUE = [b"\x02" + length for length in LENGTHS]


def _general_reader(heads: tuple[str, ...], reading: Reading) -> RowReader | None:
    """A reader for these header names in this order, or None where they make every such record odd."""
    if (
        len(set(heads) & _ONCE) != sum(name in _ONCE for name in heads)
        or names.ID not in heads
        or names.SEQ not in heads
    ):
        return None
    if any(name not in names.UNTREATED and not reading.is_user_header(name) for name in heads):
        return None
    id_at, seq_at = heads.index(names.ID), heads.index(names.SEQ)
    end_at = heads.index(names.END) if names.END in heads else -1
    component_id_at = heads.index(names.COMPONENT_ID) if names.COMPONENT_ID in heads else -1
    chunks = tuple(sized(name.encode()) for name in heads)
    count = long(len(heads))
    has_properties = any(name in PROPERTIES | _REPEATED or reading.is_user_header(name) for name in heads)

    def read(record: Record, raws: Sequence[bytes | None], head: bytes, offset: int) -> Row | None:
        group_id, raw_seq = raws[id_at], raws[seq_at]
        mark = _MARKS[raw_seq, raws[end_at] or b"" if end_at >= 0 else None]
        if mark is None or not group_id or len(group_id) > names.MAX_ID_BYTES or not is_text(group_id):
            return None
        component_id = raws[component_id_at] if component_id_at >= 0 else None
        if component_id is not None and not is_text(component_id):
            return None
        parts = [mark.head, optional(component_id), optional(record.key()), optional(record.value()), count]
        for chunk, raw in zip(chunks, raws, strict=True):
            parts += (chunk, optional(raw))
        parts += (head, long(offset), NULL)
        body = b"".join(parts)
        if len(body) > HELD_LIMIT_BYTES:  # line 14
            return None
        tail = None
        if mark.end:
            tail = Tail(
                component_id,
                offset,
                unit_properties(list(zip(heads, raws, strict=True)), reading) if has_properties else (),
            )
        return Row(group_id, mark.seq, mark.end, body, tail)

    return read


_ONCE = frozenset({names.ID, names.SEQ, names.END, names.COMPONENT_ID})
_MAX_LAYOUTS = 4096
_MAX_LAYOUT_CHARS = 2048


def unit_properties(headers: Pairs, reading: Reading) -> tuple[tuple[str, bytes | None], ...]:
    """What a unit takes over from its end component: first of each property under our name; every user header, and what it stands for, as it is (W-90, W-97, W-205)."""
    properties: dict[str, bytes | None] = {}
    user: list[tuple[str, bytes | None]] = []
    for name, value in headers:
        meant = reading.names.get(name)
        if meant in PROPERTIES:
            properties.setdefault(meant, value)
        elif meant in _REPEATED or reading.is_user_header(name):
            user.append((name, value))
    return (*properties.items(), *user)


class ColumnReader:
    """Reads raw records of one partition into columns. Keeps look-up tables; what it returns depends on the records alone.

    Args:
        topic: Name of `D.components`.
        partition: Its partition.
        reading: How headers are read.
    """

    def __init__(self, topic: str, partition: int, reading: Reading) -> None:
        self.topic, self.partition, self.reading = topic, partition, reading
        self._source = source_head(topic, partition)
        self._readers: dict[tuple[str, ...], RowReader | None] = {}

    def read(self, records: Sequence[Record]) -> Columns:
        """Columns of the records, which are in offset order.

        The loop treats in line what most producers write: the three headers in their usual order, the id as key. It is the hottest code
        there is, hence its local names.
        """
        headers, seen = look_at_headers(records)
        columns = Columns(seen)
        if not records:
            return columns
        kind: Any = type(records[0])
        columns.offsets = list(map(kind.offset, records))
        columns.times = [at for _, at in map(kind.timestamp, records)]
        ids, seqs, ends, bodies = columns.ids.append, columns.seqs.append, columns.ends.append, columns.bodies.append
        marks, lengths, short, join, source = _MARKS, LENGTHS, _SHORT, b"".join, self._source
        name_id, name_seq, name_end = names.ID, names.SEQ, names.END
        sized_value, in_block = _SIZED_VALUE, (1 << BLOCK_BITS) - 1
        head_time, head = -1, NULL + long(-1) + source
        beyond, (low, high) = 0, block(0)
        rows = zip(
            columns.offsets, columns.times, map(kind.key, records), map(kind.value, records), headers, seen, strict=True
        )
        for offset, at, key, value, pairs, record in rows:
            if at != head_time:
                head_time, head = at, NULL + long(at) + source
            if offset >= beyond:
                beyond = (offset >> BLOCK_BITS) + 1 << BLOCK_BITS
                low, high = block(offset)
                high += NULL
            if pairs and len(pairs) == 3:
                (first, group_id), (second, raw_seq), (third, raw_end) = pairs
                if first == name_id and second == name_seq and third == name_end and raw_end is not None:
                    mark = marks[raw_seq, raw_end]
                    if (
                        mark is not None
                        and group_id
                        and key == group_id
                        and len(group_id) < 256
                        and value is not None
                        and len(value) < short
                        and group_id.isascii()
                    ):
                        seq, end, _, mark_head, mark_headers = mark
                        sized_id = lengths[len(group_id)] + group_id
                        ids(group_id)
                        seqs(seq)
                        ends(end)
                        bodies(
                            join(
                                (
                                    mark_head,
                                    sized_id,
                                    sized_value[len(value)],
                                    value,
                                    _SIMPLE_CHUNK,
                                    sized_id,
                                    mark_headers,
                                    head,
                                    low[offset & in_block],
                                    high,
                                )
                            )
                        )
                        if end:
                            columns.tails[offset] = Tail(None, offset)
                        continue
            row = self._row(record, pairs, head, offset) if pairs else None
            if row is None:
                ids(None)
                seqs(0)
                ends(False)
                bodies(b"")
                continue
            ids(row.id)
            seqs(row.seq)
            ends(row.end)
            bodies(row.body)
            if row.tail is not None:
                columns.tails[offset] = row.tail
        return columns

    def _row(self, record: Record, pairs: Pairs, head: bytes, offset: int) -> Row | None:
        heads, raws = zip(*pairs, strict=True)
        reader = self._readers[heads] if heads in self._readers else self._reader_for(heads)
        return None if reader is None else reader(record, raws, head, offset)

    def _reader_for(self, heads: tuple[str, ...]) -> RowReader | None:
        if len(self._readers) >= _MAX_LAYOUTS:  # names made up per record must not fill the memory
            self._readers = {}
        reader = _general_reader(heads, self.reading)
        if sum(map(len, heads)) <= _MAX_LAYOUT_CHARS:
            self._readers[heads] = reader
        return reader

    def encode(self, record: Record, marks: Marks) -> bytes:
        """The Avro body of an odd row that turned out to be a component."""
        component_id = marks.component_id
        return encode_component(
            Component(
                marks.seq,
                marks.end,
                None if component_id is None else component_id.decode(),
                record.key(),
                record.value(),
                tuple(read_headers(record) or ()),
                record.timestamp()[1],
                Source(self.topic, self.partition, record.offset()),
            )
        )


def read_headers(record: Record) -> list[tuple[str, bytes | None]] | None:
    """A record's headers; None where there are none, or for an `Unreadable` one."""
    try:
        headers: list[tuple[str, bytes | None]] | None = record.headers()
    except UNREADABLE:
        return None
    return headers
