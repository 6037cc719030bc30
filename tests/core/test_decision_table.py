"""Lines 1 to 15 of the decision table (`docs/decision-table.md`), one by one and where two apply at once (W-38)."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from struct import Struct
from typing import Any

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.script import (
    T0,
    Sent,
    bare,
    c,
    clock,
    given_up,
    missing_of,
    ms,
    passed,
    plain,
    play,
    redelivered,
    refused,
    sent_on,
    story,
    unit,
)
from tests.fake_record import INPUT, FakeRecord
from uow.processor.core.decide import LINES
from uow.processor.core.group import exceeds_limits
from uow.processor.engine.task import PartitionTask
from uow.schemas.error_classes import (
    BadSequenceNumberError,
    BadUnitIdError,
    ComponentExpiredError,
    DecodeError,
    DuplicateSequenceNumberError,
    MisroutedComponentError,
    OutOfSequenceRangeError,
    UnitClosedError,
    UnitConflictError,
    UnitTooLargeError,
)
from uow.schemas.fingerprint import case_of
from uow.topics.partitioner import partition_for
from uow.topics.policies import (
    DestinationPolicy,
    DuplicatePolicy,
    ExpirationPolicy,
    Fingerprints,
    HandlingPolicy,
    LatePolicy,
    Oversize,
    Shape,
    ViolationPolicy,
)

FAIL_GROUP = ViolationPolicy.FAIL_GROUP
REDIRECT = ExpirationPolicy.REDIRECT


# -- the rules of W-01 to W-16 --------------------------------------------------------------------------------------


def test_components_of_one_id_form_one_group_whoever_sent_them_w01() -> None:
    from_one = c(1, user=[("producer", "one"), ("hop", "x")], key=b"k1")
    from_other = c(2, end=True, user=[("producer", "two")], key=b"k2")
    assert play(from_one, from_other) == [unit(1, 2)]


def test_number_and_end_without_id_make_no_component_w02() -> None:
    record = bare([("uow-seq", b"1"), ("uow-end", b"true")], b"plain")
    assert play(record) == [passed("plain")]


def test_default_handling_policy_forms_no_unit_w05() -> None:
    records = [c(1), c(2, end=True)]
    played = story(*records, handling_policy=HandlingPolicy.PASS_THROUGH)
    assert [output.headers for output in played.outputs] == [record.headers for record in records]
    assert {output.topic for output in played.outputs} == {"D.units"}
    assert not played.open


def test_the_clock_of_a_destination_that_forms_no_unit_never_goes_back_w84() -> None:
    played = story(plain(at=5), plain(at=9), plain(at=7), handling_policy=HandlingPolicy.PASS_THROUGH)
    assert played.task.partition.clock == ms(9)


def test_pass_through_checks_nothing_w36() -> None:
    bad = bare([("uow-id", b"a"), ("uow-end", b"banana")], b"x")
    played = story(bad, handling_policy=HandlingPolicy.PASS_THROUGH)
    assert [(output.topic, output.value) for output in played.outputs] == [("D.units", b"x")]


def test_incomplete_group_shows_nothing_until_the_gap_is_filled_w07() -> None:
    assert play(c(1), c(3, end=True), clock(10)) == []
    assert play(c(1), c(3, end=True), clock(10), c(2)) == [unit(1, 2, 3)]


def test_unit_waits_for_the_latest_deliver_at_w08_w06() -> None:
    script = c(1), c(2), c(3, end=True, deliver_at=60)
    assert play(*script, clock(59.999)) == []
    assert play(*script, clock(60)) == [unit(1, 2, 3)]
    assert play(*script, plain(at=60)) == [unit(1, 2, 3), passed()]


def test_plain_component_that_completes_a_waiting_group_waits_with_it_w08() -> None:
    script = c(1, deliver_at=60), c(2, end=True)
    assert play(*script, clock(59.999)) == []
    assert play(*script, clock(60)) == [unit(1, 2)]


def test_deliver_at_in_the_past_holds_nothing_back_w08() -> None:
    assert play(c(1, deliver_at=5, at=10), c(2, end=True)) == [unit(1, 2)]


def test_complete_unit_overtakes_an_older_open_group_w09() -> None:
    script = c(1, id="A"), c(1, id="B"), c(2, end=True, id="B")
    assert play(*script) == [unit(1, 2, id="B")]
    assert story(*script).open == {"A": "1"}
    assert play(*script, c(2, end=True, id="A")) == [unit(1, 2, id="B"), unit(1, 2, id="A")]


def test_every_order_of_seven_gives_the_same_unit_w10() -> None:
    last, played = 7, story()
    sent = {number: c(number, end=number == last, value=f"<{number}>") for number in range(1, last + 1)}
    for index, order in enumerate(permutations(sent)):
        task = PartitionTask(INPUT, played.task.context)
        records = [FakeRecord(index + at, sent[number].headers, sent[number].value) for at, number in enumerate(order)]
        (output,) = task.process(records).outputs
        places = [(output.value or b"").index(b"<%d>" % number) for number in sent]
        assert places == sorted(places)
        assert not task.groups


@settings(max_examples=15)
@given(st.permutations(range(1, 101)), st.integers(1, 7))
def test_numbers_are_compared_as_integers_in_any_order_w10(order: list[int], poll: int) -> None:
    played = story(*(c(number, end=number == 100) for number in order), poll=poll * 10)
    assert played.seen == [unit(*range(1, 101))]
    assert [component.value for component in played.units[0].components] == [
        f"value b'{number}'".encode() for number in range(1, 101)
    ]


def test_plain_records_stand_outside_of_units_w11_w122() -> None:
    script: list[Sent] = []
    for number in range(1, 6):
        script += [c(number, end=number == 5, id=f"unit-{index}") for index in range(20)]
        script += [plain(f"plain {number}/{index}") for index in range(10)]
    played = story(*script)
    assert sum(type(seen) is type(passed()) for seen in played.seen) == 50
    assert [seen for seen in played.seen if type(seen) is type(unit())] == [
        unit(1, 2, 3, 4, 5, id=f"unit-{index}") for index in range(20)
    ]


def test_plain_record_between_components_is_out_at_once_w122() -> None:
    assert play(c(1), plain(), c(2, end=True)) == [passed(), unit(1, 2)]


def test_end_mark_alone_completes_nothing_w15() -> None:
    assert play(c(1), c(3, end=True), c(2)) == [unit(1, 2, 3)]
    assert play(c(5), c(6), c(7, end=True)) == []
    assert story(c(5), c(6), c(7, end=True)).open == {"a": "5-7"}


def test_unit_of_one_component_is_a_list_of_one_w16() -> None:
    played = story(c(1, end=True))
    assert played.seen == [unit(1)]
    assert played.unit_headers[0]["uow-size"] == b"1"
    assert isinstance(played.units[0].components, tuple)


# -- lines 1 to 5b: what the headers say ----------------------------------------------------------------------------


def test_line_1_id_and_unit_of_order_on_one_record_are_refused_w33() -> None:
    both = c(1, end=True, user=[("uoo-name", "x")])
    assert play(both) == [refused(both, UnitConflictError)]
    assert play(bare([("uoo-name", b"x")], b"plain")) == [passed("plain")]


def test_line_2_record_without_id_passes_byte_for_byte_w22() -> None:
    headers = [("uow-seq", b"-7"), ("uow-end", b"banana"), ("x", None), ("x", b"\xff")]
    played = story(bare(headers, None, None))
    assert [(o.topic, o.partition, o.key, o.value, o.headers) for o in played.outputs] == [
        ("D.units", 0, None, None, headers)
    ]
    assert not played.open


def test_line_2_finished_unit_passes_and_opens_no_group_w96() -> None:
    sent_on_unit = bare([("uow-id", b"a"), ("uow-kind", b"unit"), ("uow-size", b"2")], b"unit")
    assert play(sent_on_unit) == [passed("unit")]
    nested = bare([("uow-id", b"outer"), ("uow-seq", b"1"), ("uow-end", b"true"), ("uow-kind", b"unit")], b"unit")
    assert play(nested) == [unit(1, id="outer")]


@pytest.mark.parametrize(
    ("ids", "case"),
    [
        ([b""], "empty"),
        ([b"\xff"], "undecodable"),
        ([b"x" * 256], "too-long"),
        ([b"a", b"b"], "repeated"),
    ],
)
def test_line_3_unusable_id_is_refused_w23(ids: list[bytes | None], case: str) -> None:
    record = bare([*(("uow-id", one) for one in ids), ("uow-seq", b"1")])
    assert play(record) == [refused(record, BadUnitIdError, case)]


@pytest.mark.parametrize("header", ["end", "count", "expires_at", "deliver_at", "priority", "digest", "segment_at"])
def test_a_header_that_is_null_is_absent_w23(header: str) -> None:
    name = f"uow-{header.replace('_', '-')}"
    assert play(c(1, user=[(name, None)]), c(2, end=True)) == [unit(1, 2)]


def test_an_id_or_a_number_that_is_null_is_absent_w22_w25() -> None:
    no_id = bare([("uow-id", None), ("uow-seq", b"1")], b"v")
    assert play(no_id) == [passed("v")]
    no_number = bare([("uow-id", b"a"), ("uow-seq", None)])
    assert play(no_number) == [refused(no_number, BadSequenceNumberError, "a")]
    twice = bare([("uow-id", None), ("uow-id", b"a"), ("uow-seq", b"1"), ("uow-end", None), ("uow-end", b"true")])
    assert play(twice) == [unit(1)]
    order = c(1, end=True, user=[("uoo-name", None)])
    assert play(order) == [unit(1)]


def test_a_property_of_the_end_component_that_is_null_is_none_of_the_unit_w90() -> None:
    end = c(1, end=True, user=[("uow-type", None), ("uow-correlation-id", None), ("uow-correlation-id", b"k")])
    (headers,) = story(end).unit_headers
    assert "uow-type" not in headers
    assert headers["uow-correlation-id"] == b"k"


def test_line_3_longest_id_and_equal_repeats_are_fine_w23() -> None:
    longest = "x" * 255
    assert play(c(1, end=True, id=longest)) == [unit(1, id=longest)]
    twice = bare([("uow-id", b"a"), ("uow-id", b"a"), ("uow-seq", b"1"), ("uow-seq", b"1"), ("uow-end", b"true")])
    assert play(twice) == [unit(1)]


def test_line_4_missing_number_is_case_a_w25() -> None:
    record = bare([("uow-id", b"a"), ("uow-end", b"true")])
    assert play(record) == [refused(record, BadSequenceNumberError, "a")]


@pytest.mark.parametrize("number", ["0", "-1", "-2147483648", "000"])
def test_line_4_number_below_one_is_case_b_w26(number: str) -> None:
    assert play(c(number)) == [refused(c(number), BadSequenceNumberError, "b")]


@pytest.mark.parametrize(
    "number",
    [
        " 5",
        "5.0",
        "+5",
        b"",
        "\N{ARABIC-INDIC DIGIT FIVE}",
        "2147483648",
        "9" * 5000,
        "1_0",
        "0x1",
        "5\n",
        b"\xff",
        "--1",
        "-",
    ],
)
def test_line_4_number_that_is_no_plain_decimal_is_malformed_w27(number: object) -> None:
    assert play(c(number)) == [refused(c(number), BadSequenceNumberError, "malformed")]


def test_line_4_repeated_number_with_other_value_is_malformed_w23() -> None:
    record = c(1, user=[("uow-seq", "2")])
    assert play(record) == [refused(record, BadSequenceNumberError, "malformed")]


def test_line_4_limits_of_the_number_w20() -> None:
    assert story(c(1), c(2_147_483_647)).open == {"a": "1,2147483647"}


def test_lone_highest_number_costs_no_more_than_number_one_w20() -> None:
    first, highest = story(c(1, value="v")).task, story(c(2_147_483_647, value="v")).task
    assert abs(first.held_bytes - highest.held_bytes) < 20
    assert len(highest.groups[b"a"].held_ranges()) == 1


@pytest.mark.parametrize("end", ["false", "False", "FALSE", "fAlSe"])
def test_line_5_absent_and_false_mean_the_same_w21(end: str) -> None:
    assert story(c(1, end=end)).open == {"a": "1"} == story(c(1)).open


@pytest.mark.parametrize("end", ["true", "True", "TRUE", "tRuE"])
def test_line_5_letter_case_of_the_end_mark_is_ignored_w21(end: str) -> None:
    assert play(c(1, end=end)) == [unit(1)]


@pytest.mark.parametrize("end", ["yes", "1", b"", "true ", b"\xff"])
def test_line_5_any_other_end_mark_is_refused_w21(end: object) -> None:
    assert play(c(1, end=end)) == [refused(c(1, end=end), BadSequenceNumberError, "malformed-end")]


def test_line_5_repeated_end_mark_with_other_value_is_refused_w23() -> None:
    record = c(1, end="true", user=[("uow-end", "false")])
    assert play(record) == [refused(record, BadSequenceNumberError, "malformed-end")]
    assert play(c(1, end="true", user=[("uow-end", "TRUE")])) == [unit(1)]


@pytest.mark.parametrize("count", ["0", "-1", "x", b"", "2147483648", "3.0"])
def test_line_5_unreadable_count_is_refused_w204(count: object) -> None:
    assert play(c(1, count=count)) == [refused(c(1, count=count), BadSequenceNumberError, "malformed-count")]


def test_line_5_repeated_count_with_other_value_is_refused_w204() -> None:
    record = c(1, count=3, user=[("uow-count", "4")])
    assert play(record) == [refused(record, BadSequenceNumberError, "malformed-count")]


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("expires_at", "soon"),
        ("expires_at", ""),
        ("expires_at", "-1"),
        ("expires_at", "253402300800000"),
        ("deliver_at", "1e3"),
        ("priority", "10"),
        ("priority", ""),
        ("priority", "x"),
        ("digest", "md5:00"),
        ("digest", "sha256:" + "0" * 63),
        ("digest", "sha256:" + "g" * 64),
    ],
)
def test_line_5b_unreadable_special_header_is_refused_with_its_name_w23(header: str, value: object) -> None:
    record = c(1, end=True, **{header: value})
    assert play(record) == [refused(record, DecodeError, f"uow-{header.replace('_', '-')}")]


@pytest.mark.parametrize("header", ["uow-expires-at", "uow-deliver-at", "uow-priority", "uow-digest"])
def test_line_5b_special_header_repeated_with_other_value_is_refused_w23(header: str) -> None:
    record = c(1, end=True, user=[(header, "1"), (header, "2")])
    assert play(record) == [refused(record, DecodeError, header)]


def test_line_5b_zero_means_none_and_readable_ones_are_fine_w23() -> None:
    digest = "sha256:" + "0aF" * 21 + "0"
    record = c(
        1, user=[("uow-expires-at", "0"), ("uow-deliver-at", "0"), ("uow-priority", "9"), ("uow-digest", digest)]
    )
    assert story(record).open == {"a": "1"}


def test_header_name_that_is_no_text_is_refused_w23() -> None:
    record = bare(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), b"x")
    assert play(record) == [refused(record, DecodeError, "headers")]


# -- lines 6 to 9: where and when -----------------------------------------------------------------------------------

HOME = partition_for(b"a", 4)
STRAY = (HOME + 1) % 4


def test_line_6_component_on_a_wrong_partition_is_sent_on_once_w110() -> None:
    record = c(1, end=True)
    assert play(record, partition=STRAY, partitions=4) == [sent_on(record, HOME)]
    played = story(record, partition=STRAY, partitions=4)
    (output,) = played.outputs
    assert output == ("D.components", HOME, record.key, record.value, [*record.headers, ("uow-rerouted", b"1")])
    assert not played.open
    assert (played.counts.passed, played.counts.rerouted) == (1, 1)
    assert played.counts.passed == 1  # W-216: it counts as passed on the partition it leaves


def test_line_6_second_time_on_a_wrong_partition_is_refused_w110() -> None:
    record = c(1, end=True, rerouted=1)
    assert play(record, partition=STRAY, partitions=4) == [refused(record, MisroutedComponentError)]


def test_line_6_rerouted_component_joins_its_group_w110() -> None:
    assert play(c(1), c(2, end=True, rerouted=1), partition=HOME, partitions=4) == [unit(1, 2)]


def test_line_7_replay_is_ignored_and_counted_w43() -> None:
    script = c(1), c(1), c(2, end=True), plain(), bare([("uow-id", b"")])
    for prefix in range(1, len(script) + 1):
        assert play(*script, redelivered(*script[:prefix])) == play(*script)
        assert story(*script, redelivered(*script[:prefix])).counts.ignored == prefix
    again = [c(1), clock(1), *redelivered(c(1)), c(2, end=True)]
    assert play(*again) == [unit(1, 2)], "the rest of a poll that begins before the position is new"


def test_line_8_component_of_a_delivered_unit_is_judged_as_before_w40_w19() -> None:
    opening = c(1), c(2, end=True)
    inside, above = c(2), c(3)
    assert play(*opening, inside) == [unit(1, 2), refused(inside, DuplicateSequenceNumberError, "duplicate")]
    assert play(*opening, above) == [unit(1, 2), refused(above, OutOfSequenceRangeError, "a")]
    assert story(*opening, inside, above).open == {}


def test_line_8_holds_under_reopen_too_w85() -> None:
    late = c(1, end=True, value="again")
    assert play(c(1, end=True), late, late_policy=LatePolicy.REOPEN) == [
        unit(1),
        refused(late, DuplicateSequenceNumberError, "duplicate"),
    ]


DROPPING: dict[str, Any] = {"duplicate_policy": DuplicatePolicy.DROP_IDENTICAL}
LONG = "v" * 20_000
"""Longer than what is usual, so that it is fingerprinted the long way."""


@pytest.mark.parametrize("value", ["", "v" * 63, "v" * 64, "v" * 8191, LONG], ids=len)
@pytest.mark.parametrize("ids", [(None, None), ("x", "y"), ("x", "longer"), ("x", None)], ids=str)
@pytest.mark.parametrize("key", ["a", None, "k" * 200], ids=["usual key", "no key", "long key"])
def test_line_8_tells_duplicates_apart_as_before_the_delivery_w40_w31(
    value: str, ids: tuple[str | None, str | None], key: str | None
) -> None:
    """Whatever the components look like: by id, then by value (lines 8 and 10)."""

    def part(seq: int, value: str, component_id: str | None) -> Sent:
        said = {} if component_id is None else {"component_id": component_id}
        sent = c(seq, seq == 3, value=value or None, **said)
        return replace(sent, value=value.encode(), key=None if key is None else key.encode())

    whole = [part(2, "", ids[1]), part(1, value, ids[0]), part(3, value + "3", None if ids == (None, None) else "z")]
    same, other = part(1, value, "new"), part(1, value + "!", None)
    resent = part(1, "rebuilt on the way", ids[0])
    expected = [
        (same, "duplicate"),
        (other, "conflict"),
        (resent, "conflict" if ids[0] is None else "resend"),
        (replace(part(2, "", "new"), value=None), "conflict"),
    ]
    for late, case in expected:
        answer = [refused(late, DuplicateSequenceNumberError, case)] if case == "conflict" else []
        assert story(*whole[:2], late, **DROPPING).seen == answer
        played = story(*whole, late, **DROPPING)
        assert played.seen == [unit(1, 2, 3), *answer]
        assert played.counts.duplicate == 1
        refusal = refused(late, DuplicateSequenceNumberError, "duplicate")
        assert story(*whole, late).seen == [unit(1, 2, 3), refusal], "where all are refused the kind is not told"
        refusal = refused(late, DuplicateSequenceNumberError, case)
        assert story(*whole, late, fingerprints=Fingerprints.ALWAYS).seen == [unit(1, 2, 3), refusal], "unless wanted"


@pytest.mark.parametrize("size", [63, 64, 200, 1000, 1001])
def test_line_8_units_of_up_to_a_thousand_components_are_remembered_with_fingerprints_w40(size: int) -> None:
    whole = [c(number, number == size) for number in range(1, size + 1)]
    for seq in (1, 63, size):
        case = "conflict" if size <= 1000 else "duplicate"
        other = c(seq, value="other")
        assert story(*whole, other, **DROPPING).seen[1:] == [refused(other, DuplicateSequenceNumberError, case)]
        same = story(*whole, c(seq), **DROPPING)
        assert len(same.seen) == (1 if size <= 1000 else 2), "what cannot be told is refused, never dropped"


def test_line_8_ids_that_only_later_components_have_are_their_own_w40() -> None:
    """Numbers from 64 on take a byte more, and are fingerprinted apart from those before."""
    whole = [c(number, number == 64, **({"component_id": "x"} if number == 64 else {})) for number in range(1, 65)]
    for seq, value, case in ((64, "rebuilt", "resend"), (1, "rebuilt", "conflict")):
        late = c(seq, value=value, component_id="x")
        seen = story(*whole, late, fingerprints=Fingerprints.ALWAYS).seen
        assert seen[1:] == [refused(late, DuplicateSequenceNumberError, case)]


def test_line_8_fingerprints_with_ids_of_some_components_only_are_those_of_values_w40() -> None:
    """Ledgers that were written before the test above held have such."""
    prints = Struct("<65I").pack(*[google_crc32c.value(b"v")] * 64, google_crc32c.value(b"x"))
    assert case_of(prints, 64, 64, b"x", b"v") == "duplicate"
    assert case_of(prints, 64, 1, b"x", b"rebuilt") == "conflict"


CLOSED_OTHERWISE = {
    "expired": ([c(2), clock(101)], {"incomplete_expiration_ms": 100_000}),
    "partial": (
        [c(2), clock(101)],
        {"incomplete_expiration_ms": 100_000, "expiration_policy": ExpirationPolicy.DELIVER_PARTIAL},
    ),
    "failed": ([c(2), c(2, value="other")], {"violation_policy": FAIL_GROUP}),
}


@pytest.mark.parametrize("how", CLOSED_OTHERWISE)
def test_line_9_late_component_is_told_how_the_group_closed_w85(how: str) -> None:
    closing, settings = CLOSED_OTHERWISE[how]
    late = c(1, value="late")
    assert play(*closing, late, **settings)[-1] == refused(late, UnitClosedError, how)


@pytest.mark.parametrize("how", CLOSED_OTHERWISE)
def test_line_9_reopen_starts_a_new_generation_w85(how: str) -> None:
    closing, settings = CLOSED_OTHERWISE[how]
    played = story(*closing, c(1), c(2, end=True), **settings, late_policy=LatePolicy.REOPEN)
    assert played.seen[-1] == unit(1, 2)
    assert played.unit_headers[-1]["uow-generation"] == b"2"


# -- lines 10 to 12: number and end ---------------------------------------------------------------------------------


def test_line_10_first_one_stays_and_the_case_tells_how_they_differ_w31() -> None:
    first = c(2, value="x", component_id="m1")
    same = c(2, value="x")
    other = c(2, value="y")
    resend = c(2, value="y", component_id="m1")
    played = story(first, same, other, resend, c(1, end=False), c(3, end=True))
    assert played.seen == play(first, same, other, resend, c(1), c(3, end=True))
    assert played.seen == [
        refused(same, DuplicateSequenceNumberError, "duplicate"),
        refused(other, DuplicateSequenceNumberError, "conflict"),
        refused(resend, DuplicateSequenceNumberError, "resend"),
        unit(1, 2, 3),
    ]
    assert played.units[0].components[1].value == b"x"
    texts = [dict(output.headers)["uow-error-text"] or b"" for output in played.outputs[:3]]
    assert b"same bytes" in texts[0]
    assert b"other bytes" in texts[1]
    assert b"the bytes differ" in texts[2]


@pytest.mark.parametrize(
    ("kept", "other", "case", "says"),
    [
        (Fingerprints.AS_NEEDED, "new", "duplicate", "the bytes were not compared"),
        (Fingerprints.AS_NEEDED, "old", "duplicate", "the bytes were not compared"),
        (Fingerprints.ALWAYS, "new", "conflict", "other bytes"),
        (Fingerprints.ALWAYS, "old", "duplicate", "the same bytes"),
    ],
)
def test_line_8_no_text_says_that_bytes_are_equal_that_were_not_compared_w31_w40(
    kept: Fingerprints, other: str, case: str, says: str
) -> None:
    again = c(1, end=True, value=other)
    played = story(c(1, end=True, value="old"), again, fingerprints=kept)
    assert played.seen == [unit(1), refused(again, DuplicateSequenceNumberError, case)]
    text = (dict(played.outputs[-1].headers)["uow-error-text"] or b"").decode()
    assert says in text
    assert ("same bytes" in text) == (kept is Fingerprints.ALWAYS and other == "old")


def test_line_10_null_and_empty_value_are_different_bytes_w31() -> None:
    null, empty = bare(c(1).headers, None), bare(c(1).headers, b"")
    assert play(null, empty) == [refused(empty, DuplicateSequenceNumberError, "conflict")]
    assert play(null, null) == [refused(null, DuplicateSequenceNumberError, "duplicate")]


def test_another_producer_completes_a_unit_under_the_same_checks_w42() -> None:
    first = [c(number, value="x", producer_id="p1") for number in (1, 2, 3)]
    second = [c(number, number == 5, value="y", producer_id="p2") for number in (3, 4, 5)]
    played = story(*first, *second)
    assert played.seen == [refused(second[0], DuplicateSequenceNumberError, "conflict"), unit(1, 2, 3, 4, 5)]
    assert [each.value for each in played.units[0].components] == [b"x", b"x", b"x", b"y", b"y"]


def test_line_10_two_producers_send_one_number_w32() -> None:
    one, other = c(2, value="x", producer_id="p1"), c(2, value="y", producer_id="p2")
    assert play(one, other) == [refused(other, DuplicateSequenceNumberError, "conflict")]


def test_line_10_identical_ones_are_dropped_by_policy_conflicts_never_w44() -> None:
    script = c(1, value="x", component_id="m"), c(1, value="y", component_id="m"), c(1, value="x"), c(1, value="z")
    played = play(*script, duplicate_policy=DuplicatePolicy.DROP_IDENTICAL)
    assert played == [refused(script[-1], DuplicateSequenceNumberError, "conflict")]
    counts = story(*script, duplicate_policy=DuplicatePolicy.DROP_IDENTICAL).counts
    assert (counts.held, counts.duplicate) == (1, 3)


def test_line_11_number_above_the_end_is_case_a_and_the_group_stays_w28() -> None:
    assert play(c(1), c(3, end=True), c(4), c(2)) == [refused(c(4), OutOfSequenceRangeError, "a"), unit(1, 2, 3)]


def test_line_12_end_below_the_highest_held_is_case_b_w29() -> None:
    wrong = c(3, end=True)
    assert play(c(1), c(5), wrong) == [refused(wrong, OutOfSequenceRangeError, "b")]
    played = story(c(1), c(5), wrong, c(3))
    assert played.open == {"a": "1,3,5"}
    assert not played.task.groups[b"a"].end_known


def test_no_two_ends_w30() -> None:
    script = c(5, end=True), c(7, end=True), c(3, end=True), c(5, end=True)
    assert play(*script) == [
        refused(script[1], OutOfSequenceRangeError, "a"),
        refused(script[2], OutOfSequenceRangeError, "b"),
        refused(script[3], DuplicateSequenceNumberError, "duplicate"),
    ]


def test_count_makes_the_end_known_before_it_comes_w204() -> None:
    script = c(1, count=3), c(4), c(2, end=True), c(3), c(2)
    assert play(*script) == [
        refused(script[1], OutOfSequenceRangeError, "a"),
        refused(script[2], OutOfSequenceRangeError, "b"),
        unit(1, 2, 3),
    ]
    assert story(*script).unit_headers[0]["uow-reason"] == b"count"


def test_reason_is_end_where_an_end_mark_is_held_beside_a_count_w204() -> None:
    for script in ((c(1, count=2), c(2, end=True)), (c(2, end=True), c(1, count=2)), (c(2, end=True, count=2), c(1))):
        assert play(*script) == [unit(1, 2)]
        assert story(*script).unit_headers[0]["uow-reason"] == b"end"


@pytest.mark.parametrize(
    "script",
    [
        [c(1, count=3), c(2, count=4)],
        [c(1, count=4), c(2, count=3)],
        [c(5), c(2, count=4)],
        [c(3, end=True), c(1, count=4)],
        [c(3, end=True), c(1, count=2)],
        [c(4, count=3)],
        [c(3, end=True, count=5)],
        [c(5, end=True, count=3)],
    ],
)
def test_line_12_count_that_contradicts_is_case_b_w204(script: list[Sent]) -> None:
    assert play(*script) == [refused(script[-1], OutOfSequenceRangeError, "b")]


def test_component_refused_for_its_count_sets_no_end_w204_w35() -> None:
    played = story(c(3, end=True, count=5), c(1), c(2), c(5, end=True))
    assert played.open == {"a": "1-2,5"}
    assert played.task.groups[b"a"].end == 5


# -- lines 13 to 15 -------------------------------------------------------------------------------------------------


def test_line_13_component_that_arrives_expired_takes_its_group_along_w77() -> None:
    late = c(2, expires_at=10, at=11)
    assert play(c(1), late, expiration_policy=REDIRECT) == [
        given_up(1, "expired", "component-expired", "3-", ComponentExpiredError),
        given_up(2, "expired", "component-expired", "3-", ComponentExpiredError),
    ]


def test_line_13_also_as_the_first_one_w77() -> None:
    played = story(c(2, expires_at=10, at=11), c(1), expiration_policy=REDIRECT)
    assert played.seen == [
        given_up(2, "expired", "component-expired", "1,3-", ComponentExpiredError),
        refused(c(1), UnitClosedError, "expired"),
    ]


def test_line_13_at_its_very_time_it_is_no_expired_one_w84() -> None:
    assert play(c(1, expires_at=10, at=10), c(2, end=True)) == [unit(1, 2)]


def test_line_14_too_many_components_fail_the_group_w115() -> None:
    assert play(c(1), c(2), c(4), c(1, end=True, id="b"), max_components=2) == [
        given_up(1, "failed", "limit", "3,5-", UnitTooLargeError),
        given_up(2, "failed", "limit", "3,5-", UnitTooLargeError),
        given_up(4, "failed", "limit", "3,5-", UnitTooLargeError),
        unit(1, id="b"),
    ]


def test_line_14_as_many_as_allowed_are_fine_w115() -> None:
    assert play(c(1), c(2, end=True), max_components=2) == [unit(1, 2)]


@pytest.mark.parametrize(
    ("written", "bytes_each"), [({"shape": Shape.CONSECUTIVE}, 1), ({"oversize": Oversize.CONSECUTIVE}, 4_000_000)]
)
def test_line_14_more_components_than_a_transaction_holds_fail_the_group_when_the_one_too_many_comes(
    written: dict[str, Any], bytes_each: int
) -> None:
    """700,000 within all limits outlived their transaction again and again."""
    value = "x" * bytes_each
    assert play(c(1, value=value), c(2, value=value), c(4, value=value), max_run_components=2, **written) == [
        given_up(1, "failed", "limit", "3,5-", UnitTooLargeError),
        given_up(2, "failed", "limit", "3,5-", UnitTooLargeError),
        given_up(4, "failed", "limit", "3,5-", UnitTooLargeError),
    ]


def test_line_14_a_piece_that_makes_a_unit_a_run_of_too_many_fails_the_group() -> None:
    value = "x" * 3_000_000
    script = [c(1, value=value), c(2, value=value), c(3, value=value), c(4, value="x" * 2_000_000, segment_at=0)]
    seen = play(*script, max_run_components=2, oversize=Oversize.CONSECUTIVE)
    assert given_up(1, "failed", "limit", "4-", UnitTooLargeError) in seen


@pytest.mark.parametrize(
    "written",
    [
        {},
        {"shape": Shape.REFERENCE},
        {"shape": Shape.REFERENCE, "oversize": Oversize.CONSECUTIVE},
        {"oversize": Oversize.REFERENCE},
        {"oversize": Oversize.CONSECUTIVE},
    ],
)
def test_line_14_units_in_one_record_have_no_such_limit(written: dict[str, Any]) -> None:
    assert play(c(1), c(2), c(3), c(4, end=True), max_run_components=2, **written) == [unit(1, 2, 3, 4)]


def test_line_14_a_call_of_a_destination_that_writes_runs_has_no_such_limit() -> None:
    """Its unit is one record, whatever the shape of the others is."""
    policy = DestinationPolicy(shape=Shape.CONSECUTIVE, max_run_components=2)
    assert exceeds_limits(3, 10, 1, policy)
    assert not exceeds_limits(3, 10, 1, policy, gathers_replies=True)


def test_line_14_too_many_bytes_fail_the_group_also_with_the_first_w115() -> None:
    big = "x" * 1000
    assert play(c(1, value=big), c(2, value=big), max_bytes=1500) == [
        given_up(1, "failed", "limit", "3-", UnitTooLargeError),
        given_up(2, "failed", "limit", "3-", UnitTooLargeError),
    ]
    assert play(c(1, end=True, value=big), max_bytes=500) == [given_up(1, "failed", "limit", "", UnitTooLargeError)]


@pytest.mark.parametrize("held", [c(1, id="b"), c(2)])
def test_a_group_that_a_violation_ends_is_closed_right_behind_it_w39(held: Sent) -> None:
    """What a replay goes by: what came before this offset belongs to it, whether or not it held anything."""
    played = story(held, c(1, end="banana"), violation_policy=ViolationPolicy.FAIL_GROUP)
    assert played.task.partition.closed.by_id[b"a"].before == 2


def test_line_15_refused_component_opens_no_group_and_starts_no_deadline_w35() -> None:
    played = story(c(1, end="banana"), incomplete_expiration_ms=1000)
    assert played.open == {}
    assert played.task.next_deadline() is None
    played.send(c(1, end=True))
    assert played.seen[-1] == unit(1)


def test_next_deadline_is_the_moment_that_must_have_passed_w84() -> None:
    played = story(c(1, at=3), incomplete_expiration_ms=1000)
    assert played.task.next_deadline() == T0 + 4000
    assert played.task.tick(T0 + 4000) is None
    assert played.task.tick(T0 + 4001) is not None


# -- two lines at once ----------------------------------------------------------------------------------------------


def test_lines_stand_in_the_order_of_the_contract_w38() -> None:
    assert [line.number for line in LINES] == ["6", "8", "9", "10", "11", "12"]


def test_duplicate_with_a_wrong_end_mark_is_a_duplicate_w38() -> None:
    wrong = c(3, end=True)
    script = *(c(number) for number in range(1, 6)), wrong
    assert play(*script) == [refused(wrong, DuplicateSequenceNumberError, "duplicate")]


ID_OF_NOBODY = next(f"id-{n}" for n in range(100) if partition_for(f"id-{n}".encode(), 4) == STRAY)

FAULTS: dict[str, tuple[list[tuple[str, object]], tuple[type, str] | None]] = {
    "1": ([("uoo-name", "x")], (UnitConflictError, "")),
    "3": ([("uow-id", "other")], (BadUnitIdError, "repeated")),
    "4": ([("uow-seq", "1000")], (BadSequenceNumberError, "malformed")),
    "5": ([("uow-end", "banana")], (BadSequenceNumberError, "malformed-end")),
    "5 count": ([("uow-count", "banana")], (BadSequenceNumberError, "malformed-count")),
    "5b expires": ([("uow-expires-at", "soon")], (DecodeError, "uow-expires-at")),
    "5b deliver": ([("uow-deliver-at", "soon")], (DecodeError, "uow-deliver-at")),
    "5b priority": ([("uow-priority", "high")], (DecodeError, "uow-priority")),
    "5b digest": ([("uow-digest", "x")], (DecodeError, "uow-digest")),
}
"""Faults of the headers, in the order of the table: what to add to a record that is otherwise fine, and what it is refused with."""


@pytest.mark.parametrize("first", FAULTS)
@pytest.mark.parametrize("second", FAULTS)
def test_of_two_faults_in_the_headers_the_earlier_line_answers_w38(first: str, second: str) -> None:
    names = list(FAULTS)
    winner = min(first, second, key=names.index)
    added = FAULTS[first][0] + (FAULTS[second][0] if second != first else [])
    record = c(1, user=added)
    if "1" in (first, second) and "3" in (first, second):
        winner = "1"
    answer = FAULTS[winner][1]
    assert answer is not None
    assert play(record) == [refused(record, *answer)]


STATES: dict[str, tuple[list[Sent], Sent, tuple[type, str]]] = {
    "6": ([], c(2, rerouted=1), (MisroutedComponentError, "")),
    "8 inside": ([c(1), c(2, end=True)], c(2), (DuplicateSequenceNumberError, "duplicate")),
    "8 above": ([c(1), c(2, end=True)], c(3), (OutOfSequenceRangeError, "a")),
    "9": ([c(1, expires_at=-1)], c(2), (UnitClosedError, "expired")),
    "10": ([c(1), c(2)], c(2), (DuplicateSequenceNumberError, "conflict")),
    "11": ([c(3, end=True)], c(4), (OutOfSequenceRangeError, "a")),
    "12": ([c(3)], c(2, end=True), (OutOfSequenceRangeError, "b")),
}
"""What makes each later line apply: what came before, the record in hand, and its refusal."""


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("state", STATES)
def test_faults_of_headers_are_judged_before_the_state_of_the_group_w38(fault: str, state: str) -> None:
    before, record, _ = STATES[state]
    added, answer = FAULTS[fault]
    bad = bare([*record.headers, *((name, str(value).encode()) for name, value in added)], b"bad")
    assert answer is not None
    where = {"partition": STRAY, "partitions": 4} if state == "6" else {}
    assert play(*before, bad, **where)[-1] == refused(bad, *answer)


PAIRS = [
    # what came before, the record in hand, the line that answers, and the later one that would answer as well
    ([], c(2, rerouted=1, expires_at=-5), MisroutedComponentError, "", "6 before 13"),
    ([], c(5, end=True, count=3, rerouted=1), MisroutedComponentError, "", "6 before 12"),
    ([c(1), c(2, end=True)], c(1, end=True), DuplicateSequenceNumberError, "duplicate", "8 before 12"),
    ([c(1), c(2, end=True)], c(1, expires_at=-5), DuplicateSequenceNumberError, "duplicate", "8 before 13"),
    ([c(1), c(2, end=True)], c(3, expires_at=-5), OutOfSequenceRangeError, "a", "8 before 13"),
    ([c(1), c(2, expires_at=-5)], c(1, end=True), UnitClosedError, "expired", "9 before 10, 12"),
    ([c(1), c(3, end=True, expires_at=-5)], c(4), UnitClosedError, "expired", "9 before 11"),
    ([c(1), c(2, expires_at=-5)], c(3, expires_at=-5), UnitClosedError, "expired", "9 before 13"),
    ([c(1), c(5)], c(1, end=True), DuplicateSequenceNumberError, "conflict", "10 before 12"),
    ([c(1), c(5)], c(1, count=2), DuplicateSequenceNumberError, "conflict", "10 before 12"),
    ([c(1)], c(1, expires_at=-5), DuplicateSequenceNumberError, "conflict", "10 before 13"),
    ([c(3, end=True)], c(7, end=True), OutOfSequenceRangeError, "a", "11 before 12"),
    ([c(3, end=True)], c(7, expires_at=-5), OutOfSequenceRangeError, "a", "11 before 13"),
    ([c(5)], c(3, end=True, expires_at=-5), OutOfSequenceRangeError, "b", "12 before 13"),
]


@pytest.mark.parametrize(("before", "record", "error", "case", "which"), PAIRS, ids=[pair[-1] for pair in PAIRS])
def test_of_two_lines_about_the_group_the_earlier_answers_w38(
    before: list[Sent], record: Sent, error: type, case: str, which: str
) -> None:
    record = bare(record.headers, b"in hand")
    where = {"partition": STRAY, "partitions": 4} if which.startswith("6") else {}
    assert play(*before, record, **where)[-1] == refused(record, error, case)


@pytest.mark.parametrize(
    ("before", "record", "settings", "error", "case"),
    [
        ([c(1)], c(1, value="other"), {"max_components": 1}, DuplicateSequenceNumberError, "conflict"),
        ([c(1, count=1, deliver_at=9)], c(2), {"max_components": 1}, OutOfSequenceRangeError, "a"),
        ([c(2)], c(1, end=True), {"max_components": 1}, OutOfSequenceRangeError, "b"),
    ],
)
def test_lines_10_to_12_are_judged_before_the_limits_w38(
    before: list[Sent], record: Sent, settings: dict[str, int], error: type, case: str
) -> None:
    assert play(*before, record, **settings) == [refused(record, error, case)]


def test_line_13_is_judged_before_line_14_w38() -> None:
    late = c(2, expires_at=-5)
    assert [seen.case for seen in play(c(1), late, max_components=1, expiration_policy=REDIRECT)] == [  # type: ignore[union-attr]
        "component-expired",
        "component-expired",
    ]


def test_line_14_is_judged_before_completion_w38() -> None:
    seen = play(c(1), c(2, end=True), max_components=1)
    assert seen == [given_up(n, "failed", "limit", "", UnitTooLargeError) for n in (1, 2)]


def test_replay_is_ignored_before_anything_about_the_group_w38() -> None:
    script = c(1), c(1, value="other"), c(0)
    assert len(play(*script)) == 2
    assert play(*script, redelivered(*script)) == play(*script)


# -- policies about violations --------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", list(permutations((1, 2, 3))))
def test_wrong_end_depends_on_the_order_under_reject_component_w39(order: tuple[int, ...]) -> None:
    script = [c(number, end=number == 2) for number in order]
    seen = play(*script)
    if order.index(2) < order.index(3):
        assert unit(1, 2) in seen
        assert refused(c(3), OutOfSequenceRangeError, "a") in seen
    else:
        assert seen == [refused(c(2, end=True), OutOfSequenceRangeError, "b")]
        assert story(*script).open == {"a": "1,3"}


@pytest.mark.parametrize("order", list(permutations((1, 2, 3))))
def test_wrong_end_gives_no_unit_in_any_order_under_fail_group_w39(order: tuple[int, ...]) -> None:
    script = [c(number, end=number == 2) for number in order]
    seen = play(*script, violation_policy=FAIL_GROUP)
    if order[-1] == 3:  # delivered before the violation came
        assert seen == [unit(1, 2), refused(c(3), OutOfSequenceRangeError, "a")]
        return
    assert not any(type(one) is type(unit()) for one in seen)
    assert story(*script, violation_policy=FAIL_GROUP).open == {}


def test_fail_group_sends_held_ones_to_errors_and_the_refused_one_to_rejected_w39() -> None:
    wrong = c(1, value="other")
    assert play(c(1), c(3), wrong, violation_policy=FAIL_GROUP) == [
        refused(wrong, DuplicateSequenceNumberError, "conflict"),
        given_up(1, "failed", "conflict", "2,4-", DuplicateSequenceNumberError),
        given_up(3, "failed", "conflict", "2,4-", DuplicateSequenceNumberError),
    ]


VIOLATIONS = {
    "1": c(1, user=[("uoo-name", "x")]),
    "4": c("x"),
    "4 missing": bare([("uow-id", b"a")]),
    "5": c(1, end="banana"),
    "12": c(4, count=3),
}


@pytest.mark.parametrize("line", VIOLATIONS)
def test_violation_closes_the_id_also_when_nothing_is_held_w39(line: str) -> None:
    violation = VIOLATIONS[line]
    late = c(2)
    seen = play(violation, late, violation_policy=FAIL_GROUP)
    assert [type(one) for one in seen] == [type(refused(late, UnitClosedError))] * 2
    assert seen[1] == refused(late, UnitClosedError, "failed")
    played = story(violation, violation_policy=FAIL_GROUP)
    assert [(o.outcome, o.reason, o.count, o.generation) for o in played.outcomes] == [("failed", "conflict", 0, 1)]


def test_second_violation_of_a_failed_id_says_nothing_new_w39() -> None:
    played = story(c("x"), c("y"), violation_policy=FAIL_GROUP)
    assert len(played.outcomes) == 1
    assert len(played.seen) == 2


def test_violation_of_a_failed_id_closes_a_next_generation_under_reopen_w39_w85() -> None:
    played = story(c("x"), c("y"), c(1), c("z"), violation_policy=FAIL_GROUP, late_policy=LatePolicy.REOPEN)
    assert sorted(outcome.generation for outcome in played.outcomes) == [1, 2, 3]


def test_violation_after_delivery_fails_nothing_w39() -> None:
    for late_policy in LatePolicy:
        played = story(c(1, end=True), c("x"), violation_policy=FAIL_GROUP, late_policy=late_policy)
        assert [type(seen) for seen in played.seen] == [type(unit()), type(refused(c(1), UnitClosedError))]
        assert played.outcomes == []


@pytest.mark.parametrize("fault", [[("uow-id", "b")], [("uow-priority", "x")]])
def test_unreadable_id_and_line_5b_fail_no_group_w39(fault: list[tuple[str, object]]) -> None:
    assert story(c(1), c(2, user=fault), violation_policy=FAIL_GROUP).open == {"a": "1"}


def test_dropped_duplicate_is_no_violation_w39() -> None:
    settings = {"violation_policy": FAIL_GROUP, "duplicate_policy": DuplicatePolicy.DROP_IDENTICAL}
    assert play(c(1), c(1), c(2, end=True), **settings) == [unit(1, 2)]


def test_refused_on_a_wrong_partition_fails_no_group_there_w39_w110() -> None:
    bad = c("x")
    good = c(1)
    assert play(bad, good, violation_policy=FAIL_GROUP, partition=STRAY, partitions=4) == [
        refused(bad, BadSequenceNumberError, "malformed"),
        sent_on(good, HOME),
    ]


def test_every_refusal_is_told_once_with_everything_as_it_was_w37() -> None:
    records = [
        c("x", user=[("h", "1"), ("h", None)]),
        c(1, user=[("uoo-name", "x")]),
        bare([("uow-id", b"")], None, None),
        c(1),
        c(1, value="other"),
    ]
    played = story(*records)
    rejected = [output for output in played.outputs if output.topic == "D.rejected"]
    assert [(o.key, o.value, o.headers[:-4]) for o in rejected] == [
        (record.key, record.value, record.headers) for record in records if record is not records[3]
    ]
    assert [dict(output.headers)["uow-source"] for output in rejected] == [
        b"D.components/0/%d" % offset for offset in (0, 1, 2, 4)
    ]


def test_gap_report_names_held_and_missing_ranges_w201() -> None:
    group = story(c(1), c(2), c(4), c(7, end=True)).task.groups[b"a"]
    assert missing_of(1, 2, 4, 7, end=7) == "3,5-6"
    assert [(gap.first, gap.last) for gap in group.missing()] == [(3, 3), (5, 6)]
    assert [(held.first, held.last) for held in group.held_ranges()] == [(1, 2), (4, 4), (7, 7)]
    assert "1" in repr(group)
    assert ms(1) == T0 + 1000
