"""What the tables have already when their checkpoint is new: it was lost, and everything is read from the beginning again (W-127).

How far the tables reach is noted in the new checkpoint's folder before its first batch. Of records up to there a row is appended only where
the table has none that was made of the same record: same place, same timestamp. Records behind cost nothing.

Belongs here: that note, and leaving rows out. Does not belong here: a batch that is run again under its own checkpoint
(`spark_sink.tables.append_once`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from spark_sink.kafka import Cluster, begins
from spark_sink.tables import PLACE, Table, Tables

LOG = logging.getLogger(__name__)

Reach = dict[str, dict[str, int]]
"""The last offset that a table has a row of, by topic and partition."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """Rows that the tables have of records which are read again.

    Attributes:
        spark: The session.
        tables: The tables.
        reach: How far they reached when the checkpoint was new.
    """

    spark: SparkSession
    tables: Tables
    reach: Reach

    @classmethod
    def of(cls, spark: SparkSession, cluster: Cluster, tables: Tables, topics: Sequence[str]) -> Overlap:
        """What is noted with the checkpoint of these topics; noted now, where it is new."""
        note = tables.checkpoint / "reach.json"
        if not (tables.checkpoint / "metadata").exists():
            reach = {topic: found for topic, found in _reach(spark, tables).items() if topic in topics}
            _tell_gaps(cluster, reach)
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(json.dumps(reach))
        return cls(spark, tables, json.loads(note.read_text()) if note.exists() else {})

    def filter(self, records: DataFrame) -> Callable[[Table, DataFrame], DataFrame]:
        """What leaves out the rows that a table has already, for one batch of records."""
        if not self.reach:
            return lambda table, rows: rows
        noted = [(topic, int(p), last) for topic, found in self.reach.items() for p, last in found.items()]
        reach = self.spark.createDataFrame(noted, "topic STRING, partition INT, last BIGINT")
        old = records.join(sql.broadcast(reach), ["topic", "partition"]).where("offset <= last")
        first, last = old.agg(sql.min("offset"), sql.max("offset")).collect()[0]
        if first is None:
            return lambda table, rows: rows

        def lacking(table: Table, rows: DataFrame) -> DataFrame:
            if not self.tables.is_made(table):
                return rows
            place = PLACE[table]
            there = self.tables.read(self.spark, table).where(sql.col(place[2]).between(first, last)).select(*place)
            return rows.join(there, [*place], "left_anti").select(*rows.columns)

        return lacking


def _reach(spark: SparkSession, tables: Tables) -> Reach:
    made = [
        tables.read(spark, table).select("topic", "partition", "offset")
        for table in Table
        if table is not Table.COMPONENTS and tables.is_made(table)
    ]
    found: Reach = {}
    if made:
        rows = reduce(DataFrame.unionAll, made).groupBy("topic", "partition").agg(sql.max("offset"))
        for topic, partition, last in rows.collect():
            found.setdefault(topic, {})[str(partition)] = last
    return found


def _tell_gaps(cluster: Cluster, reach: Reach) -> None:
    """Says where retention has taken records that no table may have: the lost checkpoint alone knew."""
    for topic, found in reach.items():
        for partition, first in begins(cluster, topic).items():
            last = found.get(str(partition), -1)
            if first > last + 1:
                LOG.warning(
                    "the checkpoint is new, and retention has taken %s/%d up to offset %d: "
                    "records behind offset %d, if there were any, are in no table",
                    *(topic, partition, first, last),
                )
