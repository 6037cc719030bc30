"""Routes: a unit goes, whole, where its own headers say (W-98 to W-102)."""

from __future__ import annotations

from tests.core.script import TOPICS, Story, c, clock, plain, story, unit_of
from uow.processor.engine.outputs import OutputWriter
from uow.processor.engine.ports import Output
from uow.processor.engine.routed_units import RoutedWriter
from uow.topics.policies import ExpirationPolicy, OutcomesPolicy, ViolationPolicy
from uow.topics.routes import Route, RouteMatching, unit_topics
from uow.topics.selector import Selector


def routes(**conditions: str) -> tuple[Route, ...]:
    """Routes by topic."""
    return tuple(Route(Selector(when), to) for to, when in conditions.items())


URGENT = routes(urgent="uow-priority > 5")


def whereabouts(played: Story) -> list[tuple[str, str, tuple[int, ...]]]:
    """Topic, id and numbers of each unit, in order."""
    return [
        (output.topic, unit_of(output).id, tuple(each.seq for each in unit_of(output).components))
        for output in played.outputs
        if ("uow-kind", b"unit") in output.headers and output.topic != TOPICS.outcomes
    ]


def test_rule_true_for_one_component_only_does_not_move_the_unit_w98() -> None:
    played = story(c(1, priority=9), c(2), c(3, end=True, priority=4), routes=URGENT)
    assert whereabouts(played) == [("D.units", "a", (1, 2, 3))]


def test_rule_sees_the_end_components_values_w99() -> None:
    low = c(1, priority=9), c(2, priority=9), c(3, end=True, priority=4)
    high = (c(n, id="b", priority=1 if n < 3 else 7, end=n == 3) for n in (3, 1, 2))
    assert whereabouts(story(*low, *high, routes=URGENT)) == [("D.units", "a", (1, 2, 3)), ("urgent", "b", (1, 2, 3))]


def test_unit_that_no_rule_accepts_goes_to_the_units_topic_w100() -> None:
    assert whereabouts(story(c(1, end=True), routes=routes(other="uow-size > 1"))) == [("D.units", "a", (1,))]


def test_of_two_rules_that_match_the_first_wins_or_all_do_w100() -> None:
    both = routes(one="uow-size = 1", two="uow-outcome = 'complete'", again="uow-size > 1")
    sent = c(1, end=True), c(1, id="b"), c(2, id="b", end=True)
    assert [to for to, *_ in whereabouts(story(*sent, routes=both))] == ["one", "two"]
    everywhere = whereabouts(story(*sent, routes=both, route_matching=RouteMatching.ALL))
    assert [seen[:2] for seen in everywhere] == [("one", "a"), ("two", "a"), ("two", "b"), ("again", "b")]
    none = story(c(1, end=True), routes=routes(x="uow-size > 1"), route_matching=RouteMatching.ALL)
    assert [to for to, *_ in whereabouts(none)] == ["D.units"]


def test_two_rules_to_one_topic_write_the_unit_once_w100() -> None:
    same = (Route(Selector("uow-size = 1"), "one"), Route(Selector("uow-outcome = 'complete'"), "one"))
    played = story(c(1, end=True), routes=same, route_matching=RouteMatching.ALL)
    assert [to for to, *_ in whereabouts(played)] == ["one"]
    assert unit_topics(same, "D.units") == ["D.units", "one"]


def test_priority_lanes_keep_completion_order_and_whole_units_w101() -> None:
    """W-102: priorities that fall inside a unit change nothing in it."""
    orders = "abcdef"
    firsts = [c(1, id=order, priority=9) for order in orders]
    lasts = [c(2, id=order, end=True, priority=8 if order in "bdf" else 1) for order in reversed(orders)]
    lanes = routes(urgent="uow-priority >= 7")
    found = whereabouts(story(*firsts, *lasts, routes=lanes))
    assert [seen[1:] for seen in found if seen[0] == "urgent"] == [(order, (1, 2)) for order in "fdb"]
    assert [seen[1:] for seen in found if seen[0] == "D.units"] == [(order, (1, 2)) for order in "eca"]


def test_partial_units_are_selected_by_their_outcome_w98() -> None:
    played = story(
        c(1, at=0),
        clock(11),
        incomplete_expiration_ms=10_000,
        expiration_policy=ExpirationPolicy.DELIVER_PARTIAL,
        routes=routes(partial="uow-outcome = 'partial' AND uow-missing LIKE '2-%'"),
    )
    assert [to for to, *_ in whereabouts(played)] == ["partial"]


def test_everything_but_units_stays_where_it_belongs_w98() -> None:
    everything = routes(lane="uow-size > 0 OR uow-size IS NULL")
    sent = plain(), c(1), c(2, end=True), c(3), c(1, id="b"), c(1, id="b", value="other")
    settings = {"outcomes": OutcomesPolicy.ALL, "violation_policy": ViolationPolicy.FAIL_GROUP}
    routed, unrouted = story(*sent, routes=everything, **settings), story(*sent, **settings)

    def units_apart(played: Story) -> list[Output]:
        return [one._replace(topic="lane") if ("uow-kind", b"unit") in one.headers else one for one in played.outputs]

    assert routed.outputs == units_apart(unrouted)
    assert "lane" in {output.topic for output in routed.outputs}


def test_partition_number_and_plan_stay_the_units_w103() -> None:
    """The unit, its outcome and the input position are one plan, hence one transaction (W-125)."""
    (plan,) = story(c(1, end=True, priority=9), partitions=1, routes=URGENT, outcomes=OutcomesPolicy.ALL).plans
    assert [(output.topic, output.partition) for output in plan.outputs] == [("urgent", 0), ("D.outcomes", 0)]
    assert plan.next_offset == 1


def test_destination_without_routes_has_the_plain_writer_w98() -> None:
    assert type(story(c(1)).task.writer) is OutputWriter
    assert type(story(c(1), routes=URGENT).task.writer) is RoutedWriter
