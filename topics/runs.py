"""Units of shape `consecutive`: what the headers of their records say, written and read (W-12, W-116). Pure.

A unit is a *run* of neighbours on one partition of `D.units`, one record per component, in number order. Each record has the unit's
headers, `uow-pos` (`i/n`), where the component came from (`uow-source`, `uow-component-id`), and the component's own user headers. The
group id is the key, the component's value is the value. What else an envelope tells, of the unit or of a component, is not told.

Belongs here: headers of such records, and the check that a run is whole. Does not belong here: who writes them
(`processor.engine.shapes`), who reads a topic (`uow.reader`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import count as numbers_from
from typing import Final

from schemas.errors import DecodeError
from schemas.records import (
    MAX_RANGES,
    Component,
    Range,
    Reason,
    Source,
    Unit,
    UnitOutcome,
    parse_ranges,
    ranges_text,
)
from topics import headers as names
from topics.catalogue import DestinationTopics

Pairs = Sequence[tuple[str, bytes | None]]

COMPONENTS: Final = DestinationTopics("", "").components
_POS: Final = re.compile(rb"([1-9][0-9]{0,9})/([1-9][0-9]{0,9})")
_SOURCE: Final = re.compile(r"(.+)/([0-9]{1,10})/([0-9]{1,19})", re.ASCII)


def unit_part(headers: Pairs, is_user_header: Callable[[str], bool]) -> list[tuple[str, bytes | None]]:
    """What all records of a run have in common: the unit's headers without the end component's user headers."""
    return [pair for pair in headers if not is_user_header(pair[0])]


def record_headers(
    common: Pairs, component: Component, position: int, count: int, is_user_header: Callable[[str], bool]
) -> list[tuple[str, bytes | None]]:
    """Headers of one record of a run.

    Args:
        common: See `unit_part`.
        component: The component.
        position: Its place in the unit, from 1.
        count: Number of components.
        is_user_header: Which of the component's headers are the application's own.
    """
    source = component.source
    made = [
        *common,
        (names.POS, b"%d/%d" % (position, count)),
        (names.SOURCE, f"{source.topic}/{source.partition}/{source.offset}".encode()),
    ]
    if component.component_id is not None:
        made.append((names.COMPONENT_ID, component.component_id.encode()))
    return made + [pair for pair in component.headers if is_user_header(pair[0])]


def first_of_many_gaps(first: Pairs, missing: Sequence[Range]) -> list[tuple[str, bytes | None]]:
    """Headers of a run's first record: it alone names every gap, where there are more than a header of each record should hold."""
    if len(missing) <= MAX_RANGES:
        return list(first)
    return [(name, ranges_text(missing).encode() if name == names.MISSING else value) for name, value in first]


def position_of(headers: Pairs) -> tuple[int, int] | None:
    """`uow-pos` as (place, number of components); None on a record that is no part of a run.

    Raises:
        DecodeError: It cannot be read; case `uow-pos`.
    """
    raw = next((value or b"" for name, value in headers if name == names.POS), None)
    if raw is None:
        return None
    found = _POS.fullmatch(raw)
    if found is None or int(found[1]) > int(found[2]):
        raise DecodeError(names.POS, f"{raw[:40]!r} is no place in a unit")
    return int(found[1]), int(found[2])


def _told(headers: Pairs, name: str) -> str:
    """Text of a header. Raises `DecodeError` where there is none."""
    raw = next((value for each, value in headers if each == name), None)
    if raw is None:
        raise DecodeError(name, "a record of a unit of shape consecutive has no such header")
    return raw.decode("utf-8", "backslashreplace")


def _number(headers: Pairs, name: str) -> int:
    text = _told(headers, name)
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise DecodeError(name, f"{text[:40]!r} is no number")
    return int(text)


def unit_of(headers: Pairs, destination: str, at: int) -> Unit:
    """The unit that a run's first record begins, as far as headers tell it: without components.

    Args:
        headers: Of the first record.
        destination: Whose unit it is, where the first component's source does not tell.
        at: When the record was written, epoch ms: the headers do not tell when the group opened and closed.

    Raises:
        DecodeError: A header is missing, or cannot be read; its name is the case.
    """
    position = position_of(headers)
    assert position is not None
    said = dict(headers)
    if names.SOURCE in said:
        topic = _source_of(said[names.SOURCE]).topic
        destination = topic.removesuffix(COMPONENTS) if topic.endswith(COMPONENTS) else destination
    try:
        outcome, reason = UnitOutcome(_told(headers, names.OUTCOME)), Reason(_told(headers, names.REASON))
    except ValueError as error:
        raise DecodeError(names.OUTCOME, str(error)) from None
    return Unit(
        _told(headers, names.ID),
        _told(headers, names.UNIT_ID),
        destination,
        _number(headers, names.GENERATION),
        outcome,
        reason,
        at,
        at,
        _number(headers, names.EXPIRES_AT) if names.EXPIRES_AT in said else None,
        position[1],
        0,
        parse_ranges(_told(headers, names.MISSING)) if names.MISSING in said else (),
        (),
    )


def numbers_of(missing: Sequence[Range], place: int = 1) -> Iterator[int]:
    """Sequence numbers of a unit that lacks these, from its component at `place` on, rising, without end."""
    after, skipped = 0, place - 1
    for gap in missing:
        here = gap.first - after - 1
        if skipped < here:
            yield from range(after + 1 + skipped, gap.first)
        skipped = max(skipped - here, 0)
        after = gap.last
    yield from numbers_from(after + 1 + skipped)


class Run:
    """A run under way: checks that each record is the next one (W-12).

    Args:
        unit: What its first record said, by `unit_of`.
        first: Offset of that record.
        taken: For whoever looks at a record in the middle by itself: how many come before it.

    Attributes:
        taken: How many records have come.
        last: Offset of the last one.
    """

    def __init__(self, unit: Unit, first: int, taken: int = 0) -> None:
        self.unit = unit
        self.first = self.last = first
        self.taken = taken
        self._numbers = numbers_of(unit.missing, taken + 1)

    @property
    def is_whole(self) -> bool:
        """Whether all records have come."""
        return self.taken == self.unit.count

    def breach(self, headers: Pairs) -> str | None:
        """Why a record with these headers is not the next one, or None."""
        position = position_of(headers)
        expected = (self.taken + 1, self.unit.count)
        if position is None:
            other = "a record of no unit, or of another shape"
        elif (_told(headers, names.UNIT_ID), _told(headers, names.ID)) != (self.unit.unit_id, self.unit.id):
            other = f"a record of unit {_told(headers, names.UNIT_ID)}"
        elif position != expected:
            other = f"place {position[0]}/{position[1]} of it"
        else:
            return None
        return f"{other} where place {expected[0]}/{expected[1]} of unit {self.unit.unit_id} should be"

    def take(self, headers: Pairs, key: bytes | None, value: bytes | None, at: int, here: Source) -> Component:
        """The next component.

        Args:
            headers: Of the record; `breach` finds nothing wrong with them.
            key: Its key.
            value: Its value.
            at: Its timestamp, epoch ms.
            here: Its own place: the component's, where no header tells it.

        Raises:
            DecodeError: A header cannot be read; its name is the case.
        """
        said = dict(reversed(headers))  # of repeated ones the first
        source = _source_of(said[names.SOURCE]) if names.SOURCE in said else here
        component_id = said.get(names.COMPONENT_ID)
        self.taken += 1
        self.last = here.offset
        marked = self.unit.outcome is UnitOutcome.COMPLETE and self.unit.reason is Reason.END
        return Component(
            next(self._numbers),
            marked and self.is_whole,
            None if component_id is None else component_id.decode("utf-8", "replace"),
            key,
            value,
            tuple([pair for pair in headers if not pair[0].startswith("uow-")]),
            at,
            source,
        )


def _source_of(raw: bytes | None) -> Source:
    found = _SOURCE.fullmatch((raw or b"").decode("utf-8", "replace"))
    if found is None:
        raise DecodeError(names.SOURCE, f"{(raw or b'')[:80]!r} is no place of a record")
    return Source(found[1], int(found[2]), int(found[3]))
