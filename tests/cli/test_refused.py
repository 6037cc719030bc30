"""What was refused, chosen and sent again: filters, corrections, and what stays as it was (W-80, W-202)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from tests.core.script import bare, c, policy_of, story
from tests.fake_record import FakeRecord
from uow.client.given_up_units import UnitAgain, by_unit, unit_again
from uow.client.rejected_records import (
    Choice,
    Correction,
    RefusedRecord,
    corrected,
    refused,
)
from uow.processor.engine.ports import Stretch, Tp
from uow.schemas.error_classes import DecodeError
from uow.topics.headers import Reading
from uow.topics.policies import AliasFamily, Shape

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


# -- units that readers gave up --------------------------------------------------------------------------------------------


def given_up(*steps: Any, **policy: Any) -> list[RefusedRecord]:
    """The records of the units of a script, as their readers moved them to `D.errors`."""
    units = [output for output in story(*steps, **policy).outputs if output.topic == "D.units"]
    why = [("uow-source", b"D.units/0/9"), ("uow-failure-reason", b"redelivery-limit")]
    return [
        RefusedRecord("D.errors", 0, offset, NOW, each.key, each.value, (*each.headers, *why))
        for offset, each in enumerate(units)
    ]


def again(records: Sequence[RefusedRecord], correction: Correction = AS_IT_WAS, **policy: Any) -> UnitAgain:
    return unit_again(records, "D", correction, Reading.of(policy_of(**policy)), None, NOW)


FIRST = c(1, value="flash drive", user=[("mine", "1")], component_id="first")


@pytest.mark.parametrize("shape", [Shape.ENVELOPE, Shape.CONSECUTIVE])
def test_a_unit_that_readers_gave_up_goes_back_whole_under_a_new_id_b127(shape: Shape) -> None:
    (records,) = by_unit(given_up(FIRST, c(2, value="book", end=True), shape=shape))
    unit = again(records)
    assert UUID(unit.id).version == 5
    assert again(records).id == unit.id, "sent twice it is refused as a duplicate"
    assert [each.value for each in unit.components] == [b"flash drive", b"book"]
    assert [each.component_id for each in unit.components] == ["first", "D.components/0/1"]
    assert unit.components[0].headers == [
        ("mine", b"1"),
        ("uow-hops", b"D.errors"),
        ("uow-resubmitted", b"D.errors/0/0"),
    ]


def test_marks_of_the_unit_as_it_was_stay_behind_and_corrections_are_made_b127() -> None:
    alias = bare([("JMSXGroupID", b"x"), ("JMSXGroupSeq", b"1"), ("uow-end", b"true"), ("JMSType", b"t")])
    jms = {"accept_aliases": frozenset({AliasFamily.JMS})}
    (records,) = by_unit(given_up(alias, **jms))
    unit = again(records, Correction({"uow-id": b"anew", "JMSType": None, "uow-type": b"other"}), **jms)
    assert unit.id == "anew"
    assert unit.components[0].headers[:1] == [("uow-type", b"other")]
    assert {name for name, _ in unit.components[0].headers} == {"uow-type", "uow-hops", "uow-resubmitted"}


def test_units_are_told_apart_and_parts_of_one_stay_together_b127() -> None:
    records = given_up(FIRST, c(2, end=True), c(1, id="b", end=True), shape=Shape.CONSECUTIVE)
    records.append(replace(RECORD, topic="D.errors"))
    assert [len(each) for each in by_unit(records)] == [2, 1, 1]
    assert [each.is_unit for each in records] == [True, True, True, False]


@pytest.mark.parametrize("what", ["a part", "references", "a document", "only the reasons"])
def test_a_unit_that_cannot_be_opened_is_not_sent_b127(what: str) -> None:
    long = [c(1, value="x" * 100), c(2, value="y" * 100, end=True)]
    shape = {"a part": Shape.CONSECUTIVE, "references": Shape.REFERENCE}.get(what, Shape.ENVELOPE)
    records = given_up(*long, shape=shape)
    if what == "a part":
        records = records[:1]
    elif what == "a document":
        times = (("uow-rule", b"r/x@1"), ("uow-opened-at", b"1"), ("uow-closed-at", b"1"), ("uow-bytes", b"1"))
        records = [replace(records[0], value=b"<Aggregation/>", headers=(*records[0].headers, *times))]
    elif what == "only the reasons":
        records = [replace(records[0], value=None)]
    with pytest.raises(DecodeError):
        again(records)
