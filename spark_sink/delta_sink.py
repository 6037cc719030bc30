"""The pipeline: one structured stream per destination, from its topics into its Delta tables, exactly once.

A batch holds records of `D.units` and the topics of its routes, of `D.rejected`, `D.errors` and `D.outcomes`. Steps of a batch:

1. in one job, read the records, decode those that are plain units, append them to `units`, and count all (`BatchLook`);
2. if there are others (refused, passed, unreadable, in another encoding or shape), keep them, choose the one table each goes to, and append them;
3. mark the rows of units that were emitted again (`uow.spark_sink.superseded`);
4. record the batch in the checkpoint as done.

Each append goes under the name of the stream and the number of the batch. After a crash before step 4 the same batch runs again, with the same
records: tables that know its number skip it, and rows that a table has are left out (`uow.spark_sink.overlap`), as they are with a new checkpoint,
when everything is read from the beginning.

Belongs here: starting, watching and stopping the streams. Does not belong here: decoding records (`uow.spark_sink.decode`), signals and
output (`uow.cli.sink_command`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.query import StreamingQuery

from uow.schemas.error_classes import StateCorruptedError, UowError
from uow.spark_sink.batch_look import CLOSED_AT, BatchLook, is_encoded
from uow.spark_sink.checkpoint import PlannedBatch, StreamCheckpoint
from uow.spark_sink.decode import (
    REFERS,
    ROWS,
    RecordDecoder,
    frames_of,
    plain_units,
    tables_of,
    with_components,
    with_frame,
    with_table,
)
from uow.spark_sink.destination_rules import NO_RULES, NONE, DestinationRules
from uow.spark_sink.folders import Folder
from uow.spark_sink.kafka import (
    Backlog,
    Cluster,
    backlog,
    between,
    stream,
    within,
)
from uow.spark_sink.kafka_security import jvm_properties
from uow.spark_sink.lineage import TableLineage
from uow.spark_sink.monitor import QUERY
from uow.spark_sink.overlap import Overlap
from uow.spark_sink.superseded import KnownUnits, hashes, hashes_of, known_units, mark
from uow.spark_sink.tables import ComponentsForm, DeltaTables, Table, append_once, writer_name
from uow.spark_sink.writers import writer_of
from uow.topics.catalogue import DestinationTopics
from uow.topics.policies import DestinationPolicy
from uow.topics.routes import Route, unit_topics

BATCH_BYTES: Final = 512 << 20
"""Size of a batch by the mean size of the first records. Nothing of plain units is kept, so memory does not depend on it; a batch takes seconds."""
FEWEST_RECORDS: Final = 1_000
MOST_RECORDS: Final = 200_000
"""Bounds of the number of records in a batch, over all topics of a destination; the second also where no record could be read yet."""
TASK_RECORDS: Final = 5_000
"""About the smallest number of records for a task of its own."""
LOAD_RECORDS: Final = 50_000
"""Backlog from which on optimisations pay."""

_AVRO: Final = (
    "-Dorg.apache.avro.fastread=true",
    "-Dorg.apache.avro.limits.bytes.maxLength=134217728",
    "-Dorg.apache.avro.limits.string.maxLength=134217728",
    "-Dorg.apache.avro.limits.collectionItems.maxLength=16777216",
)
"""Avro's faster reader, which resolves schemas once. A few malformed bytes can claim a string or an array of gigabytes, and Avro allocates that before it
finds the end of the data. The limits are above anything that fits into a record of a topic."""
_QUICK_JVM: Final = ("-XX:+UseSerialGC",)
_ONE_COMPILER: Final = ("-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=256m")
"""With one compiler the JVM reserves only a fifth of the code cache: after some hundred queries it is full, and Spark ends."""
ONE_PASS: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.ui.explainMode": "codegen",
}
"""Properties of the sink's session. Decoding and checking make one generated method of more than the 8,000 bytes up to which HotSpot compiles
methods, so that whole-stage code would be interpreted for ever; without it each expression has a method of its own. Spark describes each query by a text for
its pages; of all forms that of its whole-stage code, of which there is none, takes no time."""
_QUICK_SPARK: Final = {
    **ONE_PASS,
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.files.minPartitionNum": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
}
"""Settings that turn off optimisations which do not pay in a short run. They save half the CPU of a first batch, and of an audit."""
_NO_PLACES: Final = {"spark.python.sql.dataFrameDebugging.enabled": "false"}
"""No place in Python is recorded for each expression, which costs more than making it."""


_LOAD_JVM: Final = (
    "-XX:+UseParallelGC",
    "-XX:Tier4InvocationThreshold=25000",
    "-XX:Tier4MinInvocationThreshold=3000",
    "-XX:Tier4CompileThreshold=75000",
    "-XX:Tier4BackEdgeThreshold=200000",
)
"""The second compiler, which takes a third of a load's CPU, is for code that is called for each record: it begins after five times as many calls as it
does by default."""
_LOAD_SPARK: Final = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.databricks.delta.snapshotPartitions": "1",
}
_UNIQUE: Final = (
    *("id", "unit_id", "key", "value", "offset", "timestamp", "opened_at", "closed_at", "expires_at"),
    *("headers.list.element.value", "source_offset", "unit_offset"),
    *(f"components.list.element.{name}" for name in ("component_id", "key", "value", "timestamp", "source.offset")),
    "components.list.element.headers.list.element.value",
)
"""Columns without a Parquet dictionary: of values that hardly repeat it is made, grows too large, and is thrown away, for two fifths of the time."""
_PARQUET: Final = {f"spark.hadoop.parquet.enable.dictionary#{column}": "false" for column in _UNIQUE} | {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.hadoop.parquet.block.size.row.check.min": "10",
    "spark.hadoop.parquet.page.size.row.check.min": "10",
    "spark.hadoop.parquet.size.statistics.enabled": "false",
}
"""Parquet looks at the size of what it holds only after so many rows, 100 by default; a unit may have ten megabytes. Timestamps as integers have
smallest and largest values in Parquet files, which those of Spark's default (`INT96`) lack."""


def settings(*, is_short: bool, kafka: Mapping[str, str] | None = None, one_compiler: bool = False) -> dict[str, str]:
    """Spark properties of a session for the jobs of this package.

    Args:
        is_short: True for a run too short for optimisations to pay.
        kafka: librdkafka properties of the cluster.
        one_compiler: True for a longer one whose tasks do too little in the JVM for its second compiler to pay.
    """
    both = [*_AVRO, *(f"-D{name}={value}" for name, value in jvm_properties(kafka or {}).items())]
    return {
        "spark.driver.extraJavaOptions": " ".join(
            [*both, *(_QUICK_JVM if is_short else _LOAD_JVM), *(_ONE_COMPILER if is_short or one_compiler else ())]
        ),
        "spark.executor.extraJavaOptions": " ".join(both),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "2000",
        **_NO_PLACES,
        **_PARQUET,
        **(_QUICK_SPARK if is_short else _LOAD_SPARK),
    }


def is_small(
    cluster: Cluster,
    checkpoints_of: Callable[[str], Sequence[Folder]],
    application: str,
    destinations: Mapping[str, DestinationPolicy],
    rules: Mapping[str, DestinationRules] = NONE,
) -> bool:
    """True if a run that ends with the present records is too short for optimisations to pay.

    Args:
        cluster: The cluster.
        checkpoints_of: The checkpoints of a destination's streams.
        application: Name of the application.
        destinations: Policy by destination.
        rules: Rules of those that have any.

    Raises:
        StateCorruptedError: A topic is missing.
    """
    found = 0
    for name, policy in destinations.items():
        topics = _topics(DestinationTopics(application, name), policy.routes, rules.get(name, NO_RULES))
        for checkpoint in map(StreamCheckpoint, checkpoints_of(name)):
            found += backlog(cluster, topics, checkpoint.offsets(checkpoint.planned)).records
    return found < LOAD_RECORDS


def _topics(names: DestinationTopics, routes: tuple[Route, ...], rules: DestinationRules) -> list[str]:
    """The topics of a destination's stream."""
    return [*unit_topics(routes, names.units, rules.targets), names.rejected, names.errors, names.outcomes]


def batch_records(behind: Backlog) -> int:
    """The largest number of records in a batch."""
    if not behind.record_bytes:
        return MOST_RECORDS
    return max(FEWEST_RECORDS, min(BATCH_BYTES // behind.record_bytes, MOST_RECORDS))


TRIGGER: Final = "1 second"
_TOLD_CHARS: Final = 1000
STOP_SECONDS: Final = 60.0
"""Time that a stop waits for the present batch; an interrupted batch runs again at the next start."""


class Written(NamedTuple):
    """The result of a batch.

    Attributes:
        records: Number of records.
        closed_at: Latest closing of a unit among them, epoch seconds; None without one, or where it is not known.
    """

    records: int
    closed_at: float | None = None

    def and_also(self, other: Written) -> Written:
        """Both results as one."""
        known = [each.closed_at for each in (self, other) if each.closed_at is not None]
        return Written(self.records + other.records, max(known, default=None))


Progress = Callable[[str, Written], None]
"""Called after each batch with the title of the stream and the batch's result."""


@dataclass(frozen=True, slots=True)
class DeltaSink:
    """The stream from one destination's topics to its tables.

    Attributes:
        spark: The session.
        cluster: The cluster to read from.
        names: Topics of the destination.
        tables: The tables to write.
        routes: Routes of the destination, whose topics have units too.
        forms_units: True if it forms units; otherwise none of its records is one, whatever its sender claims (W-65).
        rules: Its rules, whose target topics have units too.
    """

    spark: SparkSession
    cluster: Cluster
    names: DestinationTopics
    tables: DeltaTables
    routes: tuple[Route, ...] = ()
    forms_units: bool = True
    rules: DestinationRules = NO_RULES

    @property
    def title(self) -> str:
        """Name of the stream, for people."""
        return self.names.destination

    @property
    def unit_topics(self) -> list[str]:
        """The topics that have units."""
        return unit_topics(self.routes, self.names.units, self.rules.targets)

    def start(self, *, once: bool, progress: Progress = lambda destination, written: None) -> StreamingQuery:
        """Starts the stream.

        Args:
            once: Take what is committed now and end, instead of going on until stopped.
            progress: Called after each batch.

        Raises:
            StateCorruptedError: Tables are missing, or the checkpoint belongs to others.
        """
        self.tables.upgrade(self.spark, self.names.outcomes)
        self.tables.check()
        topics = _topics(self.names, self.routes, self.rules)
        lineage = TableLineage(self.cluster, self.tables.checkpoint, topics, self.spark, self.tables)
        lineage.check()
        overlap = Overlap.of(self.spark, self.cluster, self.tables, topics)
        known = known_units(self.spark, self.tables, self.unit_topics)
        self.tables.make(self.spark)
        lineage.save()
        form = self.tables.form_of(self.spark)
        decoder = RecordDecoder(self.spark, writer_of(self.cluster.registry_url), self.names.destination, self.rules)
        checkpoint = StreamCheckpoint(self.tables.checkpoint)
        planned = checkpoint.planned
        most = batch_records(backlog(self.cluster, topics, checkpoint.offsets(planned)))

        def batch(records: DataFrame, number: int) -> None:
            plan = checkpoint.batch(number, is_repeated=number <= planned)
            # each task costs as much as some thousand records, and writes a file
            few = records.coalesce(plan.offsets // TASK_RECORDS + 1)
            written = SinkBatch(self, few, number, plan, decoder, form, overlap.filter(plan), known)
            progress(self.names.destination, written.write())

        records = stream(self.spark, self.cluster, topics, most)
        return run_batches(records, QUERY + self.names.destination, self.tables.checkpoint, batch, once=once)

    def finish(self) -> None:
        """Makes the tables that are missing: the stream has ended well, maybe before its first batch."""
        self.tables.make(self.spark)

    def fetch(self, parts: DataFrame) -> DataFrame:
        """See `referred`."""
        return referred(self.spark, self.cluster, self.names.components, parts)


def run_batches(
    records: DataFrame, name: str, checkpoint: Folder, batch: Callable[[DataFrame, int], None], *, once: bool
) -> StreamingQuery:
    """Starts a stream.

    Args:
        records: A streaming frame.
        name: Name of the query.
        checkpoint: Folder in which Structured Streaming stores its position.
        batch: Called with each batch and its number.
        once: Take what is committed now and end, instead of going on until stopped.
    """
    writer = records.writeStream.queryName(name).foreachBatch(batch).option("checkpointLocation", str(checkpoint))
    return (writer.trigger(availableNow=True) if once else writer.trigger(processingTime=TRIGGER)).start()


def referred(spark: SparkSession, cluster: Cluster, components: str, parts: DataFrame) -> DataFrame:
    """The part of `D.components` that units of shape `reference` refer to, as far as it exists; they refer to no other topic."""
    spans = parts.where(sql.col("source.topic") == components).groupBy("source.partition")
    found = spans.agg(sql.min("source.offset"), sql.max("source.offset")).collect()
    there = within(cluster, components, {row[0]: (row[1], row[2] + 1) for row in found})
    return between(spark, cluster, components, there.start, there.end, whole=False)


@dataclass(frozen=True, slots=True)
class SinkBatch:
    """One batch, on its way into the tables, each of which it reaches at most once.

    Attributes:
        sink: The sink.
        records: Records of the destination's topics.
        number: Number of the batch.
        planned: Its offsets.
        decoder: Decodes what they hold.
        form: Form of the components.
        lacking: Leaves out rows that a table already has.
        known: The units in the tables.
    """

    sink: DeltaSink
    records: DataFrame
    number: int
    planned: PlannedBatch
    decoder: RecordDecoder
    form: ComponentsForm
    lacking: Callable[[Table, DataFrame], DataFrame]
    known: KnownUnits

    def write(self) -> Written:
        """Writes the batch."""
        others, frames, written = self._plain()
        return written if others is None else written.and_also(self._rest(others, frames))

    def _plain(self) -> tuple[DataFrame | None, Sequence[str] | None, Written]:
        """Writes the units that are rows as they were decoded.

        Returns:
            The other records, None if there are none; their frames, as far as they are known; and what was written.
        """
        topics = [topic for topic in self.sink.unit_topics if topic in self.planned.topics]
        framed = with_frame(self.records, topics if self.sink.forms_units else (), self.sink.names.outcomes)
        if not topics or not self.sink.forms_units:
            return framed, None, Written(0)
        decoded = self.decoder.with_plain_units(self.records, self.sink.names, topics)
        look, plain = BatchLook(decoded, self.decoder.plain, self.sink.unit_topics), plain_units(decoded)
        self._append(Table.UNITS, self._rows(Table.UNITS, plain_units(look.records)))
        if self.form is ComponentsForm.TABLE:
            self._append(Table.COMPONENTS, self._rows(Table.COMPONENTS, plain))
        found = None if self.planned.is_repeated else look.get()
        if found is None:
            if self.known.add(hashes(plain.select(sql.explode(hashes_of(self.sink.unit_topics, "unit."))))):
                self._mark(plain)
            return decoded.where("NOT is_plain").select(*framed.columns), None, Written(plain.count())
        if self.known.add(found.hashes):
            self._mark(plain)
        written = Written(found.plain, found.closed_at)
        if found.records == found.plain:
            return None, None, written
        if found.plain == found.encoded:
            return framed.where(~is_encoded(self.decoder.plain)), found.frames, written
        return decoded.where("NOT is_plain").select(*framed.columns), found.frames, written

    def _rest(self, others: DataFrame, frames: Sequence[str] | None) -> Written:
        """Writes other records than plain units.

        Args:
            others: The records.
            frames: Their frames; None if nobody knows.
        """
        kept: list[DataFrame] = []

        def keep(frame: DataFrame) -> DataFrame:
            kept.append(frame.persist())
            return kept[-1]

        try:
            if frames is None:
                others = keep(others)
                frames = frames_of(others)
            routed = keep(self._routed(self.decoder.decode(others, frames)))
            counts, refer, closed_at = _counts(routed)
            if refer:
                routed = keep(self._routed(with_components(routed, self.sink.fetch)))
                counts, _, closed_at = _counts(routed)
            for table in tables_of(counts):
                self._append(table, self._rows(table, routed), "/rest")
            units = self._rows(Table.UNITS, routed).select(sql.explode(hashes_of(self.sink.unit_topics)))
            if Table.UNITS in counts and self.known.add(hashes(units)):
                self._mark(routed)
            return Written(sum(counts.values()), closed_at)
        finally:
            for frame in reversed(kept):
                frame.unpersist()

    def _routed(self, decoded: DataFrame) -> DataFrame:
        return with_table(decoded, self.sink.names, self.sink.unit_topics)

    def _rows(self, table: Table, routed: DataFrame) -> DataFrame:
        return ROWS[table](routed, self.form)

    def _append(self, table: Table, rows: DataFrame, part: str = "") -> None:
        writer = writer_name(StreamCheckpoint(self.sink.tables.checkpoint).id) + part
        append_once(self.lacking(table, rows), self.sink.tables.path(table), writer, self.number)

    def _mark(self, routed: DataFrame) -> None:
        mark(self.sink.spark, self.sink.tables, self._rows(Table.UNITS, routed))


def _counts(routed: DataFrame) -> tuple[dict[str, int], bool, float | None]:
    """The number of records by table, True if units of this destination refer to components, and the latest closing of a unit, epoch seconds."""
    sums = sql.count("*").alias("n"), sql.max(sql.expr(REFERS)).alias("refer"), sql.max(sql.expr(CLOSED_AT)).alias("at")
    found = routed.groupBy("goes_to").agg(*sums).collect()
    of_units = next((row for row in found if row.goes_to == Table.UNITS), None)
    counts = {row.goes_to: row.n for row in found}
    return counts, of_units is not None and bool(of_units.refer), of_units.at if of_units else None


class Sink(Protocol):
    """A stream from a destination's topics to somewhere."""

    @property
    def title(self) -> str:
        """Its name, for people, which no other stream has."""
        ...

    def start(self, *, once: bool, progress: Progress) -> StreamingQuery:
        """Starts it. With `once` it ends with what is committed now; `progress` is called after each batch."""
        ...

    def finish(self) -> None:
        """Called once the stream has ended well."""
        ...


def run(sinks: Sequence[Sink], *, once: bool, stop: threading.Event, progress: Progress) -> None:
    """Runs the streams until all have ended, `stop` is set, or one that should go on has failed.

    When a stream fails, the others end too, each after its present batch: a process that serves only some destinations would look like one that
    serves all. With `once` the others finish their work first.

    Args:
        sinks: The sinks.
        once: Take what is committed now and end.
        stop: Set to end the streams; the present batches are finished first.
        progress: Called after each batch.

    Raises:
        UowError: Streams failed, or with `once` could not be started; it names them and the causes.
    """
    queries: dict[str, StreamingQuery] = {}
    refused: list[str] = []
    goes_on = any if once else all
    try:
        for sink in sinks:
            try:
                queries[sink.title] = sink.start(once=once, progress=progress)
            except StateCorruptedError as error:
                if not once:
                    raise
                refused.append(f"{sink.title}: {error}")
        while not stop.is_set() and goes_on(query.isActive for query in queries.values()):
            stop.wait(0.2)
        for query in queries.values():
            wait_idle(query, STOP_SECONDS)
            query.stop()
        _raise_failures(queries, refused)
        for sink in sinks:
            sink.finish()
    finally:
        for query in queries.values():
            query.stop()


def wait_idle(query: StreamingQuery, seconds: float) -> None:
    """Waits until no batch is being processed, for at most `seconds`."""
    deadline = time.monotonic() + seconds
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
        time.sleep(0.05)


def _raise_failures(queries: Mapping[str, StreamingQuery], refused: list[str]) -> None:
    failures = {destination: query.exception() for destination, query in queries.items()}
    failed = [
        f"{destination}: its stream failed: {_cause(failure)}" for destination, failure in failures.items() if failure
    ]
    if refused or failed:
        raise UowError("; ".join(refused + failed))


def _cause(failure: Any) -> str:
    """The first cause of a failure, in one line: the full traces of Java and Python are in Spark's log."""
    while failure._cause is not None:
        failure = failure._cause
    lines = [line for line in (failure._desc or "").splitlines() if line and not line[0].isspace()]
    is_trace = any("Traceback" in line for line in lines)
    return (lines[-1 if is_trace else 0].removeprefix("Caused by: ") if lines else str(failure))[:_TOLD_CHARS]


def sinks(
    spark: SparkSession,
    cluster: Cluster,
    root: Folder,
    application: str,
    destinations: Mapping[str, DestinationPolicy],
    form: ComponentsForm = ComponentsForm.NESTED,
    rules: Mapping[str, DestinationRules] = NONE,
) -> list[DeltaSink]:
    """A sink for each destination; `form` is that of tables that are made anew, `rules` those of the destinations that have any."""
    return [
        DeltaSink(
            spark,
            cluster,
            DestinationTopics(application, name),
            DeltaTables(root, name, form),
            policy.routes,
            policy.forms_units,
            rules.get(name, NO_RULES),
        )
        for name, policy in destinations.items()
    ]


def rows(sinks: Sequence[DeltaSink]) -> dict[str, dict[str, int]]:
    """Rows by destination and table."""
    return {
        sink.names.destination: {table.value: count for table, count in sink.tables.rows(sink.spark).items()}
        for sink in sinks
    }
