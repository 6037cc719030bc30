"""Units whose target topic is missing wait, their partition goes on, and nothing is lost or doubled (B-57)."""

from __future__ import annotations

import logging
import tracemalloc
from collections.abc import Collection
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.core.rule_script import Table, r, row
from tests.core.script import Story, clock, context_of, policy_of
from tests.engine.restored_logs import Logs
from tests.fake_record import INPUT
from uow.processor.engine.ports import Output
from uow.processor.engine.restore import restore
from uow.processor.engine.target_topics import (
    FIRST_LOOK_MS,
    LONGEST_LOOK_MS,
    MOST_REFUSED,
    WAITING_ATTEMPTS,
    TargetTopics,
    WaitingRecords,
)
from uow.processor.engine.task import PartitionTask

ROWS = (
    row("UK", complete_count=1, target_topic="orders.uk"),
    row("France", complete_count=1, target_topic="orders.france"),
)


class Cluster:
    """Topics that exist, and how often was asked."""

    def __init__(self, *topics: str) -> None:
        self.topics, self.asked, self.now = {*topics}, 0, 0.0
        self.is_silent = False
        self.targets = TargetTopics(lambda: ("orders.uk", "orders.france"), self.obstacles, lambda: self.now)

    def obstacles(self, topics: Collection[str]) -> dict[str, str]:
        self.asked += 1
        if self.is_silent:
            raise TimeoutError
        return dict.fromkeys({*topics} - self.topics, "cannot be")


def begun(cluster: Cluster) -> Story:
    cluster.targets.look()
    context = context_of(policy_of(), rules=Table(*ROWS), targets=cluster.targets)
    return Story(PartitionTask(INPUT, context))


def delivered(played: Story) -> list[tuple[str, int]]:
    return [(each.topic, dict(each.headers)["uow-generation"]) for each in played.outputs if each.topic[:6] == "orders"]  # type: ignore[misc]


def test_units_for_a_missing_topic_wait_in_order_and_others_go_on_b57() -> None:
    cluster = Cluster("orders.france")
    played = begun(cluster)
    played.send(r("UK", at=0), r("France", at=0), r("UK", at=1), clock(5))
    assert delivered(played) == [("orders.france", b"1")]
    assert (played.open, played.task.next_deadline()) == ({}, None)
    assert played.task.memory_bytes > 1_000
    cluster.topics.add("orders.uk")
    cluster.targets.look(at_once=True)
    assert played.task.next_deadline() == 0
    played.send(r("UK", at=6))
    assert delivered(played)[1:] == [("orders.uk", b"1"), ("orders.uk", b"2"), ("orders.uk", b"3")]
    assert (played.task.rows, played.task.next_deadline(), played.task.memory_bytes) == (0, None, 0)


def test_what_waits_survives_a_restart_and_leaves_once_by_the_clock_alone_b57() -> None:
    cluster, logs = Cluster(), Logs(INPUT)
    played = begun(cluster)
    played.send(*(r("UK", at=number) for number in range(3)))
    for plan in played.plans:
        logs.add(plan)
    logs.compact()
    played.task = restore(logs, {INPUT.topic: played.task.context}, [INPUT])[INPUT]
    assert (len(played.task.waiting_records), played.task.rows) == (3, 3)
    cluster.topics |= {"orders.uk", "orders.france"}
    cluster.targets.look(at_once=True)
    plans = len(played.plans)
    played.send(clock(10))
    assert delivered(played) == [("orders.uk", b"1"), ("orders.uk", b"2"), ("orders.uk", b"3")]
    for plan in played.plans[plans:]:
        logs.add(plan)
    again = restore(logs, {INPUT.topic: played.task.context}, [INPUT])[INPUT]
    assert (len(again.waiting_records), again.tick(10**15)) == (0, None)


def test_topics_are_looked_at_with_back_off_and_told_once_b57(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster("orders.france")
    with caplog.at_level(logging.WARNING, "uow.targets"):
        looks = []
        while cluster.now < 100_000:
            asked = cluster.asked
            cluster.targets.look()
            looks += [cluster.now] if cluster.asked > asked else []
            cluster.now += 100
    gaps = [int(later - earlier) for earlier, later in pairwise(looks)]
    assert gaps[:5] == [FIRST_LOOK_MS * 2**n for n in range(5)]
    assert max(gaps) == LONGEST_LOOK_MS
    assert [record.getMessage() for record in caplog.records] == ["target topic orders.uk cannot be; its units wait"]
    cluster.is_silent = True
    cluster.targets.look(at_once=True)
    assert cluster.targets.away == {"orders.uk"}, "brokers that do not answer say nothing of topics"


def test_the_memory_of_what_waits_is_reckoned_er19() -> None:
    played = begun(Cluster())
    played.send(*(r("UK", at=0, value="x" * 100) for _ in range(1_000)))
    rows = {key: value for plan in played.plans for key, value in plan.changelog if value is not None}
    tracemalloc.start()
    try:
        waiting = WaitingRecords()
        waiting.restore(rows)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(waiting) == 1_000
    assert 0.6 < waiting.memory_bytes / taken < 1.6, f"{taken / 1_000:.0f} bytes a record"


def test_a_unit_that_is_refused_for_what_it_is_fails_alone_after_its_attempts_b89() -> None:
    cluster = Cluster("orders.uk", "orders.france")
    steps = r("UK", at=0), r("France", at=0)
    before = begun(cluster)
    before.send(*steps)
    (unit,) = [each for each in before.outputs if each.topic == "orders.uk"]
    attempts = ROWS[0].delivery_attempts
    assert all(cluster.targets.refuse(unit) for _ in range(attempts - 1))
    again = begun(cluster)
    again.send(*steps)
    assert sorted(delivered(again)) == [("orders.france", b"1"), ("orders.uk", b"1")]
    assert cluster.targets.refuse(unit)
    last = begun(cluster)
    last.send(*steps)
    assert delivered(last) == [("orders.france", b"1")]
    assert [(each.topic, each.key) for each in last.outputs if each.topic == "D.errors"] == [
        ("D.errors", b"low-stock/UK")
    ]
    assert [(one.id, one.outcome, one.reason) for one in last.outcomes] == [("low-stock/UK", "failed", "limit")]
    last.send(r("UK", at=1))
    assert delivered(last)[1:] == [("orders.uk", b"2")]
    (other,) = [each for each in last.outputs if each.topic == "D.errors"]
    assert cluster.targets.refuse(other)
    assert not cluster.targets.refuse(other), "somebody has to look at what is refused again, though it was given up"


def test_too_many_refusals_to_count_begin_anew_with_smaller_batches() -> None:
    targets = Cluster().targets
    assert all(targets.refuse(Output("D.units", 0, b"%d" % number, b"", [])) for number in range(MOST_REFUSED))
    first, last = (Output("D.units", 0, b"%d" % number, b"", []) for number in (0, MOST_REFUSED))
    assert targets.is_given_up([first])
    assert not targets.refuse(last)
    assert not targets.is_given_up([first, last])


def test_a_unit_that_waited_and_is_refused_stays_and_others_pass_it_b57_b89() -> None:
    cluster, logs = Cluster("orders.france"), Logs(INPUT)
    played = begun(cluster)
    played.send(r("UK", at=0))
    for plan in played.plans:
        logs.add(plan)
    cluster.topics.add("orders.uk")
    cluster.targets.look(at_once=True)

    def leaves() -> list[Output]:
        again = Story(restore(logs, {INPUT.topic: played.task.context}, [INPUT])[INPUT])
        again.send(r("UK", at=0), r("UK", at=6))  # the first is behind the position
        return [each for each in again.outputs if each.topic == "orders.uk"]

    first, _ = leaves()
    for _ in range(WAITING_ATTEMPTS):
        assert cluster.targets.refuse(first)
    assert [dict(each.headers)["uow-generation"] for each in leaves()] == [b"2"]
    cluster.targets = TargetTopics(lambda: ("orders.uk",), cluster.obstacles, lambda: cluster.now)
    played.task.context = replace(played.task.context, targets=cluster.targets)
    assert len(leaves()) == 2, "after the next start it is tried again"
