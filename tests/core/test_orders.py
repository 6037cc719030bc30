"""Orders of arrival: what they never change, and what they do once a component contradicts another (W-10, W-35, W-39)."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.script import SeenUnit, Sent, Story, c, clock, story
from uow.topics.policies import (
    DuplicatePolicy,
    ExpirationPolicy,
    OutcomesPolicy,
    ViolationPolicy,
)

LONGEST = 5
VIOLATIONS = [*ViolationPolicy]


@st.composite
def whole_groups(draw: st.DrawFn) -> list[Sent]:
    """Components 1 to n of one group, with whatever a component may carry; all could have come from different senders."""
    count = draw(st.integers(1, LONGEST))
    told = draw(st.sampled_from(["end", "count", "both"]))
    counted = draw(st.sets(st.integers(1, count), min_size=1)) if told != "end" else set()
    optional = {
        "priority": st.integers(0, 9),
        "type": st.sampled_from(["goods", "books"]),
        "expires_at": st.integers(1_000, 2_000),
        "deliver_at": st.integers(0, 50),
        "delivery_mode": st.sampled_from(["persistent", "non_persistent"]),
    }
    made = []
    for number in range(1, count + 1):
        properties: dict[str, Any] = draw(st.fixed_dictionaries({}, optional=optional))
        if number in counted:
            properties["count"] = count
        end = told != "count" and number == count
        user = draw(st.lists(st.tuples(st.sampled_from(["colour", "size"]), st.sampled_from(["x", "y"])), max_size=2))
        made.append(c(number, end=end, component_id=f"c-{number}", at=0, user=user, **properties))
    return made


def essence(played: Story) -> Any:
    """A unit without the places where its components happened to lie."""
    (one,), (headers,) = played.units, played.unit_headers
    body = [(each.seq, each.end, each.component_id, each.key, each.value, each.headers) for each in one.components]
    return headers, body, one.expires_at, one.count


@given(whole_groups(), st.data(), st.sampled_from(VIOLATIONS))
def test_a_whole_group_gives_the_same_unit_in_any_order_under_both_policies_w10_w39(
    group: list[Sent], data: st.DataObject, policy: ViolationPolicy
) -> None:
    """W-91 to W-93: also its headers."""
    order = data.draw(st.permutations(group))
    options: dict[str, Any] = {"violation_policy": policy, "outcomes": OutcomesPolicy.ALL}
    straight = story(*group, clock(60), **options)
    shuffled = story(*order, clock(60), poll=data.draw(st.integers(1, LONGEST)), **options)
    assert essence(shuffled) == essence(straight)
    assert [type(each) for each in shuffled.seen] == [SeenUnit]
    assert not shuffled.open


@given(whole_groups(), st.data(), st.sampled_from(VIOLATIONS))
def test_equal_duplicates_change_nothing_in_any_order_where_they_are_dropped_w44(
    group: list[Sent], data: st.DataObject, policy: ViolationPolicy
) -> None:
    twice = [*group, data.draw(st.sampled_from(group))]
    order = data.draw(st.permutations(twice))
    options: dict[str, Any] = {"violation_policy": policy, "duplicate_policy": DuplicatePolicy.DROP_IDENTICAL}
    played = story(*order, clock(60), **options)
    assert essence(played) == essence(story(*group, clock(60)))


VIOLATORS = {
    "number above the end": c(LONGEST + 1, value="odd"),
    "a second, lower end": c(1, end=True, value="odd"),
    "a second, higher end": c(LONGEST + 1, end=True, value="odd"),
    "other bytes": c(2, value="odd"),
    "no number": c("x", value="odd"),
    "a count that contradicts": c(1, count=2, value="odd"),
}
"""Components that cannot be in one unit with 1 to 3 and the end mark on 3."""


@pytest.mark.parametrize("violator", VIOLATORS)
def test_fail_group_gives_no_unit_in_any_order_unless_it_was_whole_before_w39(violator: str) -> None:
    clean = [c(1), c(2), c(3, end=True)]
    for order in permutations([*clean, VIOLATORS[violator]]):
        played = story(*order, violation_policy=ViolationPolicy.FAIL_GROUP)
        parts = [story(*order[:length], violation_policy=ViolationPolicy.FAIL_GROUP).seen for length in (1, 2, 3)]
        whole_before = next((seen[0] for seen in parts if [type(each) for each in seen] == [SeenUnit]), None)
        if whole_before is not None:
            assert [each for each in played.seen if isinstance(each, SeenUnit)] == [whole_before]
        else:
            assert not played.units
            assert not played.open
            assert {outcome.outcome for outcome in played.outcomes} == {"failed"}


@pytest.mark.parametrize("violator", VIOLATORS)
def test_reject_component_costs_one_component_of_them_in_any_order_w35(violator: str) -> None:
    """The refused one depends on the order; what is left is whole but for its place, or open and lacks it."""
    clean = [c(1), c(2), c(3, end=True)]
    for order in permutations([*clean, VIOLATORS[violator]]):
        played = story(*order)
        refused = sum(output.topic == "D.rejected" for output in played.outputs)
        assert refused + sum(len(one.numbers) for one in played.seen if isinstance(one, SeenUnit)) + sum(
            len(group.held) for group in played.task.groups.values()
        ) == len(order)
        assert refused >= 1


@pytest.mark.parametrize("policy", [*ExpirationPolicy])
@pytest.mark.parametrize("violations", VIOLATIONS)
def test_what_is_given_up_by_time_does_not_depend_on_the_order_either_w71(
    policy: ExpirationPolicy, violations: ViolationPolicy
) -> None:
    options: dict[str, Any] = {"expiration_policy": policy, "violation_policy": violations}
    told = {
        str(played.seen) + str([line["seq"] for line in played.log_lines]) + str(played.counts)
        for order in permutations([c(number, at=0) for number in (1, 2, 4)])
        for played in [story(*order, clock(20), incomplete_expiration_ms=10_000, **options)]
    }
    assert len(told) == 1
