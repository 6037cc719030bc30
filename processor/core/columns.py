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
    END_CHUNKS,
    LENGTHS,
    NULL,
    encode_component,
    header_chunk,
    long,
    optional,
    sized,
    source_head,
)
from schemas.records import Component, Source
from topics import headers as names
from topics.headers import Marks, Reading, decimal, is_text

Pairs = Sequence[tuple[str, bytes | None]]

PROPERTIES: Final = frozenset({names.CORRELATION_ID, names.PRIORITY, names.USER_ID, names.TYPE})
"""`uow-*` headers that a unit takes over from its end component (W-90, W-97)."""


class Record(Protocol):
    """The methods of a consumed record that are used here."""

    def offset(self) -> int: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def headers(self) -> Any: ...
    def timestamp(self) -> tuple[int, int]: ...


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


class _Seq(NamedTuple):
    number: int
    encoded: bytes
    header: bytes


class _End(NamedTuple):
    mark: bool
    encoded: bytes
    header: bytes


_END_CHUNK = header_chunk(names.END)
_SEQ_CHUNK = header_chunk(names.SEQ)
_NO_END = _End(False, END_CHUNKS[False], b"")
_ENDS = {
    raw: _End(mark, END_CHUNKS[mark], _END_CHUNK + sized(raw))
    for mark, spellings in (
        (True, (b"true", b"True", b"TRUE")),
        (False, (b"false", b"False", b"FALSE")),
    )
    for raw in spellings
}
_COMMON_SEQS = {
    raw: _Seq(number, long(number), _SEQ_CHUNK + sized(raw)) for number in range(1, 2049) for raw in (b"%d" % number,)
}


def _seq(raw: bytes | None) -> _Seq | None:
    number = decimal(raw) if raw else None
    if raw is None or number is None or not 1 <= number <= names.MAX_SEQ:
        return None
    return _Seq(number, long(number), _SEQ_CHUNK + sized(raw))


Row = tuple[bytes, int, bool, bytes, Tail | None]
"""Id, number, end mark, Avro body, and for an end component its tail."""
RowReader = Callable[[Record, Sequence[bytes | None], bytes, int], Row | None]
"""Reads one record of a layout from its raw header values, given the Avro before the offset, and the offset; None if it is odd."""

_SIMPLE = (names.ID, names.SEQ, names.END)
_SIMPLE_CHUNK = long(3) + header_chunk(names.ID)
_SHORT = len(LENGTHS)


def _read_simple(
    record: Record,
    raws: Sequence[bytes | None],
    head: bytes,
    offset: int,
    seqs: dict[bytes, _Seq] = _COMMON_SEQS,
    lengths: list[bytes] = LENGTHS,
) -> Row | None:
    """The three headers in their usual order and nothing else: what most producers write."""
    group_id, raw_seq, raw_end = raws
    seq = seqs.get(raw_seq) or _seq(raw_seq)  # type: ignore[arg-type]  # None is no key of it
    end = _ENDS.get(raw_end)  # type: ignore[arg-type]
    if seq is None or end is None or not group_id or len(group_id) > names.MAX_ID_BYTES or not is_text(group_id):
        return None
    key, value = record.key(), record.value()
    sized_id = lengths[len(group_id)] + group_id
    length = b"" if value is None else lengths[len(value)] if len(value) < _SHORT else long(len(value))
    body = b"".join(
        (
            seq.encoded,
            end.encoded,
            b"\x00\x02" + sized_id if key == group_id else NULL + optional(key),
            NULL if value is None else b"\x02",
            length,
            value or b"",
            _SIMPLE_CHUNK,
            sized_id,
            seq.header,
            end.header,
            head,
            long(offset),
            NULL,
        )
    )
    return (
        group_id,
        seq.number,
        end.mark,
        body,
        Tail(None, offset) if end.mark else None,
    )


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
    has_properties = any(name in PROPERTIES or reading.is_user_header(name) for name in heads)

    def read(record: Record, raws: Sequence[bytes | None], head: bytes, offset: int) -> Row | None:
        group_id, raw_seq = raws[id_at], raws[seq_at]
        seq = _COMMON_SEQS.get(raw_seq) or _seq(raw_seq)  # type: ignore[arg-type]
        end = _ENDS.get(raws[end_at]) if end_at >= 0 else _NO_END  # type: ignore[arg-type]
        if seq is None or end is None or not group_id or len(group_id) > names.MAX_ID_BYTES or not is_text(group_id):
            return None
        component_id = raws[component_id_at] if component_id_at >= 0 else None
        if component_id is not None and not is_text(component_id):
            return None
        parts = [
            seq.encoded,
            end.encoded,
            optional(component_id),
            optional(record.key()),
            optional(record.value()),
            count,
        ]
        for chunk, raw in zip(chunks, raws, strict=True):
            parts += (chunk, optional(raw))
        parts += (head, long(offset), NULL)
        tail = None
        if end.mark:
            tail = Tail(
                component_id,
                offset,
                unit_properties(list(zip(heads, raws, strict=True)), reading) if has_properties else (),
            )
        return group_id, seq.number, end.mark, b"".join(parts), tail

    return read


_ONCE = frozenset({names.ID, names.SEQ, names.END, names.COMPONENT_ID})
_MAX_LAYOUTS = 4096


def unit_properties(headers: Pairs, reading: Reading) -> tuple[tuple[str, bytes | None], ...]:
    """What a unit takes over from its end component: first of each property under our name, and every user header as it is (W-90, W-97)."""
    properties: dict[str, bytes | None] = {}
    user: list[tuple[str, bytes | None]] = []
    for name, value in headers:
        meant = reading.names.get(name)
        if meant in PROPERTIES:
            properties.setdefault(meant, value)
        elif reading.is_user_header(name):
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
        self._readers: dict[tuple[str, ...], RowReader | None] = {_SIMPLE: _read_simple}

    def read(self, records: Sequence[Record]) -> Columns:
        """Columns of the records, which are in offset order."""
        columns = Columns(records)
        ids, seqs, ends = columns.ids.append, columns.seqs.append, columns.ends.append
        times, offsets, bodies, tails = (
            columns.times.append,
            columns.offsets.append,
            columns.bodies.append,
            columns.tails,
        )
        readers, reader_for, source = self._readers, self._reader_for, self._source
        head_time, head = -1, b""
        for record in records:
            at, offset = record.timestamp()[1], record.offset()
            times(at)
            offsets(offset)
            if at != head_time:
                head_time, head = at, NULL + long(at) + source
            row = None
            pairs = read_headers(record)
            if pairs:
                heads, raws = zip(*pairs, strict=True)
                reader = readers[heads] if heads in readers else reader_for(heads)
                if reader is not None:
                    row = reader(record, raws, head, offset)
            if row is None:
                ids(None)
                seqs(0)
                ends(False)
                bodies(b"")
            else:
                group_id, seq, end, body, tail = row
                ids(group_id)
                seqs(seq)
                ends(end)
                bodies(body)
                if tail is not None:
                    tails[offset] = tail
        return columns

    def _reader_for(self, heads: tuple[str, ...]) -> RowReader | None:
        if len(self._readers) >= _MAX_LAYOUTS:  # names made up per record must not fill the memory
            self._readers = {_SIMPLE: _read_simple}
        reader = self._readers[heads] = _general_reader(heads, self.reading)
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
    """A record's headers; None where there are none, or where a name is no UTF-8, which the binding cannot show."""
    try:
        headers: list[tuple[str, bytes | None]] | None = record.headers()
    except UnicodeDecodeError:
        return None
    return headers
