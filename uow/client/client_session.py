"""A client session: producers and readers that belong together, and, where it is transacted, one transaction over all of them.

Theory of operation. A transacted session has at most one transaction of Kafka open: it begins with the first record sent, and takes along the
positions of all messages received since the last one. Whatever makes it impossible to commit, a send that failed or a partition that went,
dooms it: calls go on as if nothing had happened, and `commit` rolls back and says so, once (R-30, R-31).

Belongs here: sessions and their producers. Does not belong here: the life of the connection (`uow.client.session_state`), transactions
(`uow.client.transaction`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from enum import StrEnum
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from confluent_kafka import TopicPartition

from uow.client.forwarding import Forwarded, Keep
from uow.client.outgoing import Component, HeaderPairs, OutgoingRecord, Value, as_component
from uow.client.ownership import Ownership
from uow.client.reader import Reader
from uow.client.received import Message, Received, ReceivedUnit
from uow.client.sending import Sent
from uow.client.session_state import Ended
from uow.client.timely_messages import MessageReader
from uow.client.transaction import INTERRUPTED, OneTransaction
from uow.errors import (
    CommitOutcomeUnknownError,
    CommitPendingError,
    DestinationUnavailableError,
    LostServerError,
    SendRejectedError,
    TransactionRolledBackError,
)
from uow.processor.engine.ports import StaleGeneration
from uow.schemas.error_classes import ConfigError, UowError

if TYPE_CHECKING:
    from uow.client.connection import Connection

log = logging.getLogger(__name__)

AnyReader = TypeVar("AnyReader", bound=Reader[Any])


class Acknowledge(StrEnum):
    """Who acknowledges what a session's readers hand out."""

    CLIENT = "client"
    """The application, by `acknowledge()`."""
    AUTO = "auto"
    """The session: each one when the next one is asked for, and the last one at `close()`."""


class ClientSession:
    """Made by `Connection.session`; a context manager, for one thread. Closing rolls back what is not committed.

    Attributes:
        acknowledge: Who acknowledges; of no effect in a transacted session, whose `commit` does (R-29).
        transacted: True: what is sent and what is received is committed together, or rolled back.
    """

    def __init__(self, connection: Connection, acknowledge: Acknowledge, transacted: bool) -> None:
        self.acknowledge, self.transacted = acknowledge, transacted
        self._connection, self._life = connection, connection._session.life
        self._readers: list[Reader[Any]] = []
        self._transaction: OneTransaction | None = None
        self._failure: Exception | None = None
        self._epoch = 0
        self._held: dict[int, tuple[Received, Received]] = {}
        """First and last received since the last commit, by identity of their ownership."""
        self._rows: list[tuple[Ownership, TopicPartition]] = []
        self._is_pending = self._is_committed = False
        self._unknown: CommitOutcomeUnknownError | None = None
        """The outcome of the last commit, until there is something new to commit: to be told again by another `commit()`, which has nothing to do."""
        self._ended: Ended | None = None

    def __enter__(self) -> Self:
        self._require_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._held.clear()  # what was received last was not handled
        self.close()

    def _require_open(self) -> None:
        if self._ended is not None:
            raise self._ended.error("the session")
        self._life.require_open()

    # -- its objects

    def producer(self, destination: str | None = None) -> Producer:
        """A producer, bound to a destination, or not: then each `send` names one (R-36)."""
        self._require_open()
        return Producer(self, destination)

    def units(self, destination: str, group: str | None, **settings: Any) -> Reader[ReceivedUnit]:
        """As `Connection.units`, for a reader of this session."""
        self._require_reader()
        reader: Reader[ReceivedUnit] = self._connection.units(destination, group, **settings)
        return self._adopted(reader)

    def messages(self, topic: str, group: str | None, **settings: Any) -> MessageReader:
        """As `Connection.messages`, for a reader of this session."""
        self._require_reader()
        return self._adopted(self._connection.messages(topic, group, **settings))

    def _require_reader(self) -> None:
        self._require_open()
        self._readers = [each for each in self._readers if not each._consumption.is_closed]
        if self.transacted and self._readers:
            rule = "has one reader at a time: a transaction takes along the positions of one member of a group"
            raise ConfigError("transacted", True, f"a transacted session {rule}")

    def _adopted(self, reader: AnyReader) -> AnyReader:
        reader._session = self
        self._readers.append(reader)
        return reader

    def _before_receive(self) -> None:
        """Called by the session's readers before they wait for the next one."""
        self._require_open()
        if self._is_committed:
            self._finish()
        if self._is_pending:
            raise CommitPendingError("the commit of this session was not answered yet: call commit() again")
        if not self.transacted and self.acknowledge is Acknowledge.AUTO:
            self._acknowledge_held()

    def _received(self, message: Received) -> None:
        """Called by the session's readers with what they hand out."""
        self._unknown = None
        if self.transacted or self.acknowledge is Acknowledge.AUTO:
            first, _ = self._held.get(id(message._ownership), (message, message))
            self._held[id(message._ownership)] = first, message

    def _acknowledge_held(self) -> None:
        held, self._held = list(self._held.values()), {}
        for _, last in held:
            if last._ownership.rewind is not None and last._ownership.rewind <= last.offset:
                continue  # it comes again
            try:
                last._acknowledge()
            except LostServerError as lost:  # the listener has heard of it
                log.info("not acknowledged: %s", lost)

    # -- sending

    def _send(self, component: Component, record: OutgoingRecord) -> Sent | None:
        if not self.transacted:
            return self._connection._session.plain.send(component.component_id, record)
        self._produce(record)
        return None

    def _takes_at_once(self, record: OutgoingRecord) -> bool:
        """True if `_produce` asks nobody for anything."""
        return self._transaction is not None and self._transaction.takes_at_once(record)

    def _produce(self, record: OutgoingRecord, *, may_wait: bool = True) -> None:
        if self._is_pending:
            raise CommitPendingError("the commit of this session was not answered yet: call commit() again")
        if self._failure is not None:
            return  # doomed: thrown away
        if self._transaction is None:
            transaction = OneTransaction(self._connection._session.transactions)
            try:
                transaction.begin()
            except BaseException:
                transaction.end()
                raise
            self._transaction, self._epoch, self._unknown = transaction, self._connection.epoch, None
        try:
            self._transaction.produce(record, may_wait=may_wait)
        except UowError as failure:
            log.info("the session can only be rolled back: %s", failure)
            self._failure = failure

    def forward(
        self,
        message: Message,
        to: str | None = None,
        *,
        destination: str | None = None,
        value: Value | Keep = Keep.AS_IT_CAME,
        headers: HeaderPairs = None,
        only: Iterable[str] | None = None,
        leave_out: Iterable[str] = (),
        reassign: bool = False,
    ) -> Forwarded:
        """As `Connection.forward`; in a transacted session `pending` until `commit`."""
        self._require_open()
        arguments: dict[str, Any] = {
            "destination": destination,
            "value": value,
            "headers": headers,
            "only": only,
            "leave_out": leave_out,
            "reassign": reassign,
        }
        if not self.transacted:
            return self._connection.forward(message, to, **arguments)
        self._produce(self._connection._forwarded(message, to, **arguments))
        return Forwarded.PENDING

    # -- the transaction

    def commit(self) -> None:
        """Commits what was sent, and the positions of what was received, together.

        Raises:
            TransactionRolledBackError: Nothing of it is visible; readers hand out again what was received. The session is as good as new.
            SendRejectedError, DestinationUnavailableError: The same, because of one record.
            CommitPendingError: No broker answered for the blocking time: call `commit()` again, and nothing else.
            CommitOutcomeUnknownError: All of it is visible, or nothing; readers hand out again what was received if nothing is. Called again before
                `rollback()` or anything that is sent or received, and where session or connection were closed before the answer, it raises this once more.
            FencedError: Someone newer owns the transactional id.
            ConfigError: The session is not transacted.
        """
        if self._unknown is not None:
            raise self._unknown
        if not self._is_pending:  # else its answer may be there, also where all is closed meanwhile
            self._require_transacted()
        if self._is_committed:
            self._finish()
            return
        if not self._is_pending:
            self._doom_by_moves()
            if self._failure is not None:
                self._give_up(self._failure)
            try:
                self._rows = [self._row(last) for _, last in self._held.values() if last._consumption.group is not None]
            except UowError as failure:
                self._give_up(failure)
        try:
            self._commit()
            self._is_committed = True
        except CommitPendingError:
            self._is_pending = True
            raise
        except StaleGeneration as stale:
            self._undo()
            raise TransactionRolledBackError(f"the consumer group moved on: {stale}") from stale
        except BaseException as failure:
            if isinstance(failure, (CommitOutcomeUnknownError, *INTERRUPTED)) and self._transaction is not None:
                self._unknown = self._transaction.unknown("its commit was interrupted, or not answered")
                for consumption in {last._consumption for _, last in self._held.values()}:
                    consumption.doubt(self._transaction.left_in_doubt)
            self._undo()
            raise
        self._finish()

    def _finish(self) -> None:
        """Takes note of a commit that took place; where Ctrl-C came in between, the next call does."""
        for ownership, row in self._rows:
            ownership.committed(row)
        self._done()

    def _doom(self, why: str) -> None:
        """The transaction can only be rolled back."""
        self._failure = self._failure or TransactionRolledBackError(why)

    def _commit(self) -> None:
        token = None
        if not self._is_pending:
            token = next((last._consumption.token() for _, last in self._held.values()), None)
        positions = [row for _, row in self._rows]
        if self._transaction is None and positions:
            self._transaction = OneTransaction(self._connection._session.transactions)
            self._transaction.begin()
        if self._transaction is not None:
            self._transaction.commit(positions, token, self._transaction.patience())

    def _row(self, last: Received) -> tuple[Ownership, TopicPartition]:
        ownership = last._ownership
        last._consumption.before_commit()
        offset = last.last_offset if isinstance(last, ReceivedUnit) else last.offset
        due = ownership.due_at_once(max(offset + 1, ownership.acknowledged))
        for record in due.records:
            self._produce(record)
        return ownership, ownership.row(due.position)

    def _doom_by_moves(self) -> None:
        gone = [
            f"{last.topic}/{last.partition}/{first.offset}"
            for first, last in self._held.values()
            if not last._consumption.is_ours(last._ownership, last.offset)
        ]
        if gone:
            self._failure = self._failure or TransactionRolledBackError(f"comes again: {', '.join(gone)}")
        connection = self._connection
        if (
            connection._session.rolls_back_on_refresh
            and self._transaction is not None
            and self._epoch != connection.epoch
        ):
            self._failure = self._failure or TransactionRolledBackError("the connection was refreshed meanwhile")

    def _give_up(self, failure: Exception) -> None:
        self._undo()
        if isinstance(failure, SendRejectedError | DestinationUnavailableError | TransactionRolledBackError):
            raise failure
        raise TransactionRolledBackError(str(failure)) from failure

    def rollback(self) -> None:
        """Rolls back: nothing that was sent is visible, and readers hand out again what was received.

        Raises:
            CommitPendingError: A commit was not answered yet: what is committed cannot be rolled back (R-64).
            ConfigError: The session is not transacted.
        """
        self._require_transacted()
        if self._is_pending:
            raise CommitPendingError("the commit of this session was not answered yet: call commit() again")
        self._unknown = None
        self._undo()

    def _require_transacted(self) -> None:
        self._require_open()
        if not self.transacted:
            raise ConfigError("transacted", False, "only a transacted session has something to commit or roll back")

    def _undo(self) -> None:
        if self._is_committed:
            self._finish()
            return
        for first, _ in self._held.values():
            first._ownership.go_back(first.offset)
        self._done()

    def _done(self) -> None:
        transaction, self._transaction = self._transaction, None
        self._held, self._rows, self._failure = {}, [], None
        self._is_pending = self._is_committed = False
        if transaction is not None:
            transaction.end()

    def close(self) -> None:
        """Closes the session's readers, and rolls back what is not committed. A second call does nothing.

        It raises nothing about the state of the connection.
        """
        if self._ended is not None:
            return
        if not self.transacted and self._connection._session.life.ended is None:
            try:
                self._acknowledge_held()
            except UowError as failure:
                log.info("not acknowledged, it comes again: %s", failure)
        self._ended = self._connection._session.life.closed_now()
        if self._is_pending and self._transaction is not None:
            self._unknown = self._transaction.unknown("the session was closed before the answer")
        self._undo()
        for reader in self._readers:
            reader.close()


class Producer:
    """Made by `ClientSession.producer`.

    Attributes:
        destination: That of every `send` which names none; None: each names one.
    """

    def __init__(self, session: ClientSession, destination: str | None) -> None:
        self.destination = destination
        self._session = session

    def send(
        self,
        value: Value | Component,
        *,
        destination: str | None = None,
        id: str | None = None,
        seq: int | None = None,
        end: bool = False,
        count: int | None = None,
        to: str | None = None,
        key: str | bytes | None = None,
        headers: HeaderPairs = None,
    ) -> Sent | None:
        """As `Connection.send`; in a transacted session it waits for nothing but room, and `commit` tells the fate of the record.

        Returns:
            The record's place; None in a transacted session.

        Raises:
            TypeError: No destination, or another than the producer is bound to.
            UowError: As `Connection.send`; in a transacted session what concerns the whole transaction is raised by `commit`.
        """
        session = self._session
        session._require_open()
        where = self._where(destination)
        component = as_component(value)
        return session._send(
            component, session._connection._record(where, component, id, seq, end, count, to, key, headers)
        )

    def _where(self, destination: str | None) -> str:
        if (destination is None) == (self.destination is None):
            raise TypeError("a destination is given either to the producer or to send()")
        return destination or self.destination or ""
