"""Commands: every verb on every state of a group, what is refused, and that a repeated one does nothing more (W-62, W-203)."""

from __future__ import annotations

from collections import ChainMap
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.script import (
    Sent,
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
    refused,
    story,
    told,
    unit,
)
from tests.fake_record import FakeRecord
from uow.processor.core import command
from uow.processor.core.closed import CommandMemory
from uow.processor.core.command import VERBS
from uow.processor.core.ranges import (
    count_up_to,
    those_in,
    union,
    without,
)
from uow.processor.engine.group_view import seen
from uow.processor.engine.rows import group_row
from uow.schemas.error_classes import (
    DuplicateSequenceNumberError,
    OutOfSequenceRangeError,
    UnitClosedError,
    UowError,
)
from uow.schemas.records import Range, Reason, UnitOutcome
from uow.topics.commands import (
    BY_HAND,
    BadCommand,
    Command,
    Verb,
    command_headers,
    known_as,
    read_command,
    signer_of,
)
from uow.topics.policies import (
    AliasFamily,
    ExpirationPolicy,
    HandlingPolicy,
    LatePolicy,
    OutcomesPolicy,
    ViolationPolicy,
)

AGE: dict[str, Any] = {"incomplete_expiration_ms": 100_000, "expiration_policy": ExpirationPolicy.REDIRECT}

STATES: dict[str, tuple[Step, ...]] = {
    "never seen": (),
    "closed": (c(1, end=True),),
    "a gap": (c(1), c(3)),
    "a gap and the end": (c(1), c(3, end=True)),
    "no end": (c(1), c(2)),
    "a count": (c(1, count=3),),
    "complete, not ready": (c(1), c(2, end=True, deliver_at=60)),
}
CLOSED = [unit(1)]
OPEN: list[Any] = []

PARTIAL_OF_GAP = [unit(1, 3, outcome="partial", missing="2,4-")]
PARTIAL_TO_3 = [unit(1, 3, outcome="partial", missing="2")]
UNKNOWN = "no open group of this id"
CLOSED_ALREADY = "closed already: complete, reason end"


def errors(failure: str, *numbers: int, missing: str = "") -> list[Any]:
    return [given_up(number, failure, "command", missing) for number in numbers]


def taken_out(number: int, missing: str) -> list[Any]:
    return [given_up(number, "cancelled", "command", missing)]


TABLE: list[tuple[str, str, dict[str, Any], bool, str, list[Any]]] = [
    *[(verb, "never seen", {}, False, UNKNOWN, OPEN) for verb in ("release", "expire")],
    ("cancel", "never seen", {}, True, "closes the id as cancelled: nothing of it is held", OPEN),
    *[(verb, "closed", {}, False, CLOSED_ALREADY, CLOSED) for verb in ("release", "cancel", "expire")],
    ("extend", "never seen", {"until": 500}, False, UNKNOWN, OPEN),
    ("extend", "closed", {"until": 500}, False, CLOSED_ALREADY, CLOSED),
    ("declare-end", "never seen", {"seq": 3}, False, UNKNOWN, OPEN),
    ("declare-end", "closed", {"seq": 3}, False, CLOSED_ALREADY, CLOSED),
    ("waive", "never seen", {"seq": 3}, False, UNKNOWN, OPEN),
    ("waive", "closed", {"seq": 3}, False, CLOSED_ALREADY, CLOSED),
    ("release", "a gap", {}, True, "delivers 2 components, partial, missing 2,4-", PARTIAL_OF_GAP),
    ("release", "a gap and the end", {}, True, "partial, missing 2", PARTIAL_TO_3),
    ("release", "no end", {}, True, "partial, missing 3-", [unit(1, 2, outcome="partial", missing="3-")]),
    ("release", "a count", {}, True, "1 component, partial", [unit(1, outcome="partial", missing="2-3")]),
    ("release", "complete, not ready", {}, False, f"not available before {ms(60)} (uow-deliver-at)", OPEN),
    ("release", "complete, not ready", {"at": 60}, True, "delivers 2 components, complete", [unit(1, 2)]),
    ("cancel", "a gap", {}, True, "cancelled: 2 components", errors("cancelled", 1, 3, missing="2,4-")),
    ("cancel", "a gap and the end", {}, True, "missing 2", errors("cancelled", 1, 3, missing="2")),
    ("cancel", "no end", {}, True, "to the errors topic", errors("cancelled", 1, 2, missing="3-")),
    ("cancel", "a count", {}, True, "cancelled: 1 component to", errors("cancelled", 1, missing="2-3")),
    ("cancel", "complete, not ready", {}, True, "cancelled: 2", errors("cancelled", 1, 2)),
    ("fail", "never seen", {}, False, UNKNOWN, OPEN),
    ("fail", "closed", {}, False, CLOSED_ALREADY, CLOSED),
    ("fail", "a gap", {}, True, "failed: 2 components", errors("failed", 1, 3, missing="2,4-")),
    ("fail", "complete, not ready", {}, True, "failed: 2", errors("failed", 1, 2)),
    ("expire", "a gap", {}, True, "expired: 2 components", errors("expired", 1, 3, missing="2,4-")),
    ("expire", "complete, not ready", {}, True, "expired: 2", errors("expired", 1, 2)),
    ("extend", "a gap", {"until": 500}, True, f"age deadline from {ms(100)} to {ms(500)}", OPEN),
    ("extend", "a gap", {"until": 100}, False, "it only ever moves later", OPEN),
    ("extend", "a gap", {"until": 100.001}, True, f"from {ms(100)} to {ms(100) + 1}", OPEN),
    ("extend", "complete, not ready", {"until": 500}, False, "no number is missing", OPEN),
    ("declare-end", "a gap", {"seq": 2}, False, "number 3 is held", OPEN),
    ("declare-end", "a gap", {"seq": 3}, True, "the unit ends at 3", OPEN),
    ("declare-end", "a gap and the end", {"seq": 4}, False, "the unit ends at 3", OPEN),
    ("declare-end", "a gap and the end", {"seq": 3}, False, "the unit ends at 3 already", OPEN),
    ("declare-end", "no end", {"seq": 2}, True, "ends at 2; delivers 2 components, complete", [unit(1, 2)]),
    ("declare-end", "a count", {"seq": 1}, True, "ends at 1; delivers 1 component, complete", [unit(1)]),
    ("declare-end", "a count", {"seq": 2}, True, "the unit ends at 2", OPEN),
    ("declare-end", "complete, not ready", {"seq": 9}, False, "the unit ends at 2", OPEN),
    ("waive", "a gap", {"seq": 2}, True, "waives 2", OPEN),
    ("waive", "a gap", {"seq": 3}, False, "number 3 is held", OPEN),
    ("waive", "a gap", {"seq": "1-3"}, False, "number 1 is held", OPEN),
    ("waive", "a gap and the end", {"seq": 2}, True, "waives 2; delivers 2 components, partial", PARTIAL_TO_3),
    ("waive", "a gap and the end", {"seq": 4}, False, "the unit ends at 3", OPEN),
    ("waive", "a count", {"seq": "2-3"}, True, "delivers 1", [unit(1, outcome="partial", missing="2-3")]),
    ("waive", "complete, not ready", {"seq": 2}, False, "number 2 is held", OPEN),
    ("remove", "never seen", {"seq": 1}, False, UNKNOWN, OPEN),
    ("remove", "closed", {"seq": 1}, False, CLOSED_ALREADY, CLOSED),
    ("remove", "a gap", {"seq": 2}, False, "number 2 is not held", OPEN),
    (
        "remove",
        "a gap",
        {"seq": 1},
        True,
        "takes number 1 out, to the errors topic, missing 1-2,4-",
        taken_out(1, "1-2,4-"),
    ),
    ("remove", "a gap and the end", {"seq": 3}, True, "missing 2-", taken_out(3, "2-")),
    ("remove", "no end", {"seq": 2}, True, "missing 2-", taken_out(2, "2-")),
    ("remove", "a count", {"seq": 1}, False, "number 1 is all that is held: cancel the group", OPEN),
    ("remove", "complete, not ready", {"seq": 2}, True, "missing 2-", taken_out(2, "2-")),
    ("erase", "never seen", {"seq": 1}, False, UNKNOWN, OPEN),
    ("erase", "closed", {"seq": 1}, False, CLOSED_ALREADY, CLOSED),
    ("erase", "a gap", {"seq": 2}, False, "number 2 is not held", OPEN),
    ("erase", "a gap", {"seq": 1}, True, "erases the payload of number 1", OPEN),
    ("erase", "complete, not ready", {"seq": 2}, True, "erases the payload of number 2", OPEN),
]


def name_of(row: Any) -> str:
    verb, state, said, *_ = row
    return f"{verb} {said or ''} on {state}"


@pytest.mark.parametrize("row", TABLE, ids=map(name_of, TABLE))
def test_every_verb_on_every_state_of_a_group_w203(row: Any) -> None:
    verb, state, said, done, text, seen = row
    script = *STATES[state], told(verb, **said)
    assert play(*script, **AGE) == seen
    (answer,) = story(*script, **AGE).answers
    assert (answer.done, answer.verb, answer.id, answer.why) == (done, verb, "a", "because")
    assert text in answer.text


@pytest.mark.parametrize("row", TABLE, ids=map(name_of, TABLE))
def test_a_dry_run_says_the_same_and_changes_nothing_w203(row: Any) -> None:
    verb, state, said, done, text, _ = row
    before = story(*STATES[state], **AGE)
    after = story(*STATES[state], told(verb, dry_run=True, **said), **AGE)
    assert (after.seen, after.open, after.counts) == (before.seen, before.open, before.counts)
    (answer,) = after.answers
    assert not answer.done
    assert answer.text.startswith("dry run") == done
    assert text in answer.text
    assert not any(plan.changelog for plan in after.plans[len(before.plans) :])


def test_the_table_of_verbs_is_whole() -> None:
    assert set(VERBS) == {*BY_HAND, Verb.FAIL} == {verb for verb, *_ in TABLE}, (
        "recycle and manifest are about no open group"
    )


@pytest.mark.parametrize("verb", VERBS)
def test_a_repeated_command_does_nothing_more_w203(verb: Verb) -> None:
    said: dict[Verb, dict[str, Any]] = {
        Verb.EXTEND: {"until": 500},
        Verb.DECLARE_END: {"seq": 4},
        Verb.WAIVE: {"seq": 2},
        Verb.REMOVE: {"seq": 1},
        Verb.ERASE: {"seq": 1},
    }
    order = told(verb, command_id="once", **said.get(verb, {}))
    once = story(*STATES["a gap"], order, c(1, id="b"), **AGE)
    twice = story(*STATES["a gap"], order, c(1, id="b"), order, **AGE)
    assert (twice.seen, twice.open) == (once.seen, once.open)
    assert [answer.done for answer in twice.answers] == [True, False]
    assert twice.answers[1].text == "a repeated command does nothing more"


def test_a_refused_command_is_not_taken_up_when_it_comes_again_w203() -> None:
    order = told("release", command_id="early")
    played = story(order, c(1), order)
    assert played.open == {"a": "1"}
    assert [answer.text for answer in played.answers] == [UNKNOWN, "a repeated command does nothing more"]


def late(sent: Sent) -> Any:
    return refused(sent, UnitClosedError, "cancelled")


@pytest.mark.parametrize("settings", [AGE, {"violation_policy": ViolationPolicy.FAIL_GROUP}], ids=["", "fail_group"])
def test_a_cancel_that_comes_before_its_components_is_remembered_and_they_are_late_w62(
    settings: dict[str, Any],
) -> None:
    one, two = c(1), c(2, end=True)
    assert play(told("cancel"), one, two, **settings) == [late(one), late(two)]
    played = story(told("cancel", command_id="c-1"), **settings)
    (outcome,) = played.outcomes
    assert (outcome.outcome, outcome.reason, outcome.count, outcome.command_id) == (
        UnitOutcome.CANCELLED,
        Reason.COMMAND,
        0,
        "c-1",
    )


def test_a_cancel_is_remembered_from_its_own_moment_however_long_the_partition_was_idle_w62() -> None:
    """Its clock stands at the last component, or at nothing at all."""
    hour = 3_600
    in_time, too_late = c(1, at=10 + hour), c(1, at=11 + hour)
    assert play(told("cancel", at=10), in_time, too_late) == [late(in_time)]
    cancelled = (c(1, at=0), told("cancel", at=2 * hour))
    in_time, too_late = c(2, at=3 * hour), c(1, at=3 * hour + 1)
    assert play(*cancelled, in_time, too_late) == [given_up(1, "cancelled", "command", "2-"), late(in_time)]


def test_a_new_group_opens_after_an_early_cancel_where_late_components_open_one_w85() -> None:
    played = story(told("cancel"), c(1, end=True), late_policy=LatePolicy.REOPEN)
    assert "opens a new group" in played.answers[0].text
    assert [made.generation for made in played.units] == [2]


def test_nothing_is_cancelled_where_no_groups_are_formed_w64() -> None:
    (answer,) = story(told("cancel"), handling_policy=HandlingPolicy.PASS_THROUGH).answers
    assert (answer.done, answer.text) == (False, UNKNOWN)


def test_a_dry_run_does_not_use_the_command_up_w203() -> None:
    played = story(c(1), told("cancel", command_id="x", dry_run=True), told("cancel", command_id="x"))
    assert [answer.done for answer in played.answers] == [False, True]


# -- what the outputs say ---------------------------------------------------------------------------------------------


def test_outcome_and_components_name_the_command_and_its_reason_w62() -> None:
    played = story(c(1), c(3), told("cancel", command_id="c-7", why="the shop is closed", by="Jill"))
    (outcome,) = played.outcomes
    assert (outcome.outcome, outcome.reason, outcome.command_id) == (UnitOutcome.CANCELLED, Reason.COMMAND, "c-7")
    texts = [dict(output.headers)["uow-error-text"] for output in played.outputs if output.topic == "D.errors"]
    assert texts == [b"the group cancelled: command: the shop is closed"] * 2
    (answer,) = played.answers
    assert (answer.command_id, answer.by, answer.destination, answer.at) == ("c-7", "Jill", "D", ms(0))
    (record,) = [output for output in played.outputs if ("uow-kind", b"answer") in output.headers]
    assert (record.key, record.partition, dict(record.headers)["uow-source"]) == (b"a", 0, b"D.commands/0/0")
    assert dict(record.headers)["uow-user-verified"] == b"false"


def test_an_answer_to_a_command_without_a_name_has_none_that_could_be_verified() -> None:
    (record,) = [output for output in story(c(1), told("release")).outputs if ("uow-kind", b"answer") in output.headers]
    assert "uow-user-verified" not in dict(record.headers)


def test_every_command_is_answered_whatever_outcomes_says_w203() -> None:
    for outcomes in OutcomesPolicy:
        played = story(c(1), told("release"), outcomes=outcomes)
        assert [answer.done for answer in played.answers] == [True]
        assert len(played.outcomes) == (outcomes is not OutcomesPolicy.NONE)


@pytest.mark.parametrize(
    ("policy", "seen"),
    [
        (ExpirationPolicy.DISCARD, []),
        (ExpirationPolicy.LOG, []),
        (ExpirationPolicy.REDIRECT, errors("expired", 1, 3, missing="2,4-")),
        (ExpirationPolicy.DELIVER_PARTIAL, PARTIAL_OF_GAP),
    ],
)
def test_expire_closes_by_the_policy_w203(policy: ExpirationPolicy, seen: list[Any]) -> None:
    played = story(*STATES["a gap"], told("expire"), expiration_policy=policy)
    assert played.seen == seen
    assert len(played.log_lines) == 2 * (policy is ExpirationPolicy.LOG)
    assert played.open == {}


@pytest.mark.parametrize(("at", "waits"), [(59, True), (60, False)])
def test_a_group_that_a_command_completes_waits_for_its_delivery_time_and_not_longer_w203(at: int, waits: bool) -> None:
    played = story(c(1), c(2, deliver_at=60), plain(at=at), told("declare-end", seq=2))
    (answer,) = played.answers
    assert (answer.done, "complete, waits until" in answer.text) == (True, waits)
    assert len(played.units) == (not waits)


@pytest.mark.parametrize(("expires_at", "told_of"), [(99, True), (500, False), (501, False), (0, False)])
def test_extend_tells_of_a_component_that_expires_before_all_the_same_w203(expires_at: int, told_of: bool) -> None:
    said = {"expires_at": expires_at} if expires_at else {}
    (answer,) = story(c(1, **said), told("extend", until=500), **AGE).answers
    assert ("a component expires at" in answer.text) == told_of


def test_release_and_expire_deliver_nothing_before_it_is_available_w08_w203() -> None:
    """Also with a gap, and by the time of the command where the partition's clock stands still."""
    held = c(1), c(3, deliver_at=60)
    partial: dict[str, Any] = {"expiration_policy": ExpirationPolicy.DELIVER_PARTIAL}
    for verb, settings in ("release", {}), ("release", AGE), ("expire", partial):
        early = story(*held, told(verb, at=59), **settings)
        assert (early.units, early.open, early.answers[0].done) == ([], {"a": "1,3"}, False)
        assert len(story(*held, told(verb, at=60), **settings).units) == 1
    assert story(*held, told("expire", at=59), **AGE).open == {}, "what is given up waits for nothing"


# -- one component taken out -----------------------------------------------------------------------------------------


def test_a_removed_component_leaves_its_number_free_and_the_unit_has_the_new_one_w76() -> None:
    script = c(1), c(2, value="old", deliver_at=60), c(3, end=True)
    assert play(*script, told("remove", seq=2), clock(100)) == [given_up(2, "cancelled", "command", "2")]
    played = story(*script, told("remove", seq=2, why="wrong goods"), c(2, value="new"))
    (made,) = played.units
    assert [component.value for component in made.components] == [b"value b'1'", b"new", b"value b'3'"]
    (record,) = [output for output in played.outputs if output.topic == "D.errors"]
    headers = dict(record.headers)
    assert (record.key, record.value, headers["uow-seq"]) == (b"a", b"old", b"2")
    assert headers["uow-error-text"] == b"removed: wrong goods"
    assert (played.counts.cancelled, played.counts.delivered) == (1, 3)


def test_what_a_removed_component_said_of_its_group_is_forgotten_w76() -> None:
    """Its count, its expiry, its delivery time, its end mark; what the others say stands."""
    played = story(
        c(1, count=4), c(2, expires_at=50, deliver_at=70), c(3, expires_at=90, deliver_at=20), told("remove", seq=2)
    )
    group = played.task.groups[b"a"]
    assert (group.end, group.marked, group.expires_at, group.deliver_at) == (4, False, ms(90), ms(20))
    played.send(told("remove", seq=1))
    assert not group.end_known
    two = story(c(1, expires_at=60), c(2, expires_at=50), c(3, expires_at=70), told("remove", seq=2))
    assert two.task.groups[b"a"].expires_at == ms(60)
    ended = story(c(1), c(4, end=True), told("declare-end", id="b", seq=4), told("remove", seq=4))
    assert not ended.task.groups[b"a"].end_known
    assert ended.send(c(5), c(6, end=True)) == []


def test_a_unit_whose_end_component_was_removed_is_named_after_the_last_one_left_w76_w90() -> None:
    without = story(c(1), c(2), told("release"))
    removed = story(c(1), c(2), c(4, end=True), told("remove", seq=4), told("release"))
    assert removed.units[0].unit_id == without.units[0].unit_id


def test_a_component_that_is_no_longer_read_as_one_still_counts_w76() -> None:
    """Held under an alias that the settings accept no longer."""
    jms = frozenset({AliasFamily.JMS})
    played = story(bridged(1), bridged(3, end=True), accept_aliases=jms)
    task = played.task
    task.partition.policy = replace(task.partition.policy, accept_aliases=frozenset())
    played.send(told("remove", seq=1))
    assert (task.groups[b"a"].end, task.groups[b"a"].marked) == (3, True)


def test_a_component_that_would_be_refused_by_now_still_counts_w76() -> None:
    """Held while the settings accepted no alias; one of its headers is another group's id now."""
    played = story(c(1), c(3, end=True, user=[("JMSXGroupID", "b")]))
    task = played.task
    task.partition.policy = replace(task.partition.policy, accept_aliases=frozenset({AliasFamily.JMS}))
    played.send(told("remove", seq=1))
    assert (task.groups[b"a"].end, task.groups[b"a"].marked) == (3, True)


def bridged(seq: int, end: bool = False) -> Sent:
    headers: list[tuple[str, bytes | None]] = [("JMSXGroupID", b"a"), ("JMSXGroupSeq", b"%d" % seq)]
    if end:
        headers.append(("JMS_IBM_Last_Msg_In_Group", b"true"))
    return Sent(headers, b"v", b"a")


def test_an_end_that_a_command_declared_outlives_the_component_that_is_removed_w76() -> None:
    played = story(c(1), c(2), told("declare-end", seq=3), told("remove", seq=2))
    assert played.task.groups[b"a"].end == 3
    assert played.send(c(2), c(3)) == [unit(1, 2, 3)]


def test_idleness_counts_from_the_last_component_that_is_left_w76() -> None:
    policy: dict[str, Any] = {"idle_expiration_ms": 100_000, "expiration_policy": ExpirationPolicy.REDIRECT}
    played = story(c(1), c(2, at=80), told("remove", seq=2, at=90), **policy)
    assert played.send(clock(100)) == []
    assert played.send(clock(100.001)) == [given_up(1, "expired", "idle", "2-")]


# -- what comes after -------------------------------------------------------------------------------------------------


def test_a_waived_number_that_comes_after_all_is_held_and_the_unit_is_complete_w203() -> None:
    script = c(1), told("waive", seq="2-3"), c(2), c(4, end=True)
    assert play(*script) == [unit(1, 2, 4, outcome="partial", missing="3")]
    assert play(*script[:3], c(3), c(4, end=True)) == [unit(1, 2, 3, 4)]


def test_a_unit_without_its_waived_numbers_waits_for_the_others_w15_w203() -> None:
    played = story(c(1), told("waive", seq="2,4"), c(5, end=True))
    assert played.open == {"a": "1,5"}
    assert played.send(c(3)) == [unit(1, 3, 5, outcome="partial", missing="2,4")]
    assert (played.units[0].outcome, played.units[0].reason) == (UnitOutcome.PARTIAL, Reason.COMMAND)


def test_waived_numbers_of_a_group_are_bounded_and_the_answer_says_so_w203() -> None:
    """Each command writes all that a group waives once more: 2,850 of them made a row of 10 MiB, and 500 took half a minute."""
    waives = [
        told("waive", seq=",".join(map(str, range(first, first + 600, 2))), command_id=f"from {first}")
        for first in range(3, 60_000, 600)
    ]
    played = story(c(1), *waives)
    answers = [each.text for each in played.answers]
    assert [each.done for each in played.answers] == [True] * 3 + [False] * (len(waives) - 3)
    assert answers[3].startswith(
        "the group would have 1200 separate ranges of waived numbers, and at most 1000 are kept"
    )
    group = played.task.groups[b"a"]
    assert len(group.waived) == 900
    assert len(group_row(group)[1] or b"") < 10_000
    played.send(told("waive", seq="2-60000"))
    assert played.answers[-1].done, "what lies between as well is one range"
    assert played.send(c(60_001, end=True)) == [unit(1, 60_001, outcome="partial", missing="2-60000")]


def test_one_range_that_components_come_into_number_by_number_stays_one_range_w203() -> None:
    """Each of them split it: their row, and what each one more cost, grew with those that were there."""
    played = story(c(1), told("waive", seq="2-2147483646"), **AGE)
    played.send(*[c(number) for number in range(3, 6_000, 2)])
    group = played.task.groups[b"a"]
    assert (group.waived, group.waived_held) == ((Range(2, 2147483646),), 2_999)
    assert seen(group, 0, played.task.context.policy).waived[:2] == (Range(2, 2), Range(4, 4))
    played.send(told("extend", until=200))
    assert played.answers[-1].done
    assert len(group_row(group)[1] or b"") < 100


def test_numbers_taken_out_of_what_is_waived_make_no_more_ranges_than_a_command_may_w203(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command, "MAX_WAIVED_RANGES", 2)
    waived = story(c(1), told("waive", seq=3), told("waive", seq=5), told("waive", seq=7))
    assert [answer.done for answer in waived.answers] == [True, True, False]
    played = story(c(1), told("waive", seq="2-9"), c(4), c(6), told("remove", seq=4))
    assert played.answers[-1].done
    played.send(told("remove", seq=6))
    assert played.answers[-1].text.startswith("the group would have 3 separate ranges of waived numbers")
    assert played.send(c(4), c(10, end=True)) == [unit(1, 4, 6, 10, outcome="partial", missing="2-3,5,7-9")]


def test_ranges_without_numbers_are_what_sets_make_of_them() -> None:
    ranges, whole = (Range(2, 3), Range(7, 7), Range(9, 12)), {2, 3, 7, 9, 10, 11, 12}
    rnd = Random(1)
    for _ in range(200):
        numbers = rnd.sample(range(15), 4)
        assert set(those_in(ranges, numbers)) == whole & set(numbers)
        left = [each for one in without(ranges, numbers) for each in range(one.first, one.last + 1)]
        assert left == sorted(whole - set(numbers))


def test_numbers_waived_beyond_the_end_do_not_count_w203() -> None:
    assert play(c(1), told("waive", seq="3-9"), c(2, end=True)) == [unit(1, 2)]


def test_a_declared_end_is_the_known_end_for_what_comes_after_w28_w203() -> None:
    late, other = c(4), c(2, end=True)
    script = c(1), told("declare-end", seq=3), late, other, c(2)
    assert play(*script) == [refused(late, OutOfSequenceRangeError, "a"), refused(other, OutOfSequenceRangeError, "b")]
    played = story(*script)
    assert played.send(c(3)) == [unit(1, 2, 3)]
    assert played.units[0].reason is Reason.COMMAND
    assert story(*script, c(3, end=True)).units[0].reason is Reason.END


@pytest.mark.parametrize(
    ("script", "seen"),
    [
        ((c(1, deliver_at=60), c(2), told("declare-end", seq=2)), unit(1, 2)),
        ((c(1, deliver_at=60, count=2), told("waive", seq=2)), unit(1, outcome="partial", missing="2")),
    ],
)
def test_a_group_that_a_command_completes_waits_for_deliver_at_w08_w203(script: tuple[Step, ...], seen: Any) -> None:
    assert play(*script) == []
    assert "waits until" in story(*script).answers[0].text
    assert play(*script, clock(60)) == [seen]


def test_an_extended_group_is_given_up_later_and_by_the_same_reason_w203_w211() -> None:
    for settings in AGE, AGE | {"incomplete_expiration_ms": -1, "idle_expiration_ms": 100_000}:
        reason = "age" if settings is AGE else "idle"
        script = c(1), told("extend", until=500)
        assert play(*script, clock(500), **settings) == []
        assert play(*script, clock(500.001), **settings) == [given_up(1, "expired", reason, "2-")]
        assert play(*script, c(2, end=True, at=400), **settings) == [unit(1, 2)]


def test_extend_never_moves_a_components_own_expiry_w203() -> None:
    played = story(c(1, expires_at=50), told("extend", until=500), **AGE)
    assert f"a component expires at {ms(50)} all the same" in played.answers[0].text
    assert [seen.case for seen in played.send(clock(51))] == ["component-expired"]  # type: ignore[union-attr]


def test_without_a_deadline_there_is_nothing_to_extend_w203() -> None:
    (answer,) = story(c(1), told("extend", until=500)).answers
    assert (answer.done, "nothing to extend" in answer.text) == (False, True)


def test_components_after_a_command_closed_the_group_are_late_w85() -> None:
    late = c(2)
    for verb, case in (("cancel", "cancelled"), ("expire", "expired"), ("release", "partial")):
        assert play(c(1), told(verb), late, **AGE)[-1] == refused(late, UnitClosedError, case)
    again = c(1)
    assert play(c(1), c(2, end=True, deliver_at=60), told("release"), again)[-1] == refused(
        again, DuplicateSequenceNumberError, "duplicate"
    )


def test_commands_between_duplicates_and_plain_records_do_not_disturb_them() -> None:
    again = c(1)
    script = c(1), told("waive", seq=2), again, plain(), told("declare-end", seq=3), c(3)
    assert play(*script) == [
        refused(again, DuplicateSequenceNumberError, "duplicate"),
        passed(),
        unit(1, 3, outcome="partial", missing="2"),
    ]


def test_a_command_for_another_partition_is_answered_not_obeyed() -> None:
    played = story(told("cancel", id="a"), told("cancel", id="b"), told("cancel", id="c"), partitions=4)
    texts = [answer.text for answer in played.answers]
    assert len(texts) == 3
    assert any(text.startswith("the id belongs to partition") for text in texts)


# -- between the topics -----------------------------------------------------------------------------------------------


def one_poll(components: list[Sent], at: float, **settings: Any) -> Story:
    """Components, and a `release` that was appended then, in one poll."""
    played = story(**settings)
    records = played.records(components)
    played._take(played.task.process(records, [played.command(told("release", at=at))]))
    return played


def test_components_and_commands_of_one_poll_are_taken_in_the_order_of_their_append_times() -> None:
    components = [c(1, at=1), c(2, at=2), c(3, end=True, at=3)]
    assert one_poll(components, at=0).units[0].count == 3
    assert one_poll(components, at=2).seen == [
        unit(1, 2, outcome="partial", missing="3-"),
        refused(components[2], UnitClosedError, "partial"),
    ]
    assert one_poll(components, at=0).answers[0].text == UNKNOWN


def test_a_command_never_moves_the_clock_w82() -> None:
    played = story(c(1, at=0), told("extend", until=600, at=500), **AGE)
    assert played.answers[0].done, "what was appended in time may lie unread"
    assert played.task.partition.clock == ms(0)


def test_commands_read_again_from_the_log_are_ignored() -> None:
    played = story(c(1))
    order = played.command(told("cancel"))
    played._take(played.task.process([], [order]))
    played._take(played.task.process([], [order]))
    assert len(played.answers) == 1


# -- reading ----------------------------------------------------------------------------------------------------------

GOOD: dict[str, bytes] = {
    "uow-command": b"cancel",
    "uow-command-id": b"x",
    "uow-id": b"a",
    "uow-why": b"because",
}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"uow-command": b"explode"}, "'explode' is none of release, cancel"),
        ({"uow-command": None}, "uow-command is missing"),
        ({"uow-command-id": None}, "uow-command-id is missing"),
        ({"uow-command-id": b"x" * 256}, "longer than 255"),
        ({"uow-id": b""}, "uow-id is missing or empty"),
        ({"uow-id": b"\xff"}, "uow-id is no UTF-8"),
        ({"uow-why": None}, "uow-why is missing"),
        ({"uow-why": b"y" * 5000}, "longer than 4096"),
        ({"uow-user-id": b"\xff"}, "uow-user-id is no UTF-8"),
        ({"uow-dry-run": b"perhaps"}, "neither true nor false"),
        ({"uow-rule": b"r", "uow-command": b"expire"}, "whole rule"),
        ({"uow-command": b"waive"}, "uow-seq is missing"),
        ({"uow-command": b"waive", "uow-seq": b"3-"}, "open end"),
        ({"uow-command": b"waive", "uow-seq": b"4,3"}, "uow-seq"),
        ({"uow-command": b"waive", "uow-seq": b"0"}, "uow-seq"),
        ({"uow-command": b"declare-end", "uow-seq": b"3-4"}, "takes one number"),
        ({"uow-command": b"declare-end", "uow-seq": b"three"}, "uow-seq"),
        ({"uow-command": b"extend"}, "uow-until is missing"),
        ({"uow-command": b"extend", "uow-until": b"soon"}, "no time in epoch milliseconds"),
        ({"uow-command": b"extend", "uow-until": b"0"}, "no time in epoch milliseconds"),
    ],
)
def test_what_is_no_command_is_answered_with_what_is_wrong_w203(change: dict[str, Any], complaint: str) -> None:
    headers = [(name, value) for name, value in (GOOD | change).items() if value is not None]
    bad = read_command(headers)
    assert isinstance(bad, BadCommand)
    assert complaint in bad.complaint
    played = story(c(1))
    played._take(played.task.process([], [FakeRecord(0, headers, None, b"a")]))
    (answer,) = played.answers
    assert (answer.done, answer.text) == (False, f"cannot be read: {bad.complaint}")
    assert played.open == {"a": "1"}


def test_a_header_name_that_is_no_utf8_and_a_repeated_header_are_answered_too() -> None:
    broken = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
    played = story(c(1))
    twice = [*GOOD.items(), ("uow-id", b"b")]
    played._take(played.task.process([], [FakeRecord(0, broken), FakeRecord(1, None), FakeRecord(2, twice)]))
    assert [answer.text.removeprefix("cannot be read: ") for answer in played.answers] == [
        "a header name is no UTF-8",
        "uow-command-id is missing or empty",
        "uow-id is repeated with different values",
    ]


@pytest.mark.parametrize(
    "command",
    [
        Command(b"1", Verb.RELEASE, b"a", "why"),
        Command(b"2", Verb.WAIVE, "größer".encode(), "weil", "Jill", (Range(2, 2), Range(4, 9)), dry_run=True),
        Command(b"3", Verb.DECLARE_END, b"a", "why", None, (Range(7, 7),)),
        Command(b"4", Verb.EXTEND, b"a", "why", until=ms(5)),
    ],
)
def test_what_is_written_is_read(command: Command) -> None:
    assert read_command(command_headers(command)) == command


# -- small parts ------------------------------------------------------------------------------------------------------


def test_ranges_are_sets_of_numbers() -> None:
    some = (Range(2, 4), Range(8, 8))
    assert union(some, (Range(5, 6), Range(8, 10))) == (Range(2, 6), Range(8, 10))
    assert union((), some) == some
    assert without(some, (3, 8, 20)) == (Range(2, 2), Range(4, 4))
    assert without((Range(1, 7),), (4,)) == (Range(1, 3), Range(5, 7))
    assert [count_up_to(some, last) for last in (1, 3, 8, 99)] == [0, 2, 4, 4]


def test_commands_are_forgotten_by_age_and_number_the_oldest_first() -> None:
    memory = CommandMemory(100, 2)
    for number, at in enumerate((0, 50, 60)):
        memory.add(b"%d" % number, at)
    assert list(memory.at_by_id) == [b"1", b"2"]
    memory.add(b"3", 155)
    assert list(memory.at_by_id) == [b"2", b"3"]
    assert b"2" in memory
    memory.add(b"2", 156)
    assert list(memory.at_by_id) == [b"3", b"2"]


def test_a_command_is_forgotten_when_one_comes_that_is_younger_by_more_than_the_retention() -> None:
    memory = CommandMemory(100, 9)
    for name, at in ((b"first", 50), (b"second", 51), (b"late", 10), (b"exactly", 150)):
        memory.add(name, at)
    assert list(memory.at_by_id) == [b"first", b"second", b"exactly"]
    memory.add(b"newest", 151)
    assert list(memory.at_by_id) == [b"second", b"exactly", b"newest"]
    memory.add(b"older", 20)
    assert b"second" in memory, "an older command makes nobody older"
    assert b"older" in memory, "and is not forgotten for the clock of its broker"
    nobody = CommandMemory(100, 0)
    nobody.add(b"first", 50)
    assert nobody.at_by_id == {}


@pytest.mark.parametrize("seed", range(50))
def test_what_is_remembered_of_commands_depends_on_those_since_the_first_remembered_alone_w124_w203(seed: int) -> None:
    """More a restore may not find in the ledger. Append times go back: brokers' clocks differ."""
    rnd = Random(seed)
    memory, added = CommandMemory(100, 5), []
    for number in range(300):
        command = b"%d" % rnd.randrange(40), 10 * number + rnd.randrange(-120, 120)
        if command[0] not in memory:
            memory.add(*command)
            added.append(command)
        again = CommandMemory(100, 5)
        for each in added[min(added.index(known) for known in memory.at_by_id.items()) :]:
            again.add(*each)
        assert list(again.at_by_id.items()) == list(memory.at_by_id.items())


@given(st.text(max_size=5), st.none() | st.text(min_size=1, max_size=5), st.binary(max_size=5))
def test_who_signed_a_command_is_told_by_what_it_is_remembered_by(
    command_id: str, signer: str | None, raw: bytes
) -> None:
    assert signer_of(known_as(command_id.encode(), signer)) == (signer or "").encode()
    signer_of(raw)  # whatever a ledger has


@pytest.mark.parametrize("seed", range(20))
def test_nobody_makes_a_worker_forget_commands_of_somebody_else_by_their_number(seed: int) -> None:
    """Each of three signers, and all those without a signature, as if there were nobody else; under want of memory those without go first."""
    rnd, signers = Random(seed), ("ops", "op", "forwarder", None)
    memory, alone = CommandMemory(1 << 40, 5), [CommandMemory(1 << 40, 5) for _ in signers]
    for at in range(200):
        (number,) = rnd.choices(range(4), (1, 1, 20, 20))
        command_id = known_as(b"%d" % rnd.randrange(40), signers[number])
        memory.add(command_id, at)
        alone[number].add(command_id, at)
    assert memory.at_by_id == ChainMap(*(each.at_by_id for each in alone))
    assert memory.memory_bytes == sum(each.memory_bytes for each in alone)
    memory.shrink(alone[3].memory_bytes)
    assert memory.at_by_id == ChainMap(*(each.at_by_id for each in alone[:3]))


def test_a_released_unit_that_fits_no_record_fails_and_the_answer_says_so_w115() -> None:
    big = c(1, user=[("x", "y" * 2000)], value=b"z" * 900)
    played = story(big, told("release"), record_limit_bytes=2_000)
    assert played.units == []
    assert [outcome.outcome for outcome in played.outcomes] == [UnitOutcome.FAILED]
    assert played.answers[0].text == "fails the group: its unit fits no record"


def test_a_destination_that_forms_no_units_answers_too() -> None:
    played = story(told("cancel"), handling_policy=HandlingPolicy.PASS_THROUGH)
    assert [(answer.done, answer.text) for answer in played.answers] == [(False, UNKNOWN)]


def test_errors_of_commands_are_of_no_fault_class() -> None:
    assert play(c(1), told("cancel")) == [given_up(1, "cancelled", "command", "2-", UowError)]


def test_an_id_forgotten_within_the_poll_of_a_command_is_not_known_to_it_w203() -> None:
    """Else what a command does would depend on where the poll was cut."""
    later, order = c(1, id="b", at=20), told("cancel", at=20)

    def closed_long_ago() -> Story:
        return story(c(1, end=True), closed_retention_ms=10_000)

    apart, at_once = closed_long_ago(), closed_long_ago()
    apart.send(later, order)
    at_once._take(at_once.task.process(at_once.records([later]), [at_once.command(order)]))
    assert [answer.text for answer in at_once.answers] == [answer.text for answer in apart.answers]


def test_a_group_is_closed_at_the_moment_of_the_command_and_the_clock_stays_w203() -> None:
    """On a partition without traffic the clock may be hours behind; components that came before the command may lie unread (W-82)."""
    told_later = story(c(1), told("cancel", at=500), outcomes=OutcomesPolicy.ALL)
    (outcome,) = told_later.outcomes
    assert (outcome.closed_at, told_later.task.clock) == (ms(500), ms(0))
    closed = told_later.task.partition.closed.get(b"a")
    assert closed is not None
    assert closed.at == ms(500)


def test_a_group_is_not_closed_before_the_clock_nor_at_a_time_that_cannot_be_w203() -> None:
    for steps in ((c(1, at=9), told("cancel", at=3)), (latest(60), c(1, at=9), told("cancel", at=3600))):
        (outcome,) = story(*steps, outcomes=OutcomesPolicy.ALL).outcomes
        assert outcome.closed_at == ms(9)
