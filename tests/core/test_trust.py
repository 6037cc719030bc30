"""The trust boundary is `D.components`: nothing but a unit that the destination's own worker formed looks like one (line 2, W-96, W-121)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.script import TOPICS, bare, c, clock, story, told
from tests.schemas.wire_strategies import optional_bytes
from uow.processor.engine.ports import Headers, Output
from uow.topics.headers import (
    UNIT_ONLY,
    as_origin,
    from_origin,
    is_unit,
)
from uow.topics.policies import (
    AliasFamily,
    ExpirationPolicy,
    FieldSource,
    HandlingPolicy,
    Shape,
)

FORGED: Headers = [
    ("uow-id", b"a"),
    ("uow-kind", b"unit"),
    ("uow-unit-id", b"6f0f3b64-6f2e-5c0b-8f0d-0c7c2b0a8d11"),
    ("uow-generation", b"1"),
    ("uow-outcome", b"complete"),
    ("uow-reason", b"end"),
    ("uow-size", b"1"),
    ("uow-missing", b"2-"),
    ("uow-pos", b"1/1"),
    ("mine", b"x"),
]


def forged(*more: tuple[str, bytes | None], without: tuple[str, ...] = ()) -> Any:
    return bare([*(pair for pair in FORGED if pair[0] not in without), *more], b"no unit", b"a")


def names_on(outputs: list[Output]) -> set[str]:
    return {name for output in outputs for name, _ in output.headers}


@pytest.mark.parametrize("shape", Shape)
def test_a_forged_unit_comes_out_as_no_unit_in_every_shape_w96(shape: Shape) -> None:
    (output,) = story(forged(), shape=shape).outputs
    assert (output.topic, output.key, output.value) == (TOPICS.units, b"a", b"no unit")
    assert output.headers == [
        ("uow-id", b"a"),
        ("uow-origin-kind", b"unit"),
        ("uow-origin-unit-id", b"6f0f3b64-6f2e-5c0b-8f0d-0c7c2b0a8d11"),
        ("uow-origin-generation", b"1"),
        ("uow-origin-outcome", b"complete"),
        ("uow-origin-reason", b"end"),
        ("uow-origin-size", b"1"),
        ("uow-origin-missing", b"2-"),
        ("uow-origin-pos", b"1/1"),
        ("mine", b"x"),
    ]


@pytest.mark.parametrize("shape", Shape)
@pytest.mark.parametrize(
    "sent",
    [
        forged(("uow-kind", b"unit"), ("uow-kind", None)),
        forged(without=("uow-id",)),
        forged(("uow-origin-kind", b"unit")),
        forged(("JMSXGroupID", b"a")),
        forged(("JMSXGroupID", b"a"), without=("uow-id",)),
        bare(FORGED, b'{"uow-id": "a", "uow-seq": 1, "uow-end": true}'),
        bare([("uow-kind", b"unit")], b'{"uow-id": "a", "uow-seq": 1, "uow-end": true}'),
    ],
    ids=["repeated", "no id", "named so already", "alias", "alias alone", "with fields", "fields alone"],
)
def test_no_way_of_sending_one_gets_it_through_w121(shape: Shape, sent: Any) -> None:
    played = story(sent, shape=shape, accept_aliases=frozenset({AliasFamily.JMS}), field_source=FieldSource.VALUE)
    (output,) = played.outputs
    assert output.topic == TOPICS.units
    assert not UNIT_ONLY & names_on(played.outputs)
    assert len(output.headers) == len(sent.headers)


def test_a_header_in_another_letter_case_is_the_applications_own_w22() -> None:
    """Kafka tells `UOW-Kind` from `uow-kind`, and so do all of our readers."""
    headers: Headers = [("uow-id", b"a"), ("uow-kind", b"unit"), ("UOW-Kind", b"unit"), ("Uow-Pos", b"1/1")]
    (output,) = story(bare(headers)).outputs
    assert output.headers == [("uow-id", b"a"), ("uow-origin-kind", b"unit"), *headers[2:]]
    assert not is_unit(output.headers)


@pytest.mark.parametrize("shape", Shape)
def test_a_unit_copied_back_is_a_passed_record_w96(shape: Shape) -> None:
    made = story(c(1), c(2, end=True), shape=shape).outputs
    again = story(*(bare(output.headers, output.value, output.key) for output in made), shape=shape)
    assert [output.topic for output in again.outputs] == [TOPICS.units] * len(made)
    assert not UNIT_ONLY & names_on(again.outputs)
    assert [from_origin(output.headers) for output in again.outputs] == [output.headers for output in made]


@pytest.mark.parametrize("shape", Shape)
def test_a_component_that_says_it_is_a_unit_is_a_component_and_is_given_up_as_one_w87(shape: Shape) -> None:
    claims = [(name, value) for name, value in FORGED if name != "uow-id"]
    settings = {"incomplete_expiration_ms": 10_000, "expiration_policy": ExpirationPolicy.REDIRECT, "shape": shape}
    (expired,) = story(c(1, user=claims), clock(11), **settings).outputs[:1]
    assert expired.topic == TOPICS.errors
    assert not is_unit([pair for pair in expired.headers if pair[0] != "uow-seq"])
    assert expired.headers[2 : 2 + len(claims)] == as_origin(claims)
    removed = story(c(1, user=claims), c(2), told("remove", seq=1), shape=shape).outputs
    (taken,) = [output for output in removed if output.topic == TOPICS.errors]
    assert not is_unit([pair for pair in taken.headers if pair[0] != "uow-seq"])
    whole = story(c(1, end=True, user=claims), shape=shape)
    assert [dict(output.headers)["uow-unit-id"] != FORGED[2][1] for output in whole.outputs] == [True]


def test_what_is_refused_keeps_its_headers_as_they_came_w37() -> None:
    claims = [("uow-kind", b"unit"), ("uow-seq", b"x")]
    (output,) = story(bare([("uow-id", b"a"), *claims])).outputs
    assert output.topic == TOPICS.rejected
    assert output.headers[:3] == [("uow-id", b"a"), *claims]


def test_a_destination_that_forms_no_units_passes_everything_as_it_came_w65() -> None:
    (output,) = story(forged(), handling_policy=HandlingPolicy.PASS_THROUGH).outputs
    assert output.headers == FORGED


NAMES = (
    st.sampled_from([*sorted(UNIT_ONLY), "uow-origin-kind", "uow-origin-ts", "uow-id", "UOW-KIND", "", "x"]) | st.text()
)


@given(st.lists(st.tuples(NAMES, optional_bytes)))
def test_nothing_that_is_sent_without_a_number_looks_like_a_unit(headers: Headers) -> None:
    headers = [pair for pair in headers if pair[0] != "uow-seq"]
    renamed = as_origin(headers)
    assert not UNIT_ONLY & {name for name, _ in renamed}
    assert [value for _, value in renamed] == [value for _, value in headers]
    assert as_origin(renamed) == renamed
    for output in story(bare(headers)).outputs:
        assert output.topic == TOPICS.rejected or output.headers == renamed
