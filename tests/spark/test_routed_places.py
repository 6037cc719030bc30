"""Records of routers' inputs are each in one place, or named: no Spark and no broker (B-203)."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.fake_record import UNREADABLE_HEADERS, FakeRecord
from uow.spark_sink.routed_places import BITS, InputRange, Judgement, Places, Wrong, judge, traces

STOCK = ("stock", 0)


def places(*offsets: int, partition: int = 0) -> Places:
    found = Places()
    for offset in offsets:
        found.note("stock", partition, offset)
    return found


def judged(there: Places, found: Places, start: int = 0, end: int = 10, last: int = 20, **more: Any) -> Judgement:
    return judge({STOCK: InputRange(start, end, last, **more)}, there, found)


def named(judgement: Judgement) -> list[tuple[Wrong, int]]:
    return [(what, offset) for what, _, _, offset in judgement.examples]


def component(place: bytes | None, *after: tuple[str, bytes], before: Any = ()) -> FakeRecord:
    return FakeRecord(0, [*before, ("uow-id", b"r/x"), ("uow-input", place), *after])


def test_each_record_that_is_found_once_is_right_whatever_the_holes_between_them() -> None:
    result = judged(places(1, 2, 7), places(7, 1, 2))
    assert (result.received, result.counts, result.early) == ({"stock": 3}, {}, {})


def test_a_lost_a_doubled_and_an_unknown_record_are_named_by_their_place() -> None:
    result = judged(places(1, 2, 3), places(2, 3, 3, 3, 5, 25))
    assert named(result) == [(Wrong.LOST, 1), (Wrong.DOUBLED, 3), (Wrong.UNKNOWN, 5), (Wrong.UNKNOWN, 25)]
    assert result.counts == {Wrong.LOST: 1, Wrong.DOUBLED: 1, Wrong.UNKNOWN: 2}


def test_what_becomes_of_records_behind_the_routers_position_waits_for_the_next_audit() -> None:
    first = judged(places(1, 12), places(1, 12, 13, 13))
    assert (named(first), first.received) == ([], {"stock": 1})
    second = places()
    for block, (once, again) in first.early.items():
        second.add(block, once, again)
    later = judge({STOCK: InputRange(10, 15, 20, judged=10)}, places(12, 13, 14), second)
    assert named(later) == [(Wrong.LOST, 14), (Wrong.DOUBLED, 13)]


def test_something_made_of_a_record_once_more_after_it_was_judged_is_named() -> None:
    assert named(judged(places(5), places(2, 5), start=4, judged=4)) == [(Wrong.DOUBLED, 2)]
    assert named(judged(places(5), places(2, 5), start=4)) == [], "the input's retention took the record"


def test_what_retention_may_have_taken_is_counted_and_not_called_lost() -> None:
    result = judged(places(1, 2, 6, 7), places(2, 7), floor=3)
    assert (named(result), result.unjudged) == ([(Wrong.LOST, 6)], 1)
    assert judge({STOCK: InputRange(0, 10, 20)}, places(), places(4), ["stock"]).counts == {}, "compaction"


def test_inputs_that_nobody_asked_for_are_not_looked_at_and_a_huge_offset_is_no_place() -> None:
    assert judged(places(), places(3, partition=1)).counts == {}
    assert named(judged(places(), places(10**18))) == [(Wrong.UNKNOWN, 10**18)]


@pytest.mark.parametrize("seed", range(20))
def test_the_bits_say_what_sets_and_counts_say(seed: int) -> None:
    rnd = Random(seed)
    there = {rnd.randrange(3 * BITS) for _ in range(300)}
    found = [offset for offset in sorted(there) for _ in range(rnd.choice([1, 1, 1, 1, 0, 2]))]
    found += [rnd.randrange(4 * BITS) for _ in range(3)]
    start, end, last = sorted(rnd.randrange(4 * BITS) for _ in range(3))
    floor = rnd.choice([0, rnd.randrange(4 * BITS)])
    halves = places(*found[::2]), places(*found[1::2])
    for block, bits in halves[1].blocks.items():
        halves[0].add(block, *bits)
    result = judged(places(*there), halves[0], start, end, last, floor=floor)
    here = {offset for offset in there if start <= offset < end}
    lost = here.difference(found)
    assert result.received == {"stock": len(here)}
    assert result.unjudged == sum(offset < floor for offset in lost)
    doubled = {offset for offset in found if found.count(offset) > 1 and offset < end}
    unknown = {offset for offset in found if start <= offset < end and offset not in there} | {
        o for o in found if o >= last
    }
    wanted = {Wrong.LOST: {o for o in lost if o >= floor}, Wrong.DOUBLED: doubled, Wrong.UNKNOWN: unknown}
    assert result.counts == {what: len(some) for what, some in wanted.items() if some}
    assert {what: {o for w, o in named(result) if w is what} <= some for what, some in wanted.items()} == dict.fromkeys(
        wanted, True
    )
    early = sum(once.bit_count() for once, _ in result.early.values())
    assert early == len({offset for offset in found if end <= offset < last})
    assert halves[0].lowest() == {STOCK: min(found)}


def test_a_component_says_of_which_record_it_is_and_a_copy_says_nothing() -> None:
    records = [
        component(b"stock/0/17"),
        component(b"stock/0/18", ("uow-rerouted", b"1")),
        component(b"stock/0/19", ("uow-resubmitted", b"D.rejected/0/1")),
        FakeRecord(0, None),
        FakeRecord(0, [("uow-id", b"unit"), ("uow-seq", b"1")]),
        FakeRecord(0, UNREADABLE_HEADERS),
    ]
    assert [*traces(records)] == [("stock", 0, 17)]


def test_what_a_sender_wrote_into_an_input_hides_no_record() -> None:
    hostile = [("uow-rerouted", b"1"), ("uow-resubmitted", b"x"), ("uow-input", b"stock/0/3")]
    assert [*traces([component(b"stock/0/17", before=hostile)])] == [("stock", 0, 17)]


@pytest.mark.parametrize(
    "place", [None, b"", b"stock", b"stock/0", b"stock/x/1", b"stock/0/-1", b"\xff/0/x", b"stock/0/1e3"]
)
def test_a_place_that_is_none_is_no_trace(place: bytes | None) -> None:
    assert [*traces([component(place)])] == []
