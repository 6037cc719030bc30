"""The same unit twice is one current row, and the same record twice is one row at all (W-127)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest

from tests.spark.stage import STARTED_MS, Stage, c, plain
from uow.schemas.error_classes import StateCorruptedError
from uow.spark_sink import delta_sink as sink_module
from uow.spark_sink import superseded
from uow.spark_sink.comparison import DifferenceKind
from uow.spark_sink.lineage import NOTE
from uow.spark_sink.recompute import Fate
from uow.spark_sink.tables import Table
from uow.topics.policies import ExpirationPolicy, LatePolicy, Shape
from uow.topics.routes import Route, RouteMatching
from uow.topics.selector import Selector

pytestmark = pytest.mark.timeout(600)

MINUTE_MS = 60_000


def everything(stage: Stage) -> dict[Table, list[Any]]:
    return {table: stage.rows(table) for table in Table}


def test_a_sink_run_again_under_a_new_checkpoint_gives_the_same_tables_w127(
    make_stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint was lost; the run that reads all again is cut off in the middle, and loses its checkpoint, too."""
    stage = make_stage(incomplete_expiration_ms=MINUTE_MS, expiration_policy=ExpirationPolicy.REDIRECT)
    stage.send([c("jill", 1), c("jill", 2, end=True), plain("letter"), c("bad", 0), c("gap", 2)])
    stage.put(stage.names.units, b"x", b"no unit", [("uow-id", b"x"), ("uow-kind", b"unit")])
    stage.work()
    stage.tick(STARTED_MS + 2 * MINUTE_MS)
    stage.sink()
    before = everything(stage)
    assert {table: len(rows) for table, rows in before.items()} == {
        Table.UNITS: 1,
        Table.COMPONENTS: 2,
        Table.REJECTED: 2,
        Table.PASSED: 1,
        Table.UNREADABLE: 1,
        Table.OUTCOMES: 1,
        Table.ANSWERS: 0,
        Table.WARNINGS: 0,
    }
    stage.sink()
    assert everything(stage) == before
    shutil.rmtree(stage.tables.checkpoint)
    stage.send([c("bob", 1, end=True)], at=3 * MINUTE_MS)
    stage.work()
    append = sink_module.append_once

    def cut_off(rows: Any, path: str, writer: str, version: int) -> None:
        append(rows, path, writer, version)
        if path == stage.tables.path(Table.UNITS):
            raise RuntimeError("cut off")

    with monkeypatch.context() as patched:
        patched.setattr(sink_module, "append_once", cut_off)
        with pytest.raises(Exception, match="cut off"):
            stage.sink()
    shutil.rmtree(stage.tables.checkpoint)
    stage.sink()
    after = everything(stage)
    assert [row.id for row in after[Table.COMPONENTS]].count("bob") == 1
    assert [row for row in after[Table.UNITS] if row.id != "bob"] == before[Table.UNITS]
    assert {table: len(rows) for table, rows in after.items()} == {
        table: len(rows) + (table in (Table.UNITS, Table.COMPONENTS)) for table, rows in before.items()
    }
    assert [(each.what, each.source) for each in stage.audit().examples] == [(DifferenceKind.UNREADABLE, "unreadable")]
    shutil.rmtree(stage.tables.path(Table.PASSED))
    with pytest.raises(StateCorruptedError, match="missing"):
        stage.sink()
    shutil.rmtree(stage.tables.checkpoint)
    stage.sink()
    assert everything(stage) == after


def as_first_released(stage: Stage) -> None:
    """The tables as the first release made them, which left no note beside its checkpoint."""
    (stage.tables.checkpoint / NOTE).unlink()
    shutil.rmtree(stage.tables.path(Table.UNREADABLE))
    for table in (Table.COMPONENTS, Table.UNITS):
        rows = stage.tables.read(stage.spark, table).drop("superseded_by", "components")
        rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(stage.tables.path(table))


@pytest.mark.parametrize("shape", [Shape.ENVELOPE, Shape.CONSECUTIVE])
def test_a_unit_emitted_again_is_one_current_row_and_the_earlier_ones_name_the_next_w127(
    make_stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch, shape: Shape
) -> None:
    """Its components were sent again when its id was forgotten: the log gives it as often, in one batch, across batches, from tables of the
    first release, and where the sink was cut off before it had marked anything."""
    stage = make_stage(shape=shape, closed_retention_ms=1000)

    def emit(at: int) -> None:
        parts = [c("jill", n, end=n == 2, value=b"%d" % at, uow_component_id=f"jill-{n}") for n in (1, 2)]
        stage.send([*parts, c(f"other-{at}", 1, end=True)], at=at)
        stage.work()
        stage.send([plain(f"{key}") for key in range(8)], at=at + MINUTE_MS)
        stage.work()

    def current(table: Table) -> list[Any]:
        return [row for row in stage.rows(table) if row.id == "jill" and row.superseded_by is None]

    emit(0)
    stage.sink()
    as_first_released(stage)
    emit(2 * MINUTE_MS)
    emit(4 * MINUTE_MS)
    with monkeypatch.context() as patched:
        patched.setattr(sink_module, "mark", lambda *_: (_ for _ in ()).throw(RuntimeError("cut off")))
        with pytest.raises(Exception, match="cut off"):
            stage.sink()
    assert len(current(Table.UNITS)) == 3
    emit(6 * MINUTE_MS)
    stage.sink()
    rows = [row for row in stage.rows(Table.UNITS) if row.id == "jill"]
    assert len({row.unit_id for row in rows}) == 1
    places = [f"{row.topic}/{row.partition}/{row.offset}" for row in rows]
    assert [row.superseded_by for row in rows] == [*places[1:], None]
    assert [part.value for part in current(Table.COMPONENTS)] == [b"%d" % (6 * MINUTE_MS)] * 2
    assert {row.superseded_by for row in stage.rows(Table.UNITS) if row.id != "jill"} == {None}
    assert stage.audit().examples == ()


def test_a_copy_supersedes_in_its_own_topic_alone_and_is_doubled_w216(
    make_stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch, unique: str
) -> None:
    """Two topics that routes name for a unit are two deliveries, which cost no look for earlier rows; the log gives each once."""
    lanes = f"{unique}.one", f"{unique}.two"
    routes = tuple(Route(Selector("uow-size > 0"), lane) for lane in lanes)
    stage = make_stage(route_matching=RouteMatching.ALL, routes=routes)
    looks: list[int] = []

    def look(*arguments: Any) -> None:
        looks.append(1)
        superseded.mark(*arguments)

    monkeypatch.setattr(sink_module, "mark", look)
    stage.send([c("x", 1, end=True)])
    stage.work()
    stage.sink()
    assert {(row.topic, row.superseded_by) for row in stage.rows(Table.UNITS)} == {(lane, None) for lane in lanes}
    assert looks == []
    [unit] = stage.read(lanes[0])
    stage.put(lanes[0], unit.key(), unit.value(), unit.headers(), unit.partition())
    stage.sink()
    assert looks == [1]
    rows = {(row.topic, row.offset): row.superseded_by for row in stage.rows(Table.UNITS)}
    assert len(rows) == 3
    assert [by is None for (topic, _), by in sorted(rows.items()) if topic == lanes[0]] == [False, True]
    assert {by for (topic, _), by in rows.items() if topic == lanes[1]} == {None}
    assert stage.audit().totals == {DifferenceKind.DOUBLED: 2}


@pytest.mark.parametrize("shape", [Shape.ENVELOPE, Shape.CONSECUTIVE])
def test_a_chain_of_corrected_units_is_one_current_row_and_counts_once_b205(
    make_stage: Callable[..., Stage], shape: Shape
) -> None:
    """Each correction in a batch of its own, and two in one; the audit begins anew, goes on, and names a former unit that is lost."""
    stage = make_stage(
        shape=shape,
        late_policy=LatePolicy.AMEND,
        incomplete_expiration_ms=MINUTE_MS,
        expiration_policy=ExpirationPolicy.DELIVER_PARTIAL,
    )
    both = ("jill", "bob")
    stage.send([c(name, n) for name in both for n in (1, 2)] + [c("whole", 1, end=True)])
    stage.work()
    stage.tick(STARTED_MS + 2 * MINUTE_MS)
    stage.send([plain(f"{key}") for key in range(8)], at=2 * MINUTE_MS)
    stage.work()
    stage.sink()
    assert (report := stage.audit()).examples == ()
    assert report.units == {"complete": 1, "partial": 2}
    stage.send([c("jill", 4, end=True)], at=3 * MINUTE_MS)
    stage.work()
    stage.sink()
    assert (since := stage.audit(incremental=True)).examples == ()
    assert (since.units, since.count(Fate.DELIVERED), since.found[Fate.DELIVERED]) == ({"corrected": 1}, 1, 1)
    stage.send([c("jill", 3), c("bob", 3), c("bob", 4, end=True), c("bob", 2)], at=4 * MINUTE_MS)
    stage.work()
    stage.sink()
    for table, of in ((Table.UNITS, "offset"), (Table.COMPONENTS, "unit_offset")):
        rows = [row for row in stage.rows(table) if row.id in both]
        current = [row for row in rows if row.superseded_by is None]
        assert {(row.id, row.generation) for row in current} == {("jill", 3), ("bob", 3)}
        assert len(current) == (2 if table is Table.UNITS else 8)
        first = {(row.id, row.generation): min(each[of] for each in rows if each[:3] == row[:3]) for row in rows}
        for row in rows:
            if row.superseded_by is not None:
                assert row.superseded_by.endswith(f"/{first[row.id, row.generation + 1]}")
    report = stage.audit()
    assert report.examples == ()
    assert report.units == {"complete": 1, "partial": 2, "corrected": 4}
    assert (report.count(Fate.DELIVERED), report.found[Fate.DELIVERED]) == (9, 9)
    assert (since := stage.audit(incremental=True)).is_clean
    [former] = [row.unit_id for row in stage.rows(Table.UNITS) if (row.id, row.generation) == ("jill", 1)]

    def lose(rows: list[dict[str, Any]]) -> None:
        rows[:] = [row for row in rows if row["unit_id"] != former]

    stage.tamper(Table.UNITS, lose)
    assert {(each.what, each.source, each.place) for each in stage.audit().examples} == {
        (DifferenceKind.MISSING, "units", former)
    }
