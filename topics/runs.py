"""Units of shape `consecutive`: the headers of their records, written and read (W-12, W-116). Pure.

A unit is a *run* of neighbours on one partition of `D.units`, one record per component, in number order. The group id is the key, the
component's value is the value. The headers contain everything that an envelope contains:

| Headers | Of |
| --- | --- |
| the unit's own; `uow-opened-at`, `uow-closed-at`, `uow-bytes` | the unit, on each record |
| `uow-pos` (`i/n`) | the record |
| `uow-source`, `uow-component-id`, `uow-component-seq`, `-end`, `-at`, `-key` | the component |
| all others that do not begin with `uow-`, and those under `uow-own-` | what the component came with, in its order: a user header as it is, any other behind that prefix |

Since every other `uow-*` header of a component gets the prefix, no header of a sender is taken for one of the worker. Even a header `uow-own-x`
is safe: it is written as `uow-own-uow-own-x`. Runs of older versions, which did not know the prefix, contain less, and can still be read.

Belongs here: headers of such records, and the check that a run is complete. Does not belong here: writing them
(`uow.processor.engine.shapes`), reading a topic (`uow.client.reader`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import count as numbers_from
from typing import Final

from uow.schemas.error_classes import DecodeError
from uow.schemas.records import (
    MAX_RANGES,
    ComponentRecord,
    Range,
    Reason,
    Source,
    Unit,
    UnitOutcome,
    parse_ranges,
    ranges_text,
)
from uow.topics import headers as names
from uow.topics.catalogue import DestinationTopics

Pairs = Sequence[tuple[str, bytes | None]]

_OF_RECORD: Final = names.IN_RUN | {names.POS, names.SOURCE, names.COMPONENT_ID}
"""Headers of a run's record that belong neither to the unit nor to the component as it was sent."""
_OF_DOCUMENT: Final = frozenset({names.CONTENT_TYPE, names.OPENED_AT, names.CLOSED_AT, names.BYTES})
"""Headers of a unit whose value is a document (`document_unit`)."""
_BROUGHT: Final = frozenset(names.OWN + name for name in names.PARENTS)
"""Headers that a unit takes from its end component, besides user headers and properties."""

COMPONENTS: Final = DestinationTopics("", "").components
_POS: Final = re.compile(rb"([1-9][0-9]{0,9})/([1-9][0-9]{0,9})")
_SOURCE: Final = re.compile(r"(.+)/([0-9]{1,10})/([0-9]{1,19})", re.ASCII)


def unit_part(
    headers: Pairs, opened_at: int, closed_at: int, size_bytes: int, is_user_header: Callable[[str], bool]
) -> list[tuple[str, bytes | None]]:
    """The common headers of all records of a run: the unit's headers without the end component's user headers, and the facts of an envelope's value.

    Args:
        headers: Those of the unit as an envelope; the group id is among them.
        opened_at: When the group opened, epoch ms.
        closed_at: When it closed.
        size_bytes: Size of its components.
        is_user_header: Which headers are the application's own.
    """
    return [
        *(pair for pair in headers if pair[0] not in _OF_DOCUMENT and not is_user_header(pair[0])),
        (names.OPENED_AT, b"%d" % opened_at),
        (names.CLOSED_AT, b"%d" % closed_at),
        (names.BYTES, b"%d" % size_bytes),
    ]


def record_headers(
    common: Pairs, component: ComponentRecord, position: int, count: int, is_user_header: Callable[[str], bool]
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
    made.append((names.COMPONENT_SEQ, b"%d" % component.seq))
    if component.end:
        made.append((names.COMPONENT_END, b"true"))
    made.append((names.COMPONENT_AT, b"%d" % component.timestamp))
    if (names.ID, component.key) not in common:
        made.append((names.COMPONENT_KEY, component.key))
    return made + [(name if is_user_header(name) else names.OWN + name, value) for name, value in component.headers]


def own_headers(headers: Pairs) -> tuple[tuple[str, bytes | None], ...]:
    """The headers that the component of a run's record was sent with; in a run of a version without the prefix, only its user headers."""
    return tuple([(name.removeprefix(names.OWN), value) for name, value in headers if _is_own(name)])


def _is_own(name: str) -> bool:
    return not name.startswith("uow-") or name.startswith(names.OWN)


def said_of_unit(headers: Pairs) -> list[tuple[str, bytes | None]]:
    """Headers of the unit, from any record of its run: without those that come from its end component."""
    parents = () if names.OPENED_AT not in dict(headers) else names.PARENTS
    return [pair for pair in headers if not (pair[0] in _OF_RECORD or pair[0] in parents or _is_own(pair[0]))]


def unit_headers(last: Pairs) -> list[tuple[str, bytes | None]]:
    """Headers of the unit as on an envelope, from the last record of its run, which is the end component's (W-90, W-91)."""
    brought = [(name.removeprefix(names.OWN), value) for name, value in last if name in _BROUGHT or name[:4] != "uow-"]
    return said_of_unit(last) + brought


def first_of_many_gaps(first: Pairs, missing: Sequence[Range]) -> list[tuple[str, bytes | None]]:
    """Headers of a run's first record, the only one that names all gaps if they are too many for a header of every record."""
    if len(missing) <= MAX_RANGES:
        return list(first)
    return [(name, ranges_text(missing).encode() if name == names.MISSING else value) for name, value in first]


def position_of(headers: Pairs) -> tuple[int, int] | None:
    """`uow-pos` as (place, number of components); None on a record that is not part of a run.

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
    """Text of a header. Raises `DecodeError` if it is missing."""
    raw = next((value for each, value in headers if each == name), None)
    if raw is None:
        raise DecodeError(name, "a record of a unit of shape consecutive has no such header")
    return raw.decode("utf-8", "backslashreplace")


def _number(headers: Pairs, name: str) -> int:
    text = _told(headers, name)
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise DecodeError(name, f"{text[:40]!r} is no number")
    return int(text)


def _moment(headers: Pairs, name: str) -> int:
    """Epoch ms; -1 for a record without a time."""
    return -1 if (name, b"-1") in headers else _number(headers, name)


def unit_of(headers: Pairs, destination: str, at: int) -> Unit:
    """The unit of a run, from its first record's headers, without components.

    Args:
        headers: Of the first record.
        destination: Name of the destination, used if the first component's source does not give it.
        at: When the record was written, epoch ms: used for the opening and closing times if the headers do not give them.

    Raises:
        DecodeError: A header is missing, or cannot be read; its name is the case.
    """
    position = position_of(headers)
    assert position is not None
    said = dict(headers)
    if names.SOURCE in said:
        topic = _source_of(said[names.SOURCE]).topic
        destination = topic.removesuffix(COMPONENTS) if topic.endswith(COMPONENTS) else destination
    return _unit(headers, destination, at, position[1])


def _unit(headers: Pairs, destination: str, at: int, count: int) -> Unit:
    """The unit that some headers tell of, without components; its times are `at` where they do not tell them."""
    said = dict(headers)
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
        _moment(headers, names.OPENED_AT) if names.OPENED_AT in said else at,
        _moment(headers, names.CLOSED_AT) if names.CLOSED_AT in said else at,
        _number(headers, names.EXPIRES_AT) if names.EXPIRES_AT in said else None,
        count,
        _number(headers, names.BYTES) if names.BYTES in said else 0,
        parse_ranges(_told(headers, names.MISSING)) if names.MISSING in said else (),
        (),
    )


def is_document(headers: Pairs, value: bytes | None) -> bool:
    """True for a unit by rule whose value is an XML document around those of its components (B-53), which says nothing else of the unit."""
    return value is not None and value[:1] == b"<" and any(name == names.RULE for name, _ in headers)


def document_unit(headers: Pairs, destination: str) -> Unit:
    """The unit of such a record, from its headers, without components.

    Args:
        headers: Of the record.
        destination: Name of the destination, which they do not tell.

    Raises:
        DecodeError: A header is missing, or cannot be read; its name is the case.
    """
    for name in (names.OPENED_AT, names.CLOSED_AT, names.BYTES):
        _told(headers, name)
    return _unit(headers, destination, 0, _number(headers, names.SIZE))


def numbers_of(missing: Sequence[Range], place: int = 1) -> Iterator[int]:
    """Endless rising sequence numbers of a unit without the `missing` ones, from its component at `place` on."""
    after, skipped = 0, place - 1
    for gap in missing:
        here = gap.first - after - 1
        if skipped < here:
            yield from range(after + 1 + skipped, gap.first)
        skipped = max(skipped - here, 0)
        after = gap.last
    yield from numbers_from(after + 1 + skipped)


class Run:
    """A run that is being read: checks that each record is the next one (W-12).

    Args:
        unit: The unit by its first record, from `unit_of`.
        first: Offset of that record.
        taken: Number of records before, to look at a single record in the middle.

    Attributes:
        taken: Number of records read so far.
        last: Offset of the last one.
    """

    def __init__(self, unit: Unit, first: int, taken: int = 0) -> None:
        self.unit = unit
        self.first = self.last = first
        self.taken = taken
        self._numbers = numbers_of(unit.missing, taken + 1)

    @property
    def is_whole(self) -> bool:
        """True if all records were read."""
        return self.taken == self.unit.count

    def breach(self, headers: Pairs) -> str | None:
        """The reason why a record with these headers is not the next one; None if it is."""
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

    def take(self, headers: Pairs, key: bytes | None, value: bytes | None, at: int, here: Source) -> ComponentRecord:
        """The next component.

        Args:
            headers: Of the record; `breach` finds nothing wrong with them.
            key: Its key.
            value: Its value.
            at: Its timestamp, epoch ms, used for the component if no header gives it.
            here: Its own coordinates, used for the component if no header gives them.

        Raises:
            DecodeError: A header cannot be read; its name is the case.
        """
        said = dict(reversed(headers))  # of repeated ones the first
        source = _source_of(said[names.SOURCE]) if names.SOURCE in said else here
        component_id = said.get(names.COMPONENT_ID)
        is_told = names.COMPONENT_SEQ in said
        self.taken += 1
        self.last = here.offset
        number = next(self._numbers)
        marked = self.unit.outcome is UnitOutcome.COMPLETE and self.unit.reason is Reason.END and self.is_whole
        return ComponentRecord(
            _number(headers, names.COMPONENT_SEQ) if is_told else number,
            names.COMPONENT_END in said if is_told else marked,
            None if component_id is None else component_id.decode("utf-8", "replace"),
            said.get(names.COMPONENT_KEY, key),
            value,
            own_headers(headers),
            _moment(headers, names.COMPONENT_AT) if is_told else at,
            source,
        )


def _source_of(raw: bytes | None) -> Source:
    found = _SOURCE.fullmatch((raw or b"").decode("utf-8", "replace"))
    if found is None:
        raise DecodeError(names.SOURCE, f"{(raw or b'')[:80]!r} is no place of a record")
    return Source(found[1], int(found[2]), int(found[3]))
