"""Bytes of the two internal topics, by hand: changelog rows and ledger records (architecture section 5, `schemas/definitions`).

Belongs here: writing and reading what a restore needs, fast. Does not belong here: what a restore does with it (`restore`), and the
general codec (`schemas.codec`), which tests hold to the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from processor.core.changes import Closed
from schemas.component import (
    END_CHUNKS,
    NULL,
    OUTCOME_CHUNKS,
    REASON_CHUNKS,
    Cursor,
    long,
    moment,
    sized,
)
from schemas.errors import DecodeError
from schemas.framing import single_object_header
from schemas.records import (
    LEDGER_LAYOUT,
    Attributes,
    ChangelogRow,
    LedgerRecord,
    OffsetRange,
    Reason,
    UnitOutcome,
)

ROW_HEADER = single_object_header("ChangelogComponent")
LEDGER_HEADER = single_object_header("Ledger")
_KEY_TAILS = [number.to_bytes(4, "big") for number in range(4096)]
_PLAIN = {end: mark + NULL for end, mark in END_CHUNKS.items()}
_OUTCOMES = tuple(UnitOutcome)
_REASONS = tuple(Reason)


def key_head(group_id: bytes) -> bytes:
    """A changelog key up to its sequence number (`schemas.records.changelog_key`)."""
    return b"\x01" + group_id + b"\x00"


def key_tail(seq: int) -> bytes:
    """The last four bytes of a changelog key."""
    return _KEY_TAILS[seq] if seq < 4096 else seq.to_bytes(4, "big")


def row_head(generation: int, opened_at: int) -> bytes:
    """What all rows of one group begin with."""
    return ROW_HEADER + long(generation) + long(opened_at)


def row_value(head: bytes, offset: int, end: bool, attributes: Attributes | None, body: bytes) -> bytes:
    """A component's row."""
    if attributes is None:
        return head + long(offset) + _PLAIN[end] + sized(body)
    said = b"\x02" + long(attributes.expires_at) + long(attributes.deliver_at) + long(attributes.count)
    return head + long(offset) + END_CHUNKS[end] + said + sized(body)


def read_row(value: bytes) -> ChangelogRow:
    """A component's row as `row_value` wrote it.

    Raises:
        DecodeError: It is none, or of a version this worker does not know.
    """
    if not value.startswith(ROW_HEADER):
        raise DecodeError("changelog", "no component row of a known version", data=value[:64])
    cursor = Cursor(value, len(ROW_HEADER))
    generation, opened_at, offset, end = (
        cursor.long(),
        cursor.long(),
        cursor.long(),
        cursor.boolean(),
    )
    attributes = Attributes(cursor.long(), cursor.long(), cursor.long()) if cursor.branch() else None
    return ChangelogRow(generation, opened_at, offset, end, attributes, cursor.bytes())


def ranges_of(offsets: Iterable[int]) -> list[tuple[int, int]]:
    """Rising offsets as (first, last) ranges."""
    ranges: list[tuple[int, int]] = []
    first = last = -2
    for offset in offsets:
        if offset == last + 1:
            last = offset
        else:
            if last >= 0:
                ranges.append((first, last))
            first = last = offset
    if last >= 0:
        ranges.append((first, last))
    return ranges


def ledger_value(
    from_offset: int,
    to_offset: int,
    floor: int,
    clock: int,
    reader: int,
    not_held: Iterable[int],
    closed: Sequence[Closed],
) -> bytes:
    """A ledger record: one per partition and transaction."""
    skipped = ranges_of(not_held)
    parts = [
        LEDGER_HEADER,
        long(LEDGER_LAYOUT),
        long(from_offset),
        long(to_offset),
        long(floor),
        long(clock),
        long(reader),
    ]
    if skipped:
        parts.append(long(len(skipped)))
        parts += [long(first) + long(last) for first, last in skipped]
    parts.append(NULL)
    if closed:
        parts.append(long(len(closed)))
        for group_id, generation, outcome, reason, highest, before, at in closed:
            parts += (
                sized(group_id),
                long(generation),
                OUTCOME_CHUNKS[outcome],
                REASON_CHUNKS[reason],
                long(highest),
                long(before),
                moment(at),
            )
    parts.append(NULL)
    return b"".join(parts)


def read_ledger(value: bytes) -> tuple[LedgerRecord, list[Closed]]:
    """A ledger record as `ledger_value` wrote it; its closed groups as the core remembers them, `LedgerRecord.closed` stays empty.

    Raises:
        DecodeError: It is none, or of a layout this worker does not know.
    """
    if not value.startswith(LEDGER_HEADER):
        raise DecodeError("ledger", "no ledger record of a known version", data=value[:64])
    cursor = Cursor(value, len(LEDGER_HEADER))
    layout = cursor.long()
    if layout != LEDGER_LAYOUT:
        raise DecodeError("ledger", f"layout {layout}, this worker knows {LEDGER_LAYOUT}")
    from_offset, to_offset, floor, clock, reader = (cursor.long() for _ in range(5))
    skipped: list[OffsetRange] = []
    while count := cursor.long():
        skipped.extend(OffsetRange(cursor.long(), cursor.long()) for _ in range(count))
    closed: list[Closed] = []
    while count := cursor.long():
        for _ in range(count):
            group_id, generation = cursor.bytes(), cursor.long()
            outcome, reason = _OUTCOMES[cursor.long()], _REASONS[cursor.long()]
            closed.append(
                Closed(
                    group_id,
                    generation,
                    outcome,
                    reason,
                    cursor.long(),
                    cursor.long(),
                    cursor.long(),
                )
            )
    return LedgerRecord(layout, from_offset, to_offset, floor, clock, reader, tuple(skipped), ()), closed
