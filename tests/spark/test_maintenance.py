"""`uow sink maintain`: the same rows in fewer files, while a sink runs, and a batch that is repeated afterwards doubles nothing (W-127)."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from pyspark.errors import PySparkException
from pyspark.sql import functions as sql

from tests.processes import wait_for
from tests.spark.stage import DEADLINE_S, Stage, c, plain
from uow.cli.main import main
from uow.spark_sink.maintenance import Maintained, maintain
from uow.spark_sink.tables import ComponentsForm, DeltaTables, Table, append_once, columns, despite_others

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)

FILLED = (Table.UNITS, Table.COMPONENTS, Table.REJECTED, Table.PASSED)
MAINTAINED = (*FILLED, Table.ANSWERS)
"""Of the empty tables one is enough."""


def call(*options: str) -> Any:
    return CliRunner().invoke(main, ["sink", "maintain", *options])


def three_batches(stage: Stage) -> None:
    for number in range(3):
        stage.send([c(f"unit-{number}", 1), c(f"unit-{number}", 2, end=True), plain("letter"), c("bad", 0)])
        stage.work()
        stage.sink()


def files(stage: Stage, table: Table) -> int:
    """Data files in the folder of a table, whether a version needs them or not."""
    return len([*Path(stage.tables.path(table)).glob("*.parquet")])


def leave_only_checkpoints(stage: Stage) -> None:
    """Delta's log as it is after its retention: a checkpoint, and nothing of the commits before."""
    logs = stage.spark._jvm.org.apache.spark.sql.delta.DeltaLog  # type: ignore[union-attr]
    for table in Table:
        logs.forTableWithSnapshot(stage.spark._jsparkSession, stage.tables.path(table))._1().checkpoint()
        folder = Path(stage.tables.path(table)) / "_delta_log"
        assert [*folder.glob("*.checkpoint*.parquet")]
        for old in {*sorted(folder.glob("*.json"))[:-1], *folder.glob("*.crc")}:
            old.unlink()
    logs.clearCache()


def test_rows_stay_the_same_in_fewer_files_and_a_repeated_batch_doubles_nothing_w127(
    stage: Stage, tmp_path: Path
) -> None:
    stage.tables = replace(stage.tables, form=ComponentsForm.TABLE)
    three_batches(stage)
    before = {table: stage.rows(table) for table in Table}
    on_disk = {table: files(stage, table) for table in MAINTAINED}
    name, at = stage.names.destination, ("--tables", str(stage.tables.root), "--json")
    others = {Path(stage.tables.path(table)): tmp_path / table for table in {*Table} - {*MAINTAINED}}
    for path, away in others.items():
        path.rename(away)

    said = json.loads(call(*at, "--dry-run").stdout)[name]
    assert said.keys() == {*MAINTAINED}
    for table in FILLED:
        assert said[table]["files"] == said[table]["files_before"] == said[table]["compacted"] >= 3
    assert {table: files(stage, table) for table in MAINTAINED} == on_disk

    result = call(*at, "--destination", name, "--retain", "1h")
    assert result.exit_code == 0, result.output
    done = json.loads(result.stdout)[name]
    for table in FILLED:
        assert (done[table]["files"], done[table]["compacted"]) == (1, said[table]["compacted"])
        assert (done[table]["rows"], done[table]["deleted"]) == (len(before[table]), 0)
    for path, away in others.items():
        away.rename(path)
    assert {table: stage.rows(table) for table in Table} == before

    leave_only_checkpoints(stage)
    commits = stage.tables.checkpoint / "commits"
    for last in (commits / "2", commits / ".2.crc"):
        last.unlink()
    stage.sink()
    assert (commits / "2").exists(), "the last batch was repeated"
    assert {table: stage.rows(table) for table in Table} == before

    for table in MAINTAINED:
        told = maintain(stage.spark, stage.tables, table, retain_ms=0, z_order=True)
        assert isinstance(told, Maintained)
        assert told.files == files(stage, table) == (1 if table in FILLED else told.files_before)
        assert told.deleted >= (3 if table in FILLED else 0)
    assert {table: stage.rows(table) for table in Table} == before
    stage.send([c("unit-3", 1, end=True)])
    stage.work()
    stage.sink()
    assert len(stage.rows(Table.UNITS)) == 4


def test_appends_pass_beside_a_compaction_and_marks_are_made_again(spark: SparkSession, tmp_path: Path) -> None:
    """A sink that appends, leaves out rows that the table has, or marks units, while their table is compacted: each begins before, and ends after."""
    tables, attempts = DeltaTables(tmp_path, "d"), []
    tables.make(spark)
    kind = columns(Table.UNITS)
    first, *others = ([f"unit-{number}", *[None] * (len(kind) - 1)] for number in range(3))
    one_row = spark.createDataFrame([first], kind)
    for rows in (one_row, spark.createDataFrame(others[:1], kind), spark.createDataFrame(others[1:], kind)):
        rows.write.format("delta").mode("append").save(tables.path(Table.UNITS))

    def units() -> Any:
        return tables.read(spark, Table.UNITS)

    def beside_a_compaction(change: Callable[[Any], object], rows: Any, place: Path) -> None:
        began, go = (place.with_suffix(suffix) for suffix in (".began", ".go"))

        def wait(text: str | None) -> str | None:
            began.touch()
            wait_for(go.exists, DEADLINE_S)
            return text

        told: list[Maintained] = []

        def compact() -> None:
            wait_for(began.exists, DEADLINE_S)
            told.append(maintain(spark, tables, Table.UNITS, retain_ms=3_600_000))
            go.touch()

        beside = threading.Thread(target=compact)
        beside.start()
        change(rows.withColumn("superseded_by", sql.udf(wait, useArrow=False)("superseded_by")))
        beside.join()
        assert told, "the change did not wait for the compaction"
        assert told[0].compacted > 1

    def append(rows: Any) -> None:
        append_once(rows, tables.path(Table.UNITS), "beside", units().count())

    def mark(rows: Any) -> None:
        attempts.append(1)
        on = f"{tables.sql_name(Table.UNITS)} t USING {{rows}} r ON t.unit_id = r.unit_id"
        spark.sql(
            f"MERGE INTO {on} WHEN MATCHED THEN UPDATE SET superseded_by = coalesce(r.superseded_by, 'marked')",
            rows=rows,
        ).collect()

    beside_a_compaction(append, one_row, tmp_path / "append")
    lacking = one_row.withColumn("id", sql.lit("new")).join(units(), ["id"], "left_anti").select(*kind.names)
    beside_a_compaction(append, lacking, tmp_path / "lacking")
    assert sorted(row.unit_id for row in units().collect()) == [*["unit-0"] * 3, "unit-1", "unit-2"]
    beside_a_compaction(lambda rows: despite_others(lambda: mark(rows)), one_row, tmp_path / "mark")
    assert len(attempts) == 2
    assert units().where("superseded_by = 'marked'").count() == 3


def test_a_change_that_fails_for_another_reason_is_not_repeated() -> None:
    attempts = []

    def change() -> None:
        attempts.append(1)
        raise PySparkException("[DELTA_TABLE_NOT_FOUND]")

    with pytest.raises(PySparkException):
        despite_others(change)
    assert attempts == [1]


def test_wrong_use_is_told_before_spark_starts(tmp_path: Path) -> None:
    at = ("--tables", str(tmp_path))
    for options, status, text in (
        ((), 2, "Missing option '--tables'"),
        ((*at, "--retain", "59min"), 2, "at least 1h"),
        (at, 1, "there are no tables of any destination"),
        ((*at, "--destination", "west"), 1, "there are no tables of west"),
    ):
        result = call(*options)
        assert (result.exit_code, text in result.stderr) == (status, True), result.output
    result = CliRunner().invoke(main, ["sink", *at, "maintain"])
    assert (result.exit_code, "belong behind maintain: root" in result.stderr) == (2, True), result.output
    result = CliRunner().invoke(main, ["sink"])
    assert (result.exit_code, "Missing option '--tables'" in result.stderr) == (2, True), result.output
