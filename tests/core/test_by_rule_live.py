"""Open groups that take a later version of their row (`on_rule_change = "live"`, B-13)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.rule_script import Table, r, row, sizes, told_by
from tests.core.script import Story, Told, clock, context_of, ms, policy_of, text, told
from tests.core.test_by_rule_collections import source
from tests.engine.restored_logs import Logs
from tests.engine.test_by_rule_restored import new_task, restored
from tests.fake_record import INPUT
from uow.processor.core.faulty_groups import GroupFault, Treatment
from uow.processor.engine.restore import restore
from uow.processor.engine.task import PartitionTask
from uow.processor.rules.conditions import measures_of
from uow.schemas.error_classes import InternalError
from uow.topics.conditions import Predicate
from uow.topics.grouping import GroupPolicy
from uow.topics.rules import Cardinality, DeliverOrder, LateJoin, Numbering, OnRuleChange, Release


def live(version: int = 1, **settings: Any) -> GroupPolicy:
    rule = {"on_rule_change": OnRuleChange.LIVE, "version": version} | settings.pop("rule", {})
    return row("UK", version, rule=rule, **settings)


TEN = live(complete_count=10, age_ms=60_000)
FIVE = live(2, complete_count=5, age_ms=60_000)


def changed(version: int = 2, at: float = 1, command_id: str | None = None, name: str = "low-stock/UK") -> Told:
    """The command with which routers make a version known."""
    said = [
        ("uow-command", "rule-change"),
        ("uow-command-id", command_id or f"{name}@{version}"),
        ("uow-rule", f"{name}@{version}"),
        ("uow-why", "version 2"),
    ]
    return Told([(each, text(value)) for each, value in said], name.encode(), at)


def rules_of(played: Story) -> list[bytes | None]:
    return [said["uow-rule"] for said in played.unit_headers]


def seven(**settings: Any) -> list[Any]:
    return [r(at=0, **settings) for _ in range(7)]


def test_a_group_over_its_new_limit_closes_at_once_by_command_b13() -> None:
    played = told_by(*seven(), changed(), rules=[TEN], later=[FIVE])
    assert (played.seen, played.open) == ([], {"low-stock/UK": "1-7"})
    assert (played.answers[0].done, played.answers[0].text) == (True, "open groups of the row take low-stock/UK@2")
    played.send(clock(1))
    assert (sizes(played), rules_of(played)) == ([("complete", "command", 7)], [b"low-stock/UK@2"])


def test_a_snapshot_keeps_its_limit_whoever_says_otherwise_b13() -> None:
    rows = [row(complete_count=10, age_ms=60_000), row(version=2, complete_count=5, age_ms=60_000)]
    played = told_by(*seven(), changed(), r(at=2), r(at=2), clock(3), r(at=3), rules=rows)
    assert "not live" in played.answers[0].text
    assert (sizes(played), rules_of(played)) == ([("complete", "count", 10)], [b"low-stock/UK@1"])


@pytest.mark.parametrize("late_join", LateJoin)
def test_what_comes_before_the_group_is_looked_at_does_not_join_it_b13(late_join: LateJoin) -> None:
    rows = [live(v, complete_count=n, age_ms=60_000, late_join=late_join) for v, n in ((1, 10), (2, 5))]
    played = told_by(*seven(), changed(), r(at=1, version=2), rules=rows)
    assert sizes(played) == [("complete", "command", 7)]
    assert played.open == {"low-stock/UK": "1"}


def test_a_group_that_is_under_its_new_limit_closes_by_it_b13() -> None:
    played = told_by(*seven()[:3], changed(), r(at=1, version=2), r(at=1, version=2), rules=[TEN, FIVE])
    assert sizes(played) == [("complete", "count", 5)]
    shorter = told_by(r(at=0), changed(), clock(20), rules=[TEN, live(2, complete_count=10, age_ms=15_000)])
    assert sizes(shorter) == [("partial", "age", 1)]


def test_repeats_and_older_versions_change_nothing_b13() -> None:
    played = told_by(*seven()[:3], changed(), changed(at=2), changed(at=2, command_id="again"), rules=[TEN, FIVE])
    played.send(changed(1, at=3))
    assert [each.done for each in played.answers] == [True, False, False, False]
    played.send(r(at=4), r(at=4))
    assert (sizes(played), rules_of(played)) == ([("complete", "count", 5)], [b"low-stock/UK@2"])


def test_an_older_stamp_lowers_no_group_that_is_open_or_opens_b13() -> None:
    played = told_by(r(at=0), changed(), *[r(at=2) for _ in range(9)], rules=[TEN, FIVE])
    assert (sizes(played), rules_of(played)) == ([("complete", "count", 5)] * 2, [b"low-stock/UK@2"] * 2)


def test_a_newer_stamp_is_a_version_seen_too_b13() -> None:
    played = told_by(*seven(), r(at=1, version=2), rules=[TEN, FIVE])
    assert (sizes(played), played.open) == ([("complete", "command", 7)], {"low-stock/UK": "1"})


def test_what_waits_and_what_cannot_be_read_or_numbered_so_stays_as_it_is_b13() -> None:
    held = told_by(
        *[r(at=0) for _ in range(7)],
        changed(),
        clock(2),
        rules=[
            live(complete_count=7, age_ms=60_000, rule={"release": Release.HOLD_ALL}),
            live(2, complete_count=5, age_ms=60_000),
        ],
    )
    assert (held.seen, [*held.open.values()]) == ([], ["1-7"])
    predicate = Predicate("sum(quantity) > 5")
    summed = live(2, complete_when=predicate, measures=measures_of([predicate]), age_ms=60_000)
    given = live(2, complete_count=5, rule={"sequence": Numbering.GIVEN})
    for other in (summed, given):
        played = told_by(*seven(), changed(), clock(2), r(at=2), r(at=2), r(at=2), rules=[TEN, other])
        assert (sizes(played), rules_of(played)) == ([("complete", "count", 10)], [b"low-stock/UK@1"])


def test_a_restart_remembers_which_version_holds_b13() -> None:
    logs, rows = Logs(INPUT), [TEN, FIVE]
    played = Story(PartitionTask(INPUT, context_of(policy_of(), rules=Table(*rows))))
    played.send(*seven(), changed())
    for plan in played.plans:
        logs.add(plan)
    played.task = restored(logs, table=Table(*rows))
    played.send(clock(2), *[r(at=3) for _ in range(5)])
    assert (sizes(played), rules_of(played)) == (
        [("complete", "command", 7), ("complete", "count", 5)],
        [b"low-stock/UK@2"] * 2,
    )


def test_many_groups_take_a_version_by_one_row_and_close_in_several_plans_b13() -> None:
    names = [f"n{number}" for number in range(30)]
    context = context_of(policy_of(), rules=Table(TEN, live(2, complete_count=1)), plan_bytes=60_000)
    played = Story(PartitionTask(INPUT, context))
    played.send(*[r("UK", id=f"low-stock/{name}", at=0) for name in names], changed())
    assert [key for key, _ in played.plans[-1].changelog] == [b"\4low-stock/UK"]
    assert {group.ruled.policy.rule for group in played.task.groups.values() if group.ruled} == {"low-stock/UK@2"}
    plans = 0
    while played.task.groups:
        played.send(clock(2))
        plans += 1
    assert plans > 2
    assert sizes(played) == [("complete", "command", 1)] * 30


def test_a_row_that_nobody_wrote_down_is_said_so_once_all_are_read_b13() -> None:
    played = told_by(r(at=0), changed(9), rules=[TEN])
    assert (played.answers[0].done, played.answers[0].text) == (False, "no row low-stock/UK@9 in the rules of D")


def test_a_group_that_is_whole_by_its_live_row_is_restored_with_all_others_b13() -> None:
    """It stood alone when the row came, so that it takes the row in the restore, and leaves its place there."""
    rows = [
        row("UK", version, complete_count=count, rule={"version": version, "on_rule_change": OnRuleChange.LIVE})
        for version, count in ((1, 3), (2, 2))
    ]
    logs, played = Logs(INPUT), Story(new_task(table=Table(*rows)))
    played.send(*[r("UK", at=0, deliver_at=ms(5_000)) for _ in range(2)])
    (group,) = played.task.groups.values()
    played.task.partition.faulty[group.id, group.generation] = GroupFault(InternalError("a defect"), Treatment.ALONE)
    played.send(changed(), *[r("UK", at=2, id=f"low-stock/{number}", version=2) for number in range(3)])
    for plan in played.plans:
        logs.add(plan)
    task = restored(logs, table=Table(later=rows))
    assert len(task.groups) == 4
    assert [each.ruled.waits_since > 0 for each in task.groups.values() if each.ruled].count(True) == 1


@pytest.mark.parametrize("is_restarted", [False, True])
def test_after_a_rule_change_a_command_without_a_generation_means_the_same_group_as_after_a_restart(
    *, is_restarted: bool
) -> None:
    """The older group is whole by the change, and waits for its moment; the newer one takes components, so it is the one that is meant."""
    rule = {"cardinality": Cardinality.MANY}
    rows = [
        live(version, sources=(source("A"), source("B", wanted)), rule=rule | {"version": version})
        for version, wanted in ((1, 3), (2, 1))
    ]
    run = Story(PartitionTask(INPUT, context_of(policy_of(), rules=Table(*rows))))
    key: Any = {"id": "low-stock/x"}
    first = [r(source_name="A", at=0, deliver_at=ms(500), **key), r(source_name="B", at=0, **key)]
    run.send(*first, r(source_name="A", at=1, **key), changed())
    if is_restarted:
        logs = Logs(INPUT)
        for plan in run.plans:
            logs.add(plan)
        run.task = restore(logs, {INPUT.topic: run.task.context}, [INPUT])[INPUT]
    run.send(told("cancel", at=2, **key))
    assert run.answers[-1].done
    assert [each.generation for each in run.task.groups.values()] == [1]


@pytest.mark.parametrize("version", [1, 2])
def test_a_restart_opens_a_group_that_holds_what_only_its_later_version_can_read_b13(version: int) -> None:
    """It took that version by a command, which writes no row of the group: its partition could not be restored any more."""
    web, inside = source("web", 5), source("in", 5)
    before, after = live(complete_count=9, sources=(web,)), live(2, complete_count=9, sources=(web, inside))
    context = context_of(policy_of(), rules=Table(before, after))
    played, logs = Story(PartitionTask(INPUT, context)), Logs(INPUT)
    played.send(r(at=0, source_name="web"), changed(), r(at=2, version=version, source_name="in"))
    for plan in played.plans:
        logs.add(plan)
    (group,) = restore(logs, {context.topics.components: context}, [INPUT])[INPUT].groups.values()
    assert group.ruled is not None
    assert (group.ruled.policy.rule, len(group.held)) == ("low-stock/UK@2", 2)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_group_that_cannot_take_a_third_version_keeps_the_second_whatever_restarts_b13(is_restarted: bool) -> None:
    """Only the latest version was written down, so a restart opened it by the first one."""
    third = live(3, complete_count=2, age_ms=60_000, rule={"sequence": Numbering.GIVEN})
    rows = [live(complete_count=9, age_ms=60_000), live(2, complete_count=3, age_ms=60_000), third]
    context = context_of(policy_of(), rules=Table(*rows))
    played, logs = Story(PartitionTask(INPUT, context)), Logs(INPUT)
    played.send(r(at=0), changed(at=1), changed(3, at=2))
    for plan in played.plans:
        logs.add(plan)
    if is_restarted:
        played.task = restore(logs, {context.topics.components: context}, [INPUT])[INPUT]
    played.send(r(at=3), r(at=3))
    assert (sizes(played), rules_of(played)) == ([("complete", "count", 3)], [b"low-stock/UK@2"])


@pytest.mark.parametrize("is_restarted", [False, True])
def test_nobody_waits_for_a_group_whose_later_version_keeps_no_order_b13_b118(is_restarted: bool) -> None:
    def rows(version: int, order: DeliverOrder) -> list[GroupPolicy]:
        rule = {"on_rule_change": OnRuleChange.LIVE, "version": version, "deliver_order": order}
        return [row(name, version, complete_count=2, age_ms=60_000, rule=rule) for name in "XY"]

    table = Table(*rows(1, DeliverOrder.FIRST_ARRIVAL), *rows(2, DeliverOrder.COMPLETION))
    context = context_of(policy_of(), rules=table)
    played, logs = Story(PartitionTask(INPUT, context)), Logs(INPUT)
    played.send(r("X", at=0), r("Y", at=1), r("Y", at=2), changed(at=3, name="low-stock/X"))
    for plan in played.plans:
        logs.add(plan)
    if is_restarted:
        played.task = restore(logs, {context.topics.components: context}, [INPUT])[INPUT]
    played.send(clock(5), r("X", at=6, version=2))
    assert [made.id for made in played.units] == ["low-stock/Y", "low-stock/X"]
