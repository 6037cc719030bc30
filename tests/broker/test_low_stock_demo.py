"""The low-stock story, asserted on its topics and files: generator, rules, a crash, new rules, a flush, files (B-08, B-61, B-63, B-65)."""

from __future__ import annotations

import hashlib
import json
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.demo_run import DemoRun

UOW = Path(sys.executable).with_name("uow")
STORY_S = 400

pytestmark = [pytest.mark.broker, pytest.mark.timeout(STORY_S + 60)]


def test_every_order_of_the_warehouse_is_in_one_place_over_a_crash_and_new_rules_b08(tmp_path: Path) -> None:
    demo = DemoRun(UOW, tmp_path, ["low-stock", "--keep", "--events", "1000"])
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
        assert len(places) == 1_000 + 25 + 5
        assert Counter(unit["reason"] for unit in units).keys() >= {"count", "age"}
        check_files(demo.folder / "files" / "supply", units)
        demo.child.signal(signal.SIGINT)
        assert demo.child.wait(60) == 0, demo.child.output
        assert "Traceback" not in demo.child.output
    finally:
        demo.child.close()


def check_files(folder: Path, units: list[dict[str, Any]]) -> None:
    """One file for each unit, in the folder of its supplier, with the unit's orders; the manifests hold the digests of these files."""
    found = sorted(folder.glob("orders.*/**/*.json"))
    stored = [json.loads(path.read_bytes()) for path in found]
    assert {each["unit_id"]: each["components"] for each in stored} == {
        each["unit_id"]: each["components"] for each in units
    }
    assert len(stored) == len(units)
    digests = {}
    for manifest in folder.glob("orders.*/*/manifest/*.sha256"):
        for line in manifest.read_text().splitlines():
            digest, name = line.split("  ")
            digests[manifest.parents[1] / name] = digest
    assert digests == {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in found}
