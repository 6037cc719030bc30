"""The state that an audit leaves: its files, which need neither Spark nor a broker, and going on from it where rows and expectations did not meet yet."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.stage import PARTITIONS, STARTED_MS, Stage, c, plain
from uow.spark_sink.audit_state import KEPT_S, AuditState, StateFolder, Unusable
from uow.spark_sink.balance import overtaken
from uow.spark_sink.tables import Table
from uow.topics.commands import Command, Verb
from uow.topics.partitioner import partition_for
from uow.topics.policies import ExpirationPolicy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)


def state_in(folder: Path) -> AuditState:
    return AuditState(
        "settings", 5, {0: 1}, {0: 9}, {"d.units": {"0": 4}}, {0: 2}, {"units": ["a.parquet"]}, folder.name
    )


def leave(store: StateFolder) -> AuditState:
    """An audit ends."""
    folder = store.begin()
    (folder / "0.avro").write_bytes(b"state")
    (folder / "residue").mkdir()
    (folder / "residue" / "part.parquet").write_bytes(b"rest")
    state = state_in(folder)
    store.finish(state)
    return state


def test_the_last_audit_to_end_counts_and_earlier_files_stay_for_those_that_read_them(tmp_path: Path) -> None:
    store = StateFolder(tmp_path / "d")
    first, second = leave(store), leave(store)
    found = store.load("settings")
    assert (found.folder, found.ends, found.done) == (second.folder, {0: 9}, {"units": ["a.parquet"]})
    folder = store.folder / first.folder
    assert folder.exists()
    os.utime(folder, (0, folder.stat().st_mtime - KEPT_S - 9))
    leave(store)
    assert not folder.exists()


def damage(change: Callable[[dict[str, object]], object]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / "latest.json"
        data = json.loads(path.read_text("utf-8"))
        change(data)
        path.write_text(json.dumps(data), "utf-8")

    return apply


def cut(folder: Path) -> None:
    [path] = folder.glob("*/residue/*")
    path.write_bytes(b"res")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda folder: (folder / "latest.json").unlink(), "no audit"),
        (lambda folder: (folder / "latest.json").write_text("{"), "cannot be read"),
        (lambda folder: (folder / "latest.json").write_text("[]"), "cannot be read"),
        (damage(lambda data: data.update(format=1)), "another version"),
        (damage(lambda data: data.update(settings="x")), "have changed"),
        (damage(lambda data: data.update(ends={"a": "b"})), "cannot be read"),
        (damage(lambda data: data.update(folder="../elsewhere")), "damaged"),
        (cut, "damaged"),
        (lambda folder: next(folder.glob("*/0.avro")).unlink(), "damaged"),
    ],
)
def test_a_state_that_is_missing_of_another_kind_or_damaged_is_not_used(
    tmp_path: Path, change: Callable[[Path], None], why: str
) -> None:
    store = StateFolder(tmp_path / "d")
    leave(store)
    store.load("settings")
    change(store.folder)
    with pytest.raises(Unusable, match=why):
        store.load("settings")


def test_the_balance_is_computed_once(spark: SparkSession) -> None:
    one = "'id' AS key, id AS turn, 0 AS partition, id AS offset, 'same' AS verdict"
    keys = spark.range(2).selectExpr(*one.split(", ")).persist()
    assert overtaken(keys).collect() == []
    assert "InMemoryRelation" in keys.groupBy().count()._jdf.queryExecution().withCachedData().toString()
    keys.unpersist()


def given_up_again(stage: Stage, id: str, place: str) -> None:
    """Somebody writes to `D.errors` that the component of an id at a place was given up."""
    said = {"id": id, "error-class": "UowError", "error-case": "age", "error-text": "-", "source": place, "missing": ""}
    headers = [(f"uow-{name}", text.encode()) for name, text in said.items()]
    stage.put(stage.names.errors, id.encode(), b"v", [*headers, ("uow-failure-reason", b"expired")])


def swap_last_two(rows: list[dict[str, Any]]) -> None:
    *_, one, two = sorted(rows, key=lambda row: (row["partition"], row["offset"]))
    one["offset"], two["offset"] = two["offset"], one["offset"]


def test_rows_from_before_the_boundary_are_compared_with_what_was_expected_later_and_the_reverse(
    make_stage: Callable[..., Stage],
) -> None:
    """Closings that no record tells yet (of `late` and `gone`), and rows of a batch that was cut off (of `owed`, and plain ones). What is wrong of them is told until
    it is accepted."""
    stage = make_stage(incomplete_expiration_ms=60_000, expiration_policy=ExpirationPolicy.DELIVER_PARTIAL)
    here, there = sorted((0, 1), key=lambda partition: partition != partition_for(b"late", PARTITIONS))
    gone, owed = (
        next(
            name for name in map("other-{}".format, range(99)) if partition_for(name.encode(), PARTITIONS) == partition
        )
        for partition in (here, there)
    )
    stage.send([c("late", 1), c("late", 3), c(gone, 1)])
    stage.send([plain("a", b"1")], partition=there)
    stage.work()
    stage.command(Command(b"1", Verb.CANCEL, gone.encode(), "because"))
    stage.tick(STARTED_MS + 70_000)
    stage.sink()
    stage.send([c(owed, 1, end=True)], at=80_000)
    stage.send([plain("a", b"2")], at=80_000, partition=there)
    stage.work()
    stage.sink()
    for last in ("1", ".1.crc"):
        (Path(str(stage.tables.checkpoint)) / "commits" / last).unlink()
    report = stage.audit()
    assert (report.examples, report.units) == ((), {"partial": 1, "cancelled": 1, "complete": 1})

    for partition in (0, 1):
        stage.send([plain("a", b"3"), plain("a", b"4")], at=100_000, partition=partition)
    stage.work()
    found = stage.rows(Table.COMPONENTS) + stage.rows(Table.REJECTED)
    places = {row.id: f"{row.source_topic}/{row.source_partition}/{row.source_offset}" for row in found}
    for name in ("late", gone, owed):
        given_up_again(stage, name, places[name])
    stage.sink()
    stage.tamper(Table.PASSED, swap_last_two)
    for accept in (False, True):
        report = stage.audit(incremental=True, accept=accept)
        assert report.since is not None
        assert sorted((each.what.value, each.source, each.id or "") for each in report.examples) == [
            ("doubled", "rejected", gone),
            ("unexpected", "id", owed),
            ("unexpected", "rejected", "late"),
            ("wrong order", "passed", ""),
            ("wrong order", "passed", ""),
        ]
    after = stage.audit(incremental=True)
    assert (after.examples, after.since) == ((), report.until)
