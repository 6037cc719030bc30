"""The fingerprint of a row in `units` is that of the recomputed unit, differs where Avro cannot even write the components, and components outside the range are counted."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from uow.schemas.component import encode_component
from uow.schemas.records import ComponentRecord, Source
from uow.spark_sink import prints
from uow.spark_sink.balance import components_outside
from uow.spark_sink.expectations import mapper
from uow.spark_sink.kafka import OffsetSpan
from uow.spark_sink.recompute import GROUP, Fate, Row
from uow.spark_sink.tables import ComponentsForm, Table, columns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST = ComponentRecord(1, False, "c-1", b"k", None, (("name", b"value"), ("", None)), 1_001, Source("in", 0, 7))
SECOND = replace(FIRST, seq=2, end=True, component_id=None, value=b"v", headers=(), source=Source("in", 0, 8))
GROUP_ROW = Row(
    *(GROUP, Fate.DELIVERED, 0),
    id="a",
    generation=1,
    unit_id="u",
    outcome="complete",
    reason="end",
    opened_at=1_001,
    closed_at=1_002,
    size=2,
    held_bytes=9,
    missing="",
    key=b"a",
    headers=[("uow-kind", b"unit"), ("n\u00e4me", None)],
)


def utc_of(epoch_ms: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=epoch_ms)


def headers_of(pairs: Sequence[tuple[str, bytes | None]]) -> list[dict[str, Any]]:
    return [{"name": name, "value": value} for name, value in pairs]


def component_of(record: ComponentRecord) -> dict[str, Any]:
    """The component as the sink writes it."""
    return {
        **{name: getattr(record, name) for name in ("seq", "end", "component_id", "key", "value")},
        "headers": headers_of(record.headers),
        "timestamp": utc_of(record.timestamp),
        "source": {"topic": record.source.topic, "partition": record.source.partition, "offset": record.source.offset},
        "reference": None,
    }


def prints_of(spark: SparkSession, lists: Sequence[list[dict[str, Any] | None]]) -> list[tuple[int, int]]:
    """Fingerprints of the row of `GROUP_ROW` with each of these lists of components."""
    from pyspark.sql import functions as sql

    row = {
        **dict.fromkeys(columns(Table.UNITS, ComponentsForm.NESTED).names),
        **{name: getattr(GROUP_ROW, name) for name in ("unit_id", "id", "generation", "outcome", "reason", "key")},
        "destination": "d",
        "opened_at": utc_of(1_001),
        "closed_at": utc_of(1_002),
        "count": 2,
        "bytes": 9,
        "missing": [],
        "headers": headers_of(GROUP_ROW.headers or ()),
        "topic": "out",
        "partition": 0,
    }
    schema = columns(Table.UNITS, ComponentsForm.NESTED)
    rows = spark.createDataFrame([{**row, "components": each, "offset": n} for n, each in enumerate(lists)], schema)
    both = prints.columns(prints.unit(sql.lit(False), is_nested=True))
    return [(a, b) for a, b in rows.orderBy("offset").select(*both).collect()]


def without(record: ComponentRecord, *path: str) -> dict[str, Any]:
    """The component with a null at a place."""
    component = component_of(record)
    inner = component
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = None
    return component


def test_row_of_a_unit_has_the_fingerprint_of_the_recomputed_one(spark: SparkSession) -> None:
    there = [component_of(FIRST), component_of(SECOND)]
    whole, empty = prints_of(spark, [there, []])
    expected = prints.of_unit(GROUP_ROW, "d", "out", [encode_component(FIRST), encode_component(SECOND)])
    assert whole == prints.halves(expected)
    assert empty == prints.halves(prints.of_unit(GROUP_ROW, "d", "out", []))
    assert len({whole, empty}) == 2


LACKS = (
    *(("seq",), ("end",), ("timestamp",), ("headers",), ("source",)),
    *(("source", "topic"), ("source", "partition"), ("source", "offset")),
)


def test_each_lack_differs(spark: SparkSession) -> None:
    nameless = component_of(FIRST)
    nameless["headers"][1]["name"] = None
    damaged: list[dict[str, Any] | None] = [None, nameless, *(without(FIRST, *path) for path in LACKS)]
    right, *wrong = prints_of(
        spark, [[component_of(SECOND), component_of(FIRST)], *([component_of(SECOND), each] for each in damaged)]
    )
    assert len(wrong) == len(damaged)
    assert right not in wrong


@pytest.mark.parametrize(
    ("places", "outside"),
    [
        ([(0, 10), (0, 19)], 0),
        ([(0, 9), (0, 10)], 1),
        ([(0, 19), (0, 20), (0, 21)], 2),
        ([(0, 10), (0, 20)], 1),
        ([(0, 10), (1, 10)], 1),
        ([(1, 4), (0, 15)], 0),
        ([(0, 10), (7, 99)], 0),
        ([(0, 10), (0, None), (None, 3)], 0),
        ([], 0),
        (None, 0),
    ],
)
def test_components_outside_the_range_are_counted(
    spark: SparkSession, places: list[tuple[int | None, int | None]] | None, outside: int
) -> None:
    span = OffsetSpan({0: 10, 1: 0}, {0: 20, 1: 5})
    kind = "components ARRAY<STRUCT<source: STRUCT<partition: INT, offset: BIGINT>>>"
    rows = spark.createDataFrame([(None if places is None else [(each,) for each in places],)], kind)
    assert rows.select(components_outside(span)).collect()[0][0] == outside


def test_collections_of_garbage_are_rare_in_a_task_only(spark: SparkSession) -> None:
    before, during = gc.get_threshold(), []

    def make(partition: int) -> Iterator[tuple[int]]:
        during.append(gc.get_threshold()[0])
        yield (partition,)

    found = mapper("n INT", make)([pa.record_batch([pa.array([3, 4])], ["id"])])
    assert [batch.column(0).to_pylist() for batch in found] == [[3], [4]]
    assert min(during) > before[0]
    assert gc.get_threshold() == before
