"""Who makes room where a rule has as many open groups as it may (`at_max_open_groups = "close_oldest"`, B-37)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.rule_script import Table, r, row, told_by
from tests.core.script import Story, clock, ms, refused, story, told
from tests.core.test_by_rule_order import units_of_full_plans
from tests.core.test_by_rule_release import released
from uow.schemas.error_classes import UnitTooLargeError
from uow.topics.policies import ExpirationPolicy
from uow.topics.rules import AtMaxOpenGroups, DeliverOrder, Release

TWO = {"max_open_groups": 2, "at_max_open_groups": AtMaxOpenGroups.CLOSE_OLDEST}


def rows(more: dict[str, Any] | None = None, **counts: int) -> list[Any]:
    partial, rule = ExpirationPolicy.DELIVER_PARTIAL, TWO | (more or {})
    return [
        row(name, complete_count=count, age_ms=600_000, on_give_up=partial, rule=rule) for name, count in counts.items()
    ]


def units(played: Story) -> list[tuple[str, str]]:
    return [(made.id[-1], made.reason) for made in played.units]


def test_a_unit_that_waits_for_its_release_is_not_given_up_for_another_group_b37_b104() -> None:
    rules = rows({"release": Release.HOLD_ALL}, A=1, B=2, C=2)
    played = told_by(r("A", at=0), r("B", at=1), r("C", at=2), released(at=3), rules=rules)
    assert units(played) == [("B", "limit"), ("A", "count")]


def test_where_only_complete_units_wait_the_newcomer_is_refused_until_one_leaves_b37() -> None:
    rules = rows({"release": Release.HOLD_ALL}, A=1, B=1, C=2)
    newcomer = r("C", at=2)
    played = told_by(r("A", at=0), r("B", at=1), newcomer, released(at=3), r("C", at=4), rules=rules)
    assert units(played) == [("A", "count"), ("B", "count")]
    assert refused(newcomer, UnitTooLargeError, "groups") in played.seen
    assert "low-stock/C" in played.open


@pytest.mark.parametrize("count", [1, 2], ids=["complete", "incomplete"])
def test_no_limit_delivers_a_unit_before_its_time_w08_b37(count: int) -> None:
    steps = [r("A", at=0, deliver_at=ms(20)), r("B", at=1), r("C", at=2)]
    played = told_by(*steps, rules=rows(A=count, B=2, C=2))
    assert units(played) == [("B", "limit")]
    played = told_by(*steps, clock(20), r("D", at=21), rules=rows(A=count, B=2, C=2, D=2))
    assert units(played)[1:] == ([("A", "count")] if count == 1 else [("A", "limit")])


def test_a_unit_that_waits_for_those_before_it_is_not_given_up_b37_b118() -> None:
    rules = rows({"deliver_order": DeliverOrder.FIRST_ARRIVAL}, A=2, B=1, C=2)
    played = told_by(r("A", at=0), r("B", at=1, deliver_at=ms(90)), r("C", at=2), rules=rules)
    assert units(played) == [("A", "limit")]


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("plan_bytes", [0, 1_000_000])
def test_who_makes_room_is_the_same_in_full_plans_and_after_restarts_b37(plan_bytes: int, is_restarted: bool) -> None:
    rules = rows({"deliver_order": DeliverOrder.FIRST_ARRIVAL}, A=2, B=1, C=2, D=2, E=2)
    steps = [r("A", at=0), r("B", at=1), r("C", at=2), r("D", at=3), r("E", at=4, deliver_at=ms(50)), r("C", at=5)]
    seen = units_of_full_plans(plan_bytes, rules, steps, is_restarted=is_restarted)
    assert [unit_id[-1] for unit_id, _ in seen] == ["A", "B", "C", "D"]


@pytest.mark.parametrize("at_limit", AtMaxOpenGroups)
def test_units_that_have_their_turn_in_a_full_plan_take_no_room_b37_b118(at_limit: AtMaxOpenGroups) -> None:
    """The later version of the row allows for fewer groups, and its first component closes the first group as too old."""
    partial, in_order = ExpirationPolicy.DELIVER_PARTIAL, {"deliver_order": DeliverOrder.FIRST_ARRIVAL}
    rules = [
        row(name, version, complete_count=2, age_ms=age_ms, on_give_up=partial, rule=in_order | limit)
        for name, version, age_ms, limit in (
            ("X", 1, 5_000, {"max_open_groups": 3}),
            ("Y", 1, 600_000, {"max_open_groups": 3}),
            ("V", 1, 600_000, {"max_open_groups": 3}),
            ("X", 2, 5_000, {"max_open_groups": 2, "at_max_open_groups": at_limit}),
        )
    ]
    complete = [r("Y", at=2), r("Y", at=3), r("V", at=4), r("V", at=5)]
    steps = [r("X", at=1), *complete, r("X", version=2, at=20), r("X", version=2, at=21)]
    expected = [("X", "partial"), ("Y", "complete"), ("V", "complete"), ("X", "complete")]
    for plan_bytes in (0, 10**9):
        seen = units_of_full_plans(plan_bytes, rules, steps)
        assert [(unit_id[-1], outcome) for unit_id, outcome in seen] == expected


def test_after_a_component_is_removed_its_group_gives_way_before_the_time_of_that_one_b37() -> None:
    """It was the only one whose component said so."""
    early = [r("A", at=0), r("A", at=1, deliver_at=ms(500)), r("B", at=2), r("C", at=3)]
    rules = rows(A=3, B=3, C=3, D=3)
    removed = told("remove", at=4, id="low-stock/A", seq=2)
    played = told_by(*early, removed, r("D", at=5), rules=rules)
    assert [answer.done for answer in played.answers] == [True]
    assert units(played) == [("B", "limit"), ("A", "limit")]


def test_one_group_that_gives_way_later_does_not_have_all_others_looked_through_b37() -> None:
    """Each group that opened looked through all that were open: 0.25 s where they are 100,000."""
    rule = TWO | {"max_open_groups": 500}
    (only,) = [row("A", complete_count=2, age_ms=600_000, on_give_up=ExpirationPolicy.DELIVER_PARTIAL, rule=rule)]
    played = story(r("A", id="first", at=0, deliver_at=ms(900)), rules=Table(only))
    played.send(*(r("A", id=f"before-{number}", at=1) for number in range(499)))
    looked, state = [0], played.task.partition
    gives_way = state._gives_way

    def counted(group: Any) -> bool:
        looked[0] += 1
        return gives_way(group)

    state._gives_way = counted  # type: ignore[method-assign]
    played.send(*(r("A", id=f"after-{number}", at=2) for number in range(100)))
    assert len(played.units) == 100
    assert looked[0] < 1_000
    played.send(clock(900), r("A", id="last", at=901))
    assert played.units[-1].id == "first"
