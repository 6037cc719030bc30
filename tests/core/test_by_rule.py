"""Groups by rule: forming them, giving them up in time (aggregation, 6.4 and 6.5)."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from tests.core.rule_script import Table, r, row, sizes, told_by
from tests.core.script import (
    T0,
    SeenRefusal,
    Sent,
    Story,
    c,
    clock,
    context_of,
    ms,
    policy_of,
    refused,
    story,
    told,
    unit,
)
from tests.fake_record import INPUT
from uow.processor.core import partition
from uow.processor.core.group import Group
from uow.processor.core.partition_state import NOTHING
from uow.processor.engine.task import PartitionTask
from uow.schemas.error_classes import (
    BadSequenceNumberError,
    DecodeError,
    DuplicateSequenceNumberError,
    UnitClosedError,
    UnitTooLargeError,
)
from uow.schemas.records import Reason
from uow.topics.conditions import AllOf, AnyOf, Count, EndFlagWithoutGaps, Not
from uow.topics.grouping import MAX_OPEN_GROUPS, GroupPolicy
from uow.topics.policies import DuplicatePolicy, ExpirationPolicy, Fingerprints, OutcomesPolicy, ViolationPolicy
from uow.topics.rules import AtMaxOpenGroups, BelowMin, Cardinality, DeliverOrder, LateJoin, Numbering, Release

FRANCE = row("France", complete_count=10, age_ms=30_000)
UK = row("UK", complete_count=5, age_ms=15_000)


def group_of(played: Story, name: str = "UK") -> Group:
    return played.task.groups[f"low-stock/{name}".encode()]


def test_the_open_generation_is_found_by_its_key_alone_b28() -> None:
    """The groups are one dictionary by key; it is never scanned, and asked as often among 2,000 as among 10."""

    class Counted(dict[bytes, Group]):
        asked = 0

        def get(self, key: bytes, default: object = None) -> Group:  # type: ignore[override]
            self.asked += 1
            return super().get(key, default)  # type: ignore[arg-type,return-value]

        def __iter__(self) -> object:  # type: ignore[override]
            raise AssertionError("the groups were scanned")

        values = items = keys = __iter__  # type: ignore[assignment]

    def looks_among(groups: int) -> int:
        played = story(*(r("UK", id=f"low-stock/{number}") for number in range(groups)), rules=Table(UK))
        counted = played.task.partition.groups = Counted(played.task.partition.groups)
        played.task.partition.on_records(played.records([r("UK", id="low-stock/7")]))
        return counted.asked

    assert 0 < looks_among(2_000) == looks_among(10)


def test_the_first_component_opens_a_generation_with_its_deadline_b29() -> None:
    played = told_by(r(at=3), rules=[UK])
    group = group_of(played)
    assert (group.generation, [*group.held], group.deadline(played.task.context.policy)) == (1, [1], ms(18))


def test_a_component_gets_the_next_number_and_the_group_stays_open_b30() -> None:
    played = told_by(*(r("France", at=0) for _ in range(5)), rules=[FRANCE])
    assert (played.seen, [*group_of(played, "France").held]) == ([], [1, 2, 3, 4, 5])


def test_the_last_place_completes_the_group_in_the_same_plan_b31() -> None:
    played = told_by(*(r("France", at=0) for _ in range(10)), rules=[FRANCE])
    assert played.seen == [unit(*range(1, 11), id="low-stock/France")]
    assert sizes(played) == [("complete", "count", 10)]
    assert (len(played.plans), played.open) == (1, {})


def test_what_comes_after_opens_the_next_generation_with_a_unit_id_of_its_own_b32() -> None:
    played = told_by(*(r(at=0) for _ in range(10)), r(at=1), rules=[UK])
    assert sizes(played) == [("complete", "count", 5)] * 2
    first, second = played.units
    assert (first.generation, second.generation, group_of(played).generation) == (1, 2, 3)
    assert first.unit_id != second.unit_id
    assert played.open == {"low-stock/UK": "1"}


def test_each_held_component_has_number_and_coordinates_b33() -> None:
    played = told_by(*(r(at=0) for _ in range(3)), clock(16), rules=[UK])
    (made,) = played.units
    assert [(each.seq, each.source.offset) for each in made.components] == [(1, 0), (2, 1), (3, 2)]
    assert len({each.component_id for each in made.components}) == 3  # the coordinates of the input


def test_count_one_closes_on_the_first_component_b34() -> None:
    played = told_by(*(r(at=0) for _ in range(3)), rules=[row(complete_count=1)])
    assert sizes(played) == [("complete", "count", 1)] * 3


def test_a_row_without_count_closes_by_time_b35() -> None:
    played = told_by(*(r(at=number / 250) for number in range(1000)), clock(5), rules=[row(age_ms=5_000)])
    assert (played.seen, len(group_of(played).held)) == ([], 1000)
    played.send(clock(5.001))
    assert sizes(played) == [("partial", "age", 1000)]


def test_unit_ids_are_distinct_and_equal_on_replay_b36() -> None:
    records = [r(("UK", "France")[number % 2], at=0) for number in range(2_000)]
    once, again = (story(*records, rules=Table(UK, FRANCE)) for _ in range(2))
    ids = [each.unit_id for each in once.units]
    assert len(set(ids)) == len(ids) == 300
    assert ids == [each.unit_id for each in again.units]


def test_no_unit_is_larger_than_its_row_allows_b04() -> None:
    rnd = Random(4)
    rows = [row(f"n{size}", complete_count=size, age_ms=rnd.choice([None, 500])) for size in range(1, 51)]
    steps = [r(f"n{rnd.randint(1, 50)}", at=number / 100) for number in range(3_000)]
    played = told_by(*steps, clock(1_000), rules=rows)
    assert all(
        int(said["uow-size"] or 0) <= int(str(said["uow-id"]).split("/n")[1][:-1]) for said in played.unit_headers
    )
    assert {said["uow-outcome"] for said in played.unit_headers} == {b"complete", b"partial"}


def test_the_shortest_limit_of_a_component_is_that_of_the_group_b05() -> None:
    shop = row("shop", age_ms=300_000)
    played = told_by(r("shop", at=0, delay=60), r("shop", at=10, delay=5), clock(15), rules=[shop])
    assert played.seen == []
    played.send(clock(15.001))
    assert sizes(played) == [("partial", "age", 2)]


def test_a_components_limit_is_capped_by_the_age_of_its_row_b05() -> None:
    played = told_by(r(at=0, delay=60), clock(15.001), rules=[UK])
    assert sizes(played) == [("partial", "age", 1)]


def test_overrun_is_the_difference_of_deadline_and_closing_time_b07() -> None:
    played = told_by(r(at=0), clock(19), rules=[UK])
    (outcome,) = played.outcomes
    assert (outcome.rule, outcome.deadline_at, outcome.closed_at) == ("low-stock/UK@1", ms(15), ms(19))
    assert played.units[0].closed_at == ms(15.001)  # the bytes of a unit do not depend on who was held up


def test_limits_of_one_destination_never_mix_b02() -> None:
    played = told_by(
        *(r(("A", "B")[number % 2], at=0) for number in range(6)),
        rules=[row("A", complete_count=3), row("B", complete_count=3)],
    )
    assert [(made.id, made.count) for made in played.units] == [("low-stock/A", 3), ("low-stock/B", 3)]


def test_max_open_groups_refuses_the_next_one_or_closes_the_oldest_b37() -> None:
    steps = [r("UK", id=f"low-stock/{number}", at=number) for number in range(3)]
    limited = row(age_ms=60_000, rule={"max_open_groups": 2})
    assert told_by(*steps, rules=[limited]).seen == [refused(steps[2], UnitTooLargeError, "groups")]
    closing = row(age_ms=60_000, rule={"max_open_groups": 2, "at_max_open_groups": AtMaxOpenGroups.CLOSE_OLDEST})
    played = told_by(*steps, rules=[closing])
    assert sizes(played) == [("partial", "limit", 1)]
    assert played.open == {"low-stock/1": "1", "low-stock/2": "1"}


def test_only_while_its_own_step_is_carried_out_a_record_is_in_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure at another group, which it closes first or lets go, is not its own."""

    def fail(now: object, *more: object) -> None:
        raise LookupError

    def in_hand(step: str, *sent: Sent, rules: list[GroupPolicy]) -> int:
        played = told_by(*sent[:-1], rules=rules)
        with monkeypatch.context() as patch:
            patch.setattr(partition, step, fail)
            with pytest.raises(LookupError):
                played.task.on_records(played.records(sent[-1:]))
        return played.task.in_hand

    closing = row(age_ms=60_000, rule={"max_open_groups": 1, "at_max_open_groups": AtMaxOpenGroups.CLOSE_OLDEST})
    several = [r("UK", id=f"low-stock/{number}", at=number) for number in range(2)]
    assert in_hand("decide_oldest", *several, rules=[closing]) == NOTHING
    assert in_hand("decide_assigned", *several, rules=[closing]) == 1
    ordered = [
        row(name, complete_count=2, age_ms=60_000, rule={"deliver_order": DeliverOrder.FIRST_ARRIVAL}) for name in "XY"
    ]
    steps = [r("X", at=0), r("Y", at=1), r("Y", at=2), r("X", at=3)]
    assert in_hand("decide_due", *steps, rules=ordered) == NOTHING
    assert in_hand("decide_assigned", *steps, rules=ordered) == 3


@pytest.mark.parametrize("at_max", AtMaxOpenGroups)
def test_a_tenant_at_its_limit_is_answered_and_another_goes_on_b211(at_max: AtMaxOpenGroups) -> None:
    """Groups, components and bytes of one tenant; another one has its rule on the same partition, and a hostile one makes up names without end."""
    bounded = {"rule_id": "hostile", "max_open_groups": 50, "at_max_open_groups": at_max}
    rows = [row("*", complete_count=2, age_ms=60_000, rule=bounded), UK]
    names = [r("*", rule="hostile", id=f"hostile/{number}", at=0) for number in range(3_000)]
    played = story(*names, *(r(at=0) for _ in range(5)), rules=Table(*rows))
    assert len(played.task.groups) == 50
    outcomes = [each for each in sizes(played) if each[1] != "count"]
    answered = {AtMaxOpenGroups.REJECT: [], AtMaxOpenGroups.CLOSE_OLDEST: [("partial", "limit", 1)] * 2_950}
    assert outcomes == answered[at_max]
    assert ("complete", "count", 5) in sizes(played)
    assert played.counts.rejected == (2_950 if at_max is AtMaxOpenGroups.REJECT else 0)


@pytest.mark.drill
@pytest.mark.timeout(900)
def test_a_million_made_up_names_stay_within_the_limit_b211() -> None:
    """With the limit that holds where a rule says nothing; the other tenant's group is complete in the middle of it."""
    hostile = row("*", complete_count=2, age_ms=600_000, rule={"rule_id": "hostile"})
    played = story(rules=Table(hostile, UK))
    for first in range(0, 1_000_000, 10_000):
        ids = [f"hostile/{number}" for number in range(first, first + 10_000)]
        played.task.process(played.records([r("*", rule="hostile", id=each, at=0) for each in ids]))
        if first == 500_000:
            played.send(*(r(at=0) for _ in range(5)))
    assert len(played.task.groups) == MAX_OPEN_GROUPS
    assert played.counts.rejected == 900_000
    assert sizes(played) == [("complete", "count", 5)]
    assert played.task.memory_bytes < 250_000_000


@pytest.mark.parametrize("settings", [{"max_components": 3}, {"max_bytes": 1_000}])
def test_a_group_with_too_many_components_or_bytes_fails_alone_b211(settings: dict[str, int]) -> None:
    large = row("large", age_ms=60_000, destination=settings)
    other = row("UK", complete_count=2, destination=settings)
    steps = [r("large", at=0, value="x" * 200) for _ in range(4)]
    played = told_by(*steps, r(at=0), r(at=0), rules=[large, other], **settings)
    assert sizes(played) == [("complete", "count", 2)]
    errors = [dict(each.headers) for each in played.outputs if each.topic == "D.errors"]
    assert {(said["uow-error-class"], said["uow-failure-reason"]) for said in errors} == {
        (b"UnitTooLargeError", b"failed")
    }


def test_a_rule_without_a_limit_of_its_own_has_one_b211() -> None:
    assert (UK.max_open_groups, row(rule={"max_open_groups": 7}).max_open_groups) == (MAX_OPEN_GROUPS, 7)


def test_overdue_groups_close_in_order_a_plan_at_a_time_and_new_ones_meanwhile_b219() -> None:
    """After a long stop. The overrun is in each outcome."""
    rnd = Random(219)
    ages = [10_000 + 10 * number for number in rnd.sample(range(300), 300)]
    rows = [row(f"n{age}", age_ms=age, complete_count=9) for age in ages]
    context = context_of(policy_of(outcomes=OutcomesPolicy.ALL), rules=Table(*rows, UK), plan_bytes=500_000)
    played = Story(PartitionTask(INPUT, context))
    played.send(*(r(f"n{age}", at=0) for age in ages))
    looks = 0
    while len(played.task.groups):
        played.send(clock(60))
        looks += 1
        before = len(played.units)
        played.send(*(r(at=60) for _ in range(5)))
        assert len(played.units) == before + 1, "a new group is served between two plans"
    assert 3 < looks < 100
    closed = [one for one in played.outcomes if one.reason is Reason.AGE]
    assert [one.deadline_at for one in closed] == sorted(ms(age / 1000) for age in ages)
    assert all(one.closed_at == ms(60) for one in closed)


def test_a_record_that_is_routed_again_is_a_resend_b38() -> None:
    copies = [r(input="stock.events/1/7", at=0, value=value) for value in ("one", "two")]
    played = told_by(*copies, rules=[UK])
    assert played.seen == [refused(copies[1], DuplicateSequenceNumberError, "resend")]
    assert played.counts.duplicate == 1
    failing = row(complete_count=5, destination={"violation_policy": ViolationPolicy.FAIL_GROUP})
    assert told_by(*copies, rules=[failing]).open == {"low-stock/UK": "1"}
    dropping = row(complete_count=5, destination={"duplicate_policy": DuplicatePolicy.DROP_IDENTICAL})
    assert told_by(*copies, rules=[dropping]).seen == []


REMEMBERED = {"fingerprints": Fingerprints.ALWAYS}


@pytest.mark.parametrize("poll", [1, 3])
@pytest.mark.parametrize("many", [False, True])
def test_no_id_of_a_sender_stands_for_another_record_of_the_input_b38(poll: int, many: bool) -> None:
    """A record brings the coordinates of the next one as its own component id: each of them is a component."""
    rows = [row("UK", complete_count=3, rule={"cardinality": Cardinality.MANY} if many else {})]
    taken = [
        r(input="stock.events/0/1", component_id="stock.events/0/2"),
        r(input="stock.events/0/2"),
        r(input="stock.events/0/3", component_id="sender:stock.events/0/2"),
    ]
    played = story(*taken, rules=Table(*rows), poll=poll)
    assert [len(each.components) for each in played.units] == [3]
    assert not [seen for seen in played.seen if isinstance(seen, SeenRefusal)]
    again = story(*taken[:1], r(input="stock.events/0/9", component_id="stock.events/0/2"), rules=Table(*rows))
    assert [seen.case for seen in again.seen] == ["resend"], "a sender's own id still is one"


def test_an_empty_component_id_is_none_b38() -> None:
    empty = [r(input=f"stock.events/0/{number}", component_id="") for number in range(3)]
    assert [len(each.components) for each in told_by(*empty, rules=[row(complete_count=3)]).units] == [3]


@pytest.mark.parametrize("how", [{"complete_count": 2}, {"complete_bytes": 20}, {"age_ms": 5_000}])
def test_a_copy_of_what_was_delivered_is_a_resend_while_its_unit_is_remembered_b38(how: dict[str, int]) -> None:
    """Whatever completed the unit, and however many of its key came after it. Under another key the same record is another component."""

    def sent(**destination: object) -> tuple[Story, Sent]:
        table = [row(name, destination=destination, **how) for name in ("UK", "France")]
        copies = [
            r(name, input="stock.events/1/7", at=at) for name, at in (("UK", 0), ("UK", 20), ("France", 21), ("UK", 90))
        ]
        steps = [copies[0], *(r(at=number) for number in (1, 8, 9, 18)), *copies[1:]]
        return told_by(*steps, rules=table, closed_retention_ms=60_000), copies[1]

    played, copy = sent(**REMEMBERED)
    refusals = [seen for seen in played.seen if isinstance(seen, SeenRefusal)]
    assert refusals == [refused(copy, DuplicateSequenceNumberError, "resend")]
    assert (played.counts.held, played.counts.duplicate) == (7, 1)
    dropping, _ = sent(duplicate_policy=DuplicatePolicy.DROP_IDENTICAL)
    assert (dropping.counts.held, dropping.counts.duplicate, dropping.counts.rejected) == (7, 1, 0)


def test_a_copy_of_what_was_delivered_is_another_component_unless_copies_are_to_be_found_b38() -> None:
    copies = [r(input="stock.events/1/7", at=at) for at in (0, 2)]
    assert sizes(told_by(*copies, rules=[row(complete_count=1)])) == [("complete", "count", 1)] * 2


@pytest.mark.parametrize("verb", ["cancel", "expire"])
def test_a_copy_of_what_was_given_up_is_taken_b38(verb: str) -> None:
    """An operator sends it again from `D.errors`."""
    giving_up = row(complete_count=5, on_give_up=ExpirationPolicy.REDIRECT, destination=REMEMBERED)
    copies = [r(input="stock.events/1/7", at=at) for at in (0, 2)]
    played = told_by(copies[0], told(verb, id="low-stock/UK", at=1), copies[1], rules=[giving_up])
    assert (played.counts.duplicate, played.open) == (0, {"low-stock/UK": "1"})


def test_units_of_more_than_a_thousand_components_are_not_remembered_by_them_b38() -> None:
    for size, found in ((1_000, 1), (1_001, 0)):
        copies = [r(input="stock.events/1/7", at=at) for at in (0, 2)]
        big = row(complete_count=size, destination=REMEMBERED)
        played = told_by(copies[0], *(r(at=1) for _ in range(size - 1)), copies[1], rules=[big])
        assert (len(played.units), played.counts.duplicate) == (1, found)


def test_a_copy_of_what_waits_for_its_release_is_a_resend_b38() -> None:
    copies = [r(input="stock.events/1/7", at=at) for at in (0, 2)]
    held = row(complete_count=2, rule={"release": Release.HOLD_ALL})
    assert told_by(copies[0], r(at=1), copies[1], rules=[held]).seen == [
        refused(copies[1], DuplicateSequenceNumberError, "resend")
    ]


@pytest.mark.parametrize("has_ids", [True, False])
def test_a_rule_that_no_longer_numbers_refuses_what_comes_for_the_delivered_id_b38_w40(has_ids: bool) -> None:
    """Nobody can tell a copy of a component that a producer sent past the router, without an id."""
    before = row(complete_count=2, destination=REMEMBERED)
    after = row(version=2, rule={"sequence": Numbering.GIVEN}, destination=REMEMBERED)
    late = r(version=2, seq=1, at=2)
    sent = [
        replace(each, headers=[pair for pair in each.headers if has_ids or pair[0] != "uow-input"])
        for each in (r(at=0), r(at=1))
    ]
    assert told_by(*sent, late, rules=[before, after]).seen[1:] == [
        refused(late, DuplicateSequenceNumberError, "duplicate")
    ]


def test_equal_payloads_are_different_components_b39() -> None:
    played = told_by(*(r("France", value="the same", at=0) for _ in range(10)), rules=[FRANCE])
    assert sizes(played) == [("complete", "count", 10)]
    twice = told_by(*(r(component_id="c-1", at=0) for _ in range(2)), rules=[UK])
    assert [seen.case for seen in twice.seen] == ["resend"]


def test_a_group_closes_strictly_after_its_age_b42() -> None:
    played = told_by(r(at=0), clock(15), rules=[UK])
    assert played.seen == []
    played.send(clock(15.001))
    assert sizes(played) == [("partial", "age", 1)]


def test_the_age_counts_from_the_earliest_arrival_b43() -> None:
    played = told_by(r(at=0), r(at=10), r(at=14), clock(15), rules=[UK])
    assert played.seen == []
    played.send(clock(15.001))
    assert sizes(played) == [("partial", "age", 3)]


def test_an_arrival_before_the_first_one_moves_the_deadline_earlier_b43() -> None:
    played = told_by(r(at=5, arrived=5), r(at=6, arrived=2), clock(17.001), rules=[UK])
    assert sizes(played) == [("partial", "age", 2)]


def test_the_age_may_count_from_an_event_time_b43() -> None:
    def event_time(headers: object, value: bytes | None) -> int | str:
        return T0 + int(value) if value and value.isdigit() else "no time in it"

    timed = row(age_ms=15_000, age_from="event:PATH", event_time=event_time)
    bad = r(at=9, value="soon")
    played = told_by(r(at=8, value="7000"), r(at=9, value="3000"), bad, clock(18.001), rules=[timed])
    assert played.seen[0] == refused(bad, DecodeError, "event-time")
    assert sizes(played) == [("partial", "age", 2)]


def test_an_arrival_in_the_future_is_not_believed() -> None:
    played = told_by(r(at=0, arrived=1_000_000), clock(15.001), rules=[UK])
    assert sizes(played) == [("partial", "age", 1)]


def test_nothing_due_writes_nothing_b44() -> None:
    played = told_by(rules=[UK])
    assert played.task.tick(ms(60)) is None
    played.send(r(at=60))
    assert (played.task.tick(ms(70)), played.task.tick(ms(75))) == (None, None)
    assert played.task.tick(ms(75.001)) is not None
    assert played.task.tick(ms(1_000)) is None


def test_one_look_closes_all_that_is_due_in_order_b46() -> None:
    steps = [
        r("UK", id=f"low-stock/{name}", at=at) for name, at in (("e", 1), ("b", 0), ("a", 0), ("d", 0.5), ("c", 0))
    ]
    played = told_by(*sorted(steps, key=lambda sent: sent.at or 0), clock(17), rules=[UK])
    assert [made.id for made in played.units] == [f"low-stock/{name}" for name in "abcde"]
    assert len(played.plans) == 2


def test_the_decision_is_no_component_b47() -> None:
    played = told_by(*(r(at=0) for _ in range(3)), clock(16), rules=[UK])
    (said,) = played.unit_headers
    assert (said["uow-outcome"], said["uow-reason"], said["uow-size"]) == (b"partial", b"age", b"3")
    assert (len(played.units[0].components), said["uow-missing"]) == (3, b"4-5")


@pytest.mark.parametrize("look_first", [False, True])
def test_filling_up_and_falling_due_gives_one_outcome_b48(look_first: bool) -> None:
    nine, tenth = [r("France", at=0) for _ in range(9)], r("France", at=30, arrived=30)
    if not look_first:
        played = told_by(*nine, tenth, clock(30.001), rules=[FRANCE])
        assert sizes(played) == [("complete", "count", 10)]
        return
    played = told_by(*nine, clock(30.001), tenth, rules=[FRANCE])
    assert sizes(played) == [("partial", "age", 9)]
    assert played.open == {"low-stock/France": "1"}


@pytest.mark.parametrize("look", [[], [clock(15.1)]])
def test_a_component_that_arrived_after_the_deadline_opens_the_next_group_b49(look: list[object]) -> None:
    played = told_by(r(at=0), *look, r(at=15.2), rules=[UK])
    assert sizes(played) == [("partial", "age", 1)]
    assert group_of(played).deadline(played.task.context.policy) == ms(30.2)
    assert group_of(played).generation == 2


def test_a_component_at_the_deadline_is_in_time_b49() -> None:
    assert told_by(r(at=0), r(at=15), rules=[UK]).open == {"low-stock/UK": "1-2"}


def test_one_that_arrived_in_time_joins_however_late_it_is_read_b218() -> None:
    """Only the end of the partition gives groups by rule up: the record was on its way through the router."""
    played = told_by(*(r(at=0) for _ in range(3)), r(at=60, arrived=10), r(at=60, arrived=11), rules=[UK])
    assert sizes(played) == [("complete", "count", 5)]


def test_the_clock_of_groups_by_rule_stays_behind_the_routers_b218() -> None:
    played = told_by(r(at=0), rules=[UK])
    assert played.task.tick(ms(60), ms(15)) is None
    assert played.task.tick(ms(60), ms(15.001)) is not None


def test_lenient_lets_a_late_component_join_what_is_still_open_b49() -> None:
    lenient = row(complete_count=5, age_ms=15_000, late_join=LateJoin.LENIENT)
    played = told_by(r(at=0), r(at=15.2), clock(15.3), rules=[lenient])
    assert sizes(played) == [("partial", "age", 2)]


def test_given_numbers_make_a_late_component_late_b49() -> None:
    given = row(age_ms=15_000, rule={"sequence": Numbering.GIVEN})
    late = r(at=15.2, seq=2, end=True)
    played = told_by(r(at=0, seq=1), late, rules=[given])
    assert sizes(played) == [("partial", "age", 1)]
    assert played.seen[1:] == [refused(late, UnitClosedError, "partial")]


def test_given_numbers_are_those_of_a_unit_of_work() -> None:
    given = row(rule={"sequence": Numbering.GIVEN})
    unnumbered = r(at=0)
    played = told_by(r(at=0, seq=2, end=True), unnumbered, r(at=1, seq=1), rules=[given])
    assert played.seen == [refused(unnumbered, BadSequenceNumberError, "a"), unit(1, 2, id="low-stock/UK")]
    assert sizes(played) == [("complete", "end", 2)]


def test_headers_of_numbers_do_not_matter_where_they_are_assigned() -> None:
    played = told_by(r(at=0, seq=9), r(at=0, seq="x", end="maybe", count=1), rules=[row(complete_count=2)])
    assert played.seen == [unit(1, 2, id="low-stock/UK")]


def test_nothing_in_a_group_delivers_nothing_b50() -> None:
    played = told_by(clock(3_600), rules=[UK])
    assert (played.outputs, played.task.tick(ms(7_200))) == ([], None)


def test_fewer_than_the_minimum_go_to_errors_b50() -> None:
    least = row(complete_count=5, age_ms=15_000, min_count=3)
    played = told_by(r(at=0), r(at=1), clock(16), rules=[least])
    assert [(seen.failure, seen.case) for seen in played.seen] == [("expired", "age")] * 2
    discarding = row(age_ms=15_000, min_count=3, on_give_up=ExpirationPolicy.DISCARD)
    assert len(told_by(r(at=0), clock(16), rules=[discarding]).seen) == 1


def test_fewer_than_the_minimum_wait_for_one_more_age_b50() -> None:
    least = row(age_ms=15_000, min_count=3, below_min=BelowMin.EXTEND)
    played = told_by(r(at=0), r(at=1), clock(16), rules=[least])
    group = group_of(played)
    assert (played.seen, group.deadline(played.task.context.policy), group.extended) == ([], ms(30), ms(30))
    played.send(r(at=20), clock(30.001))
    assert sizes(played) == [("partial", "age", 3)]
    after = told_by(r(at=0), clock(100), rules=[least])
    assert group_of(after).extended == ms(105)


def test_what_expires_goes_where_its_row_says() -> None:
    redirecting = row(age_ms=15_000, on_give_up=ExpirationPolicy.REDIRECT)
    played = told_by(r(at=0), clock(16), rules=[redirecting], expiration_policy=ExpirationPolicy.DISCARD)
    assert [(seen.failure, seen.case, seen.missing) for seen in played.seen] == [("expired", "age", "2-")]


def test_idle_counts_from_the_latest_arrival() -> None:
    played = told_by(r(at=0), r(at=4), r(at=8), clock(13), rules=[row(idle_ms=5_000)])
    assert played.seen == []
    played.send(clock(13.001))
    assert sizes(played) == [("partial", "idle", 3)]


def test_conditions_are_joined() -> None:
    both = row(complete_when=AllOf((Count(2), Not(Count(3)))), age_ms=15_000)
    assert sizes(told_by(r(at=0), r(at=0), rules=[both])) == [("complete", "count", 2)]
    either = row(complete_count=4, complete_when=AnyOf((Count(3), EndFlagWithoutGaps())))
    assert sizes(told_by(*(r(at=0) for _ in range(3)), rules=[either])) == [("complete", "count", 3)]


def test_a_row_that_is_not_known_is_read_before_its_record_b13() -> None:
    sent = [r(at=0), r(at=1), r("France", at=1)]
    table = Table(later=[UK, FRANCE])
    played = story(*sent, rules=table)
    assert (played.open, table.reads) == ({"low-stock/UK": "1-2", "low-stock/France": "1"}, 1)


def test_a_row_that_does_not_exist_is_refused_once_all_are_read() -> None:
    bad = [r("Mars", at=0), r("Mars", at=0)]
    table = Table(UK)
    played = story(bad[0], r(at=0), bad[1], rules=table)
    assert played.seen == [refused(each, DecodeError, "uow-rule") for each in bad]
    assert (played.open, table.reads) == ({"low-stock/UK": "1"}, 1)


def test_rules_never_share_a_group_b112() -> None:
    other = row("UK", rule={"rule_id": "returns"}, complete_count=2)
    strangers = [r(rule="returns", id="low-stock/UK", at=0), c(1, id="low-stock/UK", at=0)]
    played = told_by(r(at=0), *strangers, rules=[UK, other])
    assert played.seen == [refused(each, DecodeError, "uow-rule") for each in strangers]
    assert told_by(c(1, at=0), stranger := r(id="a", at=0), rules=[UK]).seen == [
        refused(stranger, DecodeError, "uow-rule")
    ]


def test_an_open_group_keeps_the_version_that_opened_it_b13() -> None:
    newer = row("UK", version=2, complete_count=2, age_ms=15_000)
    played = told_by(r(at=0), r(at=0, version=2), r(at=0, version=2), rules=[UK, newer])
    assert played.open == {"low-stock/UK": "1-3"}
    played.send(r(at=0), r(at=0), r(at=0, version=2), r(at=0, version=2))
    assert sizes(played) == [("complete", "count", 5), ("complete", "count", 2)]
    assert [said["uow-rule"] for said in played.unit_headers] == [b"low-stock/UK@1", b"low-stock/UK@2"]


@pytest.mark.parametrize(
    ("properties", "case"),
    [
        ({"input": "nowhere"}, "uow-input"),
        ({"arrived_at": "soon"}, "uow-arrived-at"),
        ({"delay_ms": "-1"}, "uow-delay-ms"),
        ({"expires_at": "soon"}, "uow-expires-at"),
    ],
)
def test_marks_of_a_router_that_cannot_be_read_are_refused(properties: dict[str, object], case: str) -> None:
    bad = r(at=0, **properties)  # type: ignore[arg-type]
    assert told_by(bad, rules=[UK]).seen == [refused(bad, DecodeError, case)]


def test_commands_act_on_groups_by_rule() -> None:
    played = told_by(r(at=0), r(at=0), told("release", id="low-stock/UK", at=1), rules=[UK])
    assert sizes(played) == [("partial", "command", 2)]
    played.send(r(at=2), told("expire", id="low-stock/UK", at=3))
    assert sizes(played)[1:] == [("partial", "command", 1)]
    played.send(*(r(at=4) for _ in range(3)), told("remove", id="low-stock/UK", seq=2, at=5), r(at=6), r(at=6), r(at=6))
    assert [each.seq for each in played.units[-1].components] == [1, 3, 4, 5, 6]
    played.send(r(at=7), told("waive", id="low-stock/UK", seq=2), told("declare-end", id="low-stock/UK", seq=3))
    assert [answer.done for answer in played.answers[-2:]] == [False, False]
    played.send(told("extend", id="low-stock/UK", until=60), clock(59))
    assert played.open == {"low-stock/UK": "1"}
    played.send(clock(60.001))
    assert sizes(played)[-1] == ("partial", "age", 1)
