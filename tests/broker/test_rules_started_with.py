"""Versions of rules that a start refuses, rows that somebody wrote to `A-rules`, and a router without its rule: on a broker (B-15, B-18)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.broker.routed_places import RoutedPlace
from tests.broker.worker_places import Destination
from tests.processes import PATIENCE_S, wait_for
from uow.cli.main import main
from uow.topics.partitioner import partition_for
from uow.topics.rules import ResolvedRow, Row, Rule

pytestmark = pytest.mark.timeout(300)
SHORT = {"session_timeout_ms": 2000}
ONE = {"*": {"target_topic": "one", "complete_count": 1}}


class Place(RoutedPlace):
    """A destination behind two routers, whose rules a test names."""

    def named(self, rules: str, others: str) -> None:
        """The rules of the routers `stock` and `other`."""
        stock, other = (json.dumps([topic]) for topic in self.inputs.values())
        text = self.place.config.read_text().partition("[routers.stock]")[0]
        self.place.config.write_text(
            f"{text}[routers.stock]\ninputs = {stock}\nrules = {rules}\n"
            f"[routers.other]\ninputs = {other}\nrules = {others}\n"
        )

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(main, [*arguments, "-c", str(self.place.config)], catch_exceptions=False)

    def write(self, topic: str, key: bytes, value: bytes, partition: int = 0, **headers: str) -> None:
        """A record of somebody who may write there."""
        producer = Producer({"bootstrap.servers": self.place.bootstrap, "enable.idempotence": True})
        said: Any = [(name.replace("_", "-"), text.encode()) for name, text in headers.items()]
        producer.produce(topic, value, key, partition, headers=said)
        assert not producer.flush(PATIENCE_S)

    def units(self) -> list[Mapping[str, bytes]]:
        return [dict(record.headers()) for record in self.place.read(self.topic("one"))]


@pytest.fixture
def routed(place: Destination) -> Place:
    routed = Place(place, {"events": 1, "others": 1})
    routed.put_rules(ONE)
    routed.create(SHORT)
    routed.named('["low-stock"]', "[]")
    return routed


def test_a_version_that_a_router_cannot_go_on_with_is_in_force_nowhere_and_stops_no_start_b15_b18(
    routed: Place,
) -> None:
    worker = routed.place.worker()
    routed.send([("events", "UK", b"<a/>")])
    wait_for(lambda: len(routed.units()) == 1)
    routed.put_rules(ONE, enabled=False)
    worker.child.wait_output("routers.stock.rules = 'low-stock': is no enabled rule")
    doctor = routed.run("doctor")
    assert doctor.exit_code != 0
    said = " ".join(doctor.output.split())
    assert "version 2 of the rules has faults: routers.other.rules = []: asks all rules, and none is enabled" in said
    worker.child.kill()
    heir = routed.place.worker()
    routed.send([("events", "UK", b"<b/>"), ("others", "UK", b"<c/>")])
    wait_for(lambda: len(routed.units()) == 3)
    assert {each["uow-rule"] for each in routed.units()} == {b"low-stock/*@1"}
    routed.put_rules(ONE)
    heir.child.wait_output("version 3 is in force")
    assert heir.child.terminate(90) == 0


def test_runs_to_a_target_of_other_partitions_are_in_force_nowhere_and_stop_no_start_b15_b60(routed: Place) -> None:
    place, three = routed.place, routed.topic("three")
    admin = AdminClient({"bootstrap.servers": place.bootstrap})
    admin.create_topics([NewTopic(three, 3, 1)])[three].result(PATIENCE_S)
    worker = place.worker()
    routed.send([("events", "UK", b"<a/>")])
    wait_for(lambda: len(routed.units()) == 1)
    wait_for(lambda: any(record.key() == b"rules" for record in place.read(f"A-{place.name}-rules")))
    routed.put_rules(
        {"*": {"target_topic": "three", "complete_count": 1, "shape": "consecutive", "value_format": "json"}}
    )
    fault = f"topic {three}, partitions = 3: must be {place.partitions}, as of {place.components}"
    assert "version 2 takes no effect" in worker.child.wait_output(fault)
    assert fault in " ".join(routed.run("doctor").output.split())
    assert worker.child.terminate(90) == 0
    heir = place.worker()
    routed.send([("events", "UK", b"<b/>")])
    wait_for(lambda: len(routed.units()) == 2)
    assert heir.child.terminate(90) == 0


def test_a_router_whose_rule_is_not_there_holds_its_inputs_and_everybody_else_goes_on(routed: Place) -> None:
    routed.named('["low-stock"]', '["low-stock", "lost"]')
    worker = routed.place.worker()
    routed.send([("others", "UK", b"<b/>"), ("events", "UK", b"<a/>")])
    wait_for(lambda: len(routed.units()) == 1)
    assert worker.metric(f'uow_router_blocked{{partition="0",topic="{routed.inputs["others"]}"}}') == 1
    assert worker.metric(f'uow_router_blocked{{partition="0",topic="{routed.inputs["events"]}"}}') == 0
    said = " ".join(routed.run("doctor").output.split())
    assert "router other holds its inputs: routers.other.rules = 'lost': is no enabled rule" in said
    assert worker.child.terminate(90) == 0
    routed.named('["low-stock"]', '["low-stock"]')
    heir = routed.place.worker()
    wait_for(lambda: len(routed.units()) == 2)
    assert heir.child.terminate(90) == 0


def test_rows_that_somebody_writes_to_the_log_of_rules_are_not_obeyed_and_stop_nobody(routed: Place) -> None:
    place = routed.place
    log, stolen = f"A-{place.name}-rules", routed.topic("stolen")
    admin = AdminClient({"bootstrap.servers": place.bootstrap})
    admin.create_topics([NewTopic(stolen, 1, 1)])[stolen].result(PATIENCE_S)
    worker = place.worker()
    routed.send([("events", "UK", b"<a/>")])
    wait_for(lambda: len(routed.units()) == 1)
    wait_for(lambda: any(record.key() == b"rules" for record in place.read(log)))
    evil = ResolvedRow(
        Rule("low-stock", 2, place.name), Row("low-stock", "*", 2, target_topic=stolen, complete_count=1)
    )
    assert evil.name == "low-stock/*@2"
    routed.write(log, evil.name.encode(), evil.encode())
    told = json.loads(evil.encode())
    for wrong in (None, "2", [2], {}, 2.5, True):
        told["row"]["version"] = told["rule"]["version"] = wrong
        routed.write(log, b"low-stock/UK@2", json.dumps(told).encode())
        routed.write(log, b"rules", json.dumps({"v": 1, "rules": wrong}).encode())
    part = partition_for(b"low-stock/*", place.partitions)
    for name in (evil.name, "low-stock/UK@2", "low-stock/*@99999999999999999999"):
        stamps = {"uow_id": "low-stock/*", "uow_rule": name, "uow_input": f"{place.name}.x/0/{len(name)}"}
        routed.write(place.components, b"low-stock/*", b"<evil/>", part, **stamps)
    wait_for(lambda: len(place.read(f"{place.name}.rejected")) == 3)
    refused = [dict(record.headers()) for record in place.read(f"{place.name}.rejected")]
    assert {(each["uow-error-class"], each["uow-error-case"]) for each in refused} == {(b"DecodeError", b"uow-rule")}
    worker.child.wait_output("row low-stock/*@2: not believed: there is no version 2 of the rules yet")
    worker.child.wait_output(f"{log}/0/")
    routed.put_rules(ONE)
    worker.child.wait_output("version 2 is in force")
    routed.send([("events", "UK", b"<b/>")])
    wait_for(lambda: len(routed.units()) == 2)
    assert (routed.units()[-1]["uow-rule"], place.read(stolen)) == (b"low-stock/*@2", [])
    assert not worker.page().get("blocked")
    assert worker.child.terminate(90) == 0
