"""What a partition keeps beside its groups: deadlines in line, look-up tables, counts of every way to close."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.script import (
    T0,
    Sent,
    Step,
    bare,
    c,
    check_counts,
    clock,
    context_of,
    given_up,
    play,
    policy_of,
    refused,
    story,
    told,
    unit,
)
from uow.processor.core import columns, layout
from uow.processor.core.changes import Closed, Decision, Passed
from uow.processor.core.group import Group
from uow.processor.core.partition import Partition
from uow.schemas.error_classes import (
    BadUnitIdError,
    InvariantViolation,
    MisroutedComponentError,
    UnitTooLargeError,
)
from uow.schemas.records import Reason, UnitOutcome
from uow.topics.catalogue import HELD_LIMIT_BYTES
from uow.topics.partitioner import partition_for
from uow.topics.policies import Shape, ViolationPolicy


def test_deadlines_that_became_stale_are_cleared_away() -> None:
    """A component with a special header puts its group in line each time; the line must not grow with the stream."""
    played = story(*(c(number, priority=1) for number in range(1, 3000)), poll=100, incomplete_expiration_ms=60_000)
    assert len(played.task.partition.unit_deadlines) < 1300
    assert played.task.next_deadline() == T0 + 60_000


def test_of_deadlines_that_were_cleared_away_none_is_waited_for() -> None:
    delivered = [c(1, id=f"{number}", end=True, at=0) for number in range(1100)]
    played = story(*delivered, incomplete_expiration_ms=60_000)
    assert (played.task.partition.unit_deadlines._line, played.task.next_deadline()) == ([], None)
    assert played.send(c(1, id="late", end=True, at=100)) == [unit(1, id="late")]


@pytest.mark.parametrize(("bad", "case"), [("", "empty"), ("x" * 256, "too-long")])
def test_one_bad_id_among_good_ones_of_a_poll_is_refused_w23(bad: str, case: str) -> None:
    sent = c(2, id=bad)
    assert play(c(1), sent, c(2)) == [refused(sent, BadUnitIdError, case)]


def test_records_of_one_poll_may_have_their_headers_in_another_order_w02() -> None:
    assert play(c(1, id="7"), bare([("uow-seq", b"2"), ("uow-id", b"7")])) == []
    assert story(c(1, id="7"), bare([("uow-seq", b"2"), ("uow-id", b"7")])).open == {"7": "1-2"}


def test_the_largest_component_held_among_small_ones_of_a_poll_w115() -> None:
    """All have the same headers, so that they are read in bulk. One byte more, and its group fails alone."""

    def script(value: str) -> list[Sent]:
        return [c(1, end="false"), c(2, end="false", value=value), c(1, end="false", id="b")]

    limits: dict[str, Any] = {"shape": Shape.CONSECUTIVE, "max_bytes": 10 * HELD_LIMIT_BYTES}
    nearly = "x" * (HELD_LIMIT_BYTES - 1000)
    held = story(*script(nearly), **limits).task.partition.groups[b"a"].held[2]
    largest = nearly + "x" * (HELD_LIMIT_BYTES - len(held))
    assert play(*script(largest), **limits) == []
    assert story(*script(largest), **limits).open == {"a": "1-2", "b": "1"}
    failed = story(*script(largest + "x"), **limits)
    assert failed.open == {"b": "1"}
    assert failed.seen[0] == given_up(1, "failed", "limit", "3-", UnitTooLargeError)


def test_marks_made_up_per_record_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "_MAX_MARKS", 10)
    layout._MARKS.clear()
    played = story(*(c(number) for number in range(1, 100)))
    assert played.open == {"a": "1-99"}
    assert len(layout._MARKS) <= 10
    layout._NUMBERS.clear()
    assert all(layout._NUMBERS[b"%d" % number] is not None for number in range(1, 100))
    assert len(layout._NUMBERS) <= 10


def test_header_names_made_up_per_record_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_LAYOUTS_BYTES", 30_000)
    played = story(*(c(number, user=[(f"name-{number}", "x")]) for number in range(1, 100)))
    assert played.open == {"a": "1-99"}
    kept = played.task.partition.reader._layouts
    assert 0 < len(kept) <= 15
    assert story(c(1, user=[("x" * 8192, "x")])).task.partition.reader._layouts == {}


def test_short_marks_are_kept_and_long_ones_are_not() -> None:
    kept, longest, long = (b"1", b"true"), (b"0" * 15 + b"1", b"x" * 15), (b"0" * 15 + b"1", b"x" * 16)
    layout._MARKS.clear()
    assert [layout._MARKS[marks] is None for marks in (kept, longest, long)] == [False, True, True]
    assert set(layout._MARKS) == {kept, longest}
    layout._NUMBERS.clear()
    assert [layout._NUMBERS[number] is None for number in (b"1", b"0" * 30 + b"1", b"0" * 31 + b"1")] == [False] * 3
    assert set(layout._NUMBERS) == {b"1", b"0" * 30 + b"1"}


@pytest.mark.parametrize(
    ("script", "highest", "policy"),
    [
        ([c(2, end=True), c(1)], 2, {}),
        ([c(5), c(1)], 5, {"max_components": 1}),
        ([c(5), c(1, expires_at=-1)], 5, {}),
        ([c(5), c(1), clock(100)], 5, {"incomplete_expiration_ms": 1000}),
        ([c(3), told("waive", seq=2), c(1), told("release")], 3, {}),
        ([c(0)], 0, {"violation_policy": ViolationPolicy.FAIL_GROUP}),
    ],
    ids=["complete", "over a limit", "expired on arrival", "expired", "released", "never opened"],
)
def test_of_a_closed_group_the_highest_number_held_is_remembered(
    script: list[Step], highest: int, policy: dict[str, Any]
) -> None:
    closed = story(*script, **policy).task.partition.closed.get(b"a")
    assert closed is not None
    assert closed.highest == highest


def test_cancelled_components_are_counted_as_such_w216() -> None:
    played = story(c(1), c(2))
    partition = played.task.partition
    group: Group = partition.groups.pop(b"a")
    partition.close(group, Closed(b"a", 1, UnitOutcome.CANCELLED, Reason.COMMAND, 2, 2, T0))
    assert (partition.counts.cancelled, partition.held_bytes) == (2, 0)
    check_counts(partition.counts, partition.groups)


def test_effect_about_a_record_without_one_is_our_bug() -> None:
    partition = Partition(context_of(policy_of()).place(0), policy_of())
    with pytest.raises(InvariantViolation, match="no record in hand"):
        partition._carry_out(Decision((), (Passed(),)), None)


def test_misrouted_component_too_large_to_be_sent_on_is_refused_w110_w216() -> None:
    stray = (partition_for(b"a", 4) + 1) % 4
    large = bare(c(1).headers, b"x" * 1_048_000)
    played = story(large, partition=stray, partitions=4)
    assert played.seen == [refused(large, MisroutedComponentError)]
    assert (played.counts.passed, played.counts.rejected) == (0, 1)
