"""Open groups inside a group that is open, or to be opened (B-109)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pytest

from tests.cli.test_inspect import LogsInMemory
from uow.cli.show_command import _print_inner
from uow.ops.inner_groups import MOST_SHOWN, InnerGroups
from uow.processor.engine.context import TaskContext
from uow.processor.engine.group_view import Inner
from uow.processor.engine.ports import Committed, Stretch, Tp
from uow.processor.rules.routing import RouteTarget
from uow.processor.rules.row_table import RowTable
from uow.processor.rules.rule_set import RuleSet, RuleTables
from uow.schemas.records import ranges_text
from uow.topics.catalogue import DestinationTopics
from uow.topics.policies import DestinationPolicy, HandlingPolicy
from uow.topics.record_size import INPUT_LIMIT_BYTES, RecordLimit
from uow.topics.routers import RouterSettings
from uow.topics.routes import Route
from uow.topics.rules import DEFAULT_ROW, Change, DefaultGroup, Row, Rule
from uow.topics.selector import Selector

POLICY = DestinationPolicy(handling_policy=HandlingPolicy.SINGLE_MESSAGE_DELIVERY)
BY_DAY = Rule("day", 1, "days", group_key="constant:all", default_group=DefaultGroup.PER_NAME)
BY_ORDER = Rule("order", 1, "orders", group_key="header:uow-id pattern:*-parcel", default_group=DefaultGroup.PER_NAME)
ROUTERS = {
    "days": RouterSettings(("orders.units",), ("day",)),
    "orders": RouterSettings(("parcels.units",), ("order",)),
}


class Cluster:
    """Parcels, of which orders are made, of which days are made; and the logs of all as one reader."""

    def __init__(self, *rules: Rule, **policies: DestinationPolicy) -> None:
        rules = rules or (BY_DAY, BY_ORDER)
        rows = [Row(rule.rule_id, DEFAULT_ROW, 1, complete_count=3) for rule in rules]
        self.rules = RuleSet(RuleTables((Change(1, "", "", 0),), rules, tuple(rows)))
        resolved = {each.resolved.name: each.resolved for each in self.rules.row_versions() if each.resolved}
        self.targets = {
            name: RouteTarget(DestinationTopics("", name), policies.get(name, POLICY), RecordLimit(INPUT_LIMIT_BYTES))
            for name in ("parcels", "orders", "days")
        }
        self.logs = {
            name: LogsInMemory(target.policy, target.topics, rules=RowTable(resolved, name, target.policy))
            for name, target in self.targets.items()
        }
        self.read_from: list[str] = []

    def routed(self, destination: str, rule: str, *numbers: int, name: str = "", at: int = 0) -> None:
        """Components that a router made."""
        for number in numbers:
            stamps = [("uow-rule", f"{rule}/*@1".encode()), ("uow-input", b"t/0/%d" % number)]
            self.logs[destination].arrive(f"{rule}/{name or 'all'}", number, at=at, headers=stamps)

    def inner(self, group_id: str) -> Inner:
        topics = {
            name: [target.topics.units, *[route.to for route in target.policy.routes]]
            for name, target in self.targets.items()
        }
        return InnerGroups(self.rules, topics, self.targets, ROUTERS, self.context, self, 0).of(group_id)

    def context(self, name: str) -> TaskContext | None:
        self.read_from.append(name)
        return self.logs[name].context

    def of(self, tps: Sequence[Tp]) -> LogsInMemory:
        return self.logs[tps[0].topic.partition(".")[0].rpartition("-")[2]] if tps else self.logs["days"]

    # -- LogReader

    def committed(self, tps: Sequence[Tp]) -> Mapping[Tp, Committed]:
        return self.of(tps).committed(tps)

    def bounds(self, tps: Sequence[Tp]) -> Mapping[Tp, tuple[int, int]]:
        return {
            tp: bounds
            for each in self.logs.values()
            for tp, bounds in each.bounds([t for t in tps if t in each.logs]).items()
        }

    def read(self, ranges: Mapping[Tp, tuple[int, int]]) -> Iterator[Stretch]:
        for each in self.logs.values():
            yield from each.read({tp: span for tp, span in ranges.items() if tp in each.logs})


def shown(inner: Inner) -> list[tuple[str, str, str, list[object]]]:
    """Destination, id and missing numbers, level by level."""
    return [
        (each.destination, each.group.id, ranges_text(each.group.missing), [*shown(each.inner)])
        for each in inner.groups
    ]


def test_the_gap_of_an_inner_group_is_shown_through_all_levels_b109() -> None:
    kafka = Cluster()
    kafka.routed("days", "day", 1)
    kafka.routed("orders", "order", 1, name="7")
    kafka.logs["parcels"].arrive("7-parcel", 1, 3, end=True)
    kafka.logs["parcels"].arrive("8-parcel", 1)
    inner = kafka.inner("day/all")
    assert shown(inner) == [("orders", "order/7", "2-3", [("parcels", "7-parcel", "2", [])])]
    assert inner.is_certain
    assert inner.groups[0].group.waits_for == "2 more components"
    assert shown(kafka.inner("order/9")) == [], "8-parcel comes to order/8"


def test_a_group_that_is_not_open_yet_may_have_inner_ones_b109() -> None:
    kafka = Cluster()
    kafka.logs["parcels"].arrive("7-parcel", 2)
    assert shown(kafka.inner("order/7")) == [("parcels", "7-parcel", "1,3-", [])]


def test_nothing_is_read_of_destinations_whose_units_go_elsewhere_b109() -> None:
    kafka = Cluster()
    assert (kafka.inner("order/7"), kafka.read_from) == (Inner(), ["parcels"])
    assert (kafka.inner("a unit of work"), kafka.read_from) == (Inner(), ["parcels"])


@pytest.mark.parametrize(
    "rule",
    [
        replace(BY_ORDER, group_key="header:region"),
        replace(BY_ORDER, group_key="key + path:size"),
        replace(BY_ORDER, accept="headers['uow-id'] != 'x'"),
    ],
    ids=["a header of the end component", "the value", "a condition"],
)
def test_what_may_still_change_is_said_b109(rule: Rule) -> None:
    kafka = Cluster(BY_DAY, rule)
    assert kafka.inner("order/7").is_certain, "nothing is open"
    kafka.logs["parcels"].arrive("8-parcel", 1)
    inner = kafka.inner("order/7")
    assert (inner.groups, inner.others, inner.is_certain) == ((), 1, False)


def test_routes_choose_by_what_comes_last_b109() -> None:
    routes = (Route(Selector("region = 'north'"), "parcels.units"),)
    kafka = Cluster(parcels=replace(POLICY, routes=routes))
    kafka.logs["parcels"].arrive("7-parcel", 1)
    assert not kafka.inner("order/7").is_certain


def test_very_many_inner_groups_are_counted_b109() -> None:
    kafka = Cluster()
    for number in range(MOST_SHOWN + 5):
        kafka.routed("orders", "order", 1, name=str(number), at=100 - number)
    inner = kafka.inner("day/all")
    assert (len(inner.groups), inner.more, inner.groups[0].group.id) == (MOST_SHOWN, 5, f"order/{MOST_SHOWN + 4}")


def test_a_rule_that_feeds_itself_is_followed_as_far_as_units_go_b109() -> None:
    kafka = Cluster(replace(BY_DAY, destination="orders"))
    kafka.routed("orders", "day", 1)
    assert shown(kafka.inner("day/all")) == [("orders", "day/all", "2-3", [("orders", "day/all", "2-3", [])])]


def test_the_command_prints_levels_and_doubts_b109(capsys: pytest.CaptureFixture[str]) -> None:
    kafka = Cluster(BY_DAY, replace(BY_ORDER, accept="key != 'x'"))
    kafka.routed("orders", "order", 1, name="7")
    kafka.logs["parcels"].arrive("7-parcel", 1, 3, end=True)
    kafka.logs["parcels"].arrive("8-parcel", 1)
    inner = kafka.inner("day/all")
    _print_inner(inner, 0)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split("\t")[:5] == ["inner group", "destination", "generation", "held", "missing"]
    assert lines[2].split("\t")[:5] == ["order/7", "orders", "1", "1", "2-3"]
    assert lines[3].split("\t")[:6] == ["  7-parcel", "parcels", "1", "2", "2", "numbers 2"]
    assert lines[4].endswith("Other open groups: 1")
    assert inner.row(0)["groups"][0]["inner"]["groups"][0]["missing"] == "2"
    _print_inner(Inner(), 0)
    assert capsys.readouterr().out == ""
