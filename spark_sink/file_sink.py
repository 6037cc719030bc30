"""The stream of a destination's units into files for suppliers, each exactly once.

The records are those that the tables have in `units`, decoded and judged in the same way. Steps of a batch:

1. tasks write a file for each unit under a temporary name, in a folder that every executor and the driver share;
2. the driver takes the first record of each unit, unless a manifest lists the unit already, and gives its file its name;
3. the names are listed in the manifests;
4. the batch is recorded in the checkpoint as done.

A unit of shape `consecutive` becomes a file with the batch that has its last record; the records before it are read again if they came in an
earlier batch.

A unit by rule whose row says XML or JSON is its file as it is: that is the document which its rule made for the receiver. All others are written in the
format of the sink. Units by rule stand in a folder of their row (B-03).

A file that is lost or damaged is written again on request, from the unit's record, with the content that its manifest lists (`write_again`).

Belongs here: running batches, and which records become files. Does not belong here: names, contents, manifests (`uow.spark_sink.unit_files`), tables.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import numpy as np
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.avro.functions import to_avro
from pyspark.sql.streaming.query import StreamingQuery

from uow.schemas import codec, framing
from uow.schemas.error_classes import DecodeError, StateCorruptedError
from uow.schemas.records import Unit
from uow.spark_sink.checkpoint import StreamCheckpoint
from uow.spark_sink.decode import (
    DOCUMENT,
    EARLIER_RUN,
    JSON,
    POSITION,
    REFERS,
    RUN,
    RecordDecoder,
    frames_of,
    header_text,
    with_components,
    with_frame,
    with_table,
)
from uow.spark_sink.delta_sink import Progress, Written, batch_records, referred, run_batches
from uow.spark_sink.destination_rules import NO_RULES, NONE, DestinationRules
from uow.spark_sink.kafka import Cluster, backlog, between, everything, stream, within
from uow.spark_sink.lineage import Lineage
from uow.spark_sink.superseded import KnownUnits
from uow.spark_sink.tables import Table
from uow.spark_sink.unit_files import (
    FileFormat,
    Staged,
    UnitFolder,
    content,
    day_of,
    file_name,
    in_order,
    name_hash,
    path_of,
    problem_line,
    row_folder,
    stage,
    write_whole,
)
from uow.spark_sink.writers import UNIT, writer_of
from uow.topics.catalogue import DestinationTopics
from uow.topics.headers import RULE, UNIT_ID
from uow.topics.policies import DestinationPolicy
from uow.topics.routes import Route, unit_topics

BATCH_FILES: Final = 10_000
"""Most records of a batch. Each file is forced to disk, and a batch that a kill cut off is written again: ten times as many took minutes."""
ROWS_AT_ONCE: Final = "64"
"""Units that a task holds at once: one may have ten megabytes, and is there three times over."""
_STAGED: Final = (
    "topic STRING, partition INT, offset BIGINT, timestamp BIGINT, unit_id STRING, day STRING, sha256 STRING, temporary STRING, problem STRING, "
    "folder STRING, ending STRING"
)
_TOLD_CHARS: Final = 1000


class Again(NamedTuple):
    """A listed file that was wanted again; `is_written` is false if no record in its topic gives the listed content."""

    unit_id: str
    path: Path
    is_written: bool


@dataclass(frozen=True, slots=True)
class FileSink:
    """The stream from one destination's units to its files.

    Attributes:
        spark: The session.
        cluster: The cluster to read from.
        names: Topics of the destination.
        root: The folder given by `--files`.
        kind: Format of the files.
        routes: Routes of the destination, whose topics have units too.
        rules: Its rules, whose target topics have units too.
    """

    spark: SparkSession
    cluster: Cluster
    names: DestinationTopics
    root: Path
    kind: FileFormat
    routes: tuple[Route, ...] = ()
    rules: DestinationRules = NO_RULES

    @property
    def title(self) -> str:
        """Name of the stream, for people."""
        return f"{self.names.destination}, files"

    @property
    def folder(self) -> Path:
        """Folder of the destination. No folder of a topic begins with `_`."""
        return self.root / file_name(self.names.destination)

    @property
    def checkpoint(self) -> Path:
        """Folder in which Structured Streaming stores its position."""
        return checkpoint_of(self.root, self.names.destination)

    @property
    def temporary(self) -> Path:
        """Folder of the files without a name."""
        return self.folder / "_sink" / "temporary"

    @property
    def problem_folder(self) -> Path:
        """Folder of the reasons why records have no file of their own: a file of JSON lines for each batch with any."""
        return self.folder / "_problems"

    @property
    def topics(self) -> list[str]:
        """The topics that have units."""
        return unit_topics(self.routes, self.names.units, self.rules.targets)

    def folder_of(self, topic: str, row: str = "") -> UnitFolder:
        """The folder of a topic's files, or of those of a row in it."""
        return UnitFolder(self.folder / file_name(topic) / row)

    def folders(self) -> Iterator[tuple[str, str]]:
        """Topic, and the folder in its own, of all files."""
        for topic in self.topics:
            yield from ((topic, row) for row in ("", *self.folder_of(topic).rows()))

    def start(self, *, once: bool, progress: Progress = lambda title, written: None) -> StreamingQuery:
        """Starts the stream.

        Args:
            once: Take what is committed now and end, instead of going on until stopped.
            progress: Called after each batch.

        Raises:
            StateCorruptedError: The checkpoint is of other topics, or retention deleted what was not yet read.
        """
        shutil.rmtree(self.temporary, ignore_errors=True)
        self.temporary.mkdir(parents=True)
        known = KnownUnits()
        for place in self.folders():
            for hashes in _pieces(name_hash(_name(*place), line.path) for line in self.folder_of(*place).listed()):
                known.add(hashes)
        session = self.spark.newSession()
        session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", ROWS_AT_ONCE)
        decoder = self._decoder(session)
        lineage = Lineage(self.cluster, self.checkpoint, self.topics)
        lineage.check()
        lineage.save()
        checkpoint = StreamCheckpoint(self.checkpoint)
        behind = backlog(self.cluster, self.topics, checkpoint.offsets(checkpoint.planned))
        most = min(batch_records(behind), BATCH_FILES)

        def batch(records: DataFrame, number: int) -> None:
            progress(self.title, Written(FileBatch(self, records, number, decoder, known).write()))

        records = stream(session, self.cluster, self.topics, most)
        return run_batches(records, f"uow sink {self.title}", self.checkpoint, batch, once=once)

    def _decoder(self, spark: SparkSession) -> RecordDecoder:
        return RecordDecoder(spark, writer_of(self.cluster.registry_url), self.names.destination, self.rules)

    def finish(self) -> None:
        """Called once the stream has ended well."""

    def again(self, unit_ids: Collection[str]) -> list[Again]:
        """Writes the listed files of some units again, with the content that is listed, also while a sink runs.

        The topics are read from their beginning, and only the records of these units are decoded.

        Returns:
            The files of these units that are listed: one for each topic that has the unit.
        """
        ids = {path_of(each): each for each in unit_ids}
        found = []
        for topic, row in self.folders():
            folder = self.folder_of(topic, row)
            wanted = [line for line in folder.listed() if line.path in ids]
            for kind in {FileFormat(line.ending) for line in wanted}:
                digests = {line.path: line.sha256 for line in wanted if line.ending == kind}
                with TemporaryDirectory(dir=self.temporary.parent, prefix="again-") as temporary:
                    staged = self._staged_again(topic, kind, [ids[path] for path in digests], Path(temporary))
                    named = [(path_of(each.unit_id or ""), each) for each in staged if each.folder == row]
                    right = {path: each for path, each in named if each.sha256 == digests.get(path)}
                    folder.place(right.items(), Path(temporary))
                found += [Again(ids[path], folder.path / f"{path}.{kind}", path in right) for path in digests]
        return found

    def _staged_again(self, topic: str, kind: FileFormat, unit_ids: list[str], folder: Path) -> list[Staged]:
        """The files of all records of some units in a topic."""
        there = everything(self.cluster, topic)
        records = between(self.spark, self.cluster, topic, there.start, there.end, whole=False)
        wanted = sql.array(*map(sql.lit, unit_ids))
        told = sql.expr(f"transform(filter(headers, h -> h.name = '{UNIT_ID}'), h -> CAST(h.value AS STRING))")
        some = records.where((sql.size(told) == 0) | sql.arrays_overlap(told, wanted))
        batch = FileBatch(replace(self, kind=kind), some, 0, self._decoder(self.spark), KnownUnits())
        return batch.staged(folder, sql.col("unit.unit_id").isin(unit_ids))

    def count(self) -> int:
        """Number of files listed."""
        return sum(1 for place in self.folders() for _ in self.folder_of(*place).listed())

    def problems(self) -> int:
        """Number of records without a file of their own, for which there is a reason."""
        return sum(len(path.read_text().splitlines()) for path in self.problem_folder.glob("*.jsonl"))


def file_sinks(
    spark: SparkSession,
    cluster: Cluster,
    root: Path,
    application: str,
    destinations: Mapping[str, DestinationPolicy],
    kind: FileFormat,
    rules: Mapping[str, DestinationRules] = NONE,
) -> list[FileSink]:
    """A sink for each destination that forms units; `rules` are those of the destinations that have any."""
    return [
        FileSink(
            spark,
            cluster,
            DestinationTopics(application, name),
            root,
            kind,
            policy.routes,
            rules.get(name, NO_RULES),
        )
        for name, policy in destinations.items()
        if policy.forms_units
    ]


def write_again(sinks: Iterable[FileSink], unit_ids: Collection[str]) -> list[Path]:
    """Writes the files of some units again (B-213); see `FileSink.again`.

    Returns:
        The files.

    Raises:
        StateCorruptedError: A unit is not listed, or the topic no longer gives the listed content. The other files are written.
    """
    found = [each for sink in sinks for each in sink.again(unit_ids)]
    left = [f"no manifest lists unit {each}" for each in sorted({*unit_ids} - {each.unit_id for each in found})]
    left += [f"no record in the topic gives the listed content of {each.path}" for each in found if not each.is_written]
    if left:
        raise StateCorruptedError([], "; ".join(left), "a file that was listed can be restored from a copy")
    return [each.path for each in found]


def checkpoint_of(root: Path, destination: str) -> Path:
    """The checkpoint of a destination's stream into files below a folder."""
    return root / file_name(destination) / "_sink" / "checkpoint"


_PIECE: Final = 100_000


def _pieces(numbers: Iterable[int]) -> Iterator[Any]:
    """Numbers as arrays."""
    piece: list[int] = []
    for number in numbers:
        piece.append(number)
        if len(piece) == _PIECE:
            yield np.array(piece, np.int64)
            piece = []
    if piece:
        yield np.array(piece, np.int64)


@dataclass(frozen=True, slots=True)
class FileBatch:
    """One batch, on its way into files.

    Attributes:
        sink: The sink.
        records: Records of the destination's topics of units.
        number: Number of the batch.
        decoder: Decodes units.
        known: The listed files.
    """

    sink: FileSink
    records: DataFrame
    number: int
    decoder: RecordDecoder
    known: KnownUnits

    def write(self) -> int:
        """Writes the batch; the number of its units."""
        return self._publish(self.staged(self.sink.temporary))

    def staged(self, temporary: Path, chosen: Column | None = None) -> list[Staged]:
        """Writes the files of the batch's units under temporary names.

        Args:
            temporary: The folder for them.
            chosen: Condition for units; None for all of them, and the records that claim to be one.
        """
        frames: list[DataFrame] = []

        def keep(frame: DataFrame) -> DataFrame:
            frames.append(frame.persist())
            return frames[-1]

        try:
            kept = keep(self._framed(self.records))
            found = frames_of(kept)
            runs = {RUN, EARLIER_RUN} & {*found}
            whole = kept if not runs else kept.unionByName(self._beginnings(kept))
            judged = with_table(self.decoder.decode(whole, found), self.sink.names, self.sink.topics)
            units = judged.where(sql.col("goes_to").isin(Table.UNITS.value, Table.UNREADABLE.value))
            is_document = sql.col("frame").isin(DOCUMENT, JSON) & sql.col("rule").isNotNull()
            units = units.withColumn("rule", header_text(RULE)).withColumn(
                "document", sql.when(is_document, sql.col("value"))
            )
            units = units if chosen is None else units.where(chosen)
            units = keep(_with_runs(units) if runs else units)
            refers = sql.expr(f"goes_to = '{Table.UNITS}' AND {REFERS}")
            if not units.where(refers).isEmpty():
                units = with_components(units, self._referred)
            return _staged(units, self.sink.kind, temporary)
        finally:
            for frame in reversed(frames):
                frame.unpersist()

    def _framed(self, records: DataFrame) -> DataFrame:
        return with_frame(records, self.sink.topics, "").where("frame IS NOT NULL")

    def _referred(self, parts: DataFrame) -> DataFrame:
        return referred(self.sink.spark, self.sink.cluster, self.sink.names.components, parts)

    def _beginnings(self, kept: DataFrame) -> DataFrame:
        """The records before the batch of units whose later records are in it."""
        place = sql.struct("offset", sql.expr(POSITION).alias("position"))
        runs = kept.where(sql.col("frame").isin(RUN, EARLIER_RUN)).groupBy("topic", "partition")
        earlier: dict[str, dict[int, tuple[int, int]]] = {}
        for row in runs.agg(sql.min(place).alias("first")).collect():
            offset, position = row["first"]
            if position is not None and position > 1:
                earlier.setdefault(row.topic, {})[row.partition] = (offset - position + 1, offset)
        found = [kept.limit(0)]
        for topic, wanted in earlier.items():
            there = within(self.sink.cluster, topic, wanted)
            read = between(self.sink.spark, self.sink.cluster, topic, there.start, there.end, whole=False)
            found.append(self._framed(read).where(sql.col("frame").isin(RUN, EARLIER_RUN)))
        return reduce(DataFrame.unionByName, found)

    def _publish(self, staged: list[Staged]) -> int:
        """Names and lists the files; the number of units."""
        problems, first, digests = [], dict[_Name, Staged](), dict[_Name, str]()
        repeated: list[tuple[_Name, Staged]] = []
        for each in in_order(staged):
            if each.problem is not None:
                problems.append(problem_line(each, each.problem))
                continue
            name = each.topic, each.folder, path_of(each.unit_id or "")
            if first.setdefault(name, each) is not each:
                repeated.append((name, each))
            digests.setdefault(name, each.sha256)
        places = {name[:2] for name in first}
        if self.known.add(np.array([name_hash(_name(*name[:2]), name[2]) for name in first], np.int64)):
            for place in places:
                for line in self.sink.folder_of(*place).listed():
                    if (name := (*place, line.path)) in first:
                        repeated.append((name, first.pop(name)))
                        digests[name] = line.sha256 if line.ending == repeated[-1][1].ending else ""
        for name, each in repeated:
            (self.sink.temporary / each.temporary).unlink(missing_ok=True)
            if digests[name] not in ("", each.sha256):
                said = (
                    f"this unit has its file already, with other content (sha256 {digests[name]}): it was emitted again"
                )
                problems.append(problem_line(each, said))
        for place in places:
            files = ((name[2], each) for name, each in first.items() if name[:2] == place)
            self.sink.folder_of(*place).publish(files, self.sink.temporary)
        if problems:
            self._tell(problems)
        return len(staged)

    def _tell(self, problems: list[str]) -> None:
        folder = self.sink.problem_folder
        folder.mkdir(exist_ok=True)
        stream_id = StreamCheckpoint(self.sink.checkpoint).id
        write_whole(folder / f"{stream_id}-{self.number:09}.jsonl", "".join(problems))


_Name = tuple[str, str, str]
"""A file: its topic, the folder in that of the topic, and its path there."""


def _name(topic: str, row: str) -> str:
    """A folder, as `name_hash` takes it."""
    return f"{topic}/{row}" if row else topic


def _with_runs(units: DataFrame) -> DataFrame:
    """Records, with those of each unit of shape `consecutive` as one, at the place of the last one.

    Units whose last record is not there are left out: it comes in a later batch.
    """
    is_run = sql.col("frame").isin(RUN, EARLIER_RUN) & (sql.col("goes_to") == Table.UNITS.value)
    told = sql.col("frame") == RUN
    ours = units.where(is_run).withColumn("position", sql.expr(POSITION))
    for name in ("opened_at", "closed_at"):
        known = sql.when(told, sql.col(f"unit.{name}")).otherwise(sql.col("timestamp"))
        ours = ours.withColumn("unit", sql.col("unit").withField(name, known))
    found = (
        ours.groupBy("topic", "partition", "unit.unit_id", "unit.id", (sql.col("offset") - sql.col("position")))
        .agg(
            sql.max_by("frame", "offset").alias("frame"),
            sql.max("timestamp").alias("timestamp"),
            sql.max_by("goes_to", "offset").alias("goes_to"),
            sql.min_by("unit", "offset").alias("unit"),
            sql.sort_array(sql.collect_list(sql.struct("offset", "unit.components"))).alias("parts"),
            sql.max("offset").alias("last"),
            sql.max("position").alias("until"),
            sql.count("*").alias("n"),
            sql.first("rule").alias("rule"),
            sql.lit(None).cast("binary").alias("document"),
        )
        .where("until = unit.count")
        .withColumn("unit", sql.col("unit").withField("components", sql.expr("flatten(parts.components)")))
        .withColumn(
            "problem", sql.expr("IF(n = unit.count, NULL, 'records of it are missing before this one, its last')")
        )
        .withColumn("offset", sql.col("last"))
    )
    columns = ("topic", "partition", "offset", "timestamp", "frame", "unit", "problem", "goes_to", "rule", "document")
    return units.where(~is_run).select(*columns).unionByName(found.select(*columns))


def _staged(units: DataFrame, kind: FileFormat, temporary: Path) -> list[Staged]:
    """Writes the files of units under temporary names, in tasks."""
    problem = sql.col("problem")
    body = sql.when(problem.isNull(), to_avro("unit", framing.definition_text(UNIT)))
    rows = units.select(
        *("topic", "partition", "offset"),
        sql.unix_millis("timestamp").alias("timestamp"),
        sql.col("unit.unit_id").alias("unit_id"),
        body.alias("body"),
        sql.coalesce("rule", sql.lit("")).alias("rule"),
        sql.when(~sql.expr(f"coalesce({REFERS}, false)"), sql.col("document")).alias("document"),
        (sql.col("frame") == JSON).alias("is_json"),
        sql.left(problem, sql.lit(_TOLD_CHARS)).alias("problem"),
    )
    return [Staged(*row) for row in rows.mapInArrow(_stager(kind, temporary), _STAGED).collect()]


def _stager(kind: FileFormat, temporary: Path) -> Callable[[Iterable[Any]], Iterator[Any]]:
    header = framing.single_object_header(UNIT)

    def write(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            rows = [_stage_row(row, header, kind, temporary)._asdict() for row in batch.to_pylist()]
            yield pa.RecordBatch.from_pylist(rows, _arrow_schema())

    return write


def _arrow_schema() -> Any:
    import pyarrow as pa

    kinds = {"STRING": pa.string(), "INT": pa.int32(), "BIGINT": pa.int64()}
    return pa.schema([(name, kinds[kind]) for name, kind in (each.split(" ") for each in _STAGED.split(", "))])


def _stage_row(row: dict[str, Any], header: bytes, kind: FileFormat, temporary: Path) -> Staged:
    """A row's file; nothing in a unit makes it fail."""
    where = row["topic"], row["partition"], row["offset"], row["timestamp"], row["unit_id"]
    problem = row["problem"]
    if problem is None:
        try:
            unit = codec.decode_as(Unit, header + row["body"])
            data = row["document"]
            if data is not None:
                kind = FileFormat.JSON if row["is_json"] else FileFormat.XML
            else:
                whole = [replace(each, reference=None) for each in unit.components]  # fetched
                data = content(replace(unit, components=tuple(whole)), kind)
            said = day_of(unit.closed_at), *stage(data, temporary)
            return Staged(*where, *said, None, row_folder(row["rule"]), kind)
        except (DecodeError, ValueError, RecursionError) as error:
            problem = f"{type(error).__name__}: {error}"[:_TOLD_CHARS]
    return Staged(*where, problem=problem)
