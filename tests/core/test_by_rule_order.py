"""Units of a rule in the order in which their groups opened (`deliver_order = "first_arrival"`, B-118)."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.core.rule_script import Table, r, row, told_by
from tests.core.script import TOPICS, Step, Story, c, check_counts, clock, context_of, ms, policy_of, told
from tests.engine.restored_logs import Logs
from tests.engine.test_by_rule_restored import restored, write
from tests.fake_record import INPUT
from uow.processor.core import snapshot
from uow.processor.core.changes import Delivered
from uow.processor.core.faulty_groups import GroupFault, Treatment
from uow.processor.engine.ports import Plan
from uow.processor.engine.restore import restore
from uow.processor.engine.task import PartitionTask
from uow.schemas.error_classes import InternalError
from uow.topics.grouping import GroupPolicy
from uow.topics.policies import ExpirationPolicy
from uow.topics.rules import AtMaxOpenGroups, AtWaitingLimit, DeliverOrder


def ordered(name: str, count: int = 2, age_ms: int = 60_000, **settings: Any) -> GroupPolicy:
    return row(
        name, complete_count=count, age_ms=age_ms, rule={"deliver_order": DeliverOrder.FIRST_ARRIVAL}, **settings
    )


RULES = [ordered("X", age_ms=5_000), ordered("Y"), ordered("Z")]


def units(played: Story) -> list[str]:
    return [made.id.partition("/")[2] for made in played.units]


def test_a_complete_group_waits_for_older_open_ones_of_its_rule_b118() -> None:
    steps = [r("Y", at=0), r("Z", at=1), r("Z", at=2), r("Y", at=3)]
    assert units(told_by(*steps, rules=[row(name, complete_count=2, age_ms=60_000) for name in "YZ"])) == ["Z", "Y"]
    played = told_by(*steps[:-1], rules=RULES)
    assert units(played) == []
    played.send(steps[-1])
    assert units(played) == ["Y", "Z"]
    assert [(made.reason, made.closed_at) for made in played.units] == [("count", ms(3)), ("count", ms(2))]


@pytest.mark.parametrize("on_give_up", [ExpirationPolicy.DELIVER_PARTIAL, ExpirationPolicy.REDIRECT])
def test_a_group_that_is_given_up_keeps_nobody_waiting_b118(on_give_up: ExpirationPolicy) -> None:
    rules = [ordered("X", age_ms=5_000, on_give_up=on_give_up), *RULES[1:]]
    played = told_by(r("X", at=0), r("Y", at=1), r("Y", at=2), r("Z", at=3), r("Z", at=3), clock(5), rules=rules)
    assert units(played) == []
    played.send(clock(5.001))
    assert units(played) == ["X"] * (on_give_up is ExpirationPolicy.DELIVER_PARTIAL) + ["Y", "Z"]


def test_a_command_that_closes_the_first_one_lets_the_others_go_b118() -> None:
    played = told_by(r("X", at=0), r("Y", at=1), r("Y", at=1), told("cancel", id="low-stock/X", at=2), rules=RULES)
    assert units(played) == ["Y"]


def test_what_arrived_first_counts_and_not_what_was_read_first_b118() -> None:
    played = told_by(r("Z", at=5, arrived=4), r("Z", at=5, arrived=4), rules=RULES)
    assert units(played) == ["Z"]
    played = told_by(r("Z", at=5, arrived=4), r("Y", at=6, arrived=1), r("Z", at=7), rules=RULES)
    assert units(played) == []
    played.send(r("Y", at=8))
    assert units(played) == ["Y", "Z"]


def test_the_first_one_may_still_wait_for_its_time_w08_b118() -> None:
    steps = [r("X", at=0), r("Y", at=1, deliver_at=ms(20)), r("Y", at=1), r("Z", at=2), r("Z", at=2), clock(6)]
    played = told_by(*steps, rules=RULES)
    assert units(played) == ["X"]
    played.send(clock(19.999))
    assert units(played) == ["X"]
    played.send(clock(20))
    assert units(played) == ["X", "Y", "Z"]


def test_generations_of_one_key_leave_in_their_order_b118() -> None:
    played = told_by(r("X", at=0), *(r("Y", at=number) for number in (1, 2, 3, 4)), r("X", at=4), rules=RULES)
    assert [(made.id[-1], made.generation) for made in played.units] == [("X", 1), ("Y", 1), ("Y", 2)]


@pytest.mark.parametrize("seed", range(6))
def test_no_unit_overtakes_an_older_one_whatever_restarts_b118(seed: int) -> None:
    rnd, now = Random(seed), 0.0
    steps: list[Any] = []
    for _ in range(80):
        now += rnd.choice([0, 0.5, 2])
        steps.append(
            clock(now) if rnd.random() < 0.15 else r(rnd.choice("XYZ"), at=now, arrived=now - rnd.choice([0, 0, 1]))
        )
    steady = told_by(*steps, rules=RULES)
    cut = rnd.randrange(20, 70)
    logs, first = write(*steps[:cut], rows=RULES)
    after = Story(restored(logs, table=Table(*RULES)), offset=first.offset, now=first.now)
    after.send(*steps[cut:])
    assert units(first) + units(after) == units(steady)
    complete = [made for made in steady.units if made.outcome == "complete"]
    assert len(complete) > 5


@pytest.mark.parametrize("is_restarted", [False, True])
def test_what_a_full_plan_left_leaves_before_anything_else_b118(is_restarted: bool) -> None:
    steps = [r("X", at=0), r("Y", at=1), r("Y", at=1), r("X", at=2)]
    rules = [ordered("X"), ordered("Y"), row("other", complete_count=1, rule={"rule_id": "other"})]
    context = context_of(policy_of(), rules=Table(*rules), plan_bytes=0)
    played, logs = Story(PartitionTask(INPUT, context)), Logs(INPUT)
    played.send(*steps)
    assert units(played) == ["X"], "the plan is full"
    for plan in played.plans:
        logs.add(plan)
    if is_restarted:
        played.task = restore(logs, {TOPICS.components: context}, [INPUT])[INPUT]
    played.send(r("other", at=3, rule="other"))
    played.send(r("other", at=3, rule="other"))
    assert units(played) == ["X", "Y", "other"]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_what_a_full_plan_left_waits_for_no_record_and_for_no_router_b118(is_restarted: bool) -> None:
    """It was the last of a burst, and a router's input was blocked: it stayed until the next record."""
    context = context_of(policy_of(), rules=Table(ordered("X"), ordered("Y"), ordered("Z")), plan_bytes=0)
    played, logs = Story(PartitionTask(INPUT, context)), Logs(INPUT)
    played.send(r("X", at=0), r("Y", at=1), r("Z", at=1), r("Z", at=1), r("Y", at=1), r("X", at=2))
    assert (units(played), played.plans[-1].is_cut) == (["X"], True)
    for plan in played.plans:
        logs.add(plan)
    if is_restarted:
        played.task = restore(logs, {TOPICS.components: context}, [INPUT])[INPUT]
    left = []
    while played.task.next_deadline() == 0:
        plan = played.task.tick(ms(1_000), 0)
        assert plan is not None
        played._take(plan)
        left.append(plan.is_cut)
    assert (units(played), left, played.task.clock) == (["X", "Y", "Z"], [True, False], ms(2))
    assert played.task.tick(ms(1_000), 0) is None


@pytest.mark.parametrize("is_restarted", [False, True])
def test_what_a_full_plan_left_leaves_before_a_command_also_if_it_waited_for_its_time_first_w08_b118(
    is_restarted: bool,
) -> None:
    """After a restart it looked like one that waits for its time alone, and was cancelled."""
    context = context_of(policy_of(), rules=Table(ordered("X"), ordered("Y")), plan_bytes=0)
    played, logs = Story(PartitionTask(INPUT, context)), Logs(INPUT)
    played.send(r("X", at=0), r("Y", at=1, deliver_at=ms(5)), r("Y", at=1), r("X", at=6))
    assert units(played) == ["X"], "the plan is full"
    for plan in played.plans:
        logs.add(plan)
    if is_restarted:
        played.task = restore(logs, {TOPICS.components: context}, [INPUT])[INPUT]
    played.now = 7
    cancel = played.command(told("cancel", id="low-stock/Y", at=7))
    for _ in range(2):
        played._take(played.task.process([], [cancel]))
    assert [(made.id, made.closed_at) for made in played.units] == [("low-stock/X", ms(6)), ("low-stock/Y", ms(5))]
    assert [each.text for each in played.answers] == ["the group is closed already: complete, reason count"]


@pytest.mark.parametrize("plan_bytes", [0, 1_000_000])
def test_neither_a_command_nor_a_unit_that_is_due_overtakes_what_a_full_plan_left_b118(plan_bytes: int) -> None:
    policy = policy_of(incomplete_expiration_ms=10_000, expiration_policy=ExpirationPolicy.DELIVER_PARTIAL)
    context = context_of(policy, rules=Table(ordered("X"), ordered("Y")), plan_bytes=plan_bytes)
    steps = [r("X", at=0), r("Y", at=1), r("Y", at=1), r("X", at=2)]

    commanded = Story(PartitionTask(INPUT, context))
    records = commanded.records(steps)
    commanded.now = 3
    cancel = commanded.command(told("cancel", id="low-stock/Y", at=3))
    for _ in range(3):
        commanded._take(commanded.task.process(records, [cancel]))
    assert units(commanded) == ["X", "Y"]
    assert [each.text for each in commanded.answers] == ["the group is closed already: complete, reason count"]

    timed = Story(PartitionTask(INPUT, context))
    timed.send(c(1, id="w", at=0), *steps, *[clock(11)] * 3)
    assert [each.id for each in timed.units] == ["low-stock/X", "low-stock/Y", "w"]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_first_one_that_waits_for_its_time_leaves_by_the_settled_time_whatever_restarts_b118_b218(
    is_restarted: bool,
) -> None:
    context = context_of(
        policy_of(), rules=Table(ordered("X", 1), row("other", complete_count=1, rule={"rule_id": "other"}))
    )
    played, logs = Story(PartitionTask(INPUT, context)), Logs(INPUT)
    played.send(r("X", at=1, deliver_at=ms(20)), r("other", at=30, rule="other", id="other/1"))
    for plan in played.plans:
        logs.add(plan)
    if is_restarted:
        played.task = restore(logs, {TOPICS.components: context}, [INPUT])[INPUT]
    played.send(r("other", at=31, rule="other", id="other/2"))
    assert units(played) == ["1", "2"], "the router may still have to send what belongs to X"
    played.send(clock(32))
    assert units(played) == ["1", "2", "X"]


def test_a_state_that_goes_on_from_a_snapshot_keeps_who_arrived_first_b118_b203() -> None:
    """The audit goes on from one; without the line, what waited in it would have waited for ever."""
    context = context_of(policy_of(), rules=Table(ordered("X"), ordered("Y")))
    played = Story(PartitionTask(INPUT, context))
    *before, last = played.records([r("X", at=0), r("Y", at=1), r("Y", at=1), r("X", at=2)])
    played.task.process(before, [])
    goes_on = PartitionTask(INPUT, context).partition
    snapshot.restore(goes_on, snapshot.take(played.task.partition))
    goes_on.on_records([last])
    left = [each.closed.id for each, _, _ in goes_on.happened.effects if isinstance(each, Delivered)]
    assert left == [b"low-stock/X", b"low-stock/Y"]


@pytest.mark.parametrize("plan_bytes", [0, 1_000_000])
def test_a_group_that_the_same_record_opens_does_not_overtake_what_a_full_plan_left_b118(plan_bytes: int) -> None:
    oldest = {"max_open_groups": 3, "at_max_open_groups": AtMaxOpenGroups.CLOSE_OLDEST}
    rule = {"deliver_order": DeliverOrder.FIRST_ARRIVAL} | oldest
    partial = ExpirationPolicy.DELIVER_PARTIAL
    rows = [row(name, complete_count=2, age_ms=600_000, on_give_up=partial, rule=rule) for name in "VXYZ"]
    played = Story(PartitionTask(INPUT, context_of(policy_of(), rules=Table(*rows), plan_bytes=plan_bytes)))
    complete = [r("Y", at=20), r("Y", at=21), r("V", at=22), r("V", at=23)]
    played.send(r("X", at=6), *complete, r("Z", at=30, arrived=13), clock(31), clock(31))
    assert units(played) == ["X", "Y", "V"]


def test_a_group_that_closes_the_first_one_to_make_room_does_not_wait_for_it_b37_b118() -> None:
    """It was complete at once, and stayed until the routers' inputs were read, or a restart."""
    rule = {"deliver_order": DeliverOrder.FIRST_ARRIVAL, "max_open_groups": 1}
    rule |= {"at_max_open_groups": AtMaxOpenGroups.CLOSE_OLDEST}
    partial = ExpirationPolicy.DELIVER_PARTIAL
    rows = [
        row(name, complete_count=count, age_ms=90_000, on_give_up=partial, rule=rule)
        for name, count in (("X", 2), ("Y", 1))
    ]
    played = told_by(r("X", at=0), r("Y", at=1), rules=rows)
    assert [(made.id[-1], made.reason) for made in played.units] == [("X", "limit"), ("Y", "count")]


@pytest.mark.parametrize(
    "rule",
    [
        {"deliver_order": DeliverOrder.FIRST_ARRIVAL},
        {"max_open_groups": 6, "at_max_open_groups": AtMaxOpenGroups.CLOSE_OLDEST},
    ],
)
def test_a_group_may_arrive_when_a_forgotten_one_of_its_id_did_b37_b118(rule: dict[str, Any]) -> None:
    """Its generation begins at 1 again, so both have one place: the code failed at it while the closed one was not first yet."""
    rows = [row(name, complete_count=2, age_ms=60_000, rule=rule) for name in "ABCDEFGHIJ"]
    for seed in range(50):
        rnd, at = Random(seed), 0.0
        played = Story(PartitionTask(INPUT, context_of(policy_of(closed_max_groups=2), rules=Table(*rows))))
        for _ in range(150):
            at += rnd.choice([0, 0, 0, 0.001])
            played.send(r(rnd.choice("ABCDEFGHIJ"), at=at))
        check_counts(played.task.counts, played.task.groups)


@pytest.mark.parametrize(
    "rule",
    [
        {"deliver_order": DeliverOrder.FIRST_ARRIVAL},
        {"max_open_groups": 3, "at_max_open_groups": AtMaxOpenGroups.CLOSE_OLDEST},
    ],
)
def test_a_router_may_say_of_a_group_the_arrival_of_a_forgotten_one_b37_b118(rule: dict[str, Any]) -> None:
    rows = [
        row(name, complete_count=2, age_ms=900_000, on_give_up=ExpirationPolicy.DELIVER_PARTIAL, rule=rule)
        for name in "ABCDE"
    ]
    played = Story(PartitionTask(INPUT, context_of(policy_of(closed_retention_ms=1_000), rules=Table(*rows))))
    played.send(r("A", at=1), r("B", at=2), r("C", at=3), r("D", at=4), told("cancel", id="low-stock/C", at=5))
    played.send(*([r("E", at=20)] * 2), r("C", at=30, arrived=3))
    assert "low-stock/C" in played.open


@pytest.mark.parametrize("plan_bytes", [0, 1_000_000])
def test_a_unit_that_is_complete_at_once_does_not_overtake_one_that_has_its_turn_in_a_full_plan_b118(
    plan_bytes: int,
) -> None:
    """Its record closes the first group, to make room or as too old, and arrived before the one that has its turn now."""
    partial, in_order = ExpirationPolicy.DELIVER_PARTIAL, {"deliver_order": DeliverOrder.FIRST_ARRIVAL}
    oldest = in_order | {"max_open_groups": 2, "at_max_open_groups": AtMaxOpenGroups.CLOSE_OLDEST}
    rows = [
        row(name, complete_count=count, age_ms=600_000, on_give_up=partial, rule=oldest)
        for name, count in (("X", 2), ("Y", 2), ("Z", 1))
    ]
    played = Story(PartitionTask(INPUT, context_of(policy_of(), rules=Table(*rows), plan_bytes=plan_bytes)))
    played.send(r("X", at=1), r("Y", at=10), r("Y", at=11), r("Z", at=20, arrived=5), clock(20), clock(20))
    assert [(made.id[-1], made.closed_at) for made in played.units] == [("X", ms(20)), ("Y", ms(11)), ("Z", ms(20))]

    rows = [
        row("X", version, complete_count=3 - version, age_ms=5_000, on_give_up=partial, rule=in_order)
        for version in (1, 2)
    ]
    context = context_of(policy_of(), rules=Table(*rows, ordered("Y")), plan_bytes=plan_bytes)
    played = Story(PartitionTask(INPUT, context))
    played.send(r("X", at=1), r("Y", at=10), r("Y", at=11), r("X", version=2, at=20, arrived=8), clock(20), clock(20))
    assert [(made.id[-1], made.generation) for made in played.units] == [("X", 1), ("Y", 1), ("X", 2)]


@pytest.mark.parametrize("at_limit", AtWaitingLimit)
@pytest.mark.parametrize("plan_bytes", [0, 1_000_000])
def test_a_unit_that_has_its_turn_in_a_full_plan_is_not_one_too_many_that_waits_b107_b118(
    plan_bytes: int, at_limit: AtWaitingLimit
) -> None:
    """It had failed, complete as it was: the next group that waited behind it was one too many."""
    rule = {"deliver_order": DeliverOrder.FIRST_ARRIVAL, "max_waiting": 2, "at_waiting_limit": at_limit}
    rule |= {"max_open_groups": 3, "at_max_open_groups": AtMaxOpenGroups.CLOSE_OLDEST}
    rows = [
        row(name, complete_count=count, age_ms=600_000, on_give_up=ExpirationPolicy.DELIVER_PARTIAL, rule=rule)
        for name, count in (("W", 2), ("X", 2), ("Y", 2), ("Z", 1))
    ]
    played = Story(PartitionTask(INPUT, context_of(policy_of(), rules=Table(*rows), plan_bytes=plan_bytes)))
    played.send(r("W", at=1), r("X", at=2), r("X", at=3), r("Y", at=4), r("Y", at=5), r("Z", at=20))
    played.send(*[clock(20)] * 3)
    reasons = [(made.id[-1], made.reason) for made in played.units]
    assert reasons == [("W", "limit"), ("X", "count"), ("Y", "count"), ("Z", "count")]


def units_of_full_plans(
    plan_bytes: int, rows: list[GroupPolicy], steps: list[Step], *, is_restarted: bool = False
) -> list[tuple[str, str]]:
    """Id and outcome of each unit, and of each group that failed; each record comes in a poll of its own, whatever the plan before has left. `is_restarted`: after each plan."""
    context = context_of(policy_of(), rules=Table(*rows), plan_bytes=plan_bytes)
    played, logs = Story(PartitionTask(INPUT, context)), Logs(INPUT)

    def take(plan: Plan) -> None:
        played._take(plan)
        logs.add(plan)
        if is_restarted:
            played.task = restore(logs, {TOPICS.components: context}, [INPUT])[INPUT]

    for record in played.records(steps):
        is_read = False
        while not is_read:
            plan = played.task.process([record], [])
            take(plan)
            is_read = plan.next_offset > record.offset()
    while played.task.next_deadline() == 0 and (left := played.task.tick(played.task.clock, 0)) is not None:
        take(left)
    said = [dict(output.headers) for output in played.outputs if output.topic != TOPICS.outcomes]
    return [((each["uow-id"] or b"").decode(), (each.get("uow-outcome") or b"failed").decode()) for each in said]


@pytest.mark.parametrize(
    ("rule", "rows", "steps"),
    [
        (
            {"max_open_groups": 2, "at_max_open_groups": AtMaxOpenGroups.CLOSE_OLDEST},
            {"X": 2, "G": 1, "W": 2, "V": 2, "U": 2},
            [("X", 1, {}), ("G", 2, {"deliver_at": ms(20)}), ("W", 10, {"arrived": 1.5}), ("W", 30, {}), ("V", 31, {}), ("U", 32, {})],
        ),
        (
            {"max_waiting": 1, "at_waiting_limit": AtWaitingLimit.REDIRECT},
            dict.fromkeys("ABCD", 1),
            [("A", 1.0, {"deliver_at": ms(5)}), ("B", 1.1, {"deliver_at": ms(5)}), ("C", 1.2, {"deliver_at": ms(5)}), ("D", 6, {})],
        ),
    ],
    ids=["one whose time has not come", "one behind the one that has its turn"],
)  # fmt: skip
def test_full_plans_fail_no_unit_of_a_rule_in_order_that_one_plan_delivers_b37_b107_b118(
    rule: dict[str, Any], rows: dict[str, int], steps: list[tuple[str, float, dict[str, Any]]]
) -> None:
    told = {"deliver_order": DeliverOrder.FIRST_ARRIVAL} | rule
    give_up = {"age_ms": 900_000, "on_give_up": ExpirationPolicy.REDIRECT}
    policies = [row(name, complete_count=count, rule=told, **give_up) for name, count in rows.items()]
    records = [r(name, at=at, **said) for name, at, said in steps]
    assert units_of_full_plans(0, policies, records) == units_of_full_plans(10**9, policies, records)


@pytest.mark.parametrize(
    ("counts", "arrived", "left"),
    [
        ({"X": 2, "Y": 2, "V": 2, "Z": 2}, 13.0, "XYV"),
        ({"X": 2, "Y": 2, "V": 2, "Z": 1}, 13.0, "XYVZ"),
        ({"X": 2, "Y": 2, "V": 2, "Z": 2}, 21.5, "XYV"),
        ({"X": 2, "Y": 2, "V": 2, "Z": 1}, 21.5, "XYVZ"),
    ],
    ids=["open, before all", "complete, before all", "open, between them", "complete, between them"],
)
@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_restart_forgets_no_turn_of_a_full_plan_in_which_an_older_group_opens_b118(
    is_restarted: bool, counts: dict[str, int], arrived: float, left: str
) -> None:
    """No row told of it: after the restart they waited for the group that had opened meanwhile."""
    rule = {"deliver_order": DeliverOrder.FIRST_ARRIVAL, "max_open_groups": 3}
    rule |= {"at_max_open_groups": AtMaxOpenGroups.CLOSE_OLDEST}
    partial = ExpirationPolicy.DELIVER_PARTIAL
    rows = [
        row(name, complete_count=count, age_ms=600_000, on_give_up=partial, rule=rule) for name, count in counts.items()
    ]
    complete = [r("Y", at=20), r("Y", at=21), r("V", at=22, arrived=22), r("V", at=23)]
    steps = [r("X", at=6), *complete, r("Z", at=30, arrived=arrived)]
    seen = units_of_full_plans(0, rows, steps, is_restarted=is_restarted)
    assert [unit_id[-1] for unit_id, _ in seen] == [*left]


def test_nobody_waits_for_a_group_that_has_its_turn_and_stands_alone_b118() -> None:
    """After the restart the group that was complete meanwhile waited for one that nothing is tried with."""
    rule = {"deliver_order": DeliverOrder.FIRST_ARRIVAL, "max_open_groups": 2}
    rule |= {"at_max_open_groups": AtMaxOpenGroups.CLOSE_OLDEST}
    rows = [
        row(name, complete_count=count, age_ms=600_000, rule=rule) for name, count in {"X": 2, "Y": 2, "Z": 1}.items()
    ]
    context = context_of(policy_of(), rules=Table(*rows), plan_bytes=0)
    played, logs = Story(PartitionTask(INPUT, context)), Logs(INPUT)
    for record in played.records([r("X", at=6), r("Y", at=20), r("Y", at=21), r("Z", at=30, arrived=13)]):
        logs.add(played.task.process([record], []))
    alone = GroupFault(InternalError("a defect"), Treatment.ALONE)
    context.faults.of(INPUT)[b"low-stock/Y", 1] = alone
    task = restore(logs, {TOPICS.components: context}, [INPUT])[INPUT]
    while task.next_deadline() == 0 and task.tick(task.clock, 0) is not None:
        pass
    assert [group.id for group in task.groups.values()] == [b"low-stock/Y"]
