"""Leaving out rows that the tables already have, after their checkpoint was lost and everything is read from the beginning again (W-127).

The last offsets in the tables are saved in the new checkpoint's folder before its first batch. Of records up to there a row is appended only if
the table has none from the same record: same coordinates, same timestamp. Later records cost nothing.

The rows of a batch that is repeated after a crash are left out in the same way, whatever wrote them.

Belongs here: these offsets, and leaving rows out. Does not belong here: tables that know the number of a batch
(`uow.spark_sink.tables.append_once`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from uow.spark_sink.checkpoint import PlannedBatch, StreamCheckpoint
from uow.spark_sink.kafka import Cluster, begins
from uow.spark_sink.tables import PLACE, DeltaTables, Table

LOG = logging.getLogger(__name__)

Reach = dict[str, dict[str, int]]
"""The last offset that a table has a row of, by topic and partition."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """Rows in the tables from records that are read again.

    Attributes:
        spark: The session.
        tables: The tables.
        reach: The last offsets in the tables when the checkpoint was new.
    """

    spark: SparkSession
    tables: DeltaTables
    reach: Reach

    @classmethod
    def of(cls, spark: SparkSession, cluster: Cluster, tables: DeltaTables, topics: Sequence[str]) -> Overlap:
        """The overlap saved with the checkpoint of these topics; it is determined and saved now if the checkpoint is new."""
        note = tables.checkpoint / "reach.json"
        if not StreamCheckpoint(tables.checkpoint).exists:
            reach = {topic: found for topic, found in _reach(spark, tables).items() if topic in topics}
            _warn_of_gaps(cluster, reach)
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(json.dumps(reach))
        return cls(spark, tables, json.loads(note.read_text()) if note.exists() else {})

    def filter(self, planned: PlannedBatch) -> Callable[[Table, DataFrame], DataFrame]:
        """A function that leaves out the rows that a table already has, for one batch.

        Args:
            planned: The batch. A repeated one may have reached any table.
        """
        bounds = planned.bounds(None if planned.is_repeated else self.reach)
        if bounds is None:
            return lambda table, rows: rows

        def lacking(table: Table, rows: DataFrame) -> DataFrame:
            if table is not Table.COMPONENTS and self.tables.is_empty(table):
                return rows
            place = PLACE[table]
            there = self.tables.read(self.spark, table).where(sql.col(place[2]).between(*bounds)).select(*place)
            return rows.join(there, [*place], "left_anti").select(*rows.columns)

        return lacking


def _reach(spark: SparkSession, tables: DeltaTables) -> Reach:
    made = [
        tables.present(spark, table).rows.select("topic", "partition", "offset")
        for table in Table
        if table is not Table.COMPONENTS and not tables.is_empty(table)
    ]
    found: Reach = {}
    if made:
        rows = reduce(DataFrame.unionAll, made).groupBy("topic", "partition").agg(sql.max("offset"))
        for topic, partition, last in rows.collect():
            found.setdefault(topic, {})[str(partition)] = last
    return found


def _warn_of_gaps(cluster: Cluster, reach: Reach) -> None:
    """Warns about records deleted by retention that may be in no table; only the lost checkpoint knew."""
    for topic, found in reach.items():
        for partition, first in begins(cluster, topic).items():
            last = found.get(str(partition), -1)
            if first > last + 1:
                LOG.warning(
                    "the checkpoint is new, and %s/%d was deleted up to offset %d by retention: "
                    "records after offset %d, if there were any, are in no table",
                    *(topic, partition, first, last),
                )
