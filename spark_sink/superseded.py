"""Marking the rows of a unit that was written to its topic more than once: the latest one is current (W-127).

The same `uow-unit-id` twice in one topic is the same unit, emitted again: because its components were sent again after its id was forgotten,
because a worker's state was deleted and the input was read again, or by `uow rebuild` into a topic of a route. Every such record keeps its row.
The latest, by Kafka's timestamp, is *current*: its `superseded_by` is null; each of the others names the next one. Topics of routes are
independent: a copy in another topic supersedes nothing.

The units in a table are known in memory, by eight bytes each, so that a batch without a repeated unit, which is almost every batch, needs no
query of the table. The marks follow from the table alone and may be made again at any time.

Belongs here: finding and marking repeated units. Does not belong here: writing rows (`uow.spark_sink.delta_sink`).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from uow.spark_sink.tables import DeltaTables, Table

UNIT: Final = ("unit_id", "topic")


class KnownUnits:
    """Hashes of the units in a table."""

    def __init__(self) -> None:
        self._hashes = np.empty(0, np.int64)

    def add(self, units: DataFrame) -> bool:
        """Adds units.

        Args:
            units: Frame with the columns `UNIT`.

        Returns:
            True if one of them was known, or occurs twice. With a chance of one in many billions, only its hash was known.
        """
        found: Any = units.select(sql.xxhash64(*UNIT)).toArrow().column(0).to_numpy()
        both = np.sort(
            np.concatenate([self._hashes, found]), kind="stable"
        )  # already sorted except for its end, so this is fast
        is_first = np.append(True, both[1:] != both[:-1])[: len(both)]
        self._hashes = both[is_first]
        return not is_first.all()


def known_units(spark: SparkSession, tables: DeltaTables) -> KnownUnits:
    """The units in a destination's tables. Marks that are missing because of a crash are made."""
    known = KnownUnits()
    if tables.is_made(Table.UNITS):
        current = tables.read(spark, Table.UNITS).where("superseded_by IS NULL")
        if known.add(current):
            mark(spark, tables, current)
    return known


_REPEATED: Final = """
SELECT * FROM (
  SELECT unit_id, topic, partition, offset, superseded_by,
    lead(concat_ws('/', topic, partition, offset)) OVER (PARTITION BY unit_id, topic ORDER BY timestamp, partition, offset) AS by,
    lead(offset) OVER (PARTITION BY unit_id, topic, partition ORDER BY offset) AS until
  FROM {rows}
) WHERE by IS NOT NULL AND superseded_by IS NULL
"""
"""Rows of `units` to mark, with the record that each is superseded by; in shape `consecutive` a unit's records end before `until`."""

_MARK_COMPONENTS: Final = """
MERGE INTO {table} AS t USING {repeated} AS r
ON t.unit_id = r.unit_id AND t.unit_topic = r.topic AND t.unit_partition = r.partition AND t.unit_offset >= r.offset
  AND (r.until IS NULL OR t.unit_offset < r.until)
WHEN MATCHED AND t.superseded_by IS NULL THEN UPDATE SET superseded_by = r.by
"""
_MARK_UNITS: Final = """
MERGE INTO {table} AS t USING {repeated} AS r
ON t.unit_id = r.unit_id AND t.topic = r.topic AND t.partition = r.partition AND t.offset = r.offset
WHEN MATCHED THEN UPDATE SET superseded_by = r.by
"""


def mark(spark: SparkSession, tables: DeltaTables, units: DataFrame) -> None:
    """Marks the superseded rows of some units and their components. The units come last, since their marks show that the work is done.

    Args:
        spark: The session.
        tables: The tables.
        units: The units, with the columns `UNIT`.
    """
    wanted = units.select(*UNIT).distinct()
    rows = tables.read(spark, Table.UNITS).join(wanted, [*UNIT], "left_semi")
    repeated = spark.sql(_REPEATED, rows=rows).persist()
    try:
        if not repeated.isEmpty():
            for table, statement in ((Table.COMPONENTS, _MARK_COMPONENTS), (Table.UNITS, _MARK_UNITS)):
                name = tables.sql_name(table).replace("{", "{{").replace("}", "}}")
                spark.sql(statement.replace("{table}", name), repeated=repeated)
    finally:
        repeated.unpersist()
