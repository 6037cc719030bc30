"""`uow sink`: every record of the output topics becomes rows, once (W-127)."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC
from pathlib import Path
from typing import Any

import fastavro
import pytest
from delta.tables import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row

from tests.spark.stage import STARTED_MS, Stage, c, plain
from uow.schemas import codec, formats, framing
from uow.schemas.codec import decode_as
from uow.schemas.framing import confluent_header
from uow.schemas.records import Unit
from uow.schemas.registry import Registry, RegistryFramer, connect
from uow.spark_sink import delta_sink as sink_module
from uow.spark_sink.kafka import Cluster
from uow.spark_sink.tables import PLACE, ComponentsForm, Table, append_once, columns
from uow.topics.policies import ExpirationPolicy
from uow.topics.routes import Route
from uow.topics.selector import Selector

pytestmark = pytest.mark.timeout(600)

UNIT_MARKS = [("uow-id", b"x"), ("uow-kind", b"unit")]


def megazon(stage: Stage) -> None:
    """Two units, a refused component, a plain record, an open group."""
    stage.send([c("jill", 2, value=None), c("jill", 3, end=True, value=b"book", shop="west"), plain("letter")])
    stage.send([c("jill", 1, value=b"\x00flash"), c("bob", 1, end=True, uow_component_id="b-1"), c("late", 0)])
    stage.send([c("open", 1)])
    stage.work()


def test_an_empty_table_is_as_delta_itself_makes_one(stage: Stage, tmp_path: Path) -> None:
    """All are made in the same way, and differ in their columns."""
    stage.tables.make(stage.spark)
    for table in Table:
        log = Path(stage.tables.path(table)) / "_delta_log" / f"{0:020}.json"
        [made] = [json.loads(line)["metaData"] for line in log.read_text().splitlines() if "metaData" in line]
        assert json.loads(made["schemaString"]) == columns(table, stage.tables.form).jsonValue()
    own, other = stage.tables.path(Table.UNITS), str(tmp_path / "units")
    wanted = columns(Table.UNITS, stage.tables.form)
    DeltaTable.createIfNotExists(stage.spark).location(other).addColumns(wanted).execute()
    mine, theirs = DeltaTable.forPath(stage.spark, own), DeltaTable.forPath(stage.spark, other)
    assert mine.toDF().schema == theirs.toDF().schema
    assert same_details(mine) == same_details(theirs)
    first, made = (json.loads((Path(of) / "_delta_log" / f"{0:020}.crc").read_text()) for of in (own, other))
    assert {**first, "metadata": None} == {name: made[name] for name in first} | {"metadata": None}
    assert first["metadata"].keys() == made["metadata"].keys()
    assert set(map(stage.tables.is_empty, Table)) == {True}
    assert set(stage.tables.rows(stage.spark).values()) == {0}
    stage.tables.make(stage.spark)
    assert mine.history().count() == 1


def test_what_delta_records_beside_a_commit_is_what_it_says_itself(stage: Stage) -> None:
    """And is not needed: other writers record nothing."""
    stage.tables.make(stage.spark)
    kind = columns(Table.UNITS, stage.tables.form)
    row = stage.spark.createDataFrame([["a", *[None] * (len(kind) - 1)]], kind)
    for version in (3, 4):
        append_once(row, stage.tables.path(Table.UNITS), "one", version)

    def told(table: Table) -> list[Any]:
        tables, spark = stage.tables, stage.spark
        found = tables.present(spark, table)
        batches = tables.last_batches(spark, table, ("one", "two"))
        return [
            tables.id(spark, table),
            batches,
            tables.count(spark, table),
            *tables.extent(spark, table),
            found.rows.collect(),
        ]

    begun = jobs(stage)
    recorded = {table: told(table) for table in (Table.UNITS, Table.PASSED)}
    assert jobs(stage) == begun + 1, "to read the rows"
    assert recorded[Table.UNITS][1:4] == [{"one": 4}, 2, 2]
    assert recorded[Table.PASSED][1:] == [{}, 0, 0, 0, []]
    assert not stage.tables.is_empty(Table.UNITS)
    for table in recorded:
        log = Path(stage.tables.path(table)) / "_delta_log"
        for checksum in log.glob("0*.crc"):
            checksum.write_text('{"cut')
    assert {table: told(table) for table in recorded} == recorded


def jobs(stage: Stage) -> int:
    """The number of Spark's jobs so far."""
    scheduler: Any = stage.spark.sparkContext._jsc.sc().dagScheduler()  # type: ignore[attr-defined]
    return int(scheduler.nextJobId())


def same_details(table: DeltaTable) -> Row:
    """Details of a table that do not depend on where and when it was made."""
    details = table.detail()
    return details.drop("id", "name", "location", "createdAt", "lastModified", "clusteringColumns").collect()[0]


def test_every_record_of_the_output_topics_becomes_rows_and_aborted_ones_never_do(
    make_stage: Callable[..., Stage],
) -> None:
    """W-127, W-37, W-71, W-80, W-121: units with their components in order, refused, given-up and passed records with their bytes.

    W-49: aborted records are never rows, and a topic that ends in them ends the run.
    """
    stage = make_stage(incomplete_expiration_ms=60_000, expiration_policy=ExpirationPolicy.REDIRECT)
    stage.abort(stage.names.units, [plain("a")] * 3)
    stage.sink()
    megazon(stage)
    stage.send([c("gap", 1), c("gap", 4)])
    stage.work()
    stage.tick()
    stage.abort(stage.names.units, [plain("a")] * 3)
    stage.abort(stage.names.rejected, [plain("a")])
    stage.sink()
    the_unit_is_one_row_and_its_components_are_rows_in_order(stage)
    refused, *given_up = sorted(stage.rows(Table.REJECTED), key=lambda row: row.topic, reverse=True)
    assert (refused.error_class, refused.error_case, refused.id, refused.failure_reason) == (
        "BadSequenceNumberError",
        "b",
        "late",
        None,
    )
    assert (refused.source_topic, refused.key, refused.value) == (stage.names.components, b"late", b"v")
    assert refused.topic == stage.names.rejected
    assert isinstance(refused.source_offset, int)
    told = {(row.id, row.failure_reason, row.missing, row.error_class, row.error_case, row.topic) for row in given_up}
    assert told == {
        ("gap", "expired", "2-3,5-", "UowError", "age", stage.names.errors),
        ("open", "expired", "2-", "UowError", "age", stage.names.errors),
    }
    assert len(given_up) == 3
    [passed] = stage.rows(Table.PASSED)
    assert (passed.key, passed.value, passed.topic) == (b"letter", b"news", stage.names.units)
    assert [(header.name, header.value) for header in passed.headers] == [("note", b"\xff\x00"), ("note", None)]
    for table in (Table.COMPONENTS, Table.REJECTED):  # as the tests read them is as Spark reads them
        by_spark = stage.tables.read(stage.spark, table).orderBy(*PLACE[table]).collect()
        assert by_spark == sorted(stage.rows(table), key=lambda row: [row[name] for name in PLACE[table]])


def the_unit_is_one_row_and_its_components_are_rows_in_order(stage: Stage) -> None:
    units = {row.id: row for row in stage.rows(Table.UNITS)}
    assert units.keys() == {"jill", "bob"}
    jill = units["jill"]
    assert (jill.destination, jill.generation, jill.outcome, jill.reason) == (
        stage.names.destination,
        1,
        "complete",
        "end",
    )
    assert (jill["count"], jill.key, jill.topic, jill.missing, jill.expires_at) == (
        3,
        b"jill",
        stage.names.units,
        [],
        None,
    )
    assert ("shop", b"west") in [(header.name, bytes(header.value)) for header in jill.headers]
    rows = [row for row in stage.rows(Table.COMPONENTS) if row.id == "jill"]
    assert [(row.position, row.seq, row.end, row.value) for row in rows] == [
        (1, 1, False, b"\x00flash"),
        (2, 2, False, None),
        (3, 3, True, b"book"),
    ]
    assert {(row.unit_id, row.unit_topic, row.unit_partition, row.unit_offset) for row in rows} == {
        (jill.unit_id, jill.topic, jill.partition, jill.offset)
    }
    assert {(row.source_topic, row.source_partition) for row in rows} == {(stage.names.components, jill.partition)}
    assert [bytes(header.value) for row in rows for header in row.headers if header.name == "uow-seq"] == [
        b"1",
        b"2",
        b"3",
    ]
    assert all(row.timestamp.replace(tzinfo=UTC).timestamp() * 1000 >= STARTED_MS for row in rows)
    assert [row.component_id for row in stage.rows(Table.COMPONENTS) if row.id == "bob"] == ["b-1"]


def by_a_newer_release(value: bytes, registry: Registry) -> bytes:
    """A unit of the topic as a release with two more fields will write it."""
    known = json.loads(framing.definition_text("Unit"))
    newer = copy.deepcopy(known)
    [parts] = (field for field in newer["fields"] if field["name"] == "components")
    parts["type"]["items"]["fields"].insert(1, {"name": "weight", "type": "long", "default": 0})
    newer["fields"].insert(2, {"name": "shop", "type": ["null", "string"], "default": None})
    unit: Any = fastavro.schemaless_reader(io.BytesIO(value[10:]), known, None)
    unit |= {"shop": "s", "components": [part | {"weight": 7} for part in unit["components"]]}
    written = io.BytesIO()
    fastavro.schemaless_writer(written, newer, unit)
    return confluent_header(registry.register("newer", json.dumps(newer))) + written.getvalue()


def test_json_xml_and_registry_units_are_decoded_beside_avro(make_stage: Callable[..., Stage]) -> None:
    """W-95: each value says itself how it was written, also with fields that this release does not know."""
    stage = make_stage()
    stage.send([c("a", 2, end=True, value=None, more="x"), c("a", 1, value=b"\x00\xff")])
    stage.work()
    [original] = stage.read(stage.names.units)
    unit = decode_as(Unit, original.value())
    by_json, by_xml, by_registry, by_newer = (
        replace(unit, unit_id=kind) for kind in ("json", "xml", "registry", "newer")
    )
    others = {"json": formats.to_json(by_json), "xml": formats.to_xml(by_xml)}
    registry = connect("mock://spark-sink")
    others["registry"] = codec.frame(by_registry, RegistryFramer(registry), stage.names.units)
    others["newer"] = by_a_newer_release(codec.frame(by_newer), registry)
    for value in others.values():
        stage.put(stage.names.units, b"a", value, [*UNIT_MARKS])
    stage.cluster = Cluster(stage.servers, registry_url="mock://spark-sink")
    stage.sink()
    rows = stage.rows(Table.UNITS)
    own = ("unit_id", "topic", "partition", "offset", "timestamp", "headers", "key")
    assert len(rows) == 5
    assert len({str({name: value for name, value in row.asDict(True).items() if name not in own}) for row in rows}) == 1
    begun = jobs(stage)
    assert stage.tables.rows(stage.spark)[Table.COMPONENTS] == 10
    assert jobs(stage) == begun, "the files' footers tell it"
    components = stage.rows(Table.COMPONENTS)
    assert len(components) == 10
    assert (
        len(
            {
                str({name: value for name, value in row.asDict(True).items() if not name.startswith("unit_")})
                for row in components
            }
        )
        == 2
    )


@pytest.mark.parametrize(
    ("form", "reached"),
    [
        (ComponentsForm.NESTED, (Table.UNITS, Table.REJECTED, Table.PASSED)),
        (ComponentsForm.TABLE, (Table.UNITS, Table.COMPONENTS)),
    ],
)
def test_a_batch_cut_off_behind_any_table_is_run_again_without_doubling(
    make_stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch, form: ComponentsForm, reached: tuple[Table, ...]
) -> None:
    """W-127: the tables that a batch had reached know its number."""
    append = append_once
    stage = make_stage()
    stage.tables = replace(stage.tables, form=form)
    megazon(stage)
    for table in reached:

        def cut_off(rows: Any, path: str, writer: str, version: int, last: str = stage.tables.path(table)) -> None:
            append(rows, path, writer, version)
            if path == last:
                raise RuntimeError("cut off")

        with monkeypatch.context() as patched:
            patched.setattr(sink_module, "append_once", cut_off)
            with pytest.raises(Exception, match="cut off"):
                stage.sink()
    stage.tables = replace(stage.tables, form=ComponentsForm.NESTED)
    stage.sink()
    assert stage.tables.rows(stage.spark) == {
        Table.UNITS: 2,
        Table.COMPONENTS: 4,
        Table.REJECTED: 1,
        Table.PASSED: 1,
        Table.UNREADABLE: 0,
        Table.OUTCOMES: 0,
        Table.ANSWERS: 0,
        Table.WARNINGS: 0,
    }
    the_unit_is_one_row_and_its_components_are_rows_in_order(stage)
    assert stage.tables.form_of(stage.spark) is form


def test_a_unit_of_another_destination_that_was_sent_on_is_passed(make_stage: Callable[..., Stage]) -> None:
    """W-96: it opens no group there, and its components are not components of this destination."""
    west, east = make_stage(), make_stage()
    west.send([c("x", 1, end=True)])
    west.work()
    [unit] = west.read(west.names.units)
    east.send([(unit.key(), unit.value(), unit.headers())])
    east.work()
    east.sink()
    [row] = east.rows(Table.PASSED)
    assert row.value == unit.value()
    assert east.rows(Table.UNITS) == []
    assert east.audit().is_clean


def test_the_topic_of_a_route_added_later_is_read_whole_and_one_that_is_gone_is_told_w98(
    make_stage: Callable[..., Stage], unique: str
) -> None:
    stage = make_stage(routes=(Route(Selector("uow-size = 1"), f"{unique}.small"),))
    stage.send([c("one", 1, end=True), c("two", 1), c("two", 2, end=True)])
    stage.work()
    without = replace(stage.sinking(), routes=())
    without.start(once=True).awaitTermination()
    assert [row.id for row in stage.rows(Table.UNITS)] == ["two"]
    stage.sink()
    assert {row.id for row in stage.rows(Table.UNITS)} == {"one", "two"}
    with pytest.raises(StreamingQueryException, match="small"):
        without.start(once=True).awaitTermination()
