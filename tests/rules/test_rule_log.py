"""`A-rules` as routers and assemblers read it: rows by name, all rules, and a call to look again (section 5, B-12, B-17)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from tests.fake_record import FakeRecord
from tests.rules.low_stock import ROWS, RULE, TABLES
from uow.processor.engine.ports import Doubt, Tp
from uow.processor.kafka.router_desk import LoggedRules, RouterDesk
from uow.processor.kafka.rule_log import KafkaRuleLog
from uow.processor.rules.mirror import read_mirror
from uow.processor.rules.routing import RouteTarget
from uow.processor.rules.rule_set import RuleSet
from uow.schemas.error_classes import ConfigError
from uow.topics.catalogue import DestinationTopics
from uow.topics.policies import DestinationPolicy, HandlingPolicy
from uow.topics.record_size import RecordLimit
from uow.topics.routers import RouterSettings
from uow.topics.rules import REFRESH_KEY, RULES_KEY, ResolvedRow

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


def test_a_row_never_changes_its_meaning() -> None:
    log = Log()
    forged = ResolvedRow(RULE, replace(ROWS[1], complete_count=1))
    assert forged.name == UK.name
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


def routed(desk: RouterDesk, name: bytes) -> Any:
    record = FakeRecord(0, [("uow-destination", name)], b"<a/>", tp=Tp("stock.events", 0))
    return desk.route(record, record.headers_)


def test_each_row_and_all_rules_are_written_once_with_the_first_component_b17() -> None:
    log, rules = Log(), Rules()
    first = desk(log, rules)
    outputs = first.unwritten([routed(first, b"UK"), routed(first, b"UK"), routed(first, b"Mars")])
    assert [output.key for output in outputs] == [b"low-stock/UK@1", b"low-stock/*@1", RULES_KEY]
    assert {(output.topic, output.partition) for output in outputs} == {PLACE}
    assert RuleSet(read_mirror(outputs[-1].value or b"")).content() == rules.now.content()
    assert first.unwritten([routed(first, b"UK")]) != [], "an aborted transaction wrote nothing"
    first.written(outputs)
    assert first.unwritten([routed(first, b"UK")]) == []
    for output in outputs:
        log.append(output.key or b"", output.value)
    second = desk(log, rules)
    second.refresh()
    assert second.unwritten([routed(second, b"UK"), routed(second, b"Mars")]) == []


def test_rules_that_fit_into_no_record_are_not_kept_and_stop_nothing_b17() -> None:
    log, rules = Log(), Rules()
    many = tuple(
        replace(TABLES.rows[0], routing_name=f"supplier {number}", complete_when="x" * 50_000) for number in range(300)
    )
    rules.now = RuleSet(replace(TABLES, rows=(*TABLES.rows, *many)))
    one = desk(log, rules)
    assert [output.key for output in one.unwritten([routed(one, b"UK")])] == [b"low-stock/UK@1"]


def test_another_version_is_used_from_the_next_turn_on() -> None:
    log, rules = Log(), Rules()
    one = desk(log, rules)
    rules.now = RuleSet(replace(TABLES, rows=(*TABLES.rows, replace(ROWS[1], version=2))))
    assert routed(one, b"UK").row.name == "low-stock/UK@1"
    one.refresh()
    assert routed(one, b"UK").row.name == "low-stock/UK@2"


def test_a_router_without_any_rule_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match=r"routers\.stock\.rules"):
        desk(Log(), Rules(), "no-such-rule")
