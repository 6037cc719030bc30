"""The task for one partition, in a Spark executor: reads its input and its journal, computes every fate again, and says what tables must have.

Two forms. `entries` are fingerprints, one row for each unit and topic and for each refused or plain record, with counts of all fates; `rows` are all
details (`uow.spark_sink.recompute`), and are made for ids only whose fingerprints differ.

A group that only a wall clock can have closed (`due`) counts as closed if the ledger or `D.outcomes` says so, otherwise as open. If there is no such
record any more, the tables have more than is expected here, and the comparison in detail takes them as evidence.

Belongs here: from logs to entries and rows. Does not belong here: the tables.
"""

from __future__ import annotations

import gc
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, StructType

from uow.processor.core.changes import Delivered, TakenOut, Undelivered
from uow.processor.core.group import Group
from uow.processor.core.partition_state import PartitionAddress
from uow.processor.core.snapshot import restore, take
from uow.schemas.error_classes import UowError
from uow.schemas.records import UnitOutcome
from uow.spark_sink import prints, recompute
from uow.spark_sink.audit_keys import AuditKeys
from uow.spark_sink.audit_state import LIMIT_BYTES, JournalMark, PartitionMark, read_mark, write_mark
from uow.spark_sink.destination_rules import NO_RULES, DestinationRules
from uow.spark_sink.journal import Journal, Recorded, arrivals
from uow.spark_sink.kafka import Cluster, OffsetSpan
from uow.spark_sink.partition_log import PartitionLog
from uow.spark_sink.recompute import FATE_OF, Arrived, Fate, Happening, Recomputation, Row, RowMaker, digest
from uow.spark_sink.told_placement import ToldPlacement
from uow.topics import headers as names
from uow.topics.catalogue import DestinationTopics
from uow.topics.commands import CommandReader
from uow.topics.headers import Reading
from uow.topics.partitioner import partition_for
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
CORRECTED: Final = "corrected"
"""In place of the outcome of a unit that takes the place of another one, which is counted by its own."""

ENTRIES: Final = "kind STRING, key STRING, a BIGINT, b BIGINT, expected BIGINT, outside BIGINT, turn BIGINT, partition INT, fate STRING, n BIGINT, stays BOOLEAN"
"""Columns of entries; `outside` is 1 for an id that cannot be judged. `turn` is the number of a unit in `D.units` among those of its partition, in the
order of their closing; null where time alone closed it and no later record tells when. `n` is the number of records with the fate. `stays` is false where the
next incremental audit computes the entry again."""

ROWS: Final = recompute.COLUMNS + ", recorded_outcome STRING, recorded_at BIGINT, recorded_in STRING"
"""Columns of rows. `recorded_*` is the recorded closing of a group; of groups with `due` the earliest one with the same outcome."""

LOST: Final = "lost"
"""Kind of a row for a record of the journal that cannot be read: `id` is its place, `error_case` the reason."""

_ROWS_OF_BATCH: Final = 5_000
_OBJECTS_OF_COLLECTION: Final = 200_000
"""Objects made before Python looks for garbage. There is hardly any; with its own 700 looking takes a third of a recomputation."""


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
    fate: str | None = None
    n: int = 0
    stays: bool = True


class Told(NamedTuple):
    """A fate with what the journal says of it; `stays` is false for what follows from the state at the end of the range alone."""

    happening: Happening
    recorded: Recorded | None = None
    stays: bool = True


@dataclass(frozen=True, slots=True)
class Expectations:
    """The expectations of a destination; sent to the executors.

    Attributes:
        cluster: The cluster.
        topics: Names of the topics.
        policy: Settings of the destination.
        span: Range of the input.
        begin: Folder of the state to go on from; None for the beginning of the range.
        leave: Folder for the state at the end of the range; None for none.
        cut_ledgers: Partitions of which retention has deleted the beginning of the ledger, as far as nothing before the range was read of it.
        rules: Rules of the destination.
        is_nested: True if the components are in the rows of `units`.
        asides: Why records were set aside, by partition and offset (`uow.spark_sink.recompute`).
    """

    cluster: Cluster
    topics: DestinationTopics
    policy: DestinationPolicy
    span: OffsetSpan
    begin: Path | None = None
    leave: Path | None = None
    cut_ledgers: frozenset[int] = frozenset()
    rules: DestinationRules = NO_RULES
    is_nested: bool = False
    asides: Mapping[int, Mapping[int, UowError]] = field(default_factory=dict)

    @property
    def keys(self) -> AuditKeys:
        """The keys of ids."""
        return AuditKeys.of(self.rules, self.topics, self.span)

    def entries(self) -> MapBatches:
        """The function from partition numbers (column `id`) to entries."""
        return mapper(ENTRIES, lambda partition: _PartitionTask(self, partition).entries())

    def rows(self, ids: frozenset[str] | None) -> MapBatches:
        """The function from partition numbers (column `id`) to rows.

        Args:
            ids: Keys of groups to which the rows are limited; None for all. Rows that places are the keys of are always made.
        """
        return mapper(ROWS, lambda partition: _PartitionTask(self, partition).rows(ids))


def mapper(columns: str, make: Callable[[int], Iterable[Sequence[Any]]]) -> MapBatches:
    """The function from numbers (column `id`) to the rows that `make` gives for each, with these columns."""
    schema = arrow_schema(columns)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with _rare_collections():
            for partition in (each for batch in batches for each in batch.column(0).to_pylist()):
                rows = iter(make(partition))
                while ready := [*islice(rows, _ROWS_OF_BATCH)]:
                    yield to_arrow(ready, schema)

    return run


@contextmanager
def _rare_collections() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(_OBJECTS_OF_COLLECTION)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def arrow_schema(ddl: str) -> pa.Schema:
    """Columns as an Arrow schema. It uses Spark's parser, so it works in the driver only."""
    kind = DataType.fromDDL(ddl)
    assert isinstance(kind, StructType)
    return to_arrow_schema(kind)


def to_arrow(rows: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Rows as Arrow."""
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
        self._placement = ToldPlacement(partition, Reading.of(wanted.policy)) if wanted.policy.has_paths else None
        belongs = self._placement or partition_for
        self._place = PartitionAddress(topics.destination, topics.components, partition, len(span.end), belongs)
        self._maker = RowMaker(self._place, wanted.policy)
        self._keys = wanted.keys
        self._state = recompute.empty_partition(self._place, wanted.policy, wanted.rules.rows)
        if self._placement is not None:
            self._placement.follow(self._state.closed)
        mark = None if wanted.begin is None else read_mark(mark_file(wanted.begin, partition))
        first = JournalMark(clock=None if partition in wanted.cut_ledgers else 0)
        self._journal_mark = first if mark is None else mark.journal
        self._turn, self._rank = (0, 0) if mark is None else (mark.turn, mark.rank)
        if mark is not None:
            restore(self._state, mark.snapshot)
        self._received = sum(group.record_count for group in self._state.groups.values())
        self._unread = 0
        self._came: Counter[str] = Counter()
        self._came_later: Counter[str] = Counter()
        self._unknown: set[str] = set()
        self._generations: dict[str, int] = {}
        self._unreadable: list[tuple[str, str]] = []

    def _told(self) -> Iterator[Told]:
        """All fates, with what the journal says of them. Afterwards the fields have the rest."""
        wanted, end = self._wanted, self._end
        log = PartitionLog(
            wanted.cluster, wanted.topics.components, self._partition, max(self._start, self._state.position)
        )
        journal = Journal(
            wanted.cluster,
            wanted.topics,
            self._partition,
            self._start,
            end,
            CommandReader(wanted.topics.destination, wanted.policy),
            self._journal_mark,
            self._placement,
            has_rules=bool(wanted.rules.rows),
        )
        asides = wanted.asides.get(self._partition, {})
        recomputation = Recomputation(self._place, wanted.policy, (), self._state, self._placement, asides)
        try:
            for batch in log.until(end):
                records = arrivals(batch, log.hidden)
                self._take(records)
                recomputation.obey(journal.orders(records[-1].offset() + 1))
                for happening in [*recomputation.on_records(records)]:
                    yield _told(happening, journal, self._state.clock)
            for happening in [*recomputation.settle()]:
                yield _told(happening, journal, self._state.clock)
            self._leave(journal)
            recomputation.obey(journal.orders())
            for happening in recomputation.finish():
                yield _told(happening, journal)._replace(stays=False)
            for batch in log.rest():
                self._unread += len(batch)
                self._came_later.update(_rerouted(arrivals(batch, log.hidden)))
            self._unknown |= journal.changed_by_lost_commands()
            if self._placement is not None:
                self._unknown |= {group_id.decode() for group_id in self._placement.doubtful}
            self._unreadable = journal.unreadable
        finally:
            journal.close()
            log.close()

    def _leave(self, journal: Journal) -> None:
        """Writes the state, if it is wanted and not too large; all fates before were told."""
        folder, state = self._wanted.leave, self._state
        if folder is None or state.held_bytes + state.kept_bytes > LIMIT_BYTES:
            return
        state.position = max(state.position, self._end)
        path = mark_file(folder, self._partition)
        unfinished = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
        write_mark(unfinished, PartitionMark(take(state), journal.mark(state), self._turn, self._rank))
        unfinished.replace(path)

    def _take(self, records: Sequence[Arrived]) -> None:
        self._received += len(records)
        self._came.update(_rerouted(records))
        if self._placement is not None and self._wanted.cut_ledgers:
            self._unknown |= {
                marks.id.decode()
                for record in records
                if names.REROUTED in dict(record.shown)
                if (marks := self._state.reading.read(record.shown, record.value())) is not None
                and marks.id is not None
            }

    # -- fingerprints -----------------------------------------------------------------------------------------------

    def entries(self) -> Iterator[Entry]:
        counts: Counter[str] = Counter()
        units: Counter[str] = Counter()
        for told in self._told():
            effect, _, group, due = told.happening
            match effect:
                case Delivered() | Undelivered():
                    assert group is not None
                    if due is not None and told.recorded is None:
                        counts[Fate.OPEN] += group.record_count
                        units["open"] += 1
                        continue
                    counts[FATE_OF[effect.closed.outcome]] += fresh_in(group)
                    units[CORRECTED if group.supersedes else effect.closed.outcome.value] += 1
                    entries = self._closed(told)
                    for row in self._maker.pieces(group, effect.closed, due):
                        counts[row.fate] += 1
                        entries = chain(entries, [self._refused(row)])
                case TakenOut():
                    assert group is not None
                    counts[FATE_OF[effect.outcome]] += 1
                    entries = iter([self._refused(self._maker.taken_out(group, effect))])
                case None:
                    assert group is not None
                    counts[Fate.OPEN] += group.record_count
                    continue
                case _:
                    entries = self._alone(told, counts)
            yield from entries if told.stays else (entry._replace(stays=False) for entry in entries)
        counts[Fate.UNACCOUNTED] = self._received - self._state.counts.joined - counts.total()
        for kind, numbers in ((recompute.RECORD, counts), (recompute.GROUP, units)):
            yield from (Entry(COUNT, f"{kind}/{self._partition}/{of}", expected=n) for of, n in numbers.items() if n)
        yield Entry(COUNT, f"{UNREAD}/{self._partition}/", expected=self._unread)
        for came, stays in ((self._came, True), (self._came_later, False)):
            yield from (Entry(REROUTED, content, expected=-n, stays=stays) for content, n in came.items())
        yield from (Entry(OF_ID, key, outside=1) for key in self._unknown_keys())
        yield from (Entry(UNREADABLE, place, expected=1) for place, _ in self._unreadable)

    def _unknown_keys(self) -> Iterator[str]:
        """Of ids that cannot be judged. By rule that is every generation which there may be; after a release of a whole rule, of every id of it."""
        for group_id in self._unknown:
            if not self._keys.rules or (group_id and not self._keys.is_by_rule(group_id)):
                yield group_id
                continue
            for each, newest in self._generations.items():
                if group_id in ("", each):
                    yield from (self._keys.of_group(each, generation) for generation in range(1, newest + 2))

    def _note(self, group_id: str, generation: int | None) -> str:
        """The key of a group, of which the highest generation is noted."""
        if self._keys.is_by_rule(group_id):
            self._generations[group_id] = max(self._generations.get(group_id, 0), generation or 0)
        return self._keys.of_group(group_id, generation)

    def _alone(self, told: Told, counts: Counter[str]) -> Iterator[Entry]:
        record = told.happening.record
        assert record is not None
        assert told.happening.effect is not None
        row = self._maker.alone(record, told.happening.effect)
        counts[row.fate] += 1
        content = (row.content or b"").hex()
        match row.fate:
            case Fate.REJECTED:
                yield self._refused(row)
            case Fate.REROUTED:
                yield Entry(REROUTED, content, expected=1)
            case Fate.PASSED if self._start:
                yield Entry(SOME_PLAIN, f"{self._partition}/{content}", expected=1, fate=row.fate, n=1)
            case Fate.PASSED:
                self._rank += 1
                a, b = prints.halves(prints.of_bytes(content.encode()))
                yield Entry(PLAIN, f"{self._partition}/{self._rank}", a, b, 1, fate=row.fate, n=1)

    def _closed(self, told: Told) -> Iterator[Entry]:
        (effect, _, group, due), recorded, _ = told
        assert group is not None
        assert isinstance(effect, Delivered | Undelivered)
        row = self._maker.group(group, effect, due)
        assert row.id is not None
        key = self._note(row.id, row.generation)
        if recorded is not None and (due is None or recorded.at < due):
            yield Entry(OF_ID, key, 1)  # no table has this: it makes the id differ
        for topic in row.topics or ():
            bodies = group.in_order()
            is_nested = self._wanted.is_nested and row.is_listed and not row.is_run
            within, is_free = bodies if is_nested else None, topic in self._keys.free_topics
            both = prints.of_unit(row, self._wanted.topics.destination, topic, within, is_free=is_free)
            if row.is_listed and not is_nested:
                both ^= prints.of_components(row, topic, bodies)
            turn = None
            is_early = group.ruled is not None and effect.closed.outcome is not UnitOutcome.COMPLETE
            if due is None and topic == self._wanted.topics.units and not is_early:
                self._turn = turn = self._turn + 1
            count = len(bodies)
            halves = prints.halves(both)
            rows = 1 + (count if row.is_listed else 0)
            yield Entry(OF_ID, key, *halves, rows, 0, turn, self._partition, Fate.DELIVERED, fresh_in(group))
        for part in self._maker.given_up(group, effect.closed, row):
            yield self._refused(part)

    def _refused(self, row: Row) -> Entry:
        topics = self._wanted.topics
        topic = topics.rejected if row.fate == Fate.REJECTED else topics.errors
        a, b = prints.halves(prints.of_refused(row, topic))
        is_id = row.id is not None and not self._keys.is_by_rule(row.id)
        kind, key = (OF_ID, row.id or "") if is_id else (OF_PLACE, f"{row.partition}/{row.offset}")
        return Entry(kind, key, a, b, 1, fate=row.fate, n=1)

    # -- details ----------------------------------------------------------------------------------------------------

    def rows(self, ids: frozenset[str] | None) -> Iterator[tuple[Any, ...]]:
        """Rows with their recorded closings; and a row for each rerouted record that arrived."""
        nothing = (None, None, None)
        for happening, recorded, _ in self._told():
            group = happening.group
            if ids is not None and group is not None and not self._is_wanted(happening, ids):
                continue
            closing = nothing if recorded is None else tuple(recorded)
            for row in self._maker.rows(happening):
                if ids is None or group is not None or row.id is None or self._keys.is_by_rule(row.id) or row.id in ids:
                    yield *row, *closing
        for content, count in (self._came + self._came_later).items():
            yield *Row(REROUTED, "", self._partition, content=bytes.fromhex(content), size=count), *nothing
        for place, reason in self._unreadable:
            yield *Row(LOST, "", self._partition, id=place, error_case=reason), *nothing

    def _is_wanted(self, happening: Happening, keys: frozenset[str]) -> bool:
        """True for the group of one of these keys, and for one by rule that was given up: places are the keys of its components."""
        effect, _, group, _ = happening
        assert group is not None
        group_id = group.id.decode()
        is_given_up = isinstance(effect, Undelivered | TakenOut)
        return self._keys.of_group(group_id, group.generation) in keys or (
            is_given_up and self._keys.is_by_rule(group_id)
        )


def fresh_in(group: Group) -> int:
    """How many components of a closed group are in no unit before: of a corrected unit the one that came late (B-205)."""
    return 1 if group.supersedes else len(group.held)


def _rerouted(records: Iterable[Arrived]) -> Iterator[str]:
    """Content of the records that were sent on, as it was before that."""
    for record in records:
        headers = record.shown
        if names.REROUTED in dict(headers):
            before = [pair for pair in headers if pair[0] != names.REROUTED]
            yield digest(record.key(), record.value(), before).hex()


def mark_file(folder: Path, partition: int) -> Path:
    """The file with the state of a partition."""
    return folder / f"{partition}.avro"


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
