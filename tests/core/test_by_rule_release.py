"""Complete groups that wait for their release (aggregation, B-103 to B-107), and several open groups of one key."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.rule_script import Table, r, row, sizes, told_by
from tests.core.script import (
    T0,
    TOPICS,
    SeenRefusal,
    Story,
    Told,
    c,
    clock,
    context_of,
    ms,
    policy_of,
    refused,
    text,
    told,
)
from tests.engine.restored_logs import Logs
from tests.engine.test_by_rule_restored import restored, write
from tests.fake_record import INPUT
from uow.processor.core import partition
from uow.processor.core.faulty_groups import GroupFault, Treatment
from uow.processor.engine.restore import restore
from uow.processor.engine.task import PartitionTask
from uow.schemas.error_classes import DecodeError, InternalError, OutOfSequenceRangeError
from uow.schemas.records import Range
from uow.topics.grouping import GroupPolicy
from uow.topics.policies import ExpirationPolicy, ViolationPolicy
from uow.topics.rules import AtWaitingLimit, Cardinality, DeliverOrder, Numbering, Release, Source


def released(rule: str = "low-stock", at: float | None = None, command_id: str | None = None) -> Told:
    """A release of a whole rule."""
    said = [
        ("uow-command", "release"),
        ("uow-command-id", command_id or f"release {at}"),
        ("uow-rule", rule),
        ("uow-why", "now"),
    ]
    return Told([(name, text(value)) for name, value in said], rule.encode(), at)


def holding(release: Release, **rule: Any) -> GroupPolicy:
    return row(complete_count=2, age_ms=600_000, rule={"release": release} | rule)


def twice(at: float, name: str = "UK") -> list[Any]:
    return [r(name, at=at), r(name, at=at)]


def values(played: Story) -> list[tuple[int, int]]:
    return [(made.generation, made.count) for made in played.units]


def test_auto_delivers_at_completion_and_a_release_finds_nothing_b103() -> None:
    played = told_by(*twice(0), released(at=1), rules=[holding(Release.AUTO)])
    assert values(played) == [(1, 2)]
    assert played.answers[0].text.startswith("nothing waiting")


def test_hold_all_lets_all_waiting_go_in_order_of_completion_b104() -> None:
    played = told_by(*twice(0), *twice(1), *twice(2), r(at=3), rules=[holding(Release.HOLD_ALL)])
    assert (played.seen, len(played.task.groups)) == ([], 4)
    played.send(released(at=4))
    assert values(played) == [(1, 2), (2, 2), (3, 2)]
    assert [group.generation for group in played.task.groups.values()] == [4]
    assert sizes(played) == [("complete", "count", 2)] * 3


def test_hold_first_keeps_one_credit_at_most_b105() -> None:
    played = told_by(released(at=0), released(at=0.5), *twice(1), *twice(2), rules=[holding(Release.HOLD_FIRST)])
    assert values(played) == [(1, 2)]
    played.send(released(at=3))
    assert values(played) == [(1, 2), (2, 2)]
    assert [answer.done for answer in played.answers] == [True, True, True]


def test_releases_of_rules_that_nobody_has_are_bounded_b105(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "MAX_CREDITS", 2)
    played = told_by(*[released(f"rule-{number % 3}", at=number) for number in range(4)])
    assert [answer.done for answer in played.answers] == [True, True, False, True]
    assert played.task.partition.credits == {"rule-0", "rule-1"}


def test_hold_first_lets_one_go_for_each_release_b105() -> None:
    played = told_by(*twice(0), *twice(1), released(at=2), rules=[holding(Release.HOLD_FIRST)])
    assert values(played) == [(1, 2)]


def fails(played: Story, treatment: Treatment) -> None:
    """The code failed at the only open group."""
    (group,) = played.task.groups.values()
    played.task.partition.faulty[group.id, group.generation] = GroupFault(InternalError("a defect"), treatment)


def test_a_release_where_only_groups_that_stand_alone_wait_is_no_credit_for_the_next_one() -> None:
    played = told_by(*twice(0), rules=[holding(Release.HOLD_FIRST)])
    fails(played, Treatment.ALONE)
    played.send(released(at=1))
    assert (values(played), played.task.partition.credits) == ([], set())
    assert not played.answers[0].done
    assert played.answers[0].text == "nothing waiting"


def test_the_answer_to_a_release_says_that_the_code_failed_at_the_unit_and_nothing_was_delivered() -> None:
    played = told_by(*twice(0), rules=[holding(Release.HOLD_ALL)])
    fails(played, Treatment.FAILS_AS_UNIT)
    played.send(released(at=1))
    assert (values(played), [each.done for each in played.answers]) == ([], [False])
    assert played.answers[0].text == "fails the group: the code failed at its unit, which is a defect of uow"


def test_the_clock_may_release_b106() -> None:
    zero = -(T0 % 60_000) / 1000  # a full minute
    hold = holding(Release.HOLD_ALL, release_every_ms=60_000)
    steps = [*twice(zero + 70), *twice(zero + 110), clock(zero + 119.9), *twice(zero + 119.95)]
    played = told_by(*steps, clock(zero + 120), rules=[hold])
    assert values(played) == [(1, 2), (2, 2), (3, 2)]
    played.send(*twice(zero + 121), clock(zero + 179))
    assert len(values(played)) == 3
    played.send(clock(zero + 180))
    assert len(values(played)) == 4


def test_one_named_waiting_group_may_be_let_go_b106() -> None:
    played = told_by(
        *twice(0), *twice(1), r(at=2), told("release", id="low-stock/UK", at=3), rules=[holding(Release.HOLD_ALL)]
    )
    assert values(played) == [(1, 2)]
    assert played.answers[0].text == "delivers 2 components, which waited"


def test_waiting_groups_survive_a_restart_b107() -> None:
    hold = holding(Release.HOLD_FIRST)
    logs, _ = write(*twice(0), *twice(0), *twice(1), r(at=2), rows=[hold])
    after = Story(restored(logs, table=Table(hold)), offset=7)
    assert values(after) == []
    for expected in (1, 2, 3):
        after.send(released(at=3 + expected))
        assert [made.generation for made in after.units] == [*range(1, expected + 1)]
    after.send(released(at=9, command_id="credit"))
    for plan in after.plans:
        logs.add(plan)
    again = Story(restored(logs, table=Table(hold)), offset=7)
    again.send(r(at=10), *twice(11))
    assert values(again) == [(4, 2)]
    assert len(again.task.groups) == 1


@pytest.mark.parametrize("at_limit", list(AtWaitingLimit))
def test_waiting_is_bounded_by_number_and_age_b107(at_limit: AtWaitingLimit) -> None:
    rules = [holding(Release.HOLD_ALL, max_waiting=1, waiting_age_ms=60_000, at_waiting_limit=at_limit)]
    played = told_by(*twice(0), *twice(1), clock(61), rules=rules)
    seen = len(played.seen)
    played.send(clock(61.001))
    if at_limit is AtWaitingLimit.DELIVER:
        assert (seen, values(played)) == (1, [(1, 2), (2, 2)])
    else:
        assert (seen, values(played)) == (2, [])
        assert [(each.outcome, each.reason) for each in played.outcomes] == [("failed", "limit")] * 2


def test_a_unit_that_waits_for_its_time_alone_has_no_limit_of_waiting_w08_b107() -> None:
    """It failed where its time came in the very millisecond after `waiting_age_ms`."""
    rules = [holding(Release.AUTO, waiting_age_ms=20_000, at_waiting_limit=AtWaitingLimit.REDIRECT)]
    for at in (20.999, 21.001, 21.002):
        played = told_by(r(at=1, deliver_at=ms(at)), r(at=1), clock(22), rules=rules)
        assert (sizes(played), played.outcomes) == ([("complete", "count", 2)], [])


def test_what_waits_for_its_time_makes_room_for_the_next_group_w08() -> None:
    steps = [r(at=0, deliver_at=ms(20)), r(at=0), r(at=1), clock(19.9)]
    played = told_by(*steps, rules=[row(complete_count=2, age_ms=15_000)])
    assert [(each, size) for _, each, size in sizes(played)] == [("age", 1)]
    played.send(clock(20))
    assert sizes(played)[1:] == [("complete", "count", 2)]
    assert [made.generation for made in played.units] == [2, 1]
    played.send(r(at=21))
    assert [group.generation for group in played.task.groups.values()] == [3]


def test_a_numbered_group_that_waits_takes_no_more_b104() -> None:
    hold = row(complete_count=2, rule={"release": Release.HOLD_ALL, "sequence": Numbering.GIVEN})
    late = r(at=1, seq=7)
    played = told_by(r(at=0, seq=1), r(at=0, seq=2), late, released(at=2), rules=[hold])
    assert played.seen[0] == refused(late, OutOfSequenceRangeError, "a")
    assert values(played) == [(1, 2)]


def test_a_command_that_names_a_generation_closes_that_one_and_no_other_b75() -> None:
    rules = [holding(Release.HOLD_ALL)]
    played = told_by(*twice(0), *twice(1), r(at=2), rules=rules)

    def expired(generation: int, at: float, dry_run: bool = False) -> Told:
        return told("expire", id="low-stock/UK", at=at, generation=generation, dry_run=dry_run)

    played.send(expired(2, 3, dry_run=True), r(at=3.5))
    assert values(played) == []
    held = [len(group.held) for group in played.task.groups.values()]
    assert (held, played.seen) == ([2, 2, 2], []), (
        "a dry run leaves each group in its place: the component joined the third"
    )
    played.send(expired(2, 4), expired(2, 5), expired(1, 6), expired(9, 7))
    assert values(played) == [(2, 2), (1, 2)]
    assert [each.done for each in played.answers] == [False, True, False, True, False]
    assert played.answers[2].text == "generation 2 of this id is not open"


def test_a_flush_gives_up_now_as_the_row_says_and_answer_and_outcome_tell_who_and_why_b75() -> None:
    order = told("expire", id="low-stock/UK", at=1, by="Jill", why="closing time", command_id="flush")
    for on_give_up, seen in ((ExpirationPolicy.DELIVER_PARTIAL, "partial"), (ExpirationPolicy.REDIRECT, "expired")):
        rules = [row(complete_count=9, age_ms=60_000, on_give_up=on_give_up)]
        played = told_by(*[r(at=0) for _ in range(4)], order, r(at=2), rules=rules)
        (answer,), (outcome,) = played.answers, played.outcomes
        assert (answer.done, answer.by, answer.why) == (True, "Jill", "closing time")
        assert (outcome.outcome, outcome.reason, outcome.count, outcome.command_id) == (seen, "command", 4, "flush")
        assert [made.count for made in played.units] == [4] * (seen == "partial")
        assert [group.generation for group in played.task.groups.values()] == [2], "what comes later opens the next one"


def test_a_cancelled_group_is_told_of_and_delivers_nothing_b210() -> None:
    order = told("cancel", id="low-stock/UK", at=1, by="Jill")
    played = told_by(*[r(at=0) for _ in range(3)], order, rules=[row(complete_count=9)])
    (outcome,) = played.outcomes
    assert (outcome.outcome, outcome.count, outcome.target) == ("cancelled", 3, None)
    assert (played.units, played.open) == ([], {})
    errors = [dict(each.headers) for each in played.outputs if each.topic == TOPICS.errors]
    assert [each["uow-failure-reason"] for each in errors] == [b"cancelled"] * 3
    assert [each["uow-error-text"] for each in errors] == [b"the group cancelled: command: because"] * 3


@pytest.mark.parametrize("odd", ["low-stock/UK\0", "low-stock/UK\0\0", "low-stock/UK" + "\0" * 240])
def test_waiting_groups_whose_ids_differ_in_nul_alone_each_leave_whole_b104(odd: str) -> None:
    """An id is up to 255 bytes of text, and NUL is text."""
    played = told_by(
        *twice(0), r(at=1, id=odd), r(at=1, id=odd), *twice(2), released(at=3), rules=[holding(Release.HOLD_ALL)]
    )
    assert [(made.id, made.generation, made.count) for made in played.units] == [
        ("low-stock/UK", 1, 2),
        (odd, 1, 2),
        ("low-stock/UK", 2, 2),
    ]
    assert (played.task.groups, played.task.partition.counts.open) == ({}, 0)


@pytest.mark.parametrize("end", [False, True])
@pytest.mark.parametrize("beside", [0, 40], ids=["alone", "in bulk"])
def test_a_plain_component_of_an_id_whose_groups_wait_is_refused_b104_b112(beside: int, end: bool) -> None:
    """The group of the id is open until it leaves, though it takes nothing more."""
    plain = [c(1, end=True, id=f"other-{number}", at=1) for number in range(beside)]
    odd = c(1, end=end, id="low-stock/UK", at=1)
    played = told_by(*twice(0), *twice(0.5), *plain, odd, rules=[holding(Release.HOLD_ALL)])
    assert [each for each in played.seen if isinstance(each, SeenRefusal)] == [refused(odd, DecodeError, "uow-rule")]
    played.send(released(at=2), c(2, end=True, id="low-stock/UK", at=3))
    assert [(made.generation, made.count) for made in played.units if made.id == "low-stock/UK"] == [(1, 2), (2, 2)]
    assert (played.task.groups, played.task.partition.counts.open) == ({}, 0)


def test_a_component_that_violates_its_id_leaves_a_waiting_group_alone_under_fail_group_w39_b104() -> None:
    hold = holding(Release.HOLD_ALL)
    played = told_by(
        *twice(0),
        c(0, id="low-stock/UK", at=1),
        released(at=2),
        rules=[hold],
        violation_policy=ViolationPolicy.FAIL_GROUP,
    )
    assert values(played) == [(1, 2)]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_refused_component_leaves_a_waiting_group_where_it_was(is_restarted: bool) -> None:
    """It had the place of its key then, and components of another rule were refused for it until a restart."""
    held = row("held", complete_count=1, rule={"rule_id": "held", "release": Release.HOLD_FIRST})
    many = {"rule_id": "many", "cardinality": Cardinality.MANY}
    table = Table(held, row("many", complete_count=2, sources=(Source("m", "web", 1),), rule=many))
    played, logs = Story(PartitionTask(INPUT, context := context_of(policy_of(), rules=table))), Logs(INPUT)
    played.send(r("held", at=0, rule="held", id="k"))
    assert [each.error for each in played.send(r("many", at=1, rule="many", id="k", source_name=""))] != []
    for plan in played.plans:
        logs.add(plan)
    if is_restarted:
        played.task = restore(logs, {TOPICS.components: context}, [INPUT])[INPUT]
    assert played.send(r("many", at=2, rule="many", id="k", source_name="web")) == []
    assert len(played.task.groups) == 2


@pytest.mark.parametrize("numbering", Numbering)
@pytest.mark.parametrize("number", [1, 2, 3])
def test_no_component_is_taken_out_of_a_group_that_waits_and_is_called_complete_w76_b104(
    numbering: Numbering, number: int
) -> None:
    """It left without number 2, as complete and with nothing missing; what was sent in its place was refused."""
    given = numbering is Numbering.GIVEN
    numbered: list[dict[str, Any]] = [{"seq": 1}, {"seq": 2}, {"seq": 3, "end": "true"}] if given else [{}, {}, {}]
    rule = {"release": Release.HOLD_ALL, "sequence": numbering}
    played = told_by(
        *[r(at=0, **each) for each in numbered],
        told("remove", id="low-stock/UK", seq=number, at=1),
        released(at=2),
        rules=[row(complete_count=None if given else 3, rule=rule)],
    )
    refusal, _ = played.answers
    assert (refusal.done, refusal.text) == (
        False,
        "the group is complete, and waits for its release; cancel it, or let it leave with all that it has",
    )
    assert [(made.count, made.outcome, made.missing) for made in played.units] == [(3, "complete", ())]


@pytest.mark.parametrize(
    ("rule", "sent", "awaited"),
    [
        ({"release": Release.HOLD_ALL}, {}, "its release"),
        ({"release": Release.HOLD_FIRST}, {"deliver_at": ms(20)}, "its release"),
        ({}, {"deliver_at": ms(20)}, "its uow-deliver-at"),
        (
            {"deliver_order": DeliverOrder.FIRST_ARRIVAL},
            {},
            "an earlier group of its rule",
        ),
    ],
)
def test_a_refusal_says_what_the_complete_group_waits_for_w76_b106_b118(
    rule: dict[str, Any], sent: dict[str, Any], awaited: str
) -> None:
    """It told of a release where nothing but time or an older group was awaited."""
    settings: dict[str, Any] = {"complete_count": 2, "rule": rule | {"sequence": Numbering.GIVEN}}
    played = told_by(
        r("FR", at=0, seq=1),
        r("UK", at=0, seq=1, **sent),
        r("UK", at=0, seq=2),
        r("UK", at=1, seq=3),
        told("remove", id="low-stock/UK", seq=2, at=1),
        told("fail", id="low-stock/UK", at=1),
        rules=[row("UK", **settings), row("FR", **settings)],
    )
    said = [each.text.partition("; ")[0] for each in played.answers]
    assert said == [f"the group is complete, and waits for {awaited}"] * 2
    (late,) = [dict(each.headers or []) for each in played.outputs if each.topic == TOPICS.rejected]
    assert f": the unit is complete, and waits for {awaited} (id" in late["uow-error-text"].decode()


def test_a_component_of_a_group_that_is_not_complete_is_taken_out_as_before_w76() -> None:
    played = told_by(
        r(at=0, seq=1),
        r(at=0, seq=2),
        told("remove", id="low-stock/UK", seq=2, at=1),
        r(at=2, seq=3, end="true"),
        r(at=3, seq=2),
        released(at=4),
        rules=[row(rule={"release": Release.HOLD_ALL, "sequence": Numbering.GIVEN})],
    )
    assert [each.done for each in played.answers] == [True, True]
    assert [(made.count, made.outcome) for made in played.units] == [(3, "complete")]


@pytest.mark.parametrize(
    ("rule", "lets_go"),
    [
        ({"release": Release.HOLD_ALL}, released(at=3)),
        ({"release": Release.HOLD_ALL}, told("release", id="low-stock/UK", at=3)),
        ({"release": Release.HOLD_ALL, "waiting_age_ms": 1_000, "at_waiting_limit": AtWaitingLimit.DELIVER}, clock(9)),
        ({"release": Release.HOLD_ALL, "max_waiting": 0, "at_waiting_limit": AtWaitingLimit.DELIVER}, clock(3)),
        ({"release": Release.AUTO}, clock(6)),
    ],
)
def test_a_unit_that_waited_is_partial_where_a_number_was_waived_w203_b107(rule: dict[str, Any], lets_go: Any) -> None:
    """As it is where nothing waits."""
    deliver_at = str(ms(5)) if rule["release"] is Release.AUTO else None
    said = {} if deliver_at is None else {"deliver_at": deliver_at}
    steps = [r(at=0, seq=1, **said), told("waive", id="low-stock/UK", seq="2", at=1), r(at=2, seq=3, end="true")]
    played = told_by(*steps, lets_go, rules=[row(rule={"sequence": Numbering.GIVEN} | rule)])
    (unit,) = played.units
    assert (unit.outcome, unit.reason, unit.missing) == ("partial", "command", (Range(2, 2),))


def test_a_unit_without_a_waived_number_uses_up_the_credit_as_any_other_b105_w203() -> None:
    hold = row(rule={"sequence": Numbering.GIVEN, "release": Release.HOLD_FIRST}, name="*")
    first = [r("*", id="low-stock/1", at=1, seq=1), told("waive", id="low-stock/1", seq="2", at=2)]
    first.append(r("*", id="low-stock/1", at=3, seq=3, end="true"))
    played = told_by(released(at=0), *first, r("*", id="low-stock/2", at=4, seq=1, end="true"), rules=[hold])
    assert [made.id for made in played.units] == ["low-stock/1"]
