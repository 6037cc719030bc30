"""The audit's first leg: from routers' inputs to `D.components` and to the refused records (B-203).

Each partition of an input, and of `D.components` of every destination that its routers lead to, is read by a task of its own; the refused records are
the rows of the tables. All of them give bits (`uow.spark_sink.routed_places`), which are put together here, in the driver.

The order of looks makes the judgement sound while everything goes on: the routers' positions first, since all that comes of the records before them is
committed with them; then the ends of `D.components`, open transactions included, which the tasks wait for; the inputs' own ends last, behind which nobody can have
routed a record.

Belongs here: the range of both sides, and what the next incremental audit begins with. Does not belong here: what is wrong with a record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Final, NamedTuple

import pyarrow as pa
from confluent_kafka import KafkaException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from uow.spark_sink.expectations import MapBatches, arrow_schema, mapper, to_arrow
from uow.spark_sink.kafka import Cluster, begins, committed, ends
from uow.spark_sink.partition_log import PartitionLog, offset_of
from uow.spark_sink.routed_places import BITS, Input, InputRange, Judgement, Places, judge, traces
from uow.spark_sink.tables import DeltaTables, Table
from uow.topics.admin import admin_client, topic_settings
from uow.topics.catalogue import DestinationTopics

_PLACES: Final = "task INT, topic STRING, partition INT, block BIGINT, once BINARY, again BINARY"
_TABLE: Final = -1


class _Task(NamedTuple):
    """A partition to read, from `start` to before `end`; of `D.components` `is_cut` if records that nobody has looked at were deleted before."""

    topic: str
    partition: int
    start: int
    end: int
    is_input: bool = False
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class RoutedMark:
    """The beginning of the next incremental audit. Partitions are named `topic/partition`, blocks `topic/partition/number`.

    Attributes:
        judged: Offset before which the records of an input were judged.
        read: Offset before which `D.components` was read.
        early: Bits in hexadecimal, of what was found there of records from `judged` on.
    """

    judged: Mapping[str, int] = field(default_factory=dict)
    read: Mapping[str, int] = field(default_factory=dict)
    early: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RoutedInputs:
    """The inputs of the routers that lead to a destination.

    Attributes:
        spark: The session.
        cluster: The cluster.
        application: The application, whose routers are the consumer group `A-router`.
        inputs: The topics.
        tables: The tables of every destination that these routers lead to.
    """

    spark: SparkSession
    cluster: Cluster
    application: str
    inputs: Sequence[str]
    tables: Sequence[DeltaTables]

    def judge(self, mark: RoutedMark) -> tuple[Judgement, RoutedMark]:
        """The judgement on all that came since `mark`, and the mark for the next one.

        Raises:
            StateCorruptedError: A topic does not exist, or retention deleted records meanwhile.
        """
        spans = {topic: committed(self.cluster, f"{self.application}-router", topic) for topic in self.inputs}
        judged = {(topic, p): mark.judged.get(f"{topic}/{p}", 0) for topic, span in spans.items() for p in span.end}
        starts = {at: max(since, spans[at[0]].start[at[1]]) for at, since in judged.items()}
        stops = {at: max(start, spans[at[0]].end[at[1]]) for at, start in starts.items()}
        tasks = [
            *(_Task(*at, start, stops[at], is_input=True) for at, start in starts.items()),
            *self._components(mark),
        ]
        there, found, lowest = self._noted(tasks)
        for name, (once, again) in mark.early.items():
            topic, partition, number = name.split("/")
            found.add((topic, int(partition), int(number)), int(once, 16), int(again, 16))
        last = {(topic, p): end for topic in self.inputs for p, end in ends(self.cluster, topic).items()}
        cut = [lowest.get(number, {}) for number, task in enumerate(tasks) if task.is_cut]
        ranges = {
            at: InputRange(
                start, stops[at], last[at], judged[at], max((low.get(at, stops[at]) for low in cut), default=0)
            )
            for at, start in starts.items()
        }
        result = judge(ranges, there, found, self._compacted())
        return result, RoutedMark(
            {f"{topic}/{p}": stop for (topic, p), stop in stops.items()},
            {f"{task.topic}/{task.partition}": task.end for task in tasks if not task.is_input},
            {"/".join(map(str, block)): (f"{once:x}", f"{again:x}") for block, (once, again) in result.early.items()},
        )

    def _components(self, mark: RoutedMark) -> Iterator[_Task]:
        for tables in self.tables:
            topic = DestinationTopics(self.application, tables.destination).components
            first, last = begins(self.cluster, topic), ends(self.cluster, topic)
            for p, end in last.items():
                reached = mark.read.get(f"{topic}/{p}", 0)
                start = max(reached, first[p])
                yield _Task(topic, p, start, max(start, end), is_cut=first[p] > reached)

    def _noted(self, tasks: Sequence[_Task]) -> tuple[Places, Places, dict[int, dict[Input, int]]]:
        """The records of the inputs, what was found of them, and of each task that is cut the lowest of each input."""
        there, found = Places(), Places()
        of_task: dict[int, Places] = {}
        for number, *block, once, again in self._collected(tasks):
            bits = (block[0], block[1], block[2]), int.from_bytes(once), int.from_bytes(again)
            is_table = number == _TABLE
            (there if not is_table and tasks[number].is_input else found).add(*bits)
            if not is_table and tasks[number].is_cut:
                of_task.setdefault(number, Places()).add(*bits)
        return there, found, {number: places.lowest() for number, places in of_task.items()}

    def _collected(self, tasks: Sequence[_Task]) -> list[Any]:
        """The rows of all tasks, and those of the tables."""
        numbers = self.spark.range(0, len(tasks), 1, len(tasks))
        frames = [numbers.mapInArrow(_Reading(self.cluster, tasks).places(), _PLACES)]
        inputs = {(task.topic, task.partition): (task.start, task.end) for task in tasks if task.is_input}
        for tables in self.tables:
            present = tables.present(self.spark, Table.REJECTED)
            if not present.is_empty:
                rows = present.rows.where(sql.col("source_topic").isin(*self.inputs))
                rows = rows.select("source_topic", "source_partition", "source_offset")
                frames.append(rows.mapInArrow(refused(inputs), _PLACES))
        return reduce(DataFrame.unionAll, frames).collect()

    def _compacted(self) -> list[str]:
        """Inputs from which compaction may have taken records; all where nobody may ask."""
        admin = admin_client(self.cluster.bootstrap_servers, self.cluster.kafka)
        try:
            return [
                topic
                for topic, told in topic_settings(admin, self.inputs).items()
                if "compact" in told.get("cleanup.policy", "")
            ]
        except KafkaException:
            return [*self.inputs]


@dataclass(frozen=True, slots=True)
class _Reading:
    """The executors' part."""

    cluster: Cluster
    tasks: Sequence[_Task]

    def places(self) -> MapBatches:
        """The function from numbers of tasks (column `id`) to places."""
        return mapper(_PLACES, self._of_task)

    def _of_task(self, number: int) -> Iterator[tuple[object, ...]]:
        task, places = self.tasks[number], Places()
        log = PartitionLog(self.cluster, task.topic, task.partition, task.start)
        try:
            for batch in log.until(task.end):
                own = ((task.topic, task.partition, offset_of(message)) for message in batch)
                for place in own if task.is_input else traces(batch):  # type: ignore[arg-type]
                    places.note(*place)
        finally:
            log.close()
        return _rows(number, places)


def refused(inputs: Mapping[Input, tuple[int, int]]) -> MapBatches:
    """The function from source coordinates of refused records to places; those that are not in these ranges are left out."""
    schema = arrow_schema(_PLACES)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        places = Places()
        for batch in batches:
            for topic, partition, offset in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                start, end = inputs.get((topic, partition), (0, 0))
                if offset is not None and start <= offset < end:
                    places.note(topic, partition, offset)
        if rows := [*_rows(_TABLE, places)]:
            yield to_arrow(rows, schema)

    return run


def _rows(task: int, places: Places) -> Iterator[tuple[object, ...]]:
    size = BITS // 8
    for (topic, partition, number), (once, again) in places.blocks.items():
        yield task, topic, partition, number, once.to_bytes(size), again.to_bytes(size)
