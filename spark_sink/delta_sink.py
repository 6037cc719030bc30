"""The pipeline: one structured stream per destination, from its topics into its Delta tables, exactly once.

A batch holds records of `D.units` and the topics of its routes, of `D.rejected`, `D.errors` and `D.outcomes`. Steps of a batch:

1. read up to `MAX_RECORDS` committed records, and keep them;
2. decode, and choose for each record the one table it goes to;
3. append to each table under the name of the stream and the number of the batch;
4. mark the rows of units that were emitted again (`uow.spark_sink.superseded`);
5. record the batch in the checkpoint as done.

After a crash before step 5 the same batch runs again, with the same records; tables that step 3 had reached know its number and skip it.
With a new checkpoint everything is read from the beginning, and rows that the tables have are left out (`uow.spark_sink.overlap`).

Belongs here: starting, watching and stopping the streams. Does not belong here: decoding records (`uow.spark_sink.decode`), signals and
output (`uow.cli.sink_command`).
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

from uow.schemas.error_classes import UowError
from uow.spark_sink.decode import (
    REFERS,
    ROWS,
    RecordDecoder,
    tables_of,
    with_components,
    with_frame,
    with_table,
)
from uow.spark_sink.kafka import (
    Cluster,
    between,
    stream,
    within,
)
from uow.spark_sink.overlap import Overlap
from uow.spark_sink.superseded import KnownUnits, known_units, mark
from uow.spark_sink.tables import DeltaTables, Table, append_once
from uow.spark_sink.writers import writer_of
from uow.topics.catalogue import DestinationTopics
from uow.topics.policies import DestinationPolicy
from uow.topics.routes import Route, unit_topics

MAX_RECORDS: Final = 20_000
"""Largest number of records in one batch over all topics of a destination, which two cores and a gigabyte process in a few seconds."""

_AVRO_LIMITS: Final = (
    "-Dorg.apache.avro.limits.bytes.maxLength=134217728",
    "-Dorg.apache.avro.limits.string.maxLength=134217728",
    "-Dorg.apache.avro.limits.collectionItems.maxLength=16777216",
)
"""A few malformed bytes can claim a string or an array of gigabytes, and Avro allocates that before it finds the end of the data. The
limits are above anything that fits into a record of a topic."""
_QUICK_JVM: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:ReservedCodeCacheSize=256m")
"""With one compiler the JVM reserves only a fifth of the code cache: after some hundred queries it is full, and Spark ends."""
_QUICK_SPARK: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "1",
}
"""Settings that turn off optimisations which do not pay in a short run. They save half the CPU of a first batch, and of an audit."""


def settings(*, once: bool) -> dict[str, str]:
    """Spark properties of a session for the jobs of this package.

    Args:
        once: True for a short run.
    """
    return {
        "spark.driver.extraJavaOptions": " ".join(_AVRO_LIMITS + (_QUICK_JVM if once else ())),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "2000",
    } | (_QUICK_SPARK if once else {})


TRIGGER: Final = "1 second"
_TOLD_CHARS: Final = 1000
STOP_SECONDS: Final = 60.0
"""Time that a stop waits for the present batch; an interrupted batch runs again at the next start."""

Progress = Callable[[str, int], None]
"""Called after each batch with the destination and the batch's number of records."""


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
    """

    spark: SparkSession
    cluster: Cluster
    names: DestinationTopics
    tables: DeltaTables
    routes: tuple[Route, ...] = ()
    forms_units: bool = True

    @property
    def unit_topics(self) -> list[str]:
        """The topics that have units."""
        return unit_topics(self.routes, self.names.units)

    def start(self, *, once: bool, progress: Progress = lambda destination, records: None) -> StreamingQuery:
        """Starts the stream.

        Args:
            once: Take what is committed now and end, instead of going on until stopped.
            progress: Called after each batch.

        Raises:
            StateCorruptedError: Tables are missing.
        """
        self.tables.upgrade(self.spark, self.names.outcomes)
        self.tables.check()
        topics = [*self.unit_topics, self.names.rejected, self.names.errors, self.names.outcomes]
        overlap = Overlap.of(self.spark, self.cluster, self.tables, topics)
        known = known_units(self.spark, self.tables)
        decoder = RecordDecoder(self.spark, writer_of(self.cluster.registry_url))

        def batch(records: DataFrame, number: int) -> None:
            progress(self.names.destination, self.write(records, number, decoder, overlap, known))

        writer = (
            stream(self.spark, self.cluster, topics, MAX_RECORDS)
            .writeStream.queryName(f"uow sink {self.names.destination}")
            .foreachBatch(batch)
            .option("checkpointLocation", str(self.tables.checkpoint))
        )
        return (writer.trigger(availableNow=True) if once else writer.trigger(processingTime=TRIGGER)).start()

    def write(
        self, records: DataFrame, number: int, decoder: RecordDecoder, overlap: Overlap, known: KnownUnits
    ) -> int:
        """Appends one batch to the tables, each at most once.

        Args:
            records: Records of the destination's topics.
            number: Number of the batch.
            decoder: Decodes units, outcomes and answers.
            overlap: Rows in the tables from an earlier checkpoint.
            known: The units in the tables.

        Returns:
            The number of records in the batch.
        """
        frames: list[DataFrame] = []

        def keep(frame: DataFrame) -> DataFrame:
            frames.append(frame.persist())
            return frames[-1]

        try:
            kept = keep(with_frame(records, self.unit_topics if self.forms_units else (), self.names.outcomes))
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
        return with_table(decoded, self.names, self.unit_topics)

    def _fetch(self, parts: DataFrame) -> DataFrame:
        """The part of `D.components` that units of shape `reference` refer to, as far as it exists; they refer to no other topic."""
        spans = parts.where(sql.col("source.topic") == self.names.components).groupBy("source.partition")
        found = spans.agg(sql.min("source.offset"), sql.max("source.offset")).collect()
        there = within(self.cluster, self.names.components, {row[0]: (row[1], row[2] + 1) for row in found})
        return between(self.spark, self.cluster, self.names.components, there.start, there.end, whole=False)

    def _writer(self) -> str:
        """Name of the stream in the tables. It contains the checkpoint's id, since a new checkpoint counts batches from 0 again."""
        return f"uow-sink:{json.loads((self.tables.checkpoint / 'metadata').read_text())['id']}"


def _counts(routed: DataFrame) -> tuple[dict[str, int], bool]:
    """The number of records by table, and True if units of this destination refer to components."""
    found = routed.groupBy("goes_to").agg(sql.count("*").alias("n"), sql.max(sql.expr(REFERS)).alias("refer")).collect()
    return {row.goes_to: row.n for row in found}, any(row.refer for row in found if row.goes_to == Table.UNITS)


def run(sinks: Sequence[DeltaSink], *, once: bool, stop: threading.Event, progress: Progress) -> None:
    """Runs the streams until all have ended, `stop` is set, or one that should go on has failed.

    When a stream fails, the others end too, each after its present batch: a process that serves only some destinations would look like one that
    serves all. With `once` the others finish their work first.

    Args:
        sinks: One for each destination.
        once: Take what is committed now and end.
        stop: Set to end the streams; the present batches are finished first.
        progress: Called after each batch.

    Raises:
        UowError: Streams failed; it names their destinations and the causes.
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
    """Waits until no batch is being processed, for at most `seconds`."""
    deadline = time.monotonic() + seconds
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
        time.sleep(0.05)


def _raise_failures(queries: Mapping[str, StreamingQuery]) -> None:
    failures = {destination: query.exception() for destination, query in queries.items()}
    failed = [
        f"{destination}: its stream failed: {_cause(failure)}" for destination, failure in failures.items() if failure
    ]
    if failed:
        raise UowError("; ".join(failed))


def _cause(failure: Any) -> str:
    """The first cause of a failure, in one line: the full traces of Java and Python are in Spark's log."""
    while failure._cause is not None:
        failure = failure._cause
    lines = [line for line in (failure._desc or "").splitlines() if line and not line[0].isspace()]
    is_trace = any("Traceback" in line for line in lines)
    return (lines[-1 if is_trace else 0].removeprefix("Caused by: ") if lines else str(failure))[:_TOLD_CHARS]


def sinks(
    spark: SparkSession, cluster: Cluster, root: Path, application: str, destinations: Mapping[str, DestinationPolicy]
) -> list[DeltaSink]:
    """A sink for each destination."""
    return [
        DeltaSink(
            spark,
            cluster,
            DestinationTopics(application, name),
            DeltaTables(root, name),
            policy.routes,
            policy.forms_units,
        )
        for name, policy in destinations.items()
    ]


def rows(sinks: Sequence[DeltaSink]) -> dict[str, dict[str, int]]:
    """Rows by destination and table."""
    return {
        sink.names.destination: {table.value: count for table, count in sink.tables.rows(sink.spark).items()}
        for sink in sinks
    }
