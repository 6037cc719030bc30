"""Records that came compressed may be larger than any record we can write: what cannot be copied is told, and stops nothing (W-115, W-37)."""

from __future__ import annotations

from tests.core.script import TOPICS, context_of, policy_of
from tests.core.streams import check_counts
from tests.fake_record import INPUT, FakeRecord
from uow.processor.engine.ports import Plan
from uow.processor.engine.task import PartitionTask
from uow.schemas.records import (
    MAX_RANGES,
    MAX_SEQ,
    Range,
    bounded_ranges,
    parse_ranges,
)

LIMIT = 10_000
HUGE = b"\0" * 2 * LIMIT


def run(*records: tuple[list[tuple[str, bytes | None]], bytes], max_bytes: int = LIMIT) -> tuple[PartitionTask, Plan]:
    task = PartitionTask(INPUT, context_of(policy_of(max_bytes=max_bytes), record_limit_bytes=LIMIT))
    plan = task.process(
        [FakeRecord(at, headers, value, b"a", 1_000 + at, INPUT) for at, (headers, value) in enumerate(records)]
    )
    check_counts(task.counts, task.groups)
    return task, plan


def marks(seq: bytes, *more: tuple[str, bytes | None]) -> list[tuple[str, bytes | None]]:
    return [("uow-id", b"a"), ("uow-seq", seq), *more]


def test_refused_record_that_fits_no_record_leaves_its_reasons_and_says_where_the_rest_stayed() -> None:
    _, plan = run((marks(b"x"), HUGE))
    (output,) = plan.outputs
    said = dict(output.headers)
    assert (output.topic, output.key, output.value) == (TOPICS.rejected, None, None)
    assert said["uow-error-class"] == b"BadSequenceNumberError"
    assert said["uow-source"] == b"D.components/0/0"
    assert b"stayed at uow-source" in (said["uow-error-text"] or b"")


def test_huge_headers_are_left_behind_as_well() -> None:
    _, plan = run((marks(b"x", ("mine", HUGE)), b""))
    assert "mine" not in dict(plan.outputs[0].headers)


def test_plain_record_that_fits_no_record_is_refused_and_counted_as_such() -> None:
    task, plan = run(([], HUGE), ([], b"small"))
    assert [output.topic for output in plan.outputs] == [TOPICS.rejected, TOPICS.units]
    assert dict(plan.outputs[0].headers)["uow-error-class"] == b"UnitTooLargeError"
    assert (task.counts.passed, task.counts.rejected) == (1, 1)


def test_component_that_fits_no_record_fails_its_group_and_no_other() -> None:
    task, plan = run((marks(b"1"), b"small"), (marks(b"2"), HUGE), ([("uow-id", b"b"), ("uow-seq", b"1")], b"small"))
    assert [*task.groups] == [b"b"]
    small, huge = (output for output in plan.outputs if output.topic == TOPICS.errors)
    assert (small.value, huge.value) == (b"small", None)
    assert {dict(output.headers)["uow-failure-reason"] for output in (small, huge)} == {b"failed"}
    assert [key for key, value in plan.changelog if value is not None and len(value) > LIMIT] == []


def test_missing_numbers_in_a_header_are_bounded_ranges() -> None:
    gaps = tuple(Range(number, number) for number in range(1, 10_001, 2))
    some = bounded_ranges((*gaps, Range(10_003, MAX_SEQ)))
    assert some[:3] == gaps[:3]
    assert len(some) == MAX_RANGES
    assert some[-1] == Range(2 * MAX_RANGES - 1, MAX_SEQ)
    assert bounded_ranges(parse_ranges("3,5-7")) == parse_ranges("3,5-7")
