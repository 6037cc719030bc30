"""The topics and tables that a checkpoint belongs to: it says how far which topics are in which tables, and means nothing beside others.

A note in the checkpoint's folder names them by the ids that Kafka and Delta gave them: a topic that was deleted and created again, another
cluster, and tables made anew are others, whatever their names. A checkpoint put back from a copy is known by its batches: the tables had later
ones, under whose numbers new batches would be left out. In each case the way out is a new checkpoint: everything still in the topics is read
again, and rows that the tables have already are left out (`uow.spark_sink.overlap`).

Belongs here: the note, and the checks at the start of a stream. Does not belong here: reading the checkpoint (`uow.spark_sink.checkpoint`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import SparkSession

from uow.schemas.error_classes import StateCorruptedError
from uow.spark_sink.checkpoint import StreamCheckpoint
from uow.spark_sink.kafka import Cluster, begins, topic_ids
from uow.spark_sink.tables import DeltaTables, Table, writer_name

NOTE: Final = "belongs-to.json"
_REMEDY: Final = "remove the folder {}: everything that is still in the topics is read again, and no row is doubled"


@dataclass(frozen=True, slots=True)
class Lineage:
    """The checkpoint of one destination, with what it should belong to.

    Attributes:
        spark: The session.
        cluster: The cluster of the topics.
        tables: The tables, with the folder of the checkpoint.
        topics: Topics of the stream.
    """

    spark: SparkSession
    cluster: Cluster
    tables: DeltaTables
    topics: Sequence[str]

    def check(self) -> None:
        """Checks an existing checkpoint.

        Raises:
            StateCorruptedError: It belongs to other topics or tables, is older than the tables, or is behind retention.
        """
        checkpoint = StreamCheckpoint(self.tables.checkpoint)
        if not checkpoint.exists:
            return
        note = self.tables.checkpoint / NOTE
        if note.exists():
            self._compare(json.loads(note.read_text()))
        self._check_batches(checkpoint)
        self._check_retention(checkpoint)

    def save(self) -> None:
        """Writes the note, after the tables were made; ids of topics that are no longer read stay in it."""
        note = self.tables.checkpoint / NOTE
        known = (
            json.loads(note.read_text()) if note.exists() and StreamCheckpoint(self.tables.checkpoint).exists else {}
        )
        made = {table.value: self.tables.id(self.spark, table) for table in Table}
        content = {"topics": known.get("topics", {}) | topic_ids(self.cluster, self.topics), "tables": made}
        if content != known:
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(json.dumps(content))

    def _compare(self, known: Mapping[str, Mapping[str, str]]) -> None:
        now, then = topic_ids(self.cluster, self.topics), known["topics"]
        if then and not then.keys() & now.keys():
            self._refuse(f"was made for other topics: {', '.join(sorted(then))}")
        for topic in sorted(then.keys() & now.keys()):
            if then[topic] != now[topic]:
                why = "that one was of another cluster, or was deleted and created again"
                self._refuse(f"was made for another topic {topic}: {why}")
        for table in filter(self.tables.is_made, Table):
            found = self.tables.id(self.spark, table)
            if known["tables"].get(table, found) != found:
                self._refuse(f"was made for another table than {self.tables.path(table)}")

    def _check_batches(self, checkpoint: StreamCheckpoint) -> None:
        name, planned = writer_name(checkpoint.id), checkpoint.planned
        for table in filter(self.tables.is_made, Table):
            for last in self.tables.last_batches(self.spark, table, (name, f"{name}/rest")).values():
                if last > planned:
                    self._refuse(
                        f"is older than the tables: it has planned batches up to {planned}, and {table} has had number {last}"
                    )

    def _check_retention(self, checkpoint: StreamCheckpoint) -> None:
        done = checkpoint.done
        lost = []
        for topic, reached in done.items():
            if topic not in self.topics:
                continue
            for partition, first in begins(self.cluster, topic).items():
                next_one = reached.get(str(partition), 0)
                if first > next_one:
                    lost.append(f"{topic}/{partition} offsets {next_one} to {first - 1}")
        if lost:
            self._refuse(
                f"is behind retention, which has deleted what was not yet in the tables: {', '.join(lost)}. Lengthen retention.ms, then"
            )

    def _refuse(self, why: str) -> None:
        raise StateCorruptedError(
            [], f"the checkpoint {self.tables.checkpoint} {why}", _REMEDY.format(self.tables.checkpoint)
        )
