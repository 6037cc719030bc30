"""Pieces of components that are not whole yet (B-124): their places, overlaps, and joining them. Pure.

Theory of operation. A piece is a record that brings some bytes of a component's value, from a position on. The pieces of a group are kept as they came, each
in a *slot*, a number above every sequence number, so that a row of the changelog can stand for it. Of each number the bytes that are there are
*spans*: disjoint, in order, each with the slot whose piece gives these bytes. A piece gives the bytes that no earlier one gave, and where both have some
they are equal: otherwise it is refused. So a value is whole when the spans cover as many bytes as the last piece says.

A component is held once its value is whole, with the headers of the piece at position 0, and the place and time of the piece that was lacking.

Belongs here: which bytes are there. Does not belong here: the decision about a piece (`decide`), and when a group is complete (`conditions`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from operator import itemgetter
from typing import Final, NamedTuple

from uow.schemas.component import decode_component, value_of
from uow.schemas.records import MAX_SEQ, ComponentRecord
from uow.topics.headers import Segment, segment_of

FIRST_SLOT: Final = MAX_SEQ + 1
"""The slot of the first piece of a group."""
_START = itemgetter(0)

Span = tuple[int, int, int]
"""First byte, the one behind the last, and the slot of the piece that gives them."""


class _Value:
    """The spans of one value, and where each of its pieces begins; `total` is its length, None until its last piece is there."""

    __slots__ = ("covered", "places", "spans", "total")

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.places: dict[int, int] = {}
        self.covered = 0
        self.total: int | None = None


class Overlap(NamedTuple):
    """A new piece beside those that are there.

    Attributes:
        gaps: The stretches of it that no other gives.
        conflict: Why it cannot be of the same value; empty if it can.
        is_last_new: True if it tells the length of the value, and none did before.
    """

    gaps: tuple[tuple[int, int], ...]
    conflict: str = ""
    is_last_new: bool = False

    @property
    def is_duplicate(self) -> bool:
        """True if everything that it says is known."""
        return not (self.gaps or self.conflict or self.is_last_new)


class Segments:
    """The pieces of one group.

    Attributes:
        bodies: Avro bodies by slot, in order of arrival.
        bytes: Sum of their lengths.
    """

    __slots__ = ("_values", "bodies", "bytes")

    def __init__(self) -> None:
        self.bodies: dict[int, bytes] = {}
        self.bytes = 0
        self._values: dict[int, _Value] = {}

    @property
    def next_slot(self) -> int:
        """The slot of the next piece; a restore finds the same."""
        return next(reversed(self.bodies), FIRST_SLOT - 1) + 1

    def numbers(self) -> list[int]:
        """The numbers of which there are pieces."""
        return sorted(self._values)

    def overlap(self, seq: int, piece: Segment, value: bytes) -> Overlap:
        """How a piece fits to those that are there."""
        start, stop = piece.at, piece.at + len(value)
        known = self._values.get(seq) or _Value()
        reached = known.spans[-1][1] if known.spans else 0
        if known.total is not None and (stop > known.total or (piece.end and stop != known.total)):
            return Overlap((), f"bytes to {stop}, where the value has {known.total}")
        if piece.end and stop < reached:
            return Overlap((), f"the last piece ends at {stop}, where others reach {reached}")
        gaps: list[tuple[int, int]] = []
        values: dict[int, bytes] = {}
        at = start
        for first, last, slot in self._within(known.spans, start, stop):
            if at < first:
                gaps.append((at, first))
            at, until = max(at, first), min(stop, last)
            before = known.places[slot]
            if slot not in values:
                values[slot] = self._value(slot)
            if value[at - start : until - start] != values[slot][at - before : until - before]:
                return Overlap((), f"other bytes from {at} to {until}")
            at = until
        if at < stop:
            gaps.append((at, stop))
        return Overlap(tuple(gaps), is_last_new=piece.end and known.total is None)

    @staticmethod
    def _within(spans: list[Span], start: int, stop: int) -> Iterator[Span]:
        index = max(0, bisect_right(spans, start, key=_START) - 1)
        while index < len(spans) and spans[index][0] < stop:
            if spans[index][1] > start:
                yield spans[index]
            index += 1

    def add(self, slot: int, body: bytes) -> None:
        """Takes a piece that fits: one in hand, or in a restore one that was held."""
        component = decode_component(body)
        piece, value = segment_of(component.headers), component.value or b""
        found = self.overlap(component.seq, piece, value)
        self.bodies[slot] = body
        self.bytes += len(body)
        known = self._values.setdefault(component.seq, _Value())
        known.places[slot] = piece.at
        for first, last in found.gaps:
            known.spans.insert(bisect_right(known.spans, first, key=_START), (first, last, slot))
            known.covered += last - first
        if piece.end:
            known.total = piece.at + len(value)

    def _value(self, slot: int) -> bytes:
        return value_of(self.bodies[slot]) or b""

    def slots(self, seq: int) -> list[int]:
        """The slots of the pieces of a number, in order of arrival."""
        return [*self._values[seq].places] if seq in self._values else []

    def bytes_of(self, seq: int) -> int:
        """Bytes of the pieces of a number."""
        return sum(len(self.bodies[slot]) for slot in self.slots(seq))

    def drop(self, seq: int) -> None:
        """Lets go of the pieces of a number."""
        for slot in self.slots(seq):
            self.bytes -= len(self.bodies.pop(slot))
        self._values.pop(seq, None)

    def joined(self, seq: int, piece: Segment, value: bytes) -> bytes | None:
        """The whole value, if a piece that fits is all that it lacks."""
        known = self._values.get(seq) or _Value()
        total = piece.at + len(value) if piece.end else known.total
        if total != known.covered + sum(last - first for first, last in self.overlap(seq, piece, value).gaps):
            return None
        whole = bytearray(total)
        for slot, at in known.places.items():
            given = self._value(slot)
            whole[at : at + len(given)] = given
        whole[piece.at : piece.at + len(value)] = value
        return bytes(whole)

    def first(self, seq: int) -> ComponentRecord:
        """The piece that gives the first byte, which is there."""
        return decode_component(self.bodies[self._values[seq].spans[0][2]])
