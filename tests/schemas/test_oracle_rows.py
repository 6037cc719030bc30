"""What the worker writes by hand into its internal topics and into `D.outcomes` is what the general codec writes."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.core.rule_script import row
from tests.schemas.wire_strategies import (
    attributes,
    changelog_rows,
    closed_groups,
    ledgers,
    longs,
    outcome_records,
    ranges,
)
from uow.processor.core.changes import Amended, Closed, Warned
from uow.processor.core.gathered import Called
from uow.processor.core.group import Group
from uow.processor.engine import rows
from uow.schemas import codec, component, framing
from uow.schemas.error_classes import DecodeError
from uow.schemas.records import (
    GROUP_ROW,
    LEDGER_LAYOUT,
    MAX_SEQ,
    Attributes,
    ChangelogRow,
    ClosedGroup,
    DecidedCommand,
    GroupRow,
    LedgerRecord,
    ManifestPart,
    OffsetRange,
    Outcome,
    changelog_key,
)
from uow.topics.conditions import Manifest

offsets = st.integers(0, 2**62)


def as_core(closed: ClosedGroup) -> Closed:
    return Closed(
        closed.id,
        closed.generation,
        closed.outcome,
        closed.reason,
        closed.highest,
        closed.closed_before,
        closed.closed_at,
        closed.prints,
    )


@given(
    st.text(min_size=1, max_size=60).map(str.encode),
    st.integers(1, 2**31 - 1),
    longs,
    longs,
    longs,
    st.booleans(),
    st.none() | attributes,
    st.binary(max_size=300),
)
def test_changelog_rows_by_hand_have_the_codecs_bytes(
    id: bytes, seq: int, generation: int, opened_at: int, offset: int, end: bool, said: Attributes | None, body: bytes
) -> None:
    group = Group(id, generation, opened_at)
    group.hold(seq, body, opened_at)
    key, value = rows.component_row(group, seq, end, offset, said)
    assert key == changelog_key(id, seq)
    assert rows.tombstone_keys(group) == [key]
    assert value == codec.frame(ChangelogRow(generation, opened_at, offset, end, said, body))
    assert rows.read_row(value) == ChangelogRow(generation, opened_at, offset, end, said, body)


@given(changelog_rows)
def test_changelog_rows_of_the_codec_are_read_by_hand(row: ChangelogRow) -> None:
    assert rows.read_row(codec.frame(row)) == row


@given(
    offsets,
    offsets,
    offsets,
    longs,
    st.lists(st.integers(0, 60), unique=True).map(sorted),
    st.lists(closed_groups, max_size=4).map(tuple),
    st.lists(st.tuples(st.binary(max_size=255), longs), max_size=4),
)
def test_ledger_records_by_hand_have_the_codecs_bytes(
    first: int,
    last: int,
    floor: int,
    clock: int,
    not_held: list[int],
    closed: tuple[ClosedGroup, ...],
    commands: list[tuple[bytes, int]],
) -> None:
    skipped: list[OffsetRange] = []
    for offset in not_held:
        if skipped and skipped[-1].last + 1 == offset:
            skipped[-1] = OffsetRange(skipped[-1].first, offset)
        else:
            skipped.append(OffsetRange(offset, offset))
    decided = tuple(DecidedCommand(*command) for command in commands)
    record = LedgerRecord(LEDGER_LAYOUT, first, last, floor, clock, 1, tuple(skipped), closed, decided)
    value = rows.ledger_value(first, last, floor, clock, 1, not_held, [as_core(group) for group in closed], commands)
    assert value == codec.frame(record)


@given(ledgers)
def test_ledger_records_of_the_codec_are_read_by_hand(record: LedgerRecord) -> None:
    record = replace(record, layout=LEDGER_LAYOUT)
    read, closed = rows.read_ledger(codec.frame(record))
    assert read == replace(record, closed=())
    assert closed == [as_core(group) for group in record.closed]


@given(outcome_records)
def test_outcomes_by_hand_have_the_codecs_bytes(outcome: Outcome) -> None:
    """W-214."""
    last = outcome.last_arrived
    body = component.outcome_body(
        outcome.id.encode(),
        outcome.unit_id.encode(),
        outcome.destination.encode(),
        outcome.generation,
        outcome.outcome,
        outcome.reason,
        outcome.opened_at,
        outcome.closed_at,
        outcome.count,
        outcome.bytes,
        outcome.missing,
        None if outcome.command_id is None else outcome.command_id.encode(),
        None if last is None else (last.seq, None if last.component_id is None else last.component_id.encode()),
        None if outcome.rule is None else outcome.rule.encode(),
        outcome.deadline_at,
        [(each.name.encode(), each.count) for each in outcome.per_source],
        None if outcome.target is None else outcome.target.encode(),
        None if outcome.supersedes is None else outcome.supersedes.encode(),
    )
    assert body == codec.encode(outcome)


@given(
    st.builds(
        GroupRow,
        longs,
        longs,
        st.none() | st.integers(1, MAX_SEQ),
        ranges,
        st.none() | st.integers(1, 1 << 50),
        st.just(0),
        warned_at=st.none() | st.integers(1, 1 << 50),
    )
)
def test_rows_of_groups_by_hand_have_the_codecs_bytes(row: GroupRow) -> None:
    """W-203."""
    group = Group(b"a", row.generation, row.opened_at)
    rows.begin_rows(group)
    group.apply(Amended(b"a", row.declared_end or 0, row.waived, row.extended_deadline or 0))
    group.apply(Warned(b"a", row.warned_at or 0))
    key, value = rows.group_row(group)
    assert (key, value) == (changelog_key(b"a", GROUP_ROW), codec.frame(row))
    assert rows.read_group_row(value) == row


@given(longs, longs, st.text(min_size=1, max_size=60))
def test_rows_of_groups_that_gather_replies_have_the_codecs_bytes(opened_at: int, at: int, command_id: str) -> None:
    """B-78."""
    text = b'{"name":"n","timeout_ms":0,"requests":[{"number":1,"folder":"f","topic":"t"}]}'
    wanted = GroupRow(1, opened_at, rule="low-stock/UK@1", manifest=ManifestPart(command_id, at, text))
    group = Group(b"a", 1, opened_at)
    group.rule(row(complete_when=Manifest()))
    group.announce(Called.read(command_id.encode(), at, text))
    rows.begin_rows(group)
    value = rows.group_row(group)[1]
    assert value == codec.frame(wanted)
    assert rows.read_group_row(value) == wanted


@given(st.lists(st.integers(1, 1 << 50), max_size=4).map(tuple))
def test_rows_of_groups_with_calendars_have_the_codecs_bytes(deadlines: tuple[int, ...]) -> None:
    """B-206."""
    wanted = GroupRow(1, 5, rule="low-stock/UK@1", deadlines=deadlines)
    group = Group(b"a", 1, 5)
    group.rule(row(), deadlines)
    rows.begin_rows(group)
    value = rows.group_row(group)[1]
    assert value == codec.frame(wanted)
    assert rows.read_group_row(value) == wanted


@given(longs.filter(bool), st.booleans())
def test_rows_of_groups_that_have_their_turn_have_the_codecs_bytes(waits_since: int, has_turn: bool) -> None:
    """B-118."""
    wanted = GroupRow(1, 5, rule="low-stock/UK@1", waits_since=waits_since, has_turn=has_turn)
    group = Group(b"a", 1, 5)
    group.rule(row())
    assert group.ruled is not None
    group.ruled.waits_since, group.ruled.has_turn = waits_since, has_turn
    rows.begin_rows(group)
    value = rows.group_row(group)[1]
    assert value == codec.frame(wanted)
    assert rows.read_group_row(value) == wanted


@given(st.sampled_from(["ChangelogComponent", "ChangelogGroup", "Ledger"]), st.binary(max_size=80))
def test_hostile_rows_end_as_decode_errors(name: str, body: bytes) -> None:
    data = framing.single_object_header(name) + body
    for read in (rows.read_row, rows.read_group_row, rows.read_ledger):
        try:
            read(data)
        except DecodeError:
            continue
