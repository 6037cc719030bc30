"""The whole of `uow demo`, small: from Jill's order to Delta tables and a clean audit (W-127, W-132, W-216)."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.demo_run import DemoRun
from uow.spark_sink import views
from uow.spark_sink.tables import DeltaTables, Table

PATIENCE_S = 900


@pytest.mark.slow
@pytest.mark.timeout(PATIENCE_S + 120)
def test_the_demo_ends_with_a_clean_audit_and_tables_that_agree(spark: Any, tmp_path: Path) -> None:
    """W-132, W-216: the report, the audit and the tables tell the same."""
    run = DemoRun(Path(sys.executable).with_name("uow"), tmp_path, ["--customers", "20"])
    try:
        assert run.child.wait(PATIENCE_S) == 0, run.child.output
    finally:
        run.child.close()
    report = run.report
    assert report["good"], report["checks"]
    assert report["audit"]["clean"]
    assert report["audit"]["received"] == report["records"]["received"]

    tables = DeltaTables(Path(report["tables"]), "megazon")
    units = {row.id: row.unit_id for row in tables.read(spark, Table.UNITS).collect()}
    assert len(units) == report["units"] == tables.read(spark, Table.UNITS).count()
    refused = Counter(
        row.error_class for row in tables.read(spark, Table.REJECTED).collect() if row.topic == "megazon.rejected"
    )
    assert refused == {name: sum(cases.values()) for name, cases in report["rejected"].items()}
    assert tables.read(spark, Table.PASSED).count() == report["records"]["passed through"]

    assert "Units of work: megazon" in Path(report["page"]).read_text("utf-8")
    views.register(spark, report["tables"])
    assert spark.table("completion_times").count() == report["units"]
    assert Counter(row.reason for row in spark.table("incomplete_groups").collect()) == report["given_up"]
    assert Counter(row.error_class for row in spark.table("refusals").collect()) == refused

    jill = units[report["jill"]["order"]]
    rows = tables.read(spark, Table.COMPONENTS).where(f"unit_id = '{jill}'").orderBy("position").collect()
    assert [(row.seq, row.end) for row in rows] == [(1, False), (2, False), (3, True)]
