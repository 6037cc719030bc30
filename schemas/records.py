"""The records on the wire as Python values.

Belongs here: frozen values with the field names of the Avro definitions, the two enumerations, and the two texts that
are part of the wire: ranges (`3,5-7,9-`) and changelog keys. Standard library only. Does not belong here: encoding
(`uow.schemas.codec`, `uow.schemas.component`), and the rules of groups (`uow.processor.core`).

Times are epoch milliseconds, as int, everywhere. An enumeration's value is the text of its header; in Avro a `-`
becomes a `_`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from uow.schemas.error_classes import DecodeError

MAX_SEQ: Final = 2_147_483_647
"""Highest legal sequence number (W-20); as the last number of a range it stands for an open end."""

Header = tuple[str, bytes | None]
"""Name and raw value."""


class UnitOutcome(StrEnum):
    """Outcome of a group (`uow-outcome`), in the order of the Avro enumeration."""

    COMPLETE = "complete"
    PARTIAL = "partial"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    FAILED = "failed"

    __hash__ = str.__hash__  # that of Enum is a Python function; the worker looks these up per unit


class Reason(StrEnum):
    """Reason for which a group closed (`uow-reason`), in the order of the Avro enumeration."""

    END = "end"
    COUNT = "count"
    BYTES = "bytes"
    PREDICATE = "predicate"
    SOURCES = "sources"
    MANIFEST = "manifest"
    AGE = "age"
    IDLE = "idle"
    COMPONENT_EXPIRED = "component-expired"
    COMMAND = "command"
    CONFLICT = "conflict"
    LIMIT = "limit"
    DIGEST = "digest"

    __hash__ = str.__hash__  # that of Enum is a Python function; the worker looks these up per unit


@dataclass(frozen=True, slots=True)
class Range:
    """Sequence numbers `first` to `last`, both included; `last` = `MAX_SEQ` is an open end."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets `first` to `last`, both included."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Source:
    """Coordinates of a component's record."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        """The form for people, headers and logs: topic/partition/offset."""
        return f"{self.topic}/{self.partition}/{self.offset}"


@dataclass(frozen=True, slots=True)
class Reference:
    """In shape `reference`: length in bytes and CRC-32C of a value that is left in the input."""

    length: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class ComponentRecord:
    """One message of a group, complete (W-95). Headers keep order, repeats and raw bytes."""

    seq: int
    end: bool
    component_id: str | None
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    timestamp: int
    source: Source
    reference: Reference | None = None


@dataclass(frozen=True, slots=True)
class Unit:
    """A delivered unit: its components in number order (W-10).

    `bytes` is the sum of the sizes that count towards `max_bytes`.
    """

    id: str
    unit_id: str
    destination: str
    generation: int
    outcome: UnitOutcome
    reason: Reason
    opened_at: int
    closed_at: int
    expires_at: int | None
    count: int
    bytes: int
    missing: tuple[Range, ...]
    components: tuple[ComponentRecord, ...]


@dataclass(frozen=True, slots=True)
class LastArrived:
    """The component of a group that arrived last, which a finished unit had been waiting for (W-213)."""

    seq: int
    component_id: str | None


@dataclass(frozen=True, slots=True)
class SourceCount:
    """Number of components that a source gave to a collection (B-92)."""

    name: str
    count: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a closed group, for `D.outcomes` (W-214).

    Of a group by rule `closed_at` is the moment of the decision, which may be after `deadline_at` (B-07).
    """

    id: str
    unit_id: str
    destination: str
    generation: int
    outcome: UnitOutcome
    reason: Reason
    opened_at: int
    closed_at: int
    count: int
    bytes: int
    missing: tuple[Range, ...]
    rule: str | None = None
    command_id: str | None = None
    last_arrived: LastArrived | None = None
    deadline_at: int | None = None
    per_source: tuple[SourceCount, ...] = ()
    target: str | None = None
    supersedes: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a command, for `D.outcomes`: its effect, its reason and its sender (W-203)."""

    command_id: str
    verb: str
    id: str
    destination: str
    done: bool
    text: str
    why: str
    by: str | None
    at: int


@dataclass(frozen=True, slots=True)
class DeadlineWarning:
    """The lack of an open group whose time is running out, for `D.outcomes` (B-202).

    Attributes:
        id: The group id.
        destination: Name of the destination.
        generation: Generation of the group.
        opened_at: Append time of its first component.
        at: The partition's clock when it was decided.
        deadline_at: When the group is given up.
        reason: The reason for which it is given up then.
        count: Components held.
        missing: Numbers that it lacks; none where the assembler gives the numbers.
        sources: Sources that its collection still waits for.
        rule: `uow-rule` of its row, or None.
    """

    id: str
    destination: str
    generation: int
    opened_at: int
    at: int
    deadline_at: int
    reason: Reason
    count: int
    missing: tuple[Range, ...]
    sources: tuple[str, ...] = ()
    rule: str | None = None


@dataclass(frozen=True, slots=True)
class Attributes:
    """Further facts from a held component's headers, besides id, number and end; 0 means none."""

    expires_at: int = 0
    deliver_at: int = 0
    count: int = 0


@dataclass(frozen=True, slots=True)
class ChangelogRow:
    """One held component in `A-D-groups-changelog` (Avro `ChangelogComponent`).

    Attributes:
        generation: Generation of its group.
        opened_at: Append time of the group's first component.
        source_offset: Offset in the partition of `D.components`.
        end: The end mark.
        attributes: None if all of them are 0.
        payload: The component's Avro body, exactly as in the unit.
    """

    generation: int
    opened_at: int
    source_offset: int
    end: bool
    attributes: Attributes | None
    payload: bytes


@dataclass(frozen=True, slots=True)
class ReferenceRow(ChangelogRow):
    """The same for a component whose value stays in `D.components` (Avro `ChangelogReference`, `uow.schemas.claim_check`)."""


@dataclass(frozen=True, slots=True)
class PieceRow(ChangelogRow):
    """The same for a piece of a component that is not whole yet (Avro `ChangelogPiece`, B-124): a slot stands for the number in its key."""


@dataclass(frozen=True, slots=True)
class ManifestPart:
    """The manifest that a group keeps (B-78): id of the command that brought it, the moment it was taken, epoch ms, and its JSON."""

    command_id: str
    taken_at: int
    text: bytes


@dataclass(frozen=True, slots=True)
class GroupRow:
    """Facts about a group that are not in its component rows (Avro `ChangelogGroup`); written only when one differs from its default.

    Attributes:
        generation: Generation of the group.
        opened_at: Arrival of its first component.
        declared_end: The end that a command declared.
        waived: Numbers that commands waived.
        extended_deadline: Before this it is not given up.
        rule_version: 0.
        rule: `uow-rule` of the row that opened it; None for a unit of work.
        waits_since: Since when it is complete and not allowed to leave.
        manifest: The manifest of the fan-out whose replies it holds; None before it comes, and for groups of other rules.
        deadlines: What each calendar of its row named when it opened.
        warned_at: When it was told what the group lacks (B-202).
        has_turn: True if it has its turn among those of its rule, and nothing but this row tells it (B-118).
    """

    generation: int
    opened_at: int
    declared_end: int | None = None
    waived: tuple[Range, ...] = ()
    extended_deadline: int | None = None
    rule_version: int = 0
    rule: str | None = None
    waits_since: int | None = None
    manifest: ManifestPart | None = None
    deadlines: tuple[int, ...] = ()
    warned_at: int | None = None
    has_turn: bool = False


@dataclass(frozen=True, slots=True)
class SettingsRow:
    """The settings record of a destination's workers (Avro `ChangelogSettings`), the same for all of them (W-68).

    Attributes:
        settings: Name and value of each setting that differs from its default, sorted by name.
    """

    settings: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ClosedGroup:
    """A group closed in a ledger record's transaction.

    Attributes:
        id: Raw bytes of the group id.
        generation: Generation of the closed group.
        outcome: Its outcome.
        reason: Its reason.
        highest: The unit's end, or the highest number held.
        closed_before: Input position when it closed: a replay must not hold its components before that position again.
        closed_at: The partition's clock when it closed.
        prints: Fingerprints of a unit's components (`uow.schemas.fingerprint`), or empty.
    """

    id: bytes
    generation: int
    outcome: UnitOutcome
    reason: Reason
    highest: int
    closed_before: int
    closed_at: int
    prints: bytes = b""


@dataclass(frozen=True, slots=True)
class DecidedCommand:
    """A decided command; `at` is its append time. Another command with the same id has no effect (W-203)."""

    id: bytes
    at: int


LEDGER_LAYOUT: Final = 1
"""Current layout of `LedgerRecord`; a worker refuses to start with any other."""


@dataclass(frozen=True, slots=True)
class LedgerRecord:
    """The effects of one transaction on one partition, in `A-D-closed-changelog` (Avro `Ledger`).

    Attributes:
        layout: `LEDGER_LAYOUT`.
        from_offset: Input position before the transaction.
        to_offset: Input position after it.
        floor: Replay floor F: offset of the first component of the oldest open group that is not promoted, else
            `to_offset`.
        clock: The partition's clock after it.
        reader: Version of the function that reads id, number and end from a raw record.
        not_held: Offsets in [from_offset, to_offset) that were not held.
        closed: Groups closed in it, in order.
        commands: Commands decided in it, in order.
    """

    layout: int
    from_offset: int
    to_offset: int
    floor: int
    clock: int
    reader: int
    not_held: tuple[OffsetRange, ...]
    closed: tuple[ClosedGroup, ...]
    commands: tuple[DecidedCommand, ...] = ()


Record = (
    Unit | ComponentRecord | Outcome | Answer | DeadlineWarning | ChangelogRow | GroupRow | SettingsRow | LedgerRecord
)
"""Records that can be framed."""


def ranges_text(ranges: Iterable[Range]) -> str:
    """Ranges as in `uow-missing`: `3,5-7,9-`; an open end has no last number (W-71)."""
    return ",".join(map(_range_text, ranges))


def _range_text(numbers: Range) -> str:
    if numbers.first == numbers.last:
        return str(numbers.first)
    return f"{numbers.first}-" if numbers.last == MAX_SEQ else f"{numbers.first}-{numbers.last}"


MAX_RANGES: Final = 256
"""Largest number of ranges in a `uow-missing` header: a group with a gap after every number must not get a header of megabytes on each component."""


def bounded_ranges(ranges: tuple[Range, ...]) -> tuple[Range, ...]:
    """At most `MAX_RANGES` ranges, for a header; the last one then spans all the remaining ones. A unit's value has all ranges."""
    if len(ranges) <= MAX_RANGES:
        return ranges
    return (*ranges[: MAX_RANGES - 1], Range(ranges[MAX_RANGES - 1].first, ranges[-1].last))


_RANGES = re.compile(r"([0-9]{1,10})(-([0-9]{1,10})?)?", re.ASCII)


def parse_ranges(text: str) -> tuple[Range, ...]:
    """Parses a text from `ranges_text`; an empty text gives no range.

    Raises:
        DecodeError: It is not of that form, not rising, or outside 1..2147483647; case `uow-missing`.
    """
    found = []
    previous = 0
    for part in text.split(",") if text else ():
        match = _RANGES.fullmatch(part)
        if match is None:
            raise DecodeError(
                "uow-missing", f"{text[:80]!r} is no list of ranges", data=text.encode("utf-8", "replace")
            )
        first = int(match[1])
        last = first if match[2] is None else MAX_SEQ if match[3] is None else int(match[3])
        if not previous < first <= last <= MAX_SEQ:
            raise DecodeError(
                "uow-missing", f"{text[:80]!r} does not rise within 1..{MAX_SEQ}", data=text.encode("utf-8", "replace")
            )
        found.append(Range(first, last))
        previous = last
    return tuple(found)


CHANGELOG_KEY_VERSION: Final = 1
GROUP_ROW: Final = 0
"""The sequence number in the key of a group row."""

_KEY_PREFIX = bytes([CHANGELOG_KEY_VERSION])


def changelog_key(id: bytes, seq: int) -> bytes:
    """Key of a row in `A-D-groups-changelog`: version byte 1, group id, 0, sequence number as 4 bytes big-endian.

    Number 0 is the group row; those above `MAX_SEQ` are slots of pieces (`PieceRow`); that of the empty id, which no group has, is `SETTINGS_KEY`. Ids may contain zero bytes: a key is read from its end.
    """
    return b"%b%b\0%b" % (_KEY_PREFIX, id, seq.to_bytes(4, "big"))


SETTINGS_KEY: Final = changelog_key(b"", GROUP_ROW)
"""Key of the one `SettingsRow` of a partition."""


def rule_changelog_key(id: bytes, generation: int, seq: int) -> bytes:
    """The same for a group by rule, of which several generations may be open: version byte 2, and the generation as 8 bytes before the number."""
    return b"\x02%b\0%b%b" % (id, generation.to_bytes(8, "big"), seq.to_bytes(4, "big"))


def parse_changelog_key(key: bytes) -> tuple[bytes, int]:
    """(group id, sequence number) of a key from `changelog_key`.

    Raises:
        DecodeError: It is not such a key; case `changelog-key`.
    """
    if len(key) < 7 or key[0] != CHANGELOG_KEY_VERSION or key[-5] != 0:
        raise DecodeError("changelog-key", "no changelog key of version 1", data=key)
    return key[1:-5], int.from_bytes(key[-4:], "big")
