"""A unit as neighbours, or as places where its components are, instead of one record (W-12, W-114 to W-117, W-122, W-208)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from tests.core.script import (
    TOPICS,
    Seen,
    SeenError,
    Sent,
    Step,
    c,
    clock,
    given_up,
    is_unit,
    passed,
    plain,
    play,
    story,
    unit,
    unit_of,
)
from uow.processor.engine.ports import Output
from uow.schemas.checksum import reference_to
from uow.schemas.error_classes import UnitTooLargeError
from uow.schemas.records import (
    MAX_RANGES,
    ComponentRecord,
    Reason,
    Reference,
    Source,
    Unit,
    UnitOutcome,
)
from uow.topics import runs
from uow.topics.catalogue import HELD_LIMIT_BYTES
from uow.topics.policies import (
    AliasFamily,
    ExpirationPolicy,
    Oversize,
    Shape,
    ValueFormat,
)
from uow.topics.runs import Run, position_of

LIMIT = 8_000
BIG = "x" * 3_000
HUGE = "x" * 9_000


def runs_of(outputs: Sequence[Output]) -> list[Unit]:
    """The units of shape `consecutive` among what went to the terminal topic, each checked to be neighbours."""
    whole: list[Unit] = []
    components: list[ComponentRecord] = []
    run: Run | None = None
    for offset, output in enumerate(output for output in outputs if output.topic == TOPICS.units):
        if position_of(output.headers) is None:
            assert run is None, "something stands inside a run"
            continue
        if run is None:
            run, components = Run(runs.unit_of(output.headers, "D", 5), offset), []
        assert run.breach(output.headers) is None
        components.append(
            run.take(output.headers, output.key, output.value, 5, Source(TOPICS.units, output.partition, offset))
        )
        if run.is_whole:
            whole.append(replace(run.unit, components=tuple(components)))
            run = None
    assert run is None, "a run is not whole"
    return whole


@pytest.mark.parametrize("shape", Shape)
@pytest.mark.parametrize("order", [*permutations((1, 2, 3))])
def test_every_shape_has_the_components_in_order_whatever_order_they_came_in_w10_w12(
    shape: Shape, order: tuple[int, ...]
) -> None:
    assert play(*(c(number, end=number == 3) for number in order), shape=shape) == [unit(1, 2, 3)]


@pytest.mark.parametrize("shape", Shape)
def test_a_plain_record_neither_waits_for_a_unit_nor_splits_it_in_every_shape_w122(shape: Shape) -> None:
    script = [c(1), plain("one"), c(2, end=True), plain("two")]
    assert play(*script, shape=shape) == [passed("one"), unit(1, 2), passed("two")]
    played = story(*script, shape=shape)
    assert len(runs_of(played.outputs)) == (1 if shape is Shape.CONSECUTIVE else 0)


def test_consecutive_records_are_neighbours_on_the_units_own_partition_w12_w116() -> None:
    played = story(
        c(2, end=True, value="two", user=[("colour", "red")], priority=7, component_id="c-2", key=b"own"),
        c(1, value="one", user=[("colour", "blue"), ("JMSXGroupID", "a")], priority=1, count=2),
        shape=Shape.CONSECUTIVE,
        accept_aliases=frozenset({AliasFamily.JMS}),
    )
    first, second = [output for output in played.outputs if output.topic == TOPICS.units]
    assert (first.partition, first.key, first.value) == (0, b"a", b"one")
    assert (second.partition, second.key, second.value) == (0, b"a", b"two")
    common = [
        ("uow-id", b"a"),
        ("uow-kind", b"unit"),
        ("uow-unit-id", dict(first.headers)["uow-unit-id"]),
        ("uow-generation", b"1"),
        ("uow-outcome", b"complete"),
        ("uow-reason", b"end"),
        ("uow-size", b"2"),
        ("uow-priority", b"7"),
        ("uow-opened-at", b"1700000000000"),
        ("uow-closed-at", b"1700000000000"),
        ("uow-bytes", dict(first.headers)["uow-bytes"]),
    ]
    assert first.headers == [
        *common,
        ("uow-pos", b"1/2"),
        ("uow-source", b"D.components/0/1"),
        ("uow-component-seq", b"1"),
        ("uow-component-at", b"1700000000000"),
        ("uow-own-uow-id", b"a"),
        ("uow-own-uow-seq", b"1"),
        ("uow-own-uow-priority", b"1"),
        ("uow-own-uow-count", b"2"),
        ("colour", b"blue"),
        ("uow-own-JMSXGroupID", b"a"),
    ]
    assert second.headers == [
        *common,
        ("uow-pos", b"2/2"),
        ("uow-source", b"D.components/0/0"),
        ("uow-component-id", b"c-2"),
        ("uow-component-seq", b"2"),
        ("uow-component-end", b"true"),
        ("uow-component-at", b"1700000000000"),
        ("uow-component-key", b"own"),
        ("uow-own-uow-id", b"a"),
        ("uow-own-uow-seq", b"2"),
        ("uow-own-uow-end", b"true"),
        ("uow-own-uow-priority", b"7"),
        ("uow-own-uow-component-id", b"c-2"),
        ("colour", b"red"),
    ]


def test_a_run_read_again_has_what_its_components_had_w116() -> None:
    played = story(c(1, value="one", component_id="c"), c(2, end=True, value="two"), shape=Shape.CONSECUTIVE)
    (made,) = runs_of(played.outputs)
    (envelope,) = story(c(1, value="one", component_id="c"), c(2, end=True, value="two")).units
    assert (made.id, made.unit_id, made.destination) == (envelope.id, envelope.unit_id, envelope.destination)
    assert (made.outcome, made.reason, made.count, made.missing) == (UnitOutcome.COMPLETE, Reason.END, 2, ())
    for told, was in zip(made.components, envelope.components, strict=True):
        assert (told.seq, told.end, told.component_id) == (was.seq, was.end, was.component_id)
        assert (told.key, told.value, told.source) == (was.key, was.value, was.source)


def test_numbers_of_a_partial_run_follow_from_what_is_missing_w116() -> None:
    options = {"incomplete_expiration_ms": 10_000, "expiration_policy": ExpirationPolicy.DELIVER_PARTIAL}
    script = [c(2), c(3), c(6), clock(11)]
    assert play(*script, shape=Shape.CONSECUTIVE, **options) == [unit(2, 3, 6, outcome="partial", missing="1,4-5,7-")]
    (made,) = runs_of(story(*script, shape=Shape.CONSECUTIVE, **options).outputs)
    assert [component.seq for component in made.components] == [2, 3, 6]
    assert [component.end for component in made.components] == [False] * 3


def test_more_gaps_than_a_header_should_hold_are_named_by_the_first_record_alone_w116() -> None:
    numbers = range(1, 2 * MAX_RANGES + 20, 2)
    played = story(
        *map(c, numbers),
        clock(11),
        shape=Shape.CONSECUTIVE,
        incomplete_expiration_ms=10_000,
        expiration_policy=ExpirationPolicy.DELIVER_PARTIAL,
    )
    (made,) = runs_of(played.outputs)
    assert [component.seq for component in made.components] == [*numbers]
    sizes = [
        len(dict(output.headers)["uow-missing"] or b"") for output in played.outputs if output.topic == TOPICS.units
    ]
    assert sizes[0] > sizes[1] == sizes[-1]


@pytest.mark.parametrize("value_format", ValueFormat)
def test_reference_lists_places_lengths_and_checksums_instead_of_content_w117(value_format: ValueFormat) -> None:
    script = [c(2, end=True, value="two", component_id="c-2"), plain(), c(1, value="123456789")]
    played = story(*script, shape=Shape.REFERENCE, value_format=value_format)
    (made,) = played.units
    (whole,) = story(*script).units
    assert made.components[0].reference == Reference(9, 0xE3069283)
    for told, was in zip(made.components, whole.components, strict=True):
        assert (told.seq, told.end, told.component_id) == (was.seq, was.end, was.component_id)
        assert (told.timestamp, told.source) == (was.timestamp, was.source)
        assert (told.key, told.value, told.headers) == (None, None, ())
        assert told.reference == reference_to(was.value)
    assert (made.unit_id, made.count, made.bytes) == (whole.unit_id, whole.count, whole.bytes)


def test_null_value_is_told_from_an_empty_one_by_its_length_w117() -> None:
    sent = Sent([("uow-id", b"a"), ("uow-seq", b"1"), ("uow-end", b"true")], None, b"a")
    (made,) = story(sent, shape=Shape.REFERENCE).units
    assert made.components[0].reference == Reference(-1, 0)
    assert reference_to(b"") == Reference(0, 0)


def three_big(id: str) -> list[Step]:
    return [c(1, id=id, value=BIG), c(2, id=id, value=BIG), c(3, id=id, value=BIG, end=True)]


@pytest.mark.parametrize(
    ("oversize", "expected"),
    [
        (Oversize.FAIL, [given_up(number, "failed", "limit", "", UnitTooLargeError) for number in (1, 2, 3)]),
        (Oversize.CONSECUTIVE, [unit(1, 2, 3)]),
        (Oversize.REFERENCE, [unit(1, 2, 3)]),
    ],
)
@pytest.mark.parametrize("value_format", ValueFormat)
def test_envelope_over_the_record_limit_follows_oversize_and_the_next_group_is_an_envelope_w114_w115_w208(
    oversize: Oversize, expected: list[Seen], value_format: ValueFormat
) -> None:
    options = {"oversize": oversize, "value_format": value_format, "record_limit_bytes": LIMIT}
    script = [*three_big("a"), c(1, id="b", end=True)]
    assert play(*script, **options) == [*expected, unit(1, id="b")]
    *_, small = outputs = [output for output in story(*script, **options).outputs if is_unit(output)]
    assert position_of(small.headers) is None
    assert unit_of(small).components[0].value == b"value b'1'"
    for large in outputs[:-1]:
        assert (position_of(large.headers) is not None) == (oversize is Oversize.CONSECUTIVE)
        assert (unit_of(large).components[0].reference is not None) == (oversize is Oversize.REFERENCE)


def test_a_unit_that_only_turns_out_too_large_for_one_record_is_no_run_of_too_many_either() -> None:
    options = {"oversize": Oversize.CONSECUTIVE, "record_limit_bytes": LIMIT}
    failed = [given_up(number, "failed", "limit", "", UnitTooLargeError) for number in (1, 2, 3)]
    assert play(*three_big("a"), max_run_components=2, **options) == failed
    assert play(*three_big("a"), max_run_components=3, **options) == [unit(1, 2, 3)]


@pytest.mark.parametrize("shape", [Shape.CONSECUTIVE, Shape.REFERENCE])
def test_unit_whose_own_shape_cannot_hold_it_fails_alone_w115(shape: Shape) -> None:
    """One component is larger than any record, or the list of places is."""
    script: list[Step] = (
        [c(1, value=HUGE, end=True)]
        if shape is Shape.CONSECUTIVE
        else [c(number, end=number == 200) for number in range(1, 201)]
    )
    seen = play(*script, c(1, id="b", end=True), shape=shape, record_limit_bytes=LIMIT)
    assert {one.failure for one in seen[:-1] if isinstance(one, SeenError)} == {"failed"}
    assert seen[-1] == unit(1, id="b")


@pytest.mark.parametrize("policy", [{"shape": Shape.CONSECUTIVE}, {"oversize": Oversize.REFERENCE}])
def test_group_may_hold_more_than_a_record_where_its_unit_need_not_fit_one_w208(policy: dict[str, Any]) -> None:
    big = "x" * (HELD_LIMIT_BYTES // 2)
    script = [c(1, value=big), c(2, value=big), c(3, value=big, end=True)]
    assert play(*script, max_bytes=10 * HELD_LIMIT_BYTES, **policy) == [unit(1, 2, 3)]
    assert isinstance(play(*script, max_bytes=10 * HELD_LIMIT_BYTES)[0], SeenError)
    assert isinstance(play(*script[:2], max_bytes=10 * HELD_LIMIT_BYTES)[0], SeenError), "it waits for no end"


@pytest.mark.parametrize("shape", [Shape.CONSECUTIVE, Shape.REFERENCE])
@pytest.mark.parametrize("more", [{}, {"component_id": "c-2"}])
def test_component_that_no_record_of_ours_takes_fails_its_group_in_every_shape_w115(
    shape: Shape, more: dict[str, str]
) -> None:
    script = [c(1), c(2, value="x" * HELD_LIMIT_BYTES, end=True, **more)]
    seen = play(*script, max_bytes=10 * HELD_LIMIT_BYTES, shape=shape)
    assert seen[0] == given_up(1, "failed", "limit", "", UnitTooLargeError)


@pytest.mark.parametrize("shape", [Shape.CONSECUTIVE, Shape.REFERENCE])
def test_unit_id_is_the_same_in_every_shape_w90(shape: Shape) -> None:
    script = [c(1), c(2, end=True)]
    (here,), (envelope,) = (story(*script, shape=each).unit_headers for each in (shape, Shape.ENVELOPE))
    assert here["uow-unit-id"] == envelope["uow-unit-id"]
