"""Records with the same header names in the same order: a layout. They are read in bulk, column by column, without a Python call for each.

A row is *plain* if it has a valid id, number and end mark and no header that changes its treatment. Its Avro body is joined here, once, from
look-up tables; the Python that runs per record is a few comprehensions, the rest is in `map`, `zip` and `join`.

Belongs here: what makes a row plain, and its bytes. Does not belong here: which rows belong to which layout (`columns`), and rules about groups.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from operator import add, itemgetter
from typing import Any, Final, NamedTuple, TypeVar

from uow.processor.core.changes import Tail
from uow.schemas.component import (
    END_CHUNKS,
    LENGTHS,
    NULL,
    header_chunk,
    long,
    longs,
    optional,
    sized,
)
from uow.topics import headers as names
from uow.topics.catalogue import HELD_LIMIT_BYTES
from uow.topics.headers import Reading, decimal, is_text

T = TypeVar("T")

Pairs = Sequence[tuple[str, bytes | None]]

PROPERTIES: Final = frozenset({names.CORRELATION_ID, names.PRIORITY, names.USER_ID, names.TYPE})
"""`uow-*` headers that a unit takes over from its end component (W-90, W-97)."""
_REPEATED: Final = frozenset(names.PARENTS)
"""Those that it takes over with all their repeats (W-205)."""


def picker(rows: Sequence[int]) -> Callable[[Sequence[T]], list[T]]:
    """Takes these rows of a column, in this order: by one call of the library where there are several."""
    if len(rows) < 2:
        return lambda column: [column[row] for row in rows]
    pick = itemgetter(*rows)
    return lambda column: list(pick(column))


class Raw(NamedTuple):
    """Records in offset order, by column."""

    offsets: Sequence[int]
    times: Sequence[int]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]

    def of(self, rows: Sequence[int]) -> Raw:
        """Some of them."""
        pick = picker(rows)
        return Raw(pick(self.offsets), pick(self.times), pick(self.keys), pick(self.values))


class Rows(NamedTuple):
    """Plain rows, by column; the id is None where the component is too large to be held. `tails` by offset, for end components only."""

    ids: Sequence[bytes | None]
    seqs: Sequence[int]
    ends: Sequence[bool]
    bodies: Sequence[bytes]
    tails: dict[int, Tail | None]


def by_header(headers: Sequence[Pairs | None]) -> tuple[tuple[str, ...], list[Sequence[bytes | None]]] | None:
    """The layout of these records, and their raw header values, a column for each header; None unless all have one layout."""
    try:
        cells: list[Any] = list(zip(*headers, strict=True))
    except (TypeError, ValueError):  # a record without headers, or of another length
        return None
    heads: list[str] = []
    columns: list[Sequence[bytes | None]] = []
    for cell in cells:
        found, raws = zip(*cell, strict=True)
        if found.count(found[0]) != len(found):
            return None
        heads.append(found[0])
        columns.append(raws)
    return (tuple(heads), columns) if heads else None


def apart(headers: Sequence[Pairs | None]) -> Iterator[tuple[list[int], tuple[str, ...], list[Sequence[bytes | None]]]]:
    """The rows of each layout, and the layout as `by_header` gives it. Rows without headers are left out.

    Layouts mostly differ in how many headers they have, as those of a unit's last component and the others do where only the last one has
    an end mark: the names of each record are looked at only where they do not.
    """
    by_length: defaultdict[int, list[int]] = defaultdict(list)
    for row, pairs in enumerate(headers):
        if pairs:
            by_length[len(pairs)].append(row)
    for at in by_length.values():
        turned = by_header(picker(at)(headers))
        if turned is not None:
            yield at, *turned
            continue
        by_names: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
        for row in at:
            by_names[tuple([name for name, _ in headers[row] or ()])].append(row)
        for heads, some in by_names.items():
            yield some, heads, list(zip(*[[value for _, value in headers[row] or ()] for row in some], strict=True))


class _Mark(NamedTuple):
    """A raw number with its raw end mark, if it has one, read once: what they mean, and the Avro that depends on them alone.

    Attributes:
        seq: The number.
        end: The mark.
        head: Number and mark, as a component begins.
        simple: The same, and no component id.
        headers: The two headers, number first; the number alone where the mark is absent.
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
        end = names.ENDS.get(raw_end.lower()) if raw_end is not None else None
        mark = None if end is None else _mark_of(raw_seq, end, _END_CHUNK + sized(raw_end or b""))
        if len(self) >= _MAX_MARKS:
            self.clear()
        if len(raw_seq or b"") + len(raw_end or b"") < 32:  # what is longer is nobody's habit, and must not be kept
            self[raws] = mark
        return mark


class _Numbers(dict[bytes | None, _Mark | None]):
    """The same by the raw number alone, where there is no end mark."""

    def __missing__(self, raw_seq: bytes | None) -> _Mark | None:
        mark = _mark_of(raw_seq, False, b"")
        if len(self) >= _MAX_MARKS:
            self.clear()
        if len(raw_seq or b"") < 32:
            self[raw_seq] = mark
        return mark


def _mark_of(raw_seq: bytes | None, end: bool, end_header: bytes) -> _Mark | None:
    seq = decimal(raw_seq) if raw_seq else None
    if raw_seq is None or seq is None or not 1 <= seq <= names.MAX_SEQ:
        return None
    head = long(seq) + END_CHUNKS[end]
    return _Mark(seq, end, head, head + NULL, _SEQ_CHUNK + sized(raw_seq) + end_header)


_MARKS, _NUMBERS = _Marks(), _Numbers()
_ONCE = frozenset({names.ID, names.SEQ, names.END, names.COMPONENT_ID})
_SHORT = len(LENGTHS)
_SIZED = [b"\x02" + length for length in LENGTHS]


class Layout:
    """Reads records of one layout. Make one with `of`."""

    def __init__(self, heads: tuple[str, ...], reading: Reading, source: bytes) -> None:
        self._heads, self._reading, self._source = heads, reading, source
        self._id, self._seq = heads.index(names.ID), heads.index(names.SEQ)
        self._end = heads.index(names.END) if names.END in heads else None
        self._component_id = heads.index(names.COMPONENT_ID) if names.COMPONENT_ID in heads else None
        self._has_properties = has_properties(heads, reading)
        self._headers: list[
            tuple[bytes, int | None]
        ] = []  # what comes before a header's value, and its column; None: number and end mark, if there is one
        before, at = long(len(heads)), 0
        while at < len(heads):
            is_mark = at == self._seq and self._end in (None, at + 1)
            self._headers.append((before if is_mark else before + sized(heads[at].encode()), None if is_mark else at))
            before, at = b"", at + (2 if is_mark and self._end is not None else 1)

    @classmethod
    def of(cls, heads: tuple[str, ...], reading: Reading, source: bytes) -> Layout | None:
        """A reader for these header names in this order, or None where they make every such record odd.

        Args:
            heads: The names.
            reading: How headers are read.
            source: Avro of where the records are, as far as the offset.
        """
        if len(set(heads) & _ONCE) != sum(name in _ONCE for name in heads):
            return None
        if names.ID not in heads or names.SEQ not in heads:
            return None
        if any(name not in names.UNTREATED and not reading.is_user_header(name) for name in heads):
            return None
        return cls(heads, reading, source)

    def is_plain(self, raws: Sequence[bytes | None]) -> bool:
        """True if a record with these header values is plain."""
        group_id = raws[self._id]
        raw_seq = raws[self._seq]
        component_id = None if self._component_id is None else raws[self._component_id]
        return (
            bool(group_id)
            and len(group_id or b"") <= names.MAX_ID_BYTES
            and is_text(group_id or b"")
            and (_NUMBERS[raw_seq] if self._end is None else _MARKS[raw_seq, raws[self._end]]) is not None
            and (component_id is None or is_text(component_id))
        )

    def read(self, raw: Raw, columns: Sequence[Sequence[bytes | None]]) -> Rows | None:
        """All of the records, or None if one of them is not plain.

        A component's Avro body is number, end mark, component id, key, value, headers, append time, source, no reference. `parts` has one
        iterable for each piece of it, in this order, each with the pieces of all records; row `i` of their `zip` is the body of record `i`.

        - Past the first `return` every row is plain: number and mark are legal, the id is text of 1 to 255 bytes, the component id is text.
        - Pieces that are the same for all records, or for many, are made once: `_MARKS` has the Avro of each pair of number and mark, `_NUMBERS` of each number without one, as
          fields and as headers, `known` that of each append time; an id is encoded once and stands there as key and header where both are it.
        - A header's piece is its name with the count of headers before it, for the first one; then its value. Number and mark are one piece
          where they are neighbours or the mark is absent (None in `_headers`).
        - `repeat` never ends, so `zip` ends with the pieces that do: each of the others has one for each record.

        Args:
            raw: The records.
            columns: Their header values, a column for each header.
        """
        ids: Sequence[Any] = columns[self._id]
        raw_seqs = columns[self._seq]
        marks: list[Any] = list(
            map(_NUMBERS.__getitem__, raw_seqs)
            if self._end is None
            else map(_MARKS.__getitem__, zip(raw_seqs, columns[self._end], strict=True))
        )
        component_ids = None if self._component_id is None else columns[self._component_id]
        if None in marks or not are_ids(ids) or not (component_ids is None or _are_texts(component_ids)):
            return None
        seqs, ends, heads, simple, of_marks = zip(*marks, strict=True)
        sized_ids = list(map(add, map(_SIZED.__getitem__, map(len, ids)), ids))
        parts: list[Iterable[bytes]] = [simple] if component_ids is None else [heads, map(optional, component_ids)]
        parts.append(sized_ids if raw.keys == list(ids) else map(optional, raw.keys))
        parts += optionals(raw.values)
        for before, at in self._headers:
            if before:
                parts.append(repeat(before))
            parts.append(of_marks if at is None else sized_ids if at == self._id else map(optional, columns[at]))
        known = {at: NULL + long(at) + self._source for at in set(raw.times)}
        parts += (map(known.__getitem__, raw.times), longs(raw.offsets), repeat(NULL))
        bodies = list(map(b"".join, zip(*parts, strict=False)))
        if max(map(len, bodies)) > HELD_LIMIT_BYTES:  # line 14
            ids = [
                None if len(body) > HELD_LIMIT_BYTES else group_id for group_id, body in zip(ids, bodies, strict=True)
            ]
            bodies = [b"" if group_id is None else body for group_id, body in zip(ids, bodies, strict=True)]
        tails = {offset: self._tail(offset, row, columns) for row, offset in enumerate(raw.offsets) if ends[row]}
        return Rows(ids, seqs, ends, bodies, tails)

    def _tail(self, offset: int, row: int, columns: Sequence[Sequence[bytes | None]]) -> Tail | None:
        component_id = None if self._component_id is None else columns[self._component_id][row]
        if not self._has_properties:
            return tail_of(component_id, offset, (), self._reading)
        pairs = [(name, column[row]) for name, column in zip(self._heads, columns, strict=True)]
        return tail_of(component_id, offset, pairs, self._reading)


def has_properties(heads: Sequence[str], reading: Reading) -> bool:
    """True if a unit takes over one of these headers from its end component."""
    return any(name in PROPERTIES | _REPEATED or reading.is_user_header(name) for name in heads)


def are_ids(raws: Sequence[bytes | None]) -> bool:
    """True if each is a legal id: 1 to 255 bytes of text."""
    try:
        lengths = list(map(len, raws))  # type: ignore[arg-type]
    except TypeError:  # there is none
        return False
    return min(lengths) > 0 and max(lengths) <= names.MAX_ID_BYTES and _are_texts(raws)


def _are_texts(raws: Sequence[bytes | None]) -> bool:
    """True if each is UTF-8 or None."""
    if None in raws:
        raws = [raw for raw in raws if raw is not None]
    return all(map(bytes.isascii, raws)) or all(map(is_text, raws))  # type: ignore[arg-type]


def optionals(raws: Sequence[bytes | None]) -> tuple[Iterable[bytes], ...]:
    """`optional` of each, in pieces: mostly what is there is short, and need not be copied once more."""
    if None not in raws:
        lengths = list(map(len, raws))  # type: ignore[arg-type]
        if max(lengths) < _SHORT:
            return map(_SIZED.__getitem__, lengths), raws  # type: ignore[return-value]
    return (map(optional, raws),)


_TAIL_HEADERS = 16
_TAIL_BYTES = 1_024


def tail_of(component_id: bytes | None, offset: int, headers: Pairs, reading: Reading) -> Tail | None:
    """The `Tail` of an end component, kept while its group is open; None where it is large, and read from the body when it is needed."""
    if (
        len(headers) > _TAIL_HEADERS
        or sum([len(value or b"") for _, value in headers]) + len(component_id or b"") > _TAIL_BYTES
    ):
        return None
    return Tail(component_id, offset, unit_properties(headers, reading))


def unit_properties(headers: Pairs, reading: Reading) -> tuple[tuple[str, bytes | None], ...]:
    """Headers that a unit takes over from its end component: the first of each property, under its `uow-*` name; user headers and parents as they are (W-90, W-97, W-205)."""
    properties: dict[str, bytes | None] = {}
    user: list[tuple[str, bytes | None]] = []
    for name, value in headers:
        meant = reading.names.get(name)
        if meant in PROPERTIES:
            if reading.is_said(meant, said := reading.native(name, value)):
                properties.setdefault(meant, said)
        elif meant in _REPEATED or reading.is_user_header(name):
            user.append((name, value))
    return (*properties.items(), *user)
