"""Runs: a unit as neighbouring records, and what is wrong with records that are no run (W-12, W-14, W-116)."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest

from uow.schemas.error_classes import DecodeError
from uow.schemas.records import (
    ComponentRecord,
    Range,
    Reason,
    Source,
    UnitOutcome,
)
from uow.topics.headers import IN_RUN, OWN
from uow.topics.runs import (
    Pairs,
    Run,
    numbers_of,
    position_of,
    record_headers,
    unit_of,
)

HERE = Source("D.units", 0, 9)
COMPONENT = ComponentRecord(
    2, True, "c-2", b"k", b"v", (("uow-id", b"a"), ("mine", None)), 7, Source("D.components", 3, 8)
)
COMMON: Pairs = (
    ("uow-id", b"a"),
    ("uow-unit-id", b"u"),
    ("uow-generation", b"3"),
    ("uow-outcome", b"complete"),
    ("uow-reason", b"end"),
)


def said(position: int = 1, count: int = 2, common: Pairs = COMMON) -> list[tuple[str, bytes | None]]:
    return record_headers(common, COMPONENT, position, count, lambda name: not name.startswith("uow-"))


def said_before(position: int = 1, common: Pairs = COMMON) -> list[tuple[str, bytes | None]]:
    """A record as versions wrote it that told less."""
    return [
        (name, value)
        for name, value in said(position, common=common)
        if name not in IN_RUN and not name.startswith(OWN)
    ]


def begun(common: Pairs = COMMON) -> Run:
    return Run(unit_of(said(common=common), "D", 5), 4)


def test_a_run_is_taken_record_by_record_w116() -> None:
    run = begun((*COMMON, ("uow-expires-at", b"77")))
    assert (run.unit.id, run.unit.generation, run.unit.expires_at, run.unit.count) == ("a", 3, 77, 2)
    assert run.take(said(1), b"a", b"v", 11, Source("D.units", 0, 4)) == COMPONENT
    assert (run.is_whole, run.first, run.last) == (False, 4, 4)
    last = run.take(said(2), b"a", None, 12, HERE)
    assert (run.is_whole, run.last, last) == (True, 9, replace(COMPONENT, value=None))


def test_a_run_that_tells_less_is_taken_as_it_was_w116() -> None:
    run = begun((*COMMON, ("uow-expires-at", b"77")))
    first = run.take(said_before(1), b"a", b"one", 11, Source("D.units", 0, 4))
    assert (first.seq, first.end, first.component_id, first.source) == (1, False, "c-2", COMPONENT.source)
    assert (first.key, first.value, first.headers, first.timestamp) == (b"a", b"one", (("mine", None),), 11)
    last = run.take(said_before(2), b"a", None, 12, HERE)
    assert (run.is_whole, run.last, last.seq, last.end) == (True, 9, 2, True)


@pytest.mark.parametrize("name", ["uow-component-seq", "uow-component-at"])
def test_what_a_run_tells_of_a_component_and_cannot_be_read_is_told(name: str) -> None:
    with pytest.raises(DecodeError) as caught:
        begun().take([(each, b"x" if each == name else value) for each, value in said()], None, None, 0, HERE)
    assert caught.value.case == name


def test_a_record_that_does_not_say_where_it_came_from_is_where_it_is() -> None:
    headers = [pair for pair in said() if pair[0] not in ("uow-source", "uow-component-id")]
    component = begun().take(headers, None, None, 0, HERE)
    assert (component.source, component.component_id) == (HERE, None)


@pytest.mark.parametrize("raw", [None, b"", b"D.units", b"a/1/x", b"/1/2"])
def test_a_source_that_is_no_place_is_told(raw: bytes | None) -> None:
    with pytest.raises(DecodeError, match="no place of a record"):
        begun().take([("uow-source", raw)], None, None, 0, HERE)


OTHERS = [
    ([("mine", b"x")], "a record of no unit"),
    (said(1, common=(("uow-id", b"a"), ("uow-unit-id", b"w"))), "a record of unit w"),
    (said(1, common=(("uow-id", b"b"), ("uow-unit-id", b"u"))), "a record of unit u"),
    (said(2), "place 2/2"),
    (said(1, 3), "place 1/3"),
]


@pytest.mark.parametrize(("headers", "told"), OTHERS)
def test_what_is_not_the_next_record_is_a_breach_w12(headers: Pairs, told: str) -> None:
    assert (begun().breach(headers) or "").startswith(told)
    assert begun().breach(said(1)) is None


@pytest.mark.parametrize("raw", [None, b"", b"1", b"0/2", b"3/2", b"-1/2", b"1/2/3", b"01/2", b"1/99999999999"])
def test_a_place_that_cannot_be_is_told(raw: bytes | None) -> None:
    with pytest.raises(DecodeError, match="no place in a unit") as caught:
        position_of([("uow-pos", raw)])
    assert caught.value.case == "uow-pos"


BROKEN = {
    "uow-id": None,
    "uow-unit-id": None,
    "uow-generation": b"x",
    "uow-outcome": b"lost",
    "uow-reason": b"whim",
    "uow-missing": b"x",
    "uow-expires-at": b"1" * 19,
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_unit_header_that_cannot_be_read_is_told(name: str) -> None:
    headers = [(each, value) for each, value in said() if each != name]
    if BROKEN[name] is not None:
        headers.append((name, BROKEN[name]))
    with pytest.raises(DecodeError):
        unit_of(headers, "D", 0)


def test_numbers_follow_from_what_is_missing() -> None:
    assert [*islice(numbers_of(()), 3)] == [1, 2, 3]
    assert [*islice(numbers_of((Range(1, 2), Range(4, 4), Range(7, 2**31 - 1))), 3)] == [3, 5, 6]


@pytest.mark.parametrize("place", range(1, 8))
def test_numbers_may_be_asked_for_from_any_place(place: int) -> None:
    missing = (Range(1, 2), Range(4, 4), Range(7, 7))
    assert next(numbers_of(missing, place)) == [*islice(numbers_of(missing), 7)][place - 1]


def test_the_source_tells_whose_unit_it_is_w96() -> None:
    """Also where it was sent on to another destination."""
    assert unit_of(said(), "E", 0).destination == "D"
    assert unit_of([*said(), ("uow-source", b"elsewhere/0/1")], "E", 0).destination == "E"
    assert unit_of([pair for pair in said() if pair[0] != "uow-source"], "E", 0).destination == "E"


def test_only_a_complete_unit_closed_by_its_end_mark_has_one_where_no_header_tells() -> None:
    by_count = (*(pair for pair in COMMON if pair[0] != "uow-reason"), ("uow-reason", b"count"))
    run = begun(by_count)
    assert (run.unit.outcome, run.unit.reason) == (UnitOutcome.COMPLETE, Reason.COUNT)
    run.take(said_before(1), None, None, 0, HERE)
    assert not run.take(said_before(2), None, None, 0, HERE).end
