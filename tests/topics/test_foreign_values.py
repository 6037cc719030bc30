"""Headers as other systems write them, and what is said of one that was probably meant otherwise (W-17)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uow.schemas.error_classes import BadSequenceNumberError, OutOfSequenceRangeError
from uow.topics.foreign_values import integer
from uow.topics.headers import Marks, Reading, Refusal
from uow.topics.policies import AliasFamily

W, J, M, S, N, N1, C = AliasFamily
Pairs = list[tuple[str, bytes | None]]


def group(*parts: Pairs, families: tuple[AliasFamily, ...]) -> list[tuple[bytes, int, bool, int | None]]:
    found = [Reading(families).read(part) for part in parts]
    return [(one.id, one.seq, one.end, one.total) for one in found if isinstance(one, Marks)]


@given(st.integers(1, 150_000_000) | st.integers(-500_000_000, 0))
def test_an_integer_of_4_or_8_bytes_is_its_decimal_text_w17(number: int) -> None:
    text = b"%d" % number
    assert [integer(number.to_bytes(size, signed=True)) for size in (4, 8)] == [text, text]
    assert integer(text) == text


@given(
    st.binary(max_size=9).filter(lambda raw: len(raw) not in (4, 8))
    | st.from_regex(rb"[ -~]{4}([ -~]{4})?", fullmatch=True)
)
def test_a_text_and_bytes_of_another_length_stay_as_they_are_w17(raw: bytes) -> None:
    assert integer(raw) == raw


@pytest.mark.parametrize("size", [4, 8])
def test_integers_of_camel_are_read_in_our_spelling_where_it_is_accepted_w17(size: int) -> None:
    part: Pairs = [("uow-id", b"a"), ("uow-seq", (2).to_bytes(size)), ("uow-count", (3).to_bytes(size))]
    assert group(part, families=(C,)) == [(b"a", 2, False, 3)]
    refusal = Reading([J]).read(part)
    assert isinstance(refusal, Refusal)
    assert (refusal.error, refusal.case) == (BadSequenceNumberError, "malformed")
    assert refusal.detail.endswith('looks like Camel\'s integer header uow-seq: accept_aliases = ["jms", "camel"]')


@pytest.mark.parametrize(
    ("families", "headers"),
    [
        ((J,), [("JMSXGroupID", b"a"), ("JMSXGroupSeq", b"\0\0\0\2"), ("JMS_IBM_Last_Msg_In_Group", b"true")]),
        ((J,), [("JMSXGroupID", b"a"), ("JMSXGroupSeq", b"\0" * 7 + b"\2"), ("JMS_IBM_Last_Msg_In_Group", b"true")]),
        ((W,), [("JMS_BEA_UnitOfWork", b"a"), ("JMS_BEA_UnitOfWorkSequenceNumber", b"\0\0\0\2"), ("uow-end", b"true")]),
        ((M,), [("mq-group-id", b"A"), ("mq-msg-seq-number", b"\0\0\0\2"), ("mq-msg-flags", b"\0\0\0\x18")]),
        ((N,), [("fragment.identifier", b"a"), ("fragment.index", b"\0\0\0\1"), ("uow-end", b"true")]),
        ((N1,), [("fragment.identifier", b"a"), ("fragment.index", b"\0\0\0\2"), ("uow-end", b"true")]),
    ],
)
def test_integers_of_4_or_8_bytes_are_read_in_every_family_w17(families: Any, headers: Pairs) -> None:
    assert group(headers, families=families) == [(b"a", 2, True, None)]


@pytest.mark.parametrize(("family", "first"), [(N, 0), (N1, 1)])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_nifi_s_parts_are_numbered_from_1_wherever_it_counts_from_w17(
    family: AliasFamily, first: int, count: int
) -> None:
    parts: list[Pairs] = [
        [("fragment.identifier", b"a"), ("fragment.index", b"%d" % (first + at)), ("fragment.count", b"%d" % count)]
        for at in range(count)
    ]
    assert group(*parts, families=(family,)) == [(b"a", at + 1, False, count) for at in range(count)]


def test_a_nifi_that_counts_otherwise_is_refused_by_its_first_or_last_part_and_told_so_w17() -> None:
    last: Pairs = [("fragment.identifier", b"a"), ("fragment.index", b"3"), ("fragment.count", b"3")]
    refusal = Reading([N, J]).read(last)
    assert isinstance(refusal, Refusal)
    assert (refusal.error, refusal.case) == (OutOfSequenceRangeError, "a")
    assert refusal.detail.endswith('SplitText and UnpackContent do: accept_aliases = ["jms", "nifi_from_1"]')
    first: Pairs = [("fragment.identifier", b"a"), ("fragment.index", b"0"), ("fragment.count", b"3")]
    refusal = Reading([N1]).read(first)
    assert isinstance(refusal, Refusal)
    assert (refusal.error, refusal.case) == (BadSequenceNumberError, "b")
    assert refusal.detail.endswith('SplitJson and SplitRecord do: accept_aliases = ["nifi"]')


@pytest.mark.parametrize("none", [bytes(24), b"0" * 48, None])
def test_a_message_of_mq_that_is_in_no_group_passes_w17(none: bytes | None) -> None:
    message: Pairs = [
        ("mq-group-id", none),
        ("mq-msg-seq-number", b"1"),
        ("mq-msg-flags", b"0"),
        ("mq-offset", b"0"),
    ]
    assert Reading([M]).read(message) is None
    assert group([*message, ("uow-id", b"a")], families=(M,)) == [(b"a", 1, False, None)], "another id counts"


def test_a_jms_message_of_mq_that_is_in_no_group_passes_w17() -> None:
    assert Reading([J]).read([("JMSXGroupID", b"ID:" + b"0" * 48), ("JMSXGroupSeq", b"1")]) is None


@pytest.mark.parametrize("unknown", [b"0", b"\0\0\0\0", None])
def test_a_size_of_0_says_that_spring_does_not_know_it_w17(unknown: bytes | None) -> None:
    part: Pairs = [("correlationId", b"a"), ("sequenceNumber", b"1"), ("sequenceSize", unknown)]
    assert group(part, families=(S,)) == [(b"a", 1, False, None)]
    assert isinstance(Reading().read([("uow-id", b"a"), ("uow-seq", b"1"), ("uow-count", b"0")]), Refusal), (
        "ours says it"
    )


def test_an_id_that_spring_wrote_as_json_is_its_text_w17() -> None:
    types = b'{"correlationId":"java.util.UUID","sequenceNumber":"java.lang.Integer"}'
    part: Pairs = [("correlationId", b'"a-b"'), ("sequenceNumber", b"1"), ("spring_json_header_types", types)]
    assert group(part, families=(S,)) == [(b"a-b", 1, False, None)]
    assert group(part[:2], families=(S,)) == [(b'"a-b"', 1, False, None)], "nothing says that it is JSON"
    assert Reading([S]).read([part[0], part[2]]) is None, "a correlation id alone"
    for odd in (b"x", b"[]", None, b'{"correlationId":'):
        assert group([*part[:2], ("spring_json_header_types", odd)], families=(S,)) == [(b'"a-b"', 1, False, None)]


@pytest.mark.parametrize(
    ("families", "headers", "told"),
    [
        ((J,), [("JMSXGroupID", b"a"), ("JMSXGroupSeq", b"x")], "JMSXGroupSeq; 'x'"),
        ((J,), [("JMSXGroupID", b"a")], ""),
        ((J,), [("JMSXGroupID", b"a"), ("JMSXGroupSeq", b"1"), ("JMS_IBM_Last_Msg_In_Group", b"y")], "JMS_IBM_Last"),
        ((S,), [("correlationId", b"a"), ("sequenceNumber", b"1"), ("sequenceSize", b"-1")], "sequenceSize; '-1'"),
        ((J,), [("JMSXGroupID", b"a"), ("JMSXGroupSeq", b"1"), ("JMSPriority", b"x")], "JMSPriority; "),
        ((), [("uow-id", b"a"), ("uow-seq", b"x")], "'x'"),
        ((), [("uow-id", b"a"), ("JMSXGroupSeq", b"1")], 'looks like JMS\'s JMSXGroupSeq: accept_aliases = ["jms"]'),
        (
            (W,),
            [("uow-id", b"a"), ("fragment.index", b"1")],
            'NiFi\'s fragment.index, if it counts from 0: accept_aliases = ["weblogic", "nifi"]',
        ),
        ((), [("uow-id", b"a"), ("destination", b"x"), ("correlationId", b"y")], ""),
    ],
)
def test_a_refusal_names_the_spelling_of_its_sender_w17_w34(families: Any, headers: Pairs, told: str) -> None:
    refusal = Reading(families).read(headers)
    assert isinstance(refusal, Refusal)
    assert told in refusal.detail
    assert bool(told) == bool(refusal.detail)
