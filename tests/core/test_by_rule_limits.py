"""Deadlines by the calendar, the express lane, and groups that close early (B-206 to B-208), as texts of rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.core.rule_script import RULE, Table, r, sizes, told_by
from tests.core.script import Story, clock, context_of, ms, policy_of, refused, told
from tests.core.test_by_rule_live import changed
from tests.engine.restored_logs import Logs
from tests.engine.test_by_rule_restored import restored
from tests.fake_record import INPUT
from uow.processor.engine.group_view import seen
from uow.processor.engine.task import PartitionTask
from uow.processor.rules.conditions import group_policy
from uow.schemas.error_classes import DuplicateSequenceNumberError
from uow.topics.grouping import GroupPolicy
from uow.topics.rules import OnRuleChange, ResolvedRow, Rule
from uow.topics.rules import Row as RuleRow

DAY = 86_400
CLOSING = 100
"""22:15:00 UTC, in seconds of scripts."""
EXPRESS = "urgent(header('uow-type') == 'express')"
ALONE = "urgent(header('uow-type') == 'express', alone)"


def row(version: int = 1, rule: dict[str, Any] | None = None, **settings: Any) -> GroupPolicy:
    said = {"rule_id": RULE, "version": version, "destination": "D"} | (rule or {})
    return group_policy(ResolvedRow(Rule(**said), RuleRow(RULE, "UK", version, **settings)), policy_of())


def at(moment: str, version: int = 1, **rule: Any) -> GroupPolicy:
    return row(version, rule, complete_count=9, give_up_when=f"at({moment})")


# -- by the calendar (B-206)


def test_a_group_closes_at_the_first_moment_of_its_calendar_after_it_opened_b206() -> None:
    steps = r(at=0), r(at=50), clock(CLOSING), r(at=CLOSING), r(at=CLOSING + 0.001)
    played = told_by(*steps, rules=[at("22:15, UTC")])
    assert (sizes(played), played.units[0].closed_at) == ([("partial", "age", 3)], ms(CLOSING + 0.001))
    (group,) = played.task.groups.values()
    assert seen(group, 0, policy_of()).deadline == ms(CLOSING + DAY)


def test_the_calendar_is_asked_for_the_arrival_and_the_earlier_limit_counts_b206() -> None:
    both = row(complete_count=9, age_ms=60_000, give_up_when="at(22:15, UTC)")
    played = told_by(r(at=80, arrived=0), r(at=80), clock(80), rules=[both])
    assert sizes(played) == [("partial", "age", 1)]
    assert played.units[0].closed_at == ms(60.001)
    (group,) = played.task.groups.values()
    assert (seen(group, 0, policy_of()).deadline, seen(group, 0, policy_of()).deadline_by) == (
        ms(CLOSING),
        "at(22:15, UTC)",
    )


class Moved:
    """A calendar that changed while groups were open."""

    def deadline(self, opened_at: int) -> int:
        return opened_at + 1_000


def moved(policy: GroupPolicy) -> GroupPolicy:
    return replace(policy, calendars=tuple([(text, Moved()) for text, _ in policy.calendars]))


@pytest.mark.parametrize("is_changed", [False, True])
def test_a_calendar_that_changes_moves_no_open_group_b206(is_changed: bool) -> None:
    """Also not one that took a later version of its row, which had an hour of its own."""
    rows = [
        at("22:15, UTC", on_rule_change=OnRuleChange.LIVE),
        at("23:15, UTC", 2, on_rule_change=OnRuleChange.LIVE),
    ]
    logs, played = Logs(INPUT), Story(PartitionTask(INPUT, context_of(policy_of(), rules=Table(*rows))))
    played.send(r(at=0), *([changed()] if is_changed else []))
    for plan in played.plans:
        logs.add(plan)
    task = restored(logs, table=Table(*map(moved, rows)))
    deadlines = [seen(group, 0, policy_of()).deadline for group in task.groups.values()]
    assert deadlines == [ms(CLOSING + 3_600 * is_changed)]


# -- urgent components (B-207)


def test_an_urgent_component_closes_its_group_at_once_b207() -> None:
    rows = [row(complete_count=9, complete_when=EXPRESS, age_ms=60_000)]
    played = told_by(r(at=0), r(at=0), r(at=1, type="express"), r(at=1), rules=rows)
    assert sizes(played) == [("complete", "predicate", 3)]
    assert [*played.open.values()] == ["1"]


def test_an_urgent_component_leaves_alone_and_its_group_goes_on_b207() -> None:
    rows = [row(complete_count=3, complete_when=ALONE, age_ms=60_000)]
    steps = r(at=0), r(at=0), r(at=1, type="express"), r(at=1, type="express"), r(at=2), r(at=3)
    played = told_by(*steps, rules=rows)
    assert sizes(played) == [("complete", "predicate", 1)] * 2 + [("complete", "count", 3)]
    assert [made.generation for made in played.units] == [2, 3, 1]
    (group,) = played.task.groups.values()
    assert (group.generation, len(group.held)) == (4, 1)


def test_what_is_held_already_leaves_a_second_time_by_no_express_b207() -> None:
    again = r(at=1, type="express", input="orders/0/7")
    played = told_by(
        r(at=0, input="orders/0/7"), again, rules=[row(complete_count=3, complete_when=ALONE, age_ms=60_000)]
    )
    assert played.seen == [refused(again, DuplicateSequenceNumberError, "resend")]
    assert [*played.open.values()] == ["1"]


def test_a_component_that_cannot_be_read_is_not_urgent_and_not_refused_b207() -> None:
    rows = [row(complete_count=2, complete_when="urgent(priority > 5, alone)", age_ms=60_000)]
    played = told_by(r(at=0, value="{"), r(at=0, value='{"priority": 3}'), r(at=0, value='{"priority": 9}'), rules=rows)
    assert sizes(played) == [("complete", "count", 2), ("complete", "predicate", 1)]


# -- closing early (B-208)


def behind(percent: int = 50, **settings: Any) -> GroupPolicy:
    return row(complete_count=10, age_ms=100_000, give_up_when=f"behind({percent})", **settings)


@pytest.mark.parametrize(
    ("arrivals", "closes", "reason"),
    [
        ([0], 20, "idle"),
        ([0, 15], 40, "idle"),
        ([0, 15, 15, 39], 80, "idle"),
        ([0, 0, 0, 0, 0], 100, "age"),
        ([0, 0, 0, 0, 0, 0, 0], 100, "age"),
    ],
)
def test_a_group_closes_when_its_pace_fills_less_than_its_share_by_the_deadline_b208(
    arrivals: list[int], closes: int, reason: str
) -> None:
    """Ten in 100 s are wanted, and less than five are too few: n components are worth the wait of 20 n seconds."""
    played = told_by(*[r(at=each) for each in arrivals], clock(closes), rules=[behind()])
    assert played.seen == []
    played.send(clock(closes + 0.001))
    assert (sizes(played), played.units[0].closed_at) == ([("partial", reason, len(arrivals))], ms(closes + 0.001))


def test_a_component_that_comes_after_an_early_close_opens_the_next_group_b208() -> None:
    """By arrivals alone: also where it is read together with those before it."""
    played = told_by(r(at=0), r(at=21), rules=[behind()])
    assert (sizes(played), [*played.open.values()]) == ([("partial", "idle", 1)], ["1"])


def test_an_early_close_goes_by_the_earliest_deadline_and_waits_for_what_was_extended_b208() -> None:
    hurried = told_by(r(at=0, delay=10), clock(2.001), rules=[behind()])
    assert sizes(hurried) == [("partial", "idle", 1)]
    patient = told_by(r(at=0), told("extend", id="low-stock/UK", until=30, at=1), clock(30), rules=[behind()])
    assert patient.units == []
    patient.send(clock(30.001))
    assert sizes(patient) == [("partial", "idle", 1)]


def test_an_early_close_may_be_joined_with_a_least_wait_b208() -> None:
    rows = [row(complete_count=10, age_ms=100_000, give_up_when="all(behind(100), age(30000))")]
    played = told_by(r(at=0), clock(30), rules=rows)
    assert played.seen == []
    played.send(clock(30.001))
    assert sizes(played) == [("partial", "age", 1)]
