"""Time: deadlines, what expires, what becomes of it, and how long a closed id is remembered (W-70 to W-85, W-207, W-214)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.script import (
    Step,
    Story,
    c,
    clock,
    given_up,
    latest,
    ms,
    passed,
    plain,
    play,
    policy_of,
    refused,
    story,
    unit,
)
from uow.processor.core.changes import Closed
from uow.processor.core.closed import ClosedMemory, CommandMemory, memory_of
from uow.processor.core.decide import Situation, decide_due
from uow.processor.core.gathered import NEVER
from uow.schemas.error_classes import (
    ComponentExpiredError,
    DuplicateSequenceNumberError,
    OutOfSequenceRangeError,
    UnitClosedError,
    UnitTooLargeError,
)
from uow.schemas.records import Reason, UnitOutcome
from uow.topics.policies import (
    ExpirationPolicy,
    HandlingPolicy,
    LatePolicy,
    OutcomesPolicy,
    ViolationPolicy,
)

YEARS = 10 * 365 * 24 * 3600.0
AGE: dict[str, Any] = {"incomplete_expiration_ms": 100_000, "expiration_policy": ExpirationPolicy.REDIRECT}
IDLE: dict[str, Any] = {"idle_expiration_ms": 100_000, "expiration_policy": ExpirationPolicy.REDIRECT}


def test_age_counts_from_the_first_component_held_not_from_number_one_w70() -> None:
    script = c(3, at=0), c(1, at=50)
    assert play(*script, clock(100), **AGE) == []
    assert play(*script, clock(100.001), **AGE) == [
        given_up(1, "expired", "age", "2,4-"),
        given_up(3, "expired", "age", "2,4-"),
    ]


def test_idle_counts_from_the_last_component_held_w70() -> None:
    script = c(3, at=0), c(1, at=50)
    assert play(*script, clock(150), **IDLE) == []
    assert play(*script, clock(150.001), **IDLE) == [
        given_up(1, "expired", "idle", "2,4-"),
        given_up(3, "expired", "idle", "2,4-"),
    ]


def test_refused_component_moves_no_idle_deadline_w70_w35() -> None:
    script = c(1, at=0), c(1, value="other", at=50)
    assert play(*script, clock(100.001), **IDLE)[-1] == given_up(1, "expired", "idle", "2-")


def test_age_and_idle_together_the_earlier_one_closes_and_is_named_w70() -> None:
    both = AGE | {"idle_expiration_ms": 30_000}
    assert play(c(1, at=0), clock(200), **both) == [given_up(1, "expired", "idle", "2-")]
    kept_alive = [c(number, at=number * 20.0 - 20) for number in range(2, 6)]
    assert play(c(1, at=0), *kept_alive, clock(200), **both)[0] == given_up(1, "expired", "age", "6-")


def test_expired_components_are_treated_singly_in_number_order_w71() -> None:
    assert play(c(4, at=0), c(1), c(2), clock(101), **AGE) == [
        given_up(number, "expired", "age", "3,5-") for number in (1, 2, 4)
    ]


def test_default_never_expires_w72() -> None:
    played = story(c(1, at=0), clock(YEARS))
    assert played.seen == []
    assert played.open == {"a": "1"}
    assert played.task.next_deadline() is None


def test_pass_through_expires_nothing_w73() -> None:
    played = story(c(1, at=0), clock(YEARS), **AGE, handling_policy=HandlingPolicy.PASS_THROUGH)
    assert len(played.outputs) == 1
    assert played.task.next_deadline() is None


def test_component_that_never_comes_lets_its_group_expire_w74() -> None:
    assert play(c(1, at=0), c(3, end=True), clock(101), **AGE) == [
        given_up(1, "expired", "age", "2"),
        given_up(3, "expired", "age", "2"),
    ]


def test_held_component_that_expires_closes_the_group_at_once_w75_w77() -> None:
    script = c(1, expires_at=10, at=0), c(2, at=0)
    assert play(*script, clock(10), **AGE) == []
    expired = [given_up(number, "expired", "component-expired", "3-", ComponentExpiredError) for number in (1, 2)]
    assert play(*script, clock(10.001), **AGE) == expired
    late = c(3, end=True, at=11)
    assert play(*script, late, **AGE) == [*expired, refused(late, UnitClosedError, "expired")]


def test_complete_group_that_waits_for_its_birth_stops_counting_age_but_not_component_expiry_w77_w08() -> None:
    script = c(1, at=0), c(2, end=True, deliver_at=500)
    assert play(*script, clock(499), **AGE) == []
    assert play(*script, clock(500), **AGE) == [unit(1, 2)]
    mortal = c(1, at=0, expires_at=400), c(2, end=True, deliver_at=500)
    assert play(*mortal, clock(400.001), **AGE)[0] == given_up(
        1, "expired", "component-expired", "", ComponentExpiredError
    )


def test_deadline_that_has_passed_before_birth_wins_where_both_fall_together_w77() -> None:
    script = c(1, end=True, at=0, expires_at=9.999, deliver_at=10)
    assert play(script, clock(10), **AGE) == [given_up(1, "expired", "component-expired", "", ComponentExpiredError)]


def test_discard_counts_and_reports_but_shows_nothing_w78() -> None:
    played = story(c(1, at=0), c(2), clock(101), incomplete_expiration_ms=100_000)
    assert played.seen == []
    assert played.log_lines == []
    assert played.counts.expired == 2
    assert [(o.outcome, o.reason, o.count) for o in played.outcomes] == [("expired", "age", 2)]
    assert [value for _, value in played.plans[-1].changelog] == [None, None]


def test_log_writes_one_line_per_component_w79() -> None:
    played = story(
        c(2, at=0, component_id="m2", user=[("trace", "t2"), ("secret", "s"), ("raw", b"\xff"), ("none", None)]),
        c(1),
        clock(101),
        incomplete_expiration_ms=100_000,
        expiration_policy=ExpirationPolicy.LOG,
        expiration_log_headers=("trace", "raw", "none"),
    )
    assert played.seen == []
    assert [(line["component_id"], line["id"], line["seq"], line["source"]) for line in played.log_lines] == [
        (None, "a", 1, "D.components/0/1"),
        ("m2", "a", 2, "D.components/0/0"),
    ]
    assert played.log_lines[1]["headers"] == {"trace": "t2", "raw": "\\xff", "none": None}
    assert played.log_lines[1]["missing"] == "3-"
    assert played.log_lines[1]["reason"] == "age"


def test_redirect_keeps_everything_as_it_was_w80() -> None:
    sent = c(1, at=0, expires_at=99, user=[("h", None), ("h", b"\xff")], value=b"\x00\xff", key=b"other key")
    played = story(sent, clock(101), **AGE)
    (output,) = [output for output in played.outputs if output.topic == "D.errors"]
    assert (output.partition, output.key, output.value) == (0, sent.key, sent.value)
    assert output.headers[: len(sent.headers)] == sent.headers
    assert [name for name, _ in output.headers[len(sent.headers) :]] == [
        "uow-error-class",
        "uow-error-case",
        "uow-error-text",
        "uow-source",
        "uow-failure-reason",
        "uow-missing",
    ]
    assert dict(output.headers)["uow-source"] == b"D.components/0/0"


@pytest.mark.parametrize("policy", [ExpirationPolicy.DISCARD, ExpirationPolicy.LOG, ExpirationPolicy.REDIRECT])
def test_components_of_failed_groups_always_go_to_errors_w80(policy: ExpirationPolicy) -> None:
    seen = play(c(1), c(1, value="other"), violation_policy=ViolationPolicy.FAIL_GROUP, expiration_policy=policy)
    assert seen[-1] == given_up(1, "failed", "conflict", "2-", DuplicateSequenceNumberError)


def test_wall_clock_closes_nothing_while_records_appended_in_time_lie_unread_w82() -> None:
    before = story(c(1, at=0), **AGE)
    before.send(c(2, end=True, at=99))  # read long after, by the wall clock
    assert before.seen == [unit(1, 2)]
    late = c(2, end=True, at=101)
    assert play(c(1, at=0), late, **AGE) == [
        given_up(1, "expired", "age", "2-"),
        refused(late, UnitClosedError, "expired"),
    ]


def test_expiry_needs_no_traffic_w83() -> None:
    assert play(c(1, at=0), clock(101), **AGE) == [given_up(1, "expired", "age", "2-")]


def test_record_of_another_group_moves_the_clock_too_w83_w84() -> None:
    assert play(c(1, at=0), plain(at=101), **AGE) == [given_up(1, "expired", "age", "2-"), passed()]
    refused_one = c("x", id="b", at=101)
    assert play(c(1, at=0), refused_one, **AGE)[0] == given_up(1, "expired", "age", "2-")


def test_last_component_at_the_very_deadline_wins_w84() -> None:
    assert play(c(1, at=0), c(2, end=True, at=100), **AGE) == [unit(1, 2)]
    late = c(2, end=True, at=100.001)
    assert play(c(1, at=0), late, **AGE) == [
        given_up(1, "expired", "age", "2-"),
        refused(late, UnitClosedError, "expired"),
    ]


def test_clock_never_goes_backwards() -> None:
    played = story(c(1, at=50), c(1, id="b", at=20))
    assert played.task.partition.clock == ms(50)
    assert played.task.tick(ms(10)) is None
    assert played.task.partition.clock == ms(50)


def test_groups_close_in_the_order_of_their_deadlines_w70() -> None:
    script = c(1, id="b", at=1), c(1, id="a", at=0), c(1, id="d", at=2), c(1, id="c", at=2), plain(at=200)
    assert [outcome.id for outcome in story(*script, **AGE).outcomes] == ["a", "b", "c", "d"]


def test_group_closes_as_of_its_deadline_whenever_that_is_noticed_w82() -> None:
    at_once = story(c(1, at=0), clock(100.001), **AGE).outcomes
    much_later = story(c(1, at=0), clock(5000), **AGE).outcomes
    assert at_once == much_later
    assert at_once[0].closed_at == ms(100.001)


def test_tick_with_nothing_due_does_nothing() -> None:
    played = story(c(1, at=0), c(2, at=60), **IDLE)
    clock_before = played.task.partition.clock
    assert played.task.tick(ms(120)) is None, "the first component's deadline moved on with the second"
    assert played.task.partition.clock == clock_before
    assert played.task.next_deadline() == ms(160)
    assert played.task.drain() is None


def test_group_without_a_deadline_is_never_due() -> None:
    played = story(c(1))
    group = played.task.groups[b"a"]
    assert group.due_at(policy_of()) == NEVER
    assert decide_due(Situation(group, None, None, ms(YEARS), 9, policy_of())).changes == ()


def test_component_expiry_never_delivers_under_deliver_partial_w207() -> None:
    partial = AGE | {"expiration_policy": ExpirationPolicy.DELIVER_PARTIAL}
    assert play(c(1, at=0), c(2), c(4), clock(101), **partial) == [unit(1, 2, 4, outcome="partial", missing="3,5-")]
    mortal = c(1, at=0, expires_at=10), c(2)
    assert play(*mortal, clock(101), **partial) == [
        given_up(number, "expired", "component-expired", "3-", ComponentExpiredError) for number in (1, 2)
    ]


@pytest.mark.parametrize("settings", [AGE, IDLE], ids=["age", "idle"])
def test_a_partial_unit_waits_for_what_is_not_available_yet_w08_w207(settings: dict[str, Any]) -> None:
    """It may become complete meanwhile; what is given up and not delivered waits for nothing."""
    partial = settings | {"expiration_policy": ExpirationPolicy.DELIVER_PARTIAL}
    held = c(1, at=0), c(3, end=True, at=0, deliver_at=250)
    assert play(*held, clock(249), **partial) == []
    assert play(*held, clock(249), clock(250), **partial) == [unit(1, 3, outcome="partial", missing="2")]
    assert play(*held, c(2, at=249), clock(250), **partial) == [unit(1, 2, 3)]
    assert play(*held, clock(102), **settings)[0].missing == "2"  # type: ignore[union-attr]
    mortal = c(1, at=0, expires_at=200), c(3, at=0, deliver_at=250)
    assert play(*mortal, clock(251), **partial)[0].case == "component-expired"  # type: ignore[union-attr]


def test_partial_unit_counts_as_delivered_and_a_late_one_is_told_w207_w85() -> None:
    partial = IDLE | {"expiration_policy": ExpirationPolicy.DELIVER_PARTIAL}
    late = c(2, at=300)
    played = story(c(1, at=0), late, **partial)
    assert played.seen == [unit(1, outcome="partial", missing="2-"), refused(late, UnitClosedError, "partial")]
    assert played.counts.delivered == 1
    assert played.unit_headers[0]["uow-reason"] == b"idle"


# -- memory of closed groups ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("poll", [1, 100])
def test_closed_id_is_remembered_for_its_retention_w19(poll: int) -> None:
    within, after = c(1, end=True, value="x", at=10), c(1, end=True, value="y", at=10.001)
    settings = {"closed_retention_ms": 10_000}
    assert story(c(1, end=True, at=0), within, poll=poll, **settings).seen == [
        unit(1),
        refused(within, DuplicateSequenceNumberError, "duplicate"),
    ]
    assert story(c(1, end=True, at=0), after, poll=poll, **settings).seen == [unit(1), unit(1)]


@pytest.mark.parametrize("poll", [1, 100])
def test_as_many_closed_ids_are_remembered_as_allowed_the_newest_w19(poll: int) -> None:
    script = [c(1, end=True, id=name) for name in "abc"]
    again = [c(1, end=True, id=name, value="again") for name in "cba"]
    played = story(*script, *again[:2], again[2], poll=poll, closed_max_groups=2)
    assert played.seen[3:] == [
        refused(again[0], DuplicateSequenceNumberError, "duplicate"),
        refused(again[1], DuplicateSequenceNumberError, "duplicate"),
        unit(1, id="a"),
    ]


def test_memory_keeps_the_later_generation_of_an_id_w85() -> None:
    settings = AGE | {"late_policy": LatePolicy.REOPEN, "closed_retention_ms": 150_000}
    played = story(c(1, at=0), c(1, at=120), plain(at=260), **settings)
    assert [outcome.generation for outcome in played.outcomes] == [1, 2]
    (closed,) = played.task.partition.closed
    assert closed.generation == 2
    assert len(played.task.partition.closed) == 1


def test_a_closed_group_that_is_corrected_keeps_its_place_in_line_w115() -> None:
    memory = ClosedMemory(1000, 2)
    closed = [Closed(name, 1, UnitOutcome.COMPLETE, Reason.END, 1, 1, 0) for name in (b"a", b"b")]
    for each in closed:
        memory.add(each)
    failed = closed[0]._replace(outcome=UnitOutcome.FAILED)
    memory.replace(closed[0], failed)
    assert [*memory.order] == [failed, closed[1]]
    memory.add(closed[0]._replace(id=b"c"))
    memory.trim(0)
    assert set(memory.by_id) == {b"b", b"c"}, "the oldest leaves first"
    memory.replace(failed, closed[0])
    assert memory.get(b"a") is None, "what is forgotten stays so"


def test_highest_generation_is_known_in_whatever_order_generations_close_as_long_as_it_is_remembered_b99() -> None:
    """Several groups of a key are open: the next generation must not be one that has closed already."""
    memory = ClosedMemory(1000, 10)
    for at, generation in enumerate([6, 3, 5, 4], 1):
        memory.add(Closed(b"a", generation, UnitOutcome.COMPLETE, Reason.COUNT, 1, 1, at))
    known = []
    for forgotten in range(5):
        memory.trim(1001 + forgotten)
        known.append((memory.newest_before(b"a"), len(memory)))
    assert known == [(6, 1), (5, 1), (5, 1), (0, 1), (0, 0)]


def test_memory_of_nothing() -> None:
    memory = ClosedMemory(1000, 10)
    memory.trim(10**15)
    assert (memory.get(b"a"), len(memory), list(memory)) == (None, 0, [])


# -- outcomes -------------------------------------------------------------------------------------------------------

WAYS: dict[str, tuple[list[Any], dict[str, Any], tuple[str, str]]] = {
    "complete by end": ([c(1), c(2, end=True)], {}, ("complete", "end")),
    "complete by count": ([c(1, count=2), c(2)], {}, ("complete", "count")),
    "partial": (
        [c(1, at=0), clock(101)],
        AGE | {"expiration_policy": ExpirationPolicy.DELIVER_PARTIAL},
        ("partial", "age"),
    ),
    "age": ([c(1, at=0), clock(101)], AGE, ("expired", "age")),
    "idle": ([c(1, at=0), clock(101)], IDLE, ("expired", "idle")),
    "component": ([c(1, at=0, expires_at=1), clock(2)], {}, ("expired", "component-expired")),
    "limit": ([c(1), c(2)], {"max_components": 1}, ("failed", "limit")),
    "conflict": ([c(1), c(1, value="x")], {"violation_policy": ViolationPolicy.FAIL_GROUP}, ("failed", "conflict")),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("setting", OutcomesPolicy)
def test_each_way_of_closing_is_reported_as_the_setting_says_w214(way: str, setting: OutcomesPolicy) -> None:
    script, settings, (outcome, reason) = WAYS[way]
    told = story(*script, **settings, outcomes=setting).outcomes
    silent = setting is OutcomesPolicy.NONE or (setting is OutcomesPolicy.EXCEPTIONS and outcome == "complete")
    assert [(one.outcome, one.reason, one.id) for one in told] == ([] if silent else [(outcome, reason, "a")])


def test_outcome_says_times_size_and_what_was_missing_w214() -> None:
    played = story(c(1, at=3), c(4), clock(200), **AGE)
    (outcome,) = played.outcomes
    assert (outcome.opened_at, outcome.closed_at, outcome.count) == (ms(3), ms(103.001), 2)
    assert outcome.bytes > 0
    assert [(gap.first, gap.last) for gap in outcome.missing] == [(2, 3), (5, 2_147_483_647)]
    (output,) = [output for output in played.outputs if output.topic == "D.outcomes"]
    assert output.partition == 0
    assert dict(output.headers)["uow-kind"] == b"outcome"


def test_every_way_of_closing_adds_up_w216() -> None:
    for script, settings, _ in WAYS.values():
        counts = story(*script, **settings).counts
        assert counts.held == counts.delivered + counts.expired + counts.cancelled + counts.failed
        assert counts.open == 0


# -- envelopes over the record limit --------------------------------------------------------------------------------


@pytest.mark.parametrize("poll", [1, 100])
def test_unit_over_the_record_limit_fails_and_the_next_group_is_handled_w114_w115(poll: int) -> None:
    big = "x" * 5000
    late = c(1, value="late")
    script = c(1, value=big), c(2, end=True, value=big), c(1, end=True, id="b")
    played = story(*script, record_limit_bytes=8000, poll=poll)
    assert played.seen == [
        given_up(1, "failed", "limit", "", UnitTooLargeError),
        given_up(2, "failed", "limit", "", UnitTooLargeError),
        unit(1, id="b"),
    ]
    assert (played.counts.failed, played.counts.delivered) == (2, 1)
    assert [(o.outcome, o.reason, o.count) for o in played.outcomes] == [("failed", "limit", 2)]
    assert played.send(late) == [refused(late, UnitClosedError, "failed")]


def test_late_component_of_a_unit_over_the_record_limit_is_told_in_the_next_poll_w115_w85() -> None:
    """In the same poll it is told `duplicate` still: the size of a unit is known when it is written."""
    late = c(1, value="late")
    played = story(c(1, end=True, value="x" * 9000), record_limit_bytes=8000, late_policy=LatePolicy.REOPEN)
    assert played.send(late) == []
    assert played.task.groups[b"a"].generation == 2


def test_unit_just_under_the_record_limit_is_delivered_w114() -> None:
    played = story(c(1, end=True, value="x" * 6000), record_limit_bytes=8000)
    assert played.seen == [unit(1)]


def test_partial_unit_over_the_record_limit_fails_too_w115() -> None:
    played = story(
        c(1, at=0, value="x" * 9000),
        clock(101),
        record_limit_bytes=8000,
        **AGE | {"expiration_policy": ExpirationPolicy.DELIVER_PARTIAL},
    )
    assert [(o.outcome, o.reason) for o in played.outcomes] == [("failed", "limit")]
    assert isinstance(played, Story)


def test_number_above_the_end_of_a_closed_unit_is_a_range_error_after_a_restart_of_numbers_w40() -> None:
    above = c(9)
    assert play(c(1, count=2), c(2), above)[-1] == refused(above, OutOfSequenceRangeError, "a")


def test_age_is_the_reason_where_age_and_idleness_end_in_the_same_moment_w83() -> None:
    policy: dict[str, Any] = {"incomplete_expiration_ms": 1000, "idle_expiration_ms": 1000}
    assert play(c(1), clock(2), expiration_policy=ExpirationPolicy.REDIRECT, **policy) == [
        given_up(1, "expired", "age", "2-")
    ]


def test_clock_does_not_go_back_with_a_component_that_is_judged_by_itself() -> None:
    """Times may go back from one record to the next; the second `a` is a duplicate."""
    played = story()
    played.send(c(1, id="a", at=5), c(1, id="b", at=90), c(1, id="a", at=10))
    assert played.task.partition.clock == ms(90)


def test_a_deadline_that_an_open_group_gets_within_a_poll_counts_in_that_poll_w08_w84() -> None:
    """By a component that says so, and by a plain one that completes a unit which waits for its moment."""
    other = c(1, id="b", end=True, at=60)
    expired = [given_up(number, "expired", "component-expired", "3-", ComponentExpiredError) for number in (1, 2)]
    redirect = {"expiration_policy": ExpirationPolicy.REDIRECT}
    assert play(c(1), c(2, expires_at=50), other, **redirect) == [*expired, unit(1, id="b")]
    assert play(c(1, deliver_at=50), c(2, end=True), other) == [unit(1, 2), unit(1, id="b")]


# -- a broker whose clock leaps (decision 17) -------------------------------------------------------------------------

HOUR = 3600.0


def test_first_deadline_is_the_moment_after_which_a_group_is_given_up_or_at_which_it_is_delivered() -> None:
    def first(*steps: Step, **settings: Any) -> int | None:
        return story(*steps, **settings).task.first_deadline

    assert first(**AGE) is None
    assert first(c(1)) is None
    assert first(c(1, end=True), **AGE) is None
    assert first(c(1, at=0), c(1, id="b", at=30), **AGE) == ms(100)
    assert first(c(1, at=0, id="b"), c(1, id="a", at=30, expires_at=60), **AGE) == ms(60)
    assert first(c(1, at=0, end=True, deliver_at=500), **AGE) == ms(500)


def test_append_time_that_leaps_gives_up_no_group_and_none_after_it_w70_w82() -> None:
    leap = plain(at=HOUR)
    before = c(1, at=0), leap, c(2, end=True, at=1)
    assert play(latest(60), *before, **AGE) == [passed(), unit(1, 2)]
    after = leap, c(1, at=1), c(2, at=2), c(3, end=True, at=3)
    assert play(latest(60), *after, **AGE) == [passed(), unit(1, 2, 3)]


def test_what_closes_before_any_time_is_believed_is_as_old_as_the_first_close_that_has_one_w19() -> None:
    unknown = latest(-1), c(1, end=True), c(1, end=True, id="b")
    played = story(*unknown, latest(HOUR), plain(at=900), closed_retention_ms=100_000)
    memory = played.task.partition.closed
    assert [*memory.by_id] == [b"a", b"b"]
    played.send(c(1, end=True, id="c", at=1000), plain(at=1100))
    assert [*memory.by_id] == [b"a", b"b", b"c"]
    played.send(plain(at=1100.001))
    assert not memory.order


def test_append_time_that_is_as_late_as_can_be_moves_the_clock_w84() -> None:
    script = c(1, at=0), plain(at=HOUR), c(2, end=True, at=HOUR)
    assert play(latest(HOUR), *script, **AGE)[0] == given_up(1, "expired", "age", "2-")
    assert play(latest(HOUR - 0.001), *script, **AGE) == [passed(), unit(1, 2)]
    plain_rows = c(1, at=0), c(1, id="b", at=HOUR)
    assert play(latest(HOUR), *plain_rows, **AGE) == [given_up(1, "expired", "age", "2-")]
    assert play(latest(HOUR - 0.001), *plain_rows, **AGE) == []


def test_deadline_of_a_group_that_opens_with_a_leaping_append_time_is_absolute_all_the_same_w70() -> None:
    script = latest(60), c(1, at=HOUR), plain(at=30)
    assert play(*script, clock(HOUR + 100), **AGE) == [passed()]
    assert play(*script, clock(HOUR + 100.001), **AGE) == [passed(), given_up(1, "expired", "age", "2-")]


def test_closed_ids_are_remembered_though_an_append_time_leaps_w19() -> None:
    again = c(1, end=True, at=1)
    script = c(1, end=True, at=0), plain(at=HOUR), again
    assert play(latest(60), *script, closed_retention_ms=100_000) == [
        unit(1),
        passed(),
        refused(again, DuplicateSequenceNumberError, "duplicate"),
    ]


def test_append_times_that_are_not_believed_are_counted() -> None:
    told = story(latest(60), c(1, at=HOUR), plain(at=HOUR), c(2, end=True, at=1), **AGE)
    assert told.task.disbelieved == 2
    assert told.task.clock == ms(1)
    assert story(latest(60), c(1, at=60), c(2, at=HOUR)).task.disbelieved == 1


def test_bytes_of_closed_groups_are_counted_as_they_come_change_and_go() -> None:
    memory = ClosedMemory(retention_ms=1000, max_groups=2)

    def closed(name: bytes, at: int, prints: bytes = b"") -> Closed:
        return Closed(name, 1, UnitOutcome.COMPLETE, Reason.END, 1, 1, at, prints)

    first, second, third = closed(b"a" * 10, 0), closed(b"b" * 20, 0, bytes(100)), closed(b"c" * 30, 1)
    assert memory_of(second) - memory_of(first) == 110
    memory.add(first)
    memory.add(second)
    memory.replace(second, failed := second._replace(outcome=UnitOutcome.FAILED, prints=bytes(7)))
    assert memory.memory_bytes == memory_of(first) + memory_of(failed)
    memory.add(third)
    memory.trim(1000)
    assert (list(memory), memory.memory_bytes) == ([failed, third], memory_of(failed) + memory_of(third))
    assert memory.shrink(1) is failed
    assert memory.memory_bytes == memory_of(third)
    assert memory.shrink(memory_of(third)) is third
    assert (list(memory), memory.memory_bytes, memory.shrink(1)) == ([], 0, None)


def test_bytes_of_commands_are_counted_as_they_come_and_go_w203() -> None:
    def memory(*ids: bytes) -> CommandMemory:
        remembered = CommandMemory(1000, 2)
        for command_id in ids:
            remembered.add(command_id, 0)
        return remembered

    nothing, one = memory().memory_bytes, memory(b"c" * 30).memory_bytes
    assert nothing == 0
    assert one - memory(b"b" * 20).memory_bytes == 10
    both = memory(b"b" * 20, b"b" * 20, b"c" * 30)
    assert both.memory_bytes == 2 * one - 10
    kept = memory(b"a" * 10, b"b" * 20, b"c" * 30)
    assert (b"a" * 10 in kept, kept.memory_bytes) == (False, both.memory_bytes)
    kept.shrink(one - 10)
    assert (b"b" * 20 in kept, b"c" * 30 in kept, kept.memory_bytes) == (False, True, one)
    kept.shrink(one + 1)
    assert kept.memory_bytes == 0


def test_ages_of_commands_are_tidied_up_and_the_oldest_still_goes_first_w203() -> None:
    remembered = CommandMemory(1000, 10)
    for command_id, at, times in ((b"q", 500, 1), (b"r", 100, 1), (b"p", 500, 1029)):
        for _ in range(times):
            remembered.add(command_id, at)
    assert len(remembered._by_age) == 3
    remembered.add(b"x", 1200)
    assert list(remembered.at_by_id) == [b"q", b"p", b"x"]


def test_whoever_asks_for_the_first_deadline_changes_nothing() -> None:
    """A page asks from another thread, while the worker's own looks at a group."""
    played = story(c(1, at=0, id="b"), c(1, id="a", at=30), c(1, id="closed", at=1), c(2, end=True, id="closed"), **AGE)
    partition = played.task.partition
    here = partition.faulty.at = played.task.groups[b"a"]
    length = len(partition.unit_deadlines)
    assert played.task.first_deadline == ms(100)
    assert (partition.faulty.at, len(partition.unit_deadlines)) == (here, length)
