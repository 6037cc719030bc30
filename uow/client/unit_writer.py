"""Sending a unit: numbers from 1, the end mark on the last one, everything in one transaction (W-45).

Belongs here: `UnitWriter`, what `connection.unit()` gives. Does not belong here: transactions (`uow.client.transaction`), headers
(`uow.client.outgoing`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Final, Self

from uow.client.kafka_port import Headers
from uow.client.long_units import Progress, SenderLog
from uow.client.nesting import component_of
from uow.client.outgoing import (
    HASHED,
    Component,
    HeaderPairs,
    OutgoingRecord,
    Value,
    as_component,
    component_headers,
    cut,
    header_pairs,
    mark_end,
    order_key_of,
    value_bytes,
)
from uow.client.received import InnerUnit, ReceivedUnit
from uow.client.transaction import NamedTransactions, OneTransaction
from uow.errors import (
    ClientClosedError,
    CommitPendingError,
    EmptyUnitError,
    IncompleteUnitError,
    TransactionRolledBackError,
)
from uow.schemas.digest import UnitDigest
from uow.schemas.error_classes import UnitClosedError, UowError
from uow.schemas.records import UnitOutcome
from uow.topics.headers import (
    DELIVERY_MODE,
    DIGEST,
    EXPIRES_AT,
    PRIORITY,
)

log = logging.getLogger(__name__)

UNIFORM: Final = (EXPIRES_AT, PRIORITY, DELIVERY_MODE)
"""Headers that should be the same on all components of a unit (W-133)."""


class WriterState(Enum):
    """Of a `UnitWriter`."""

    NEW = "new"
    OPEN = "open"
    PENDING = "pending"
    """The block was left, and its commit is not answered yet."""
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class LongUnit:
    """The parts that a unit over several transactions needs beside others.

    Attributes:
        log: How far it has come.
        transactions: Its transactions.
        cancellation: The command that gives it up.
        leave_open: True if it stays open when its block is left by an exception.
    """

    log: SenderLog
    transactions: NamedTransactions
    cancellation: Callable[[], OutgoingRecord]
    leave_open: bool


class UnitWriter:
    """A unit while it is sent; a context manager, for one thread.

    Components are produced as they come, inside one transaction, so a large unit is not held in memory; only the last one given is
    kept back, because it may turn out to be the end. Leaving the block normally gives it the end mark and commits; leaving it by an
    exception aborts, and nothing was ever sent (W-46). The broker ends a transaction after 10 s: a block that takes longer from its
    second `send` on is rolled back (`TransactionRolledBackError`). A commit that meets an outage longer than the blocking time goes on, and
    leaving the block raises `CommitPendingError`: `commit()` asks again.

    When all components go straight to the destination, the last one carries the digest of the whole unit, and the worker compares (W-212).

    Attributes:
        id: The group id.
        destination: Where the components become a unit.
        count: How many components were given so far.
    """

    def __init__(
        self,
        destination: str,
        components_topic: str,
        id: str,
        common: Headers,
        placement: Callable[[bytes], int],
        transaction: OneTransaction,
        trace: Callable[[OutgoingRecord], None],
        open_units: set[tuple[str, str]],
        segment_bytes: int | None = None,
        long: LongUnit | None = None,
    ) -> None:
        self.id = id
        self.destination = destination
        self.count = 0
        self._topic = components_topic
        self._common = common
        self._transaction = transaction
        self._trace = trace
        self._open_units = open_units
        self._placement = placement
        self._segment_bytes = segment_bytes
        self._long = long
        self._saved = Progress()
        self._partition: int | None = None
        self._state = WriterState.NEW
        self._kept: OutgoingRecord | None = None
        self._uniform = self._of_all = _uniform_in(common)
        self._digest: UnitDigest | None = UnitDigest()
        self._is_cut = False
        self._failure: UowError | None = None
        """Why components that were given are not in the unit: it cannot go on."""
        component_headers(id, 1, "", common)  # a bad id or option is an error where it was given

    def __enter__(self) -> Self:
        if self._state is not WriterState.NEW:
            raise ClientClosedError("a unit's block is entered once")
        if self._long is not None:
            self._resume(self._long)
        self._state = WriterState.OPEN
        self._open_units.add((self.destination, self.id))
        return self

    def _resume(self, long: LongUnit) -> None:
        """Fences whoever sent this unit before, and goes on behind what is committed (B-123)."""
        try:
            long.transactions.begin()
            long.transactions.abort()
            self._saved = long.log.read()
            if self._saved.outcome is UnitOutcome.CANCELLED:
                raise UnitClosedError(
                    "the unit was cancelled: its sender had failed", case="cancelled", id=self.id.encode()
                )
        except BaseException:
            long.transactions.end()
            raise
        self.count = self._saved.sent
        if self.count:
            self._digest = None  # of the values that are out nothing is known here

    def save(self) -> int:
        """Commits what was given so far, but for the last component, which is kept back (B-123). For units with `resume=True`.

        Returns:
            How many components are committed: a crash later goes on behind them.

        Raises:
            ClientClosedError: The unit is sent in one transaction, or its block was left.
            UowError: As leaving the block. What was given since the last `save` is not in the unit: leave the block, and resume the unit.
        """
        if self._long is None or self._state is not WriterState.OPEN:
            raise ClientClosedError("save() is for the block of a unit with resume=True")
        self._require_whole()
        if self._transaction.is_begun:
            reached = Progress(self._out)
            try:
                self._transaction.produce(self._long.log.record(reached))
                self._transaction.commit()
            except BaseException as failure:
                self._failure = (
                    failure
                    if isinstance(failure, UowError)
                    else self._transaction.unknown(
                        f"components behind {self._saved.sent} may be saved or not: {failure!r}"
                    )
                )
                raise
            self._saved = reached
        return self._saved.sent

    def _require_whole(self) -> None:
        if self._failure is not None:
            raise self._failure

    @property
    def _out(self) -> int:
        """How many components are produced."""
        return self.count if self._kept is None else self.count - 1

    def send(
        self,
        value: Value | Component | ReceivedUnit | InnerUnit,
        *,
        to: str | None = None,
        headers: HeaderPairs = None,
        key: str | bytes | None = None,
    ) -> int:
        """Gives the next component.

        Args:
            value: dict or list (becomes JSON), str (UTF-8), bytes (as it is), None (null), a `Component`, or a finished unit, which
                becomes an inner unit of this one (W-206).
            to: An intermediate topic; without it the component goes straight to the destination.
            headers: Further headers of this component.
            key: Kafka key at the intermediate topic; the group id without it. At the destination the key is always the group id (W-59).

        Returns:
            The component's number.

        Raises:
            IncompleteUnitError: Past the block. Nothing is sent (B-122).
            UowError: The headers contradict the unit, or what an earlier component met while it was sent. The unit cannot be
                sent any more: leave the block.
        """
        return self._take(self._prepared(value, to, headers, key))

    def _prepared(
        self,
        value: Value | Component | ReceivedUnit | InnerUnit,
        to: str | None = None,
        headers: HeaderPairs = None,
        key: str | bytes | None = None,
    ) -> OutgoingRecord:
        if self._state is not WriterState.OPEN:
            raise IncompleteUnitError("components are sent inside the unit's block", id=self.id.encode())
        if self._saved.outcome is not None:
            raise UnitClosedError("all of the unit is sent already", case="complete", id=self.id.encode())
        self._require_whole()
        record = self._record(value, to, headers, key)
        self._trace(record)
        return record

    def _take(self, record: OutgoingRecord, *, may_wait: bool = True) -> int:
        """Keeps a record, and produces the one before. Raises as `send`; BufferError, if it may not wait for room: nothing has changed then."""
        try:
            if self._kept is not None:
                self._produce(self._kept, may_wait=may_wait)
                self._add_to_digest(self._kept)
            self._kept, self._is_cut = record, False
            self.count += 1
        except Exception:
            raise
        except BaseException as cut:  # Ctrl-C: nobody knows how far it came
            self._failure = TransactionRolledBackError(f"a send was cut short: {cut!r}")
            raise
        return self.count

    def _take_back(self) -> None:
        """The component that was taken last is not in the unit: nobody waited for it any more."""
        self._kept, self._is_cut = None, True
        self.count -= 1

    def _add_to_digest(self, record: OutgoingRecord) -> None:
        if record.topic != self._topic:
            self._digest = None  # a hop may change the value
        elif self._digest is not None:
            self._digest.add(record.value)

    @property
    def _is_placed(self) -> bool:
        """True if the unit's partition need not be asked for any more."""
        return self._partition is not None

    @property
    def _takes_at_once(self) -> bool:
        """True if `_take` asks nobody for anything."""
        return self._kept is None or (self._segment_bytes is None and self._transaction.takes_at_once(self._kept))

    def _record(
        self,
        value: Value | Component | ReceivedUnit | InnerUnit,
        to: str | None,
        headers: HeaderPairs,
        key: str | bytes | None,
    ) -> OutgoingRecord:
        if isinstance(value, ReceivedUnit | InnerUnit):
            value = component_of(value)
        component = as_component(value)
        key = component.key if key is None else key
        own = header_pairs(component.headers) + header_pairs(headers)
        marked = component_headers(self.id, self.count + 1, component.component_id, self._common, own)
        self._warn_unless_uniform(_uniform_in(marked) if own else self._of_all)
        straight = to is None or to == self._topic
        raw_key = self.id.encode() if straight or key is None else key.encode() if isinstance(key, str) else key
        partition = self._home(marked) if straight else HASHED
        return OutgoingRecord(to or self._topic, raw_key, value_bytes(component.value), marked, partition)

    def _home(self, headers: Headers) -> int:
        """The unit's partition, claimed when its first component goes straight to the destination (W-105)."""
        if self._partition is None:
            self._partition = self._placement(order_key_of(headers))
        return self._partition

    def _warn_unless_uniform(self, given: dict[str, bytes | None]) -> None:
        if not self.count:
            self._uniform = given
        elif given != self._uniform:
            log.warning(
                "unit %s: component %d differs from the first one in expiry, priority or delivery mode",
                self.id,
                self.count + 1,
            )

    def _produce(self, record: OutgoingRecord, *, may_wait: bool = True) -> None:
        if not self._transaction.is_begun:
            self._transaction.begin()
        most = self._segment_bytes
        if most is None or record.topic != self._topic or len(record.value or b"") <= most:
            self._transaction.produce(record, may_wait=may_wait)
            return
        for piece in cut(record, most):
            self._transaction.produce(piece)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._state = WriterState.LEFT
        self._settle(self._commit if kind is None else self._give_up)

    def commit(self) -> None:
        """Asks again for a commit that was not answered when the block was left (R-63).

        Raises:
            CommitPendingError: Not answered yet either: call again, and nothing else.
            ClientClosedError: There is no such commit.
            UowError: As leaving the block.
        """
        if self._state is not WriterState.PENDING:
            raise ClientClosedError("no commit of this unit is pending: leaving its block normally is the commit")
        self._state = WriterState.LEFT
        self._settle(self._ask_for_commit)

    def _settle(self, last_step: Callable[[], None]) -> None:
        try:
            last_step()
        except CommitPendingError:
            self._state = WriterState.PENDING
            raise
        finally:
            self._kept = None
            if self._state is WriterState.LEFT:
                self._open_units.discard((self.destination, self.id))
                self._transaction.end()

    def _ask_for_commit(self) -> None:
        self._transaction.commit(patience=self._transaction.patience())

    def _commit(self) -> None:
        self._require_whole()
        if self._kept is None:
            if self._saved.outcome is not None:
                return
            if self._is_cut:
                raise IncompleteUnitError("its last send was cancelled, so nothing marks its end", id=self.id.encode())
            raise EmptyUnitError(id=self.id.encode())
        self._add_to_digest(self._kept)
        self._kept.headers = mark_end(self._kept.headers)
        if self._digest is not None and all(name != DIGEST for name, _ in self._kept.headers):
            self._kept.headers.append((DIGEST, self._digest.header()))
        self._produce(self._kept)
        if self._long is not None:
            self._transaction.produce(self._long.log.record(Progress(self.count, UnitOutcome.COMPLETE)))
        self._ask_for_commit()

    def _give_up(self) -> None:
        """Cancels what earlier transactions sent, unless it is to stay open (B-120); the open one is aborted as it ends."""
        if self._long is None or self._long.leave_open or not self._saved.sent or self._saved.outcome is not None:
            return
        try:
            self._long.transactions.abort()
            self._transaction.begin()
            self._transaction.produce(self._long.cancellation())
            self._transaction.produce(self._long.log.record(self._saved._replace(outcome=UnitOutcome.CANCELLED)))
            self._transaction.commit()
        except UowError as failure:
            log.warning("unit %s of %s could not be cancelled, and stays open: %s", self.id, self.destination, failure)


def _uniform_in(headers: Headers) -> dict[str, bytes | None]:
    return {name: value for name, value in headers if name in UNIFORM}
