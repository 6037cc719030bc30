"""The low-stock story, without Spark, asserted on its topics: generator, rules, a crash, new rules, a flush (B-08, B-61, B-63, B-65)."""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.demo_run import DemoRun

UOW = Path(sys.executable).with_name("uow")
STORY_S = 400

pytestmark = [pytest.mark.broker, pytest.mark.timeout(STORY_S + 60)]


def test_every_order_of_the_warehouse_is_in_one_place_over_a_crash_and_new_rules_b08(tmp_path: Path) -> None:
    demo = DemoRun(UOW, tmp_path, ["low-stock", "--without-spark", "--keep", "--events", "500"])
    try:
        demo.child.wait_output("look around", STORY_S)
        assert [check["text"] for check in demo.report["checks"] if not check["good"]] == []
        assert {check["text"].split(",")[0] for check in demo.report["checks"]} >= {
            "France: complete unit of 10 by count",
            "UK: partial unit of 3 by age",
            "Spain: partial unit of 12 by age",
        }
        places = {f"{each.topic}/{each.partition}/{each.offset}" for each in demo.records("stock.events")}
        units = [
            json.loads(each.value)
            for name in ("france", "uk", "spain", "other")
            for each in demo.records(f"orders.{name}")
        ]
        delivered = Counter(component["input"] for unit in units for component in unit["components"])
        refused = Counter(each.headers["uow-input"] for each in demo.records("supply.rejected"))
        assert delivered + refused == Counter(places)
        assert len(places) == 500 + 25 + 5
        assert Counter(unit["reason"] for unit in units).keys() >= {"count", "age"}
        demo.child.signal(signal.SIGINT)
        assert demo.child.wait(60) == 0, demo.child.output
        assert "Traceback" not in demo.child.output
    finally:
        demo.child.close()
