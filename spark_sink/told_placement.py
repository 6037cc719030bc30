"""Where ids belong under path routing (W-105), as the ledger tells it.

The path map forgets a placement once its group is closed, so no audit can ask it. But the worker has said of each record whether it was held, and that is
enough: a component of an id without an open group was held where the id belonged, and was sent on where it did not. So the audit follows the worker
in where an id belongs, and in nothing else. A component that was neither held nor refused must have come to another partition, which is checked
like under hash routing; a unit must have the components that were held, and the tables must have the unit.

Records from a time of which the ledger was deleted count as held. Components that were sent on then cannot be told from others, so
ids of which any came by another partition are left out (`uow.spark_sink.expectations`), and so are `doubtful` ones.

Belongs here: the answer to one question of the core. Does not belong here: the decision table.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from uow.schemas.records import LedgerRecord
from uow.topics.headers import Marks, Reading

if TYPE_CHECKING:
    from uow.processor.core.closed import ClosedMemory

Record = TypeVar("Record", bound="HasHeaders")

ELSEWHERE: Final = -1
"""Another partition; the ledger does not say which."""


class HasHeaders(Protocol):
    """A record of `D.components`."""

    def offset(self) -> int:
        """Its offset."""
        ...

    def value(self) -> bytes | None:
        """Its value."""
        ...

    @property
    def shown(self) -> Sequence[tuple[str, bytes | None]]:
        """Its headers, as far as they can be read."""
        ...


class _Transaction(NamedTuple):
    """One ledger record: input offsets from and to, first and last offsets of ranges that were not held, ids of groups closed."""

    start: int
    stop: int
    firsts: Sequence[int]
    lasts: Sequence[int]
    closed: frozenset[bytes]

    def is_held(self, offset: int) -> bool:
        at = bisect_right(self.firsts, offset) - 1
        return at < 0 or offset > self.lasts[at]


class ToldPlacement:
    """The placement of ids, for one partition. It is the `partition_for` of the partition's address.

    Args:
        here: Number of the partition.
        reading: How headers are read.

    Attributes:
        doubtful: Ids of components that contradict themselves, so that they were held nowhere, and were refused or sent on.
    """

    def __init__(self, here: int, reading: Reading) -> None:
        self._here, self._reading = here, reading
        self.doubtful: set[bytes] = set()
        self._transactions: deque[_Transaction] = deque()
        self._closed: ClosedMemory | None = None
        self._is_held = True
        self._is_refused = False

    def on_ledger(self, record: LedgerRecord) -> None:
        """Takes the next ledger record."""
        skipped = record.not_held
        self._transactions.append(
            _Transaction(
                record.from_offset,
                record.to_offset,
                [each.first for each in skipped],
                [each.last for each in skipped],
                frozenset(each.id for each in record.closed),
            )
        )

    def portions(self, records: Sequence[Record]) -> Iterator[Sequence[Record]]:
        """The records in pieces, of which each was held or was not."""
        for is_held, portion in groupby(records, lambda record: self._was_held(record.offset())):
            self._is_held = is_held
            if is_held:
                yield [*portion]
                continue
            for record in portion:
                self._is_refused = self._contradicts_itself(record)
                yield [record]
            self._is_refused = False
        self._is_held = True

    def _was_held(self, offset: int) -> bool:
        transactions = self._transactions
        while transactions and transactions[0].stop < offset:
            transactions.popleft()
        for each in transactions:
            if each.start <= offset < each.stop:
                return each.is_held(offset)
        return True

    def _contradicts_itself(self, record: HasHeaders) -> bool:
        """True if line 12 refuses it wherever it is."""
        marks = self._reading.read(record.shown, record.value())
        if not isinstance(marks, Marks) or not marks.total or marks.total == marks.seq:
            return False
        return marks.end or marks.total < marks.seq

    @contextmanager
    def judging_command(self) -> Iterator[None]:
        """While a command is judged: it is held nowhere."""
        self._is_held = False
        yield
        self._is_held = True

    def follow(self, closed: ClosedMemory) -> None:
        """Sets the partition's memory of closed groups: what is in it belongs here."""
        self._closed = closed

    def __call__(self, group_id: bytes, count: int) -> int:
        """The partition that an id without an open group belonged to; `ELSEWHERE` if it was not this one.

        A record that was not held, of an id that is not remembered, was refused only if it contradicts itself or closes its group at once.
        """
        if self._is_held or (self._closed is not None and self._closed.get(group_id) is not None):
            return self._here
        if self._is_refused:
            self.doubtful.add(group_id)
            return self._here
        closes = any(group_id in each.closed for each in self._transactions)
        return self._here if closes else ELSEWHERE
