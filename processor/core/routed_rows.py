"""Components that a router wrote, read in bulk: rows of records with the headers of a plain component and the router's own (aggregation, 2.2).

A *routed row* has each of these headers once, readable, and none that changes its treatment. Its Avro body is joined here, but for the number at its
beginning, which the group gives it.

Belongs here: what makes a row routed, and its bytes. Does not belong here: the group that takes it (`counted_groups`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import repeat
from operator import add
from typing import Any, Final

from uow.processor.core.layout import Raw, are_ids, has_properties, optionals
from uow.schemas.component import NULL, long, longs, optional, sized
from uow.topics import headers as names
from uow.topics.headers import Reading

_COORDINATES: Final = re.compile(rb"(?:[A-Za-z0-9._-]{1,249}+/[0-9]{1,10}+/[0-9]{1,19}+\n)*+")
"""Of any number of records, a line each."""
_DIGITS: Final = 14
"""Most digits of a moment in epoch ms, of which the year is surely one that can be."""
_TREATED: Final = frozenset({names.SEQ, names.END, names.COMPONENT_ID})
_ROUTED: Final = (names.UNTREATED - _TREATED) | {names.RULE, names.INPUT, names.ARRIVED_AT, names.ORIGIN_KEY}
_ONCE: Final = (names.ID, names.RULE, names.INPUT, names.ARRIVED_AT)


RoutedRow = tuple[bytes, str, bytes, int, int, int, bool, bytes]
"""A component as a router wrote it:

1. its group key,
2. the text of `uow-rule`,
3. the coordinates of the record that it was made of, which are its component id,
4. when that arrived, epoch ms; not after its append time,
5. its append time, epoch ms,
6. the length of its value,
7. true if it has no header that a unit takes over,
8. its Avro body without the number and the end mark at its beginning.
"""


class RoutedLayout:
    """Reads routed rows with these header names in this order. Make one with `of`."""

    def __init__(self, heads: tuple[str, ...], reading: Reading, source: bytes) -> None:
        self._source, self._is_bare = source, not has_properties(heads, reading)
        self._id, self._rule, self._input = map(heads.index, _ONCE[:3])
        self._arrived_at = heads.index(names.ARRIVED_AT) if names.ARRIVED_AT in heads else None
        chunks = [sized(name.encode()) for name in heads]
        self._before = [long(len(heads)) + chunks[0], *chunks[1:]]

    @classmethod
    def of(cls, heads: tuple[str, ...], reading: Reading, source: bytes) -> RoutedLayout | None:
        """A reader for these header names, or None where not all such records are routed rows.

        Args:
            heads: The names.
            reading: How headers are read.
            source: Avro of where the records are, as far as the offset.
        """
        if any(heads.count(name) != 1 for name in _ONCE[:3]) or heads.count(names.ARRIVED_AT) > 1:
            return None
        if any(name not in _ROUTED and not reading.is_user_header(name) for name in heads):
            return None
        return cls(heads, reading, source)

    def read(self, raw: Raw, columns: Sequence[Sequence[bytes | None]]) -> dict[int, RoutedRow] | None:
        """All of the records by their offsets, or None if one of them is no routed row.

        Args:
            raw: The records.
            columns: Their header values, a column for each header.
        """
        ids, inputs = columns[self._id], columns[self._input]
        rules = _rules(columns[self._rule])
        arrivals = raw.times if self._arrived_at is None else _arrivals(columns[self._arrived_at], raw.times)
        if rules is None or arrivals is None or not are_ids(ids) or not _are_coordinates(inputs):
            return None
        ids_as_avro, inputs_as_avro = _optional(ids), _optional(inputs)
        keys = ids_as_avro if raw.keys == list(ids) else _optional(raw.keys)
        parts: list[Iterable[bytes]] = [inputs_as_avro, keys, *optionals(raw.values)]
        for at, (before, column) in enumerate(zip(self._before, columns, strict=True)):
            if at == self._id:
                parts += (repeat(before), ids_as_avro)
            elif at == self._input:
                parts += (repeat(before), inputs_as_avro)
            else:
                parts += _headers(before, column)
        known = {at: NULL + long(at) + self._source for at in set(raw.times)}
        parts += (map(known.__getitem__, raw.times), longs(raw.offsets), repeat(NULL))
        rests = map(b"".join, zip(*parts, strict=False))
        lengths = [len(value) if value is not None else 0 for value in raw.values]
        rows: Any = zip(ids, rules, inputs, arrivals, raw.times, lengths, repeat(self._is_bare), rests)
        return dict(zip(raw.offsets, rows, strict=True))


def _optional(column: Sequence[bytes | None]) -> list[bytes]:
    """`optional` of each."""
    pieces = optionals(column)
    return list(map(add, *pieces) if len(pieces) == 2 else pieces[0])


def _headers(before: bytes, column: Sequence[bytes | None]) -> tuple[Iterable[bytes], ...]:
    """A header of each record in pieces: what stands before its value, and `optional` of it. Values that come again and again are encoded once."""
    distinct = set(column)
    if 2 * len(distinct) > len(column):
        return repeat(before), _optional(column)
    known = {raw: before + optional(raw) for raw in distinct}
    return (map(known.__getitem__, column),)


def _are_coordinates(raws: Sequence[bytes | None]) -> bool:
    """True if each names a record: `topic/partition/offset`. All are looked at at once; one with a line break in it makes a line too many."""
    if None in raws:
        return False
    lines = b"\n".join((*raws, b""))  # type: ignore[arg-type]
    return lines.count(b"\n") == len(raws) and _COORDINATES.fullmatch(lines) is not None


def _rules(raws: Sequence[bytes | None]) -> list[str] | None:
    """The names of rows; None if one is none."""
    known: dict[bytes | None, str] = {}
    for raw in set(raws):
        if not raw or len(raw) > names.MAX_RULE_BYTES or not names.is_text(raw):
            return None
        known[raw] = raw.decode()
    return [known[raw] for raw in raws]


def _arrivals(raws: Sequence[bytes | None], times: Sequence[int]) -> list[int] | None:
    """The arrivals, none after its append time; None if one cannot be read."""
    known: dict[bytes | None, int] = {}
    for raw in set(raws):
        if raw is None or not raw.isdigit() or len(raw) > _DIGITS:
            return None
        known[raw] = int(raw)
    return list(map(min, map(known.__getitem__, raws), times))
