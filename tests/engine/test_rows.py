"""Changelog rows and ledger records by hand are what the general codec makes of the same values (`schemas/definitions`)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uow.processor.core.changes import Closed, Held
from uow.processor.core.group import Group
from uow.processor.engine.rows import (
    component_row,
    ledger_value,
    ranges_of,
    read_ledger,
    read_row,
    tombstone_keys,
)
from uow.schemas import codec
from uow.schemas.component import long
from uow.schemas.error_classes import DecodeError
from uow.schemas.records import (
    MAX_SEQ,
    Attributes,
    ChangelogRow,
    ClosedGroup,
    LedgerRecord,
    OffsetRange,
    Reason,
    UnitOutcome,
    changelog_key,
    parse_changelog_key,
)

offsets = st.integers(0, 2**63 - 1)
seqs = st.integers(1, MAX_SEQ)
times = st.integers(-1, 253_402_300_799_999)
ids = st.binary(min_size=1, max_size=255)
attributes = st.builds(Attributes, times.map(abs), times.map(abs), st.integers(0, MAX_SEQ))
bodies = st.binary(max_size=300) | st.binary(min_size=4090, max_size=4100)
closed = st.builds(
    Closed,
    id=ids,
    generation=st.integers(1, 2**62),
    outcome=st.sampled_from(UnitOutcome),
    reason=st.sampled_from(Reason),
    highest=st.integers(0, MAX_SEQ),
    before=offsets,
    at=times,
)


@given(ids, seqs, st.integers(1, 2**62), times, offsets, st.booleans(), st.none() | attributes, bodies)
def test_row_of_a_component_is_what_the_codec_writes(
    id: bytes,
    seq: int,
    generation: int,
    opened_at: int,
    offset: int,
    end: bool,
    said: Attributes | None,
    body: bytes,
) -> None:
    group = Group(id, generation, opened_at)
    group.apply(Held(id, seq, end, opened_at, offset, body, said))
    key, value = component_row(group, seq, end, offset, said)
    expected = ChangelogRow(generation, opened_at, offset, end, said, body)
    assert key == changelog_key(id, seq)
    assert parse_changelog_key(key) == (id, seq)
    assert value == codec.frame(expected)
    assert read_row(value) == expected == codec.decode(value)
    assert tombstone_keys(group) == [key]


@given(
    offsets,
    offsets,
    offsets,
    times,
    st.integers(0, 100),
    st.lists(st.integers(0, 60), unique=True).map(sorted),
    st.lists(closed, max_size=4),
)
def test_ledger_record_is_what_the_codec_writes(
    start: int, end: int, floor: int, clock: int, reader: int, not_held: list[int], groups: list[Closed]
) -> None:
    value = ledger_value(start, end, floor, clock, reader, not_held, groups)
    skipped = tuple(OffsetRange(first, last) for first, last in ranges_of(not_held))
    expected = LedgerRecord(
        1, start, end, floor, clock, reader, skipped, tuple(ClosedGroup(*group) for group in groups)
    )
    assert value == codec.frame(expected)
    record, remembered = read_ledger(value)
    assert record == replace(expected, closed=())
    assert remembered == groups


@given(st.lists(st.integers(0, 80), unique=True).map(sorted))
def test_ranges_hold_exactly_the_offsets_and_never_touch(numbers: list[int]) -> None:
    ranges = ranges_of(numbers)
    assert [offset for first, last in ranges for offset in range(first, last + 1)] == numbers
    assert all(after[0] > before[1] + 1 for before, after in pairwise(ranges))


@given(st.binary(max_size=80))
def test_garbage_is_a_decode_error_and_nothing_else(garbage: bytes) -> None:
    row = codec.frame(ChangelogRow(1, 2, 3, True, Attributes(4, 5, 6), b"body"))
    ledger = ledger_value(1, 2, 3, 4, 5, [1], [Closed(b"a", 1, UnitOutcome.FAILED, Reason.LIMIT, 3, 2, 1)])
    for read, header in ((read_row, row[:10]), (read_ledger, ledger[:10])):
        for value in (garbage, header + garbage):
            try:
                read(value)  # type: ignore[operator]
            except DecodeError:
                continue
            assert value.startswith(header)


@pytest.mark.parametrize("outcome", [-1, 5, 1000])
def test_outcome_that_is_none_is_a_decode_error(outcome: int) -> None:
    good = ledger_value(0, 1, 1, 0, 1, [], [Closed(b"a", 1, UnitOutcome.COMPLETE, Reason.END, 1, 1, 0)])
    at = good.index(b"\x02a\x02\x00\x00") + 3
    with pytest.raises(DecodeError):
        read_ledger(good[:at] + long(outcome) + good[at + 1 :])
