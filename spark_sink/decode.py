"""From Kafka records to rows: what a record of `D.units`, of a route's topic, of `D.rejected` or `D.errors` is, and its columns.

A unit's value says by its first bytes how it was written (contract section 11): Avro single-object encoding names its writer's schema by
fingerprint, Confluent framing by a registry's id, JSON and XML begin with `{` and `<`. A batch is asked once which of these it has; one
`CASE` over them decodes it in one pass, each Avro branch resolving writer to reader.

Belongs here: frames, schemas, the `CASE`, rows by table. Does not belong here: reading Kafka (`spark_sink.kafka`) and writing tables
(`spark_sink.tables`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import StructType

from schemas import formats
from schemas.errors import DecodeError
from schemas.records import MAX_RANGES, Component, Source, Unit
from spark_sink.tables import Table
from topics import headers as names
from topics.runs import Run, position_of, unit_of

RUN: Final = "run"
"""A record of a unit of shape `consecutive`: it is decoded as a unit of its one component."""
JSON: Final = "json"
XML: Final = "xml"
SINGLE_OBJECT: Final = "single-object"
REGISTRY: Final = "registry"

WriterOf = Callable[[int], str | None]
"""Schema text for a registry's id; None where the registry knows none that is Avro."""

_FRAME = f"""
CASE WHEN exists(headers, h -> h.name = '{names.POS}') THEN '{RUN}'
     WHEN length(value) > 10 AND startswith(value, X'C301') THEN '{SINGLE_OBJECT}:' || hex(substring(value, 1, 10))
     WHEN length(value) > 5 AND startswith(value, X'00') THEN '{REGISTRY}:' || conv(hex(substring(value, 2, 4)), 16, 10)
     WHEN startswith(value, X'7B') THEN '{JSON}'
     WHEN startswith(value, X'3C') THEN '{XML}'
     ELSE 'unknown' END
"""
_IS_UNIT = f"""
exists(headers, h -> h.name = '{names.KIND}' AND h.value <=> CAST('unit' AS BINARY)) AND NOT exists(headers, h -> h.name = '{names.SEQ}')
"""
_IS_WHOLE = (
    "unit.id IS NOT NULL AND unit.unit_id IS NOT NULL AND unit.destination IS NOT NULL AND unit.components IS NOT NULL"
)
"""Malformed bytes give a struct of nulls, not a null struct: the required fields tell."""


def with_frame(records: DataFrame, unit_topics: Sequence[str]) -> DataFrame:
    """Adds `frame`: how the value of a unit is written; null on records that are no unit."""
    return records.withColumn(
        "frame", sql.when(sql.col("topic").isin(*unit_topics) & sql.expr(_IS_UNIT), sql.expr(_FRAME))
    )


def frames(records: DataFrame) -> list[str]:
    """The frames that occur, a handful in any batch."""
    return sorted(row.frame for row in records.select("frame").where("frame IS NOT NULL").distinct().collect())


class UnitDecoder:
    """Decodes units by their frames.

    Args:
        reader: Our schema of a unit, as JSON text.
        writers: Frame header (the first ten bytes) to schema text, of every released version.
        writer_of: Schema by registry id; None when no registry is set.
    """

    def __init__(
        self, spark: SparkSession, reader: str, writers: Mapping[bytes, str], writer_of: WriterOf | None
    ) -> None:
        self._options = {"mode": "PERMISSIVE", "avroSchema": reader}
        self._writers = {header.hex().upper(): text for header, text in writers.items()}
        self._writer_of = writer_of
        probe = spark.range(0).select(self._avro(reader, 1, sql.lit(b"")).alias("unit"))
        kind = probe.schema["unit"].dataType
        assert isinstance(kind, StructType)
        self.kind = kind

    def decode(self, records: DataFrame) -> DataFrame:
        """Adds `unit`: the decoded unit; null or with null fields where the value is no unit. `records` have a `frame`."""
        unit = sql.lit(None).cast(self.kind)
        for frame in frames(records):
            column = self._column(frame)
            if column is not None:
                unit = sql.when(sql.col("frame") == frame, column).otherwise(unit)
        return records.withColumn("unit", unit)

    def _column(self, frame: str) -> Column | None:
        kind, _, name = frame.partition(":")
        if kind == SINGLE_OBJECT:
            return self._avro(self._writers[name], 11) if name in self._writers else None
        if kind == REGISTRY:
            text = self._writer_of(int(name)) if self._writer_of else None
            return None if text is None else self._avro(text, 6)
        if kind == RUN:
            record = sql.struct("key", "value", "headers", "topic", "partition", "offset")
            return sql.udf(_from_run, self.kind)(sql.when(sql.col("frame") == frame, record))
        if kind in (JSON, XML):
            # a Python function sees every row of the batch, whatever CASE it stands in
            mine = sql.when(sql.col("frame") == frame, sql.col("value"))
            return sql.udf(_from_json if kind == JSON else _from_xml, self.kind)(mine)
        return None

    def _avro(self, writer: str, start: int, value: Column | None = None) -> Column:
        body = sql.expr(f"substring(value, {start})") if value is None else value
        return from_avro(body, writer, self._options)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _moment(epoch_ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=epoch_ms)


def _component_row(component: Component) -> tuple[Any, ...]:
    source, reference = component.source, component.reference
    return (
        component.seq,
        component.end,
        component.component_id,
        component.key,
        component.value,
        [*component.headers],
        _moment(component.timestamp),
        (source.topic, source.partition, source.offset),
        None if reference is None else (reference.length, reference.crc32c),
    )


def _unit_row(unit: Unit) -> tuple[Any, ...]:
    return (
        unit.id,
        unit.unit_id,
        unit.destination,
        unit.generation,
        unit.outcome.value,
        unit.reason.value,
        _moment(unit.opened_at),
        _moment(unit.closed_at),
        None if unit.expires_at is None else _moment(unit.expires_at),
        unit.count,
        unit.bytes,
        [(item.first, item.last) for item in unit.missing],
        [_component_row(component) for component in unit.components],
    )


def _read(read: Callable[[bytes], Unit], value: bytes | None) -> tuple[Any, ...] | None:
    if value is None:
        return None
    try:
        return _unit_row(read(bytes(value)))
    except (DecodeError, OverflowError):
        return None


def _from_json(value: bytes | None) -> tuple[Any, ...] | None:
    return _read(formats.from_json, value)


def _from_xml(value: bytes | None) -> tuple[Any, ...] | None:
    return _read(formats.from_xml, value)


def _from_run(record: Any) -> tuple[Any, ...] | None:
    """The unit of a run's record, with its one component; what headers of an earlier version do not tell is null."""
    if record is None:
        return None
    headers = [(header.name, None if header.value is None else bytes(header.value)) for header in record.headers]
    key, value = (None if each is None else bytes(each) for each in (record.key, record.value))
    try:
        position, _ = position_of(headers) or (1, 1)
        unit = unit_of(headers, "", 0)
        here = Source(record.topic, record.partition, record.offset)
        component = Run(unit, record.offset, position - 1).take(headers, key, value, 0, here)
        row, (part,) = _unit_row(unit), [_component_row(component)]
    except (DecodeError, OverflowError):
        return None
    if names.OPENED_AT in dict(headers):
        return *row[:12], [part]
    is_bounded = position > 1 and len(unit.missing) == MAX_RANGES and component.seq > unit.missing[-1].first
    seq = None if is_bounded else part[0]
    return *row[:6], None, None, *row[8:10], None, row[11], [(seq, None, *part[2:6], None, *part[7:])]


REFERS: Final = "exists(unit.components, c -> c.reference IS NOT NULL)"
"""Whether components of a unit stayed in `D.components` (W-117)."""


def with_components(decoded: DataFrame, fetch: Callable[[DataFrame], DataFrame]) -> DataFrame:
    """Puts key, value and headers into units of shape `reference`; `unit` becomes null where a component is gone or another one.

    Args:
        decoded: Units, with the coordinates of their records.
        fetch: The records of `D.components` that lie where a frame's `source` says.
    """
    place = ("topic", "partition", "offset")
    parts = decoded.where(REFERS).select(*place, sql.posexplode("unit.components").alias("index", "c"))
    parts = parts.withColumn("source", sql.col("c.source"))
    there = fetch(parts).select(
        sql.struct("topic", "partition", "offset").alias("source"),
        *(sql.col(name).alias(f"its_{name}") for name in ("key", "value", "headers", "timestamp")),
    )
    is_it = "its_timestamp <=> c.timestamp AND coalesce(length(its_value), -1) <=> c.reference.length"
    component = """named_struct('seq', c.seq, 'end', c.end, 'component_id', c.component_id, 'key', its_key, 'value', its_value,
      'headers', its_headers, 'timestamp', c.timestamp, 'source', c.source, 'reference', c.reference)"""
    whole = (
        parts.join(there, "source", "left")
        .groupBy(*place)
        .agg(
            sql.expr(f"bool_and({is_it})").alias("is_whole"),
            sql.expr(f"transform(array_sort(collect_list(struct(index, {component} AS c))), p -> p.c)").alias("parts"),
        )
    )
    unit = sql.when(sql.col("is_whole").isNull(), sql.col("unit")).when(
        sql.col("is_whole"), sql.col("unit").withField("components", sql.col("parts"))
    )
    return decoded.join(whole, [*place], "left").withColumn("unit", unit).drop("is_whole", "parts")


def with_table(decoded: DataFrame, destination: str, unit_topics: Sequence[str]) -> DataFrame:
    """Adds `goes_to`: the one table for each record, so that none is lost and none counted twice (W-216).

    A unit of another destination that was sent on here passed through (W-96): a worker renames its headers, one of an earlier version left
    them as they were. A value that says it is a unit and cannot be read is kept in `rejected`, as it was.
    """
    chosen = (
        sql.when(~sql.col("topic").isin(*unit_topics), Table.REJECTED.value)
        .when(sql.col("frame").isNull(), Table.PASSED.value)
        .when(~sql.expr(_IS_WHOLE), Table.REJECTED.value)
        .when(sql.col("unit.destination") != destination, Table.PASSED.value)
        .otherwise(Table.UNITS.value)
    )
    return decoded.withColumn("goes_to", chosen)


_POSITION: Final = f"try_cast(split(CAST(try_element_at(filter(headers, h -> h.name = '{names.POS}'), 1).value AS STRING), '/')[0] AS INT)"
"""Place of a run's record, null on any other."""


def unit_rows(routed: DataFrame) -> DataFrame:
    """Rows of `units`."""
    plain = ("unit_id", "id", "destination", "generation", "outcome")
    rest = ("opened_at", "closed_at", "expires_at", "count", "bytes", "missing")
    is_first = (sql.col("frame") != RUN) | (sql.expr(_POSITION) == 1)
    return routed.where((sql.col("goes_to") == Table.UNITS.value) & is_first).select(
        *(sql.col(f"unit.{name}") for name in plain),
        sql.translate("unit.reason", "_", "-").alias("reason"),
        *(sql.col(f"unit.{name}") for name in rest),
        *("key", "headers", "topic", "partition", "offset", "timestamp"),
    )


def component_rows(routed: DataFrame) -> DataFrame:
    """Rows of `components`: `position` counts from 1 in the order of the unit."""
    exploded = routed.where(sql.col("goes_to") == Table.UNITS.value).select(
        "unit.unit_id",
        "unit.id",
        "unit.generation",
        sql.col("topic").alias("unit_topic"),
        sql.col("partition").alias("unit_partition"),
        sql.col("offset").alias("unit_offset"),
        sql.coalesce(sql.expr(_POSITION), sql.lit(1)).alias("first"),
        sql.posexplode("unit.components").alias("index", "component"),
    )
    fields = ("seq", "end", "component_id", "key", "value", "headers", "timestamp")
    return exploded.select(
        "unit_id",
        "id",
        "generation",
        (sql.col("index") + sql.col("first")).cast("int").alias("position"),
        *(sql.col(f"component.{name}") for name in fields),
        sql.col("component.source.topic").alias("source_topic"),
        sql.col("component.source.partition").alias("source_partition"),
        sql.col("component.source.offset").alias("source_offset"),
        "unit_topic",
        "unit_partition",
        "unit_offset",
    )


def header_text(name: str) -> Column:
    """The last header of a name as text; null where there is none or it is no UTF-8.

    The last, since the worker adds its own behind whatever the record brought along.
    """
    return sql.expr(
        f"try_validate_utf8(CAST(try_element_at(filter(headers, h -> h.name = '{name}'), -1).value AS STRING))"
    )


def rejected_rows(routed: DataFrame) -> DataFrame:
    """Rows of `rejected`: what `D.rejected` and `D.errors` say (W-37, W-71), and units that cannot be read, as `DecodeError`."""
    worker_says = sql.col("frame").isNull()

    def told(name: str, else_: str | None = None) -> Column:
        return sql.when(worker_says, header_text(name)).otherwise(sql.lit(else_).cast("string"))

    source = sql.split(told(names.SOURCE), "/")
    return routed.where(sql.col("goes_to") == Table.REJECTED.value).select(
        told(names.ERROR_CLASS, DecodeError.__name__).alias("error_class"),
        told(names.ERROR_CASE, "unit").alias("error_case"),
        told(names.ERROR_TEXT, "the value is no unit that can be read").alias("error_text"),
        told(names.FAILURE_REASON).alias("failure_reason"),
        told(names.MISSING).alias("missing"),
        header_text(names.ID).alias("id"),
        sql.try_element_at(source, sql.lit(1)).alias("source_topic"),
        sql.try_element_at(source, sql.lit(2)).try_cast("int").alias("source_partition"),
        sql.try_element_at(source, sql.lit(3)).try_cast("bigint").alias("source_offset"),
        *("key", "value", "headers", "topic", "partition", "offset", "timestamp"),
    )


def passed_rows(routed: DataFrame) -> DataFrame:
    """Rows of `passed`: records that are no unit of this destination, as they were (W-121)."""
    return routed.where(sql.col("goes_to") == Table.PASSED.value).select(
        "key", "value", "headers", "topic", "partition", "offset", "timestamp"
    )


ROWS: Final[Mapping[Table, Callable[[DataFrame], DataFrame]]] = {
    Table.UNITS: unit_rows,
    Table.COMPONENTS: component_rows,
    Table.REJECTED: rejected_rows,
    Table.PASSED: passed_rows,
}
"""Rows by table, of what `with_table` gave."""


def tables_of(chosen: Iterable[str]) -> list[Table]:
    """The tables that get rows when `goes_to` has these values: components come with their units."""
    found = {Table(name) for name in chosen}
    return [table for table in Table if table in found or (table is Table.COMPONENTS and Table.UNITS in found)]
