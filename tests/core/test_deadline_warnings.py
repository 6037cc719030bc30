"""A warning before the deadline: what a group lacks is told once, in time for a sender to repeat it (B-202)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.rule_script import Table, r, row, told_by
from tests.core.script import TOPICS, Story, c, clock, context_of, given_up, ms, play, policy_of, story, told, unit
from tests.core.test_by_rule_collections import collecting, of, source
from tests.engine.restored_logs import Logs
from tests.engine.test_commands_restored import play as play_to
from tests.engine.test_replay import WIDE, restored
from tests.fake_record import INPUT
from uow.processor.engine.replayable import ReplayLimits
from uow.processor.engine.restore import restore
from uow.processor.engine.task import PartitionTask
from uow.schemas.records import MAX_SEQ, DeadlineWarning, Range, Reason, ranges_text
from uow.topics.conditions import Age
from uow.topics.policies import ExpirationPolicy, OutcomesPolicy
from uow.topics.rules import Numbering

AGE: dict[str, Any] = {
    "incomplete_expiration_ms": 10_000,
    "expiration_policy": ExpirationPolicy.REDIRECT,
    "warn_at_percent": 80,
}


def lacks(played: Story) -> list[tuple[float, float, str, str]]:
    """Of each warning its time, the deadline, the reason, and what is missing; times in seconds of the script."""
    return [
        ((each.at - ms(0)) / 1000, (each.deadline_at - ms(0)) / 1000, each.reason.value, ranges_text(each.missing))
        for each in played.warnings
    ]


def test_a_warning_names_the_missing_numbers_at_its_share_of_the_limit_b202() -> None:
    played = story(c(1, at=0), c(5, end=True, at=3), clock(7.999), **AGE)
    assert played.outputs == []
    played.send(clock(8), clock(9))
    assert played.warnings == [
        DeadlineWarning("a", "D", 1, ms(0), ms(8), ms(10), Reason.AGE, 2, (Range(2, 4),)),
    ]
    (output,) = played.outputs
    assert (output.key, output.partition) == (b"a", 0)
    assert dict(output.headers) == {
        "uow-id": b"a",
        "uow-kind": b"warning",
        "uow-generation": b"1",
        "uow-reason": b"age",
        "uow-missing": b"2-4",
    }
    assert played.counts.warned == 1


def test_a_warned_group_is_completed_or_given_up_like_any_other_b202() -> None:
    begun = c(1, at=0), c(3, end=True), clock(8)
    assert play(*begun, c(2, at=9), **AGE) == [unit(1, 2, 3)]
    assert play(*begun, clock(10.001), **AGE) == [
        given_up(1, "expired", "age", "2"),
        given_up(3, "expired", "age", "2"),
    ]


def test_nothing_is_told_of_a_group_that_is_complete_b202() -> None:
    assert story(c(1, at=0), c(2, end=True, at=7), clock(9), **AGE).warnings == []
    assert story(c(1, at=0), c(2, end=True, deliver_at=60), clock(9), **AGE).warnings == []
    assert story(c(1, at=0), clock(9), **AGE | {"warn_at_percent": 0}).warnings == []


def test_after_a_long_stop_the_warning_comes_with_the_close_as_of_its_own_moment_b202() -> None:
    late = story(c(1, at=0), c(3, end=True), clock(20), **AGE)
    assert [dict(output.headers)["uow-kind"] for output in late.outputs if output.topic == "D.outcomes"] == [
        b"warning",
        b"outcome",
    ]
    assert lacks(late) == [(8, 10, "age", "2")]


@pytest.mark.parametrize("outcomes", OutcomesPolicy)
def test_warnings_are_told_whatever_outcomes_says_b202(outcomes: OutcomesPolicy) -> None:
    assert len(story(c(1, at=0), clock(8), **AGE, outcomes=outcomes).warnings) == 1


def test_each_limit_has_a_share_of_its_own_b202() -> None:
    idle = AGE | {"idle_expiration_ms": 5_000}
    assert lacks(story(c(1, at=0), c(3, at=2), clock(5.9), **idle)) == []
    assert lacks(story(c(1, at=0), c(3, at=2), clock(6), **idle)) == [(6, 7, "idle", "2,4-")]
    played = story(c(1, at=0), c(3, at=2), c(4, at=5), clock(8), **idle)
    assert lacks(played) == [(8, 10, "age", "2,5-")], "the idle limit is passed at ten as well: the age came first"
    assert lacks(story(c(1, at=0, expires_at=5), clock(4), warn_at_percent=80)) == [(4, 5, "component-expired", "2-")]


def test_time_that_the_backlog_tells_counts_like_the_clock_b202() -> None:
    played = story(c(1, at=0), c(1, id="b", at=9), c(2, end=True, at=9.5), **AGE)
    assert [(each.id, each.at) for each in played.warnings] == [("a", ms(8))]
    assert [each.id for each in played.units] == ["a"]


def test_a_group_that_was_extended_is_warned_by_its_new_deadline_and_once_only_b202() -> None:
    longer = told("extend", until=20, at=5)
    assert lacks(story(c(1, at=0), longer, clock(15.9), **AGE)) == []
    assert lacks(story(c(1, at=0), longer, clock(16), clock(19), **AGE)) == [(16, 20, "age", "2-")]
    twice = story(c(1, at=0), clock(8), told("extend", until=20, at=9), clock(19), **AGE)
    assert lacks(twice) == [(8, 10, "age", "2-")]


def test_the_next_group_of_an_id_has_a_warning_of_its_own_b202() -> None:
    again = c(1, at=0), clock(8), clock(3_700), c(1, at=3_700), clock(3_708)
    assert [each.generation for each in story(*again, **AGE, closed_retention_ms=1).warnings] == [1, 1]


def test_a_collection_names_the_sources_that_it_waits_for_b202() -> None:
    rule = collecting(source("invoice"), source("order", 2), age_ms=10_000, destination={"warn_at_percent": 80})
    played = told_by(of("invoice", at=0), of("order", at=2), clock(8), rules=[rule], warn_at_percent=80)
    (told,) = played.warnings
    assert (told.sources, told.missing, told.count, told.rule) == (("order",), (), 2, "low-stock/*@1")
    assert (told.at, told.deadline_at, told.reason) == (ms(8), ms(10), Reason.AGE)


def test_of_a_group_by_rule_numbers_are_told_where_senders_give_them_and_nothing_where_none_is_awaited_b202() -> None:
    own = {"destination": {"warn_at_percent": 50}, "give_up_when": Age(10_000)}
    given = row(**own, rule={"sequence": Numbering.GIVEN})
    played = told_by(r(at=0, seq=1), r(seq=3, end="true"), clock(5), rules=[given], warn_at_percent=50)
    assert [(each.missing, each.sources) for each in played.warnings] == [((Range(2, 2),), ())]
    counted = row(**own, complete_count=3)
    assert told_by(r(at=0), clock(9), rules=[counted], warn_at_percent=50).warnings == []


@pytest.mark.parametrize("limits", [ReplayLimits(), WIDE], ids=["promoted at once", "replayable"])
def test_a_restart_repeats_no_warning_and_forgets_none_b202(limits: ReplayLimits) -> None:
    policy, logs = policy_of(**AGE), Logs(INPUT)
    task = PartitionTask(INPUT, context_of(policy, replay=limits))
    assert play_to(logs, task, [c(1, at=0), c(3)]).warnings == []
    early = play_to(logs, restored(logs, policy, limits), clock(8))
    assert lacks(early) == [(8, 10, "age", "2,4-")]
    logs.compact()
    late = restored(logs, policy, limits)
    assert (late.groups[b"a"].warned_at, late.groups[b"a"].missing()) == (ms(8), (Range(2, 2), Range(4, MAX_SEQ)))
    again = play_to(logs, late, clock(9), clock(10.001))
    assert again.warnings == []
    assert [outcome.outcome for outcome in again.outcomes] == ["expired"]


def test_groups_that_are_all_to_be_warned_at_once_take_several_plans_b202() -> None:
    steps = [c(1, id=f"g{number}", at=0) for number in range(30)]
    played = story(*steps, **AGE)
    played.task.partition.plan_bytes = played.task.partition.left_bytes = 100_000
    plans = len(played.plans)
    for _ in range(4):
        played.send(clock(8))
    assert len(played.plans) > plans + 1
    assert sorted(each.id for each in played.warnings) == sorted(f"g{number}" for number in range(30))


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_warning_by_idle_time_counts_from_the_arrival_like_its_deadline_also_after_a_restart_b202_w124(
    is_restarted: bool,
) -> None:
    policy, logs = policy_of(warn_at_percent=50), Logs(INPUT)
    rule = row("UK", idle_ms=10_000, rule={"sequence": Numbering.GIVEN}, destination={"warn_at_percent": 50})
    context = context_of(policy, rules=Table(rule))
    played = Story(PartitionTask(INPUT, context))
    played.send(r("UK", at=4, arrived=0, seq=1))
    for plan in played.plans:
        logs.add(plan)
    if is_restarted:
        played.task = restore(logs, {TOPICS.components: context}, [INPUT])[INPUT]
    played.send(clock(4.9), clock(5), clock(6))
    assert lacks(played) == [(5, 10, "idle", "2-")]
