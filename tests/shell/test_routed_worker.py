"""A whole worker with its router, without a broker: records of an input become units by rule. The clock is moved by hand."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from xml.etree import ElementTree as ET

import pytest
from confluent_kafka import KafkaError

from tests.fake_record import FakeRecord
from tests.rules.installed_transforms import install
from tests.rules.low_stock import ROWS, RULE, TABLES, changed
from tests.shell.memory_kafka import Faults, MemoryContents, MemoryKafka, MemoryLogReader, MemorySink, MemorySource
from tests.shell.whole_worker import in_a_loop, settings, until
from uow.processor.engine.driver_ports import Ports, Task, Wanted
from uow.processor.engine.ports import Meanwhile, Tp
from uow.processor.engine.restore import restore
from uow.processor.engine.rule_figures import RowName
from uow.processor.kafka.router import Router, RouterPorts, RouterStatus
from uow.processor.kafka.router_desk import LoggedRules, RouterDesk
from uow.processor.kafka.rule_log import KafkaRuleLog
from uow.processor.rules.deployment import Deployment
from uow.processor.rules.routing import RouteTarget
from uow.processor.rules.rule_set import RuleSet, RuleTables
from uow.processor.shell.app import UowApp, create_app, task_contexts
from uow.processor.shell.monitor import WorkerStatus
from uow.processor.shell.router_thread import warn_of_missing_targets
from uow.processor.sim.simulated_routers import NobodyAsks
from uow.topics.catalogue import DestinationTopics, rules_topic
from uow.topics.policies import Oversize, Shape, ViolationPolicy
from uow.topics.record_size import RecordLimit
from uow.topics.routers import RouterSettings
from uow.topics.rules import OnRuleChange

INPUT = "stock.events"
ROUTERS = {"stock": RouterSettings((INPUT,))}
TO_D = replace(TABLES, rules=(replace(RULE, destination="D"),))


class MemoryUpstream:
    """Port `Upstream`: what arrived at the input before now is in the components once the router's positions have reached its ends."""

    def __init__(self, kafka: MemoryKafka) -> None:
        self.kafka = kafka
        self.settled_at = 0
        self.stalled: dict[Tp, int] = {}

    def settled(self, topic: str, now_ms: int) -> int:
        kafka = self.kafka
        with kafka.lock:
            tps = [Tp(INPUT, number) for number in range(kafka.partitions)]
            ends = {tp: kafka.bounds(tp)[1] for tp in tps}
            there = {tp: (kafka.committed[tp].offset or 0) if tp in kafka.committed else 0 for tp in tps}
        if all(there[tp] >= end for tp, end in ends.items()):
            self.settled_at = now_ms
        return self.settled_at


class RuleReader:
    """A consumer of `A-rules`.

    Attributes:
        opened: All that are not closed.
    """

    opened: ClassVar[set[RuleReader]] = set()

    def __init__(self, kafka: MemoryKafka, tp: Tp) -> None:
        self.kafka, self.tp, self.position = kafka, tp, 0
        self.opened.add(self)

    def assign(self, where: Any) -> None: ...

    def consume(self, count: int, timeout: float) -> list[FakeRecord]:
        with self.kafka.lock:
            found = self.kafka.visible(self.tp, self.position)[:count]
            end = self.kafka.stable_end(self.tp)
        if not found:
            self.position = end
            return [FakeRecord(end, None, tp=self.tp, error_=KafkaError(KafkaError._PARTITION_EOF))]
        self.position = found[-1].offset() + 1
        return [FakeRecord(each.offset(), None, each.value(), each.key(), tp=self.tp) for each in found]

    def close(self) -> None:
        self.opened.remove(self)


def rule_log(kafka: MemoryKafka) -> KafkaRuleLog:
    tp = Tp(rules_topic("A"), 0)
    return KafkaRuleLog(tp.topic, lambda: RuleReader(kafka, tp), lambda meanwhile: kafka.bounds(tp)[1])


@asynccontextmanager
async def running(
    kafka: MemoryKafka,
    tables: RuleTables = TO_D,
    routes: bool = True,
    name: str = "0",
    faults: Faults | None = None,
    set_aside_per_minute: int = 0,
    **policy: Any,
) -> AsyncIterator[UowApp]:
    """A worker of this name, whose destination has this policy; with `routes` it has a router as well."""
    configured = replace(settings(name, set_aside_per_minute=set_aside_per_minute), routers=ROUTERS)
    configured = replace(configured, destinations={"D": replace(configured.destinations["D"], **policy)})
    log, rules = rule_log(kafka), RuleSet(tables)
    contexts = {
        topic: replace(context, rules=LoggedRules(log, "D", context.policy))
        for topic, context in task_contexts(configured, {"D.components": kafka.partitions}).items()
    }

    def restored(tps: Sequence[Tp], wanted: Wanted) -> Mapping[Tp, Task]:
        return restore(MemoryLogReader(kafka), contexts, tps, wanted)

    def new_ports(status: WorkerStatus) -> Ports:
        sink = MemorySink(kafka, configured.transactional_id, faults)
        return Ports(
            *(MemorySource(kafka, name), sink, kafka.clock, restored),
            upstream=MemoryUpstream(kafka),
            faults=contexts["D.components"].faults,
            others=(log,),
        )

    def new_router(
        status: WorkerStatus, on_ready: Callable[[], None], on_finished: Callable[[BaseException | None], None]
    ) -> Router:
        reader = MemoryLogReader(kafka)

        def starts(tps: Sequence[Tp], meanwhile: Meanwhile) -> Mapping[Tp, int]:
            return {tp: at.offset or 0 for tp, at in reader.committed(tps).items()}

        policy = configured.destinations["D"]
        targets = {"D": RouteTarget(DestinationTopics("A", "D"), policy, RecordLimit(), kafka.partitions)}
        desk = RouterDesk(lambda: rules, ROUTERS, targets, rule_log(kafka), rules_topic("A"), kafka.clock.now_ms)
        sink = MemorySink(kafka, configured.of_routers.transactional_id)
        ports = RouterPorts(MemorySource(kafka, "router"), sink, starts, MemoryContents(kafka), desk, NobodyAsks())
        status.router = RouterStatus()
        return Router(ports, [INPUT], 100, status.router, threading.Event(), on_ready, on_finished)

    app = create_app(configured, new_ports, None, new_router if routes else None)
    app.finalize()
    app.worker_init()
    app.worker_init_post_autodiscover()
    await app.start()
    try:
        yield app
    finally:
        await app.stop()


def send(kafka: MemoryKafka, name: str, count: int, first: int = 0) -> None:
    """Documents for a routing name, to the partitions of the input in turn."""
    for number in range(first, first + count):
        value = f"<?xml version='1.0'?><Test n='{number}'>{name}</Test>".encode()
        kafka.append(INPUT, None, value, [("uow-destination", name.encode())], number % kafka.partitions)


def units(kafka: MemoryKafka, topic: str) -> list[tuple[int, str, str, str]]:
    """Size, outcome, reason and generation of the units on a topic; each is one document around those of its components."""
    found = []
    for record in kafka.topic(topic):
        said = {name: (value or b"").decode() for name, value in record.headers() or []}
        root = ET.fromstring(record.value() or b"")
        assert (root.tag, len(root)) == ("Aggregation", int(said["uow-size"]))
        assert (record.key() or b"").decode() == said["uow-id"]
        found.append((int(said["uow-size"]), said["uow-outcome"], said["uow-reason"], said["uow-generation"]))
    return sorted(found, key=lambda unit: unit[3])


async def until_as_time_goes_by(kafka: MemoryKafka, condition: Callable[[], Any]) -> None:
    """Waits while the clock goes on: a worker that found the router behind looks again a little later."""

    def holds() -> bool:
        kafka.clock.now += 10
        return bool(condition())

    await until(holds)


def held(app: UowApp) -> int:
    """Components in open groups."""
    return sum(task.counts.open for task in list(app.status.tasks.values()))


def deadlines(app: UowApp) -> list[int]:
    """Of the open groups, epoch ms."""
    tasks: list[Any] = [*app.status.tasks.values()]
    return [group.due_at(task.context.policy) for task in tasks for group in task.groups.values()]


def components(kafka: MemoryKafka) -> int:
    return len(kafka.topic("D.components"))


@in_a_loop
async def test_ten_for_france_are_a_unit_at_once_and_the_rest_waits_for_its_time_b61_b62() -> None:
    kafka = MemoryKafka()
    send(kafka, "France", 11)
    async with running(kafka):
        await until(lambda: units(kafka, "orders.france"))
        assert units(kafka, "orders.france") == [(10, "complete", "count", "1")]
        kafka.clock.now += 30_000
        send(kafka, "UK", 1)
        await until(lambda: components(kafka) == 12)
        assert len(units(kafka, "orders.france")) == 1, "at its deadline a group is in time"
        kafka.clock.now += 1
        await until_as_time_goes_by(kafka, lambda: len(units(kafka, "orders.france")) == 2)
        send(kafka, "France", 20, 11)
        await until(lambda: len(units(kafka, "orders.france")) == 4)
    assert units(kafka, "orders.france") == [
        (10, "complete", "count", "1"),
        (1, "partial", "age", "2"),
        (10, "complete", "count", "3"),
        (10, "complete", "count", "4"),
    ]


@pytest.fixture
def transforms(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Those that are installed for tests."""
    install(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("transforms")
@in_a_loop
async def test_a_group_fails_with_a_record_of_it_that_cannot_be_transformed_b26() -> None:
    """The fourth record fails; those before it are given up together, those behind it make the next group."""
    tables = replace(TO_D, rules=(replace(TO_D.rules[0], transform="every_fourth_fails"),))
    kafka = MemoryKafka(partitions=1)
    send(kafka, "France", 3)
    async with running(kafka, tables, violation_policy=ViolationPolicy.FAIL_GROUP) as app:
        await until(lambda: held(app) == 3)
        send(kafka, "France", 1, 3)
        await until(lambda: len(kafka.topic("D.errors")) == 3)
        send(kafka, "France", 3, 4)
        await until(lambda: held(app) == 3)
    told = [dict(record.headers() or []) for record in kafka.topic("D.errors")]
    assert {each["uow-failure-reason"] for each in told} == {b"failed"}
    assert [each["uow-input"] for each in told] == [b"stock.events/0/%d" % offset for offset in range(3)]
    (rejected,) = [dict(record.headers() or []) for record in kafka.topic("D.rejected")]
    assert (rejected["uow-error-case"], rejected["uow-input"]) == (b"transform", b"stock.events/0/3")


@in_a_loop
async def test_worker_that_stops_closes_both_readers_of_the_rules() -> None:
    kafka = MemoryKafka()
    send(kafka, "France", 10)
    async with running(kafka):
        await until(lambda: units(kafka, "orders.france"))
        assert len([each for each in RuleReader.opened if each.kafka is kafka]) == 2
    assert not [each for each in RuleReader.opened if each.kafka is kafka]


@in_a_loop
async def test_three_of_five_for_the_uk_close_by_age_and_names_without_a_row_share_one_group_b63_b22_b23() -> None:
    kafka = MemoryKafka()
    send(kafka, "UK", 3)
    send(kafka, "Mars", 5)
    send(kafka, "Venus", 5, 5)
    async with running(kafka):
        await until(lambda: units(kafka, "orders.other") == [(10, "complete", "count", "1")])
        assert units(kafka, "orders.uk") == []
        kafka.clock.now += 15_001
        await until_as_time_goes_by(kafka, lambda: units(kafka, "orders.uk") == [(3, "partial", "age", "1")])


@in_a_loop
async def test_twelve_of_twenty_for_spain_outlive_a_stop_and_close_at_their_own_deadline_b65() -> None:
    kafka = MemoryKafka()
    send(kafka, "Spain", 12)
    async with running(kafka) as app:
        await until(lambda: components(kafka) == 12)
        await until(lambda: held(app) == 12)
    kafka.clock.now += 40_000
    async with running(kafka, routes=False):
        kafka.clock.now += 20_000
        assert units(kafka, "orders.spain") == []
        kafka.clock.now += 1
        await until_as_time_goes_by(kafka, lambda: units(kafka, "orders.spain") == [(12, "partial", "age", "1")])


@in_a_loop
async def test_eight_more_for_spain_after_a_start_in_time_complete_the_twenty_b66() -> None:
    kafka = MemoryKafka()
    send(kafka, "Spain", 12)
    async with running(kafka) as app:
        await until(lambda: held(app) == 12)
    kafka.clock.now += 40_000
    async with running(kafka):
        send(kafka, "Spain", 8, 12)
        await until(lambda: units(kafka, "orders.spain"))
        kafka.clock.now += 30_000
        send(kafka, "Spain", 1, 20)
        await until(lambda: components(kafka) == 21)
        assert units(kafka, "orders.spain") == [(20, "complete", "count", "1")]


@in_a_loop
async def test_twelve_for_spain_close_at_their_deadline_though_their_worker_was_killed_and_another_joined_b66() -> None:
    """The next worker has nothing of the first one but what is in Kafka: not its memory, and files there are none."""
    kafka, faults = MemoryKafka(), Faults()
    send(kafka, "Spain", 12)
    async with running(kafka, faults=faults) as app:
        await until(lambda: held(app) == 12)
        first = deadlines(app)
        kafka.clock.now += 20_000
        faults.plan("produced", RuntimeError("killed"))
        kafka.append("D.components", b"plain", b"<a/>", [])
        await until(lambda: app.crashed)
    async with running(kafka, routes=False) as heir:
        await until(lambda: held(heir) == 12)
        assert deadlines(heir) == first
        async with running(kafka, routes=False, name="1") as other:
            await until(lambda: len(heir.status.tasks) == len(other.status.tasks) == 1)
            await until(lambda: held(heir) + held(other) == 12)
            assert deadlines(heir) + deadlines(other) == first
            kafka.clock.now += 40_001
            await until_as_time_goes_by(kafka, lambda: units(kafka, "orders.spain"))
            await until(lambda: held(heir) + held(other) == 0)
    assert units(kafka, "orders.spain") == [(12, "partial", "age", "1")]


@in_a_loop
async def test_twelve_for_spain_close_at_a_start_ten_minutes_later_and_the_overrun_is_told_b66() -> None:
    kafka = MemoryKafka()
    send(kafka, "Spain", 12)
    async with running(kafka) as app:
        await until(lambda: held(app) == 12)
    kafka.clock.now += 600_000
    async with running(kafka) as app:
        await until(lambda: units(kafka, "orders.spain"))
        assert units(kafka, "orders.spain") == [(12, "partial", "age", "1")]
        (task, *_) = app.status.tasks.values()
        assert task.context.figures.rows[RowName("low-stock", "Spain")].overruns.total == pytest.approx(540, abs=1)


@in_a_loop
async def test_nothing_is_given_up_while_a_component_lies_unread_in_an_input_b218() -> None:
    """Three of five were routed; two more came in time, while no router ran. The worker that starts first has none."""
    kafka = MemoryKafka()
    send(kafka, "UK", 3)
    async with running(kafka) as app:
        await until(lambda: held(app) == 3)
    kafka.clock.now += 10_000
    send(kafka, "UK", 2, 3)
    kafka.clock.now += 50_000
    async with running(kafka, routes=False) as app:
        polls = app.status.polls
        kafka.append("D.components", b"plain", b"<a/>", [])
        await until(lambda: app.status.polls > polls)
        assert units(kafka, "orders.uk") == []
    async with running(kafka):
        await until_as_time_goes_by(kafka, lambda: units(kafka, "orders.uk"))
    assert units(kafka, "orders.uk") == [(5, "complete", "count", "1")]


@in_a_loop
async def test_open_groups_of_a_live_rule_take_the_version_that_a_router_finds_b13() -> None:
    kafka = MemoryKafka()
    live = replace(TO_D, rules=(replace(TO_D.rules[0], on_rule_change=OnRuleChange.LIVE),))
    send(kafka, "UK", 4)
    async with running(kafka, live) as app:
        await until(lambda: held(app) == 4)
    fewer = changed(2, rows=(replace(ROWS[1], version=2, complete_count=3),))
    async with running(kafka, live.with_rows_of(fewer)):
        await until_as_time_goes_by(kafka, lambda: units(kafka, "orders.uk") == [(4, "complete", "command", "1")])
        send(kafka, "UK", 3)
        await until(lambda: units(kafka, "orders.uk")[1:] == [(3, "complete", "count", "2")])


def test_runs_need_a_target_with_as_many_partitions_b60(caplog: pytest.LogCaptureFixture) -> None:
    runs = (replace(ROWS[0], shape=Shape.CONSECUTIVE, value_format=None), *ROWS[1:])
    rules, there = RuleSet(replace(TO_D, rows=runs)), {"D.components": 4, "orders.france": 4, "orders.uk": 1}
    destinations = settings().destinations
    assert Deployment("A", destinations, ROUTERS, lambda: there).complaints(rules) == []
    warn_of_missing_targets(settings(), rules, there)
    assert "orders.spain does not exist" in caplog.text
    other = Deployment("A", destinations, ROUTERS, lambda: there | {"orders.france": 6})
    (complaint,) = other.complaints(rules)
    assert "topic orders.france, partitions = 6: must be 4, as of D.components" in str(complaint)
    assert other.held(rules) == {}, "its units wait, and the router goes on"


@pytest.mark.parametrize(("shape", "is_refused"), [(None, True), (Shape.ENVELOPE, True), (Shape.REFERENCE, False)])
def test_a_target_to_which_units_may_go_as_runs_by_oversize_needs_as_many_partitions_b60(
    shape: Shape | None, is_refused: bool
) -> None:
    rows = (replace(ROWS[0], shape=shape, value_format=None), *ROWS[1:])
    rules, there = RuleSet(replace(TO_D, rows=rows)), {"D.components": 4, "orders.france": 6}
    destinations = {
        name: replace(policy, oversize=Oversize.CONSECUTIVE) for name, policy in settings().destinations.items()
    }
    told = Deployment("A", destinations, ROUTERS, lambda: there).complaints(rules)
    assert ["orders.france" in str(each) for each in told] == [True] * is_refused
    assert not Deployment("A", settings().destinations, ROUTERS, lambda: there).complaints(rules)


@in_a_loop
async def test_a_replay_makes_the_same_units_though_the_rules_have_changed_b14() -> None:
    """Components and `A-rules` are all that the assembler uses: another one starts from them alone, beside a router with other rules."""
    kafka, again = MemoryKafka(), MemoryKafka()
    send(kafka, "France", 25)
    send(kafka, "UK", 3)
    async with running(kafka):
        await until(lambda: len(units(kafka, "orders.france")) == 2)
        kafka.clock.now += 30_001
        await until_as_time_goes_by(kafka, lambda: units(kafka, "orders.uk"))
        await until_as_time_goes_by(kafka, lambda: len(units(kafka, "orders.france")) == 3)
    for topic in (rules_topic("A"), "D.components"):
        for each in kafka.topic(topic):
            again.append(topic, each.key(), each.value(), each.headers(), each.partition(), each.timestamp()[1])
    again.clock.now = kafka.clock.now
    fewer = tuple(replace(row, complete_count=4, age_ms=1_000, target_topic="orders.few") for row in TO_D.rows)
    async with running(again, replace(TO_D, rows=fewer)):
        await until_as_time_goes_by(
            again, lambda: units(again, "orders.uk") and len(units(again, "orders.france")) == 3
        )
    for topic in ("orders.france", "orders.uk"):
        told = [[(each.key(), each.value(), each.headers()) for each in one.topic(topic)] for one in (kafka, again)]
        assert told[0] == told[1]
    assert again.topic("orders.few") == []


@in_a_loop
async def test_a_rule_that_nobody_wrote_down_refuses_its_component() -> None:
    kafka = MemoryKafka()
    kafka.append(
        "D.components", b"low-stock/UK", b"<a/>", [("uow-id", b"low-stock/UK"), ("uow-rule", b"low-stock/UK@9")]
    )
    async with running(kafka):
        await until(lambda: kafka.topic("D.rejected"))
        send(kafka, "France", 10)
        await until(lambda: units(kafka, "orders.france"))
    said = dict(kafka.topic("D.rejected")[0].headers() or [])
    assert (said["uow-error-class"], said["uow-error-case"]) == (b"DecodeError", b"uow-rule")
