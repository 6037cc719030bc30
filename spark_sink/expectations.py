"""The task for one partition, in a Spark executor: reads its input and its journal, computes every fate again, and says what tables must have.

Two forms. `entries` are fingerprints, one row for each unit and topic and for each refused or plain record, with counts of all fates; `rows` are all
details (`uow.spark_sink.recompute`), and are made for ids only whose fingerprints differ.

A group that only a wall clock can have closed (`due`) counts as closed if the ledger or `D.outcomes` says so, otherwise as open. If there is no such
record any more, the tables have more than is expected here, and the comparison in detail takes them as evidence.

Belongs here: from logs to entries and rows. Does not belong here: the tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, StructType

from uow.processor.core.changes import Delivered, Dropped, Passed, Rejected, Rerouted, TakenOut, Undelivered
from uow.processor.core.partition_state import PartitionAddress
from uow.spark_sink import prints, recompute
from uow.spark_sink.journal import Journal, Recorded, arrivals
from uow.spark_sink.kafka import Cluster, OffsetSpan
from uow.spark_sink.partition_log import PartitionLog
from uow.spark_sink.recompute import FATE_OF, Arrived, Fate, Happening, Recomputation, Row, RowMaker, digest
from uow.topics import headers as names
from uow.topics.catalogue import DestinationTopics
from uow.topics.policies import DestinationPolicy

MapBatches = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

OF_ID: Final = "id"
"""Everything that has a group id; the key is the id."""
OF_PLACE: Final = "place"
"""A refused record without a readable id; the key is its coordinates."""
PLAIN: Final = "plain"
"""A plain record of a partition with its whole input; the key is partition and rank."""
SOME_PLAIN: Final = "some plain"
"""A plain record of a partition of which retention has deleted records; the key is partition and content."""
REROUTED: Final = "rerouted"
"""A record that was sent on; the key is its content."""
UNREADABLE: Final = "unreadable"
"""A record that cannot be read; the key is its coordinates."""
COUNT: Final = "count"
"""A number of records or of groups: the key is `record` or `group`, partition, and fate or outcome; `unread` for records after the range."""
UNREAD: Final = "unread"

ENTRIES: Final = (
    "kind STRING, key STRING, a BIGINT, b BIGINT, expected BIGINT, outside BIGINT, turn BIGINT, partition INT"
)
"""Columns of entries; `outside` is 1 for an id that cannot be judged. `turn` is the number of a unit in `D.units` among those of its partition, in the
order of their closing; null where time alone closed it and no later record tells when."""

ROWS: Final = recompute.COLUMNS + ", recorded_outcome STRING, recorded_at BIGINT, recorded_in STRING"
"""Columns of rows. `recorded_*` is the recorded closing of a group; of groups with `due` the earliest one with the same outcome."""

LOST: Final = "lost"
"""Kind of a row for a record of the journal that cannot be read: `id` is its place, `error_case` the reason."""

_ROWS_OF_BATCH: Final = 5_000


class Entry(NamedTuple):
    """One entry; see `ENTRIES`."""

    kind: str
    key: str
    a: int = 0
    b: int = 0
    expected: int = 0
    outside: int = 0
    turn: int | None = None
    partition: int | None = None


class Told(NamedTuple):
    """A fate with what the journal says of it."""

    happening: Happening
    recorded: Recorded | None = None


@dataclass(frozen=True, slots=True)
class Expectations:
    """The expectations of a destination; sent to the executors.

    Attributes:
        cluster: The cluster.
        topics: Names of the topics.
        policy: Settings of the destination.
        span: Range of the input.
    """

    cluster: Cluster
    topics: DestinationTopics
    policy: DestinationPolicy
    span: OffsetSpan

    def entries(self) -> MapBatches:
        """The function from partition numbers (column `id`) to entries."""
        return _mapper(ENTRIES, lambda partition: _PartitionTask(self, partition).entries())

    def rows(self, ids: frozenset[str] | None) -> MapBatches:
        """The function from partition numbers (column `id`) to rows.

        Args:
            ids: Group ids to which the rows are limited; None for all. Rows without id are always made.
        """
        return _mapper(ROWS, lambda partition: _PartitionTask(self, partition).rows(ids))


def _mapper(columns: str, make: Callable[[int], Iterable[Sequence[Any]]]) -> MapBatches:
    schema = arrow_schema(columns)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for partition in batch.column(0).to_pylist():
                ready: list[Sequence[Any]] = []
                for row in make(partition):
                    ready.append(row)
                    if len(ready) >= _ROWS_OF_BATCH:
                        yield _arrow(ready, schema)
                        ready = []
                if ready:
                    yield _arrow(ready, schema)

    return run


def arrow_schema(ddl: str) -> pa.Schema:
    """Columns as an Arrow schema. It uses Spark's parser, so it works in the driver only."""
    kind = DataType.fromDDL(ddl)
    assert isinstance(kind, StructType)
    return to_arrow_schema(kind)


def _arrow(rows: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


class _PartitionTask:
    """The work for one partition."""

    def __init__(self, wanted: Expectations, partition: int) -> None:
        topics, span = wanted.topics, wanted.span
        self._wanted, self._partition = wanted, partition
        self._start, self._end = span.start[partition], span.end[partition]
        self._place = PartitionAddress(topics.destination, topics.components, partition, len(span.end))
        self._maker = RowMaker(self._place, wanted.policy)
        self._received = 0
        self._unread = 0
        self._turn = 0
        self._came: Counter[str] = Counter()
        self._unknown: set[str] = set()
        self._unreadable: list[tuple[str, str]] = []

    def _told(self) -> Iterator[Told]:
        """All fates, with what the journal says of them. Afterwards the fields have the rest."""
        wanted = self._wanted
        log = PartitionLog(wanted.cluster, wanted.topics.components, self._partition, self._start)
        journal = Journal(wanted.cluster, wanted.topics, self._partition, self._start, self._end)
        recomputation = Recomputation(self._place, wanted.policy)
        try:
            for batch in log.until(self._end):
                records = arrivals(batch, log.hidden)
                self._take(records)
                recomputation.obey(journal.orders(records[-1].offset() + 1))
                for happening in [*recomputation.on_records(records)]:
                    yield _told(happening, journal, recomputation.clock)
            recomputation.obey(journal.orders())
            for happening in recomputation.finish():
                yield _told(happening, journal)
            for batch in log.rest():
                self._unread += len(batch)
                self._note_rerouted(arrivals(batch, log.hidden))
            self._unknown = journal.changed_by_lost_commands()
            self._unreadable = journal.unreadable
        finally:
            journal.close()
            log.close()

    def _take(self, records: Sequence[Arrived]) -> None:
        self._received += len(records)
        self._note_rerouted(records)

    def _note_rerouted(self, records: Iterable[Arrived]) -> None:
        for record in records:
            headers = record.shown
            if names.REROUTED in dict(headers):
                before = [pair for pair in headers if pair[0] != names.REROUTED]
                self._came[digest(record.key(), record.value(), before).hex()] += 1

    # -- fingerprints -----------------------------------------------------------------------------------------------

    def entries(self) -> Iterator[Entry]:
        counts: Counter[str] = Counter()
        units: Counter[str] = Counter()
        rank = 0
        for happening, recorded in self._told():
            effect, record, group, due = happening
            match effect:
                case Delivered() | Undelivered():
                    assert group is not None
                    if due is not None and recorded is None:
                        counts[Fate.OPEN] += len(group.held)
                        units["open"] += 1
                        continue
                    counts[FATE_OF[effect.closed.outcome]] += len(group.held)
                    units[effect.closed.outcome.value] += 1
                    yield from self._closed(happening, recorded)
                case TakenOut():
                    assert group is not None
                    row = self._maker.taken_out(group, effect)
                    counts[Fate.CANCELLED] += 1
                    yield self._refused(row)
                case None:
                    assert group is not None
                    counts[Fate.OPEN] += len(group.held)
                case Rejected() | Passed() | Rerouted() | Dropped():
                    assert record is not None
                    row = self._maker.alone(record, effect)
                    counts[row.fate] += 1
                    content = (row.content or b"").hex()
                    match row.fate:
                        case Fate.REJECTED:
                            yield self._refused(row)
                        case Fate.REROUTED:
                            yield Entry(REROUTED, content, expected=1)
                        case Fate.PASSED if self._start:
                            yield Entry(SOME_PLAIN, f"{self._partition}/{content}", expected=1)
                        case Fate.PASSED:
                            rank += 1
                            a, b = prints.halves(prints.of_bytes(content.encode()))
                            yield Entry(PLAIN, f"{self._partition}/{rank}", a, b, 1)
        counts[Fate.UNACCOUNTED] = self._received - counts.total()
        for kind, numbers in ((recompute.RECORD, counts), (recompute.GROUP, units)):
            yield from (Entry(COUNT, f"{kind}/{self._partition}/{of}", expected=n) for of, n in numbers.items() if n)
        yield Entry(COUNT, f"{UNREAD}/{self._partition}/", expected=self._unread)
        yield from (Entry(REROUTED, content, expected=-n) for content, n in self._came.items())
        yield from (Entry(OF_ID, group_id, outside=1) for group_id in self._unknown)
        yield from (Entry(UNREADABLE, place, expected=1) for place, _ in self._unreadable)

    def _closed(self, happening: Happening, recorded: Recorded | None) -> Iterator[Entry]:
        effect, _, group, due = happening
        assert group is not None
        assert isinstance(effect, Delivered | Undelivered)
        row = self._maker.group(group, effect, due)
        assert row.id is not None
        if recorded is not None and (due is None or recorded.at < due):
            yield Entry(OF_ID, row.id, 1)  # no table has this: it makes the id differ
        for topic in row.topics or ():
            bodies = group.in_order()
            both = prints.of_components(row, topic, bodies)
            both ^= prints.of_unit(row, self._wanted.topics.destination, topic)
            turn = None
            if due is None and topic == self._wanted.topics.units:
                self._turn = turn = self._turn + 1
            yield Entry(OF_ID, row.id, *prints.halves(both), 1 + len(bodies), turn=turn, partition=self._partition)
        for part in self._maker.given_up(group, effect.closed, row):
            yield self._refused(part)

    def _refused(self, row: Row) -> Entry:
        topics = self._wanted.topics
        topic = topics.rejected if row.fate == Fate.REJECTED else topics.errors
        a, b = prints.halves(prints.of_refused(row, topic))
        place = f"{row.partition}/{row.offset}"
        return Entry(OF_PLACE, place, a, b, 1) if row.id is None else Entry(OF_ID, row.id, a, b, 1)

    # -- details ----------------------------------------------------------------------------------------------------

    def rows(self, ids: frozenset[str] | None) -> Iterator[tuple[Any, ...]]:
        """Rows with their recorded closings; and a row for each rerouted record that arrived."""
        nothing = (None, None, None)
        for happening, recorded in self._told():
            group = happening.group
            if ids is not None and group is not None and group.id.decode() not in ids:
                continue
            closing = nothing if recorded is None else tuple(recorded)
            for row in self._maker.rows(happening):
                if ids is None or row.id is None or row.id in ids:
                    yield *row, *closing
        for content, count in self._came.items():
            yield *Row(REROUTED, "", self._partition, content=bytes.fromhex(content), size=count), *nothing
        for place, reason in self._unreadable:
            yield *Row(LOST, "", self._partition, id=place, error_case=reason), *nothing


def _told(happening: Happening, journal: Journal, clock: int | None = None) -> Told:
    """The fate of a closed group with the recorded closing that counts.

    That is the earliest one with the same outcome if only time closes the group, and else the first one with another outcome.
    """
    effect, _, group, due = happening
    if group is None or not isinstance(effect, Delivered | Undelivered):
        return Told(happening)
    found = (
        journal.closings(group.id, group.generation)
        if clock is None
        else journal.closings(group.id, group.generation, clock)
    )
    is_same = [each for each in found if each.outcome == effect.closed.outcome.value]
    if due is not None:
        return Told(happening, min(is_same, key=lambda each: each.at, default=None))
    return Told(happening, next((each for each in found if each not in is_same), None))
