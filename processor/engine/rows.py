"""Bytes of the two internal topics, by hand: changelog rows and ledger records (`schemas/definitions`).

Belongs here: writing and reading what a restore needs, fast. Does not belong here: what a restore does with it (`restore`), and the
general codec (`uow.schemas.codec`), which tests hold to the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple, TypeVar

from uow.processor.core.changes import Closed, Held
from uow.processor.core.command import held_marks
from uow.processor.core.gathered import Called
from uow.processor.core.group import UNKNOWN_END, Group
from uow.processor.core.segments import FIRST_SLOT
from uow.processor.core.strays import Stray
from uow.processor.engine.group_storage import GroupStorage, storage_of
from uow.schemas.claim_check import external_bytes
from uow.schemas.component import (
    END_CHUNKS,
    LENGTHS,
    NULL,
    OUTCOME_CHUNKS,
    REASON_CHUNKS,
    Cursor,
    decode_component,
    encode_ranges,
    items,
    long,
    moment,
    optional,
    sized,
)
from uow.schemas.error_classes import DecodeError
from uow.schemas.framing import single_object_header
from uow.schemas.records import (
    GROUP_ROW,
    LEDGER_LAYOUT,
    Attributes,
    ChangelogRow,
    DecidedCommand,
    GroupRow,
    LedgerRecord,
    ManifestPart,
    OffsetRange,
    Range,
    Reason,
    UnitOutcome,
    rule_changelog_key,
)
from uow.topics.headers import Reading

ROW_HEADER = single_object_header("ChangelogComponent")
ROW_WITHOUT_VALUE = single_object_header("ChangelogReference")
"""Before the row of a component whose value stays in `D.components`: a worker that does not know of that must not take it (W-117)."""
ROW_OF_PIECE = single_object_header("ChangelogPiece")
"""Before the row of a piece of a component, for the same reason (B-124)."""
GROUP_ROW_HEADER = single_object_header("ChangelogGroup")
_GROUP_ROW_WITHOUT_RULE = single_object_header("ChangelogGroup", 1)
_GROUP_ROW_WITHOUT_DEADLINES = single_object_header("ChangelogGroup", 3)
_GROUP_ROW_WITHOUT_MANIFEST = single_object_header("ChangelogGroup", 2)
_GROUP_ROW_WITHOUT_WARNING = single_object_header("ChangelogGroup", 4)
_GROUP_ROW_WITHOUT_TURN = single_object_header("ChangelogGroup", 5)
LEDGER_HEADER = single_object_header("Ledger")
_EARLIER_GROUP_ROWS = (
    _GROUP_ROW_WITHOUT_TURN,
    _GROUP_ROW_WITHOUT_WARNING,
    _GROUP_ROW_WITHOUT_DEADLINES,
    _GROUP_ROW_WITHOUT_MANIFEST,
    _GROUP_ROW_WITHOUT_RULE,
)
GROUP_ROW_KEY_END = b"\0" + GROUP_ROW.to_bytes(4, "big")
_LEDGER_WITHOUT_COMMANDS = single_object_header("Ledger", 1)
_LEDGER_WITHOUT_PRINTS = single_object_header("Ledger", 2)
_KEY_TAILS = [number.to_bytes(4, "big") for number in range(4096)]
_SEQS = {tail: number for number, tail in enumerate(_KEY_TAILS)}
_PLAIN = {end: mark + NULL for end, mark in END_CHUNKS.items()}
KEPT_KEY = b"\x06"
"""Begins the keys of rows of a unit that a late component may correct (B-205); they are like those of an open group otherwise."""
RULED_KEY = 2
"""First byte of the keys of rows of groups by rule."""
_USUAL_HEAD_BYTES = len(ROW_HEADER) + 1 + 6
"""Generation below 64, and a moment of these years."""
T = TypeVar("T")
_OUTCOMES = tuple(UnitOutcome)
_REASONS = tuple(Reason)


def tombstone_keys(group: Group) -> list[bytes]:
    """Keys of the rows of a group, for when it closes. Its group row goes first and came last: whoever looks meanwhile finds none alone."""
    storage = storage_of(group)
    if storage is None:
        return []
    key, tails = storage.row_key, _KEY_TAILS
    keys = [key + (tails[seq] if seq < 4096 else seq.to_bytes(4, "big")) for seq in islice(group.held, storage.rows)]
    keys += [tombstone_key(storage, slot) for slot in sorted(storage.pieces)]
    return [key + tails[GROUP_ROW], *keys] if storage.has_group_row else keys


def tombstone_key(storage: GroupStorage, seq: int) -> bytes:
    """Key of the row of one component of a group that has rows, or of the piece in a slot."""
    return storage.row_key + seq.to_bytes(4, "big")


def component_row(group: Group, seq: int, end: bool, offset: int, attributes: Attributes | None) -> tuple[bytes, bytes]:
    """Key and value of a held component's row (`uow.schemas.records.changelog_key`, Avro `ChangelogComponent`), which it has from here on.

    All components held before it must have their rows already.
    """
    storage: GroupStorage = group.attachment or begin_rows(group)
    storage.rows += 1
    body = group.held[seq]
    length = len(body)
    said = _PLAIN[end] if attributes is None else END_CHUNKS[end] + _attributes(attributes)
    head = storage.row_head
    if group.external_bytes and external_bytes(body):
        head = ROW_WITHOUT_VALUE + head[len(ROW_HEADER) :]
    value = head + long(offset) + said + (LENGTHS[length] if length < 4096 else long(length)) + body
    return storage.row_key + (_KEY_TAILS[seq] if seq < 4096 else seq.to_bytes(4, "big")), value


def piece_row(group: Group, slot: int) -> tuple[bytes, bytes]:
    """Key and value of the row of a piece of a component that is not whole yet (B-124): as of a component, with its slot for a number."""
    assert group.segments is not None
    storage: GroupStorage = group.attachment or begin_rows(group)
    storage.add_piece(slot)
    body = group.segments.bodies[slot]
    value = (
        ROW_OF_PIECE
        + storage.row_head[len(ROW_HEADER) :]
        + long(_offset_of(body))
        + _PLAIN[_end_of(body)]
        + sized(body)
    )
    return tombstone_key(storage, slot), value


def promotion_rows(group: Group, attributes: Mapping[int, Attributes]) -> list[tuple[bytes, bytes | None]]:
    """Rows of all components of a group that has none yet; what the rows say beyond the bodies is read off the bodies.

    Args:
        group: None of its components has a row yet.
        attributes: Of components that are not plain, by number.
    """
    offset_of = _offset_before_reference if group.external_bytes else _offset_of
    return [
        component_row(group, seq, _end_of(body), offset_of(body), attributes.get(seq))
        for seq, body in group.held.items()
    ]


def attributes_in(group: Group, reading: Reading) -> dict[int, Attributes]:
    """The part of the rows of the components held that is not in their bodies, by number, read off their headers once more; nothing of plain ones."""
    is_counted = group.assigns or (group.ruled is not None and group.ruled.policy.gathers_replies)
    found = {}
    for seq, body in group.held.items():
        marks = held_marks(group.id, decode_component(body), reading)
        if marks.special:
            found[seq] = Attributes(marks.expires_at, marks.deliver_at, 0 if is_counted else marks.total or 0)
    return found


def group_row(group: Group) -> tuple[bytes, bytes]:
    """Key and value of the row that says what commands changed in a group (Avro `ChangelogGroup`)."""
    storage: GroupStorage = group.attachment or begin_rows(group)
    storage.has_group_row = True
    value = b"".join(
        (
            GROUP_ROW_HEADER,
            long(group.generation),
            moment(group.opened_at),
            b"\x02" + long(group.declared_end) if group.declared_end else NULL,
            encode_ranges(group.waived),
            b"\x02" + long(group.extended) if group.extended else NULL,
            NULL,
            NULL if group.ruled is None else optional(group.ruled.policy.rule.encode()),
            NULL if group.ruled is None or not group.ruled.waits_since else b"\x02" + moment(group.ruled.waits_since),
            NULL if group.ruled is None else _manifest(group.ruled.called),
            NULL if group.ruled is None else _deadlines(group.ruled.deadlines),
            b"\x02" + moment(group.warned_at) if group.warned_at else NULL,
            b"\x01" if group.ruled is not None and group.ruled.has_turn else b"\x00",
        )
    )
    return storage.row_key + _KEY_TAILS[GROUP_ROW], value


def _deadlines(several: Sequence[int]) -> bytes:
    return b"".join([long(len(several)), *map(moment, several), NULL]) if several else NULL


def _manifest(called: Called | None) -> bytes:
    if called is None:
        return NULL
    return b"\x02" + sized(called.command_id) + moment(called.at) + sized(called.text)


def read_group_row(value: bytes) -> GroupRow:
    """A group's row as `group_row` wrote it.

    Raises:
        DecodeError: It is none, or of a version this worker does not know.
    """
    if not value.startswith((GROUP_ROW_HEADER, *_EARLIER_GROUP_ROWS)):
        raise DecodeError("changelog", "no group row of a known version", data=value[:64])
    cursor = Cursor(value, len(GROUP_ROW_HEADER))
    row = GroupRow(
        cursor.long(),
        cursor.long(),
        cursor.long() if cursor.branch() else None,
        tuple([Range(cursor.long(), cursor.long()) for _ in items(cursor)]),
        cursor.long() if cursor.branch() else None,
        cursor.long(),
    )
    if not value.startswith(_GROUP_ROW_WITHOUT_RULE):
        rule = cursor.text() if cursor.branch() else None
        row = replace(row, rule=rule, waits_since=cursor.long() if cursor.branch() else None)
    if not value.startswith((_GROUP_ROW_WITHOUT_MANIFEST, _GROUP_ROW_WITHOUT_RULE)) and cursor.branch():
        row = replace(row, manifest=ManifestPart(cursor.text(), cursor.long(), cursor.bytes()))
    if value.startswith((GROUP_ROW_HEADER, _GROUP_ROW_WITHOUT_TURN, _GROUP_ROW_WITHOUT_WARNING)):
        row = replace(row, deadlines=tuple([cursor.long() for _ in items(cursor)]))
    if value.startswith((GROUP_ROW_HEADER, _GROUP_ROW_WITHOUT_TURN)) and cursor.branch():
        row = replace(row, warned_at=cursor.long())
    if value.startswith(GROUP_ROW_HEADER) and cursor.boolean():
        row = replace(row, has_turn=True)
    if cursor.at != len(value):
        raise DecodeError("changelog", f"{len(value) - cursor.at} bytes follow the row", data=value[:64])
    return row


def _end_of(body: bytes) -> bool:
    """The end mark in a component's Avro body: behind the number."""
    at = 0
    while body[at] > 127:
        at += 1
    return body[at + 1] == 1


def _offset_of(body: bytes) -> int:
    """The source offset in a component's Avro body: the number before the last byte, which says that there is no reference."""
    last = first = len(body) - 2
    while body[first - 1] > 127:
        first -= 1
    number = 0
    for byte in reversed(body[first : last + 1]):
        number = number << 7 | byte & 127
    return number >> 1


def _offset_before_reference(body: bytes) -> int:
    """The same where a reference may follow."""
    return decode_component(body).source.offset


def kept_rows(group: Group, attributes: Mapping[int, Attributes]) -> list[tuple[bytes, bytes | None]]:
    """All rows of a unit that a late component may correct. Arguments as of `promotion_rows`."""
    begin_rows(group).row_key = KEPT_KEY + group.id + b"\0"
    return [*promotion_rows(group, attributes), group_row(group)]


def take_kept_rows(rows: Mapping[bytes, bytes]) -> list[tuple[Group, GroupRow]]:
    """The groups that such rows tell of, each with its own row.

    Raises:
        DecodeError: A row is none, or of a version this worker does not know; or a group lacks its own row or its components.
    """
    found: set[Group] = set()

    def restore_group(group_id: bytes, generation: int, opened_at: int) -> Group:
        group = Group(group_id, generation, opened_at)
        found.add(group)
        return group

    made = []
    for key, group, value in take_rows({b"\1" + key[1:]: value for key, value in rows.items()}, restore_group):
        if group is None:
            raise DecodeError("changelog", f"a row of the unit of {key[1:-5]!r}, and no component of it")
        group.attachment.row_key = KEPT_KEY + group.attachment.row_key[1:]
        group.attachment.has_group_row = True
        found.remove(group)
        made.append((group, read_group_row(value)))
    if found:
        raise DecodeError("changelog", f"components of the unit of {found.pop().id!r}, and no row of it")
    return made


def begin_rows(group: Group, *, is_by_rule: bool = False) -> GroupStorage:
    """The storage of a group that has no rows yet, with the beginning that all of them will share. `is_by_rule`: it is to be one by rule."""
    is_by_rule |= group.ruled is not None
    key = rule_changelog_key(group.id, group.generation, 0)[:-4] if is_by_rule else b"\x01" + group.id + b"\x00"
    storage = GroupStorage(key, ROW_HEADER + long(group.generation) + moment(group.opened_at))
    group.attach(storage)
    return storage


def _attributes(attributes: Attributes) -> bytes:
    return b"\x02" + long(attributes.expires_at) + long(attributes.deliver_at) + long(attributes.count)


def read_row(value: bytes) -> ChangelogRow:
    """A component's row as `component_row` wrote it.

    Raises:
        DecodeError: It is none, or of a version this worker does not know.
    """
    cursor = _row_cursor(value)
    generation, opened_at, offset, end = cursor.long(), cursor.long(), cursor.long(), cursor.boolean()
    attributes = Attributes(cursor.long(), cursor.long(), cursor.long()) if cursor.branch() else None
    payload = cursor.bytes()
    if cursor.at != len(value):
        raise DecodeError("changelog", f"{len(value) - cursor.at} bytes follow the row", data=value[:64])
    return ChangelogRow(generation, opened_at, offset, end, attributes, payload)


def take_rows(
    rows: Mapping[bytes, bytes], restore_group: Callable[[bytes, int, int], Group]
) -> list[tuple[bytes, Group | None, bytes]]:
    """Puts components back into their groups. The plain row is read in line: a restore takes hundreds of thousands a second.

    Invariants: rows of one key stand once, and those of one group in order of arrival (`restore._replace_rows`). `found` has each group with the
    dictionary that it will hold, filled in that order; a component that is not plain has its place there, empty, until `apply` fills it, once
    the group has all plain ones.

    A plain row is the group's beginning, offset, end mark, no attributes, and the length of a payload of two bytes that reaches to the end of
    the value. So it is known by four looks: at the beginning, at the byte behind the mark, and at the length, which must be what is left.

    Args:
        rows: The last value of each key of a partition's changelog.
        restore_group: Makes the group with this id and generation that opened then (epoch ms).

    Returns:
        What are group rows, unread, each with its group; None where no component of one is there.

    Raises:
        DecodeError: A row is none, or of a version this worker does not know.
    """
    group_rows: list[tuple[bytes, bytes]] = []
    found: dict[bytes, tuple[bytes, Group, dict[int, bytes]]] = {}  # rows of one group begin alike, and stand apart
    begins: dict[bytes, _RowBegin] = {}
    ends: dict[Group, int] = {}
    odd: list[tuple[Group, Held]] = []
    pieces: list[tuple[Group, int, bytes]] = []
    for key, value in rows.items():
        seq = _SEQS.get(key[-4:]) or int.from_bytes(key[-4:], "big")
        if seq == GROUP_ROW:
            group_rows.append((key, value))
            continue
        begin = found.get(key[:-4])
        if begin is None:
            begin = found[key[:-4]] = _begin_of(key, value, restore_group, begins)
        head, group, held = begin
        if seq >= FIRST_SLOT:
            pieces.append((group, seq, read_row(value).payload))
            continue
        if value.startswith(head):
            at = len(head)
            while value[at] > 127:  # behind the offset: mark, attributes or none, length
                at += 1
            length = len(value) - at - 5
            if value[at + 2] == 0 and 64 <= length < 4096 and value.startswith(LENGTHS[length], at + 3):
                held[seq] = value[at + 5 :]
                if value[at + 1]:
                    ends[group] = seq
                continue
        row = read_row(value)
        held_without = external_bytes(row.payload) if value.startswith(ROW_WITHOUT_VALUE) else 0
        held[seq] = b""
        change = Held(
            group.id,
            seq,
            row.end,
            group.opened_at,
            row.source_offset,
            row.payload,
            row.attributes,
            external_bytes=held_without,
        )
        odd.append((group, change))
    for _, group, held in found.values():
        group.hold_all(held, ends.get(group, UNKNOWN_END))
        group.attachment.rows = len(held)
    for group, change in odd:
        group.apply(change)
    for group, slot, body in pieces:
        group.hold_piece(slot, body)
        group.attachment.add_piece(slot)
    return [(key, found[key[:-4]][1] if key[:-4] in found else None, value) for key, value in group_rows]


def take_strays(rows: dict[bytes, bytes]) -> list[Stray]:
    """Takes the rows of components out whose group has no row of its own, of groups by rule: the worker never writes them alone (B-69).

    Raises:
        DecodeError: One is no row of a known version.
    """
    keys = [
        key
        for key in rows
        if key[0] == RULED_KEY and key[-4:] != _KEY_TAILS[GROUP_ROW] and key[:-4] + _KEY_TAILS[GROUP_ROW] not in rows
    ]
    return [stray_of(key, rows.pop(key)) for key in keys]


def stray_of(key: bytes, value: bytes) -> Stray:
    """The component of such a row. Raises `DecodeError`."""
    if len(key) <= 14 or key[-13] != 0:
        raise DecodeError("changelog-key", "no component row of a known version", data=key)
    row = read_row(value)
    return Stray(key[1:-13], int.from_bytes(key[-12:-4], "big"), decode_component(row.payload), key, len(value))


class _RowBegin(NamedTuple):
    """The beginning of all rows of a group."""

    generation: int
    opened_at: int
    head: bytes


def _begin_of(
    key: bytes,
    value: bytes,
    restore_group: Callable[[bytes, int, int], Group],
    begins: dict[bytes, _RowBegin],
) -> tuple[bytes, Group, dict[int, bytes]]:
    """The beginning of a group's plain rows, the group, and a place for its components, from one of its rows.

    `begins` remembers those read: many groups open in one moment.
    """
    is_ruled = len(key) > 14 and key[0] == RULED_KEY and key[-13] == 0
    if not is_ruled and (len(key) < 7 or key[0] != 1 or key[-5] != 0):
        raise DecodeError("changelog-key", "no component row of a known version", data=key)
    begin = begins.get(value[:_USUAL_HEAD_BYTES])
    if begin is None:
        cursor = _row_cursor(value)
        generation, opened_at = cursor.long(), cursor.long()
        begin = _RowBegin(generation, opened_at, ROW_HEADER + value[len(ROW_HEADER) : cursor.at])
        if cursor.at <= _USUAL_HEAD_BYTES:
            begins[value[:_USUAL_HEAD_BYTES]] = begin
    group = restore_group(key[1 : -13 if is_ruled else -5], begin.generation, begin.opened_at)
    group.attach(GroupStorage(key[:-4], begin.head))
    return begin.head, group, {}


def _row_cursor(value: bytes) -> Cursor:
    if not value.startswith((ROW_HEADER, ROW_WITHOUT_VALUE, ROW_OF_PIECE)):
        raise DecodeError("changelog", "no component row of a known version", data=value[:64])
    return Cursor(value, len(ROW_HEADER))


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
    commands: Sequence[tuple[bytes, int]] = (),
) -> bytes:
    """A ledger record: one per partition and transaction. `commands` are those decided in it: id and append time."""
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
        for group_id, generation, outcome, reason, highest, before, at, prints in closed:
            parts += (
                sized(group_id),
                long(generation),
                OUTCOME_CHUNKS[outcome],
                REASON_CHUNKS[reason],
                long(highest),
                long(before),
                moment(at),
                sized(prints),
            )
    parts.append(NULL)
    if commands:
        parts.append(long(len(commands)))
        parts += [sized(command_id) + moment(at) for command_id, at in commands]
    parts.append(NULL)
    return b"".join(parts)


def read_ledger(value: bytes) -> tuple[LedgerRecord, list[Closed]]:
    """A ledger record as `ledger_value` wrote it; its closed groups as the core remembers them, `LedgerRecord.closed` stays empty.

    Raises:
        DecodeError: It is none, or of a layout this worker does not know.
    """
    if not value.startswith((LEDGER_HEADER, _LEDGER_WITHOUT_PRINTS, _LEDGER_WITHOUT_COMMANDS)):
        raise DecodeError("ledger", "no ledger record of a known version", data=value[:64])
    cursor = Cursor(value, len(LEDGER_HEADER))
    layout = cursor.long()
    if layout != LEDGER_LAYOUT:
        raise DecodeError("ledger", f"layout {layout}, this worker knows {LEDGER_LAYOUT}")
    from_offset, to_offset, floor, clock, reader = (cursor.long() for _ in range(5))
    skipped = tuple(OffsetRange(cursor.long(), cursor.long()) for _ in items(cursor))
    has_prints = value.startswith(LEDGER_HEADER)
    closed = [_read_closed(cursor, has_prints) for _ in items(cursor)]
    commands: tuple[DecidedCommand, ...] = ()
    if not value.startswith(_LEDGER_WITHOUT_COMMANDS):
        commands = tuple([DecidedCommand(cursor.bytes(), cursor.long()) for _ in items(cursor)])
    if cursor.at != len(value):
        raise DecodeError("ledger", f"{len(value) - cursor.at} bytes follow the record")
    return LedgerRecord(layout, from_offset, to_offset, floor, clock, reader, skipped, (), commands), closed


def _read_closed(cursor: Cursor, has_prints: bool) -> Closed:
    return Closed(
        cursor.bytes(),
        cursor.long(),
        _chosen(_OUTCOMES, cursor.long()),
        _chosen(_REASONS, cursor.long()),
        cursor.long(),
        cursor.long(),
        cursor.long(),
        cursor.bytes() if has_prints else b"",
    )


def _chosen(symbols: tuple[T, ...], index: int) -> T:
    if not 0 <= index < len(symbols):
        raise DecodeError("ledger", f"an enumeration has no symbol {index}")
    return symbols[index]
