"""Audit of the tables: every unit is computed again from `D.components` and compared, so that lost, doubled or mixed records show.

Steps:

1. determine the range: from the log's start to the offsets that the workers' consumer group has committed, `read_committed` (W-49);
2. compute one fate for each record in the range (`uow.spark_sink.recompute`), with a Spark task for each partition of the topic;
3. decide about groups that only a wall clock can have closed (`due`): they count as closed if a record says so, which is their unit, their
   components in `D.errors`, the ledger, or `D.outcomes`; that record must not be older than the deadline. Otherwise they are open;
4. join fates and tables by source coordinates, groups and units by `unit_id`, in both directions. Plain records have no
   coordinates: they are compared by content and order, partition by partition.

Wall clocks cannot be computed again from the log: a worker may close a group by its wall clock once the partition is read to its end, and
if nothing was appended afterwards no record says when. But the log shows if that was right. A recorded closing is right if the
deadline, counted from append times, had passed when it was written, if the group was incomplete then, and if no component that was
appended in time is missing from it (such a component would show up as rejected although it should have been held).

Commands are computed again at the point where the ledger says that they were decided (W-203). That needs the command in `D.commands`, and its
transaction and the one before it in the ledger. If `D.outcomes` says that a command did something, but it cannot be computed again because
one of these was deleted, or because it was decided after step 1, its id cannot be judged. Neither can ids of which a table has components outside
the range (deleted by retention, or processed after step 1). Such ids are left out on both sides and counted. The sink must have caught up: records
that it has not written yet are reported as missing.

Belongs here: the steps and the report's data. Does not belong here: fates (`uow.spark_sink.recompute`), queries (`uow.spark_sink.comparison`),
printing (`uow.cli.audit_command`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sql

from uow.processor.core.partition_state import PartitionAddress
from uow.schemas.error_classes import StateCorruptedError
from uow.spark_sink import comparison, recompute
from uow.spark_sink.comparison import (
    READABLE_HEADERS,
    DifferenceKind,
    compare,
    content,
)
from uow.spark_sink.kafka import (
    LATEST,
    Cluster,
    OffsetSpan,
    between,
    committed,
    everything,
)
from uow.spark_sink.readers import (
    CLOSINGS,
    COMMANDED,
    TRANSACTIONS,
    closing_reader,
    recomputer,
    transaction_reader,
)
from uow.spark_sink.recompute import (
    Arrived,
    Decided,
    Fate,
    Known,
    Order,
    orders_of,
)
from uow.spark_sink.tables import DeltaTables, Table
from uow.topics import headers as names
from uow.topics.catalogue import DestinationTopics
from uow.topics.policies import DestinationPolicy

EXAMPLES: Final = 20
"""Number of differences of each kind that a report shows."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference between the log and the tables.

    Attributes:
        what: Its kind.
        source: The table or topic with the difference.
        id: Group id, if there is one.
        place: Coordinates, `topic/partition/offset`, or a unit's id.
        detail: The expected and the actual state.
    """

    what: DifferenceKind
    source: str
    id: str | None
    place: str
    detail: str


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The result of an audit (W-216).

    Attributes:
        destination: Name of the destination.
        expected: Number of records of each partition by fate; their sum is the number of records received.
        found: Number of records by fate in tables and ledger, without fates that leave no trace.
        units: Number of recomputed units by outcome.
        left_out: Number of ids that could not be judged.
        unread: Number of records that no worker has committed yet.
        totals: Number of differences by kind.
        examples: Some of the differences.
    """

    destination: str
    expected: Mapping[int, Mapping[Fate, int]]
    found: Mapping[Fate, int]
    units: Mapping[str, int]
    left_out: int
    unread: int
    totals: Mapping[DifferenceKind, int]
    examples: tuple[Difference, ...] = ()

    @property
    def is_clean(self) -> bool:
        """True if there is no difference."""
        return not self.totals

    @property
    def received(self) -> int:
        """Number of records in the range."""
        return sum(sum(counts.values()) for counts in self.expected.values())

    @property
    def fates(self) -> list[Fate]:
        """Fates that occur, expected or found."""
        return [fate for fate in Fate if self.count(fate) or self.found.get(fate)]

    def count(self, fate: Fate) -> int:
        """Number of records with a fate, over all partitions."""
        return sum(counts.get(fate, 0) for counts in self.expected.values())


@dataclass(frozen=True, slots=True)
class Audit:
    """The audit of one destination.

    Attributes:
        spark: The session.
        cluster: The cluster of the topics.
        names: Names of the topics, and the application whose committed offsets count.
        policy: Settings of the destination.
        tables: The tables.
    """

    spark: SparkSession
    cluster: Cluster
    names: DestinationTopics
    policy: DestinationPolicy
    tables: DeltaTables

    def run(self) -> AuditReport:
        """Makes the audit.

        Raises:
            StateCorruptedError: There are no tables, or no topics.
        """
        if not self.tables.exist():
            raise StateCorruptedError([], f"there are no tables below {self.tables.folder}", "run `uow sink` first")
        span = committed(self.cluster, self.names.application, self.names.components)
        kept: list[DataFrame] = []

        def keep(frame: DataFrame) -> DataFrame:
            kept.append(frame.persist())
            return kept[-1]

        try:
            tables = {table.value: self.tables.read(self.spark, table) for table in Table}
            closings = keep(self._closings())
            orders = self._orders(span)
            rows = keep(self._fates(span, orders))
            settled = rows.withColumn("recorded_at", sql.lit(None).cast("bigint"))
            if not rows.where("due IS NOT NULL").isEmpty():
                settled = keep(compare(self.spark, comparison.SETTLED, rows=rows, closings=closings, **tables))
            return self._report(span, settled, closings, self._unknown(closings, orders), tables)
        finally:
            for frame in kept:
                frame.unpersist()

    def _orders(self, span: OffsetSpan) -> dict[Known, Order]:
        """Commands that were decided within the range and can be computed again."""
        records = everything(self.spark, self.cluster, [self.names.commands]).orderBy("partition", "offset")
        at = sql.expr("unix_millis(timestamp)").alias("at")
        commands = [
            (partition, Arrived(offset, moment, None, None, _pairs(headers), None))
            for partition, offset, moment, headers in records.select("partition", "offset", at, "headers").collect()
        ]
        if not commands:
            return {}
        ledger = everything(self.spark, self.cluster, [self.names.closed_changelog]).select(
            "partition", "offset", "value"
        )
        decided = compare(
            self.spark, comparison.DECIDED, transactions=ledger.mapInArrow(transaction_reader(), TRANSACTIONS)
        )
        return orders_of(
            [
                Decided(
                    row.partition, row.start, row.stop, row.before, [(bytes(each.id), each.at) for each in row.commands]
                )
                for row in decided.collect()
                if row.stop <= span.end.get(row.partition, 0)
            ],
            commands,
        )

    def _unknown(self, closings: DataFrame, orders: Mapping[Known, Order]) -> set[str]:
        """Ids changed by a command that cannot be computed again."""
        done = closings.where(sql.col("outcome") == COMMANDED)
        rows = done.select("partition", "id", "command_id", "command_at").collect()
        return {row.id for row in rows if (row.partition, row.command_id.encode(), row.command_at) not in orders}

    def _fates(self, span: OffsetSpan, orders: Mapping[Known, Order]) -> DataFrame:
        """Rows of `uow.spark_sink.recompute` for the range."""
        if span.start == span.end:
            return self.spark.createDataFrame([], recompute.COLUMNS)
        of_partition: dict[int, list[Order]] = {}
        for (partition, *_), order in orders.items():
            of_partition.setdefault(partition, []).append(order)
        places = {
            p: PartitionAddress(self.names.destination, self.names.components, p, len(span.end)) for p in span.end
        }
        arrivals = between(self.spark, self.cluster, self.names.components, span.start, span.end).select(
            "partition",
            "offset",
            sql.expr("unix_millis(timestamp)").alias("at"),
            "key",
            "value",
            "headers",
            sql.expr(content(READABLE_HEADERS)).alias("content"),
        )
        return arrivals.mapInArrow(recomputer(places, self.policy, of_partition), recompute.COLUMNS)

    def _closings(self) -> DataFrame:
        """Closed groups as recorded in ledger and `D.outcomes`."""
        topics = [self.names.closed_changelog, self.names.outcomes]
        records = everything(self.spark, self.cluster, topics).select(
            "topic", "partition", "offset", sql.expr("unix_millis(timestamp)").alias("at"), "value"
        )
        return records.mapInArrow(closing_reader(self.names.closed_changelog, self.cluster.registry_url), CLOSINGS)

    def _reroutes(self) -> DataFrame:
        """Records that were sent on to their partition, by the content that they had before."""
        records = everything(self.spark, self.cluster, [self.names.components])
        before = f"filter(headers, h -> h.name <> '{names.REROUTED}')"
        return records.where(sql.expr(f"size({before}) < size(headers)")).select(
            sql.expr(content(before)).alias("content")
        )

    def _unread(self, span: OffsetSpan) -> int:
        """Number of records after the range, processed since then or not yet."""
        latest = dict.fromkeys(span.end, LATEST)
        return between(self.spark, self.cluster, self.names.components, span.end, latest).count()

    def _report(
        self,
        span: OffsetSpan,
        settled: DataFrame,
        closings: DataFrame,
        unknown: set[str],
        tables: Mapping[str, DataFrame],
    ) -> AuditReport:
        bounds = self.spark.createDataFrame(
            [(p, span.start[p], end) for p, end in span.end.items()], "partition INT, start BIGINT, stop BIGINT"
        )
        outside = compare(self.spark, comparison.OUT_OF_RANGE, bounds=bounds, **tables).collect()
        left_out = [(each,) for each in unknown.union(row.id for row in outside)]
        unread = self._unread(span)

        def judged(frame: DataFrame) -> DataFrame:
            out = self.spark.createDataFrame(left_out, "id STRING") if left_out else None
            return frame if out is None else frame.join(sql.broadcast(out), "id", "left_anti")

        inputs: dict[str, Any] = {
            name: judged(frame) if "id" in frame.columns else frame for name, frame in tables.items()
        } | {"unreadable": tables["unreadable"]}  # ids of unreadable records cannot be trusted
        expected = judged(settled)
        inputs |= {
            "fates": expected.where(sql.col("kind") == recompute.RECORD),
            "groups": expected.where(sql.col("kind") == recompute.GROUP),
            "closings": closings,
            "topic": self.names.components,
            "units_topic": self.names.units,
            "rejected_topic": self.names.rejected,
            "errors_topic": self.names.errors,
            "destination": self.names.destination,
            "is_moving": unread > 0,
        }
        expected_counts, units = self._counts(settled)
        queries = [
            (comparison.UNACCOUNTED, ""),
            (comparison.COMPONENTS, content("a.headers", "a.")),
            (comparison.UNITS, ""),
            (comparison.REFUSED, content("slice(a.headers, 1, e.header_count)", "a.")),
            (comparison.PASSED, content()),
            (comparison.CLOSINGS, ""),
            (comparison.UNREADABLE, ""),
        ]
        if any(counts.get(Fate.REROUTED) for counts in expected_counts.values()):
            queries.append((comparison.REROUTED, ""))
            inputs["reroutes"] = self._reroutes()
        differences = reduce(
            DataFrame.unionAll, (compare(self.spark, query, content=text, **inputs) for query, text in queries)
        )
        totals, examples = _summary(differences)
        return AuditReport(
            self.names.destination,
            expected_counts,
            self._found(tables, bounds, settled),
            units,
            len(left_out),
            unread,
            totals,
            examples,
        )

    def _counts(self, settled: DataFrame) -> tuple[dict[int, dict[Fate, int]], dict[str, int]]:
        expected: dict[int, dict[Fate, int]] = {}
        units: dict[str, int] = {}
        for kind, partition, fate, outcome, count in (
            settled.groupBy("kind", "partition", "fate", "outcome").count().collect()
        ):
            if kind == recompute.RECORD:
                expected.setdefault(partition, {})[Fate(fate)] = count
            else:
                settled_outcome = "open" if fate == Fate.OPEN else outcome
                units[settled_outcome] = units.get(settled_outcome, 0) + count
        return {partition: expected[partition] for partition in sorted(expected)}, units

    def _found(self, tables: Mapping[str, DataFrame], bounds: DataFrame, settled: DataFrame) -> dict[Fate, int]:
        query = compare(
            self.spark, comparison.FOUND, bounds=bounds, settled=settled, units_topic=self.names.units, **tables
        )
        return {Fate(row.fate): row.n for row in query.collect()}


def _pairs(headers: Iterable[Row]) -> list[tuple[str, bytes | None]]:
    """Headers in the form of Kafka's client."""
    return [(name, None if value is None else bytes(value)) for name, value in headers]


def _summary(differences: DataFrame) -> tuple[dict[DifferenceKind, int], tuple[Difference, ...]]:
    """The number of differences of each kind, and examples."""
    numbered = differences.select(
        "*",
        sql.expr("count(*) OVER (PARTITION BY what)").alias("total"),
        sql.expr("row_number() OVER (PARTITION BY what ORDER BY source, place, detail)").alias("k"),
    )
    rows = sorted(numbered.where(sql.col("k") <= EXAMPLES).collect(), key=lambda row: (row.what, row.k))
    examples = tuple(Difference(DifferenceKind(row.what), row.source, row.id, row.place, row.detail) for row in rows)
    return {DifferenceKind(row.what): row.total for row in rows}, examples
