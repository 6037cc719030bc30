"""A transactional id and the librdkafka handle that owns it at the moment: for the worker's sink and for applications alike.

Theory of operation, **fence on doubt** (ER-11, R-75). librdkafka repeats requests by itself after a broken connection, and a frame that
arrives late hits the *next* transaction of the same producer epoch. So there is no next transaction on a handle in doubt:

1. `open` makes a handle and initialises it: the epoch rises, late frames of the last one are refused, an orphan is ended. A handle on
   which a broken connection may go unnoticed is not used (decision 14).
2. `begin` serves the handle's log first. A doubtful line (`uow.processor.kafka.doubt`), or a call that failed since, and `open` comes
   before the transaction. The last one was closed with a known outcome, or its user got an error that says otherwise.
3. `produce` waits for room, `send_offsets` and `commit` return in their time. A commit that is not answered may be asked again: that
   alone tells its outcome.
4. After a failure `fate_of` names the consequence for the transaction; every one but a stale generation leaves the handle in doubt.

A transaction that is decided is not over before its marker is in each of its partitions. While one of them takes none, its id is *stuck*: no new epoch,
no other transaction. `open` takes a spare id meanwhile, where there is one (decision 102), and `begin` goes back as soon as the first id is free.

Belongs here: the life of a transaction, and the consequence of its failures by the error table. Does not belong here: the records, the wait for
brokers, the errors that users meet (`uow.processor.kafka.sink`, `uow.client.transaction`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any, Final, Generic, Protocol, TypeVar

import confluent_kafka as ck

from uow.processor.kafka.doubt import Suspicion
from uow.processor.kafka.error_table import Meaning, is_passing, meaning_of

log = logging.getLogger("uow.producer")

INIT_STEP_S: Final = 1.0
"""Longest that one request to initialise waits; between two, `Patience` is asked."""
DEAF_S: Final = 0.1
"""Before another handle is tried in place of one whose connections broke as it began."""
ROOM_STEP_S: Final = 0.02
STUCK_S: Final = 5.0
"""Longest wait for markers before a spare id is taken: a follower that is slow for a moment should not cost a change of ids."""

OnLine = Callable[[str], None]
Patience = Callable[[ck.KafkaException | None], object]
"""Called between two tries to get a handle, with the error of the last one, None where connections broke. Raises to end the waiting."""


class TransactionalHandle(Protocol):
    """The methods of `confluent_kafka.Producer` that a transaction needs, beside `produce`."""

    def poll(self, timeout: float) -> int: ...
    def flush(self, timeout: float) -> int: ...
    def purge(self) -> None: ...
    def init_transactions(self, timeout: float) -> None: ...
    def begin_transaction(self) -> None: ...
    def send_offsets_to_transaction(
        self, positions: list[ck.TopicPartition], group_metadata: Any, timeout: float
    ) -> None: ...
    def commit_transaction(self, timeout: float) -> None: ...
    def abort_transaction(self, timeout: float) -> None: ...


Handle = TypeVar("Handle", bound=TransactionalHandle)


class TransactionFate(Enum):
    """The consequence of a failed call for the open transaction."""

    FENCED = "fenced"
    """Somebody newer owns the transactional id: stop, without a contest (ER-13)."""
    TIMED_OUT = "timed out"
    """The coordinator ended it, for it took longer than its time-out: nothing is visible."""
    STALE_GENERATION = "stale generation"
    """The consumer group moved on: abort, and the handle is as good as before (ER-14)."""
    REFUSED = "refused"
    """A record will never be written: abort; the same again would fail again (F20)."""
    DOUBT = "doubt"
    """Anything else: abort, and begin anew."""


class CommitUnansweredError(ck.KafkaException):
    """All of the transaction is visible, or nothing of it. An abort would answer with a conflict, and may not be what happened."""


class TransactionalProducer(Generic[Handle]):
    """At most one transaction is open. Not for two threads at once.

    Args:
        make: Makes a handle of the transactional id, whose log lines go to the function given.
        timeout_s: The transaction's time-out, which is also the longest that one request of it waits.
        on_replaced: Called with the cause when a handle in doubt was replaced before a transaction.
        monotonic: Seconds, from anywhere; the simulator has its own.
        spares: As `make`, for the ids to use while that one is stuck. Only for users whom something else fences as well (ER-02).
    """

    def __init__(
        self,
        make: Callable[[OnLine], Handle],
        timeout_s: float,
        on_replaced: Callable[[str], None] = lambda cause: None,
        monotonic: Callable[[], float] = time.monotonic,
        spares: Sequence[Callable[[OnLine], Handle]] = (),
    ) -> None:
        self._makers, self._timeout_s = [make, *spares], timeout_s
        self._on_replaced, self._monotonic = on_replaced, monotonic
        self._handle: Handle | None = None
        self._stuck: Handle | None = None
        """Of the first id, while a spare one is in use or looked for."""
        self._turn = 0
        """Which of the makers made the handle."""
        self._suspicion = Suspicion()
        self._doubt = ""
        self._began = 0.0
        self._timed_out = float("-inf")

    @property
    def handle(self) -> Handle:
        """The handle that owns the id; for `produce`, which a worker calls without a step between."""
        assert self._handle is not None, "open the producer first"
        return self._handle

    @property
    def is_open(self) -> bool:
        """True if there is a handle, be it in doubt."""
        return self._handle is not None

    @property
    def age_s(self) -> float:
        """Seconds since the last transaction began."""
        return self._monotonic() - self._began

    # -- the handle

    def open(self, patience: Patience) -> None:
        """A new handle, hence a new epoch: fences the former owner of the id, and ends its open transaction.

        Raises:
            KafkaException: Refused for good, or fenced. Whatever `patience` raises goes through.
        """
        self.discard()
        self._return_to_first()
        while True:
            # each handle has its own, so that late lines of a replaced one count for nothing (ER-13)
            suspicion = self._suspicion = Suspicion()
            handle = self._makers[self._turn](suspicion.on_line)
            if not self._initialise(handle, patience):
                self._pass_on(handle)
                continue
            serve(handle, handle.poll, 0)
            if not suspicion.is_deaf:
                break
            log.info("another producer, since connections broke while this one began: %s", suspicion.line)
            patience(None)
            serve(handle, handle.poll, DEAF_S)
        suspicion.has_begun()
        self._handle = handle

    def _initialise(self, handle: Handle, patience: Patience) -> bool:
        """In short steps: while no broker answers, the consumer group must be served (ER-17). False if the id is stuck, and there are others."""
        since = self._monotonic()
        while True:
            try:
                handle.init_transactions(INIT_STEP_S)
                return True
            except ck.KafkaException as failure:
                error: ck.KafkaError = failure.args[0]
                if not is_passing(error):
                    if self._turn and meaning_of(error) is Meaning.NOT_AUTHORISED:
                        log.warning("a spare transactional id is refused: %s", text_of(error))
                        del self._makers[1:]
                        return False
                    raise
                patience(failure)
                is_stuck = error.code() == ck.KafkaError.CONCURRENT_TRANSACTIONS
                if is_stuck and len(self._makers) > 1 and self._monotonic() - since >= STUCK_S:
                    return False

    def _pass_on(self, handle: Handle) -> None:
        """To the next id."""
        if self._turn == 0:
            self._stuck = handle
            log.warning("markers of the last transaction cannot be written: going on under a spare transactional id")
        self._turn = (self._turn + 1) % len(self._makers)
        if self._turn == 0:
            self._stuck = None  # never two handles of one id: each would fence the other

    def _return_to_first(self) -> bool:
        """True if the first id was stuck, and is free. Asks without a wait: the library goes on asking the brokers."""
        if self._stuck is None:
            return False
        try:
            serve(self._stuck, self._stuck.poll, 0)
            self._stuck.init_transactions(0)
        except ck.KafkaException as failure:
            if is_passing(failure.args[0]):
                return False
            raise
        self._turn, self._stuck = 0, None
        return True

    def suspect(self, why: str) -> None:
        """No further transaction begins on this handle."""
        self._doubt = self._doubt or why

    def discard(self) -> None:
        """Throws the handle away. Records that are left in it never become visible."""
        handle, self._handle = self._handle, None
        self._doubt = ""
        if handle is not None:
            with suppress(ck.KafkaException):  # a handle in fatal state raises its error at every call (ER-13)
                handle.purge()
                serve(handle, handle.poll, 0)

    def _renew_in_doubt(self, patience: Patience) -> None:
        if not self._doubt:  # a handle that is dead raises its error here
            self.serve()  # log lines arrive here
        if self._return_to_first():
            self.suspect("its first transactional id is free again")
        if cause := self._doubt or self._suspicion.line:
            log.info("producer replaced before the next transaction: %s", cause)
            self.open(patience)
            self._on_replaced(cause)

    # -- a transaction

    def begin(self, patience: Patience) -> None:
        """Begins one, on a new handle where there is none or the last one is in doubt.

        Raises:
            KafkaException: As `open`, or the library's. Whatever `patience` raises goes through.
        """
        self._began = self._monotonic()
        if self._handle is None:
            self.open(patience)
        else:
            self._renew_in_doubt(patience)
        self._began = self._monotonic()
        self.handle.begin_transaction()

    def produce(self, hand_over: Callable[[], None], wait_s: float) -> None:
        """Hands a record over; waits for room in the send buffer (ER-19, R-78).

        Args:
            hand_over: Calls the handle's `produce`.
            wait_s: Longest wait for room.

        Raises:
            BufferError: There was none in time.
            KafkaException: The library's.
        """
        until = self._monotonic() + wait_s
        while True:
            try:
                hand_over()
                return
            except BufferError:
                self.serve(ROOM_STEP_S)
                if self._monotonic() >= until:
                    raise

    def serve(self, timeout: float = 0.0) -> None:
        """Runs what waits to be called: delivery reports and log lines."""
        serve(self.handle, self.handle.poll, timeout)

    def flush(self, timeout: float | None = None) -> int:
        """Waits until the fate of every record is known, for a transaction's time unless told otherwise; how many are left."""
        return serve(self.handle, self.handle.flush, self._timeout_s if timeout is None else timeout)

    def send_offsets(self, positions: list[ck.TopicPartition], group_metadata: Any, timeout: float) -> None:
        """Adds input positions of a consumer group to the transaction.

        Raises:
            KafkaException: The library's; after the time-out `_TIMED_OUT`.
        """
        self.handle.send_offsets_to_transaction(positions, group_metadata, min(timeout, self._timeout_s))

    def commit(self, patience_s: float = 0.0) -> None:
        """Commits. One that is not answered is asked again, as long as patience lasts: that alone tells the outcome (ER-12, R-30).

        Raises:
            CommitUnansweredError: The outcome is not known.
            KafkaException: The library's: nothing is visible.
        """
        until = self._monotonic() + patience_s
        was_unanswered = False
        while True:
            try:
                self.handle.commit_transaction(self._timeout_s)
                return
            except ck.KafkaException as failure:
                error: ck.KafkaError = failure.args[0]
                if was_unanswered and meaning_of(error) is Meaning.FENCED:
                    # the first request may have gone well before somebody else took the id
                    raise CommitUnansweredError(error) from failure
                if error.fatal() or error.txn_requires_abort():
                    raise
                was_unanswered = True
                self.suspect(text_of(error))
                if not error.retriable() or self._monotonic() >= until:
                    raise CommitUnansweredError(error) from failure

    def abort(self, timeout: float) -> None:
        """Aborts.

        Raises:
            KafkaException: It is left to the next epoch, or to the time-out; the handle is in doubt.
        """
        try:
            self.handle.abort_transaction(timeout)
        except ck.KafkaException as failure:  # also R-77: an abort that overtakes the first send may be fatal
            self.suspect(text_of(failure.args[0]))
            raise

    # -- failures

    def cause_of(self, error: ck.KafkaError) -> ck.KafkaError:
        """The error behind one that says only that something happened before.

        `produce` and callbacks say no more than `_FATAL`, and when a record fails while offsets are under way, sending them says `_STATE`; where a
        topic cannot be added to the transaction, for one because of a right, its records are purged. Any transactional call names the cause then; asking to begin is one that changes nothing, since a
        transaction is open or none can be.
        """
        is_blank = error.code() in (ck.KafkaError._STATE, ck.KafkaError._PURGE_QUEUE, ck.KafkaError._PURGE_INFLIGHT)
        if self._handle is None or not (is_blank or error.fatal() or error.code() == ck.KafkaError._FATAL):
            return error
        cause = fatal_cause(self._handle, is_blank)
        return error if cause is None or cause.code() == ck.KafkaError._STATE else cause

    def fate_of(self, error: ck.KafkaError) -> TransactionFate:
        """The consequence of a failed call for the open transaction (ER-13, ER-14). All but a stale generation leave the handle in doubt."""
        meaning = meaning_of(error)
        is_of_group = meaning in (Meaning.STALE_GENERATION, Meaning.INSTANCE_FENCED)
        if is_of_group and not error.fatal():
            return TransactionFate.STALE_GENERATION
        self.suspect(text_of(error))
        if meaning in (Meaning.FENCED, Meaning.INSTANCE_FENCED):
            return self._fenced()
        if meaning in (Meaning.REFUSED, Meaning.NOT_AUTHORISED_FOR_TOPIC, Meaning.UNKNOWN_TOPIC):
            return TransactionFate.REFUSED
        return TransactionFate.DOUBT

    def _fenced(self) -> TransactionFate:
        """Taken over, or timed out by the coordinator while still ours? The younger a transaction, the less it can have timed out (ER-13)."""
        now = self._monotonic()
        if now - self._began >= self._timeout_s and now - self._timed_out >= self._timeout_s:
            self._timed_out = now
            return TransactionFate.TIMED_OUT
        return TransactionFate.FENCED


LOST_EXCEPTION = "without setting an exception"
"""In the text of the `SystemError` that comes out of `poll` in place of another exception (confluent_kafka 2.16)."""


def serve(handle: TransactionalHandle, call: Callable[[float], int], timeout: float) -> int:
    """Runs the library's callbacks inside `poll` or `flush` of a handle; returns what that does.

    Raises:
        KafkaException: The library throws a fatal error out of here; as a `SystemError` where a delivery callback got in its way.
        KeyboardInterrupt: It looks for signals as well, and may lose that exception in the same way.
    """
    try:
        return call(timeout)
    except SystemError as failure:
        error = fatal_cause(handle)
        if error is not None:
            raise ck.KafkaException(error) from failure
        if LOST_EXCEPTION in str(failure):
            raise KeyboardInterrupt from failure
        raise


def fatal_cause(handle: TransactionalHandle, or_other: bool = False) -> ck.KafkaError | None:
    """The error that made a handle unusable; also one that did not, where asked for. None if there is none."""
    try:
        handle.begin_transaction()
    except ck.KafkaException as failure:
        error: ck.KafkaError = failure.args[0]
        return error if or_other or error.fatal() else None
    return None


def text_of(error: ck.KafkaError) -> str:
    """Name and text of an error, for people."""
    return f"{error.name()}: {error.str()}"
