"""People on call and units by rule: one worker, one run, all commands (aggregation, 6.8 and B-201, B-210, B-212)."""

from __future__ import annotations

import json
import sys
import threading
import time
import urllib.request
from collections import Counter
from contextlib import suppress
from functools import cached_property
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer

from tests.broker.routed_places import RoutedPlace
from tests.broker.worker_places import Destination
from tests.processes import PATIENCE_S, wait_for
from uow.cli.main import main
from uow.schemas import codec
from uow.schemas.component import encode_component
from uow.schemas.framing import single_object_header
from uow.schemas.records import Answer, ChangelogRow, ComponentRecord, Outcome, Source, rule_changelog_key
from uow.topics.partitioner import partition_for

UOW = Path(sys.executable).with_name("uow")

pytestmark = pytest.mark.timeout(300)
RULES = """
version = 1
author = "a test"
why = "to see"
[parameter]
stranded_after_ms = 7200000
[[rule]]
rule_id = "held"
destination = "{d}"
priority = 1
accept = "header('kind') == 'held'"
release = "hold_all"
default_group = "per_name"
row = [{{ routing_name = "*", target_topic = "{d}.held", complete_count = 1 }}]
[[rule]]
rule_id = "collect"
destination = "{d}"
priority = 2
accept = "header('kind') == 'collect'"
default_group = "per_name"
on_no_key = "reject"
row = [{{ routing_name = "*", target_topic = "{d}.collect", age_ms = 3600000 }}]
source = [{{ source_name = "invoice", quantity = 1 }}, {{ source_name = "order", quantity = 1 }}, {{ source_name = "packaging", quantity = 1 }}]
[[rule]]
rule_id = "low-stock"
destination = "{d}"
default_group = "per_name"
row = [
    {{ routing_name = "UK", target_topic = "{d}.uk", complete_count = 3, age_ms = 3600000 }},
    {{ routing_name = "*", target_topic = "{d}.other", complete_count = 9, age_ms = 3600000 }},
]
"""


class Desk:
    """A destination with three rules, and somebody who gives commands."""

    def __init__(self, place: Destination) -> None:
        self.place = place
        self.routed = RoutedPlace(place, {"events": 1})
        self.routed.rules.write_text(RULES.format(d=place.name))
        self.routed.create({"session_timeout_ms": 2000}, outcomes="all")
        place.is_created = False  # what routers and a hand write is accounted for below, by the audit

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(main, [*arguments, "-c", str(self.place.config)], catch_exceptions=False)

    def json(self, *arguments: str, status: int = 0) -> Any:
        done = self.run(*arguments, "--json")
        assert done.exit_code == status, done.output
        return json.loads(done.stdout)

    def tell(self, verb: str, *arguments: str) -> Result:
        return self.run(verb, self.place.name, *arguments, "--why", "the test says so", "--by", "Jill")

    @cached_property
    def _producer(self) -> Producer:
        return Producer({"bootstrap.servers": self.place.bootstrap, "enable.idempotence": True})

    def send(self, *rows: tuple[str, str, dict[str, str]]) -> None:
        for name, value, more in rows:
            said = {"uow-destination": name} | more
            headers: Any = [(key, text.encode()) for key, text in said.items()]
            self._producer.produce(self.routed.inputs["events"], value.encode(), headers=headers)
        assert not self._producer.flush(PATIENCE_S)

    def counted(self) -> int:
        """Components of nine in each unit of `other`, and those in open groups."""
        return 9 * len(self.topic("other")) + sum(self.open().values())

    def open(self) -> dict[str, int]:
        return {each["id"]: each["count"] for each in self.json("groups", self.place.name)["groups"]}

    def topic(self, name: str) -> list[dict[str, bytes]]:
        return [dict(record.headers()) for record in self.place.read(f"{self.place.name}.{name}")]

    def told(self, kind: type[Outcome | Answer]) -> list[Any]:
        found = [codec.decode(record.value()) for record in self.place.read(f"{self.place.name}.outcomes")]
        return [each for each in found if isinstance(each, kind)]

    def plant(self, group_id: str) -> tuple[str, str]:
        """The row of a component without that of its group; its coordinates, and those of the row."""
        partition = partition_for(group_id.encode(), self.place.partitions)
        now = time.time_ns() // 1_000_000
        stamps = {"uow-id": group_id, "uow-rule": f"{group_id}@1", "uow-input": "gone/0/7", "uow-arrived-at": str(now)}
        headers = tuple((name, text.encode()) for name, text in stamps.items())
        source = Source(self.place.components, partition, 4711)
        component = ComponentRecord(1, False, "gone/0/7", group_id.encode(), b"lost", headers, now, source)
        row = ChangelogRow(9, now, 4711, False, None, encode_component(component))
        told: list[Any] = []
        producer = Producer({"bootstrap.servers": self.place.bootstrap, "enable.idempotence": True})
        producer.produce(
            f"A-{self.place.name}-{self.place.name}-groups-changelog",
            single_object_header("ChangelogComponent") + codec.encode(row),
            rule_changelog_key(group_id.encode(), 9, 1),
            partition,
            on_delivery=lambda error, message: told.append(message),
        )
        assert not producer.flush(PATIENCE_S)
        return str(source), f"{told[0].topic()}/{partition}/{told[0].offset()}"


def test_operators_look_act_flush_release_and_bring_back_what_is_stranded(place: Destination) -> None:
    """B-69, B-72, B-75, B-104, B-107, B-201, B-210 and B-212 in one run."""
    desk = Desk(place)
    worker = place.worker()
    collected: list[tuple[str, str, dict[str, str]]] = [
        ("111", "an invoice", {"kind": "collect", "uow-source-name": "invoice"}),
        ("111", "an order", {"kind": "collect", "uow-source-name": "order"}),
    ]
    desk.send(
        *[("UK", "bolt", {}), ("UK", "nut", {})],
        *[("flush-me", f"screw {number}", {}) for number in range(4)],
        *[("cancel-me", f"nail {number}", {}) for number in range(3)],
        *[(f"h{number}", "waits", {"kind": "held"}) for number in range(5)],
        *collected,
    )
    held = {f"held/h{number}": 1 for number in range(5)}
    others = {"low-stock/UK": 2, "low-stock/flush-me": 4, "low-stock/cancel-me": 3, "collect/111": 2}
    wait_for(lambda: desk.open() == held | others, what=lambda: str(desk.open()))
    assert desk.json("groups", place.name, "--audit") == {"findings": [], "left_out": []}

    assert worker.child.terminate(90) == 0
    component, where = desk.plant("low-stock/UK")
    worker = place.worker()
    check_stranded(desk, worker, component, where)
    check_shown(desk)
    check_commands(desk)
    outcomes = desk.told(Outcome)
    check_outcomes(desk, outcomes)
    check_metrics(desk, worker, outcomes)
    assert desk.json("groups", place.name, "--audit") == {"findings": [], "left_out": []}
    assert worker.child.terminate(90) == 0


def test_a_repeated_audit_finds_nothing_while_orders_come_and_workers_are_killed_b71(place: Destination) -> None:
    desk = Desk(place)
    desk.routed.rules.write_text(RULES.format(d=place.name).replace("[parameter]", "[parameter]\naudit_every_ms = 100"))
    worker, sent = place.worker(), 0
    asked = ["groups", place.name, "--audit", "--repeat", "--json", "--metrics-port", "0", "-c", place.config]
    auditor = place.spawn(UOW, *asked)

    def reports() -> list[str]:
        return [line for line in auditor.output.splitlines() if line.startswith("{")]

    for _ in range(3):
        seen = len(reports())
        while len(reports()) < seen + 2:
            desk.send(*[(f"item-{number % 40}", "bolt", {}) for number in range(sent, sent + 30)])
            sent += 30
            time.sleep(0.2)
        worker.child.kill()
        worker = place.worker()
    wait_for(lambda: desk.counted() == sent, what=lambda: f"{desk.counted()} of {sent}")
    seen = len(reports())
    wait_for(lambda: len(reports()) > seen + 1, what=lambda: auditor.output)
    page = auditor.output.partition("metrics on ")[2].split()[0]
    with urllib.request.urlopen(page, timeout=PATIENCE_S) as answer:
        assert f'uow_orphans{{destination="{place.name}"}} 0.0' in answer.read().decode()
    auditor.kill()
    assert {*reports()} == {'{"findings": [], "left_out": []}'}
    assert worker.child.terminate(90) == 0


def check_stranded(desk: Desk, worker: Any, component: str, where: str) -> None:
    """B-69, B-72."""
    place, partition = desk.place, component.split("/")[1]
    (finding,) = desk.json("groups", place.name, "--audit", status=1)["findings"]
    assert (finding["kind"], finding["where"], finding["component"]) == ("component without group", where, component)
    orphans = f'uow_orphans{{destination="{place.name}",partition="{partition}"}}'
    assert worker.metric(orphans) == 1
    assert desk.open()["low-stock/UK"] == 2
    again = ("resubmit", place.name)
    dry = desk.run(*again, "--stranded", "--id", "low-stock/*", "--dry-run")
    assert (dry.exit_code, "would be done: gives it to the open group" in dry.stdout) == (0, True), dry.output
    assert desk.run(*again, "--component", f"{place.components}/0/1").exit_code == 1
    assert desk.run(*again, "--older-than", "1h").exit_code == 2
    done = desk.run(*again, "--component", component, "--command-id", "back")
    assert (done.exit_code, done.stdout) == (
        0,
        "recycle low-stock/UK: done: takes it as number 3 of generation 1\n",
    ), done.output
    assert desk.run(*again, "--component", component).exit_code == 1, "it is stranded no longer"
    wait_for(lambda: len(desk.topic("uk")) == 1)
    assert (desk.topic("uk")[0]["uow-size"], worker.metric(orphans)) == (b"3", 0)


def check_shown(desk: Desk) -> None:
    """B-201."""
    place = desk.place
    assert desk.tell("extend", "collect/111", "--until", "+2h").exit_code == 0
    shown = desk.json("show", place.name, "collect/111")
    group = shown["open"]
    assert group["waits_for"] == "1 component of source packaging"
    assert group["rule"] == "collect/*@1"
    assert {each["name"]: each["is_satisfied"] for each in group["sources"]} == {
        "invoice": True,
        "order": True,
        "packaging": False,
    }
    assert 3_600_000 < group["deadline"] - group["opened_at"] <= 7_800_000
    assert group["components"][-1]["source_name"] == "order"
    assert place.name in shown["worker"]
    assert shown["inner"] == {"groups": [], "more": 0, "others": 0, "certain": True}, "no router reads units (B-109)"
    kinds = [each["what"] for each in shown["timeline"]]
    assert sorted(kinds[:4]) == ["component", "component", "input", "input"]
    assert kinds[4:] == ["command", "answer"]
    assert kinds[0] == "input"
    assert all(each["where"].count("/") == 2 and each["at"] > 0 for each in shown["timeline"])
    assert [each["at"] for each in shown["timeline"]] == sorted(each["at"] for each in shown["timeline"])
    text = desk.run("show", place.name, "held/h3").stdout
    assert "a release of rule held" in text
    assert "rule:           held/*@1" in text
    assert "a release of rule held" in desk.run("groups", place.name).stdout
    closed = desk.json("show", place.name, "low-stock/UK")
    assert closed["closed"]["outcome"] == "complete"
    assert {each["what"] for each in closed["timeline"]} == {"input", "component", "command", "answer", "close", "unit"}


def check_commands(desk: Desk) -> None:
    """B-75, B-104, B-107, B-210."""
    place = desk.place
    released = desk.tell("release", "--rule", "held")
    assert (released.exit_code, len(released.stdout.splitlines())) == (0, place.partitions), released.output
    assert (
        sum(int(line.split(" lets ")[1].split()[0]) for line in released.stdout.splitlines() if " lets " in line) == 5
    )
    assert desk.tell("release", "--rule", "held").stdout.count("nothing waiting") == place.partitions
    dry = desk.tell("expire", "--match", "low-stock/flush*", "--dry-run")
    assert (dry.exit_code, "low-stock/flush-me" in desk.open()) == (0, True)
    assert desk.tell("expire", "--match", "low-stock/flush*").exit_code == 0
    assert desk.tell("cancel", "low-stock/cancel-me").exit_code == 0
    wait_for(lambda: desk.open() == {"collect/111": 2}, what=lambda: str(desk.open()))


def check_outcomes(desk: Desk, outcomes: list[Outcome]) -> None:
    assert sorted((each["uow-id"], each["uow-size"]) for each in desk.topic("held")) == [
        (f"held/h{number}".encode(), b"1") for number in range(5)
    ]
    (flushed,) = desk.topic("other")
    assert (flushed["uow-id"], flushed["uow-outcome"], flushed["uow-reason"], flushed["uow-size"]) == (
        b"low-stock/flush-me",
        b"partial",
        b"command",
        b"4",
    )
    by_id = {each.id: each for each in outcomes}
    answers = {each.command_id: each for each in desk.told(Answer)}
    for group_id, outcome, count in (("low-stock/flush-me", "partial", 4), ("low-stock/cancel-me", "cancelled", 3)):
        closed = by_id[group_id]
        assert (closed.outcome, closed.reason, closed.count) == (outcome, "command", count)
        answer = answers[closed.command_id or ""]
        assert (answer.by, answer.why, answer.done) == ("Jill", "the test says so", True)
    errors = desk.topic("errors")
    assert [(each["uow-id"], each["uow-failure-reason"]) for each in errors] == [
        (b"low-stock/cancel-me", b"cancelled")
    ] * 3


def check_metrics(desk: Desk, worker: Any, outcomes: list[Outcome]) -> None:
    """B-212: all of them closed since this worker started."""
    counted: Counter[tuple[str, str, str, str]] = Counter()
    for each in outcomes:
        rule, _, name = (each.rule or "").rpartition("@")[0].partition("/")
        counted[rule, name, each.outcome, each.reason] += 1
    assert sum(counted.values()) == 8
    for (rule, name, outcome, reason), count in counted.items():
        labels = f'destination="{desk.place.name}",outcome="{outcome}",reason="{reason}",row="{name}",rule="{rule}"'
        assert worker.metric(f"uow_rule_groups_total{{{labels}}}") == count
    page = {(each["rule"], each["row"]): each for each in worker.page()["rules"]}
    assert page["held", "*"]["fill"] == 1.0
    assert page["low-stock", "UK"]["fill"] == 3.0


SOON = """
version = 1
author = "a test"
why = "to see"
[[rule]]
rule_id = "soon"
destination = "{d}"
delay_item = "path:item"
default_group = "per_name"
row = [
    {{ routing_name = "now", target_topic = "{d}.soon", complete_count = 1 }},
    {{ routing_name = "*", target_topic = "{d}.soon", age_ms = 20000 }},
]
delay = [{delays}]
"""


@pytest.mark.drill
def test_five_hundred_groups_close_on_time_b45(place: Destination) -> None:
    """Limits of 1 to 20 s on a healthy worker: never before the deadline, and at most 1.5 s after it for 99 of 100."""
    desk = Desk(place)
    delays = [f'{{ routing_name = "*", item = "i{number}", delay_ms = {number * 1000} }}' for number in range(1, 20)]
    desk.routed.rules.write_text(SOON.format(d=place.name, delays=", ".join(delays)))
    worker = place.worker()
    desk.send(*[(f"name-{number}", json.dumps({"item": f"i{1 + number % 20}"}), {}) for number in range(500)])
    wait_for(lambda: len(desk.told(Outcome)) == 500, what=lambda: str(len(desk.told(Outcome))))
    overruns = sorted(each.closed_at - (each.deadline_at or 0) for each in desk.told(Outcome))
    assert overruns[0] >= 0
    assert overruns[494] < 1500, overruns[-10:]
    assert worker.child.terminate(90) == 0


@pytest.mark.slow
def test_ten_thousand_overdue_groups_close_once_in_order_and_new_input_is_served_meanwhile_b219(
    place: Destination,
) -> None:
    """A worker stops, and starts when all of its groups are overdue; their limits are in no order.

    One that opens meanwhile is given up in time (B-45), or with the overdue ones if its limit ends before they are closed.
    """
    overdue, place.partitions = 10_000, 1
    limits = range(20_000, 25_000, 10)
    delays = ", ".join(
        f'{{ routing_name = "*", item = "{limit}", delay_ms = {limit} }}' for limit in [1_000, 10_000, *limits]
    )
    desk, rnd = Desk(place), Random(219)
    desk.routed.rules.write_text(SOON.format(d=place.name, delays=delays))

    def open_groups() -> int:
        count: int = worker.partitions()["0"]["open_groups"]
        return count

    worker = place.worker()
    desk.send(*[(f"old-{number}", json.dumps({"item": str(rnd.choice(limits))}), {}) for number in range(overdue)])
    sent_at = time.time()
    wait_for(lambda: open_groups() == overdue, what=lambda: str(worker.partitions()))
    assert worker.child.terminate(90) == 0
    assert not desk.told(Outcome)
    wait_for(lambda: time.time() > sent_at + limits[-1] / 1000)

    ended, fresh = threading.Event(), 0

    def send_on() -> None:
        """Two more each time that the last two were taken: how fast that is, and when this test hears of anything, is up to the machine."""
        nonlocal fresh
        while not ended.wait(0.01):
            with suppress(OSError):  # it says where its pages are a moment before they are there
                taken = worker.partitions().get("0", {}).get("counts", {}).get("received", 0)
                if taken > overdue + 2 * fresh:
                    desk.send((f"new-{fresh}", json.dumps({"item": "1000"}), {}), ("now", "{}", {}))
                    fresh += 1

    counted = f'uow_deadline_overrun_seconds_count{{destination="{place.name}",row="*",rule="soon"}}'
    sender = threading.Thread(target=send_on)
    desk.send(("later", json.dumps({"item": "10000"}), {}))
    worker = place.worker(wait=False)
    sender.start()
    try:
        worker.child.wait_output("worker 0 ready")
        wait_for(lambda: worker.metric(counted) >= overdue, what=lambda: str(worker.partitions()))
    finally:
        ended.set()
        sender.join(PATIENCE_S)
    wait_for(lambda: worker.metric(counted) >= overdue + fresh + 1, what=lambda: str(worker.partitions()))
    told = desk.told(Outcome)
    aged = [each for each in told if each.reason == "age"]
    assert Counter(each.id for each in aged) == Counter(f"soon/old-{number}" for number in range(overdue)) + Counter(
        [f"soon/new-{number}" for number in range(fresh)] + ["soon/later"]
    )
    caught_up = max(each.closed_at for each in aged if "later" not in each.id)
    (later,) = [each for each in aged if "later" in each.id]
    assert later.closed_at - max(later.deadline_at, caught_up) < 1_500
    assert [each.deadline_at for each in aged] == sorted(each.deadline_at for each in aged)
    assert all(each.closed_at >= each.deadline_at for each in aged)
    parts = [len([*part]) for is_old, part in groupby("old-" in each.id for each in told) if is_old]
    assert len(parts) > 1, "new input is served between"
    assert worker.child.terminate(90) == 0
