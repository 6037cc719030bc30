"""The balance of expected and actual: one row for each group id, each plain record and each refused record without id.

Expected entries and the tables' rows meet in one aggregation by key; nothing is joined, and no content is moved. A key balances if fingerprints and
counts of both sides are equal. Only ids that do not balance are compared in detail (`uow.spark_sink.comparison`).

At the end of a range some keys have one side only: a unit that the clock may have closed, rows that the sink wrote while the audit ran. Numbers are sums
and fingerprints exclusive ors, so what is left of both sides, the *residue*, can be added to those of the next range.

Belongs here: entries of the tables, the verdict on each key, and the residue. Does not belong here: expected entries (`uow.spark_sink.expectations`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sql

from uow.spark_sink import expectations, prints
from uow.spark_sink.audit_keys import NO_KEYS, AuditKeys
from uow.spark_sink.kafka import OffsetSpan
from uow.spark_sink.recompute import Fate
from uow.spark_sink.superseded import FORMER
from uow.spark_sink.tables import Table
from uow.topics.catalogue import DestinationTopics

SAME: Final = "same"
DIFFERENT: Final = "different"
LEFT_OUT: Final = "left out"
LATER: Final = "later"
"""A plain record in the table beyond those in the range: right if the workers or the sink went on meanwhile, else wrong."""

FATES: Final = (Fate.DELIVERED, Fate.EXPIRED, Fate.CANCELLED, Fate.FAILED, Fate.REJECTED, Fate.PASSED)
"""Fates that leave rows in tables."""


Reach = Mapping[str, Mapping[str, int]]
"""An offset by topic and partition."""


def is_before(reach: Reach, place: Sequence[str] = ("topic", "partition", "offset")) -> Column:
    """True for rows of records before these offsets; false for those of other topics and partitions.

    Args:
        reach: The offsets.
        place: Columns of the record's place.
    """
    topic, partition, offset = map(sql.col, place)
    found = sql.lit(None).cast("bigint")
    for name, offsets in reach.items():
        ends = [sql.lit(offsets.get(str(p), 0)) for p in range(max(map(int, offsets), default=-1) + 1)]
        end = sql.get(sql.array(*ends), partition) if ends else found
        found = sql.when(topic == name, end).otherwise(found)
    return sql.coalesce(offset < found, sql.lit(False))


@dataclass(frozen=True, slots=True)
class Sides:
    """Both sides of a balance.

    Attributes:
        expected: Columns `uow.spark_sink.expectations.ENTRIES`.
        tables: Rows of the tables that count; components that are in rows of `units` are not among those of `components`.
        topics: Names of the topics.
        span: Range of the input; of an incremental audit with those before it.
        reach: Rows of records from these offsets on are looked at once more by the next incremental audit.
        passed: Number of rows of `passed` before those that count, by partition.
        residue: What the last audit left; None for nothing.
        keys: Of ids.
    """

    expected: DataFrame
    tables: Mapping[Table, DataFrame]
    topics: DestinationTopics
    span: OffsetSpan
    reach: Reach
    passed: Mapping[int, int]
    residue: DataFrame | None = None
    keys: AuditKeys = NO_KEYS


def balance(sides: Sides) -> DataFrame:
    """The keys with their verdicts.

    Returns:
        Columns `kind`, `key`, `verdict`, `expected`; of the first unit of an id in `D.units` its `turn`, `partition` and `offset`; for each of
        `FATES` the number of records in the range that the tables have; `is_owed` if the last audit left an expectation whose row it did not count,
        `is_early` if it left rows that were not expected yet; `lacking`, the number of expected rows less that of rows; and columns for `residue_of`.
    """
    nothing = (sql.lit(0).alias("found"), sql.lit(None).cast("bigint").alias("offset"))
    ours = _with_numbers(sides.expected).select("*", *nothing, sql.lit(0).alias("left_side"))
    entries = reduce(DataFrame.unionByName, _found(sides), ours)
    if sides.residue is not None:
        entries = entries.unionByName(sides.residue.select(*entries.columns))
    stays = sql.col("stays")
    sums = [sql.sum(sql.when(sql.col("fate") == fate, sql.col("here")).otherwise(0)).alias(fate) for fate in FATES]
    later = [
        sql.sum(sql.when(stays & (sql.col("fate") == fate), sql.col("n")).otherwise(0)).alias(f"left_{fate}")
        for fate in FATES
    ]
    whole = entries.groupBy("kind", "key").agg(
        sql.bit_xor("a").alias("a"),
        sql.bit_xor("b").alias("b"),
        sql.sum("expected").alias("expected"),
        sql.sum("found").alias("found"),
        sql.sum("outside").alias("outside"),
        *(sql.min(name).alias(name) for name in ("turn", "partition", "offset")),
        *sums,
        (sql.max("left_side") > 0).alias("is_owed"),
        (sql.min("left_side") < 0).alias("is_early"),
        sql.bit_xor(sql.when(stays, sql.col("a")).otherwise(0)).alias("left_a"),
        sql.bit_xor(sql.when(stays, sql.col("b")).otherwise(0)).alias("left_b"),
        sql.sum(sql.when(stays, sql.col("expected") - sql.col("found")).otherwise(0)).alias("left"),
        sql.sum(sql.when(stays, sql.col("found")).otherwise(0)).alias("judged"),
        sql.sum(sql.when(stays, sql.col("outside")).otherwise(0)).alias("left_outside"),
        *later,
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
    lacking = (sql.col("expected") - sql.col("found")).alias("lacking")
    return whole.select("*", verdict.alias("verdict"), lacking).drop("a", "b", "found", "outside")


def _with_numbers(expected: DataFrame) -> DataFrame:
    """Entries with the numbers of their fates on the side of the tables: nothing now, and so many fewer later."""
    return expected.withColumn("n", -sql.col("n")).withColumn("here", sql.lit(0).cast("bigint"))


_EXACT: Final = (expectations.OF_ID, expectations.OF_PLACE, expectations.PLAIN)
_AT_LEAST: Final = (expectations.SOME_PLAIN, expectations.REROUTED)


RESIDUE: Final = (
    "kind STRING, key STRING, a BIGINT, b BIGINT, expected BIGINT, outside BIGINT, turn BIGINT, partition INT, fate STRING, n BIGINT, here BIGINT, "
    "stays BOOLEAN, found INT, offset BIGINT, left_side INT"
)
"""Columns of a residue."""


def is_left() -> Column:
    """True for a key of the result of `balance` that belongs to the residue, unless its difference is settled."""
    kind = sql.col("kind")
    is_exact = kind.isin(*_EXACT) & sql.expr("left_a <> 0 OR left_b <> 0 OR left <> 0")
    return (sql.col("left_outside") > 0) | is_exact | (kind.isin(*_AT_LEAST) & (sql.col("left") > 0))


def residue_of(keys: DataFrame) -> DataFrame:
    """The residue, as entries of the next balance.

    An id that cannot be judged is left out once more, since what belongs to it may still come.

    Args:
        keys: Result of `balance`.
    """
    is_out = sql.col("left_outside") > 0
    fates = sql.array(*(sql.struct(sql.lit(fate).alias("fate"), sql.col(f"left_{fate}").alias("n")) for fate in FATES))
    first = sql.array(sql.struct(sql.lit(None).cast("string").alias("fate"), sql.lit(0).cast("bigint").alias("n")))
    wanted = sql.concat(first, sql.filter(fates, lambda each: each["n"] != 0))
    parts = keys.where(is_left()).withColumn("each", sql.explode(wanted))
    is_first = sql.col("each.fate").isNull()

    def once(name: str, kind: str) -> Column:
        return sql.when(is_first & ~is_out, sql.col(name)).otherwise(0).cast(kind)

    return parts.select(
        "kind",
        "key",
        once("left_a", "bigint").alias("a"),
        once("left_b", "bigint").alias("b"),
        once("left", "bigint").alias("expected"),
        sql.when(is_out, 1).otherwise(0).cast("bigint").alias("outside"),
        "turn",
        "partition",
        sql.col("each.fate").alias("fate"),
        sql.when(is_out, 0).otherwise(sql.col("each.n")).alias("n"),
        sql.when(is_out, 0).otherwise(sql.col("each.n")).alias("here"),
        (~is_out).alias("stays"),
        sql.lit(0).alias("found"),
        sql.lit(None).cast("bigint").alias("offset"),
        sql.when(is_out, 0).otherwise(sql.expr("IF(left < 0, -1, 1)")).alias("left_side"),
    )


def overtaken(keys: DataFrame) -> DataFrame:
    """Units that stand in `D.units` before one of their partition that closed earlier (W-127).

    Args:
        keys: Result of `balance`.

    Returns:
        Columns `key`, which is the id, `partition`, `offset`, and `before`, the offset of the unit that should stand before.
    """
    before = Window.partitionBy("partition").orderBy("turn").rowsBetween(Window.unboundedPreceding, -1)
    units = keys.where(f"turn IS NOT NULL AND offset IS NOT NULL AND verdict <> '{LEFT_OUT}'")
    # no query as text: the view that it makes of a frame takes it out of the cache when it goes
    late = units.withColumn("before", sql.max("offset").over(before)).where("offset < before")
    return late.select("key", "partition", "offset", "before").orderBy("partition", "offset")


def _if(differs: Column) -> Column:
    return sql.when(differs, DIFFERENT).otherwise(SAME)


def _found(sides: Sides) -> list[DataFrame]:
    """The tables' rows as entries."""
    tables, topics, span = sides.tables, sides.topics, sides.span
    rejected = tables[Table.REJECTED]
    is_unit = sql.col("topic") == topics.units
    is_rest_of_unit = (sql.col("topic") == topics.errors) & sql.expr("exists(headers, h -> h.name = 'uow-unit-id')")
    refused = rejected.where(~is_unit & ~is_rest_of_unit)
    first_release = rejected.where(is_unit)
    plain = (
        tables[Table.PASSED]
        .select("topic", "partition", "offset", "key", "value", "headers")
        .unionByName(first_release.select("topic", "partition", "offset", "key", "value", "headers"))
    )
    unreadable = (
        tables[Table.UNREADABLE]
        .select("topic", "partition", "offset")
        .unionByName(first_release.select("topic", "partition", "offset"))
    )
    of_id, place = sql.lit(expectations.OF_ID), sql.expr("concat_ws('/', source_partition, source_offset)")
    keys = sides.keys
    has_id = sql.col("id").isNotNull() & ~keys.by_rule()
    outside = _outside(span, sql.col("source_partition"), sql.col("source_offset"))
    outside_document = _document_outside(sides)
    is_nested = "components" in tables[Table.UNITS].columns
    within = outside_within = sql.lit(0)
    if is_nested:
        places = sql.filter("components.source", lambda at: _outside(span, at["partition"], at["offset"]) > 0)
        within, outside_within = (sql.coalesce(sql.size(each), within) for each in ("components.seq", places))
    is_document, is_corrected = sql.expr(IS_DOCUMENT), sql.expr(FORMER).isNotNull()
    # of a corrected unit all components but one are in the former unit as well
    before = sql.when(is_corrected, sql.col("count") - 1).otherwise(0)
    stays = is_before(sides.reach)
    stays_component = is_before(sides.reach, ("unit_topic", "unit_partition", "unit_offset"))
    return [
        _entry(
            tables[Table.UNITS],
            of_id,
            keys.group(),
            stays,
            prints.unit(keys.is_free(), is_nested=is_nested),
            outside_document + outside_within,
            sql.when(is_document | is_corrected | (within > 0), sql.lit(Fate.DELIVERED)),
            sql.when(is_unit, sql.col("offset")),
            sql.when(is_document, (1 - outside_document) * sql.col("count")).otherwise(
                within - outside_within - before
            ),
            1 + within,
        ),
        _entry(
            tables[Table.COMPONENTS],
            of_id,
            keys.group(),
            stays_component,
            prints.component(),
            outside,
            sql.lit(Fate.DELIVERED),
        ),
        _entry(
            refused,
            sql.when(has_id, of_id).otherwise(expectations.OF_PLACE),
            sql.when(has_id, sql.col("id")).otherwise(place),
            stays,
            prints.refused(topics.errors),
            outside,
            sql.coalesce("failure_reason", sql.lit(Fate.REJECTED)),
        ),
        *_plain(plain, stays, sides),
        _entry(
            unreadable, sql.lit(expectations.UNREADABLE), sql.expr("concat_ws('/', topic, partition, offset)"), stays
        ),
    ]


def _plain(plain: DataFrame, stays: Column, sides: Sides) -> list[DataFrame]:
    """Plain records by their rank in the partition, or by content alone where retention has deleted the beginning of the input."""
    cut = [partition for partition, start in sides.span.start.items() if start > 0]
    content = plain.select(
        "partition", "offset", stays.alias("stays"), sql.expr(f"lower(hex({prints.content()}))").alias("content")
    )
    ranked = content.where(~sql.col("partition").isin(*cut)) if cut else content
    before = sql.get(
        sql.array(*(sql.lit(sides.passed.get(p, 0)) for p in range(len(sides.span.end)))), sql.col("partition")
    )
    row = sql.expr("row_number() OVER (PARTITION BY partition ORDER BY offset)")
    ranked = ranked.withColumn("rank", row + sql.coalesce(before, sql.lit(0)))
    fate, stays = sql.lit(Fate.PASSED), sql.col("stays")
    rank = sql.expr("concat_ws('/', partition, rank)")
    found = [_entry(ranked, sql.lit(expectations.PLAIN), rank, stays, sql.col("content"), fate=fate)]
    if cut:
        key = sql.expr("concat_ws('/', partition, content)")
        rest = content.where(sql.col("partition").isin(*cut))
        found.append(_entry(rest, sql.lit(expectations.SOME_PLAIN), key, stays, fate=fate))
    return found


def _outside(span: OffsetSpan, source: Column, offset: Column) -> Column:
    """1 for a record of partition `source` that is not in the range, else 0."""
    is_inside = sql.lit(False)
    for partition, end in span.end.items():
        is_inside = is_inside | ((source == partition) & (offset >= span.start[partition]) & (offset < end))
    is_outside = offset.isNotNull() & source.isin(*span.end) & ~is_inside
    return sql.when(is_outside, 1).otherwise(0)


IS_DOCUMENT: Final = "coalesce(startswith(document, X'3C'), false)"
"""SQL that is true for a unit in XML, whose components are in no table."""


def _document_outside(sides: Sides) -> Column:
    """1 for a document whose components may not be in the range, else 0: it does not tell where they are, but rows from before `reach` are of the range."""
    is_outside = sql.lit(False)
    if any(sides.span.start.values()):
        is_outside = sql.lit(True)
    elif sides.reach:
        is_outside = ~is_before(sides.reach)
    return sql.when(sql.expr(IS_DOCUMENT) & is_outside, 1).otherwise(0)


def _entry(
    rows: DataFrame,
    kind: Column,
    key: Column,
    stays: Column,
    data: Column | None = None,
    outside: Column | None = None,
    fate: Column | None = None,
    offset: Column | None = None,
    here: Column | None = None,
    found: Column | int = 1,
) -> DataFrame:
    a, b = (sql.lit(0), sql.lit(0)) if data is None else prints.columns(data)
    outside = (sql.lit(0) if outside is None else outside).cast("bigint")
    here = (1 - outside if here is None else here).cast("bigint")
    return rows.select(
        kind.alias("kind"),
        key.alias("key"),
        a.cast("bigint").alias("a"),
        b.cast("bigint").alias("b"),
        sql.lit(0).cast("bigint").alias("expected"),
        outside.alias("outside"),
        sql.lit(None).cast("bigint").alias("turn"),
        sql.lit(None).cast("int").alias("partition"),
        (sql.lit(None) if fate is None else fate).cast("string").alias("fate"),
        here.alias("n"),
        here.alias("here"),
        stays.alias("stays"),
        sql.lit(found).alias("found"),
        (sql.lit(None) if offset is None else offset).cast("bigint").alias("offset"),
        sql.lit(0).alias("left_side"),
    )
