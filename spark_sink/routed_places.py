"""The records of routers' inputs, a bit for each: which ones there are, and where each was found (B-203). Pure.

A router writes a component, a refused record or one that passes for each record that it reads, and `uow-input` says of which. So the law is exact: below the
routers' positions each record of an input is found once. Bits name every record that breaks it, and a million of them take a quarter of a megabyte.

Belongs here: noting places, and judging them. Does not belong here: reading logs and tables (`uow.spark_sink.routed_inputs`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from itertools import islice
from typing import Final, NamedTuple

from uow.processor.core.columns import Record, read_headers
from uow.topics import headers as names
from uow.topics.headers import decimal

BITS: Final = 4_096
"""Offsets of a block."""

Input = tuple[str, int]
"""Topic and partition of an input."""
Block = tuple[str, int, int]
"""The same with the number of a block of offsets."""


class Places:
    """Records of inputs that were found, each once or more often.

    Attributes:
        blocks: Bits of the offsets that were found, and of those that were found again, by block.
    """

    def __init__(self) -> None:
        self.blocks: dict[Block, tuple[int, int]] = {}

    def note(self, topic: str, partition: int, offset: int) -> None:
        """One was found."""
        self.add((topic, partition, offset // BITS), 1 << offset % BITS, 0)

    def add(self, block: Block, once: int, again: int) -> None:
        """So were all of these."""
        before, doubled = self.blocks.get(block, (0, 0))
        self.blocks[block] = before | once, doubled | again | before & once

    def lowest(self) -> dict[Input, int]:
        """The lowest offset that was found, by input."""
        found: dict[Input, int] = {}
        for topic, partition, number in sorted(self.blocks, reverse=True):
            once, _ = self.blocks[topic, partition, number]
            found[topic, partition] = number * BITS + (once & -once).bit_length() - 1
        return found


def traces(records: Iterable[Record]) -> Iterator[tuple[str, int, int]]:
    """The records of inputs of which routers made these records of a `D.components`: topic, partition, offset.

    A copy is none: one that was sent on to its partition, and one that somebody has sent again, have a header for it behind the router's own. Before those
    anybody may have written the same names, into the input.
    """
    for record in records:
        place: bytes | None = None
        for name, value in read_headers(record) or ():
            if name == names.INPUT:
                place = value
            elif name in (names.REROUTED, names.RESUBMITTED):
                place = None
        topic, _, rest = (place or b"").decode("utf-8", "replace").partition("/")
        partition, offset = (decimal(part.encode()) for part in (rest + "/").split("/")[:2])
        if partition is not None and offset is not None:
            yield topic, partition, offset


class InputRange(NamedTuple):
    """The part of an input's partition that is judged.

    Attributes:
        start: Its first offset.
        end: The routers' position.
        last: The end of the log, asked for after everything else was read.
        judged: What was found before this offset an earlier audit has seen.
        floor: Below it a component may have been deleted by retention.
    """

    start: int
    end: int
    last: int
    judged: int = 0
    floor: int = 0


class Wrong(StrEnum):
    """Ways in which a record of an input can be wrong, in words."""

    LOST = "is neither a component nor refused"
    DOUBLED = "is in more than one place"
    UNKNOWN = "is no record of the input, and something was made of it"


class Judgement(NamedTuple):
    """The result.

    Attributes:
        received: Number of records by topic.
        counts: Number of the wrong ones by what is wrong with them.
        examples: Some of each, with topic, partition and offset.
        unjudged: Number of records that were not found, and whose components retention may have deleted.
        early: What was found of records from the routers' positions on: for the next audit.
    """

    received: dict[str, int]
    counts: dict[Wrong, int]
    examples: list[tuple[Wrong, str, int, int]]
    unjudged: int
    early: dict[Block, tuple[int, int]]


def judge(
    ranges: Mapping[Input, InputRange], there: Places, found: Places, compacted: Collection[str] = (), most: int = 20
) -> Judgement:
    """Finds the records that are in no place, or in more than one.

    Args:
        ranges: Of every input; what is said of others is not looked at.
        there: The records in these ranges.
        found: Those of which something was found.
        compacted: Topics from which records may have gone since.
        most: Examples of each kind.
    """
    received = dict.fromkeys(sorted({topic for topic, _ in ranges}), 0)
    counts: dict[Wrong, int] = {}
    examples: list[tuple[Wrong, str, int, int]] = []
    early: dict[Block, tuple[int, int]] = {}
    unjudged = 0
    for block in sorted({*there.blocks, *found.blocks}):
        topic, partition, number = block
        at = ranges.get((topic, partition))
        if at is None:
            continue
        first = number * BITS
        expected = there.blocks.get(block, (0, 0))[0] & _mask(first, at.start, at.end)
        once, again = found.blocks.get(block, (0, 0))
        lost = expected & ~once
        unknown = 0 if topic in compacted else once & ~expected & _mask(first, at.start, at.end)
        received[topic] += expected.bit_count()
        unjudged += (lost & _mask(first, at.start, at.floor)).bit_count()
        for what, bits in (
            (Wrong.LOST, lost & ~_mask(first, at.start, at.floor)),
            (Wrong.DOUBLED, again & _mask(first, 0, at.end) | once & _mask(first, 0, at.judged)),
            (Wrong.UNKNOWN, unknown | once & ~_mask(first, 0, at.last)),
        ):
            if bits:
                room = max(0, most - counts.get(what, 0))
                counts[what] = counts.get(what, 0) + bits.bit_count()
                examples += [(what, topic, partition, first + bit) for bit in islice(_set_bits(bits), room)]
        here = _mask(first, at.end, at.last)
        if once & here:
            early[block] = once & here, again & here
    return Judgement(received, counts, examples, unjudged, early)


def _mask(first: int, start: int, end: int) -> int:
    """The bits of the offsets from `start` to before `end` in the block that begins at `first`."""
    low, high = (min(max(each - first, 0), BITS) for each in (start, end))
    return (1 << high) - (1 << low) if low < high else 0


def _set_bits(bits: int) -> Iterator[int]:
    while bits:
        yield (bits & -bits).bit_length() - 1
        bits &= bits - 1
