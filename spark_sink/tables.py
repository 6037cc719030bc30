"""The Delta tables of a destination: where they are, their columns, and how a batch is appended exactly once.

Belongs here: table names, columns, creation, the idempotent append, row counts. Does not belong here: what a Kafka record means
(`spark_sink.decode`) and when batches run (`spark_sink.sink`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType, StructType

from schemas.errors import StateCorruptedError

HEADERS: Final = "ARRAY<STRUCT<name: STRING, value: BINARY>>"
"""Headers as they are on the record: order, repeats and raw bytes kept."""

_OWN: Final = "topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP"
"""Coordinates of the record that a row was made of, and Kafka's timestamp of it."""


class Table(StrEnum):
    """The tables of a destination; the value is the folder's name.

    Every record of `D.units`, of a route's topic, of `D.rejected` and `D.errors` is in exactly one of `units`, `rejected`, `passed` and
    `unreadable` (W-127, W-216); `components` are the components of the rows in `units`. `unreadable` has what says it is a unit and cannot
    be read, as it came, so that no record stops the sink.
    """

    UNITS = "units"
    COMPONENTS = "components"
    REJECTED = "rejected"
    PASSED = "passed"
    UNREADABLE = "unreadable"


COLUMNS: Final[dict[Table, str]] = {
    Table.UNITS: (
        "unit_id STRING, id STRING, destination STRING, generation BIGINT, outcome STRING, reason STRING, opened_at TIMESTAMP, "
        "closed_at TIMESTAMP, expires_at TIMESTAMP, count INT, bytes BIGINT, missing ARRAY<STRUCT<first: INT, last: INT>>, "
        f"key BINARY, headers {HEADERS}, {_OWN}, superseded_by STRING"
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
}
"""Columns of each table, as Spark DDL. Columns are added at the end only.

`superseded_by` is where the record lies (`topic/partition/offset`) that gave the same unit once more, later; null on the row that stands for
the unit now.
"""

PLACE: Final[dict[Table, tuple[str, ...]]] = dict.fromkeys(Table, ("topic", "partition", "offset", "timestamp")) | {
    Table.COMPONENTS: ("unit_topic", "unit_partition", "unit_offset", "unit_id", "position")
}
"""Columns that say which record a row was made of, and which row of it: no two rows of a table have the same."""


def columns(table: Table) -> StructType:
    """Columns of a table as Spark has them."""
    kind = DataType.fromDDL(COLUMNS[table])
    assert isinstance(kind, StructType)
    return kind


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of one destination below a folder.

    Attributes:
        root: The folder given by `--tables`.
        destination: Name of the destination.
    """

    root: Path
    destination: str

    @property
    def folder(self) -> Path:
        """Folder of the destination's tables."""
        return self.root / self.destination

    def path(self, table: Table) -> str:
        """Folder of a table."""
        return str(self.folder / table)

    def sql_name(self, table: Table) -> str:
        """A table as SQL statements name it."""
        return f"delta.`{self.path(table).replace('`', '``')}`"

    @property
    def checkpoint(self) -> Path:
        """Folder where Structured Streaming keeps how far it has read."""
        return self.root / "_checkpoints" / self.destination

    def is_made(self, table: Table) -> bool:
        """Whether a table has been made."""
        return (Path(self.path(table)) / "_delta_log").is_dir()

    def exist(self) -> bool:
        """Whether every table has been made."""
        return all(map(self.is_made, Table))

    def make(self, spark: SparkSession) -> None:
        """Makes the tables that are missing, empty: for a destination that has had no record yet."""
        for table in Table:
            self._make(spark, table)

    def _make(self, spark: SparkSession, table: Table) -> None:
        if not self.is_made(table):
            spark.createDataFrame([], COLUMNS[table]).write.format("delta").mode("ignore").save(self.path(table))

    def check(self) -> None:
        """Checks that no table is missing of those that the checkpoint counts batches of.

        Raises:
            StateCorruptedError: One is: it would never have the rows of batches that are counted already.
        """
        if any((self.checkpoint / "commits").glob("[0-9]*")) and not self.exist():
            remedy = "remove the checkpoint: what the topics still have is carried again, and no row doubled"
            raise StateCorruptedError(
                [], f"{self.checkpoint} counts batches of tables that are missing below {self.folder}", remedy
            )

    def upgrade(self, spark: SparkSession) -> None:
        """Gives tables of an earlier release what has been added since: columns, null on the rows that are there, and tables.

        `units` comes last, and only where it lacks a column can a table be missing for this reason.
        """
        for table in (Table.COMPONENTS, Table.UNITS):
            if not self.is_made(table):
                continue
            there = self.read(spark, table).columns
            lacking = [field for field in columns(table).fields if field.name not in there]
            if lacking:
                self._make(spark, Table.UNREADABLE)
                added = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in lacking)
                spark.sql(f"ALTER TABLE {self.sql_name(table)} ADD COLUMNS ({added})")

    def read(self, spark: SparkSession, table: Table) -> DataFrame:
        """A table as it is now."""
        return spark.read.format("delta").load(self.path(table))

    def rows(self, spark: SparkSession) -> dict[Table, int]:
        """Number of rows in each table; Delta answers from its log."""
        return {table: self.read(spark, table).count() for table in Table}


def append_once(rows: DataFrame, path: str, writer: str, version: int) -> None:
    """Appends `rows`, unless this `writer` has written this or a later `version` to the table before.

    A batch that is run again after a crash finds the tables that it had reached already and leaves them alone (W-127).

    Args:
        rows: Rows with the table's columns.
        path: Folder of the table.
        writer: Names the sequence of versions; changes with the checkpoint, since that begins to count again.
        version: Number of the batch.
    """
    rows.write.format("delta").mode("append").option("txnAppId", writer).option("txnVersion", version).save(path)
