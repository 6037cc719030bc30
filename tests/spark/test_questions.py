"""Views over the tables, `uow report` and `uow sql`: over ordinary tables, hostile ones, empty ones and those of an earlier release.

The tables are written here, row by row, without a broker: tests of the sink show that it writes such rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from uow.cli.main import main
from uow.schemas.error_classes import StateCorruptedError
from uow.spark_sink import views
from uow.spark_sink.summary import Counted, Latecomer, summarize
from uow.spark_sink.tables import DeltaTables, Table, columns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
EVIL = "<script>alert(1)</script>\0\u202e"
NOT_UTF8 = b"\xff\xfe<b>"


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def unit(id: str, seconds: float = 1, **more: Any) -> dict[str, Any]:
    """A row of `units`: opened at the start, closed some seconds later, written one more second later."""
    return {
        "unit_id": f"u-{id}",
        "id": id,
        "generation": 1,
        "outcome": "complete",
        "reason": "end",
        "opened_at": START,
        "closed_at": at(seconds),
        "count": 2,
        "bytes": 10,
        "missing": [],
        "topic": "a.units",
        "partition": 0,
        "offset": 0,
        "timestamp": at(seconds + 1),
    } | more


def component(id: str, seq: int, seconds: float, producer: bytes | None = None, **more: Any) -> dict[str, Any]:
    """A row of `components`."""
    headers = [] if producer is None else [("uow-producer-id", b"older"), ("uow-producer-id", producer)]
    return {
        "unit_id": f"u-{id}",
        "id": id,
        "seq": seq,
        "position": seq,
        "headers": headers,
        "timestamp": at(seconds),
        "source_topic": "a.components",
        "source_partition": 3,
        "source_offset": seq,
        "unit_topic": "a.units",
    } | more


def refused(name: str, producer: bytes | None, seconds: float = 1, **more: Any) -> dict[str, Any]:
    """A row of `rejected`."""
    headers = [] if producer is None else [("uow-producer-id", producer)]
    source = {"source_topic": "a.components", "source_partition": 3, "source_offset": 1}
    return {"error_class": name, "headers": headers, "timestamp": at(seconds), **source} | more


def given_up(id: str, missing: str, text: str = "the group expired: age") -> dict[str, Any]:
    """A row of `rejected` from `D.errors`."""
    return refused("UowError", None, 3) | {
        "id": id,
        "missing": missing,
        "error_text": text,
        "error_case": "age",
        "failure_reason": "expired",
    }


ROWS: dict[str, dict[Table, Sequence[dict[str, Any]]]] = {
    "a": {
        Table.UNITS: [
            *(unit(f"{number}", number) for number in (1, 2, 3)),
            unit("again", 1, superseded_by="a.units/0/9"),
            unit("again", 60, bytes=2**63 - 1, timestamp=at(7200)),
            unit("part", 60, outcome="partial", reason="age", missing=[(2, 2), (4, 2**31 - 1)]),
            unit("backwards", -5),
        ],
        Table.COMPONENTS: [
            component("1", 1, 5, b"fast"),
            component("1", 2, 1, b"fast"),
            component("2", 1, 1, b"fast"),
            component("2", 2, 3, NOT_UTF8),
            component("3", 1, 1),
            component("3", 2, 1),
            component("again", 1, 900, b"slow", superseded_by="a.units/0/9"),
            component("alone", 1, 900, b"slow"),
        ],
        Table.REJECTED: [
            refused("BadUnitIdError", b"fast"),
            refused("BadUnitIdError", None),
            refused(EVIL, b"x" * 1_000_000, id=EVIL, error_text="y" * 1_000_000),
            refused("BadUnitIdError", NOT_UTF8),
            given_up("lost", "1,4-"),
            given_up("lost", "1,4-"),
            given_up("removed", "1", "removed: by hand"),
        ],
        Table.UNREADABLE: [
            {"reason": EVIL, "id": EVIL, "topic": "a.units", "partition": 0, "offset": 4, "timestamp": at(1)}
        ],
    },
    "b": {Table.UNITS: [unit("1", 4, topic="b.units")]},
}


@pytest.fixture(scope="module")
def root(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables of `a` and `b`."""
    folder = tmp_path_factory.mktemp("lake")
    for destination, tables in ROWS.items():
        for table, rows in tables.items():
            write(spark, DeltaTables(folder, destination), table, rows)
    return folder


def write(spark: SparkSession, tables: DeltaTables, table: Table, rows: Sequence[dict[str, Any]]) -> None:
    """Appends rows; columns that they do not have are null."""
    fields = columns(table)
    found = [
        tuple(row.get(name, tables.destination if name == "destination" else None) for name in fields.names)
        for row in rows
    ]
    spark.createDataFrame(found, fields).coalesce(1).write.format("delta").mode("append").save(tables.path(table))


@pytest.fixture
def ask(spark: SparkSession, root: Path) -> Callable[[str], list[tuple[Any, ...]]]:
    """Runs SQL over the views; the rows, in order."""
    views.register(spark, root)
    return lambda text: sorted(map(tuple, spark.sql(text).collect()), key=repr)


def test_each_question_is_answered_from_the_rows(ask: Callable[[str], list[tuple[Any, ...]]]) -> None:
    assert ask("SELECT destination, id, took_ms FROM completion_times") == [
        ("a", "1", 1_000),
        ("a", "2", 2_000),
        ("a", "3", 3_000),
        ("a", "again", 60_000),
        ("a", "backwards", None),
        ("a", "part", 60_000),
        ("b", "1", 4_000),
    ]
    assert ask("SELECT id, seq, producer, waited_ms FROM last_components") == [
        ("1", 1, "fast", 4_000),
        ("2", 2, "\ufffd\ufffd<b>", 2_000),
        ("3", 2, "a.components/3", 0),
    ]
    assert ask("SELECT error_class, left(producer, 9), length(producer), length(error_text) FROM refusals") == [
        (EVIL, "xxxxxxxxx", 200, 1_000),
        ("BadUnitIdError", "a.compone", 14, None),
        ("BadUnitIdError", "fast", 4, None),
        ("BadUnitIdError", "\ufffd\ufffd<b>", 5, None),
    ]
    assert ask("SELECT id, outcome, reason, held, missing FROM incomplete_groups") == [
        ("lost", "expired", "age", 2, "1,4-"),
        ("part", "partial", "age", 2, "2,4-"),
    ]
    assert ask("SELECT destination, date_format(hour, 'HH'), units, components FROM hourly_volume") == [
        ("a", "11", 1, 2),
        ("a", "12", 4, 8),
        ("a", "14", 1, 2),
        ("b", "12", 1, 2),
    ]
    for view in views.VIEWS:
        assert ask(view.example), view.name
    assert ask("SELECT id, superseded_by FROM emitted_again") == [("again", "a.units/0/9")]
    assert ask("SELECT reason, place FROM unreadable_records") == [(EVIL, "a.units/0/4")]


def test_outcomes_tell_more_than_the_components_of_a_group(spark: SparkSession, tmp_path: Path) -> None:
    """Where `D.outcomes` has a group, its row counts, and once: not those made of `rejected` and `units`."""
    for destination, tables in ROWS.items():
        for table in (Table.UNITS, Table.REJECTED):
            write(spark, DeltaTables(tmp_path, destination), table, tables.get(table, ()))
    told = [
        unit("lost", 9, unit_id="u-lost", outcome="expired", reason="age", count=2, missing=[(1, 1)]),
        unit("lost", 9, unit_id="u-lost", outcome="expired", reason="age", count=2, missing=[(1, 1)], offset=1),
        unit("part", 9, unit_id="u-part", outcome="partial", reason="age", missing=[(7, 7)]),
        unit("1", 9, unit_id="u-1"),
        unit("late", 9, unit_id="u-late", outcome="partial", missing=[(3, 3)]),
    ]
    corrected = unit("late", 9, unit_id="u-late", outcome="partial", missing=[(3, 3)], superseded_by="a.units/0/9")
    write(
        spark, DeltaTables(tmp_path, "a"), Table.UNITS, [corrected, unit("late", 12, unit_id="u-again", generation=2)]
    )
    write(spark, DeltaTables(tmp_path, "a"), Table.OUTCOMES, told)
    views.register(spark, tmp_path)
    rows = spark.sql("SELECT id, generation, missing FROM incomplete_groups").collect()
    assert sorted(map(tuple, rows)) == [("lost", 1, "1"), ("part", 1, "7")]


def test_a_summary_has_the_numbers_of_all_and_leaves_out_what_is_not_asked_for(spark: SparkSession, root: Path) -> None:
    views.register(spark, root)
    found = summarize(spark, ["a", "b"])
    a, b = found.totals
    assert (a.units, a.components, a.bytes) == (6, 12, 50 + 2**63 - 1), "more than 64 bits have room for"
    assert (a.complete, a.refused, a.incomplete, a.emitted_again, a.unreadable) == (5, 4, 2, 1, 1)
    assert (b.destination, b.units, b.refused) == ("b", 1, 0)
    assert [(each.destination, each.units, each.ms[0], each.ms[-1]) for each in found.durations] == [
        (None, 5, 1_000, 60_000),
        ("a", 4, 1_000, 60_000),
        ("b", 1, 4_000, 4_000),
    ]
    assert sum(each.units for each in found.intervals) == 7
    assert found.late_numbers == (Latecomer("a", "1", 1, 4_000, 4_000), Latecomer("a", "2", 2, 2_000, 0))
    assert Counted("BadUnitIdError", "fast", 1) in found.refusals
    assert sum(each.count for each in found.refusals) == 4
    assert found.missing == (Counted("1,4-", "expired", 1), Counted("2,4-", "partial", 1))
    assert {each.id for each in found.latest_incomplete} == {"lost", "part"}

    begin = int(at(3.5).timestamp() * 1000)
    part = summarize(spark, ["a", "b"], begin, begin + 501)
    assert [(each.destination, each.units, each.incomplete, each.refused) for each in part.totals] == [
        ("a", 1, 0, 0),
        ("b", 0, 0, 0),
    ]
    assert [each.units for each in part.durations] == [1, 1]


def test_what_has_no_place_of_its_own_is_counted_as_others(spark: SparkSession, tmp_path: Path) -> None:
    """Any sender may make up classes, producers and numbers."""
    tables = DeltaTables(tmp_path, "a")
    write(spark, tables, Table.UNITS, [unit("0")])
    write(
        spark,
        tables,
        Table.REJECTED,
        [refused(f"E{number:03}", b"p%03d" % number) for number in range(60) for _ in range(1 + (number < 3))],
    )
    parts = [component(f"{number}", seq, seq) for number in range(60) for seq in (1, 100 + number)]
    write(spark, tables, Table.COMPONENTS, parts)
    views.register(spark, tmp_path)
    found = summarize(spark, ["a"])
    assert len({each.name for each in found.refusals}) == 13
    assert len({each.by for each in found.refusals}) == 8
    assert sum(each.count for each in found.refusals) == 63
    assert Counted("E000", "p000", 2) in found.refusals
    assert len(found.late_numbers) == 13
    assert sum(each.units for each in found.late_numbers) == 60
    assert found.late_numbers[-1].destination is None
    waited = sum(99_000 + 1_000 * number for number in range(60))
    assert found.late_producers == (Latecomer("a", "a.components/3", 60, waited, 128_000),)
    views.register(spark, tmp_path, producer_header="x'y")
    assert [*map(tuple, spark.sql("SELECT DISTINCT producer FROM refusals").collect())] == [("a.components/3",)]


def test_tables_of_an_earlier_release_and_missing_ones_are_empty_or_null(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(StateCorruptedError, match="no tables below"):
        views.register(spark, tmp_path)
    frame = spark.createDataFrame(
        [("u", "x", START, at(2), at(3))],
        "unit_id STRING, id STRING, opened_at TIMESTAMP, closed_at TIMESTAMP, timestamp TIMESTAMP",
    )
    frame.write.format("delta").save(DeltaTables(tmp_path, "old").path(Table.UNITS))
    made = views.register(spark, tmp_path, ["old"])
    for name in made:
        spark.table(name).collect()
    assert [row.took_ms for row in spark.table("completion_times").collect()] == [2_000]
    assert summarize(spark, ["old"]).totals[0].units == 1
    with pytest.raises(StateCorruptedError, match="new has no tables"):
        views.register(spark, tmp_path, ["new"])


def test_report_and_sql_on_the_command_line(spark: SparkSession, root: Path, tmp_path: Path) -> None:
    """P-01, P-02."""

    def call(*arguments: object) -> Any:
        return CliRunner().invoke(main, [*map(str, arguments)])

    out = tmp_path / "report.html"
    result = call("report", "--tables", root, "--out", out)
    assert (result.exit_code, result.stdout) == (0, f"{out}\n"), result.output
    page = out.read_text("utf-8")
    assert "Units of work: a, b" in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\x00\\u202e" in page
    assert EVIL not in page
    result = call("report", "--tables", root, "--destination", "b", "--json", "--until", "2026-03-01T13:00:00Z")
    assert [each["units"] for each in json.loads(result.stdout)["totals"]] == [1], result.output
    result = call("report", "--tables", root, "--out", tmp_path / "no" / "report.html")
    assert (result.exit_code, "no folder" in result.stderr) == (2, True)
    result = call("report", "--tables", tmp_path)
    assert (result.exit_code, "no tables below" in result.stderr) == (1, True)

    result = call(
        "sql", "--tables", root, "--json", "SELECT id, headers FROM components WHERE unit_id = 'u-2' AND seq = 2"
    )
    [row] = json.loads(result.stdout)
    assert (row["id"], row["headers"][1]["value"]) == ("2", "//48Yj4=")
    result = call(
        "sql",
        "--tables",
        root,
        "SELECT headers[1].value AS x, 1 AS x, null FROM components WHERE unit_id = 'u-2' AND seq = 2",
    )
    assert result.stdout.splitlines() == ["x\tx\tNULL", "\ufffd\ufffd<b>\t1\t"]
    result = call("sql", "--tables", root, "--limit", "2", "SELECT id FROM units")
    assert (len(result.stdout.splitlines()), "more rows than 2" in result.stderr) == (3, True)
    result = call("sql", "--tables", root, "SELECT 1 FROM nowhere")
    assert (result.exit_code, len(result.stderr.splitlines())) == (1, 1)
    assert "nowhere" in result.stderr
    result = call("sql", "--tables", root)
    assert [line.split("\t")[0] for line in result.stdout.splitlines()[1:]] == [view.name for view in views.VIEWS]
