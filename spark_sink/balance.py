"""The balance of expected and actual: one row for each group id, each plain record and each refused record without id.

Expected entries and the tables' rows meet in one aggregation by key; nothing is joined, and no content is moved. A key balances if fingerprints and
counts of both sides are equal. Only ids that do not balance are compared in detail (`uow.spark_sink.comparison`).

Belongs here: entries of the tables, and the verdict on each key. Does not belong here: expected entries (`uow.spark_sink.expectations`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql

from uow.spark_sink import expectations, prints
from uow.spark_sink.kafka import OffsetSpan
from uow.spark_sink.recompute import Fate
from uow.spark_sink.tables import Table
from uow.topics.catalogue import DestinationTopics

SAME: Final = "same"
DIFFERENT: Final = "different"
LEFT_OUT: Final = "left out"
LATER: Final = "later"
"""A plain record in the table beyond those in the range: right if the workers or the sink went on meanwhile, else wrong."""

FATES: Final = (Fate.DELIVERED, Fate.EXPIRED, Fate.CANCELLED, Fate.FAILED, Fate.REJECTED, Fate.PASSED)
"""Fates that leave rows in tables."""


def balance(
    expected: DataFrame, tables: Mapping[Table, DataFrame], topics: DestinationTopics, span: OffsetSpan
) -> DataFrame:
    """The keys with their verdicts.

    Args:
        expected: Columns `uow.spark_sink.expectations.ENTRIES`.
        tables: The tables.
        topics: Names of the topics.
        span: Range of the input.

    Returns:
        Columns `kind`, `key`, `verdict`, `expected`; of the first unit of an id in `D.units` its `turn`, `partition` and `offset`; and for each of
        `FATES` the number of records in the range that the tables have.
    """
    nothing = (sql.lit(None).cast("string").alias("fate"), sql.lit(None).cast("bigint").alias("offset"))
    ours = expected.select("*", sql.lit(0).alias("found"), *nothing)
    entries = reduce(DataFrame.unionByName, _found(tables, topics, span), ours)
    inside = sql.col("outside") == 0
    sums = [sql.sum(sql.when((sql.col("fate") == fate) & inside, 1).otherwise(0)).alias(fate) for fate in FATES]
    whole = entries.groupBy("kind", "key").agg(
        sql.bit_xor("a").alias("a"),
        sql.bit_xor("b").alias("b"),
        sql.sum("expected").alias("expected"),
        sql.sum("found").alias("found"),
        sql.sum("outside").alias("outside"),
        *(sql.min(name).alias(name) for name in ("turn", "partition", "offset")),
        *sums,
    )
    kind = sql.col("kind")
    verdict = (
        sql.when(kind == expectations.COUNT, expectations.COUNT)
        .when(sql.col("outside") > 0, LEFT_OUT)
        .when(kind == expectations.UNREADABLE, DIFFERENT)
        .when((kind == expectations.PLAIN) & (sql.col("expected") == 0), LATER)
        .when(kind.isin(expectations.SOME_PLAIN, expectations.REROUTED), _if(sql.col("expected") > sql.col("found")))
        .otherwise(_if(sql.expr("a <> 0 OR b <> 0 OR expected <> found")))
    )
    return whole.select("kind", "key", verdict.alias("verdict"), "expected", "turn", "partition", "offset", *FATES)


_OVERTAKEN: Final = """
SELECT key, partition, offset, before FROM (
  SELECT *, max(offset) OVER (PARTITION BY partition ORDER BY turn ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
  FROM {keys} WHERE turn IS NOT NULL AND offset IS NOT NULL AND verdict <> 'left out'
) WHERE offset < before ORDER BY partition, offset
"""


def overtaken(keys: DataFrame) -> DataFrame:
    """Units that stand in `D.units` before one of their partition that closed earlier (W-127).

    Args:
        keys: Result of `balance`.

    Returns:
        Columns `key`, which is the id, `partition`, `offset`, and `before`, the offset of the unit that should stand before.
    """
    return keys.sparkSession.sql(_OVERTAKEN, keys=keys)


def _if(differs: Column) -> Column:
    return sql.when(differs, DIFFERENT).otherwise(SAME)


def _found(tables: Mapping[Table, DataFrame], topics: DestinationTopics, span: OffsetSpan) -> list[DataFrame]:
    """The tables' rows as entries."""
    rejected = tables[Table.REJECTED]
    is_unit = sql.col("topic") == topics.units
    is_rest_of_unit = (sql.col("topic") == topics.errors) & sql.expr("exists(headers, h -> h.name = 'uow-unit-id')")
    refused = rejected.where(~is_unit & ~is_rest_of_unit)
    first_release = rejected.where(is_unit)
    plain = (
        tables[Table.PASSED]
        .select("partition", "offset", "key", "value", "headers")
        .unionByName(first_release.select("partition", "offset", "key", "value", "headers"))
    )
    unreadable = (
        tables[Table.UNREADABLE]
        .select("topic", "partition", "offset")
        .unionByName(first_release.select("topic", "partition", "offset"))
    )
    of_id, place = sql.lit(expectations.OF_ID), sql.expr("concat_ws('/', source_partition, source_offset)")
    has_id = sql.col("id").isNotNull()
    outside = _outside(span)
    return [
        _entry(tables[Table.UNITS], of_id, sql.col("id"), prints.unit(), offset=sql.when(is_unit, sql.col("offset"))),
        _entry(tables[Table.COMPONENTS], of_id, sql.col("id"), prints.component(), outside, sql.lit(Fate.DELIVERED)),
        _entry(
            refused,
            sql.when(has_id, of_id).otherwise(expectations.OF_PLACE),
            sql.when(has_id, sql.col("id")).otherwise(place),
            prints.refused(topics.errors),
            outside,
            sql.coalesce("failure_reason", sql.lit(Fate.REJECTED)),
        ),
        *_plain(plain, span),
        _entry(unreadable, sql.lit(expectations.UNREADABLE), sql.expr("concat_ws('/', topic, partition, offset)")),
    ]


def _plain(plain: DataFrame, span: OffsetSpan) -> list[DataFrame]:
    """Plain records by their rank in the partition, or by content alone where retention has deleted the beginning of the input."""
    cut = [partition for partition, start in span.start.items() if start > 0]
    content = plain.select("partition", "offset", sql.expr(f"lower(hex({prints.content()}))").alias("content"))
    ranked = content.where(~sql.col("partition").isin(*cut)) if cut else content
    ranked = ranked.withColumn("rank", sql.expr("row_number() OVER (PARTITION BY partition ORDER BY offset)"))
    fate = sql.lit(Fate.PASSED)
    rank = sql.expr("concat_ws('/', partition, rank)")
    found = [_entry(ranked, sql.lit(expectations.PLAIN), rank, sql.col("content"), fate=fate)]
    if cut:
        key = sql.expr("concat_ws('/', partition, content)")
        rest = content.where(sql.col("partition").isin(*cut))
        found.append(_entry(rest, sql.lit(expectations.SOME_PLAIN), key, fate=fate))
    return found


def _outside(span: OffsetSpan) -> Column:
    """1 for a row whose record is not in the range, else 0."""
    offset = sql.col("source_offset")
    is_inside = sql.lit(False)
    for partition, end in span.end.items():
        here = (sql.col("source_partition") == partition) & (offset >= span.start[partition]) & (offset < end)
        is_inside = is_inside | here
    is_outside = offset.isNotNull() & sql.col("source_partition").isin(*span.end) & ~is_inside
    return sql.when(is_outside, 1).otherwise(0)


def _entry(
    rows: DataFrame,
    kind: Column,
    key: Column,
    data: Column | None = None,
    outside: Column | None = None,
    fate: Column | None = None,
    offset: Column | None = None,
) -> DataFrame:
    a, b = (sql.lit(0), sql.lit(0)) if data is None else prints.columns(data)
    return rows.select(
        kind.alias("kind"),
        key.alias("key"),
        a.cast("bigint").alias("a"),
        b.cast("bigint").alias("b"),
        sql.lit(0).cast("bigint").alias("expected"),
        (sql.lit(0) if outside is None else outside).cast("bigint").alias("outside"),
        sql.lit(None).cast("bigint").alias("turn"),
        sql.lit(None).cast("int").alias("partition"),
        sql.lit(1).alias("found"),
        (sql.lit(None) if fate is None else fate).cast("string").alias("fate"),
        (sql.lit(None) if offset is None else offset).cast("bigint").alias("offset"),
    )
