"""Components that come in pieces: joined before lines 8 to 15 of the table (B-124)."""

from __future__ import annotations

from itertools import pairwise, permutations
from random import Random
from typing import Any

import pytest

from tests.core.script import Sent, Story, bare, c, clock, given_up, play, refused, story, told, unit
from uow.processor.core.segments import Segments
from uow.schemas.component import encode_component
from uow.schemas.error_classes import (
    DecodeError,
    DuplicateSequenceNumberError,
    OutOfSequenceRangeError,
    UnitClosedError,
    UnitTooLargeError,
)
from uow.schemas.records import ComponentRecord, Source
from uow.topics.headers import Segment
from uow.topics.policies import AliasFamily, DuplicatePolicy, ExpirationPolicy, LatePolicy, Oversize, Shape

TEXT = "a component whose value is cut into pieces"
REDIRECT: Any = {"expiration_policy": ExpirationPolicy.REDIRECT, "incomplete_expiration_ms": 10_000}


def piece(seq: int, place: int, value: str = "", last: bool = False, **more: Any) -> Sent:
    """A piece of a component."""
    sent = c(seq, segment_at=place, **({"segment_end": True} if last else {}), **more)
    return Sent(sent.headers, value.encode(), sent.key, sent.at)


def cut(seq: int, *at: int, text: str = TEXT, **more: Any) -> list[Sent]:
    """A whole component in pieces that begin at these positions."""
    bounds = [0, *at, len(text)]
    return [piece(seq, a, text[a:b], b == len(text), **more) for a, b in pairwise(bounds)]


def values(played: Story) -> list[list[bytes | None]]:
    return [[component.value for component in each.components] for each in played.units]


@pytest.mark.parametrize("seed", range(5))
def test_components_in_pieces_make_a_unit_of_whole_ones_in_any_order(seed: int) -> None:
    """Four components, three of them in pieces."""
    script = [*cut(1, 5, 20), c(2, value="whole"), *cut(3, 1), *cut(4, 7, 8, 9, end=True)]
    Random(seed).shuffle(script)
    assert play(*script) == [unit(1, 2, 3, 4)]
    whole = TEXT.encode()
    assert values(story(*script)) == [[whole, b"whole", whole, whole]]


def test_a_component_in_pieces_has_the_headers_of_its_first_byte_and_the_place_of_the_last_arrival() -> None:
    first = piece(1, 0, "ab", user=[("mine", "of the first")], component_id="m", end=True, priority=7)
    last = piece(1, 2, "cd", last=True, user=[("mine", "of the last")])
    made = story(last, first, poll=1).units[0].components[0]
    assert dict(made.headers) == {
        "uow-id": b"a",
        "uow-seq": b"1",
        "uow-end": b"true",
        "uow-component-id": b"m",
        "uow-priority": b"7",
        "mine": b"of the first",
    }
    assert (made.value, made.component_id, made.source.offset) == (b"abcd", "m", 1)
    again = story(first, last).units[0].components[0]
    assert (again.headers, again.source.offset) == (made.headers, 1)


def test_a_gap_waits() -> None:
    pieces = cut(1, 5, 20, end=True)
    played = story(pieces[0], pieces[2])
    assert played.seen == []
    assert played.open == {"a": ""}
    assert (played.counts.open, played.counts.joined) == (2, 0)
    assert played.send(pieces[1]) == [unit(1)]
    assert (played.counts.open, played.counts.joined, played.counts.delivered) == (0, 2, 1)


@pytest.mark.parametrize("order", [*permutations(range(4))])
def test_pieces_that_overlap_with_equal_bytes_are_joined(order: tuple[int, ...]) -> None:
    """A sender that begins again may cut elsewhere."""
    pieces = [
        piece(1, 0, TEXT[:10], end=True),
        piece(1, 4, TEXT[4:12]),
        piece(1, 8, TEXT[8:20]),
        piece(1, 15, TEXT[15:], True),
    ]
    played = story(*[pieces[index] for index in order])
    assert [each for each in played.seen if each == unit(1)] == [unit(1)]
    assert values(played) == [[TEXT.encode()]]


@pytest.mark.parametrize(
    ("before", "last"),
    [
        ([piece(1, 0, "abc")], piece(1, 1, "XY")),
        ([piece(1, 0, "abc"), piece(1, 5, "fg")], piece(1, 2, "cdeX")),
        ([piece(1, 3, "def", True)], piece(1, 5, "fg")),
        ([piece(1, 3, "def", True)], piece(1, 0, "abc", True)),
        ([piece(1, 3, "def")], piece(1, 0, "abc", True)),
        ([c(1, value="abc")], piece(1, 1, "X")),
        ([c(1, value="abc")], piece(1, 2, "cd")),
    ],
)
def test_a_piece_with_other_bytes_is_a_conflict(before: list[Sent], last: Sent) -> None:
    assert play(*before, last) == [refused(last, DuplicateSequenceNumberError, "conflict")]


def test_a_piece_that_says_nothing_new_is_a_duplicate_or_a_resend() -> None:
    first, again = piece(1, 0, "abc"), piece(1, 1, "b")
    assert play(first, again) == [refused(again, DuplicateSequenceNumberError, "duplicate")]
    assert play(first, again, duplicate_policy=DuplicatePolicy.DROP_IDENTICAL) == []
    whole = c(1, value="abc", component_id="m")
    late = piece(1, 0, "ab", component_id="m")
    assert play(whole, late) == [refused(late, DuplicateSequenceNumberError, "resend")]
    assert play(whole, again) == [refused(again, DuplicateSequenceNumberError, "duplicate")]


def test_a_whole_component_takes_the_place_of_its_pieces() -> None:
    played = story(piece(1, 0, "ab"), c(1, value="abcd", end=True), poll=1)
    assert played.seen == [unit(1)]
    assert played.counts.joined == 1


def test_an_end_known_holds_for_pieces() -> None:
    above = piece(3, 0, "ab")
    assert play(c(2, end=True), above) == [refused(above, OutOfSequenceRangeError, "a")]
    last = piece(2, 2, "cd", True)
    assert play(c(3), piece(2, 0, "ab", end=True), last) == [refused(last, OutOfSequenceRangeError, "b")]


def test_a_piece_of_a_closed_unit_is_late() -> None:
    late = piece(1, 0, "ab", at=20)
    assert play(c(2, at=0), late, **REDIRECT)[-1] == refused(late, UnitClosedError, "expired")
    reopened = story(c(2, at=0), late, late_policy=LatePolicy.REOPEN, **REDIRECT)
    assert (reopened.open, reopened.counts.open) == ({"a": ""}, 1)


def test_pieces_of_components_that_never_were_whole_go_to_the_errors() -> None:
    script = [c(1, at=0), piece(2, 0, "ab"), piece(2, 5, "fg", True), clock(11)]
    gone = [given_up(2, "expired", "age", "2-")] * 2
    assert play(*script, **REDIRECT) == [*gone, given_up(1, "expired", "age", "2-")]
    partial = REDIRECT | {"expiration_policy": ExpirationPolicy.DELIVER_PARTIAL}
    gone = [given_up(2, "failed", "age", "2-")] * 2
    assert play(*script, **partial) == [*gone, unit(1, outcome="partial", missing="2-")]
    assert play(*script[1:], **partial) == [given_up(2, "expired", "age", "1-")] * 2


def test_bytes_of_pieces_count_against_the_limit_of_the_unit() -> None:
    half = "x" * 300
    script = [piece(1, 0, half), piece(2, 0, half)]
    gone = [given_up(number, "failed", "limit", "1-") for number in (1, 2)]
    assert play(*script, max_bytes=900) == []
    assert play(*script, max_bytes=700) == gone
    whole = [*cut(1, 300, text=2 * half), c(2, value="y", end=True)]
    assert play(*whole, max_bytes=900) == [unit(1, 2)], "joined they count once"
    third = play(piece(1, 0, half), c(2, value=half), max_bytes=700)
    assert given_up(2, "failed", "limit", "1,3-", error=UnitTooLargeError) in third


def test_commands_meet_a_group_of_nothing_but_pieces() -> None:
    for verb, seq in (("release", None), ("declare-end", 1), ("waive", "1")):
        played = story(piece(1, 0, "ab"), told(verb, seq=seq))
        assert played.seen == []
        assert not played.answers[0].done
        assert "pieces" in played.answers[0].text
    assert play(piece(1, 0, "ab"), told("cancel")) == [given_up(1, "cancelled", "command", "1-")]
    partial = {"expiration_policy": ExpirationPolicy.DELIVER_PARTIAL}
    assert play(piece(1, 0, "ab"), told("expire"), **partial) == [given_up(1, "expired", "command", "1-")]


@pytest.mark.parametrize(
    ("headers", "case"),
    [
        ({"segment_at": "x"}, "uow-segment-at"),
        ({"segment_at": "-1"}, "uow-segment-at"),
        ({"segment_end": True}, "uow-segment-at"),
        ({"segment_at": 0, "segment_end": "maybe"}, "uow-segment-end"),
    ],
)
def test_unreadable_places_are_refused(headers: dict[str, Any], case: str) -> None:
    sent = c(1, **headers)
    assert play(sent) == [refused(sent, DecodeError, case)]


@pytest.mark.parametrize("settings", [{"shape": Shape.REFERENCE}, {"oversize": Oversize.REFERENCE}])
def test_where_units_may_refer_to_records_a_component_is_one(settings: dict[str, Any]) -> None:
    sent = piece(1, 0, "ab")
    assert play(sent, **settings) == [refused(sent, DecodeError, "uow-segment-at")]


def test_an_empty_component_may_come_as_one_piece_or_behind_its_last_one() -> None:
    assert values(story(piece(1, 0, "", True, end=True))) == [[b""]]
    assert values(story(piece(1, 2, "", True), piece(1, 0, "ab", end=True))) == [[b"ab"]]


def mq(seq: int, flags: int, at: int, value: str) -> Sent:
    said = {"mq-group-id": "4d51", "mq-msg-seq-number": seq, "mq-msg-flags": flags, "mq-offset": at}
    return bare([(name, str(each).encode()) for name, each in said.items()], value.encode(), b"4d51")


def test_segments_of_mq_say_so_by_flags() -> None:
    """MQMF_SEGMENT 2, MQMF_LAST_SEGMENT 4, MQMF_LAST_MSG_IN_GROUP 16; a message that is no segment has offset 0 as well."""
    script = [mq(2, 2 | 16, 0, "ab"), mq(1, 0, 0, "whole"), mq(2, 4 | 2 | 16, 2, "cd")]
    families = frozenset({AliasFamily.MQ})
    assert values(story(*script, accept_aliases=families)) == [[b"whole", b"abcd"]]
    assert play(*script, accept_aliases=families) == [unit(1, 2, id="4d51")]


def test_a_value_is_told_by_the_bytes_that_cover_it_whatever_came_twice() -> None:
    rnd = Random(1)
    for _ in range(200):
        held, text = Segments(), bytes(rnd.choices(b"abc", k=30))
        for slot in range(2_000):
            first = rnd.randrange(30)
            last = rnd.randrange(first, 31)
            place = Segment(first, last == 30)
            found = held.overlap(1, place, text[first:last])
            assert not found.conflict
            whole = held.joined(1, place, text[first:last])
            assert whole in (None, text)
            if whole is not None:
                break
            if not found.is_duplicate:
                headers = (
                    ("uow-segment-at", b"%d" % first),
                    ("uow-segment-end", b"%s" % str(place.end).lower().encode()),
                )
                body = ComponentRecord(1, False, None, None, text[first:last], headers, 0, Source("t", 0, slot))
                held.add(held.next_slot, encode_component(body))
        else:
            pytest.fail("so many pieces cover thirty bytes")
