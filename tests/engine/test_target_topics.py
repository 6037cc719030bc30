"""Units whose target topic is missing wait, their partition goes on, and nothing is lost or doubled (B-57)."""

from __future__ import annotations

import logging
import tracemalloc
from collections.abc import Collection
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.core.rule_script import Table, r, row
from tests.core.script import Step, Story, clock, context_of, ms, policy_of, told
from tests.core.test_fan_in import gathering, manifest, reply
from tests.core.test_quorum import STOP, asked
from tests.engine.restored_logs import Logs
from tests.fake_record import INPUT, T0, FakeRecord
from uow.ops.group_audit import Kind, group_findings
from uow.ops.inspect import WaitingUnit, inspect_group, unfinished
from uow.processor.engine import target_topics
from uow.processor.engine.ports import Output, Tp
from uow.processor.engine.restore import restore
from uow.processor.engine.target_topics import (
    FIRST_LOOK_MS,
    LONGEST_LOOK_MS,
    MOST_REFUSED,
    SILENCE_MS,
    WAITING_ATTEMPTS,
    TargetTopics,
    WaitingRecords,
)
from uow.processor.engine.task import PartitionTask
from uow.topics.policies import Oversize, Shape, ValueFormat

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


def test_people_are_told_of_units_that_wait_for_their_topic_b57_b201() -> None:
    """As the changelog has them, whether a worker runs or not: in the list of what is open, about one id, and as a finding."""
    cluster = Cluster("orders.france")
    played = begun(cluster)
    played.send(r("UK", at=0), r("France", at=0), r("UK", at=1), clock(5))
    logs, context = Logs(INPUT), played.task.context
    for plan in played.plans:
        logs.add(plan)
    waiting = [WaitingUnit("low-stock/UK", number, "complete", "orders.uk", INPUT.partition) for number in (1, 2)]
    assert unfinished(logs, context) == ([], waiting)
    about = inspect_group(logs, context, "low-stock/UK")
    assert (about.open, about.waiting) == (None, tuple(waiting))
    assert inspect_group(logs, context, "low-stock/France").waiting == ()
    found = [(each.kind, each.id, each.generation, each.detail) for each in group_findings(logs, context, ms(5))]
    text = "waits for topic orders.uk"
    assert found == [(Kind.WAITING_UNIT, "low-stock/UK", number, text) for number in (1, 2)]
    cluster.topics.add("orders.uk")
    cluster.targets.look(at_once=True)
    played.send(r("UK", at=6))
    logs.add(played.plans[-1])
    assert unfinished(logs, context) == ([], [])
    assert group_findings(logs, context, ms(6)) == []


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


def to_partition_1(number: int, name: str, value: bytes) -> FakeRecord:
    told: list[tuple[str, bytes | None]] = [
        ("uow-id", f"low-stock/{name}".encode()),
        ("uow-rule", f"low-stock/{name}@1".encode()),
        ("uow-input", b"stock/0/%d" % number),
    ]
    return FakeRecord(number, told, value, b"key", T0, Tp("D.components", 1))


@pytest.mark.parametrize("count", [1, 2, 6])
def test_a_run_for_a_topic_with_another_number_of_partitions_fails_alone_and_says_why_b60(count: int) -> None:
    """Without the partition its transaction would fail at each attempt, with everything else that is in it; with it others write in between."""
    cluster = Cluster("orders.uk", "orders.france")
    cluster.targets.look()
    cluster.targets.partitions |= {"orders.uk": count, "orders.france": 3}
    policy = policy_of(oversize=Oversize.CONSECUTIVE)
    rows = [
        row(
            name,
            complete_count=1,
            target_topic=topic,
            value_format=ValueFormat.JSON,
            destination={"oversize": Oversize.CONSECUTIVE},
        )
        for name, topic in [("UK", "orders.uk"), ("France", "orders.france")]
    ]
    context = context_of(policy, 3, rules=Table(*rows), targets=cluster.targets, record_limit_bytes=6_000)
    task = PartitionTask(Tp("D.components", 1), context)
    sent = [("UK", 1), ("UK", 3_300), ("France", 3_300), ("UK", 1)]
    plan = task.process([to_partition_1(number, name, b"\xff" * size) for number, (name, size) in enumerate(sent)])
    found = [(each.topic, each.partition) for each in plan.outputs if each.topic[:6] in ("orders", "D.erro")]
    assert found == [("orders.uk", -1), ("D.errors", 1), ("orders.france", 1), ("orders.uk", -1)]
    (error,) = [dict(each.headers) for each in plan.outputs if each.topic == "D.errors"]
    assert error["uow-error-class"] == b"UnitTooLargeError"
    text = (error["uow-error-text"] or b"").decode()
    assert f"topic orders.uk needs as many partitions as D.components, 3, and it has {count}" in text


def test_units_of_shape_consecutive_wait_until_the_partitions_of_their_topic_are_mended_b57_b60() -> None:
    cluster = Cluster()  # a topic with the wrong number of partitions counts as one that cannot be written to
    cluster.targets.look()
    cluster.targets.partitions["orders.uk"] = 1
    rows = row(complete_count=1, target_topic="orders.uk", shape=Shape.CONSECUTIVE)
    task = PartitionTask(Tp("D.components", 1), context_of(policy_of(), 3, rules=Table(rows), targets=cluster.targets))
    plan = task.process([to_partition_1(0, "UK", b"x")])
    assert [each for each in plan.outputs if each.topic in ("orders.uk", "D.errors")] == []
    assert len(task.waiting_records) == 1


def test_a_run_that_waited_for_its_topic_stays_if_that_has_no_such_partition_and_others_pass_b60() -> None:
    cluster = Cluster()
    cluster.targets.look()
    rows = row(
        complete_count=1,
        target_topic="orders.uk",
        value_format=ValueFormat.JSON,
        destination={"oversize": Oversize.CONSECUTIVE},
    )
    policy = policy_of(oversize=Oversize.CONSECUTIVE)
    context = context_of(policy, 3, rules=Table(rows), targets=cluster.targets, record_limit_bytes=6_000)
    task = PartitionTask(Tp("D.components", 1), context)
    first = task.process([to_partition_1(number, "UK", b"\xff" * size) for number, size in enumerate((3_300, 1))])
    assert not [each for each in first.outputs if each.topic == "orders.uk"]
    cluster.topics.add("orders.uk")
    cluster.targets.partitions["orders.uk"] = 1
    cluster.targets.look(at_once=True)
    plan = task.process([to_partition_1(2, "UK", b"x")])
    assert [each.partition for each in plan.outputs if each.topic == "orders.uk"] == [-1, -1]
    assert len(task.waiting_records) == 1


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
    assert [record.getMessage() for record in caplog.records] == ["target topic orders.uk cannot be; its records wait"]
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


def test_a_unit_that_is_too_large_for_its_topic_fails_at_once_and_says_so_b59_b89() -> None:
    """It will not be smaller at the next attempt. Class, topic, size and limit are in `D.errors` and in the outcome."""
    cluster = Cluster("orders.uk", "orders.france")
    cluster.targets.read_limit = {"orders.uk": 100}.get
    before, step = begun(cluster), r("UK", at=0)
    before.send(step)
    (unit,) = [each for each in before.outputs if each.topic == "orders.uk"]
    assert cluster.targets.refuse(unit, is_too_large=True)
    again = begun(cluster)
    again.send(step)
    size = len(unit.key) + len(unit.value) + sum(len(name) + len(value) for name, value in unit.headers)
    text = f"its record has {size} bytes before compression, and topic orders.uk takes records of 100 bytes"
    (error,) = [dict(each.headers) for each in again.outputs if each.topic == "D.errors"]
    assert (error["uow-error-class"], error["uow-error-case"]) == (b"UnitTooLargeError", b"limit")
    assert error["uow-error-text"] == f"the group failed: limit: {text}".encode()
    (outcome,) = [dict(each.headers) for each in again.outputs if each.topic == "D.outcomes"]
    assert outcome["uow-error-text"] == text.encode()


def test_a_unit_that_waited_and_is_too_large_costs_one_transaction_b57_b59() -> None:
    cluster = Cluster("orders.france")
    played = begun(cluster)
    played.send(r("UK", at=0))
    waiting = played.task.waiting_records
    (unit,) = waiting.outputs
    cluster.topics.add("orders.uk")
    cluster.targets.look(at_once=True)
    assert waiting.may_leave(cluster.targets)
    assert cluster.targets.refuse(unit, is_too_large=True)
    assert not waiting.may_leave(cluster.targets)


def test_too_many_refusals_to_count_begin_anew_with_smaller_batches() -> None:
    targets = Cluster().targets
    assert all(targets.refuse(Output("D.units", 0, b"%d" % number, b"", [])) for number in range(MOST_REFUSED))
    first, last = (Output("D.units", 0, b"%d" % number, b"", []) for number in (0, MOST_REFUSED))
    assert targets.is_given_up([first])
    assert not targets.refuse(last)
    assert not targets.is_given_up([first, last])


@pytest.mark.parametrize("value", [None, b"read back"])
def test_a_given_up_component_is_known_again_whether_its_value_was_read_back_or_not_w117(value: bytes | None) -> None:
    """Else it is written again and again, and its partition blocks."""
    targets = Cluster().targets
    planned = Output("D.errors", 0, b"k", None, [("uow-error-class", b"UowError"), ("uow-source", b"D.components/0/7")])
    gone = [("uow-error-value", b"3 bytes are gone from D.components/0/7")] if value is None else []
    assert targets.refuse(planned._replace(value=value, headers=[*planned.headers, *gone]))
    assert targets.is_given_up([planned])


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


def test_a_command_alone_has_its_plan_for_itself_and_what_waited_leaves_with_the_next_one_b57() -> None:
    """Else the command is blamed where a broker refuses what leaves."""
    cluster = Cluster("orders.france")
    played = begun(cluster)
    played.send(r("UK", at=0))
    cluster.topics.add("orders.uk")
    cluster.targets.look(at_once=True)
    played.send(told("cancel", id="nobody", at=1))
    assert len(played.answers) == 1
    assert at_topic(played, "orders.uk") == []
    assert played.task.next_deadline() == 0
    played.send(r("France", at=2))
    assert len(at_topic(played, "orders.uk")) == 1


def noticed(cluster: Cluster) -> Story:
    """A row whose first reply wins, on a cluster where workers look at the topic of notices as well."""
    rule = gathering(1, target_topic="orders.uk", parameters={"notice_topics": STOP})
    cluster.targets = TargetTopics(lambda: ("orders.uk", STOP), cluster.obstacles, lambda: cluster.now)
    cluster.targets.look()
    context = context_of(policy_of(), rules=Table(rule), targets=cluster.targets)
    return Story(PartitionTask(INPUT, context))


def call(number: int) -> list[Step]:
    """A call of two requests, and the first reply."""
    trip = f"low-stock/trip/{number}"
    return [manifest(asked(1, 1), at=number, id=trip), reply(1, at=number, id=trip)]


def at_topic(played: Story, topic: str) -> list[bytes | None]:
    return [each.key for each in played.outputs if each.topic == topic]


def test_notices_for_a_missing_topic_wait_over_a_restart_and_their_units_do_not_b209_b57() -> None:
    cluster, logs = Cluster("orders.uk"), Logs(INPUT)
    played = noticed(cluster)
    played.send(*call(1), *call(2))
    assert at_topic(played, "orders.uk") == [b"low-stock/trip/1", b"low-stock/trip/2"]
    assert (at_topic(played, STOP), played.open, played.counts.notices) == ([], {}, 2)
    for plan in played.plans:
        logs.add(plan)
    logs.compact()
    played.task = restore(logs, {INPUT.topic: played.task.context}, [INPUT])[INPUT]
    assert len(played.task.waiting_records) == 2
    cluster.topics.add(STOP)
    cluster.targets.look(at_once=True)
    played.send(clock(10))
    assert at_topic(played, STOP) == [b"low-stock/trip/1.2", b"low-stock/trip/2.2"]
    assert (played.task.rows, played.task.memory_bytes, played.task.counts.dropped_notices) == (0, 0, 0)


def test_no_more_notices_than_a_thousand_wait_and_units_go_on_b209_er19(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_topics, "MOST_NOTICES", 3)
    cluster = Cluster("orders.uk")
    played = noticed(cluster)
    for number in range(5):
        played.send(*call(number))
    assert len(at_topic(played, "orders.uk")) == 5
    assert (len(played.task.waiting_records), played.counts.notices, played.counts.dropped_notices) == (3, 5, 2)
    cluster.topics.discard("orders.uk")
    cluster.targets.look(at_once=True)
    played.send(*call(5))
    assert (len(played.task.waiting_records), played.counts.dropped_notices) == (4, 3), "units have no such limit"
    cluster.topics |= {STOP, "orders.uk"}
    cluster.targets.look(at_once=True)
    played.send(*call(6))
    assert at_topic(played, STOP) == [b"low-stock/trip/%d.2" % number for number in (0, 1, 2, 6)]
    assert played.task.memory_bytes == 0


def test_notices_that_their_topic_refuses_are_dropped_for_a_while_and_their_units_go_b209_b89() -> None:
    cluster = Cluster("orders.uk", STOP)
    first = noticed(cluster)
    first.send(*call(1))
    (notice,) = [each for each in first.outputs if each.topic == STOP]
    assert cluster.targets.refuse(notice), "the plan is made again, without it"
    again = Story(PartitionTask(INPUT, first.task.context))
    again.send(*call(1), *call(2))
    assert at_topic(again, "orders.uk") == [b"low-stock/trip/1", b"low-stock/trip/2"]
    assert (at_topic(again, STOP), again.counts.notices, again.counts.dropped_notices) == ([], 0, 2)
    assert cluster.targets.takes_notices("orders.uk")
    cluster.now += SILENCE_MS
    again.send(*call(3))
    assert at_topic(again, STOP) == [b"low-stock/trip/3.2"]


def test_a_record_that_only_looks_like_a_notice_is_treated_as_what_it_is_b209() -> None:
    """Anybody may send one; refused twice, somebody has to look at it, and its topic goes on getting notices."""
    targets = Cluster(STOP).targets
    forged = Output(STOP, -1, b"low-stock/trip/1.2", b"{}", [("uow-kind", b"notice"), ("uow-request-id", b"x")])
    assert targets.refuse(forged)
    assert not targets.refuse(forged)
    assert targets.takes_notices(STOP)


def test_a_notice_that_waited_and_is_refused_stays_and_holds_up_nothing_b209_b89() -> None:
    cluster, logs = Cluster("orders.uk"), Logs(INPUT)
    played = noticed(cluster)
    played.send(*call(1))
    for plan in played.plans:
        logs.add(plan)
    cluster.topics.add(STOP)
    cluster.targets.look(at_once=True)

    def leaves() -> list[Output]:
        again = Story(restore(logs, {INPUT.topic: played.task.context}, [INPUT])[INPUT], offset=1, command_offset=1)
        again.send(*call(2))
        assert at_topic(again, "orders.uk") == [b"low-stock/trip/2"]
        return [each for each in again.outputs if each.topic == STOP]

    first, _ = leaves()
    assert cluster.targets.refuse(first)
    assert leaves() == []
    cluster.now += SILENCE_MS
    assert [each.key for each in leaves()] == [b"low-stock/trip/1.2", b"low-stock/trip/2.2"]
