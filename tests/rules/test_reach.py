"""Rules that no record comes to: what is named is what the router itself never reaches (B-111)."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from tests.fake_record import T0, FakeRecord
from uow.processor.rules.reach import complaints_about_reach
from uow.processor.rules.routing import RecordRouting, RouteTarget, RuleRouting
from uow.processor.rules.rule_set import RuleSet, RuleTables
from uow.topics.catalogue import DestinationTopics
from uow.topics.policies import DestinationPolicy, HandlingPolicy
from uow.topics.record_size import RecordLimit
from uow.topics.routers import RouterSettings
from uow.topics.rules import Change, Numbering, Row, Rule

ALL = Rule("all", 1, "D")
SOME = replace(ALL, rule_id="some", accept="header('kind') == 'some'")
MORE = replace(ALL, rule_id="more", accept="header('kind') == 'more'")
LAST = replace(ALL, rule_id="last")
TRIPS = replace(ALL, rule_id="trips", group_key="request", sequence=Numbering.GIVEN)
HOTELS = replace(TRIPS, rule_id="hotels")
POLICY = DestinationPolicy(handling_policy=HandlingPolicy.SINGLE_MESSAGE_DELIVERY)
RECORDS = [
    [("uow-destination", b"x"), ("kind", kind), ("uow-correlation-id", request)]
    for kind in (b"some", b"more", b"none")
    for request in (b"trips/a/1.1", b"hotels/a/1.1", b"none")
]


def in_order(*several: Rule, version: int = 1) -> RuleSet:
    rules = tuple(replace(rule, priority=place) for place, rule in enumerate(several, 1))
    rows = [Row(rule.rule_id, "*", 1, complete_count=1) for rule in rules if not rule.gathers_replies]
    rows += [Row(rule.rule_id, "*", 1, complete_when="manifest") for rule in rules if rule.gathers_replies]
    changes = tuple(Change(number, "a test", "to see", T0) for number in range(1, version + 1))
    return RuleSet(RuleTables(changes=changes, rules=rules, rows=tuple(rows)))


def named(rules: RuleSet, *routers: tuple[str, ...]) -> list[str]:
    settings = {str(number): RouterSettings(("in",), asked) for number, asked in enumerate(routers or [()])}
    return [each.setting for each in complaints_about_reach(rules, settings)]


@pytest.mark.parametrize("three", [*permutations((ALL, SOME, MORE, LAST, TRIPS, HOTELS), 3)])
def test_of_three_rules_those_are_named_that_the_router_never_reaches_b111(three: tuple[Rule, ...]) -> None:
    rules = in_order(*three)
    target = RouteTarget(DestinationTopics("A", "D"), POLICY, RecordLimit())
    routing = RecordRouting([RuleRouting(rule, rules, target) for rule in rules.rules])
    sent: Any = [FakeRecord(7, headers, b"{}", None) for headers in RECORDS]
    reached = {routing.route(each, each.headers_, T0).rule_id for each in sent}
    assert named(rules) == [f"rule/{rule.rule_id}.priority" for rule in three if rule.rule_id not in reached]


def test_a_rule_that_some_router_reaches_is_good_b111() -> None:
    rules = in_order(ALL, LAST)
    assert named(rules, ("all", "last")) == ["rule/last.priority"]
    assert named(rules, ("all", "last"), ("last",)) == []
    assert named(rules, ("all",)) == [], "no router asks it"
    assert [*complaints_about_reach(rules, {})] == []


def test_of_rules_in_force_nothing_is_said_b15() -> None:
    assert named(in_order(ALL, LAST, version=2)) == []
    assert named(in_order(ALL, replace(LAST, version=2), version=2)) == ["rule/last.priority"]
    assert named(in_order(replace(ALL, version=2), LAST, version=2)) == ["rule/last.priority"]
