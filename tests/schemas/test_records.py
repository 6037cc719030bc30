"""The two texts of the wire that are no Avro: ranges and changelog keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uow.schemas.error_classes import DecodeError
from uow.schemas.records import (
    GROUP_ROW,
    MAX_SEQ,
    Range,
    Reason,
    UnitOutcome,
    changelog_key,
    parse_changelog_key,
    parse_ranges,
    ranges_text,
)

RANGES = [
    ("", ()),
    ("3", (Range(3, 3),)),
    ("3,5-7", (Range(3, 3), Range(5, 7))),
    ("9-", (Range(9, MAX_SEQ),)),
    ("3,5-7,9-", (Range(3, 3), Range(5, 7), Range(9, MAX_SEQ))),
    ("2147483647", (Range(MAX_SEQ, MAX_SEQ),)),
]


@pytest.mark.parametrize(("text", "ranges"), RANGES)
def test_ranges_are_written_and_read_as_in_uow_missing(text: str, ranges: tuple[Range, ...]) -> None:
    """W-71."""
    assert ranges_text(ranges) == text
    assert parse_ranges(text) == ranges


@given(st.lists(st.integers(1, MAX_SEQ), unique=True, max_size=12).map(sorted))
def test_any_rising_ranges_survive(ends: list[int]) -> None:
    ranges = tuple(Range(first, last) for first, last in zip(ends[::2], ends[1::2], strict=False))
    assert parse_ranges(ranges_text(ranges)) == ranges


@pytest.mark.parametrize(
    "text", [",", "3,", "-3", "3--5", "a", "5-3", "3,3", "0", "0-", "2147483648", "٣", "3 ", "1" * 11]
)
def test_other_texts_are_no_ranges(text: str) -> None:
    with pytest.raises(DecodeError) as caught:
        parse_ranges(text)
    assert caught.value.case == "uow-missing"


def test_a_changelog_key_has_these_bytes() -> None:
    assert changelog_key(b"order-1", 258) == b"\x01order-1\x00\x00\x00\x01\x02"
    assert changelog_key(b"order-1", GROUP_ROW) == b"\x01order-1\x00\x00\x00\x00\x00"


@given(st.binary(min_size=1, max_size=255), st.integers(0, MAX_SEQ))
def test_a_changelog_key_gives_back_id_and_number_also_of_ids_with_zero_bytes(id: bytes, seq: int) -> None:
    assert parse_changelog_key(changelog_key(id, seq)) == (id, seq)


@given(st.binary(max_size=12) | st.binary(max_size=9).map(lambda data: b"\x01" + data + b"\0abcd"))
def test_other_bytes_are_no_changelog_key(data: bytes) -> None:
    if len(data) >= 7 and data[0] == 1 and data[-5] == 0:
        assert changelog_key(*parse_changelog_key(data)) == data
    else:
        with pytest.raises(DecodeError) as caught:
            parse_changelog_key(data)
        assert (caught.value.case, caught.value.data) == ("changelog-key", data)


def test_outcomes_and_reasons_are_those_of_the_contract_in_its_order() -> None:
    assert ", ".join(UnitOutcome) == "complete, partial, expired, cancelled, failed"
    assert ", ".join(Reason) == (
        "end, count, bytes, predicate, sources, manifest, age, idle, component-expired, command, conflict, limit, digest"
    )
