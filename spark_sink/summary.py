"""Aggregates of a report: some hundred numbers about any number of units, computed by Spark from the views of `uow.spark_sink.views`.

Every list is bounded, and the rest of it is counted as `OTHERS`: any producer may write any class, id or reason. Texts are as they are in the
tables, cut in length only; who shows them escapes them.

Belongs here: queries, and the dataclasses of their results. Does not belong here: plots and HTML (`uow.report`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

from pyspark.sql import DataFrame, GroupedData, SparkSession, Window
from pyspark.sql import functions as sql

QUANTILES: Final[tuple[float, ...]] = (
    0.0,
    0.01,
    0.05,
    0.1,
    0.2,
    0.3,
    0.4,
    0.5,
    0.6,
    0.7,
    0.8,
    0.9,
    0.95,
    0.98,
    0.99,
    0.995,
    0.999,
    1.0,
)
"""Shares of the units for which `Durations` has the time in which they were complete."""
MEDIAN, NINETY, NINETY_NINE = (QUANTILES.index(each) for each in (0.5, 0.9, 0.99))

MAX_NAMES: Final = 7
"""Destinations or producers with a colour of their own."""
MAX_ROWS: Final = 12
MAX_EXAMPLES: Final = 10
MAX_INTERVALS: Final = 100
TEXT_CHARS: Final = 200

OTHERS: Final = None
"""In place of a name: all that have no row of their own."""

_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000
_WIDTHS: Final = (
    *(_SECOND * each for each in (1, 2, 5, 10, 20)),
    *(_MINUTE * each for each in (1, 2, 5, 10, 20)),
    *(_HOUR * each for each in (1, 2, 6, 12)),
    *(_DAY * each for each in (1, 7, 28, 364)),
)


@dataclass(frozen=True, slots=True)
class Totals:
    """Numbers of one destination.

    Attributes:
        destination: Its name.
        units: Units delivered, each counted once in each topic.
        components: Their components.
        bytes: Their bytes.
        complete: Those of the units that are whole.
        refused: Components in `D.rejected`.
        incomplete: Groups that did not become whole.
        emitted_again: Records of units that a later one supersedes.
        unreadable: Records in table `unreadable`.
    """

    destination: str
    units: int = 0
    components: int = 0
    bytes: int = 0
    complete: int = 0
    refused: int = 0
    incomplete: int = 0
    emitted_again: int = 0
    unreadable: int = 0


@dataclass(frozen=True, slots=True)
class Durations:
    """Completion times of the complete units of a destination, or of all: milliseconds by `QUANTILES`."""

    destination: str | None
    units: int
    ms: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Interval:
    """Units of a destination that were written in an interval of time.

    Attributes:
        start: Its start, epoch ms.
        destination: Name, or `OTHERS`.
        units: Units written.
        components: Their components.
        bytes: Their bytes.
    """

    start: int
    destination: str | None
    units: int
    components: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Pace:
    """Completion times of all units of an interval, ms."""

    start: int
    median: int
    ninety: int
    ninety_nine: int


@dataclass(frozen=True, slots=True)
class Latecomer:
    """Units whose last component had one number, or one producer.

    Attributes:
        destination: Name; `OTHERS` in the last row, which has neither median nor name.
        name: Number or producer; None: the component has no number.
        units: Units for which it came last.
        waited_ms: Time that these waited for it alone, in total.
        median_ms: Median of this time.
    """

    destination: str | None
    name: str | None
    units: int
    waited_ms: int
    median_ms: int | None


@dataclass(frozen=True, slots=True)
class Counted:
    """A count by two names."""

    name: str | None
    by: str | None
    count: int


@dataclass(frozen=True, slots=True)
class IncompleteGroup:
    """A group that did not become whole; moments in epoch ms."""

    destination: str
    id: str | None
    outcome: str | None
    reason: str | None
    opened_at: int | None
    written_at: int | None
    held: int | None
    missing: str | None


@dataclass(frozen=True, slots=True)
class Summary:
    """All numbers of a report.

    Attributes:
        since: Start of the range of time that was asked for, epoch ms; None: no bound.
        until: Its end, exclusive.
        totals: By destination, the largest first.
        first: Kafka's time of the first unit in the range, epoch ms; None without units.
        last: That of the last one.
        durations: Of all units, then by destination. Empty without complete units.
        interval_ms: Length of the intervals.
        intervals: By time and destination.
        paces: By time.
        late_numbers: By number of the component, the longest total wait first.
        late_producers: By producer of the component.
        refusals: By class and producer.
        missing: Incomplete groups by missing numbers and outcome.
        latest_incomplete: Some of the groups, the latest first.
        unreadable: Unreadable records by reason and destination.
    """

    since: int | None
    until: int | None
    totals: tuple[Totals, ...]
    first: int | None
    last: int | None
    durations: tuple[Durations, ...]
    interval_ms: int
    intervals: tuple[Interval, ...]
    paces: tuple[Pace, ...]
    late_numbers: tuple[Latecomer, ...]
    late_producers: tuple[Latecomer, ...]
    refusals: tuple[Counted, ...]
    missing: tuple[Counted, ...]
    latest_incomplete: tuple[IncompleteGroup, ...]
    unreadable: tuple[Counted, ...]


def summarize(
    spark: SparkSession, destinations: Sequence[str], since: int | None = None, until: int | None = None
) -> Summary:
    """Computes the numbers of a report.

    Args:
        spark: A session in which `uow.spark_sink.views.register` was called.
        destinations: Its destinations.
        since: Leaves out records with an earlier Kafka timestamp, epoch ms.
        until: Leaves out records with this or a later one.
    """
    between = _Between(since, until)
    totals, first, last = _totals(spark, destinations, between)
    width = interval_ms(first, last)
    named = [each.destination for each in totals[:MAX_NAMES]]
    units = between(spark.table("completion_times"))
    durations, intervals, paces = _over_time(units, named, width) if first is not None else ((), (), ())
    numbers, producers = (
        _latecomers(between(spark.table("last_components"), "arrived_at")) if first is not None else ((), ())
    )
    incomplete = between(spark.table("incomplete_groups")) if any(each.incomplete for each in totals) else None
    refused = any(each.refused for each in totals)
    unreadable = any(each.unreadable for each in totals)
    return Summary(
        since,
        until,
        totals,
        first,
        last,
        durations,
        width,
        intervals,
        paces,
        numbers,
        producers,
        _counted(between(spark.table("refusals")), "error_class", "producer") if refused else (),
        _counted(incomplete, "missing", "outcome") if incomplete is not None else (),
        _latest(incomplete) if incomplete is not None else (),
        _counted(between(spark.table("unreadable_records")), "reason", "destination") if unreadable else (),
    )


@dataclass(frozen=True, slots=True)
class _Between:
    """Keeps the rows of a range of time."""

    since: int | None
    until: int | None

    def __call__(self, rows: DataFrame, column: str = "written_at") -> DataFrame:
        if self.since is not None:
            rows = rows.where(sql.col(column) >= sql.timestamp_millis(sql.lit(self.since)))
        if self.until is not None:
            rows = rows.where(sql.col(column) < sql.timestamp_millis(sql.lit(self.until)))
        return rows


def interval_ms(first: int | None, last: int | None) -> int:
    """The smallest usual length of which `MAX_INTERVALS` reach from the first moment to the last."""
    span = 0 if first is None or last is None else last - first
    return next((width for width in _WIDTHS if span < width * (MAX_INTERVALS - 1)), span // (MAX_INTERVALS - 1) + 1)


_MS: Final = "unix_millis(written_at)"
_UNITS: Final = {
    "units": "count(*)",
    "components": "coalesce(sum(components), 0)",
    "bytes": "coalesce(sum(CAST(bytes AS DECIMAL(20))), 0)",
}
"""Sums of units. Their bytes are numbers that their writers wrote: the sum of a few may be more than 64 bits."""
_WAITED: Final = "sum(CAST(waited_ms AS DECIMAL(20)))"


def _totals(
    spark: SparkSession, destinations: Sequence[str], between: _Between
) -> tuple[tuple[Totals, ...], int | None, int | None]:
    """Totals by destination, and the times of the first and the last unit."""
    sums = _UNITS | {"complete": "count_if(outcome = 'complete')"}
    bounds = {"first": f"min({_MS})", "last": f"max({_MS})"}
    units = _aggregated(between(spark.table("completion_times")).groupBy("destination"), sums | bounds).collect()
    found: dict[str, dict[str, Any]] = {name: {} for name in destinations}
    for row in units:
        found[row.destination] = {name: int(row[name]) for name in sums}
    views = {
        "refused": "refusals",
        "incomplete": "incomplete_groups",
        "emitted_again": "emitted_again",
        "unreadable": "unreadable_records",
    }
    others = reduce(
        DataFrame.union,
        (between(spark.table(view)).select("destination", sql.lit(name).alias("name")) for name, view in views.items()),
    )
    for row in others.groupBy("destination", "name").agg(sql.count("*").alias("n")).collect():
        found[row.destination][row.name] = row.n
    totals = sorted(
        (Totals(name, **numbers) for name, numbers in found.items()), key=lambda each: (-each.units, each.destination)
    )
    return (
        tuple(totals),
        min((row.first for row in units if row.first is not None), default=None),
        max((row.last for row in units if row.last is not None), default=None),
    )


def _over_time(
    units: DataFrame, named: Sequence[str], width: int
) -> tuple[tuple[Durations, ...], tuple[Interval, ...], tuple[Pace, ...]]:
    """In one query: completion times of all and by destination, volume by time and destination, completion times by time."""
    keys = {
        "destination": sql.when(sql.col("destination").isin(*named), sql.col("destination")),
        "start": sql.expr(f"{_MS} - pmod({_MS}, {width})"),
    }
    known = units.where("written_at IS NOT NULL").select(
        *(key.alias(name) for name, key in keys.items()), "outcome", "took_ms", "components", "bytes"
    )
    took = "CASE WHEN outcome = 'complete' THEN took_ms END"
    sums = _UNITS | {
        "level": "grouping_id()",
        "timed": f"count({took})",
        "ms": f"percentile_approx({took}, array({', '.join(map(str, QUANTILES))}))",
    }
    sets = [[sql.col(name) for name in names] for names in ((), ("destination",), ("start",), ("destination", "start"))]
    rows = _aggregated(known.groupingSets(sets, "destination", "start"), sums).collect()
    rows.sort(key=lambda row: (row.start or 0, -row.units))
    all_units, of_destination, of_interval, of_both = 3, 1, 2, 0
    return (
        tuple(
            Durations(row.destination, row.timed, tuple(row.ms))
            for level in (all_units, of_destination)
            for row in rows
            if row.level == level and row.ms and (row.destination is not None or level == all_units)
        ),
        tuple(
            Interval(row.start, row.destination, row.units, int(row.components), int(row.bytes))
            for row in rows
            if row.level == of_both
        ),
        tuple(
            Pace(row.start, row.ms[MEDIAN], row.ms[NINETY], row.ms[NINETY_NINE])
            for row in rows
            if row.level == of_interval and row.ms
        ),
    )


def _latecomers(last: DataFrame) -> tuple[tuple[Latecomer, ...], tuple[Latecomer, ...]]:
    """The last components by their numbers, and by their producers, in one query."""
    sums = {
        "level": "grouping_id()",
        "units": "count(*)",
        "waited_ms": _WAITED,
        "median_ms": "percentile_approx(waited_ms, 0.5)",
    }
    sets = [[sql.col(name) for name in names] for names in ((), ("destination", "seq"), ("destination", "producer"))]
    numbers = last.select("destination", "seq", "producer", "waited_ms")
    grouped = _aggregated(numbers.groupingSets(sets, "destination", "seq", "producer"), sums)
    place = sql.row_number().over(
        Window.partitionBy("level").orderBy(sql.desc("waited_ms"), sql.desc("units"), "destination", "seq", "producer")
    )
    rows = grouped.withColumn("place", place).where(f"place <= {MAX_ROWS}").orderBy("place").collect()
    total = next((row for row in rows if row.level == _ALL), None)
    if total is None:
        return (), ()
    return _with_others(rows, "seq", 1, total), _with_others(rows, "producer", 2, total)


_ALL: Final = 7
"""Grouping id of three columns for the row that sums up all."""


def _with_others(rows: Sequence[Any], name: str, level: int, total: Any) -> tuple[Latecomer, ...]:
    """The rows of one level, and a last one for all that have no row of their own."""
    found = [
        Latecomer(
            row.destination, None if row[name] is None else str(row[name]), row.units, int(row.waited_ms), row.median_ms
        )
        for row in rows
        if row.level == level
    ]
    units = total.units - sum(each.units for each in found)
    waited = int(total.waited_ms) - sum(each.waited_ms for each in found)
    return (*found, *([Latecomer(OTHERS, None, units, waited, None)] if units else []))


def _counted(rows: DataFrame, name: str, by: str) -> tuple[Counted, ...]:
    """Rows by the `MAX_ROWS` most frequent values of one column and the `MAX_NAMES` of another, the rest as `OTHERS`, in one query.

    A value that is null counts as an empty one.
    """
    keys = [(name, "name", MAX_ROWS), (by, "by", MAX_NAMES)]
    pairs = rows.groupBy(
        *(sql.expr(f"left(coalesce({column}, ''), {TEXT_CHARS})").alias(key) for column, key, _ in keys)
    ).agg(sql.count("*").alias("n"))
    for _, key, _ in keys:
        pairs = pairs.withColumn("all", sql.sum("n").over(Window.partitionBy(key)))
        place = sql.dense_rank().over(Window.orderBy(sql.desc("all"), key))
        pairs = pairs.withColumn(f"{key}_place", place)
    kept = (sql.when(sql.col(f"{key}_place") <= limit, sql.col(key)).alias(key) for _, key, limit in keys)
    counts = pairs.groupBy(*kept).agg(sql.sum("n").alias("n")).collect()
    return tuple(Counted(row.name, row.by, row.n) for row in sorted(counts, key=lambda row: -row.n))


def _latest(groups: DataFrame) -> tuple[IncompleteGroup, ...]:
    """The incomplete groups that were written last."""
    moments = [sql.expr(f"unix_millis({name}) AS {name}") for name in ("opened_at", "written_at")]
    texts = [sql.expr(f"left({name}, {TEXT_CHARS}) AS {name}") for name in ("id", "outcome", "reason", "missing")]
    rows = groups.orderBy(sql.desc_nulls_last("written_at"), "destination", "id").limit(MAX_EXAMPLES)
    return tuple(
        IncompleteGroup(**row.asDict()) for row in rows.select("destination", *texts, *moments, "held").collect()
    )


def _aggregated(groups: GroupedData, columns: Mapping[str, str]) -> DataFrame:
    """Groups with aggregates by name, as SQL."""
    return groups.agg(*(sql.expr(text).alias(name) for name, text in columns.items()))
