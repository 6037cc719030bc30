"""The engine's sink on librdkafka: one poll, one transaction, and a new producer whenever there is doubt.

Belongs here: the named commit steps, what librdkafka's errors mean for a transaction, fence on doubt. Does not belong here: what is
written (a plan says it) and what happens after a failure (`processor.engine.driver`).

**Fence on doubt** (ER-11). librdkafka repeats requests by itself after a broken connection, and a frame that arrives late hits the
*next* transaction of the same epoch. So before each `begin` the handle's log lines are looked at; a doubtful one
(`processor.kafka.doubt`) means that something of the last transaction may still be under way, and the producer is replaced:
`init_transactions` raises the epoch, the late frame is refused. The last transaction was closed with a known outcome then, so no state is lost and
nothing needs a restore. A failure *inside* a transaction is a `Doubt`: the driver replaces and restores.

**Delivery reports.** No callback per record: `commit_transaction` flushes and then fails if any record of the transaction failed
(librdkafka puts the transaction into its abortable state), so a commit that succeeded knows the fate of each (ER-04, engine rule 7). A Python callback
would cost about as much again as producing.

`produce` is called per record, positionally: 0.7 µs. `produce_batch` measured 0.6 to 0.8 µs with its dictionaries, knows no headers
and reports a full queue by marks in the dictionaries; it is not worth it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import confluent_kafka as ck

from processor.engine.ports import (
    Contents,
    Doubt,
    Meanwhile,
    Output,
    Plan,
    Refused,
    StaleGeneration,
    Tp,
)
from processor.engine.stayed import whole_outputs
from processor.kafka.clients import Clients
from processor.kafka.contents import KafkaContents
from processor.kafka.doubt import Suspicion
from processor.kafka.settings import WorkerSettings
from schemas.errors import FencedError

log = logging.getLogger("uow.sink")

STEPS = ("begin", "produced", "offsets", "commit", "committed")
"""Names of the commit steps, in order; drills crash at each of them (engine rule 2).

`begin`: a transaction is open. `produced`: every record is handed to librdkafka. `offsets`: the positions are in the transaction.
`commit`: just before the commit is asked for. `committed`: it is known to be committed.
"""

STALE = frozenset(
    {
        ck.KafkaError.ILLEGAL_GENERATION,
        ck.KafkaError.UNKNOWN_MEMBER_ID,
        ck.KafkaError.REBALANCE_IN_PROGRESS,
        ck.KafkaError.FENCED_INSTANCE_ID,
    }
)
REFUSED = frozenset(
    {
        ck.KafkaError.MSG_SIZE_TOO_LARGE,
        ck.KafkaError.RECORD_LIST_TOO_LARGE,
        ck.KafkaError.INVALID_MSG,
        ck.KafkaError.INVALID_RECORD,
        ck.KafkaError.TOPIC_AUTHORIZATION_FAILED,
        ck.KafkaError._UNKNOWN_TOPIC,
        ck.KafkaError._UNKNOWN_PARTITION,
    }
)
FENCED = frozenset({ck.KafkaError._FENCED, ck.KafkaError.INVALID_PRODUCER_EPOCH})

INIT_STEP_S = 1.0
DEAF_S = 0.1
"""Before another handle is tried in place of one whose connections broke as it began."""

ABORT_S = 2.0
OFFSETS_S = 5.0
"""Longest wait for the group's coordinator to take the positions; a broken connection may cost all of it (`processor.kafka.bounded`)."""


class KafkaSink:
    """Port `Sink`.

    Args:
        clients: Makes producers.
        settings: Slot and time-outs.
        on_step: Called at each of `STEPS`; drills crash there.
        on_replaced: Called with the cause whenever the producer was replaced.
        monotonic: Seconds, from anywhere; the simulator has its own.
        contents: Reads values back (W-117); likewise.
    """

    def __init__(
        self,
        clients: Clients,
        settings: WorkerSettings,
        on_step: Callable[[str], None] = lambda step: None,
        on_replaced: Callable[[str], None] = lambda cause: None,
        monotonic: Callable[[], float] = time.monotonic,
        contents: Contents | None = None,
    ) -> None:
        self._clients, self._settings = clients, settings
        self._on_step, self._on_replaced, self._monotonic = on_step, on_replaced, monotonic
        self._timeout_s = settings.transaction_timeout_ms / 1000
        self._producer: ck.Producer | None = None
        self._suspicion = Suspicion()
        self._began = 0.0
        self._rebuilt = float("-inf")
        self._contents = contents or KafkaContents(clients, self._timeout_s / 2)
        self._was_late = False

    def open(self, meanwhile: Meanwhile = lambda: None) -> None:
        """Fences a predecessor in the same slot and ends its orphan transaction at once (ER-09)."""
        self._renew(meanwhile)

    def write(self, plans: Sequence[Plan], token: Any) -> None:
        """One transaction: rows, ledger, outputs, positions; committed on return."""
        producer = self._fill(plans)
        try:
            producer.send_offsets_to_transaction(_offsets(plans), token, min(OFFSETS_S, self._timeout_s))
            self._on_step("offsets")
            self._on_step("commit")
            producer.commit_transaction(self._timeout_s)
        except ck.KafkaException as failure:
            raise self._verdict(self._cause(producer, failure), None) from failure
        self._was_late = False
        self._on_step("committed")

    def rehearse(self, plans: Sequence[Plan], token: Any, partitions: int) -> None:
        """Does what `write` does, and takes it back: nothing of it is visible, and nothing has moved.

        Args:
            plans: As for `write`.
            token: As for `write`.
            partitions: How many of `D.components` and `D.commands` there are for certain; positions of others cannot be sent yet.

        Raises:
            Doubt: `write` would fail as well, as far as can be told.
        """
        producer = self._fill(plans)
        try:
            producer.flush(self._timeout_s)
            offsets = _offsets([plan for plan in plans if plan.tp.partition < partitions])
            producer.send_offsets_to_transaction(offsets, token, min(OFFSETS_S, self._timeout_s))
            producer.abort_transaction(self._timeout_s)
        except ck.KafkaException as failure:
            raise self._verdict(self._cause(producer, failure), None) from failure

    def _fill(self, plans: Sequence[Plan]) -> ck.Producer:
        """Begins a transaction with all that the plans write."""
        producer = self._certain_producer()
        self._began = self._monotonic()
        plan = plans[0]
        try:
            producer.begin_transaction()
            self._on_step("begin")
            for plan in plans:
                self._produce(producer, plan)
            self._on_step("produced")
        except ck.KafkaException as failure:
            raise self._verdict(failure, plan.tp) from failure
        return producer

    def replace(self, meanwhile: Meanwhile = lambda: None) -> None:
        """A new epoch. What was open is aborted, by us or by `init_transactions`."""
        producer = self._producer
        if producer is not None:
            try:
                producer.abort_transaction(ABORT_S)
            except (ck.KafkaException, RuntimeError) as failure:
                log.debug("abort before replacing the producer: %s", failure)
        self._renew(meanwhile)

    def close(self) -> None:
        """Nothing is open in an orderly stop; whatever is left in the handle dies unseen."""
        self._discard()
        self._contents.close()

    # -- the producer

    def _certain_producer(self) -> ck.Producer:
        assert self._producer is not None, "open the sink first"
        self._producer.poll(0)  # serves the log queue
        if self._suspicion.line:
            cause = self._suspicion.line
            log.info("producer replaced before the next transaction: %s", cause)
            self._renew(self._patience())
            self._on_replaced(cause)
        return self._producer

    def _patience(self) -> Meanwhile:
        """Nobody may be heard while a poll is in hand (ER-15): after a transaction's time it is given up, and the driver waits."""
        until = self._monotonic() + self._timeout_s

        def meanwhile() -> None:
            if self._monotonic() > until:
                raise Doubt("the producer cannot be replaced in time: no broker answers")

        return meanwhile

    def _discard(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            with suppress(ck.KafkaException):  # a handle in fatal state raises its error at every call (ER-13)
                producer.purge()
                producer.poll(0)

    def _renew(self, meanwhile: Meanwhile) -> None:
        """A new handle, and one that would tell of a broken connection (`processor.kafka.doubt`).

        Raises:
            FencedError: A newer worker has this slot.
        """
        self._discard()
        waited_since = self._monotonic()
        while True:
            suspicion = self._suspicion = Suspicion()
            producer = self._clients.producer(suspicion.on_line)
            self._initialise(producer, meanwhile, waited_since)
            producer.poll(0)
            if not suspicion.is_deaf:
                break
            log.info("another producer, since connections broke while this one began: %s", suspicion.line)
            self._wait(meanwhile, waited_since)
            producer.poll(DEAF_S)
        suspicion.has_begun()
        self._producer = producer

    def _initialise(self, producer: ck.Producer, meanwhile: Meanwhile, since: float) -> None:
        """In short steps: while no broker answers, others want to be heard (ER-17)."""
        while True:
            try:
                producer.init_transactions(INIT_STEP_S)
                return
            except ck.KafkaException as failure:
                error = failure.args[0]
                if error.code() in FENCED:
                    raise self._fenced(error) from failure
                if error.fatal() or not (error.retriable() or error.code() == ck.KafkaError._TIMED_OUT):
                    raise
                self._wait(meanwhile, since, failure)

    def _wait(self, meanwhile: Meanwhile, since: float, failure: ck.KafkaException | None = None) -> None:
        """Lets others be heard; gives up when `broker_wait_ms` is over."""
        meanwhile()
        wait_ms = self._settings.broker_wait_ms
        if wait_ms >= 0 and (self._monotonic() - since) * 1000 > wait_ms:
            raise failure or Doubt("connections to the brokers break again and again")

    # -- a transaction

    def _produce(self, producer: ck.Producer, plan: Plan) -> None:
        produce: Any = producer.produce
        topic, partition = plan.changelog_topic, plan.tp.partition
        for row, content in plan.changelog:
            try:
                produce(topic, content, row, partition)
            except BufferError:
                self._insist(producer, Output(topic, partition, row, content, []))
        if plan.ledger is not None:
            self._insist(producer, Output(plan.ledger_topic, partition, None, plan.ledger, []))
        for output in whole_outputs(plan, self._contents, self._is_late):
            topic, partition, key, value, headers = output
            try:
                produce(topic, value, key, partition, None, None, 0, headers)
            except BufferError:
                self._insist(producer, output)

    def _insist(self, producer: ck.Producer, output: Output) -> None:
        """Waits for room in the send buffer, within the transaction's time (ER-19)."""
        produce: Any = producer.produce
        while True:
            try:
                produce(
                    output.topic,
                    output.value,
                    output.key,
                    output.partition,
                    None,
                    None,
                    0,
                    output.headers,
                )
                return
            except BufferError as full:
                producer.poll(0.02)
                if self._monotonic() - self._began > self._timeout_s:
                    raise Doubt("the send buffer stays full: brokers take nothing") from full

    def _is_late(self) -> bool:
        """Whether half of the transaction's time is over: what is not read back by then stays where it is, at the second attempt."""
        late = self._monotonic() - self._began > self._timeout_s / 2
        if late and not self._was_late:
            self._was_late = True
            raise Doubt("reading back what is given up takes more than half of transaction_timeout_ms")
        return late

    @staticmethod
    def _cause(producer: ck.Producer, failure: ck.KafkaException) -> ck.KafkaException:
        """Why a transaction failed. When a record fails while offsets are under way, sending them says `_STATE` and nothing more.

        Any other call tells the cause then; asking to begin is one that changes nothing, since a transaction is open.
        """
        if failure.args[0].code() == ck.KafkaError._STATE:
            try:
                producer.begin_transaction()
            except ck.KafkaException as told:
                return told
        return failure

    def _verdict(self, failure: ck.KafkaException, tp: Tp | None) -> Exception:
        """What a failed call of the open transaction means for the driver (ER-13, ER-14)."""
        error = failure.args[0]
        code = error.code()
        if code in STALE and not error.fatal():
            return self._stale(error)
        if code in FENCED or code == ck.KafkaError.FENCED_INSTANCE_ID:
            return self._fenced(error)
        if code in REFUSED:
            return Refused(_text(error), tp)
        return Doubt(_text(error))

    def _stale(self, error: ck.KafkaError) -> Exception:
        assert self._producer is not None
        try:
            self._producer.abort_transaction(self._timeout_s)
        except ck.KafkaException as failure:
            return Doubt(f"{_text(error)}, and the abort: {_text(failure.args[0])}")
        return StaleGeneration(_text(error))

    def _fenced(self, error: ck.KafkaError) -> Exception:
        """Taken over, or timed out by the coordinator while still ours? The younger a transaction, the less it can have timed out (ER-13)."""
        now = self._monotonic()
        stalled = self._producer is not None and now - self._began >= self._timeout_s
        if stalled and now - self._rebuilt >= self._timeout_s:
            self._rebuilt = now
            return Doubt(f"the transaction outlived transaction_timeout_ms: {_text(error)}")
        return FencedError(f"slot {self._settings.slot!r} was taken over by another worker ({_text(error)})")


def _offsets(plans: Sequence[Plan]) -> list[ck.TopicPartition]:
    return [
        ck.TopicPartition(tp.topic, tp.partition, offset, metadata)
        for plan in plans
        for tp, offset, metadata in plan.positions()
    ]


def _text(error: ck.KafkaError) -> str:
    return f"{error.name()}: {error.str()}"
