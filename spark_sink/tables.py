"""The Delta tables of a destination: where they are, their columns, and how a batch is appended exactly once.

Belongs here: table names, columns, creation, the idempotent append, row counts. Does not belong here: decoding Kafka records
(`uow.spark_sink.decode`) and running batches (`uow.spark_sink.delta_sink`).
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import DataType, StructType

from uow.schemas.error_classes import StateCorruptedError
from uow.spark_sink.checkpoint import StreamCheckpoint
from uow.spark_sink.folders import Folder

HEADERS: Final = "ARRAY<STRUCT<name: STRING, value: BINARY>>"
"""Headers as they are on the record: order, repeats and raw bytes kept."""

_OWN: Final = "topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP"
"""Coordinates and Kafka timestamp of the record that a row was made from."""


class Table(StrEnum):
    """The tables of a destination; the value is the folder's name.

    Every record of `D.units`, of a route's topic, of `D.rejected`, `D.errors` and `D.outcomes` is in exactly one of them (W-127, W-216);
    `components` alone are the components of the rows in `units` that are not in its column `components`. `unreadable` has records that claim to
    be what they are not, unchanged, so that no record stops the sink. Outcomes, answers and warnings come from one topic and share hardly a column, so each
    has a table of its own, in which every row counts (W-214, W-203, B-202).
    """

    UNITS = "units"
    COMPONENTS = "components"
    REJECTED = "rejected"
    PASSED = "passed"
    UNREADABLE = "unreadable"
    OUTCOMES = "outcomes"
    ANSWERS = "answers"
    WARNINGS = "warnings"


PAYLOADS: Final = "payloads"
"""Folder of the table that `uow.spark_sink.payload_sink` makes from the others, where it is asked for."""


class ComponentsForm(StrEnum):
    """Where the components of a unit are.

    `nested`: in the unit's row, as an array, so that a unit is written at once. Units of shape `consecutive` are several records, which may come
    in several batches: their components are rows of `components` in either form. `table`: all of them are rows of `components`.
    """

    NESTED = "nested"
    TABLE = "table"


NESTED_COMPONENTS: Final = (
    "components ARRAY<STRUCT<seq: INT, `end`: BOOLEAN, component_id: STRING, key: BINARY, value: BINARY, "
    f"headers: {HEADERS}, timestamp: TIMESTAMP, source: STRUCT<topic: STRING, partition: INT, offset: BIGINT>, "
    "reference: STRUCT<length: BIGINT, crc32c: BIGINT>>>"
)
"""The column of `units` with its components in the order of the unit, as they are in the Avro schema; null for a unit of shape `consecutive` and for a
unit by rule in XML."""

COLUMNS: Final[dict[Table, str]] = {
    Table.UNITS: (
        "unit_id STRING, id STRING, destination STRING, generation BIGINT, outcome STRING, reason STRING, opened_at TIMESTAMP, "
        "closed_at TIMESTAMP, expires_at TIMESTAMP, count INT, bytes BIGINT, missing ARRAY<STRUCT<first: INT, last: INT>>, "
        f"key BINARY, headers {HEADERS}, {_OWN}, superseded_by STRING, rule STRING, document BINARY"
    ),
    Table.COMPONENTS: (
        "unit_id STRING, id STRING, generation BIGINT, position INT, seq INT, `end` BOOLEAN, component_id STRING, key BINARY, "
        f"value BINARY, headers {HEADERS}, timestamp TIMESTAMP, source_topic STRING, source_partition INT, source_offset BIGINT, "
        "unit_topic STRING, unit_partition INT, unit_offset BIGINT, superseded_by STRING"
    ),
    Table.REJECTED: (
        "error_class STRING, error_case STRING, error_text STRING, failure_reason STRING, missing STRING, id STRING, "
        f"source_topic STRING, source_partition INT, source_offset BIGINT, key BINARY, value BINARY, headers {HEADERS}, {_OWN}"
    ),
    Table.PASSED: f"key BINARY, value BINARY, headers {HEADERS}, {_OWN}",
    Table.UNREADABLE: f"reason STRING, id STRING, key BINARY, value BINARY, headers {HEADERS}, {_OWN}",
    Table.OUTCOMES: (
        "unit_id STRING, id STRING, destination STRING, generation BIGINT, outcome STRING, reason STRING, opened_at TIMESTAMP, "
        "closed_at TIMESTAMP, count INT, bytes BIGINT, missing ARRAY<STRUCT<first: INT, last: INT>>, rule STRING, command_id STRING, "
        f"last_arrived STRUCT<seq: INT, component_id: STRING>, key BINARY, headers {HEADERS}, {_OWN}"
    ),
    Table.ANSWERS: (
        "command_id STRING, verb STRING, id STRING, destination STRING, done BOOLEAN, text STRING, why STRING, by STRING, at TIMESTAMP, "
        f"key BINARY, headers {HEADERS}, {_OWN}"
    ),
    Table.WARNINGS: (
        "id STRING, destination STRING, generation BIGINT, opened_at TIMESTAMP, at TIMESTAMP, deadline_at TIMESTAMP, reason STRING, count INT, "
        f"missing ARRAY<STRUCT<first: INT, last: INT>>, sources ARRAY<STRING>, rule STRING, key BINARY, headers {HEADERS}, {_OWN}"
    ),
}
"""Columns of each table, as Spark DDL. Columns are added at the end only.

`superseded_by` is the place (`topic/partition/offset`) of a later record with the same unit, or of a unit that corrects it; it is null on the current row of the unit. `rule` is the row
of a unit by rule, the text of `uow-rule`; `document` its value as it is, where that is XML or JSON. The components of one in XML are in no table: their
documents stand in this one, and their records in `D.components`.
"""

PLACE: Final[dict[Table, tuple[str, ...]]] = dict.fromkeys(Table, ("topic", "partition", "offset", "timestamp")) | {
    Table.COMPONENTS: ("unit_topic", "unit_partition", "unit_offset", "unit_id", "position")
}
"""Columns that identify the record that a row was made from, and the row among its rows. They are unique in a table."""


def columns(table: Table, form: ComponentsForm = ComponentsForm.TABLE) -> StructType:
    """Columns of a table as a Spark schema."""
    is_nested = table is Table.UNITS and form is ComponentsForm.NESTED
    kind = DataType.fromDDL(f"{COLUMNS[table]}, {NESTED_COMPONENTS}" if is_nested else COLUMNS[table])
    assert isinstance(kind, StructType)
    return kind


_NESTED_ROWS: Final = """
SELECT unit_id, id, generation, CAST(at + 1 AS INT) AS position, nullif(c.seq, 0) AS seq, c.`end`, c.component_id, c.key, c.value, c.headers,
  c.timestamp, c.source.topic AS source_topic, c.source.partition AS source_partition, c.source.offset AS source_offset,
  topic AS unit_topic, partition AS unit_partition, offset AS unit_offset, superseded_by
FROM (SELECT *, posexplode(components) AS (at, c) FROM {units})
"""
"""The components in `units` as rows with the columns of `components`."""


def with_nested(spark: SparkSession, components: DataFrame, units: DataFrame) -> DataFrame:
    """Rows of `components`, and of the components in rows of `units`."""
    return components.unionByName(spark.sql(_NESTED_ROWS, units=units)) if "components" in units.columns else components


class PresentRows(NamedTuple):
    """Rows of a table.

    Attributes:
        rows: The rows, without those in the files that were left out.
        done: Names of these files.
        is_empty: True if there are none.
    """

    rows: DataFrame
    done: tuple[str, ...] = ()
    is_empty: bool = False


PROTOCOL: Final = {"minReaderVersion": 1, "minWriterVersion": 2}
"""Versions of Delta's protocol that a new table asks of its readers and writers: the lowest ones, so that every tool reads it."""
_FIRST: Final = f"{0:020}.json"
_NOTHING: Final[Mapping[str, Any]] = dict.fromkeys(("tableSizeBytes", "numFiles"), 0) | {
    **dict.fromkeys(("numMetadata", "numProtocol"), 1),
    **dict.fromkeys(("setTransactions", "domainMetadata", "allFiles"), ()),
}
"""The checksum of a table's first commit, without metadata and protocol."""

_GLOB: Final = frozenset("*?[]{}\\")


@dataclass(frozen=True, slots=True)
class DeltaTables:
    """The tables of one destination below a folder.

    Attributes:
        root: The folder given by `--tables`.
        destination: Name of the destination.
        form: Form of the components in tables that are made anew; existing ones keep theirs.
    """

    root: Folder
    destination: str
    form: ComponentsForm = ComponentsForm.NESTED

    @property
    def folder(self) -> Folder:
        """Folder of the destination's tables."""
        return self.root / self.destination

    def path(self, table: str) -> str:
        """Folder of a table: of a `Table`, or `PAYLOADS`."""
        return str(self.folder / table)

    def sql_name(self, table: str) -> str:
        """Name of a table in SQL statements."""
        return f"delta.`{self.path(table).replace('`', '``')}`"

    @property
    def audits(self) -> Folder:
        """Folder in which audits leave their state."""
        return self.root / "_audits" / self.destination

    @property
    def checkpoint(self) -> Folder:
        """Folder in which Structured Streaming stores its position."""
        return self.root / "_checkpoints" / self.destination

    def is_made(self, table: str) -> bool:
        """True if a table exists."""
        return any(self._commits(table))

    def is_empty(self, table: str) -> bool:
        """True if a table is not made, or only made: its log is one commit without a file. Asking Delta takes a job."""
        commits = list(self._commits(table))
        return not commits or (
            len(commits) == 1 and commits[0].name == _FIRST and '{"add"' not in commits[0].read_text()
        )

    def _recorded(self, table: str) -> Mapping[str, Any]:
        """The state of a table that is recorded beside its latest commit (Delta's checksum file), as far as its writer does that. Asking Delta takes jobs."""
        latest = max(self._commits(table), key=lambda commit: commit.name, default=None)
        checksum = None if latest is None else latest.parent / latest.name.replace(".json", ".crc")
        if checksum is None or not checksum.exists():
            return {}
        try:
            found: dict[str, Any] = json.loads(checksum.read_text())
        except ValueError:  # cut off; Delta does without as well
            return {}
        return found

    def _delta(self, spark: SparkSession, table: str) -> Any:
        """The present state of a table, in Delta's own words."""
        jvm: Any = spark.sparkContext._jvm
        logs = jvm.org.apache.spark.sql.delta.DeltaLog
        return logs.forTableWithSnapshot(spark._jsparkSession, self.path(table))._2()

    def id(self, spark: SparkSession, table: Table) -> str:
        """The id that an existing table got when it was made."""
        return str(self._recorded(table).get("metadata", {}).get("id") or self._delta(spark, table).metadata().id())

    def last_batches(self, spark: SparkSession, table: Table, writers: Collection[str]) -> dict[str, int]:
        """The last version that each of these writers has written to an existing table (`append_once`). Spark SQL says nothing of them."""
        recorded = self._recorded(table).get("setTransactions")
        if recorded is not None:
            return {each["appId"]: each["version"] for each in recorded if each["appId"] in writers}
        batches = self._delta(spark, table).transactions()
        return {name: last.get() for name in writers if (last := batches.get(name)).isDefined()}

    def extent(self, spark: SparkSession, table: str) -> tuple[int, int]:
        """Number of the data files of an existing table, and their size in bytes."""
        if recorded := self._recorded(table):
            return recorded["numFiles"], recorded["tableSizeBytes"]
        found = spark.sql(f"DESCRIBE DETAIL {self.sql_name(table)}").collect()[0]
        return found.numFiles, found.sizeInBytes

    def count(self, spark: SparkSession, table: str) -> int:
        """Number of rows in a table's own files; 0 if it is not made."""
        if self.is_empty(table):
            return 0
        files = self._recorded(table).get("allFiles")
        if files is None or any(
            "deletionVector" in file or "numRecords" not in file.get("stats", "") for file in files
        ):
            return self.stored(spark, table).count()
        return sum(json.loads(file["stats"])["numRecords"] for file in files)

    def _commits(self, table: str) -> Iterator[Folder]:
        yield from (self.folder / table / "_delta_log").glob("[0-9]*.json")

    def made(self) -> list[str]:
        """Folders of the tables that exist."""
        return [table for table in (*Table, PAYLOADS) if self.is_made(table)]

    def exist(self) -> bool:
        """True if all tables exist."""
        return all(map(self.is_made, Table))

    def make(self, spark: SparkSession) -> None:
        """Creates the missing tables, empty: for a destination that has had no record yet."""
        for table in Table:
            self._make(spark, table)

    def _make(self, spark: SparkSession, table: Table) -> None:
        """Writes a table's first commit as Delta's protocol has it, by Delta's own log store; by its API all tables take ten CPU seconds.

        Beside it the checksum, which Delta writes after each commit: from there it knows a table's state and makes the next checksum. Without, it
        computes the state by a job, for each table.
        """
        if self.is_made(table):
            return
        at = time.time_ns() // 1_000_000
        metadata = {
            "id": str(uuid.uuid4()),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": columns(table, self.form).json(),
            "partitionColumns": [],
            "configuration": {},
            "createdTime": at,
        }
        done = {"timestamp": at, "operation": "CREATE TABLE", "operationParameters": {}, "isBlindAppend": True}
        jvm: Any = spark.sparkContext._jvm
        log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, self.path(table))
        log.createLogDirectoriesIfNotExists()

        def write(file: str, *contents: Mapping[str, Any]) -> None:
            lines = jvm.java.util.ArrayList()
            for content in contents:
                lines.add(json.dumps(content))
            path = jvm.org.apache.hadoop.fs.Path(log.logPath(), file)
            as_scala = jvm.scala.jdk.javaapi.CollectionConverters.asScala
            log.store().write(path, as_scala(lines.iterator()), False, log.newDeltaHadoopConf())

        write(_FIRST, {"commitInfo": done}, {"protocol": PROTOCOL}, {"metaData": metadata})
        write(_FIRST.replace(".json", ".crc"), {**_NOTHING, "metadata": metadata, "protocol": PROTOCOL})

    def form_of(self, spark: SparkSession) -> ComponentsForm:
        """The form of the components: of the existing tables if there are any."""
        if not self.is_made(Table.UNITS):
            return self.form
        is_nested = "components" in self.stored(spark, Table.UNITS).columns
        return ComponentsForm.NESTED if is_nested else ComponentsForm.TABLE

    def check(self) -> None:
        """Checks that no table is missing although the checkpoint has counted batches for it.

        Raises:
            StateCorruptedError: A table is missing. It would never get the rows of batches that are already counted.
        """
        if not StreamCheckpoint(self.checkpoint).is_new and not self.exist():
            remedy = "remove the checkpoint: everything that is still in the topics is then written again, and no row is doubled"
            raise StateCorruptedError(
                [], f"{self.checkpoint} counts batches of tables that are missing below {self.folder}", remedy
            )

    def upgrade(self, spark: SparkSession, outcomes_topic: str) -> None:
        """Adds to tables of an earlier release what is new since then: columns, null on existing rows, and tables.

        `units` is extended last, so `unreadable` can be missing for this reason only while `units` lacks a column; the tables of `D.outcomes`,
        only while the checkpoint has no offset of it. Nothing tells if `warnings` was ever there: it is made if it is missing.
        """
        checkpoint = StreamCheckpoint(self.checkpoint)
        if read := checkpoint.offsets(checkpoint.planned):
            for table in (Table.OUTCOMES, Table.ANSWERS) if outcomes_topic not in read else ():
                self._make(spark, table)
            self._make(spark, Table.WARNINGS)
        for table in (Table.COMPONENTS, Table.UNITS):
            if not self.is_made(table):
                continue
            there = self.stored(spark, table).columns
            lacking = [field for field in columns(table).fields if field.name not in there]
            if lacking:
                self._make(spark, Table.UNREADABLE)
                added = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in lacking)
                spark.sql(f"ALTER TABLE {self.sql_name(table)} ADD COLUMNS ({added})")

    def stored(self, spark: SparkSession, table: str) -> DataFrame:
        """The rows in a table's own files."""
        return spark.read.format("delta").load(self.path(table))

    def read(self, spark: SparkSession, table: Table) -> DataFrame:
        """The present content of a table; components are the same rows in either form."""
        rows = self.stored(spark, table)
        if table is not Table.COMPONENTS or not self.is_made(Table.UNITS):
            return rows
        return with_nested(spark, rows, self.stored(spark, Table.UNITS))

    def present(self, spark: SparkSession, table: Table, done: Collection[str] = ()) -> PresentRows:
        """The rows in a table's own files as they are now, for queries that go through all of them, and more than once.

        Where its state is recorded beside its latest commit, the files are read by name: for each place where a query reads a Delta table, Delta looks for
        its files by a job. Where Delta keeps more of a row than what is in a file (deletion vectors, other names of columns), it reads all rows.

        Args:
            spark: The session.
            table: An existing table.
            done: Names of data files to leave out.
        """
        found = self._known_files(table)
        if found is None:
            rows = self.stored(spark, table)
            if not done or set(self.path(table)) & _GLOB or self._has_more_than_files(spark, table):
                return PresentRows(rows, is_empty=self.is_empty(table))
            found = rows.schema, [unquote(urlsplit(file).path) for file in rows.inputFiles()]
        kind, files = found
        left = [file for file in files if file.rpartition("/")[2] not in done]
        if left:
            rows = spark.read.schema(kind).parquet(*left)
        else:
            nothing = (f"CAST(NULL AS {field.dataType.simpleString()}) AS `{field.name}`" for field in kind.fields)
            rows = spark.range(0).selectExpr(*nothing).where("false")
        names = (file.rpartition("/")[2] for file in files)
        return PresentRows(rows, tuple(name for name in names if name in done), is_empty=not left)

    def _known_files(self, table: Table) -> tuple[StructType, list[str]] | None:
        """Columns and data files of a table, if they are recorded and all that there is to know."""
        recorded = self._recorded(table)
        files = recorded.get("allFiles")
        if files is None or set(self.path(table)) & _GLOB or any("deletionVector" in file for file in files):
            return None
        if recorded["protocol"]["minReaderVersion"] > PROTOCOL["minReaderVersion"]:
            return None
        paths = [unquote(file["path"]) for file in files]
        if any("/" in path for path in paths):  # of a partition, or of another folder
            return None
        kind = StructType.fromJson(json.loads(recorded["metadata"]["schemaString"]))
        return kind, [f"{self.path(table)}/{path}" for path in paths]

    def _has_more_than_files(self, spark: SparkSession, table: Table) -> bool:
        """True if a reader has to know more of Delta than which files there are."""
        return bool(self._delta(spark, table).protocol().minReaderVersion() > PROTOCOL["minReaderVersion"])

    def rows(self, spark: SparkSession) -> dict[Table, int]:
        """Number of rows in each table, as Delta's log says; components in units are counted."""
        found = {table: self.count(spark, table) for table in Table}
        if found[Table.UNITS] and self.form_of(spark) is ComponentsForm.NESTED:
            found[Table.COMPONENTS] += self._nested(spark)
        return found

    def _nested(self, spark: SparkSession) -> int:
        """Number of components in rows of `units`. Footers of known files tell it, without a job."""
        known = self._known_files(Table.UNITS)
        counts = [_values(spark, file, _NUMBERS) for file in known[1]] if known else [None]
        if None not in counts:
            return sum(filter(None, counts))
        rows = self.present(spark, Table.UNITS).rows
        return rows.agg(sql.sum(sql.expr("size(components.seq)"))).collect()[0][0] or 0


_NUMBERS: Final = "components.list.element.seq"
"""The column of a Parquet file of `units` that has a value for each component."""


def _values(spark: SparkSession, file: str, column: str) -> int | None:
    """Number of values that are not null in a column of a Parquet file, by its footer; None if that does not say."""
    jvm: Any = spark.sparkContext._jvm
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    reader = jvm.org.apache.parquet.hadoop.ParquetFileReader.open(conf, jvm.org.apache.hadoop.fs.Path(file))
    try:
        chunks = [each for group in reader.getRowGroups() for each in group.getColumns()]
    finally:
        reader.close()
    chunks = [each for each in chunks if each.getPath().toDotString() == column]
    if not chunks or not all(each.getStatistics().isNumNullsSet() for each in chunks):
        return None
    return sum(int(each.getValueCount() - each.getStatistics().getNumNulls()) for each in chunks)


def tables_below(root: Folder, destinations: Sequence[str] = ()) -> list[DeltaTables]:
    """The tables of some destinations in a folder, or of all that have tables there, by name.

    Raises:
        StateCorruptedError: A destination has no tables there, or none has.
    """
    there = sorted({log.parent.parent.name for log in root.glob("*/*/_delta_log")})
    if lacking := sorted({*destinations} - {*there}) or ([] if there else ["any destination"]):
        raise StateCorruptedError([], f"there are no tables of {', '.join(lacking)} in {root}", "run `uow sink` first")
    return [DeltaTables(root, name) for name in there if not destinations or name in destinations]


_CHANGES: Final = 10
_OTHERS_WERE_FASTER: Final = ("[DELTA_CONCURRENT_", "[DELTA_METADATA_CHANGED]")

Result = TypeVar("Result")


def despite_others(change: Callable[[], Result]) -> Result:
    """Makes a change to a table, again where another writer has changed meanwhile what it has read; Delta then wrote nothing.

    An append that has read nothing of its table passes beside any change of files, at the first time.

    Raises:
        PySparkException, Py4JJavaError: The change failed for another reason, or others were faster each time.
    """
    for left in reversed(range(_CHANGES)):
        try:
            return change()
        except (PySparkException, Py4JJavaError) as error:
            if not left or not any(text in str(error) for text in _OTHERS_WERE_FASTER):
                raise
    raise AssertionError


def writer_name(checkpoint_id: str) -> str:
    """The name under which a stream writes. It contains the checkpoint's id, since a new checkpoint counts batches from 0 again."""
    return f"uow-sink:{checkpoint_id}"


def append_once(rows: DataFrame, path: str, writer: str, version: int) -> None:
    """Appends `rows`, unless this `writer` has written this or a later `version` to the table before.

    A batch that is repeated after a crash skips the tables that it had already reached (W-127).

    Args:
        rows: Rows with the table's columns.
        path: Folder of the table.
        writer: Name of the sequence of versions; it changes with the checkpoint, since a new checkpoint counts from 0 again.
        version: Number of the batch.
    """
    once = rows.write.format("delta").mode("append").option("txnAppId", writer).option("txnVersion", version)
    despite_others(lambda: once.save(path))
