"""What was refused, chosen and sent again: filters, corrections, and what stays as it was (W-80, W-202)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.fake_record import FakeRecord
from uow.client.rejected_records import (
    Choice,
    Correction,
    RefusedRecord,
    corrected,
    refused,
)
from uow.processor.engine.ports import Stretch, Tp

NOW = 1_700_000_000_000
CAME: list[tuple[str, bytes | None]] = [
    ("trace", b"\x00\xff"),
    ("uow-id", b"order"),
    ("uow-seq", b"x"),
    ("trace", None),
    ("uow-hops", b"gadget-planet"),
]
WHY: list[tuple[str, bytes | None]] = [
    ("uow-error-class", b"BadSequenceNumberError"),
    ("uow-error-case", b"malformed"),
    ("uow-error-text", b"'x'"),
    ("uow-source", b"D.components/0/7"),
    ("uow-failure-reason", b"expired"),
    ("uow-missing", b"3"),
]
RECORD = RefusedRecord("D.rejected", 1, 5, NOW, b"foreign key", b"value", (*CAME, *WHY))
AS_IT_WAS = Correction({})


def headers(record: RefusedRecord = RECORD, correction: Correction = AS_IT_WAS) -> list[tuple[str, bytes | None]]:
    return corrected(record, "D.components", correction, NOW).headers


def test_a_record_goes_back_as_it_came_and_says_where_it_lay_w202() -> None:
    again = corrected(RECORD, "D.components", AS_IT_WAS, NOW)
    assert (again.topic, again.key, again.value) == ("D.components", b"order", b"value")
    assert again.headers == [
        *CAME[:4],
        ("uow-hops", b"gadget-planet,D.rejected"),
        ("uow-resubmitted", b"D.rejected/1/5"),
    ]


def test_headers_are_set_in_their_place_added_or_taken_out_w202() -> None:
    changed = headers(correction=Correction({"uow-seq": b"2", "trace": None, "new": b"1"}))
    assert changed[:3] == [("uow-id", b"order"), ("uow-seq", b"2"), ("new", b"1")]
    assert corrected(RECORD, "t", Correction({"uow-id": b"other"}), NOW).key == b"other"
    assert corrected(RECORD, "t", Correction({}, b"new", with_value=True), NOW).value == b"new"
    assert corrected(RECORD, "t", Correction({}, None, with_value=True), NOW).value is None


@pytest.mark.parametrize(("at", "is_kept"), [(NOW - 1, False), (NOW, True), (NOW + 1, True), (0, True)])
def test_an_expiry_that_has_passed_is_left_behind_w80(at: int, is_kept: bool) -> None:
    for name in ("uow-expires-at", "JMSExpiration"):
        expiring = replace(RECORD, headers=((name, b"%d" % at), *CAME, *WHY))
        assert any(each == name for each, _ in headers(expiring)) == is_kept


def test_what_was_sent_again_before_tells_its_last_place_only() -> None:
    twice = replace(RECORD, headers=(*CAME, ("uow-resubmitted", b"D.rejected/0/1"), ("uow-rerouted", b"1"), *WHY))
    assert [pair for pair in headers(twice) if pair[0] in ("uow-resubmitted", "uow-rerouted")] == [
        ("uow-resubmitted", b"D.rejected/1/5")
    ]


def test_plain_records_keep_their_key() -> None:
    assert corrected(replace(RECORD, headers=tuple(WHY)), "t", AS_IT_WAS, NOW).key == b"foreign key"


def test_units_and_bare_reasons_cannot_go_back() -> None:
    assert RECORD.can_go_back
    claims_to_be_a_unit = replace(RECORD, headers=(*CAME, ("uow-kind", b"unit")))
    assert claims_to_be_a_unit.can_go_back
    assert not replace(claims_to_be_a_unit, topic="D.errors").can_go_back
    assert not replace(RECORD, value=None, headers=tuple(WHY)).can_go_back
    assert replace(RECORD, headers=tuple(WHY)).can_go_back
    assert not RECORD.lacks_value
    assert replace(RECORD, value=None, headers=(*CAME, *WHY, ("uow-error-value", b"gone"))).lacks_value


@pytest.mark.parametrize(
    ("choice", "taken"),
    [
        (Choice(), True),
        (Choice(coordinates=("D.rejected/1/5",)), True),
        (Choice(coordinates=("D.rejected/1/6",)), False),
        (Choice(error="Bad*", case="mal*", id="ord*"), True),
        (Choice(error="Duplicate*"), False),
        (Choice(case="a"), False),
        (Choice(id="other"), False),
        (Choice(since=NOW, before=NOW + 1), True),
        (Choice(since=NOW + 1), False),
        (Choice(before=NOW), False),
    ],
)
def test_what_is_chosen(choice: Choice, taken: bool) -> None:
    assert choice.takes(RECORD) == taken


class RejectedLogs:
    """A `LogReader` of one topic."""

    def __init__(self, records: Sequence[FakeRecord]) -> None:
        self.records = records

    def committed(self, tps: Sequence[Tp]) -> Mapping[Tp, Any]:
        raise NotImplementedError

    def bounds(self, tps: Sequence[Tp]) -> Mapping[Tp, tuple[int, int]]:
        return dict.fromkeys(tps, (0, 2))

    def read(self, ranges: Mapping[Tp, tuple[int, int]]) -> Iterator[Stretch]:
        for record in self.records:
            start, end = ranges[record.tp]
            if start <= record.offset_ < end:
                yield record.tp, [record]


def test_the_oldest_come_first_whatever_the_partition() -> None:
    places = [(0, 0, 5), (0, 1, 7), (1, 0, 6), (1, 2, 1)]
    records = [FakeRecord(offset, None, b"v", b"k", at, Tp("D.rejected", number)) for number, offset, at in places]
    found = refused(RejectedLogs(records), "D.rejected", 2, Choice())
    assert [each.coordinates for each in found] == ["D.rejected/0/0", "D.rejected/1/0", "D.rejected/0/1"]
