"""Maintenance of the Delta tables: small files become large ones, files that no version needs are deleted, and the result is counted.

A sink that runs all the time adds some small files to each table with each batch. `OPTIMIZE` reads files below a gigabyte and writes them as
few large ones; the rows stay the same, and so does the number of the last batch that each table has had. A sink may run meanwhile: its plain appends
pass, and a change that has read what another one replaced is made again (`uow.spark_sink.tables.despite_others`).

Delta keeps smallest and largest values of the columns for each file, for which it reads a file or skips it. Rows lie in the order in which they
came, so that a query for a span of time reads few files. Under `Z_ORDER` a query for an id does, too; that writes a whole table again.

Belongs here: these statements and their figures. Does not belong here: finding the tables to maintain, and output (`uow.cli.sink_command`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from uow.spark_sink.tables import PAYLOADS, DeltaTables, Table, despite_others

Z_ORDER: Final[dict[str, tuple[str, ...]]] = {
    Table.UNITS: ("closed_at", "id"),
    Table.COMPONENTS: ("timestamp", "id"),
    Table.REJECTED: ("timestamp", "id"),
    Table.PASSED: ("timestamp", "key"),
    Table.UNREADABLE: ("timestamp", "id"),
    Table.OUTCOMES: ("closed_at", "id"),
    Table.ANSWERS: ("at", "id"),
    Table.WARNINGS: ("at", "id"),
    PAYLOADS: ("timestamp", "id"),
}
"""Columns that people filter by: a time and an id."""

FULL_BYTES: Final = 1 << 30
"""Size from which a file is left as it is; Delta's default."""

SETTINGS: Final = {
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    "spark.databricks.delta.vacuum.logging.enabled": "true",
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
}
"""Spark properties of a maintenance. `VACUUM` lists a folder, which has no others, with as many tasks as the first one says: 10,000 by
default, which takes minutes."""

_MS_PER_HOUR: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class Maintained:
    """The result for one table.

    Attributes:
        rows: Rows in the table's own files.
        files_before: Data files of the table's latest version, before.
        files: The same, now.
        bytes: Size of these files.
        compacted: Number of files that were written together into fewer; in a dry run, that would be.
        deleted: Number of files deleted, which no version needs that is younger than the retention; in a dry run, that would be.
    """

    rows: int
    files_before: int
    files: int
    bytes: int
    compacted: int
    deleted: int


def maintain(
    spark: SparkSession,
    tables: DeltaTables,
    table: str,
    *,
    retain_ms: int,
    z_order: bool = False,
    dry_run: bool = False,
) -> Maintained:
    """Compacts a table, and deletes the files that no version younger than `retain_ms` needs.

    Args:
        spark: The session, with `SETTINGS`.
        tables: Tables of a destination.
        table: An existing table, of `DeltaTables.made`.
        retain_ms: Longer than any query or batch lasts that began before.
        z_order: Write all rows again, ordered by `Z_ORDER`.
        dry_run: Change nothing.
    """
    name = tables.sql_name(table)
    before, _ = tables.extent(spark, table)
    compacted = _small_files(spark, tables, table, z_order) if dry_run else _compact(spark, name, table, z_order)
    deleted = _vacuum(spark, name, retain_ms / _MS_PER_HOUR, dry_run)
    files, size = tables.extent(spark, table)
    return Maintained(tables.count(spark, table), before, files, size, compacted, deleted)


def _compact(spark: SparkSession, name: str, table: str, z_order: bool) -> int:
    columns = ", ".join(f"`{column}`" for column in Z_ORDER[table])
    order = f" ZORDER BY ({columns})" if z_order else ""
    [row] = despite_others(lambda: spark.sql(f"OPTIMIZE {name}{order}").collect())
    removed: int = row.metrics.numFilesRemoved
    return removed


def _small_files(spark: SparkSession, tables: DeltaTables, table: str, z_order: bool) -> int:
    """Number of files that a compaction would replace."""
    files = tables.stored(spark, table).select("_metadata.file_path", "_metadata.file_size").distinct()
    count = (files if z_order else files.where(sql.col("file_size") < FULL_BYTES)).count()
    return count if z_order or count > 1 else 0


def _vacuum(spark: SparkSession, name: str, hours: float, dry_run: bool) -> int:
    if dry_run:
        return spark.sql(f"VACUUM {name} RETAIN {hours} HOURS DRY RUN").count()
    spark.sql(f"VACUUM {name} RETAIN {hours} HOURS").collect()
    history = spark.sql(f"DESCRIBE HISTORY {name}").where("operation = 'VACUUM END'").orderBy(sql.desc("version"))
    [row] = history.select("operationMetrics.numDeletedFiles").limit(1).collect()
    return int(row.numDeletedFiles)
