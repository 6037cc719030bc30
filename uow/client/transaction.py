"""Transactions of an application: their states, the errors that users meet, and the pool of transactional ids of a connection.

Belongs here: the error for a user when a transaction fails (R-82). Does not belong here: the producer, which is replaced on
any doubt (`uow.processor.kafka.transactional_producer`), and the records (`uow.client.unit_writer`, `uow.client.forwarding`).
"""

from __future__ import annotations

import itertools
import logging
import re
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from enum import Enum
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from uow.client.kafka_port import STEP_S, KnownTopics, LogWatch, ProducerHandle
from uow.client.library_errors import sent_error
from uow.client.outgoing import HASHED, OutgoingRecord
from uow.client.sending import hand_over
from uow.client.session_state import Ended, Life, Patience
from uow.errors import (
    ClientClosedError,
    CommitOutcomeUnknownError,
    CommitPendingError,
    DestinationUnavailableError,
    ReconnectGivenUpError,
    ReconnectTimeoutError,
    SendRejectedError,
    Suspect,
    TransactionRolledBackError,
)
from uow.processor.engine.ports import StaleGeneration
from uow.processor.kafka.bounded import GRACE_S, Call, returns
from uow.processor.kafka.error_table import Meaning, meaning_of
from uow.processor.kafka.transactional_producer import (
    CommitUnansweredError,
    OnLine,
    TransactionalProducer,
    TransactionFate,
)
from uow.schemas.error_classes import FencedError, UowError
from uow.topics.access import explained
from uow.topics.headers import COMPONENT_ID

log = logging.getLogger(__name__)

INIT_S: Final = 30.0
"""Longest wait for a transactional id: its predecessor's transaction may have to be ended first."""
TURN_S: Final = 0.1
"""Longest time between two looks at whether a call that waits for another thread may still wait."""
SERVE_EVERY: Final = 16
"""Records after which delivery reports are looked at: each look costs a tenth of a record, and a failure shows that much later."""
COMMIT_S: Final = 30.0
"""Longest wait for the answer to a commit, in calls that each end after the transaction's time-out."""
_NOT_ADDED: Final = re.compile(r'Failed to add partition "([^"]+)" \[')
"""The library's line about a topic that cannot be in the transaction; its error does not say which."""


INTERRUPTED: Final = (KeyboardInterrupt, SystemExit)
"""Whatever a signal raises between two steps of a call: Ctrl-C, and a program's own end at SIGTERM."""


class TransactionState(Enum):
    """Of a `Transaction`."""

    IDLE = "idle"
    OPEN = "open"
    SETTLING = "settling"
    """Its commit goes on in the background: nothing but asking for it again is allowed (R-64)."""
    FENCED = "fenced"
    CLOSED = "closed"


class Transaction:
    """A transactional id and its producer; at most one transaction is open. Not for two threads at once.

    Attributes:
        beginning: Held while a producer of this id is initialised: one that is initialised beside it would be fenced.
    """

    def __init__(
        self,
        transactional_id: str,
        make: Callable[[str, logging.Logger], ProducerHandle],
        topics: KnownTopics,
        life: Life,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.transactional_id = transactional_id
        self.state = TransactionState.IDLE
        self.beginning = threading.Lock()
        self._make = make
        self._topics = topics
        self._life = life
        self._clock = clock
        self._timeout_s = life.waits.transaction_ms / 1000
        self._not_added = ""
        self._producer = self._new_producer()
        self._settling: Call | None = None
        self._ended_unanswered = False
        """True if its connection ended while a commit was under way."""
        self._undelivered: tuple[KafkaError, str] | None = None
        self._failure: Exception | None = None
        self._suspect: Suspect | None = None
        self._count = 0
        self._ended: Ended | None = None

    def _new_producer(self) -> TransactionalProducer[ProducerHandle]:
        def handle(on_line: OnLine) -> ProducerHandle:
            def hear(line: str) -> None:
                if (found := _NOT_ADDED.search(line)) is not None:
                    self._not_added = found[1]
                on_line(line)

            return self._make(self.transactional_id, LogWatch(hear).logger)

        return TransactionalProducer(handle, self._timeout_s, self._on_replaced, monotonic=self._clock)

    def _on_replaced(self, cause: str) -> None:
        self._life.count(rebuilds=1)

    @property
    def is_open(self) -> bool:
        return self.state is TransactionState.OPEN

    @property
    def has_producer(self) -> bool:
        """True if a producer is initialised: whatever was open of the id before has ended."""
        return self._producer.is_open

    def begin(self) -> None:
        """Begins a transaction, on a new handle where the last one is in doubt.

        Raises:
            ClientClosedError: Closed.
            FencedError: Someone newer owns the transactional id.
            ReconnectTimeoutError: No broker answered in time.
            ReconnectGivenUpError: Refused for good.
        """
        if self._ended is not None:
            raise self._ended.error(f"transactional id {self.transactional_id!r}")
        if self.state is TransactionState.FENCED:
            raise self._taken_over()
        self._undelivered = self._failure = self._suspect = None
        self._count = 0
        patience, has_turn = self._patience(), False
        try:
            while not (has_turn := self.beginning.acquire(timeout=TURN_S)):
                patience(None)
            self._producer.begin(patience)
        except KafkaException as failure:
            error: KafkaError = failure.args[0]
            raise (self._broken(error) if self._producer.is_open else _init_error(error)) from failure
        finally:
            if has_turn:
                self.beginning.release()
        self.state = TransactionState.OPEN

    def _patience(self) -> Callable[[KafkaException | None], object]:
        deadline, connection = self._clock() + INIT_S, Patience(self._life)

        def patience(failure: KafkaException | None) -> None:
            connection.spend()
            if self._clock() >= deadline:
                why = "it could not begin in time" if failure is None else failure.args[0].str()
                raise ReconnectTimeoutError(f"transactional id {self.transactional_id!r}: {why}") from failure

        return patience

    def takes_at_once(self, record: OutgoingRecord) -> bool:
        """True if `produce` asks nobody for anything before it hands this record over."""
        return self.is_open and record.partition == HASHED and self._topics.is_known(record.topic)

    def produce(self, record: OutgoingRecord, *, may_wait: bool = True) -> None:
        """Adds a record to the open transaction; waits only for room in the send buffer (R-78).

        Raises:
            BufferError: There is no room, and it may not wait: nothing has changed.
            SendRejectedError: Refused for good, or no room in time.
            DestinationUnavailableError: There is no such topic.
            ConfigError: The destination's partition count has changed (W-107).
            UowError: The failure of an earlier record of this transaction, which can only be aborted.
        """
        if self.state is not TransactionState.OPEN or self._ended is not None:
            self._check_open()
        if self._undelivered is not None or self._failure is not None:
            self._check_delivered()
        handle = self._producer.handle
        try:
            self._topics.admit(handle, record, "transacted", self._life)
            try:
                hand_over(handle, record, self._on_delivery)
            except BufferError:
                if not may_wait:
                    raise
                self._producer.produce(partial(hand_over, handle, record, self._on_delivery), self._life.waits.answer_s)
            if self._count % SERVE_EVERY == 0:
                self._producer.serve()
        except BufferError:
            if not may_wait:
                raise
            text = f"{record.topic}: the send buffer stayed full for {self._life.waits.answer_s:g} s"
            self._failure = SendRejectedError(text)
            raise self._failure from None
        except KafkaException as failure:
            self._failure = self._broken(failure.args[0], record.topic)
            raise self._failure from failure
        except UowError as failure:
            self._failure = failure
            raise
        self._count += 1
        if self._suspect is None:
            self._suspect = _suspect(record)

    def _on_delivery(self, error: KafkaError | None, message: Any) -> None:
        """Every record's fate is known before a commit counts (ER-04)."""
        if error is not None and self._undelivered is None:
            self._undelivered = error, message.topic()

    def _check_delivered(self) -> None:
        if self._failure is None and self._undelivered is not None:
            self._failure = self._broken(*self._undelivered)
        if self._failure is not None:
            raise self._failure

    def commit(
        self, positions: Sequence[TopicPartition] = (), group: Any = None, patience: Patience | None = None
    ) -> None:
        """Commits what was produced, with the input positions of a consumer group where given.

        No transaction is open after it, whatever it raises, but for `CommitPendingError`.

        Args:
            positions: Input positions.
            group: Metadata of their consumer group.
            patience: Of the call; None: until the outcome is known, or nobody can tell it any more.

        Raises:
            CommitPendingError: No broker answers, for as long as a call waits; it goes on. Call again, and nothing else.
            TransactionRolledBackError: Nothing is visible.
            SendRejectedError: A record was refused for good; nothing is visible.
            DestinationUnavailableError: A record found no topic or leader; nothing is visible.
            CommitOutcomeUnknownError: The commit was not answered.
            FencedError: Someone newer owns the transactional id; nothing is visible.
            StaleGeneration: The consumer group moved on; nothing is visible. Never leaves `uow`.
        """
        settling = self._settling
        if settling is None:
            self._check_open()
        try:
            if settling is None:
                self.state = TransactionState.SETTLING
                settling = self._settling = Call(partial(self._commit, positions, group))
            while not settling.returned(STEP_S):
                if self._settling is not settling:  # its connection ended meanwhile, in another thread
                    raise self.unknown("its connection ended before the answer")
                if patience is not None and patience.is_in_vain:
                    raise CommitPendingError(str(self._life.too_long(f"transactional id {self.transactional_id!r}")))
        except (CommitPendingError, CommitOutcomeUnknownError):
            raise
        except CommitUnansweredError as failure:
            self._settled(TransactionState.IDLE)  # not aborted: that may not be what happened
            self._producer.discard()  # the library would go on asking for the commit while the caller repeats it
            raise self.unknown(failure.args[0].str()) from failure
        except KafkaException as failure:
            self._settled(TransactionState.OPEN)
            raised = self._broken(failure.args[0], has_positions=bool(positions))
            self.abort()
            raise raised from failure
        except UowError:
            self._settled(TransactionState.OPEN)
            self.abort()
            raise
        except INTERRUPTED:
            self._abandon()
            raise
        self._settled(TransactionState.IDLE)
        self._life.count(sent=self._count)

    def unknown(self, why: str) -> CommitOutcomeUnknownError:
        """The error of whoever cannot be told whether this was committed."""
        text = f"transactional id {self.transactional_id!r}: {why}"
        return CommitOutcomeUnknownError(text, self.transactional_id, self._suspect)

    def _settled(self, state: TransactionState) -> None:
        self._settling = None
        if self.state is TransactionState.SETTLING:
            self.state = state

    def _commit(self, positions: Sequence[TopicPartition], group: Any) -> None:
        """In a thread of its own: the library's calls neither end early nor hear Ctrl-C (R-63)."""
        producer = self._producer
        self._check_delivered()
        producer.flush()
        self._check_delivered()
        if positions:
            producer.send_offsets(list(positions), group, self._timeout_s)
        producer.commit(COMMIT_S)

    def _abandon(self) -> None:
        """Leaves a commit alone with its producer: the next transaction has another one, and so a new epoch."""
        self._settled(TransactionState.IDLE)
        self._producer = self._new_producer()

    def abort(self, timeout: float | None = None) -> None:
        """Aborts, if anything is open. Raises nothing: what cannot be sent is left to the successor or the time-out."""
        if self.state is TransactionState.SETTLING:
            self._abandon()
        if self.state is not TransactionState.OPEN:
            return
        self.state = TransactionState.IDLE
        producer = self._producer
        if not producer.is_open:
            return
        limit = min(self._timeout_s, self._life.waits.answer_s if timeout is None else timeout)
        if not self._life.is_connected or not limit:
            producer.discard()
            return
        try:
            if not returns(partial(producer.abort, limit), limit + GRACE_S):
                self._producer = self._new_producer()
        except KafkaException as failure:
            log.info("abort of %s: %s; the producer is replaced", self.transactional_id, failure.args[0].str())

    def _broken(self, error: KafkaError, topic: str = "", has_positions: bool = False) -> Exception:
        """The class for an error of the open transaction. One of a record keeps its class where the caller has to correct something."""
        if (
            error.code() == KafkaError._PURGE_QUEUE
        ):  # not for its own sake: for a topic that cannot be in the transaction
            if self._producer.is_open:
                self._producer.serve()  # its log line names the topic
            topic = self._not_added or topic
        error = self._producer.cause_of(error)
        text = f"{topic}: {error.str()}" if topic else error.str()
        match self._producer.fate_of(error):
            case TransactionFate.STALE_GENERATION if has_positions:
                return StaleGeneration(text)
            case TransactionFate.FENCED:
                self.state = TransactionState.FENCED
                self._producer.discard()
                return FencedError(f"transactional id {self.transactional_id!r}: {text}")
            case TransactionFate.TIMED_OUT:
                age_ms, limit_ms = self._producer.age_s * 1000, self._timeout_s * 1000
                return TransactionRolledBackError(
                    f"{text}; the transaction was open for {age_ms:.0f} ms, its time-out is {limit_ms:.0f} ms"
                )
        cause = sent_error(error, topic)
        if topic and isinstance(cause, SendRejectedError | DestinationUnavailableError):
            return cause
        return TransactionRolledBackError(text)

    def _check_open(self) -> None:
        if self._ended_unanswered:
            raise self.unknown("its connection ended before the answer")
        if self.state is TransactionState.FENCED:
            raise self._taken_over()
        if self._ended is not None:
            raise self._ended.error(f"transactional id {self.transactional_id!r}")
        if self.state is TransactionState.SETTLING:
            raise CommitPendingError(f"transactional id {self.transactional_id!r}: call commit() again")
        if self.state is not TransactionState.OPEN:
            raise ClientClosedError("no transaction is open")

    def _taken_over(self) -> FencedError:
        return FencedError(f"transactional id {self.transactional_id!r} was taken over")

    def left_behind(self, ended: Ended) -> None:
        """In a child of fork it is over; its producer stays as it is."""
        self._ended, self.state = ended, TransactionState.CLOSED
        self._settling = None  # its thread is the parent's

    def end(self, ended: Ended, timeout: float) -> None:
        """Waits for a commit under way, aborts what is open, and throws the producer away, all in `timeout` seconds."""
        if self.state is TransactionState.CLOSED:  # in a child of fork nothing of it may be touched
            return
        self._ended = ended
        if self._settling is None or not self._settling.is_over(
            timeout
        ):  # else whoever asks for the commit again hears of its end
            self._ended_unanswered = self._settling is not None
            self.abort(timeout)
            self.state = TransactionState.CLOSED
        self._producer.discard()


def _suspect(record: OutgoingRecord) -> Suspect | None:
    """The record that can tell whether its transaction was committed; None for one without identity."""
    identity = next((value for name, value in record.headers if name == COMPONENT_ID and value), None)
    if identity is None:
        return None
    return Suspect(identity.decode("utf-8", "replace"), record.topic, record.partition, at=time.time())


def _init_error(error: KafkaError) -> UowError:
    """The class for a producer that cannot be initialised."""
    if meaning_of(error) is Meaning.FENCED:
        return FencedError(error.str())
    return ReconnectGivenUpError(explained(error.name(), error.str()))


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
        """Takes an id and begins. Raises as `Transactions.take` and `Transaction.begin`; then it may be called again."""
        transaction = self._transactions.take()
        try:
            transaction.begin()
        except BaseException:
            self._transactions.give_back(transaction)
            raise
        self._transaction = transaction

    def takes_at_once(self, record: OutgoingRecord) -> bool:
        """As `Transaction.takes_at_once`."""
        return self._transaction is not None and self._transaction.takes_at_once(record)

    def produce(self, record: OutgoingRecord, *, may_wait: bool = True) -> None:
        """As `Transaction.produce`."""
        assert self._transaction is not None
        self._transaction.produce(record, may_wait=may_wait)

    def commit(
        self, positions: Sequence[TopicPartition] = (), group: Any = None, patience: Patience | None = None
    ) -> None:
        """As `Transaction.commit`."""
        assert self._transaction is not None
        self._transaction.commit(positions, group, patience)

    def patience(self) -> Patience:
        """For a commit that may be asked for again."""
        return Patience(self._transactions.life)

    def unknown(self, why: str) -> CommitOutcomeUnknownError:
        """As `Transaction.unknown`."""
        assert self._transaction is not None
        return self._transaction.unknown(why)

    def left_in_doubt(self) -> Callable[[], None]:
        """Leaves the id aside, with a commit whose outcome is not known.

        Returns:
            Ends by a new epoch what the broker may still have of that commit, and gives the id back. Raises as `Transaction.begin`; then it is to be called
            again.
        """
        transaction, self._transaction = self._transaction, None

        def end() -> None:
            if transaction is not None:
                transaction.abort()  # where its commit was not asked for yet
                transaction.begin()
                self._transactions.give_back(transaction)

        return end

    def end(self) -> None:
        """Gives the id back; what is open on it is aborted."""
        if self._transaction is not None:
            self._transactions.give_back(self._transaction)
            self._transaction = None


class NamedTransactions(OneTransaction):
    """Several transactions, one after the other, on a transactional id of its own: whoever begins with it fences all before (B-123)."""

    def __init__(self, transactions: Transactions, transactional_id: str) -> None:
        super().__init__(transactions)
        self.transactional_id = transactional_id

    @property
    def is_begun(self) -> bool:
        return self._transaction is not None and self._transaction.is_open

    def begin(self) -> None:
        if self._transaction is None:
            self._transaction = self._transactions.named(self.transactional_id)
        self._transaction.begin()

    def abort(self) -> None:
        """Aborts, if anything is open."""
        if self._transaction is not None:
            self._transaction.abort()

    def end(self) -> None:
        if self._transaction is not None:
            self._transactions.drop(self._transaction)
            self._transaction = None


class Transactions:
    """The transactional ids of one connection, `<base>-<n>`: each open unit and each forwarding reader has one for itself. For any thread."""

    def __init__(
        self, base: str, make: Callable[[str, logging.Logger], ProducerHandle], topics: KnownTopics, life: Life
    ) -> None:
        self.life = life
        self._base = base
        self._make = make
        self._topics = topics
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._all: list[Transaction] = []
        self._idle: list[Transaction] = []
        self._ended: Ended | None = None

    def take(self) -> Transaction:
        """An unused one. A fenced one is given out again, so that its owner gets the error.

        Raises:
            UowError: The connection has ended.
        """
        with self._lock:
            if self._ended is not None:
                raise self._ended.error("the connection")
            if self._idle:
                return self._idle.pop()
            transaction = Transaction(f"{self._base}-{next(self._numbers)}", self._make, self._topics, self.life)
            self._all.append(transaction)
            return transaction

    def named(self, transactional_id: str) -> Transaction:
        """One on an id that is not of the pool. Raises as `take`."""
        with self._lock:
            if self._ended is not None:
                raise self._ended.error("the connection")
            transaction = Transaction(transactional_id, self._make, self._topics, self.life)
            self._all.append(transaction)
            return transaction

    def drop(self, transaction: Transaction) -> None:
        """Ends one of `named`; what is open on it is aborted."""
        transaction.abort()
        with self._lock:
            if self._ended is None:  # a child of fork must not free a handle of its parent
                self._all.remove(transaction)
        transaction.end(self.life.closed_now(), 0.0)

    def end_orphan(self, transactional_id: str) -> None:
        """Ends what is open of an id, or completes its commit, by a new epoch; where a later transaction has the id, that has done it.

        Raises as `Transaction.begin`.
        """
        with self._lock:
            mine = next((each for each in self._all if each.transactional_id == transactional_id), None)
        with nullcontext() if mine is None else mine.beginning:
            if mine is not None and mine.has_producer:
                return
            orphan = Transaction(transactional_id, self._make, self._topics, self.life)
            try:
                orphan.begin()
            finally:
                orphan.abort()
                orphan.end(self.life.closed_now(), 0.0)

    def give_back(self, transaction: Transaction) -> None:
        """Takes one back; what is open on it is aborted."""
        transaction.abort()
        with self._lock:
            self._idle.append(transaction)

    def left_behind(self, ended: Ended) -> None:
        """In a child of fork: whatever a thread of the parent had in hand, nothing of them is touched any more."""
        self._lock, self._ended = threading.Lock(), ended
        for transaction in self._all:
            transaction.left_behind(ended)

    def end(self, ended: Ended, timeout: float) -> None:
        """Aborts and closes all, in `timeout` seconds."""
        with self._lock:
            self._ended = ended
            transactions = list(self._all)
        until = time.monotonic() + timeout
        for transaction in transactions:
            transaction.end(ended, max(0.0, until - time.monotonic()))
