"""Ordered units: groups of one order key are delivered in the order in which they opened (W-210)."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.core.script import (
    TOPICS,
    Seen,
    Sent,
    Story,
    c,
    clock,
    context_of,
    given_up,
    ms,
    play,
    policy_of,
    refused,
    story,
    told,
    unit,
)
from tests.engine.restored_logs import Logs
from tests.fake_record import INPUT
from uow.processor.engine.restore import restore
from uow.processor.engine.rows import read_ledger
from uow.processor.engine.task import PartitionTask
from uow.schemas.error_classes import DecodeError
from uow.topics.policies import ExpirationPolicy, OutcomesPolicy, Routing


def k(seq: int, id: str, end: bool = False, key: str = "k", **more: Any) -> Sent:
    """A component of a group with an order key."""
    return c(seq, end, id, order_key=key, **more)


def played(*steps: Any, **settings: Any) -> list[Seen]:
    return play(*steps, routing=Routing.PATH, **settings)


def told_story(*steps: Any, **settings: Any) -> Story:
    return story(*steps, routing=Routing.PATH, **settings)


def test_later_group_that_is_complete_waits_for_the_earlier_one_w210() -> None:
    steps = k(1, "a"), k(1, "b"), k(2, "b", True)
    assert played(*steps) == []
    assert played(*steps, k(2, "a", True)) == [unit(1, 2, id="a"), unit(1, 2, id="b")]


def test_all_that_wait_follow_at_once_up_to_the_first_that_is_not_complete_w210() -> None:
    opened = k(1, "a"), k(1, "b"), k(1, "c"), k(1, "d"), k(1, "e")
    steps = *opened, k(2, "c", True), k(2, "b", True), k(2, "e", True)
    assert played(*steps, k(2, "a", True)) == [unit(1, 2, id=name) for name in "abc"]
    assert told_story(*steps, k(2, "a", True)).open == {"d": "1", "e": "1-2"}
    assert played(*steps, k(2, "a", True), k(2, "d", True))[-2:] == [unit(1, 2, id="d"), unit(1, 2, id="e")]


def test_unit_of_one_component_waits_and_one_that_is_first_in_line_does_not_w210() -> None:
    assert played(k(1, "a", True), k(1, "b"), k(1, "c", True)) == [unit(1, id="a")]
    assert played(k(1, "a", True), k(1, "b", True)) == [unit(1, id="a"), unit(1, id="b")]


def test_other_keys_and_groups_without_one_do_not_wait_w210() -> None:
    assert played(k(1, "a"), k(1, "b", True, key="other"), c(1, True, "c")) == [unit(1, id="b"), unit(1, id="c")]


def test_thousands_in_line_follow_without_recursion_w210() -> None:
    names = [f"g{number}" for number in range(3000)]
    seen = told_story(k(1, "a"), *[k(1, name, True) for name in names], k(2, "a", True)).seen
    assert seen == [unit(1, 2, id="a"), *[unit(1, id=name) for name in names]]


@pytest.mark.parametrize("policy", [ExpirationPolicy.REDIRECT, ExpirationPolicy.DELIVER_PARTIAL])
def test_earlier_group_that_is_given_up_holds_nobody_up_any_longer_w210(policy: ExpirationPolicy) -> None:
    settings = {"incomplete_expiration_ms": 100_000, "expiration_policy": policy}
    seen = played(k(1, "a", at=0), k(1, "b", True, at=50), clock(101), **settings)
    assert seen[-1] == unit(1, id="b")
    assert len(seen) == 2


def test_group_in_line_is_not_delivered_in_part_before_its_turn_w210() -> None:
    """Age does not count for it: `extend` may have given the one before it more time."""
    settings = {"incomplete_expiration_ms": 100_000, "expiration_policy": ExpirationPolicy.DELIVER_PARTIAL}
    steps = k(1, "a", at=0), k(1, "b", at=50), told("extend", "a", until=500), clock(400)
    assert played(*steps, **settings) == []
    partial = unit(1, id="b", outcome="partial", missing="2-")
    assert played(*steps, k(2, "a", True, at=401), clock(402), **settings) == [unit(1, 2, id="a"), partial]


def test_group_in_line_is_given_up_by_its_age_where_nothing_is_delivered_w210() -> None:
    settings = {"incomplete_expiration_ms": 100_000, "expiration_policy": ExpirationPolicy.REDIRECT}
    steps = k(1, "a", at=0), k(1, "b", at=50), told("extend", "a", until=500), clock(400)
    assert played(*steps, **settings) == [given_up(1, "expired", "age", "2-")]


def test_component_of_a_waiting_group_expires_all_the_same_w77_w210() -> None:
    seen = played(
        k(1, "a", at=0), k(1, "b", True, expires_at=10), clock(11), expiration_policy=ExpirationPolicy.REDIRECT
    )
    assert [each.failure for each in seen if hasattr(each, "failure")] == ["expired"]


def test_birth_time_counts_beside_the_turn_w08_w210() -> None:
    steps = k(1, "a", at=0), k(1, "b", True, deliver_at=60), k(1, "c", True)
    assert played(*steps, k(2, "a", True, at=10)) == [unit(1, 2, id="a")]
    assert played(*steps, k(2, "a", True, at=10), clock(60)) == [unit(1, 2, id="a"), unit(1, id="b"), unit(1, id="c")]


def test_unit_that_waited_closes_in_the_moment_of_the_one_before_it_w210() -> None:
    steps = k(1, "a", at=0), k(1, "b", True, at=5), k(2, "a", True, at=10)
    outcomes = told_story(*steps, outcomes=OutcomesPolicy.ALL).outcomes
    assert [(each.id, each.closed_at) for each in outcomes] == [("a", ms(10)), ("b", ms(10))]


def test_unit_that_waited_for_a_group_given_up_closes_when_that_one_was_due_w210() -> None:
    """However late the clock is looked at: the same input gives the same bytes."""
    settings = {"incomplete_expiration_ms": 100_000, "outcomes": OutcomesPolicy.ALL}
    outcomes = told_story(k(1, "a", at=0), k(1, "b", True, at=5), clock(200), **settings).outcomes
    assert [(each.id, each.closed_at) for each in outcomes] == [("a", ms(100) + 1), ("b", ms(100) + 1)]


def test_group_that_opens_overdue_after_a_unit_that_waited_is_given_up_by_the_next_event_w84_w210() -> None:
    steps = k(1, "a", at=150), k(1, "b", True), k(2, "a", True, at=200), c(1, id="c", at=50)
    settings = {"incomplete_expiration_ms": 100_000, "expiration_policy": ExpirationPolicy.REDIRECT}
    delivered = [unit(1, 2, id="a"), unit(1, id="b")]
    assert played(*steps, **settings) == delivered
    assert played(*steps, clock(200), **settings) == [*delivered, given_up(1, "expired", "age", "2-")]


def test_unit_that_waited_for_a_command_later_than_the_clock_follows_at_once_w203_w210() -> None:
    followed = told_story(
        k(1, "a", at=0), k(1, "b", True, at=5), told("cancel", "a", at=50), outcomes=OutcomesPolicy.ALL
    )
    closed_at = [(each.id, each.closed_at) for each in followed.outcomes]
    assert closed_at == [("a", ms(50)), ("b", ms(5))]


def test_unit_that_waits_for_the_next_plan_closes_in_the_same_moment_after_a_restart_w124_w210() -> None:
    """It was let go of when the plan was full: the clock stands where it did then."""
    context = context_of(policy_of(routing=Routing.PATH, outcomes=OutcomesPolicy.ALL), plan_bytes=0)
    alive = Story(PartitionTask(INPUT, context))
    alive.send(k(1, "a", at=0), k(1, "b", True, at=5), k(2, "a", True, at=10))
    assert ([each.id for each in alive.units], alive.open) == (["a"], {"b": "1"})
    logs = Logs(INPUT)
    for plan in alive.plans:
        logs.add(plan)
    restored = Story(restore(logs, {TOPICS.components: context}, [INPUT])[INPUT])
    for each in (alive, restored):
        each.send(clock(10))
        assert [(each.id, each.closed_at) for each in each.outcomes][-1:] == [("b", ms(10))]


def test_unit_let_go_of_by_a_deadline_before_the_clock_closes_in_the_same_moment_after_a_restart_w124_w210() -> None:
    """A start under a shorter time: the group in front was due long before the moment where the clock stands, and the plan is cut behind it."""
    settings = {"routing": Routing.PATH, "outcomes": OutcomesPolicy.ALL}
    before = context_of(policy_of(**settings, incomplete_expiration_ms=1_000_000))
    after = context_of(policy_of(**settings, incomplete_expiration_ms=100_000), plan_bytes=0)
    first = Story(PartitionTask(INPUT, before))
    first.send(k(1, "a", at=0), k(1, "b", True, at=5), c(1, True, "other", at=500))
    logs = Logs(INPUT)
    for plan in first.plans:
        logs.add(plan)
    alive = restore(logs, {TOPICS.components: after}, [INPUT])[INPUT]
    cut = alive.tick(ms(600))
    assert cut is not None
    assert cut.is_cut
    logs.add(cut)
    restored = restore(logs, {TOPICS.components: after}, [INPUT])[INPUT]
    closed = []
    for task in (alive, restored):
        plan = task.tick(ms(600))
        assert plan is not None
        closed += [(each.id, each.at) for each in read_ledger(plan.ledger or b"")[1]]
    assert closed == [(b"b", ms(500))] * 2


@pytest.mark.parametrize("verb", ["cancel", "release", "expire"])
def test_command_that_closes_the_first_lets_the_next_go_w203_w210(verb: str) -> None:
    assert played(k(1, "a"), k(1, "b", True), told(verb, "a"))[-1] == unit(1, id="b")


def test_commands_do_not_jump_the_line_w203_w210() -> None:
    steps = k(1, "a"), k(1, "b")
    for verb in ("release", "expire"):
        told_it = told_story(*steps, told(verb, "b"), expiration_policy=ExpirationPolicy.DELIVER_PARTIAL)
        assert told_it.seen == []
        assert told_it.answers[0].text == "an earlier group of its order key is open and must be delivered first"
    ended = told_story(*steps, told("declare-end", "b", seq=1))
    assert (ended.seen, ended.answers[0].done) == ([], True)
    assert ended.answers[0].text == "the unit ends at 1; complete, waits for its turn"
    assert ended.send(k(2, "a", True)) == [unit(1, 2, id="a"), unit(1, id="b")]
    assert played(*steps, told("cancel", "b"), k(2, "a", True))[-1] == unit(1, 2, id="a")


def test_order_key_under_hash_is_refused_w210() -> None:
    sent = k(1, "a", True)
    assert play(sent) == [refused(sent, DecodeError, "uow-order-key")]
    torn = c(1, True, "a", order_key="k", user=[("uow-order-key", "l")])
    assert played(torn) == [refused(torn, DecodeError, "uow-order-key")]
    assert played(k(1, "a"), k(1, "b", True, key="")) == [unit(1, id="b")], "an empty one is none"


def test_order_key_that_is_too_long_to_be_claimed_is_refused_w210() -> None:
    """A claim is one record of the path map: a worker must never try one that the broker would not take."""
    long, longest = k(1, "a", True, key="k" * 256), k(1, "b", True, key="k" * 255)
    assert played(long, longest) == [refused(long, DecodeError, "uow-order-key"), unit(1, id="b")]


def test_group_whose_first_component_is_taken_out_stands_where_its_next_one_came_w76_w210() -> None:
    steps = k(1, "a"), k(2, "a"), k(1, "b", True), k(1, "c", True)
    still_first = told_story(*steps, told("remove", "a", seq=1))
    assert (still_first.units, still_first.open) == ([], {"a": "2", "b": "1", "c": "1"})
    steps = k(1, "a"), k(1, "b", True), k(2, "a"), k(1, "c", True), told("remove", "a", seq=1)
    behind = told_story(*steps)
    assert ([each.id for each in behind.units], behind.open) == (["b"], {"a": "2", "c": "1"})
    assert behind.send(k(1, "a"), k(3, "a", True)) == [unit(1, 2, 3, id="a"), unit(1, id="c")]
    other_key = k(1, "a"), k(2, "a", key="l"), k(1, "b", True), k(1, "d", True, key="l"), told("remove", "a", seq=1)
    assert [each.id for each in told_story(*other_key).units] == ["d", "b"]
    no_key = k(1, "a", key=""), k(2, "a"), k(1, "b", True), told("remove", "a", seq=1), k(1, "c", True)
    now_in_line = told_story(*no_key)
    assert ([each.id for each in now_in_line.units], now_in_line.open) == (["b"], {"a": "2", "c": "1"})
    key_taken_out = k(1, "a"), k(2, "a", key=""), k(1, "b", True), told("remove", "a", seq=1), k(1, "c", True)
    in_no_line = told_story(*key_taken_out)
    assert [each.id for each in in_no_line.units] == ["b", "c"]
    assert in_no_line.send(k(1, "d"), k(3, "a", True, key=""), k(1, "a", key="")) == [unit(1, 2, 3, id="a")]


def test_line_is_the_same_after_a_restart_when_a_first_component_was_taken_out_w124_w210() -> None:
    steps = k(1, "a"), k(1, "b"), k(2, "a"), k(1, "c", True), told("remove", "a", seq=1), k(1, "d", True)
    alive = told_story(*steps)
    logs = Logs(INPUT)
    for plan in alive.plans:
        logs.add(plan)
    restored = restore(logs, {TOPICS.components: alive.task.context}, [INPUT])[INPUT]
    lines = [
        {key: [(each.id, each.waits) for each in line.values()] for key, line in task.partition.lines.items()}
        for task in (alive.task, restored)
    ]
    assert lines == [{b"k": [(b"b", False), (b"a", True), (b"c", True), (b"d", True)]}] * 2


@pytest.mark.parametrize("seed", range(10))
def test_restart_at_any_moment_keeps_the_line_w124_w210(seed: int) -> None:
    rnd = Random(seed)
    left = {f"g{number}": rnd.randint(1, 4) for number in range(30)}
    size, sent = dict(left), []
    while left:
        name = rnd.choice(list(left)[:6])
        at = rnd.randrange(1_000)  # brokers' clocks differ: who opened first is a matter of offsets, not of times
        sent.append(k(left[name], name, left[name] == size[name], key=f"k{int(name[1:]) % 2}", at=at))
        left[name] -= 1
        if not left[name]:
            del left[name]
    steady = told_story(*sent)
    opened: dict[str, None] = dict.fromkeys(dict(each.headers)["uow-id"].decode() for each in sent)
    for parity in (0, 1):
        mine = [each.id for each in steady.units if int(each.id[1:]) % 2 == parity]
        assert mine == [name for name in opened if int(name[1:]) % 2 == parity], "in the order of opening"

    context = context_of(policy_of(routing=Routing.PATH))
    logs, seen = Logs(INPUT), []
    for number, each in enumerate(steady.records(sent, 0)):
        each.offset_ = number
        task = restore(logs, {TOPICS.components: context}, [INPUT])[INPUT]
        plan = task.process([each])
        logs.add(plan)
        seen += [output.key for output in plan.outputs if output.topic == TOPICS.units]
    assert seen == [unit.id.encode() for unit in steady.units]
