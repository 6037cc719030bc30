"""Which row stands for a unit that was written to its topic more than once (W-127).

The same `uow-unit-id` twice in one topic is the same unit, emitted again: after the memory of closed ids ran out and its components were sent
again, after a worker's state was removed and the input read anew, or by `uow rebuild` into a topic of a route. Every such record is a fact and keeps
its row. The latest, by Kafka's timestamp, is *current*: its `superseded_by` is null; each of the others names the next one. Topics of routes are
judged one by one: a copy in another topic supersedes nothing.

Which units a table has is known in memory, eight bytes each, so that a batch without a repeated one, and that is almost every batch, costs no
look into the table. What is marked follows from the table alone: it may be done again at any time.

Belongs here: noticing and marking. Does not belong here: writing rows (`spark_sink.sink`).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from spark_sink.tables import Table, Tables

UNIT: Final = ("unit_id", "topic")


class KnownUnits:
    """Hashes of the units that a table has."""

    def __init__(self) -> None:
        self._hashes = np.empty(0, np.int64)

    def add(self, units: DataFrame) -> bool:
        """Takes note of units.

        Args:
            units: With the columns `UNIT`.

        Returns:
            Whether one of them was known, or is there twice; once in many billions of times only its hash was.
        """
        found: Any = units.select(sql.xxhash64(*UNIT)).toArrow().column(0).to_numpy()
        both = np.sort(np.concatenate([self._hashes, found]), kind="stable")  # sorted but for its end: quick
        is_first = np.append(True, both[1:] != both[:-1])[: len(both)]
        self._hashes = both[is_first]
        return not is_first.all()


def known_units(spark: SparkSession, tables: Tables) -> KnownUnits:
    """The units that a destination's tables have; what was not marked before a crash is marked."""
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


def mark(spark: SparkSession, tables: Tables, units: DataFrame) -> None:
    """Marks the superseded rows of some units and their components; the units last, since they tell what is left to do.

    Args:
        spark: The session.
        tables: The tables.
        units: Which, with the columns `UNIT`.
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
