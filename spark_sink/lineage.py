"""The topics and tables that a checkpoint belongs to: it says how far which topics are in which tables or files, and means nothing beside others.

A note in the checkpoint's folder names them by the ids that Kafka and Delta gave them: a topic that was deleted and created again, another
cluster, and new tables are others, whatever their names. A checkpoint put back from a copy is known by its batches: the tables had later
ones, under whose numbers new batches would be left out. In each case the way out is a new checkpoint: everything still in the topics is read
again, and what is there already is left out: rows by `uow.spark_sink.overlap`, files by their manifests.

Belongs here: the note, and the checks at the start of a stream. Does not belong here: reading the checkpoint (`uow.spark_sink.checkpoint`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from uow.schemas.error_classes import StateCorruptedError
from uow.spark_sink.checkpoint import StreamCheckpoint
from uow.spark_sink.folders import Folder
from uow.spark_sink.kafka import Cluster, begins, ends, topic_ids
from uow.spark_sink.tables import DeltaTables, Table, writer_name
from uow.spark_sink.unit_files import write_whole

NOTE: Final = "belongs-to.json"
_REMEDY: Final = "remove the folder {}: everything that is still in the topics is read again, and nothing is doubled"

Known = Mapping[str, Mapping[str, str]]
"""The content of a note: ids by topic and by table."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """The checkpoint of a stream, with the topics that it should belong to.

    Attributes:
        cluster: The cluster of the topics.
        folder: The folder of the checkpoint.
        topics: Topics of the stream.
    """

    cluster: Cluster
    folder: Folder
    topics: Sequence[str]

    def check(self) -> None:
        """Checks an existing checkpoint.

        Raises:
            StateCorruptedError: It belongs to other topics or tables, is older than the tables, or is behind retention.
        """
        checkpoint = StreamCheckpoint(self.folder)
        if not checkpoint.exists:
            return
        if (self.folder / NOTE).exists():
            self._compare(self._known())
        self._check_batches(checkpoint)
        self._check_positions(checkpoint)

    def save(self) -> None:
        """Writes the note; ids of topics that are no longer read stay in it."""
        note = self.folder / NOTE
        known = self._known() if note.exists() and StreamCheckpoint(self.folder).exists else {}
        content = {"topics": {**known.get("topics", {}), **topic_ids(self.cluster, self.topics)}} | self._made()
        if content != known:
            self.folder.mkdir(parents=True, exist_ok=True)
            if isinstance(note, Path):
                write_whole(note, json.dumps(content))
            else:
                note.write_text(json.dumps(content))  # object stores show a file once it is whole

    def _known(self) -> Known:
        try:
            known: Known = json.loads((self.folder / NOTE).read_text())
            return {kind: dict(ids) for kind, ids in known.items()}
        except (ValueError, AttributeError, TypeError) as error:
            raise self._refusal(
                f"has a note {NOTE} that cannot be read ({error}), so nobody knows its topics"
            ) from error

    def _made(self) -> dict[str, Mapping[str, str]]:
        """Further ids of the note, by kind."""
        return {}

    def _compare(self, known: Known) -> None:
        now, then = topic_ids(self.cluster, self.topics), known.get("topics", {})
        if then and not then.keys() & now.keys():
            raise self._refusal(f"was made for other topics: {', '.join(sorted(then))}")
        for topic in sorted(then.keys() & now.keys()):
            if then[topic] != now[topic]:
                why = "that one was of another cluster, or was deleted and created again"
                raise self._refusal(f"was made for another topic {topic}: {why}")

    def _check_batches(self, checkpoint: StreamCheckpoint) -> None:
        """Files know no batches."""

    def _check_positions(self, checkpoint: StreamCheckpoint) -> None:
        lost, beyond = [], []
        for topic, reached in checkpoint.done.items():
            if topic not in self.topics:
                continue
            first, end = begins(self.cluster, topic), ends(self.cluster, topic)
            for partition in first:
                position = reached.get(str(partition), 0)
                if first[partition] > position:
                    lost.append(f"{topic}/{partition} offsets {position} to {first[partition] - 1}")
                if end[partition] < position:
                    beyond.append(f"{topic}/{partition} ends at {end[partition]}, and was read up to {position}")
        if beyond:
            raise self._refusal(
                f"is of another log: {', '.join(beyond)}. The topic was deleted and created again, or has lost records"
            )
        if lost:
            raise self._refusal(
                f"is behind retention, which has deleted what was not yet read: {', '.join(lost)}. Lengthen retention.ms, then"
            )

    def _refusal(self, why: str) -> StateCorruptedError:
        return StateCorruptedError([], f"the checkpoint {self.folder} {why}", _REMEDY.format(self.folder))


@dataclass(frozen=True, slots=True)
class TableLineage(Lineage):
    """The same of a stream into tables, which it should belong to as well.

    Attributes:
        spark: The session.
        tables: The tables.
    """

    spark: SparkSession
    tables: DeltaTables

    def _made(self) -> dict[str, Mapping[str, str]]:
        return {"tables": {table.value: self.tables.id(self.spark, table) for table in Table}}

    def _compare(self, known: Known) -> None:
        Lineage._compare(self, known)
        for table in filter(self.tables.is_made, Table):
            found = self.tables.id(self.spark, table)
            if known.get("tables", {}).get(table, found) != found:
                raise self._refusal(f"was made for another table than {self.tables.path(table)}")

    def _check_batches(self, checkpoint: StreamCheckpoint) -> None:
        name, planned = writer_name(checkpoint.id), checkpoint.planned
        for table in filter(self.tables.is_made, Table):
            for last in self.tables.last_batches(self.spark, table, (name, f"{name}/rest")).values():
                if last > planned:
                    raise self._refusal(
                        f"is older than the tables: it has planned batches up to {planned}, and {table} has had number {last}"
                    )
