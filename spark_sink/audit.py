"""Audit of the tables: every unit is computed again from `D.components` and compared, so that lost, doubled or mixed records show.

Steps:

1. determine the range: from the log's start to the offsets that the workers' consumer group has committed, `read_committed` (W-49);
2. compute every fate again in the executors, a task for each partition (`uow.spark_sink.expectations`);
3. balance fingerprints of the expected rows and of the tables' rows, by group id (`uow.spark_sink.balance`). This is one query, and mostly all;
4. compute the ids that do not balance once more, in detail, and join them with the tables by source coordinates and `unit_id`
   (`uow.spark_sink.comparison`). Plain records have no coordinates: they are compared by content and order, partition by partition.

Only counts, a bounded number of ids and the examples of a report come to the driver.

Wall clocks cannot be computed again from the log: a worker may close a group by its wall clock once the partition is read to its end, and
if nothing was appended afterwards no record says when. Such a group (`due`) counts as closed if a record says so, which is the ledger, `D.outcomes`,
its unit, or its components in `D.errors`; that record must not be older than the deadline. Otherwise it is open. A recorded closing is right if the
deadline, counted from append times, had passed when it was written, if the group was incomplete then, and if no component that was
appended in time is missing from it (such a component would show up as rejected although it should have been held).

Commands are computed again at the point where the ledger says that they were decided (W-203). That needs the command in `D.commands`, and its
transaction and the one before it in the ledger. If `D.outcomes` says that a command did something, but it cannot be computed again because
one of these was deleted, or because it was decided after step 1, its id cannot be judged. Neither can ids of which a table has components outside
the range (deleted by retention, or processed after step 1). Such ids are left out on both sides and counted. Where retention has deleted the beginning
of a partition, its plain records are only checked for missing ones. The sink must have caught up: records that it has not written yet are reported
as missing.

An incremental audit takes the state that an audit without differences has left (`uow.spark_sink.audit_state`), and does the same steps for what came since:
records of the input from there on, rows of records of the output topics from there on. It computes the same fates as an audit from the beginning, since
the recomputation goes on where it stood, and what was on one side only is added to that side (`uow.spark_sink.balance`). Rows that were judged
before are not read again. An audit with differences leaves no state, unless they are accepted, so the next one judges the same once more.

Belongs here: the steps and the report's data. Does not belong here: printing (`uow.cli.audit_command`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import reduce
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NamedTuple

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as sql

from uow.schemas.error_classes import InternalError, StateCorruptedError, UowError
from uow.spark_sink import asides as set_asides
from uow.spark_sink import balance, comparison, expectations, recompute
from uow.spark_sink.audit_keys import AuditKeys
from uow.spark_sink.audit_state import AuditState, StateFolder, Unusable
from uow.spark_sink.balance import Sides, is_before
from uow.spark_sink.checkpoint import PlannedOffsets, StreamCheckpoint
from uow.spark_sink.comparison import DifferenceKind, compare
from uow.spark_sink.destination_rules import NO_RULES, DestinationRules
from uow.spark_sink.expectations import Expectations, mark_file
from uow.spark_sink.kafka import Cluster, OffsetSpan, begins, committed
from uow.spark_sink.prints import content
from uow.spark_sink.recompute import Fate
from uow.spark_sink.routed_inputs import RoutedInputs, RoutedMark
from uow.spark_sink.routed_places import Wrong
from uow.spark_sink.superseded import FORMER
from uow.spark_sink.tables import PLACE, DeltaTables, PresentRows, Table, with_nested
from uow.topics.catalogue import DestinationTopics
from uow.topics.headers import INPUT
from uow.topics.policies import DestinationPolicy, HandlingPolicy
from uow.topics.routes import RouteMatching

EXAMPLES: Final = 20
"""Number of differences of each kind that a report shows."""

_AUDITED: Final = (Table.UNITS, Table.COMPONENTS, Table.REJECTED, Table.PASSED, Table.UNREADABLE)

_MOST_IDS: Final = 10_000
"""Up to this number of ids the executors make details of these ids only; of more they make all, and the others are dropped afterwards."""


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
        since: Offset of each partition at which the range begins, if the audit went on from an earlier one; else None, and it begins at the log start.
        until: Offset of each partition at which the range ends.
        earlier: Time of that earlier audit, epoch ms.
        routed: Number of records of the routers' inputs in the range, by topic; each is a component, has passed, or was refused.
        set_aside: Group id, if the record has one, by place of each record of the range that was set aside: the code failed at it, or a command said so.
            It is in no unit.
        note: A reason why the whole was audited although an incremental audit was wanted, or why the next one cannot be incremental; empty for none.
    """

    destination: str
    expected: Mapping[int, Mapping[Fate, int]]
    found: Mapping[Fate, int]
    units: Mapping[str, int]
    left_out: int
    unread: int
    totals: Mapping[DifferenceKind, int]
    examples: tuple[Difference, ...] = ()
    since: Mapping[int, int] | None = None
    until: Mapping[int, int] = field(default_factory=dict)
    earlier: int | None = None
    routed: Mapping[str, int] = field(default_factory=dict)
    set_aside: Mapping[str, str | None] = field(default_factory=dict)
    note: str = ""

    @property
    def is_clean(self) -> bool:
        """True if there is no difference."""
        return not self.totals

    @property
    def received(self) -> int:
        """Number of records in the range, those included that an earlier audit left in open groups."""
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
        rules: Rules of the destination.
    """

    spark: SparkSession
    cluster: Cluster
    names: DestinationTopics
    policy: DestinationPolicy
    tables: DeltaTables
    rules: DestinationRules = NO_RULES

    def run(self, *, incremental: bool = False, accept: bool = False) -> AuditReport:
        """Makes the audit.

        Args:
            incremental: Go on from the last audit, if that is possible.
            accept: Leave the state for the next incremental audit also if there are differences.

        Raises:
            StateCorruptedError: There are no tables, or no topics, or retention deleted records of the range meanwhile.
        """
        if not all(map(self.tables.is_made, _AUDITED)):
            raise StateCorruptedError([], f"there are no tables below {self.tables.folder}", "run `uow sink` first")
        checkpoint = StreamCheckpoint(self.tables.checkpoint)
        # read before the end of the input: rows of records before it come from input before that end
        reach = checkpoint.offsets(checkpoint.written)
        span = committed(self.cluster, self.names.application, self.names.components)
        audits = self.tables.audits
        is_here = isinstance(audits, Path) and str(self.spark.sparkContext.master).startswith("local")
        store = StateFolder(Path(str(audits)))
        state, note = None, ""
        if incremental:
            state, note = (
                self._begin(store, span) if is_here else (None, f"{_WHOLE}: an audit elsewhere leaves no state")
            )
        try:
            leave = store.begin() if reach and is_here else None  # executors elsewhere would leave it elsewhere
        except OSError as error:  # who may read the tables need not write there
            leave, note = None, "; ".join(filter(None, (note, f"no state is left for the next audit ({error})")))
        try:
            if state is None:
                run = _Run(self, span, reach, leave)
            else:
                run = _Run(self, OffsetSpan(state.origin, span.end), reach, leave, state, store.folder / state.folder)
            report, ending = run.judge(is_accepted=accept)
            if isinstance(ending, AuditState):
                store.finish(ending)
                leave = None
            ended = ending if isinstance(ending, str) else ""
            return replace(report, note="; ".join(filter(None, (note, report.note, ended))))
        finally:
            if leave is not None:
                store.drop(leave)

    def _begin(self, store: StateFolder, span: OffsetSpan) -> tuple[AuditState | None, str]:
        """The state to go on from; if there is none, the reason."""
        try:
            state = store.load(_settings(self.cluster, self.names, self.policy))
        except Unusable as why:
            return None, f"{_WHOLE}: {why}"
        if span.end.keys() != state.ends.keys():
            return None, f"{_WHOLE}: {self.names.components} has another number of partitions than at the last audit"
        for partition, reached in state.ends.items():
            place = f"{self.names.components}/{partition}"
            if span.start[partition] > reached:
                return None, f"{_WHOLE}: retention has deleted records of {place} that no audit has judged"
            if span.end[partition] < reached:
                return None, f"{_WHOLE}: {place} was judged up to {reached}, and its committed offset is lower now"
        return state, ""


def _settings(cluster: Cluster, names: DestinationTopics, policy: DestinationPolicy) -> str:
    """Digest of all that a recomputation depends on beside the logs."""
    values = [getattr(policy, each.name) for each in fields(policy)]
    said = [sorted(each) if isinstance(each, frozenset) else each for each in values]
    return sha256(repr((version("uow"), names, cluster.registry_url, said)).encode()).hexdigest()


def unjudged(
    cluster: Cluster, names: DestinationTopics, policy: DestinationPolicy, tables: DeltaTables, *, incremental: bool
) -> int:
    """About the number of records that an audit reads.

    Args:
        cluster: As of `Audit`.
        names: As of `Audit`.
        policy: As of `Audit`.
        tables: As of `Audit`.
        incremental: As of `Audit.run`.

    Raises:
        StateCorruptedError: There is no such topic.
    """
    span = committed(cluster, names.application, names.components)
    if incremental and isinstance(tables.audits, Path):
        try:
            judged = StateFolder(tables.audits).load(_settings(cluster, names, policy)).ends
            return sum(max(0, end - judged.get(partition, 0)) for partition, end in span.end.items())
        except Unusable:
            pass
    return span.offsets


_WHOLE: Final = "everything was audited"

Stored = Mapping[Table, PresentRows]
"""The tables, of an incremental audit without those data files that the last one was done with."""


class _Balanced(NamedTuple):
    """The balance in numbers.

    Attributes:
        report: With all counts, without differences of single rows.
        keys: Number of keys by verdict and kind.
        passed: Number of plain records in each partition that the next incremental audit does not look at, without those before.
        has_residue: False if nothing is left for it.
    """

    report: AuditReport
    keys: Mapping[tuple[str, str], int]
    passed: Mapping[int, int]
    has_residue: bool


@dataclass(frozen=True, slots=True)
class _Run:
    """One audit.

    Attributes:
        audit: The destination.
        span: Range of the input; of an incremental audit from where the first audit of the chain began.
        reach: The offsets that the sink had written.
        leave: Folder for the state at the end; None for none.
        state: The state to go on from; None for an audit from the beginning.
        begin: Its folder.
    """

    audit: Audit
    span: OffsetSpan
    reach: PlannedOffsets
    leave: Path | None
    state: AuditState | None = None
    begin: Path | None = None

    @property
    def spark(self) -> SparkSession:
        return self.audit.spark

    @property
    def names(self) -> DestinationTopics:
        return self.audit.names

    @property
    def keys(self) -> AuditKeys:
        return AuditKeys.of(self.audit.rules, self.names, self.span)

    def judge(self, *, is_accepted: bool) -> tuple[AuditReport, AuditState | str]:
        """The report; and the state for the next audit, or the reason why there is none."""
        audit, span, state = self.audit, self.span, self.state
        ledgers = begins(audit.cluster, self.names.closed_changelog) if state is None else {}
        cut = frozenset(partition for partition, start in ledgers.items() if start)
        stored = self._stored()
        own = self._rows(stored)
        is_nested = "components" in own[Table.UNITS].columns
        has_none = self.state is None and stored[Table.REJECTED].is_empty
        asides, refuted, unproved = ({}, (), 0) if has_none else self._asides()
        wanted = Expectations(
            audit.cluster, self.names, audit.policy, span, self.begin, self.leave, cut, audit.rules, is_nested, asides
        )
        partitions = self.spark.range(0, len(span.end), 1, len(span.end))
        expected = partitions.mapInArrow(wanted.entries(), expectations.ENTRIES)
        passed = {} if state is None else state.passed
        keys = balance.balance(
            Sides(
                *(expected, own, self.names, span, self.reach, passed, self._residue(), self.keys),
                empty={table for table, found in stored.items() if found.is_empty},
            )
        ).persist()
        try:
            balanced = self._balanced(keys, own)
            report = balanced.report
            bad = {balance.DIFFERENT} if report.unread else {balance.DIFFERENT, balance.LATER}
            kinds = {kind for verdict, kind in balanced.keys if verdict in bad}
            if kinds:
                wrong = _leaf(
                    keys.where(sql.col("verdict").isin(*bad)).select("kind", "key", "is_owed", "is_early", "lacking")
                )
                ids = None
                if sum(balanced.keys.get((verdict, expectations.OF_ID), 0) for verdict in bad) <= _MOST_IDS:
                    ids = frozenset(row.key for row in wrong.where(sql.col("kind") == expectations.OF_ID).collect())
                rows = partitions.mapInArrow(replace(wanted, leave=None).rows(ids), expectations.ROWS)
                report = self._compared(report, rows, wrong, kinds, self._with_components(own))
            report, routed = self._with_inputs(report)
            places = {
                f"{self.names.components}/{partition}/{offset}": None if why.id is None else why.id.decode()
                for partition, found in sorted(asides.items())
                for offset, why in sorted(found.items())
                if report.since is None or offset >= report.since[partition]
            }
            counts = Counter(report.totals) + Counter({DifferenceKind.CLAIMED: len(refuted)})
            examples = (*refuted[:EXAMPLES], *report.examples)
            report = replace(report, set_aside=places, totals=dict(counts), examples=examples)
            if unproved:
                note = f"{unproved} records count as set aside, as {self.names.rejected} says: no ledger is left, or none is kept, that could refute it"
                report = replace(report, note="; ".join(filter(None, (report.note, note))))
            return report, self._ending(keys, balanced, report, stored, is_accepted, routed)
        finally:
            keys.unpersist()

    def _with_inputs(self, report: AuditReport) -> tuple[AuditReport, RoutedMark]:
        """The report with the routers' inputs, and the mark for the next audit of them."""
        audit, mark = self.audit, RoutedMark(**({} if self.state is None else self.state.routed))
        rules = audit.rules
        if not rules.inputs:
            return report, mark
        tables = [DeltaTables(audit.tables.root, name) for name in rules.routed]
        if lacking := [each.destination for each in tables if not each.is_made(Table.REJECTED)]:
            note = f"routers' inputs were not looked at: there are no tables of {', '.join(lacking)}, where their records may be too"
            return replace(report, note=note), mark
        routed = RoutedInputs(self.spark, audit.cluster, self.names.application, rules.inputs, tables)
        found, mark = routed.judge(mark)
        kinds = {
            Wrong.LOST: DifferenceKind.MISSING,
            Wrong.DOUBLED: DifferenceKind.DOUBLED,
            Wrong.UNKNOWN: DifferenceKind.UNEXPECTED,
        }
        note = f"{found.unjudged} records of routers' inputs could not be judged: retention has deleted a part of what became of them"
        return replace(
            report,
            routed=found.received,
            totals=dict(Counter(report.totals) + Counter({kinds[what]: n for what, n in found.counts.items()})),
            examples=report.examples
            + tuple(
                Difference(kinds[what], topic, None, f"{topic}/{partition}/{offset}", what.value)
                for what, topic, partition, offset in found.examples
            ),
            note=note if found.unjudged else "",
        ), mark

    def _asides(self) -> tuple[dict[int, dict[int, UowError]], Sequence[Difference], int]:
        """Why records of the range were set aside, by partition and offset, as `D.rejected` says and the ledger does not refute; what it refutes; and how many it neither refutes nor proves."""
        found: dict[int, dict[int, UowError]] = {}
        rows = self.audit.tables.read(self.spark, Table.REJECTED).where(
            (sql.col("topic") == self.names.rejected)
            & (sql.col("source_topic") == self.names.components)
            & sql.expr(_IS_ASIDE)
        )
        columns = "source_partition", "source_offset", "id", "error_class", "error_case"
        for partition, offset, group_id, name, case in rows.select(*columns).toLocalIterator():
            start, end = (of.get(partition, 0) for of in (self.span.start, self.span.end))
            if start <= offset < end:
                error = InternalError if name == InternalError.__name__ else UowError
                why = error(case=case or "", id=None if group_id is None else group_id.encode())
                found.setdefault(partition, {})[offset] = why
        refuted, unproved = list[Difference](), 0
        holds = self.audit.policy.handling_policy is not HandlingPolicy.PASS_THROUGH
        for partition, whys in found.items():
            ledger = set_asides.read_ledger(self.audit.cluster, self.names.closed_changelog, partition)
            for offset, claim in set_asides.judged(tuple(whys), ledger, holds=holds).items():
                unproved += claim in (set_asides.Claim.OPEN, set_asides.Claim.UNTOLD)
                if claim is not set_asides.Claim.REFUTED:
                    continue
                why = whys.pop(offset)
                refuted.append(
                    Difference(
                        DifferenceKind.CLAIMED,
                        self.names.rejected,
                        None if why.id is None else why.id.decode(errors="replace"),
                        f"{self.names.components}/{partition}/{offset}",
                        f"set aside, as a record there claims ({type(why).__name__}, {why.case}); not so: {claim.value}",
                    )
                )
        return found, refuted, unproved

    def _stored(self) -> Stored:
        done = {} if self.state is None else self.state.done
        return {
            table: self.audit.tables.present(self.spark, table, frozenset(done.get(table, ()))) for table in _AUDITED
        }

    def _rows(self, stored: Stored) -> dict[Table, DataFrame]:
        """The rows of each table that count: of an incremental audit those from where the last one had come."""
        # Spark knows that nothing is false; an empty table it would read
        count = {table: found.rows.where("false") if found.is_empty else found.rows for table, found in stored.items()}
        if self.state is not None:
            count = {table: rows.where(~is_before(self.state.reach, PLACE[table][:3])) for table, rows in count.items()}
        for name, kind in (("rule", "string"), ("document", "binary")):  # the sink adds them when it starts
            if name not in count[Table.UNITS].columns:
                count[Table.UNITS] = count[Table.UNITS].withColumn(name, sql.lit(None).cast(kind))
        # what a router refused is of its inputs, and a topic that rules only share has records of others
        is_routers = (sql.col("source_topic") != self.names.components) & sql.expr(_HAS_INPUT)
        count[Table.REJECTED] = count[Table.REJECTED].where(~sql.coalesce(is_routers, sql.lit(False)))
        count[Table.PASSED] = count[Table.PASSED].where(~self.keys.is_free())
        return count

    def _with_components(self, own: Mapping[Table, DataFrame]) -> dict[Table, DataFrame]:
        """These rows, with the components that are in rows of `units` among those of `components`."""
        components = with_nested(self.spark, own[Table.COMPONENTS], own[Table.UNITS])
        return {**own, Table.COMPONENTS: components}

    def _residue(self) -> DataFrame | None:
        """The residue that the last audit left; None if it left none."""
        if self.begin is None or not (self.begin / _RESIDUE).exists():
            return None
        return self.spark.read.schema(balance.RESIDUE).parquet(str(self.begin / _RESIDUE))

    def _with_earlier(
        self, tables: Mapping[Table, DataFrame], rows: DataFrame, wrong: DataFrame
    ) -> dict[Table, DataFrame]:
        """The tables' rows for a comparison in detail.

        With earlier rows of wrong ids that were not expected yet when the last audit saw them, and without plain records that were.

        Args:
            tables: Rows from where the last audit had come.
            rows: Columns `uow.spark_sink.expectations.ROWS`.
            wrong: Kind and key of what does not balance.
        """
        assert self.state is not None
        early = wrong.where("kind = 'id' AND is_early").select(self._id_of_key().alias("id")).distinct()
        units = rows.where(sql.col("kind") == recompute.GROUP).select("unit_id").distinct()
        places = rows.where(sql.col("kind") == recompute.RECORD)
        places = places.select(sql.col("partition").alias("source_partition"), sql.col("offset").alias("source_offset"))
        found = {**tables}
        if not early.isEmpty():
            for table, on, of in (
                (Table.UNITS, "unit_id", units),
                (Table.COMPONENTS, "unit_id", units),
                (Table.REJECTED, ["source_partition", "source_offset"], places.distinct()),
            ):
                whole = self.audit.tables.read(self.spark, table)
                before = whole.where(is_before(self.state.reach, PLACE[table][:3])).join(early, "id", "left_semi")
                found[table] = tables[table].unionByName(
                    before.join(of, on, "left_semi").select(*tables[table].columns)
                )
        if (residue := self._residue()) is None:
            return found
        owed = residue.where((sql.col("kind") == expectations.PLAIN) & (sql.col("left_side") > 0))
        owed = owed.select(sql.substring_index("key", "/", 1).cast("int").alias("partition"), "key").distinct()
        counts = {row.partition: row["count"] for row in owed.groupBy("partition").count().collect()}
        if counts:
            rank = sql.expr("row_number() OVER (PARTITION BY partition ORDER BY offset)")
            first = sql.get(
                sql.array(*(sql.lit(counts.get(p, 0)) for p in range(len(self.span.end)))), sql.col("partition")
            )
            passed = tables[Table.PASSED].withColumn("rank", rank)
            found[Table.PASSED] = passed.where(sql.col("rank") > first).drop("rank")
        return found

    def _id_of_key(self) -> Column:
        """The group id of a key."""
        is_by_rule = sql.substring_index("key", "/", 1).isin(*self.keys.rules) if self.keys.rules else sql.lit(False)
        return sql.when(is_by_rule, sql.regexp_replace("key", "@[0-9]+$", "")).otherwise(sql.col("key"))

    def _ending(
        self,
        keys: DataFrame,
        balanced: _Balanced,
        report: AuditReport,
        stored: Stored,
        is_accepted: bool,
        routed: RoutedMark,
    ) -> AuditState | str:
        """The state after this audit, or the reason why there is none."""
        if not self.reach:
            return "the sink's checkpoint is not beside the tables, so the next audit cannot be incremental"
        if self.leave is None or not (report.is_clean or is_accepted):
            return ""
        large = [partition for partition in self.span.end if not mark_file(self.leave, partition).exists()]
        if large:
            return (
                f"open groups of partition {large[0]} are too large to be kept, so the next audit cannot be incremental"
            )
        differs = sql.col("verdict") == balance.DIFFERENT
        settled = keys.where(~differs) if not report.is_clean else keys.where(~differs | (sql.col("left") != 0))
        if balanced.has_residue:
            balance.residue_of(settled).coalesce(1).write.parquet(str(self.leave / _RESIDUE))
        passed = {} if self.state is None else {**self.state.passed}
        for partition, count in balanced.passed.items():
            passed[partition] = passed.get(partition, 0) + count
        before: PlannedOffsets = {} if self.state is None else self.state.reach
        return AuditState(
            _settings(self.audit.cluster, self.names, self.audit.policy),
            int(time.time() * 1000),
            self.span.start,
            self.span.end,
            {topic: _highest(before.get(topic, {}), self.reach.get(topic, {})) for topic in {**before, **self.reach}},
            passed,
            self._done(stored),
            self.leave.name,
            asdict(routed),
        )

    def _done(self, stored: Stored) -> dict[str, list[str]]:
        """Names of the data files of each table that have no row which the next incremental audit looks at."""
        found: dict[str, list[str]] = {table: [*of.done] for table, of in stored.items()}
        looks = [
            of.rows.select(
                sql.lit(table.value).alias("table"),
                sql.col("_metadata.file_path").alias("file"),
                is_before(self.reach, PLACE[table][:3]).alias("is_before"),
            )
            for table, of in stored.items()
            if not of.is_empty
        ]
        if not looks:
            return found
        files = (
            reduce(DataFrame.unionAll, looks).groupBy("table", "file").agg(sql.bool_and("is_before").alias("is_done"))
        )
        for row in files.where("is_done").collect():
            found[row.table].append(row.file.rpartition("/")[2])
        return found

    def _balanced(self, keys: DataFrame, own: Mapping[Table, DataFrame]) -> _Balanced:
        counts: dict[int, dict[Fate, int]] = {}
        units: dict[str, int] = {}
        found = dict.fromkeys(balance.FATES, 0)
        of_kind: dict[tuple[str, str], int] = {}
        passed: dict[int, int] = {}
        unread = left = 0
        is_count = sql.col("verdict") == expectations.COUNT
        is_plain = sql.col("kind") == expectations.PLAIN
        name = sql.when(is_count, sql.col("key")).when(is_plain, sql.substring_index("key", "/", 1))
        sums = [sql.sum(fate).alias(fate) for fate in balance.FATES]
        sums += [sql.sum("judged").alias("judged"), sql.count_if(balance.is_left()).alias("left")]
        by = keys.groupBy("verdict", "kind", name.alias("name"))
        for row in by.agg(sql.count("*").alias("keys"), sql.sum("expected").alias("number"), *sums).collect():
            kind_of = (row.verdict, row.kind)
            of_kind[kind_of] = of_kind.get(kind_of, 0) + row["keys"]
            left += row.left
            for fate in balance.FATES:
                found[fate] += row[fate]
            if row.kind == expectations.PLAIN:
                passed[int(row.name)] = passed.get(int(row.name), 0) + row.judged
            if row.verdict != expectations.COUNT:
                continue
            kind, partition, of = row.name.split("/")
            if kind == expectations.UNREAD:
                unread += row.number
            elif kind == recompute.GROUP:
                units[of] = units.get(of, 0) + row.number
            else:
                counts.setdefault(int(partition), {})[Fate(of)] = row.number
        policy = self.audit.policy
        if policy.routes and policy.route_matching is RouteMatching.ALL:
            corrected = own[Table.UNITS].where(sql.expr(FORMER).isNotNull()).select("unit_id").distinct()
            query = compare(
                self.spark,
                comparison.DELIVERED,
                bounds=self._bounds(),
                components=self._with_components(own)[Table.COMPONENTS],
                corrected=corrected,
            )
            found[Fate.DELIVERED] = query.collect()[0].n
        lost = [(p, of[Fate.UNACCOUNTED]) for p, of in sorted(counts.items()) if Fate.UNACCOUNTED in of]
        what, topic = DifferenceKind.UNACCOUNTED, self.names.components
        examples = tuple(
            Difference(what, topic, None, f"{topic}/{p}", f"the recomputation gave no fate to {n} records")
            for p, n in lost
        )
        totals = {what: sum(n for _, n in lost)} if lost else {}
        overtaken = balance.overtaken(keys)
        if first := overtaken.take(EXAMPLES):
            totals[DifferenceKind.ORDER] = overtaken.count()
            place = f"{self.names.units}/{{}}/{{}}"
            examples += tuple(
                Difference(
                    DifferenceKind.ORDER,
                    "units",
                    row.key,
                    place.format(row.partition, row.offset),
                    f"stands before offset {row.before}, whose unit closed earlier",
                )
                for row in first
            )
        in_order = {partition: counts[partition] for partition in sorted(counts)}
        destination = self.names.destination
        left_out = of_kind.get((balance.LEFT_OUT, expectations.OF_ID), 0)
        report = AuditReport(
            destination, in_order, found, units, left_out, unread, totals, examples, until=self.span.end
        )
        if self.state is not None:
            report = replace(report, since=self.state.ends, earlier=self.state.at)
        return _Balanced(report, of_kind, passed, left > 0)

    def _bounds(self) -> DataFrame:
        bounds = [(p, self.span.start[p], end) for p, end in self.span.end.items()]
        return self.spark.createDataFrame(bounds, "partition INT, start BIGINT, stop BIGINT")

    def _compared(
        self,
        report: AuditReport,
        rows: DataFrame,
        wrong: DataFrame,
        kinds: set[str],
        tables: Mapping[Table, DataFrame],
    ) -> AuditReport:
        """The report with the differences of what does not balance.

        Args:
            report: The counts.
            rows: Columns `uow.spark_sink.expectations.ROWS`, of all wrong ids at least.
            wrong: Kind and key of what does not balance, `is_owed`, `is_early` and `lacking`.
            kinds: The kinds among them.
            tables: The tables.
        """
        every = rows.persist()
        settled = every
        of_id, of_place = (
            wrong.where((sql.col("kind") == kind) & ~sql.col("is_owed")).select(sql.col("key").alias("wrong_key"))
            for kind in (expectations.OF_ID, expectations.OF_PLACE)
        )

        def of_groups(frame: DataFrame, key: Column) -> DataFrame:
            return frame.withColumn("wrong_key", key).join(of_id, "wrong_key", "left_semi").select(*frame.columns)

        def chosen(frame: DataFrame, key: Column, place: str, is_placed: Column) -> DataFrame:
            """Rows of wrong groups; of those that have none, or are known by their places, the ones at wrong places."""
            is_placed = sql.col("id").isNull() | is_placed
            placed = frame.where(is_placed).withColumn("wrong_key", sql.expr(place))
            placed = placed.join(of_place, "wrong_key", "left_semi").select(*frame.columns)
            return of_groups(frame.where(~is_placed), key).unionByName(placed)

        keys = self.keys
        is_refused = (sql.col("kind") == recompute.RECORD) & sql.col("fate").isin(*_REFUSED)

        if self.state is not None:
            tables = self._with_earlier(tables, every, wrong)
        is_alone = sql.col("kind").isin(expectations.REROUTED, expectations.LOST)
        is_plain = sql.col("fate").isin(Fate.PASSED, Fate.REROUTED) & ~is_alone
        try:
            judged = chosen(
                every.where(~is_alone & ~is_plain),
                keys.group(),
                "concat_ws('/', partition, offset)",
                keys.by_rule() & is_refused,
            )
            named = {table.value: frame for table, frame in tables.items()}
            first_release = sql.col("topic") == self.names.units
            refused = chosen(
                tables[Table.REJECTED].where(~first_release),
                sql.col("id"),
                "concat_ws('/', source_partition, source_offset)",
                keys.by_rule(),
            )
            if not every.where("due IS NOT NULL").isEmpty():
                settled = compare(self.spark, comparison.SETTLED, rows=judged, **named).persist()
                judged = _leaf(settled)
            inputs: dict[str, Any] = {
                **named,
                Table.UNITS.value: of_groups(tables[Table.UNITS], keys.group()),
                Table.COMPONENTS.value: of_groups(tables[Table.COMPONENTS], keys.group()),
                Table.REJECTED.value: refused.unionByName(tables[Table.REJECTED].where(first_release)),
                "fates": judged.where(sql.col("kind") == recompute.RECORD).select(*recompute.Row._fields),
                "groups": judged.where(sql.col("kind") == recompute.GROUP),
                "reroutes": every.where(sql.col("kind") == expectations.REROUTED),
                "lost": every.where(sql.col("kind") == expectations.LOST),
                "bounds": self._bounds(),
                "topic": self.names.components,
                "units_topic": self.names.units,
                "rejected_topic": self.names.rejected,
                "errors_topic": self.names.errors,
                "destination": self.names.destination,
                "is_moving": report.unread > 0,
            }
            plain = inputs | {"fates": every.where(is_plain).select(*recompute.Row._fields)}
            queries: list[tuple[str, str, Mapping[str, Any]]] = []
            if kinds & {expectations.OF_ID, expectations.OF_PLACE}:
                queries += [
                    (comparison.COMPONENTS, content("a.headers", "a."), inputs),
                    (comparison.UNITS.replace("{is_free}", _among(keys.free_topics)), "", inputs),
                    (comparison.REFUSED, content("slice(a.headers, 1, e.header_count)", "a."), inputs),
                    (comparison.CLOSINGS, "", inputs),
                ]
            if kinds & {expectations.PLAIN, expectations.SOME_PLAIN}:
                queries.append((comparison.PASSED, content(), plain))
            if expectations.UNREADABLE in kinds:
                queries.append((comparison.UNREADABLE, "", inputs))
            if expectations.REROUTED in kinds:
                queries.append((comparison.REROUTED, "", plain))
            found = reduce(
                DataFrame.unionAll, (compare(self.spark, query, content=text, **of) for query, text, of in queries)
            )
            found = compare(self.spark, comparison.REFUSED_BY_BROKER, found=found, **inputs)
            if self.state is not None:
                found = found.unionAll(self.spark.sql(_OWED, wrong=wrong))
            totals, examples = _summary(found)
            by_table = _told_by_table(settled) if settled is not every else []
        finally:
            every.unpersist()
            settled.unpersist()
        return replace(
            _corrected(report, by_table),
            totals=dict(Counter(report.totals) + Counter(totals)),
            examples=report.examples + examples,
        )


def _leaf(frame: DataFrame) -> DataFrame:
    """The same rows, as a leaf of a plan.

    A plan that occurs at several places of a query is analyzed at each, which took most of an audit of little data that finds something.
    """
    spark = frame.sparkSession
    return DataFrame(spark._jsparkSession.createDataFrame(frame._jdf.toJavaRDD(), frame._jdf.schema()), spark)


_RESIDUE: Final = "residue"
_REFUSED: Final = (Fate.REJECTED, Fate.EXPIRED, Fate.CANCELLED, Fate.FAILED)
"""Fates of components whose rows are in `rejected`."""
_IS_ASIDE: Final = "(error_class = 'InternalError' OR (error_class = 'UowError' AND error_case = 'command'))"
_HAS_INPUT: Final = f"array_contains(headers.name, '{INPUT}')"


def _among(topics: Sequence[str]) -> str:
    """SQL that is true for a unit in one of these topics, whose names have no character that SQL would read."""
    return f"coalesce(a.topic IN ({', '.join(map(repr, topics))}), false)" if topics else "false"


def _highest(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """The higher offset of each partition."""
    return {partition: max(one.get(partition, 0), other.get(partition, 0)) for partition in {**one, **other}}


_OWED: Final = """
SELECT CASE WHEN lacking > 0 THEN 'missing' WHEN lacking < 0 THEN 'unexpected' ELSE 'wrong content' END AS what, kind AS source,
  IF(kind = 'id', key, NULL) AS id, key AS place, 'differs from what the last audit left; only an audit from the beginning can tell more' AS detail
FROM {wrong} WHERE is_owed
"""
"""Differences of what the last audit had computed, and whose rows lay beyond their range then: nobody computes their details again."""


def _told_by_table(settled: DataFrame) -> list[Row]:
    """Numbers of groups and records of groups that only the tables know to be closed."""
    told = settled.where("is_told_by_table")
    return told.groupBy("kind", "partition", "fate", "outcome").count().collect()


def _corrected(report: AuditReport, told: list[Row]) -> AuditReport:
    """The report with these groups and records under their fates, which were counted as open."""
    expected = {partition: dict(counts) for partition, counts in report.expected.items()}
    units = dict(report.units)
    for kind, partition, fate, outcome, count in told:
        if kind == recompute.RECORD:
            counts = expected[partition]
            counts[Fate.OPEN] -= count
            counts[Fate(fate)] = counts.get(Fate(fate), 0) + count
        else:
            units["open"] -= count
            units[outcome] = units.get(outcome, 0) + count
    return replace(report, expected=expected, units={outcome: count for outcome, count in units.items() if count})


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
