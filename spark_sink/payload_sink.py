"""The stream from a destination's tables into `payloads`: the payload of each component as typed columns, where it is declared.

It reads what the sink has appended to `units` and `components`, in batches of its own, so that the sink itself does no more than without a
declaration, and so that a declaration made later has all rows as well. Each batch is appended under its number, once.

Belongs here: the stream and the table. Does not belong here: types and expressions (`uow.spark_sink.payload_columns`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import DataType, StructType

from uow.schemas.error_classes import ConfigError, DecodeError, StateCorruptedError
from uow.schemas.registry import connect
from uow.spark_sink.checkpoint import StreamCheckpoint
from uow.spark_sink.delta_sink import DeltaSink, Progress, Written, run_batches
from uow.spark_sink.folders import Folder
from uow.spark_sink.payload_columns import (
    BARE,
    KIND,
    MOST_FIELDS,
    MOST_VERSIONS,
    SETTING,
    Declaration,
    IncompatibleError,
    Version,
    avro_name,
    avro_version,
    fields_of,
    json_version,
    merged,
    nullable,
    typed,
)
from uow.spark_sink.tables import PAYLOADS, ComponentsForm, DeltaTables, Table, append_once

BATCH_BYTES: Final = "256m"
COLUMNS: Final = (
    "unit_id STRING, id STRING, generation BIGINT, position INT, seq INT, component_id STRING, timestamp TIMESTAMP, "
    "unit_topic STRING, unit_partition INT, unit_offset BIGINT"
)
"""Columns of the table before `payload` and `reason`: the component, and the record of its unit."""
_NAMES: Final = tuple(each.split(" ")[0] for each in COLUMNS.split(", "))
_NESTED: Final = """
SELECT unit_id, id, generation, CAST(at + 1 AS INT) AS position, nullif(c.seq, 0) AS seq, c.component_id, c.timestamp,
  topic AS unit_topic, partition AS unit_partition, offset AS unit_offset, c.value
FROM (SELECT *, posexplode(components) AS (at, c) FROM {units})
"""


@dataclass(frozen=True, slots=True)
class PayloadSink:
    """The stream of one destination's payloads.

    Attributes:
        spark: A session of its own, since the table's schema grows by a setting of the session: see `payload_session`.
        tables: Tables of the destination.
        declaration: Its payload.
        registry_url: Schema registry; empty for none.
    """

    spark: SparkSession
    tables: DeltaTables
    declaration: Declaration
    registry_url: str = field(default="", repr=False)

    @property
    def title(self) -> str:
        """Name of the stream, for people."""
        return f"{self.tables.destination}, payloads"

    @property
    def path(self) -> str:
        """Folder of the table."""
        return self.tables.path(PAYLOADS)

    @property
    def is_made(self) -> bool:
        """True if the table exists."""
        return self.tables.is_made(PAYLOADS)

    @property
    def checkpoint(self) -> Folder:
        """Folder in which Structured Streaming stores its position."""
        return self.tables.root / "_payload_checkpoints" / self.tables.destination

    def start(self, *, once: bool, progress: Progress = lambda title, written: None) -> StreamingQuery:
        """Starts the stream.

        Args:
            once: Take the rows that are there now and end.
            progress: Called after each batch.

        Raises:
            StateCorruptedError: Table and checkpoint do not belong together.
            ConfigError: The declaration does not fit the table.
        """
        made, began = self.is_made, (self.checkpoint / "metadata").exists()
        if made != began and (made or any((self.checkpoint / "commits").glob("[0-9]*"))):
            lacking = self.checkpoint if made else self.path
            raise StateCorruptedError(
                [],
                f"{lacking} is missing",
                f"remove {self.path} and {self.checkpoint}: the table is then made again from the others",
            )
        self.tables.make(self.spark)
        versions = Versions(self)
        self._make(versions)
        nested = self.tables.form_of(self.spark) is ComponentsForm.NESTED
        rows = self._added(Table.COMPONENTS).select(*_NAMES, "value")
        if nested:
            rows = rows.unionByName(self.spark.sql(_NESTED, units=self._added(Table.UNITS)))

        def batch(records: DataFrame, number: int) -> None:
            progress(self.title, Written(self._write(records, number, versions)))

        return run_batches(rows, f"uow payloads {self.tables.destination}", self.checkpoint, batch, once=once)

    def finish(self) -> None:
        """Called once the stream has ended well."""

    def count(self) -> int:
        """Number of rows."""
        return self.spark.read.format("delta").load(self.path).count()

    def _added(self, table: Table) -> DataFrame:
        """The rows that are appended to a table; marks of superseded rows, and compactions, add nothing."""
        options = {"skipChangeCommits": "true", "maxBytesPerTrigger": BATCH_BYTES}
        return self.spark.readStream.format("delta").options(**options).load(self.tables.path(table))

    def _make(self, versions: Versions) -> None:
        """Makes the table if it is missing; fields that it lacks come with the rows that have them."""
        table = DeltaTable.createIfNotExists(self.spark).location(self.path)
        own = DataType.fromDDL(COLUMNS)
        assert isinstance(own, StructType)
        table.addColumns(own).addColumn("payload", versions.kind).addColumn("reason", "STRING").execute()

    def _write(self, records: DataFrame, number: int, versions: Versions) -> int:
        kind = (
            sql.lit(BARE) if versions.is_json else sql.expr(KIND.format(is_framed=str(bool(self.registry_url)).lower()))
        )
        rows = records.withColumn("kind", kind)
        if versions.is_json:
            found = versions.of([BARE])
        else:
            kinds = rows.where("value IS NOT NULL").select("kind").distinct().limit(MOST_VERSIONS).collect()
            found = versions.of(sorted(row.kind for row in kinds))
        unknown = sql.concat(sql.lit(f"more than {MOST_VERSIONS} versions in one batch: "), "kind")
        made = rows.withColumn("it", typed(sql.col("value"), found, versions.kind, unknown))
        rows = made.select(*_NAMES, "it.payload", "it.reason")
        append_once(rows, self.path, f"uow-payloads:{StreamCheckpoint(self.checkpoint).id}", number)
        return records.count()


class Versions:
    """The versions of a payload that were met, and the type of the table, which has the fields of all.

    Args:
        sink: The sink.

    Raises:
        ConfigError: The declaration does not fit itself, or the table.
    """

    def __init__(self, sink: PayloadSink) -> None:
        self._spark = sink.spark
        self._registry = connect(sink.registry_url) if sink.registry_url else None
        self.is_json = not sink.declaration.avro
        self._texts = {} if self.is_json else sink.declaration.fingerprints()
        self._name = "" if self.is_json else avro_name(sink.declaration.avro[-1])
        self._found: dict[str, Version | str] = {}
        self.kind = StructType()
        if sink.is_made:
            self.kind = nullable(sink.spark.read.format("delta").load(sink.path).schema["payload"].dataType)
        if self.is_json:
            self._found[BARE] = self._take(partial(json_version, sink.declaration.json_ddl))
        for kind, text in self._texts.items():
            self._found[kind] = self._take(partial(avro_version, sink.spark, kind, text, self._name))
        if not self.kind.fields:
            raise ConfigError(SETTING, self._name, str(self._found[BARE]))

    def of(self, kinds: list[str]) -> dict[str, Version | str]:
        """How to decode values of these kinds, or the reason why they cannot be. The table's type grows by those that are new."""
        for kind in kinds:
            if kind not in self._found:
                self._found[kind] = self._new(kind)
        return {kind: self._found[kind] for kind in kinds}

    def _new(self, kind: str) -> Version | str:
        encoding, _, number = kind.partition(":")
        if self._registry is None or encoding != "registry":
            return f"no declared version has its fingerprint: {number}"
        try:
            text = self._registry.schema(int(number))
        except DecodeError as error:
            return error.detail
        found = self._take(partial(avro_version, self._spark, kind, text, self._name))
        return found if isinstance(found, Version) else f"schema id {number}: {found}"

    def _take(self, make: Callable[[], Version]) -> Version | str:
        try:
            version = make()
            kind = merged(self.kind, version.kind)
            if fields_of(kind) > MOST_FIELDS:
                raise IncompatibleError(f"it would give the table more than {MOST_FIELDS} fields")
        except IncompatibleError as error:
            return f"the version does not fit: {error}"
        assert isinstance(kind, StructType)
        self.kind = kind
        return version


def payload_sinks(
    spark: SparkSession, sinks: Sequence[DeltaSink], declared: Mapping[str, Declaration]
) -> list[PayloadSink]:
    """A sink for each destination with a declared payload."""
    return [
        PayloadSink(payload_session(spark), sink.tables, declared[sink.names.destination], sink.cluster.registry_url)
        for sink in sinks
        if sink.names.destination in declared
    ]


def payload_session(spark: SparkSession) -> SparkSession:
    """A session in which appended rows may bring new columns."""
    session = spark.newSession()
    session.conf.set("spark.databricks.delta.schema.autoMerge.enabled", "true")
    return session
