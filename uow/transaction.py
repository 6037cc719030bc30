"""One transactional producer and what may go wrong with it: begin, produce, commit or abort, and a new handle on any doubt.

Belongs here: the life of a transaction on the client's side, the mapping of the library's answers (failover section 3), and the
pool of transactional ids of a connection. Does not belong here: what is sent (`uow.unit`, `uow.forward`).

Fence on doubt (R-75, ER-11): librdkafka repeats requests by itself after a disconnect, and a late one may hit the next transaction
of the same producer epoch. So before each begin the handle's log is looked at, and after a disconnect, a time-out or a failed call
the handle is thrown away; the next one, with the same transactional id, gets a new epoch.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from schemas.errors import FencedError, UowError
from uow.component import OutgoingRecord
from uow.errors import (
    FENCED,
    STALE_GENERATION,
    ClientClosedError,
    CommitOutcomeUnknownError,
    DestinationUnavailableError,
    ReconnectGivenUpError,
    ReconnectTimeoutError,
    SendRejectedError,
    TransactionRolledBackError,
    sent_error,
)
from uow.handles import BLOCKING_S, TRANSACTION_TIMEOUT_MS, KnownTopics, LogWatch, ProducerHandle
from uow.sending import hand_over

log = logging.getLogger(__name__)

INIT_S: Final = 30.0
"""Longest wait for a transactional id: its predecessor's transaction may have to be ended first."""
COMMIT_S: Final = 30.0
"""Longest wait for the answer to a commit, in calls that each end after the transaction's time-out."""
DEAF_S: Final = 0.1
"""Before another handle is tried in place of one whose connections broke as it began."""
_STEP_S: Final = TRANSACTION_TIMEOUT_MS / 1000


def serve(handle: ProducerHandle, call: Callable[[float], int], timeout: float) -> None:
    """Runs the library's callbacks inside `poll` or `flush` of a handle.

    Raises:
        KafkaException: The library throws a fatal error out of here; as a `SystemError` where a delivery callback got in its way.
    """
    try:
        call(timeout)
    except SystemError as failure:
        error = fatal_cause(handle, None)
        if error is None:
            raise
        raise KafkaException(error) from failure


def fatal_cause(handle: ProducerHandle, known: KafkaError | None) -> KafkaError | None:
    """What made a handle unusable: produce() and callbacks say only that something did, a transactional call names it."""
    try:
        handle.begin_transaction()
    except KafkaException as failure:
        error: KafkaError = failure.args[0]
        return error if error.fatal() else known
    return known


class StaleGeneration(Exception):
    """The consumer group moved on while a message was in hand; the transaction is aborted, the message comes again (ER-14). Never leaves `uow`."""


class State(Enum):
    """Of a `Transaction`."""

    IDLE = "idle"
    OPEN = "open"
    FENCED = "fenced"
    CLOSED = "closed"


class Transaction:
    """A transactional id and the producer handle that owns it at the moment; at most one transaction is open. Not for two threads at once."""

    def __init__(
        self,
        transactional_id: str,
        make: Callable[[str, logging.Logger], ProducerHandle],
        topics: KnownTopics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.transactional_id = transactional_id
        self.state = State.IDLE
        self._make = make
        self._topics = topics
        self._clock = clock
        self._handle: ProducerHandle | None = None
        self._watch = LogWatch()
        self._begun = 0.0
        self._failure: UowError | None = None

    @property
    def is_open(self) -> bool:
        return self.state is State.OPEN

    def begin(self) -> None:
        """Begins a transaction, on a new handle where the last one is in doubt.

        Raises:
            ClientClosedError: Closed.
            FencedError: Someone newer owns the transactional id.
            ReconnectTimeoutError: No broker answered in time.
            ReconnectGivenUpError: Refused for good.
        """
        if self.state is State.CLOSED:
            raise ClientClosedError("the connection is closed")
        if self.state is State.FENCED:
            raise FencedError(f"transactional id {self.transactional_id!r} was taken over")
        self._begun = self._clock()
        self._failure = None
        try:
            self._sure_handle().begin_transaction()
        except KafkaException as failure:
            raise self._broken(failure.args[0]) from failure
        self.state = State.OPEN

    def _sure_handle(self) -> ProducerHandle:
        if self._handle is not None:
            serve(self._handle, self._handle.poll, 0)  # log lines arrive here
            if self._watch.suspicion.line:
                log.info("producer %s is replaced: %s", self.transactional_id, self._watch.suspicion.line)
                self._drop_handle()
        if self._handle is None:
            self._handle = self._new_handle()
        return self._handle

    def _new_handle(self) -> ProducerHandle:
        """One that would tell of a broken connection (`processor.kafka.doubt`)."""
        deadline = self._clock() + INIT_S
        while True:
            self._watch = LogWatch()
            handle = self._make(self.transactional_id, self._watch.logger)
            self._initialise(handle, deadline)
            serve(handle, handle.poll, 0)
            if not self._watch.suspicion.is_deaf:
                self._watch.suspicion.has_begun()
                return handle
            if self._clock() >= deadline:
                raise ReconnectTimeoutError(
                    f"transactional id {self.transactional_id!r}: connections break again and again"
                )
            serve(handle, handle.poll, DEAF_S)

    def _initialise(self, handle: ProducerHandle, deadline: float) -> None:
        while True:
            try:
                handle.init_transactions(BLOCKING_S)
                return
            except KafkaException as failure:
                error: KafkaError = failure.args[0]
                if error.fatal() or not error.retriable():
                    raise _given_up(error) from failure
                if self._clock() >= deadline:
                    raise ReconnectTimeoutError(
                        f"transactional id {self.transactional_id!r}: {error.str()}"
                    ) from failure

    def _drop_handle(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.purge()
            with suppress(KafkaException):
                serve(handle, handle.poll, 0)

    def produce(self, record: OutgoingRecord) -> None:
        """Adds a record to the open transaction; waits only for room in the send buffer (R-78).

        Raises:
            SendRejectedError: Refused for good, or no room in time.
            DestinationUnavailableError: There is no such topic.
            ConfigError: The destination's partition count has changed (W-107).
            UowError: What an earlier record of this transaction met; the transaction can only be aborted.
        """
        handle = self._open_handle()
        if self._failure is not None:
            raise self._failure
        try:
            self._topics.check(handle, record.topic)
            self._produce(handle, record)
            serve(handle, handle.poll, 0)
        except KafkaException as failure:
            self._failure = self._broken(failure.args[0], record.topic)
            raise self._failure from failure
        except UowError as failure:
            self._failure = failure
            raise

    def _produce(self, handle: ProducerHandle, record: OutgoingRecord) -> None:
        deadline = 0.0
        while True:
            try:
                hand_over(handle, record, self._on_delivery)
                return
            except BufferError:
                deadline = deadline or self._clock() + BLOCKING_S
                if self._clock() >= deadline:
                    raise SendRejectedError(
                        f"{record.topic}: the send buffer stayed full for {BLOCKING_S:g} s"
                    ) from None
                serve(handle, handle.poll, 0.05)

    def _on_delivery(self, error: KafkaError | None, message: Any) -> None:
        """Every record's fate is known before a commit counts (ER-04)."""
        if error is not None and self._failure is None and self.is_open:
            self._failure = self._rolled_back(sent_error(error, message.topic()))

    def commit(self, positions: Sequence[TopicPartition] = (), group: Any = None) -> None:
        """Commits what was produced, with the input positions of a consumer group where given. Whatever it raises, no transaction is open after it.

        Raises:
            TransactionRolledBackError: Nothing is visible.
            SendRejectedError: A record was refused for good; nothing is visible.
            DestinationUnavailableError: A record found no topic or leader; nothing is visible.
            CommitOutcomeUnknownError: The commit was not answered.
            FencedError: Someone newer owns the transactional id; nothing is visible.
            StaleGeneration: The consumer group moved on; nothing is visible.
        """
        handle = self._open_handle()
        try:
            serve(handle, handle.flush, _STEP_S)
            if self._failure is not None:
                raise self._failure
            if positions:
                handle.send_offsets_to_transaction(list(positions), group, _STEP_S)
            self._commit(handle)
        except KafkaException as failure:
            error: KafkaError = failure.args[0]
            if error.code() in STALE_GENERATION and not error.fatal():
                self.abort()
                raise StaleGeneration(error.str()) from failure
            raised = self._broken(error)
            self.abort()
            raise raised from failure
        except UowError:
            self.abort()
            raise
        self.state = State.IDLE

    def _commit(self, handle: ProducerHandle) -> None:
        deadline = self._clock() + COMMIT_S
        while True:
            try:
                handle.commit_transaction(_STEP_S)
                return
            except KafkaException as failure:
                error: KafkaError = failure.args[0]
                if error.fatal() or error.txn_requires_abort():
                    raise
                self._watch.suspicion.line = error.str()
                if not error.retriable() or self._clock() >= deadline:
                    self.state = State.IDLE  # an abort would answer with a conflict, and may not be what happened
                    self._drop_handle()
                    raise CommitOutcomeUnknownError(
                        f"transactional id {self.transactional_id!r}: {error.str()}"
                    ) from failure

    def _rolled_back(self, cause: UowError) -> UowError:
        """What a record met keeps its class where the caller has to correct something; else it is a roll-back to be repeated."""
        if isinstance(cause, SendRejectedError | DestinationUnavailableError | FencedError):
            return cause
        return TransactionRolledBackError(str(cause))

    def abort(self) -> None:
        """Aborts, if anything is open. Raises nothing: what cannot be sent is left to the successor or the time-out."""
        if self.state is not State.OPEN:
            return
        self.state = State.IDLE
        if self._handle is None:
            return
        try:
            self._handle.abort_transaction(_STEP_S)
        except KafkaException as failure:  # also R-77: an abort that overtakes the first send may be fatal
            log.info("abort of %s: %s; the producer is replaced", self.transactional_id, failure.args[0].str())
            self._drop_handle()

    def _broken(self, error: KafkaError, topic: str = "") -> UowError:
        """The class for an error of a transactional call; the handle is thrown away where it cannot go on."""
        told = f"{topic}: {error.str()}" if topic else error.str()
        if error.fatal() or error.code() == KafkaError._FATAL:
            if self._handle is not None:
                error = fatal_cause(self._handle, error) or error
                told = f"{topic}: {error.str()}" if topic else error.str()
            age_ms = (self._clock() - self._begun) * 1000
            self._drop_handle()
            if error.code() in FENCED and age_ms < TRANSACTION_TIMEOUT_MS:
                self.state = State.FENCED
                return FencedError(f"transactional id {self.transactional_id!r}: {told}")
            return TransactionRolledBackError(
                f"{told}; the transaction was open for {age_ms:.0f} ms, its time-out is {TRANSACTION_TIMEOUT_MS} ms"
            )
        self._watch.suspicion.line = told
        if topic:
            return self._rolled_back(sent_error(error, topic))
        return TransactionRolledBackError(told)

    def _open_handle(self) -> ProducerHandle:
        if self.state is State.FENCED:
            raise FencedError(f"transactional id {self.transactional_id!r} was taken over")
        if self.state is not State.OPEN:
            raise ClientClosedError("no transaction is open")
        if self._handle is None:  # it broke; the failure is what made it so
            raise self._failure or TransactionRolledBackError("the producer was replaced")
        return self._handle

    def close(self) -> None:
        """Aborts what is open and gives the handle up."""
        self.abort()
        self._drop_handle()
        self.state = State.CLOSED


def _given_up(error: KafkaError) -> UowError:
    if error.code() in FENCED:
        return FencedError(error.str())
    return ReconnectGivenUpError(error.str())


class OneTransaction:
    """One transaction on an id of the pool, from `begin` to `end`.

    Args:
        transactions: The pool.
    """

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self._transaction: Transaction | None = None

    @property
    def is_begun(self) -> bool:
        return self._transaction is not None

    def begin(self) -> None:
        """Takes an id and begins. Raises as `Transactions.take` and `Transaction.begin`."""
        self._transaction = self._transactions.take()
        self._transaction.begin()

    def produce(self, record: OutgoingRecord) -> None:
        """As `Transaction.produce`."""
        assert self._transaction is not None
        self._transaction.produce(record)

    def commit(self, positions: Sequence[TopicPartition] = (), group: Any = None) -> None:
        """As `Transaction.commit`."""
        assert self._transaction is not None
        self._transaction.commit(positions, group)

    def end(self) -> None:
        """Gives the id back; what is open on it is aborted."""
        if self._transaction is not None:
            self._transactions.give_back(self._transaction)
            self._transaction = None


class Transactions:
    """The transactional ids of one connection, `<base>-<n>`: each open unit and each forwarding reader has one for itself. For any thread."""

    def __init__(self, base: str, make: Callable[[str, logging.Logger], ProducerHandle], topics: KnownTopics) -> None:
        self._base = base
        self._make = make
        self._topics = topics
        self._lock = threading.Lock()
        self._all: list[Transaction] = []
        self._idle: list[Transaction] = []
        self._closed = False

    def take(self) -> Transaction:
        """One that nobody uses; a fenced one is given out again, so that its owner hears of it.

        Raises:
            ClientClosedError: The connection is closed.
        """
        with self._lock:
            if self._closed:
                raise ClientClosedError("the connection is closed")
            if self._idle:
                return self._idle.pop()
            transaction = Transaction(f"{self._base}-{len(self._all)}", self._make, self._topics)
            self._all.append(transaction)
            return transaction

    def give_back(self, transaction: Transaction) -> None:
        """Takes one back; what is open on it is aborted."""
        transaction.abort()
        with self._lock:
            self._idle.append(transaction)

    def close(self) -> None:
        """Aborts and closes all."""
        with self._lock:
            self._closed = True
            transactions = list(self._all)
        for transaction in transactions:
            transaction.close()
