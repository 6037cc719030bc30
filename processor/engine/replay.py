"""Replay: a restore reads a part of the input again, and selects the components that are held. It never decides.

A record (offset o, id) of the window [floor, committed offset) is held again if and only if

1. o is in no range that a ledger record says was not held,
2. o is not below `closed_before` of the last group of that id which the window's ledger records close,
3. the id has no rows in the changelog.

No rule about groups is asked, so policies, limits, clocks and expiry cannot come out differently. The only thing done again is reading id,
number and end from a raw record, under the reading that the ledger names.

Belongs here: the window and the selection. Does not belong here: when a group is replayable (`replayable`), the order of a restore (`restore`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from operator import itemgetter, methodcaller

from uow.processor.core.changes import Closed, Tail
from uow.processor.core.columns import (
    ColumnReader,
    Columns,
    Record,
    read_headers,
)
from uow.schemas.error_classes import StateCorruptedError
from uow.schemas.records import LedgerRecord
from uow.topics.headers import Marks, Reading

_REMEDY = (
    "the logs do not belong together: put the deleted records back, or, to begin anew, stop all workers and delete the destination's two "
    "changelog topics together with the group's offsets"
)


Replayed = tuple[bytes, int, bool, int, int, bytes, Tail | None]
"""A component of a replayable group: id of the group, number, end mark, append time, offset, Avro body, and of an end component its `Tail`."""

_LAST, _OFFSET = itemgetter(1), methodcaller("offset")


class Window:
    """The ledger records of one partition from its replay floor on.

    Args:
        topic: `D.components`.
        partition: Its number.
    """

    def __init__(self, topic: str, partition: int) -> None:
        self.topic, self.partition = topic, partition
        self._records: deque[tuple[LedgerRecord, list[Closed]]] = deque()

    @property
    def last(self) -> LedgerRecord | None:
        """The newest ledger record, or None."""
        return self._records[-1][0] if self._records else None

    def add(self, record: LedgerRecord, closed: list[Closed]) -> None:
        """Takes the next ledger record; what lies below its floor leaves."""
        records = self._records
        records.append((record, closed))
        while len(records) > 1 and records[0][0].to_offset <= record.floor:
            records.popleft()

    def check(self, position: int, log_start: int) -> int:
        """The replay floor, if the window can be replayed up to `position`.

        Raises:
            StateCorruptedError: The chain has a hole, or the input does not reach down to the floor any more.
        """
        last = self.last
        if last is None or last.floor >= position:
            return position
        if log_start > last.floor:
            raise self._corrupted(f"the input begins at {log_start}, above the replay floor {last.floor}")
        reached = last.floor
        for record, _ in self._records:
            if record.from_offset > reached:
                raise self._corrupted(f"the ledger has no record of {reached} to {record.from_offset}")
            reached = max(reached, record.to_offset)
        return last.floor

    def _corrupted(self, why: str) -> StateCorruptedError:
        return StateCorruptedError([(self.topic, self.partition)], why, _REMEDY)

    def selection(self, promoted: Collection[bytes], kind: type[ColumnReader] = ColumnReader) -> Selection:
        """Who selects; `promoted` are the ids that have rows in the changelog, `kind` reads records."""
        return Selection(self.topic, self.partition, list(self._records), promoted, kind)


class Selection:
    """Selects the components of replayable groups from the input's records, in offset order; see the module's text for the rule.

    Args:
        topic: `D.components`.
        partition: Its number.
        window: The ledger records from the floor on, with the groups they close.
        promoted: Ids that have rows in the changelog.
        kind: Reads records.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        window: Sequence[tuple[LedgerRecord, list[Closed]]],
        promoted: Collection[bytes],
        kind: type[ColumnReader],
    ) -> None:
        self._topic, self._partition, self._promoted = topic, partition, promoted
        self._skipped = [(one.first, one.last) for record, _ in window for one in record.not_held]
        self._before = {one.id: one.before for _, closed in window for one in closed}
        self._from = [record.from_offset for record, _ in window]
        self._codes = [record.reader for record, _ in window]
        self._kind = kind
        self._readers: dict[int, ColumnReader] = {}

    def select(self, records: Sequence[Record]) -> Iterator[Replayed]:
        """The components that were held and belong to replayable groups.

        Args:
            records: Of the window, in offset order.

        Raises:
            StateCorruptedError: A record that was held cannot be read under the reading that the ledger names.
        """
        for code, stretch in self._by_reading(self._held(records)):
            reader = self._readers.get(code)
            if reader is None:
                reader = self._readers[code] = self._kind(self._topic, self._partition, Reading.of_code(code))
            yield from self._read(reader, stretch)

    def _held(self, records: Sequence[Record]) -> Sequence[Record]:
        """Without those that were not held."""
        kept: list[Record] = []
        begin = 0
        for first, last in self._skipped[bisect_left(self._skipped, records[0].offset(), key=_LAST) :]:
            if begin == len(records) or first > records[-1].offset():
                break
            kept += records[begin : bisect_left(records, first, begin, key=_OFFSET)]
            begin = bisect_right(records, last, begin, key=_OFFSET)
        return kept + list(records[begin:])

    def _by_reading(self, records: Sequence[Record]) -> Iterator[tuple[int, Sequence[Record]]]:
        """Stretches of records that were read alike, with the code of the reading."""
        begin = 0
        while begin < len(records):
            at = max(bisect_right(self._from, records[begin].offset()) - 1, 0)
            until = at + 1
            while until < len(self._codes) and self._codes[until] == self._codes[at]:
                until += 1
            end = len(records)
            if until < len(self._codes):
                end = bisect_left(records, self._from[until], begin, key=_OFFSET)
            yield self._codes[at], records[begin:end]
            begin = end

    def _read(self, reader: ColumnReader, records: Sequence[Record]) -> Iterator[Replayed]:
        for columns in reader.read(records):
            yield from self._select(reader, columns)

    def _select(self, reader: ColumnReader, columns: Columns) -> Iterator[Replayed]:
        before, promoted = self._before, self._promoted
        rows = zip(
            columns.ids,
            columns.seqs,
            columns.ends,
            columns.times,
            columns.offsets,
            columns.bodies,
            columns.records,
            strict=True,
        )
        for group_id, seq, end, at, offset, body, record in rows:
            if group_id is None:
                marks = reader.reading.read(read_headers(record), record.value())
                if not isinstance(marks, Marks):
                    why = f"the record at {offset} was held, and cannot be read as a component"
                    raise StateCorruptedError([(self._topic, self._partition)], why, _REMEDY)
                group_id, seq, end, body = marks.id, marks.seq, marks.end, reader.encode(record, marks)[0]
            if offset >= before.get(group_id, 0) and group_id not in promoted:
                yield group_id, seq, end, at, offset, body, columns.tails.get(offset) if end else None
