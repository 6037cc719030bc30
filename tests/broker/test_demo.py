"""The Megazon story, played small, from Jill's order to Delta tables and a clean audit, asserted on its topics and tables (W-127 to W-132)."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.demo_run import DemoRun, Seen
from tests.processes import PATIENCE_S, is_alive, stretched, wait_for
from tests.spark.delta_rows import table_rows

UOW = Path(sys.executable).with_name("uow")
STORY_S = 900

pytestmark = [pytest.mark.broker, pytest.mark.timeout(STORY_S + 60)]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoRun]:
    """One story for all tests of this file, still running when they look."""
    run = DemoRun(UOW, tmp_path_factory.mktemp("demo"), ["--keep", "--customers", "40"])
    try:
        run.child.wait_output("look around", STORY_S)
        yield run
        run.child.signal(signal.SIGINT)
        assert run.child.wait(60) == 0, run.child.output
        assert "Traceback" not in run.child.output
    finally:
        run.child.close()


def of(seen: list[Seen], group_id: str) -> list[Seen]:
    return [record for record in seen if record.id == group_id]


def test_each_first_hop_holds_exactly_its_component(demo: DemoRun) -> None:
    """W-128: 1 to Gadget Planet, 2 to Desperate Housewares, 3 with the end mark straight to Megazon."""
    jill = demo.report["jill"]["order"]
    (first,) = of(demo.records("gadget-planet"), jill)
    (second,) = of(demo.records("desperate-housewares"), jill)
    (third,) = [each for each in of(demo.records("megazon.components"), jill) if "uow-hops" not in each.headers]
    assert [(each.seq, each.headers.get("uow-end")) for each in (first, second, third)] == [
        (1, None),
        (2, None),
        (3, "true"),
    ]


def test_components_carry_their_hops_and_every_fulfilment(demo: DemoRun) -> None:
    """W-129: the first went over two suppliers, the second over one, the third over none."""
    arrived = {each.seq: each for each in of(demo.records("megazon.components"), demo.report["jill"]["order"])}
    assert {seq: each.headers.get("uow-hops") for seq, each in arrived.items()} == {
        1: "gadget-planet,widget-world",
        2: "desperate-housewares",
        3: None,
    }
    assert {seq: [line["supplier"] for line in each.json()["packed"]] for seq, each in arrived.items()} == {
        1: ["gadget-planet", "widget-world"],
        2: ["desperate-housewares"],
        3: [],
    }


def test_the_last_component_arrives_first_and_nothing_is_invoiced_before_the_first_one(demo: DemoRun) -> None:
    """W-130."""
    arrived = of(demo.records("megazon.components"), demo.report["jill"]["order"])
    assert [each.seq for each in arrived] == [3, 2, 1]
    assert demo.report["checks"][0] == {
        "good": True,
        "text": "while component 1 was missing, Jill had no unit and no invoice",
    }


def test_jill_gets_one_invoice_for_all_four_goods(demo: DemoRun) -> None:
    """W-131."""
    (invoice,) = [each.json() for each in demo.records("invoices") if each.json()["customer"] == "Jill"]
    assert [line["item"] for line in invoice["lines"]] == ["flash drive", "MP3 player", "lava lamp", "book"]
    assert Decimal(invoice["total"]) == Decimal("105.35")
    assert invoice == demo.report["jill"]


def test_orders_that_are_never_whole_are_redirected_and_not_invoiced(demo: DemoRun) -> None:
    """W-132 i."""
    given_up = of(demo.records("megazon.errors"), "stranded-2")
    assert [each.seq for each in given_up] == [2, 3]
    assert {(each.headers["uow-failure-reason"], each.headers["uow-missing"]) for each in given_up} == {
        ("expired", "1")
    }
    assert "stranded-2" not in {each.json()["order"] for each in demo.records("invoices")}


def test_a_supplier_that_forwards_twice_changes_no_invoice(demo: DemoRun) -> None:
    """W-132 ii."""
    seen = Counter((each.id, each.headers.get("uow-component-id")) for each in demo.records("megazon.components"))
    twice = [key for key, count in seen.items() if count > 1 and key[0] is not None and key[1] not in (None, "c-1")]
    assert twice
    refused = {
        each.headers.get("uow-component-id"): each.headers["uow-error-class"]
        for each in demo.records("megazon.rejected")
    }
    assert {refused.get(component) for _, component in twice} == {"DuplicateSequenceNumberError"}
    invoices = Counter(each.json()["order"] for each in demo.records("invoices"))
    assert {invoices[order] for order, _ in twice} == {1}


def test_an_aborted_checkout_leaves_nothing_anywhere(demo: DemoRun) -> None:
    """W-132 iii."""
    topics = ("gadget-planet", "megazon.components", "megazon.units", "megazon.rejected", "megazon.errors")
    assert {topic: of(demo.records(topic), demo.report["aborted"]) for topic in topics} == {
        topic: [] for topic in topics
    }


def test_all_customers_are_invoiced_once_among_plain_records(demo: DemoRun) -> None:
    """W-132 iv: Jill, forty customers, and three orders that had adventures."""
    invoices = Counter(each.json()["order"] for each in demo.records("invoices"))
    assert (len(invoices), {*invoices.values()}) == (44, {1})
    units = demo.records("megazon.units")
    assert Counter(each.headers.get("uow-kind") for each in units) == {"unit": 44, None: 40}


def test_a_second_producer_completes_what_a_first_one_began(demo: DemoRun) -> None:
    """W-132 v."""
    (invoice,) = [each.json() for each in demo.records("invoices") if each.json()["order"] == "phone-and-laptop"]
    assert [line["item"] for line in invoice["lines"]] == ["rubber duck"] * 3


def test_the_counts_agree_though_a_worker_was_killed(demo: DemoRun) -> None:
    """W-216, P-20."""
    report = demo.report
    assert [check["text"] for check in report["checks"] if not check["good"]] == []
    received = report["records"].pop("received")
    assert received == sum(report["records"].values()) == len(demo.records("megazon.components"))
    assert (demo.folder / "logs" / "demo-0.log").read_text().count("worker demo-0 ready") == 2


def test_the_log_gives_the_same_units_again_and_under_fail_group_those_without_a_violation_w209(demo: DemoRun) -> None:
    """`uow rebuild`: no difference; and the units that were whole only after something of theirs was refused."""
    refused = [each.headers["uow-source"].split("/") for each in demo.records("megazon.rejected")]
    places = {(int(partition), int(offset)) for _, partition, offset in refused}
    whole_at: dict[str | None, int] = {}
    refused_at: dict[str | None, int] = {}
    for each in demo.records("megazon.components"):
        if (each.partition, each.offset) in places:
            refused_at.setdefault(each.id, each.offset)
        else:
            whole_at[each.id] = each.offset
    delivered = {each.id for each in demo.records("megazon.units") if each.id is not None}
    violated = {each for each in delivered if each in refused_at and refused_at[each] < whole_at[each]}
    assert rebuilt(demo, 0) == {"units": 44, "differences": []}
    strict = rebuilt(demo, 1, "--set", "violation_policy=fail_group")
    listed = {(each["id"], each["what"]) for each in strict["differences"]}
    assert listed == {(each, "only delivered") for each in violated}
    assert violated


def rebuilt(demo: DemoRun, status: int, *options: str) -> Any:
    """What `uow rebuild --dry-run` says of the story's log."""
    command = [UOW, "rebuild", "megazon", "--dry-run", "--json", "-c", demo.folder / "uow.toml", *options]
    done = subprocess.run(command, capture_output=True, timeout=stretched(STORY_S), check=False)
    assert done.returncode == status, done.stderr
    return json.loads(done.stdout)


def test_the_demo_ends_with_a_clean_audit_and_tables_that_agree(demo: DemoRun) -> None:
    """W-132, W-216: the report, the audit, the page and the tables tell the same."""
    report = demo.report
    assert report["good"], report["checks"]
    assert report["audit"]["clean"]
    assert report["audit"]["received"] == report["records"]["received"]

    tables = Path(report["tables"]) / "megazon"
    found = table_rows(tables / "units")
    units = {row.id: row for row in found}
    assert len(units) == report["units"] == len(found)
    refused = Counter(row.error_class for row in table_rows(tables / "rejected") if row.topic == "megazon.rejected")
    assert refused == {name: sum(cases.values()) for name, cases in report["rejected"].items()}
    assert len(table_rows(tables / "passed")) == report["records"]["passed through"]
    jill = units[report["jill"]["order"]].components
    assert [(each.seq, each.end) for each in jill] == [(1, False), (2, False), (3, True)]

    page = Path(report["page"]).read_text("utf-8")
    assert "Units of work: megazon" in page
    said = {name: int(figure) for figure, name in re.findall(r"<strong>(\d+)</strong><span>(.*?)</span>", page)}
    told = {
        "units": len(units),
        "components refused": sum(refused.values()),
        "groups not whole": sum(report["given_up"].values()),
    }
    assert said.items() >= told.items()


def test_everything_dies_with_a_killed_demo(tmp_path: Path) -> None:
    """P-21: nothing outlives it."""
    run = DemoRun(UOW, tmp_path, ["--without-spark", "--customers", "20"])
    try:
        run.child.wait_output("one invoice", STORY_S)
        family = [process.pid for process in psutil.Process(run.child.pid).children(recursive=True)]
        assert len(family) > 1
        run.child.kill()
        wait_for(lambda: not any(map(is_alive, family)), PATIENCE_S, "end of every process the demo had started")
    finally:
        run.child.close()


def test_ctrl_c_ends_it_without_a_traceback(tmp_path: Path) -> None:
    """P-20."""
    run = DemoRun(UOW, tmp_path, ["--without-spark", "--customers", "20"])
    try:
        run.child.wait_output("topics", STORY_S)
        family = [process.pid for process in psutil.Process(run.child.pid).children(recursive=True)]
        run.child.signal(signal.SIGINT)
        assert run.child.wait(60) == 1
        assert "Traceback" not in run.child.output
        assert "stopped" in run.child.output
        wait_for(lambda: not any(map(is_alive, family)), PATIENCE_S, "end of every process the demo had started")
    finally:
        run.child.close()


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    """P-01: wrong usage is 2."""
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "mine").touch()
    run = DemoRun(UOW, tmp_path, [])
    try:
        assert run.child.wait(60) == 2
        assert "must be empty" in run.child.output
    finally:
        run.child.close()
