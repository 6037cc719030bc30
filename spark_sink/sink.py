"""The pipeline: one structured stream per destination, from its topics into its Delta tables, exactly once.

A batch holds records of `D.units` and the topics of its routes, of `D.rejected` and `D.errors`. Steps of a batch:

1. read what is committed, up to `MAX_RECORDS` records, and keep it;
2. decode, and choose for each record the one table it goes to;
3. append to each table under the name of the stream and the number of the batch;
4. mark the rows of units that came once more (`spark_sink.superseded`);
5. the checkpoint notes the batch as done.

A crash before 5 runs the same batch again, with the same records; tables that step 3 had reached know its number and stay as they are.
Under a new checkpoint everything is read from the beginning, and rows that the tables have are left out (`spark_sink.overlap`).

Belongs here: starting, watching and stopping the streams. Does not belong here: what a record means (`spark_sink.decode`), signals and
what is printed (`uow.commands.sink`).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.query import StreamingQuery

from schemas.errors import UowError
from spark_sink.decode import REFERS, ROWS, UnitDecoder, tables_of, with_components, with_frame, with_table
from spark_sink.kafka import Cluster, between, stream, within
from spark_sink.overlap import Overlap
from spark_sink.superseded import KnownUnits, known_units, mark
from spark_sink.tables import Table, Tables, append_once
from spark_sink.writers import unit_schema, unit_writers, writer_of
from topics.catalogue import DestinationTopics
from topics.policies import DestinationPolicy
from topics.routes import Route, unit_topics

MAX_RECORDS: Final = 20_000
"""Records of one batch over all topics of a destination: what two cores and a gigabyte take in a few seconds."""

_AVRO_LIMITS: Final = (
    "-Dorg.apache.avro.limits.bytes.maxLength=134217728",
    "-Dorg.apache.avro.limits.string.maxLength=134217728",
    "-Dorg.apache.avro.limits.collectionItems.maxLength=16777216",
)
"""A few malformed bytes can claim a string or an array of gigabytes, and Avro allocates that before it finds the end of the data. The
limits lie above anything that fits a record of a topic."""
_QUICK_JVM: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:ReservedCodeCacheSize=256m")
"""With one compiler the JVM keeps a fifth of the room for code: some hundred queries later it is full, and Spark ends."""
_QUICK_SPARK: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "1",
}
"""A short run has no use for what compilers and planners take their time for: half the CPU of a first batch, and of an audit."""


def settings(*, once: bool) -> dict[str, str]:
    """Spark properties of a session for the jobs of this package.

    Args:
        once: Whether the session is for a short run.
    """
    return {
        "spark.driver.extraJavaOptions": " ".join(_AVRO_LIMITS + (_QUICK_JVM if once else ())),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "2000",
    } | (_QUICK_SPARK if once else {})


TRIGGER: Final = "1 second"
_TOLD_CHARS: Final = 1000
STOP_SECONDS: Final = 60.0
"""How long a stop waits for the batch in hand; a batch cut off runs again at the next start."""

Progress = Callable[[str, int], None]
"""Told after each batch: destination, records of the batch."""


@dataclass(frozen=True, slots=True)
class Sink:
    """One destination's way from topics to tables.

    Attributes:
        spark: The session.
        cluster: Where to read.
        names: Topics of the destination.
        tables: Where to write.
        routes: Of the destination: units lie in their topics, too.
        forms_units: Whether it forms units; where it does not, none of its records is one, whatever their senders wrote (W-65).
    """

    spark: SparkSession
    cluster: Cluster
    names: DestinationTopics
    tables: Tables
    routes: tuple[Route, ...] = ()
    forms_units: bool = True

    @property
    def unit_topics(self) -> list[str]:
        """Where units lie."""
        return unit_topics(self.routes, self.names.units)

    def start(self, *, once: bool, progress: Progress = lambda destination, records: None) -> StreamingQuery:
        """Starts the stream.

        Args:
            once: Take what is committed now and end, instead of going on until stopped.
            progress: Told after each batch.

        Raises:
            StateCorruptedError: Tables are missing.
        """
        self.tables.upgrade(self.spark)
        self.tables.check()
        topics = [*self.unit_topics, self.names.rejected, self.names.errors]
        overlap = Overlap.of(self.spark, self.cluster, self.tables, topics)
        known = known_units(self.spark, self.tables)
        decoder = UnitDecoder(self.spark, unit_schema(), unit_writers(), writer_of(self.cluster.registry_url))

        def batch(records: DataFrame, number: int) -> None:
            progress(self.names.destination, self.write(records, number, decoder, overlap, known))

        writer = (
            stream(self.spark, self.cluster, topics, MAX_RECORDS)
            .writeStream.queryName(f"uow sink {self.names.destination}")
            .foreachBatch(batch)
            .option("checkpointLocation", str(self.tables.checkpoint))
        )
        return (writer.trigger(availableNow=True) if once else writer.trigger(processingTime=TRIGGER)).start()

    def write(self, records: DataFrame, number: int, decoder: UnitDecoder, overlap: Overlap, known: KnownUnits) -> int:
        """Appends one batch to the tables, each at most once.

        Args:
            records: Records of the destination's topics.
            number: Number of the batch.
            decoder: Decodes the units.
            overlap: What the tables have of a checkpoint before.
            known: The units that the tables have.

        Returns:
            How many records the batch had.
        """
        frames: list[DataFrame] = []

        def keep(frame: DataFrame) -> DataFrame:
            frames.append(frame.persist())
            return frames[-1]

        try:
            kept = keep(with_frame(records, self.unit_topics if self.forms_units else ()))
            routed = keep(self._routed(decoder.decode(kept)))
            counts, refer = _counts(routed)
            if refer:
                routed = keep(self._routed(with_components(routed, self._fetch)))
                counts, _ = _counts(routed)
            wanted = tables_of(counts)
            lacking = overlap.filter(kept)
            for table in (each for each in Table if each in wanted or not self.tables.is_made(each)):
                append_once(lacking(table, ROWS[table](routed)), self.tables.path(table), self._writer(), number)
            if Table.UNITS in wanted and known.add(units := ROWS[Table.UNITS](routed)):
                mark(self.spark, self.tables, units)
            return sum(counts.values())
        finally:
            for frame in reversed(frames):
                frame.unpersist()

    def _routed(self, decoded: DataFrame) -> DataFrame:
        return with_table(decoded, self.names.destination, self.unit_topics)

    def _fetch(self, parts: DataFrame) -> DataFrame:
        """The stretch of `D.components` that units of shape `reference` refer to, as far as it is there; they refer nowhere else."""
        spans = parts.where(sql.col("source.topic") == self.names.components).groupBy("source.partition")
        found = spans.agg(sql.min("source.offset"), sql.max("source.offset")).collect()
        there = within(self.cluster, self.names.components, {row[0]: (row[1], row[2] + 1) for row in found})
        return between(self.spark, self.cluster, self.names.components, there.start, there.end, whole=False)

    def _writer(self) -> str:
        """Name of the stream in the tables: that of its checkpoint, since a new checkpoint counts batches from 0 again."""
        return f"uow-sink:{json.loads((self.tables.checkpoint / 'metadata').read_text())['id']}"


def _counts(routed: DataFrame) -> tuple[dict[str, int], bool]:
    """Records by table, and whether units of this destination refer to components elsewhere."""
    found = routed.groupBy("goes_to").agg(sql.count("*").alias("n"), sql.max(sql.expr(REFERS)).alias("refer")).collect()
    return {row.goes_to: row.n for row in found}, any(row.refer for row in found if row.goes_to == Table.UNITS)


def run(sinks: Sequence[Sink], *, once: bool, stop: threading.Event, progress: Progress) -> None:
    """Runs the streams until all have ended, `stop` is set, or one that should go on has failed.

    A stream that fails beside others ends them all, each behind the batch in hand: a process that carries some destinations only would look
    like one that carries all. With `once` the others carry what is there first.

    Args:
        sinks: One for each destination.
        once: Take what is committed now and end.
        stop: Set by whoever wants an end; the batches in hand are finished first.
        progress: Told after each batch.

    Raises:
        UowError: Streams failed; it names their destinations, and what went wrong.
    """
    queries: dict[str, StreamingQuery] = {}
    goes_on = any if once else all
    try:
        for sink in sinks:
            queries[sink.names.destination] = sink.start(once=once, progress=progress)
        while not stop.is_set() and goes_on(query.isActive for query in queries.values()):
            stop.wait(0.2)
        for query in queries.values():
            wait_idle(query, STOP_SECONDS)
            query.stop()
        _raise_failures(queries)
        for sink in sinks:
            sink.tables.make(sink.spark)
    finally:
        for query in queries.values():
            query.stop()


def wait_idle(query: StreamingQuery, seconds: float) -> None:
    """Waits until no batch is in hand, for at most `seconds`."""
    deadline = time.monotonic() + seconds
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
        time.sleep(0.05)


def _raise_failures(queries: Mapping[str, StreamingQuery]) -> None:
    failures = {destination: query.exception() for destination, query in queries.items()}
    told = [
        f"{destination}: its stream failed: {_cause(failure)}" for destination, failure in failures.items() if failure
    ]
    if told:
        raise UowError("; ".join(told))


def _cause(failure: Any) -> str:
    """What went wrong first, in one line: the traces of Java and Python around it are in Spark's log."""
    while failure._cause is not None:
        failure = failure._cause
    lines = [line for line in (failure._desc or "").splitlines() if line and not line[0].isspace()]
    is_trace = any("Traceback" in line for line in lines)
    return (lines[-1 if is_trace else 0].removeprefix("Caused by: ") if lines else str(failure))[:_TOLD_CHARS]


def sinks(
    spark: SparkSession, cluster: Cluster, root: Path, application: str, destinations: Mapping[str, DestinationPolicy]
) -> list[Sink]:
    """A sink for each destination."""
    return [
        Sink(
            spark, cluster, DestinationTopics(application, name), Tables(root, name), policy.routes, policy.forms_units
        )
        for name, policy in destinations.items()
    ]


def rows(sinks: Sequence[Sink]) -> dict[str, dict[str, int]]:
    """Rows by destination and table."""
    return {
        sink.names.destination: {table.value: count for table, count in sink.tables.rows(sink.spark).items()}
        for sink in sinks
    }
