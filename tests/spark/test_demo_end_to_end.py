"""The whole of `uow demo`, small: from Jill's order to Delta tables and a clean audit (W-127, W-132, W-216)."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.demo_run import DemoRun
from tests.spark.delta_rows import table_rows

PATIENCE_S = 900


@pytest.mark.slow
@pytest.mark.timeout(PATIENCE_S + 120)
def test_the_demo_ends_with_a_clean_audit_and_tables_that_agree(tmp_path: Path) -> None:
    """W-132, W-216: the report, the audit, the page and the tables tell the same."""
    run = DemoRun(Path(sys.executable).with_name("uow"), tmp_path, ["--customers", "20"])
    try:
        assert run.child.wait(PATIENCE_S) == 0, run.child.output
    finally:
        run.child.close()
    report = run.report
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
