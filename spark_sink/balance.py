"""The balance of expected and actual: one row for each group id, each plain record and each refused record without id.

Expected entries and the tables' rows meet in one aggregation by key; nothing is joined, and no content is moved. A key balances if fingerprints and
counts of both sides are equal. Only ids that do not balance are compared in detail (`uow.spark_sink.comparison`).

At the end of a range some keys have one side only: a unit that the clock may have closed, rows that the sink wrote while the audit ran. Numbers are sums
and fingerprints exclusive ors, so what is left of both sides, the *residue*, can be added to those of the next range.

Belongs here: entries of the tables, the verdict on each key, and the residue. Does not belong here: expected entries (`uow.spark_sink.expectations`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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
        empty: Tables that have no rows, of which nothing has to be planned.
    """

    expected: DataFrame
    tables: Mapping[Table, DataFrame]
    topics: DestinationTopics
    span: OffsetSpan
    reach: Reach
    passed: Mapping[int, int]
    residue: DataFrame | None = None
    keys: AuditKeys = NO_KEYS
    empty: Collection[Table] = ()


def balance(sides: Sides) -> DataFrame:
    """The keys with their verdicts.

    Returns:
        Columns `kind`, `key`, `verdict`, `expected`; of the first unit of an id in `D.units` its `turn`, `partition` and `offset`; for each of
        `FATES` the number of records in the range that the tables have; `is_owed` if the last audit left an expectation whose row it did not count,
        `is_early` if it left rows that were not expected yet; `lacking`, the number of expected rows less that of rows; and columns for `residue_of`.
    """
    ours = sides.expected.selectExpr(
        *("kind", "key", "a", "b", "expected", "outside", "turn", "partition", "fate", "stays"),
        *("-n AS n", "0L AS here", "0 AS found", "CAST(NULL AS BIGINT) AS offset", "0 AS left_side"),
    )
    entries = reduce(DataFrame.unionByName, _found(sides), ours)
    if sides.residue is not None:
        entries = entries.unionByName(sides.residue.select(*entries.columns))
    whole = entries.groupBy("kind", "key").agg(*map(sql.expr, _SUMS))
    return whole.selectExpr(*_KEPT, f"{_VERDICT} AS verdict", "expected - found AS lacking")


_SUMS: Final = (
    *(f"bit_xor({name}) AS {name}" for name in ("a", "b")),
    *(f"sum({name}) AS {name}" for name in ("expected", "found", "outside")),
    *(f"min({name}) AS {name}" for name in ("turn", "partition", "offset")),
    *(f"sum(IF(fate = '{fate}', here, 0)) AS {fate}" for fate in FATES),
    *("max(left_side) > 0 AS is_owed", "min(left_side) < 0 AS is_early"),
    *(f"bit_xor(IF(stays, {name}, 0)) AS left_{name}" for name in ("a", "b")),
    *("sum(IF(stays, expected - found, 0)) AS left", "sum(IF(stays, found, 0)) AS judged"),
    "sum(IF(stays, outside, 0)) AS left_outside",
    *(f"sum(IF(stays AND fate = '{fate}', n, 0)) AS left_{fate}" for fate in FATES),
)
"""The sums for each key, as text: Spark parses a text at once, and a function of its API for each part takes three calls into the JVM."""

_KEPT: Final = (
    *("kind", "key", "expected", "turn", "partition", "offset", *FATES, "is_owed", "is_early"),
    *("left_a", "left_b", "left", "judged", "left_outside", *(f"left_{fate}" for fate in FATES)),
)

_VERDICT: Final = f"""CASE WHEN kind = '{expectations.COUNT}' THEN '{expectations.COUNT}'
  WHEN outside > 0 THEN '{LEFT_OUT}'
  WHEN kind = '{expectations.UNREADABLE}' THEN '{DIFFERENT}'
  WHEN kind = '{expectations.PLAIN}' AND expected = 0 THEN '{LATER}'
  WHEN kind IN ('{expectations.SOME_PLAIN}', '{expectations.REROUTED}') THEN IF(expected > found, '{DIFFERENT}', '{SAME}')
  ELSE IF(a <> 0 OR b <> 0 OR expected <> found, '{DIFFERENT}', '{SAME}') END"""


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


def _found(sides: Sides) -> list[DataFrame]:
    """The tables' rows as entries."""
    of = {table: rows for table, rows in sides.tables.items() if table not in sides.empty}
    plain, unreadable = ([of[table]] if table in of else [] for table in (Table.PASSED, Table.UNREADABLE))
    stays = is_before(sides.reach)
    found = []
    if Table.UNITS in of:
        found.append(_units(of[Table.UNITS], stays, sides))
    if Table.COMPONENTS in of:
        found.append(_components(of[Table.COMPONENTS], sides))
    if (rejected := of.get(Table.REJECTED)) is not None:
        found.append(_refused(rejected, stays, sides))
        first_release = rejected.where(sql.col("topic") == sides.topics.units)
        plain, unreadable = [*plain, first_release], [*unreadable, first_release]
    if plain:
        found += _plain(_together(plain, *_PLAIN), stays, sides)
    if unreadable:
        kind, key = sql.lit(expectations.UNREADABLE), sql.expr("concat_ws('/', topic, partition, offset)")
        found.append(_entry(_together(unreadable, *_PLAIN[:3]), kind, key, stays))
    return found


_PLAIN: Final = ("topic", "partition", "offset", "key", "value", "headers")


def _together(frames: Sequence[DataFrame], *names: str) -> DataFrame:
    return reduce(DataFrame.unionAll, (frame.select(*names) for frame in frames))


def _units(units: DataFrame, stays: Column, sides: Sides) -> DataFrame:
    outside_document = _document_outside(sides)
    is_nested = "components" in units.columns
    within = outside_within = sql.lit(0)
    if is_nested:
        within, outside_within = sql.coalesce(sql.size("components.seq"), within), components_outside(sides.span)
    is_document, is_corrected = sql.expr(IS_DOCUMENT), sql.expr(FORMER).isNotNull()
    # of a corrected unit all components but one are in the former unit as well
    before = sql.when(is_corrected, sql.col("count") - 1).otherwise(0)
    return _entry(
        units,
        sql.lit(expectations.OF_ID),
        sides.keys.group(),
        stays,
        prints.unit(sides.keys.is_free(), is_nested=is_nested),
        outside_document + outside_within,
        sql.when(is_document | is_corrected | (within > 0), sql.lit(Fate.DELIVERED)),
        sql.when(sql.col("topic") == sides.topics.units, sql.col("offset")),
        sql.when(is_document, (1 - outside_document) * sql.col("count")).otherwise(within - outside_within - before),
        1 + within,
    )


def _components(components: DataFrame, sides: Sides) -> DataFrame:
    return _entry(
        components,
        sql.lit(expectations.OF_ID),
        sides.keys.group(),
        is_before(sides.reach, ("unit_topic", "unit_partition", "unit_offset")),
        prints.component(),
        _outside(sides.span, sql.col("source_partition"), sql.col("source_offset")),
        sql.lit(Fate.DELIVERED),
    )


def _refused(rejected: DataFrame, stays: Column, sides: Sides) -> DataFrame:
    topics = sides.topics
    is_rest_of_unit = (sql.col("topic") == topics.errors) & sql.expr("exists(headers, h -> h.name = 'uow-unit-id')")
    has_id = sql.col("id").isNotNull() & ~sides.keys.by_rule()
    place = sql.expr("concat_ws('/', source_partition, source_offset)")
    return _entry(
        rejected.where((sql.col("topic") != topics.units) & ~is_rest_of_unit),
        sql.when(has_id, sql.lit(expectations.OF_ID)).otherwise(expectations.OF_PLACE),
        sql.when(has_id, sql.col("id")).otherwise(place),
        stays,
        prints.refused(topics.errors),
        _outside(sides.span, sql.col("source_partition"), sql.col("source_offset")),
        sql.coalesce("failure_reason", sql.lit(Fate.REJECTED)),
    )


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


def components_outside(span: OffsetSpan) -> Column:
    """Number of components of a row of `units` that are not in the range. Mostly all are of one partition: the first and the last offset tell."""
    source = sql.col("components.source")
    partitions, offsets = source["partition"], source["offset"]
    partition = sql.array_min(partitions)
    start, end = (
        sql.get(sql.array(*(sql.lit(of[p]) for p in range(len(of)))), partition) for of in (span.start, span.end)
    )
    is_inside = (
        (partition == sql.array_max(partitions)) & (sql.array_min(offsets) >= start) & (sql.array_max(offsets) < end)
    )
    places = sql.filter(source, lambda at: _outside(span, at["partition"], at["offset"]) > 0)
    return sql.when(is_inside, 0).otherwise(sql.coalesce(sql.size(places), sql.lit(0)))


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
