"""`A-rules` as routers and assemblers read it: rows by name, all rules, and a call to look again (section 5, B-12, B-17)."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from tests.fake_record import FakeRecord
from tests.rules.low_stock import ROWS, RULE, TABLES, changed
from uow.processor.engine.ports import Doubt, Tp
from uow.processor.kafka.router_desk import LoggedRules, RouterDesk
from uow.processor.kafka.rule_log import KafkaRuleLog
from uow.processor.rules.deployment import Deployment
from uow.processor.rules.mirror import mirrored, read_mirror, version_alone
from uow.processor.rules.routed_records import RoutedRecords
from uow.processor.rules.routing import RouteTarget
from uow.processor.rules.rule_set import RuleSet
from uow.topics.catalogue import DestinationTopics
from uow.topics.command_keys import CommandKey, CommandSigner
from uow.topics.commands import Command, CommandReader
from uow.topics.policies import DestinationPolicy, HandlingPolicy
from uow.topics.record_size import RecordLimit
from uow.topics.routers import RouterSettings
from uow.topics.rules import REFRESH_KEY, RULES_KEY, OnRuleChange, Parameter, ResolvedRow

PLACE = Tp("shop-rules", 0)
UK = ResolvedRow(RULE, ROWS[1])
POLICY = DestinationPolicy(handling_policy=HandlingPolicy.SINGLE_MESSAGE_DELIVERY)


class Log:
    """A log and a reader of it: `visible` of its records can be read yet, those after them are of an open transaction."""

    def __init__(self) -> None:
        self.records: list[FakeRecord] = []
        self.visible = 0
        self.position = 0
        self.time = 0.0

    def append(self, key: bytes, value: bytes | None, visible: bool = True) -> None:
        self.records.append(FakeRecord(len(self.records), None, value, key, tp=PLACE))
        self.visible += visible

    def assign(self, where: Any) -> None:
        assert [each.topic for each in where] == [PLACE.topic]

    def consume(self, count: int, timeout: float) -> list[FakeRecord]:
        self.time += timeout
        found = self.records[self.position : self.visible][:count]
        self.position += len(found)
        return found or [FakeRecord(self.position, None, tp=PLACE, error_=KafkaError(KafkaError._PARTITION_EOF))]

    def close(self) -> None: ...


def reader(log: Log, on_refresh: Any = lambda: None) -> KafkaRuleLog:
    return KafkaRuleLog(PLACE.topic, lambda: log, lambda meanwhile: len(log.records), on_refresh, lambda: log.time)


def test_workers_look_at_all_topics_that_rows_may_write_to_and_sinks_read_those_of_units_b57_b91_b209() -> None:
    log = Log()
    rows = reader(log)
    asks = (Parameter("reply_topics", 1, "trips.mine"), Parameter("notice_topics", 1, "hotels.cancelled"))
    calls = ResolvedRow(replace(RULE, group_key="request"), ROWS[0], (), asks)
    counts = replace(UK, parameters=asks)
    for each in (calls, counts):
        log.append(each.name.encode(), each.encode())
    rows.follow()
    assert rows.target_topics() == {"orders.france", "orders.uk", "trips.mine", "hotels.cancelled"}
    assert (calls.targets, counts.targets) == (("orders.france", "trips.mine"), ("orders.uk",))


def test_a_row_is_found_once_it_was_read_and_other_destinations_have_none() -> None:
    log = Log()
    rows = reader(log)
    supply, other = LoggedRules(rows, "supply", POLICY), LoggedRules(rows, "other", POLICY)
    assert supply.policy(UK.name) is None
    log.append(UK.name.encode(), UK.encode())
    supply.catch_up(lambda: None)
    policy = supply.policy(UK.name)
    assert policy is not None
    assert (policy.rule, policy.target_topic) == (UK.name, "orders.uk")
    assert supply.policy(UK.name) is policy
    assert other.policy(UK.name) is None


def test_the_memory_of_rows_and_their_policies_is_reckoned_er19() -> None:
    log = Log()
    names = [f"name-{number}" for number in range(200)]
    rows = [ResolvedRow(RULE, replace(ROWS[1], routing_name=name)) for name in names]
    for row in rows:
        log.append(row.name.encode(), row.encode())
    tracemalloc.start()
    try:
        read = reader(log)
        supply = LoggedRules(read, "supply", POLICY)
        supply.catch_up(lambda: None)
        assert all(supply.policy(row.name) is not None for row in rows)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert 0.7 < read.row_bytes / taken < 1.5, f"{taken / len(rows):.0f} bytes a row"


def test_a_row_in_an_open_transaction_is_waited_for() -> None:
    log = Log()
    log.append(UK.name.encode(), UK.encode(), visible=False)
    rows, served = reader(log), 0

    def meanwhile() -> None:
        nonlocal served
        served += 1
        if served == 3:
            log.visible = 1

    rows.catch_up(meanwhile)
    assert [*rows.rows] == [UK.name]
    log.append(b"more", b"", visible=False)
    with pytest.raises(Doubt, match="not read to its end"):
        rows.catch_up(lambda: None)


@pytest.mark.parametrize(
    ("key", "value"),
    [(b"low-stock/France@1", UK.encode()), (UK.name.encode(), b"{"), (UK.name.encode(), None), (b"\xff", UK.encode())],
)
def test_a_record_that_is_not_the_row_that_it_is_named_for_counts_for_nothing(key: bytes, value: bytes | None) -> None:
    log = Log()
    log.append(key, value)
    rows = reader(log)
    rows.follow()
    assert (rows.rows, rows.ignored) == ({}, 1)


def test_a_row_of_a_version_that_is_there_never_changes_its_meaning() -> None:
    log = Log()
    forged = ResolvedRow(RULE, replace(ROWS[1], complete_count=1))
    assert forged.name == UK.name
    log.append(RULES_KEY, mirrored(RuleSet(TABLES)))
    for row in (UK, forged):
        log.append(UK.name.encode(), row.encode())
    rows = reader(log)
    rows.follow()
    assert rows.rows[UK.name] == UK


def test_a_call_to_look_again_is_heard_at_the_next_poll_b12() -> None:
    log, heard = Log(), []
    rows = reader(log, lambda: heard.append(1))
    rows.follow()
    log.append(REFRESH_KEY, None)
    rows.follow()
    rows.follow()
    assert heard == [1]


class Rules:
    """The rules in force, which a test replaces."""

    def __init__(self) -> None:
        self.now = RuleSet(TABLES)

    def __call__(self) -> RuleSet:
        return self.now


def desk(log: Log, rules: Rules, *ids: str) -> RouterDesk:
    target = RouteTarget(DestinationTopics("shop", "supply"), POLICY, RecordLimit())
    routers = {"stock": RouterSettings(("stock.events",), ids)}
    return RouterDesk(rules, routers, {"supply": target}, reader(log), PLACE.topic, lambda: 0)


def rows(desk: RouterDesk, *named: bytes) -> Any:
    """The rows of the components that become of records with these routing names."""
    tp, found = Tp("stock.events", 0), RoutedRecords()
    records = [FakeRecord(0, [("uow-destination", name)], b"<a/>", tp=tp) for name in named]
    desk.route(tp, [(record.headers_, record) for record in records], found)
    return found.rows.values()


def test_each_row_and_all_rules_are_written_once_with_the_first_component_b17() -> None:
    log, rules = Log(), Rules()
    first = desk(log, rules)
    outputs = first.unwritten(rows(first, b"UK", b"UK", b"Mars"))
    assert [output.key for output in outputs] == [RULES_KEY, b"low-stock/UK@1", b"low-stock/*@1"]
    assert {(output.topic, output.partition) for output in outputs} == {PLACE}
    assert RuleSet(read_mirror(outputs[0].value or b"")).content() == rules.now.content()
    assert first.unwritten(rows(first, b"UK")) != [], "an aborted transaction wrote nothing"
    first.written(outputs)
    assert first.unwritten(rows(first, b"UK")) == []
    for output in outputs:
        log.append(output.key or b"", output.value)
    second = desk(log, rules)
    second.refresh()
    assert second.unwritten(rows(second, b"UK", b"Mars")) == []


def test_rules_that_fit_into_no_record_are_not_kept_and_stop_nothing_b17() -> None:
    log, rules = Log(), Rules()
    many = tuple(
        replace(TABLES.rows[0], routing_name=f"supplier {number}", complete_when="x" * 50_000) for number in range(300)
    )
    rules.now = RuleSet(replace(TABLES, rows=(*TABLES.rows, *many)))
    one = desk(log, rules)
    told, row = one.unwritten(rows(one, b"UK"))
    assert (told.key, told.value, row.key) == (RULES_KEY, version_alone(1), b"low-stock/UK@1")


@pytest.mark.parametrize("garbage", [None, b"{}", mirrored(RuleSet(TABLES))], ids=["null", "garbage", "earlier"])
@pytest.mark.parametrize("version", [1, 2])
def test_a_mirror_that_somebody_wrote_over_is_written_again_by_whichever_router_comes_next(
    garbage: bytes | None, version: int
) -> None:
    """Compaction would keep the garbage alone, and the next start would have no mirror."""
    log, rules = Log(), Rules()
    later = RuleSet(TABLES.with_rows_of(changed(2, rows=(replace(ROWS[1], version=2),))))
    rules.now = later if version == 2 else rules.now
    one = desk(log, rules)
    log.append(RULES_KEY, mirrored(later))
    for _ in range(2):
        log.append(RULES_KEY, garbage)
        one.refresh()
        (output,) = one.unwritten(())
        assert (output.key, output.value) == (RULES_KEY, mirrored(later))
        one.written([output])
        assert not one.unwritten(())
        log.append(RULES_KEY, output.value)
        one.refresh()
        assert not one.unwritten(())


def test_another_version_is_used_from_the_next_turn_on() -> None:
    log, rules = Log(), Rules()
    one = desk(log, rules)
    rules.now = RuleSet(replace(TABLES, rows=(*TABLES.rows, replace(ROWS[1], version=2))))
    assert [row.name for row in rows(one, b"UK")] == ["low-stock/UK@1"]
    one.refresh()
    assert [row.name for row in rows(one, b"UK")] == ["low-stock/UK@2"]


@pytest.mark.parametrize("signed", [(), ("supply",), ("other",), ("supply", "other")])
def test_where_one_destination_of_an_input_has_keys_those_without_do_not_set_its_records_aside(
    signed: tuple[str, ...],
) -> None:
    """Else whoever may write the commands of one destination could take records from another one."""
    keys = (CommandKey("ops", CommandSigner("ops", bytes(32)).public, frozenset({"all"}), 1),)
    names, rules = ("supply", "other"), Rules()
    second = replace(RULE, rule_id="second", destination="other")
    rules.now = RuleSet(
        replace(TABLES, rules=(*TABLES.rules, second), rows=(*ROWS, replace(ROWS[0], rule_id="second")))
    )
    targets = {
        name: RouteTarget(
            DestinationTopics("shop", name),
            replace(POLICY, command_keys=keys if name in signed else ()),
            RecordLimit(),
        )
        for name in names
    }
    routers = {"stock": RouterSettings(("stock.events",), ())}
    found = RouterDesk(rules, routers, targets, reader(Log()), PLACE.topic, lambda: 0)
    assert {*found.commanded_by("stock.events")} == {*(signed or names)}


def test_a_version_of_a_live_rule_is_announced_once_to_all_partitions_and_a_planned_row_when_it_begins_b13() -> None:
    log, rules, now = Log(), Rules(), [0]
    live = replace(TABLES, rules=(replace(RULE, on_rule_change=OnRuleChange.LIVE),), rows=ROWS[:2])
    signer = CommandSigner("router", bytes(32))
    policy = replace(POLICY, command_keys=(CommandKey("router", signer.public, frozenset({"rule-change"})),))
    target = RouteTarget(DestinationTopics("shop", "supply"), policy, RecordLimit(), partitions=3, signer=signer)
    routers = {"stock": RouterSettings(("stock.events",), ())}
    rules.now = RuleSet(live)

    def started() -> RouterDesk:
        log.position = 0
        return RouterDesk(rules, routers, {"supply": target}, reader(log), PLACE.topic, lambda: now[0])

    def announced(desk: RouterDesk) -> list[str]:
        desk.refresh()
        found = []
        while outputs := desk.announcement(tuple):
            assert desk.announcement(tuple) == outputs, "an aborted transaction made nothing known"
            row, *commands = [output for output in outputs if output.key != RULES_KEY]
            assert {(each.topic, each.partition) for each in commands} == {("supply.commands", n) for n in range(3)}
            heard = CommandReader("supply", policy)
            (command,) = {heard.read(each.headers, FakeRecord(0, [], None, each.key, now[0])) for each in commands}
            assert isinstance(command, Command)
            assert command.is_verified
            assert (row.topic, row.key) == (PLACE.topic, command.rule.encode())
            found.append(command.rule)
            for output in outputs[: -len(commands)]:
                log.append(output.key or b"", output.value)
            desk.written(outputs)
        return found

    first = started()
    assert announced(first) == ["low-stock/France@1", "low-stock/UK@1"]
    assert announced(first) == announced(started()) == [], "whoever comes later finds them in A-rules"
    planned = replace(ROWS[1], version=2, complete_count=3, valid_from_ms=100)
    rules.now = RuleSet(live.with_rows_of(changed(2, rows=(planned,))))
    assert announced(first) == []
    now[0] = 100
    assert announced(first) == ["low-stock/UK@2"]
    assert announced(desk(Log(), Rules())) == [], "a rule whose groups keep their version"


def test_another_row_under_a_name_keeps_no_router_from_writing_its_own() -> None:
    log, rules = Log(), Rules()
    forged = replace(UK, row=replace(UK.row, target_topic="stolen.units"))
    log.append(forged.name.encode(), forged.encode())
    one = desk(log, rules)
    one.refresh()
    outputs = one.unwritten(rows(one, b"UK"))
    assert [(output.key, output.value) for output in outputs[1:]] == [(UK.name.encode(), UK.encode())]
    one.written(outputs)
    assert one.unwritten(rows(one, b"UK")) == []


def test_a_router_without_its_rule_holds_its_inputs_and_says_why_until_a_version_has_it() -> None:
    rules = Rules()
    target = RouteTarget(DestinationTopics("shop", "supply"), POLICY, RecordLimit())
    routers = {"stock": RouterSettings(("stock.events",), ("low-stock", "spare")), "all": RouterSettings(("others",))}
    deployment = Deployment("shop", {"supply": POLICY}, routers, dict)
    one = RouterDesk(rules, routers, {"supply": target}, reader(Log()), PLACE.topic, lambda: 0, deployment.held)
    assert one.obstacle("stock.events") == (
        "router stock holds its inputs: routers.stock.rules = 'spare': is no enabled rule"
    )
    assert one.obstacle("others") == ""
    spare = changed(
        2, rules=(replace(RULE, rule_id="spare", version=2),), rows=(replace(ROWS[3], rule_id="spare", version=2),)
    )
    rules.now = RuleSet(TABLES.with_rows_of(spare))
    one.refresh()
    assert one.obstacle("stock.events") == ""
