"""`late_policy = "amend"`: a component that comes late makes the unit once more, if that was delivered in part (B-205)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.script import c, clock, given_up, play, refused, story, told, unit
from uow.schemas.error_classes import (
    BadSequenceNumberError,
    DuplicateSequenceNumberError,
    OutOfSequenceRangeError,
    UnitClosedError,
)
from uow.topics.policies import DuplicatePolicy, ExpirationPolicy, LatePolicy, OutcomesPolicy, Shape, ViolationPolicy

AMEND: dict[str, Any] = {
    "late_policy": LatePolicy.AMEND,
    "expiration_policy": ExpirationPolicy.DELIVER_PARTIAL,
    "incomplete_expiration_ms": 10_000,
}
PARTIAL = (c(1, at=0), c(2, at=1), clock(11))
BEFORE = unit(1, 2, outcome="partial", missing="3-")


def test_a_late_component_makes_a_corrected_unit_of_the_next_generation_b205() -> None:
    assert play(*PARTIAL, c(3, end=True, at=20), **AMEND) == [BEFORE, unit(1, 2, 3)]
    played = story(*PARTIAL, c(3, end=True, at=20), **AMEND)
    first, second = played.units
    assert (second.generation, second.opened_at, second.closed_at - second.opened_at) == (2, first.opened_at, 20_000)
    said = [headers.get("uow-supersedes") for headers in played.unit_headers]
    assert said == [None, first.unit_id.encode()]
    assert second.unit_id != first.unit_id
    assert [(each.outcome, each.supersedes) for each in played.outcomes] == [
        ("partial", None),
        ("complete", first.unit_id),
    ]
    assert (played.counts.delivered, played.counts.corrected) == (3, 1)


def test_each_late_component_corrects_the_unit_before_b205() -> None:
    script = (*PARTIAL, c(4, end=True, at=20), c(3, at=21))
    assert play(*script, **AMEND) == [BEFORE, unit(1, 2, 4, outcome="partial", missing="3"), unit(1, 2, 3, 4)]
    played = story(*script, **AMEND)
    ids = [made.unit_id for made in played.units]
    assert [headers.get("uow-supersedes") for headers in played.unit_headers[1:]] == [each.encode() for each in ids[:2]]
    assert [each.generation for each in played.units] == [1, 2, 3]
    assert [each.reason for each in played.units] == ["age", "age", "end"]
    assert not played.task.partition.kept


def test_what_the_unit_has_and_what_contradicts_it_is_judged_as_in_an_open_group_b205() -> None:
    again, beyond = c(2, at=20), c(5, at=22)
    changed = c(2, value="other", at=20)
    script = (*PARTIAL, again, changed, c(4, end=True, at=21), beyond)
    assert play(*script, **AMEND) == [
        BEFORE,
        refused(again, DuplicateSequenceNumberError, "duplicate"),
        refused(changed, DuplicateSequenceNumberError, "conflict"),
        unit(1, 2, 4, outcome="partial", missing="3"),
        refused(beyond, OutOfSequenceRangeError, "a"),
    ]
    silent = AMEND | {"duplicate_policy": DuplicatePolicy.DROP_IDENTICAL}
    assert play(*PARTIAL, again, **silent) == [BEFORE]


def test_a_contradiction_does_not_fail_the_unit_that_is_delivered_b205() -> None:
    wrong = c(1, value="other", at=20)
    assert play(*PARTIAL, wrong, c(3, end=True), **AMEND, violation_policy=ViolationPolicy.FAIL_GROUP) == [
        BEFORE,
        refused(wrong, DuplicateSequenceNumberError, "conflict"),
        unit(1, 2, 3),
    ]


@pytest.mark.parametrize(
    ("late", "settings"),
    [
        (c(3, end=True, at=20), {"max_components": 2}),
        (c(3, end=True, at=20, digest="sha256:" + "0" * 64), {}),
        (c(3, end=True, at=20, expires_at=19), {}),
        (c(3, end=True, at=20, deliver_at=30), {}),
        (c(3, end=True, at=20), {"amend_max_bytes": 100}),
        (c(3, end=True, at=20), {"late_policy": LatePolicy.REJECT}),
    ],
)
def test_where_no_unit_can_be_made_the_component_is_refused_as_late_b205(late: Any, settings: dict[str, Any]) -> None:
    assert play(*PARTIAL, late, **AMEND | settings) == [BEFORE, refused(late, UnitClosedError, "partial")]


@pytest.mark.parametrize(
    ("policy", "verb", "how"),
    [(ExpirationPolicy.REDIRECT, "expire", "expired"), (ExpirationPolicy.DELIVER_PARTIAL, "cancel", "cancelled")],
)
def test_a_group_that_gave_no_unit_has_none_to_correct_b205(policy: ExpirationPolicy, verb: str, how: str) -> None:
    late = c(2, end=True)
    assert play(c(1), told(verb), late, **AMEND | {"expiration_policy": policy}) == [
        given_up(1, how, "command", "2-"),
        refused(late, UnitClosedError, how),
    ]


def test_a_unit_that_a_command_delivered_in_part_is_corrected_b205() -> None:
    script = (c(1), c(4, end=True), told("waive", seq="2-3"), c(3))
    assert play(*script, **AMEND) == [
        unit(1, 4, outcome="partial", missing="2-3"),
        unit(1, 3, 4, outcome="partial", missing="2"),
    ]
    assert play(c(1), told("release"), c(2, end=True), **AMEND) == [
        unit(1, outcome="partial", missing="2-"),
        unit(1, 2),
    ]


def test_a_unit_is_corrected_as_long_as_its_id_is_remembered_b205() -> None:
    settings = AMEND | {"closed_retention_ms": 50_000}
    in_time, late = c(2, end=True, at=60), c(2, end=True, at=60.002)
    # it closed as of one millisecond after its deadline
    assert play(c(1, at=0), clock(11), in_time, **settings)[1:] == [unit(1, 2)]
    played = story(c(1, at=0), clock(11), late, **settings)
    assert [each.outcome for each in played.units] == ["partial"]
    assert played.open == {"a": "2"}


def test_a_later_unit_of_an_id_that_was_forgotten_is_not_corrected_by_what_was_kept_before_b205() -> None:
    odd, beyond = c("x", id="c"), c(3)
    again = [c(1, end=True, id="b"), odd, c(1), c(2, end=True), beyond]
    assert play(c(1), told("release"), *again, **AMEND, closed_max_groups=1)[1:] == [
        unit(1, id="b"),
        refused(odd, BadSequenceNumberError, "malformed"),
        unit(1, 2),
        refused(beyond, OutOfSequenceRangeError, "a"),
    ]


def test_beyond_the_limit_the_oldest_units_are_not_corrected_any_more_b205() -> None:
    ids = ["a", "b", "c"]
    settings = AMEND | {"amend_max_bytes": 2_500}
    late = [c(2, end=True, id=name, at=20) for name in ids]
    seen = play(*[c(1, id=name, at=0) for name in ids], clock(11), *late, **settings)
    assert seen[3:] == [refused(late[0], UnitClosedError, "partial"), unit(1, 2, id="b"), unit(1, 2, id="c")]


@pytest.mark.parametrize("number", [1, 3])
def test_a_corrected_unit_that_fits_no_record_fails_alone_b205(number: int) -> None:
    first, late = (c(seq, at=at, value="x" * 4_500) for seq, at in ((2, 0), (number, 20)))
    played = story(first, clock(11), late, record_limit_bytes=8_000, outcomes=OutcomesPolicy.ALL, **AMEND)
    assert played.seen[0] == unit(2, outcome="partial", missing="1,3-")
    errors = [output for output in played.outputs if output.topic == "D.errors"]
    assert [dict(output.headers)["uow-seq"] for output in errors] == [b"%d" % number]
    assert [(each.outcome, each.count, each.supersedes) for each in played.outcomes] == [
        ("partial", 1, None),
        ("failed", 1, None),
    ]
    assert (played.counts.delivered, played.counts.failed, played.counts.corrected) == (1, 1, 0)
    again = c(4, at=21)
    assert played.send(again) == [refused(again, UnitClosedError, "failed")]


@pytest.mark.parametrize("shape", [Shape.ENVELOPE, Shape.CONSECUTIVE])
def test_each_record_of_a_corrected_unit_says_what_it_supersedes_b205(shape: Shape) -> None:
    played = story(*PARTIAL, c(3, end=True, at=20), shape=shape, **AMEND)
    made = [dict(output.headers) for output in played.outputs if output.topic == "D.units"]
    second = [said for said in made if said["uow-generation"] == b"2"]
    assert len(second) == (3 if shape is Shape.CONSECUTIVE else 1)
    assert {said["uow-supersedes"] for said in second} == {made[0]["uow-unit-id"]}


def test_components_that_are_kept_leave_the_changelog_with_their_time_b205() -> None:
    played = story(*PARTIAL, **AMEND | {"closed_retention_ms": 50_000})
    assert len(played.task.partition.kept) == 1
    assert played.task.rows == 3
    played.send(clock(60))
    assert played.task.rows == 3
    played.send(clock(61))
    assert (played.task.rows, played.task.partition.kept_bytes) == (0, 0)
    assert [value for key, value in played.plans[-1].changelog if key[:1] == b"\6"] == [None] * 3


def test_an_open_end_is_known_by_the_count_of_a_late_component_b205() -> None:
    assert play(*PARTIAL, c(3, count=4, at=20), c(4, at=21), **AMEND)[1:] == [
        unit(1, 2, 3, outcome="partial", missing="4"),
        unit(1, 2, 3, 4),
    ]
