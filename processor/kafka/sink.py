"""The engine's sink on librdkafka: one poll, one transaction.

Belongs here: the named commit steps, and the error for the driver when a transaction fails. Does not belong here: the content (a plan
says it), the reaction to a failure (`uow.processor.engine.driver`), and the producer, which is replaced whenever there is doubt
(`uow.processor.kafka.transactional_producer`). A doubt *between* two transactions costs no state and needs no restore; a failure *inside* one
is a `Doubt`: the driver replaces and restores.

**Delivery reports.** No callback per record: `commit_transaction` flushes and then fails if any record of the transaction failed
(librdkafka puts the transaction into its abortable state), so a commit that succeeded knows the fate of each (ER-04, EN-07). A Python callback
would cost about as much again as producing.

`produce` is called per record, positionally: 0.7 µs. `produce_batch` measured 0.6 to 0.8 µs with its dictionaries, knows no headers
and reports a full queue by marks in the dictionaries; it is not worth it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import confluent_kafka as ck

from uow.processor.engine.external_values import whole_outputs
from uow.processor.engine.ports import (
    Contents,
    Doubt,
    Meanwhile,
    Output,
    Plan,
    Refused,
    StaleGeneration,
    Tp,
)
from uow.processor.kafka.clients import Clients
from uow.processor.kafka.contents import KafkaContents
from uow.processor.kafka.error_table import TOO_LARGE, Meaning, meaning_of
from uow.processor.kafka.leader_epochs import LeaderEpochs
from uow.processor.kafka.transactional_producer import Patience, TransactionalProducer, TransactionFate, text_of
from uow.processor.kafka.worker_settings import WorkerSettings
from uow.schemas.error_classes import FencedError

log = logging.getLogger("uow.sink")

STEPS = ("begin", "produced", "offsets", "commit", "committed")
"""Names of the commit steps, in order; drills crash at each of them (EN-02).

`begin`: a transaction is open. `produced`: every record is handed to librdkafka. `offsets`: the positions are in the transaction.
`commit`: just before the commit is asked for. `committed`: it is known to be committed.
"""

ABORT_S = 2.0
SEARCH_S = 30.0
"""So long after a refusal records are written one by one, for a quarter of a transaction's time, to find the one that is refused (B-89)."""
REFUSED_S = 0.5
"""So often a rehearsal asks if a record was refused."""
SPARES = 3
"""Transactional ids for while a topic has too few replicas for the marker of the last transaction. Each may get stuck in turn until the topic is seen to be away."""
OFFSETS_S = 5.0
"""Longest wait for the group's coordinator to take the positions; a broken connection may cost all of it (`uow.processor.kafka.bounded`)."""


class KafkaSink:
    """Port `Sink`.

    Args:
        clients: Makes producers.
        settings: Worker name and time-outs.
        on_step: Called at each of `STEPS`; drills crash there.
        on_replaced: Called with the cause whenever the producer was replaced.
        monotonic: Seconds, from anywhere; the simulator has its own.
        contents: Reads values back (W-117); likewise.
        epochs: Are committed beside the positions.
        cpu: CPU seconds of this thread; the simulator has its own.
    """

    def __init__(
        self,
        clients: Clients,
        settings: WorkerSettings,
        on_step: Callable[[str], None] = lambda step: None,
        on_replaced: Callable[[str], None] = lambda cause: None,
        monotonic: Callable[[], float] = time.monotonic,
        contents: Contents | None = None,
        epochs: LeaderEpochs | None = None,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        self._settings, self._on_step, self._monotonic, self._cpu = settings, on_step, monotonic, cpu
        self._timeout_s = settings.transaction_timeout_ms / 1000
        spares = [partial(clients.producer, spare=number) for number in range(1, SPARES + 1)]
        self._producer = TransactionalProducer(clients.producer, self._timeout_s, on_replaced, monotonic, spares)
        self._contents = contents or KafkaContents(clients, self._timeout_s / 2)
        self._epochs = epochs or LeaderEpochs()
        self._was_late = False
        self._search_until = float("-inf")
        self._refused: Output | None = None
        self._is_too_large = False

    def open(self, meanwhile: Meanwhile = lambda: None) -> None:
        """Fences a predecessor of the same worker name and ends its orphan transaction at once (ER-09).

        Raises:
            FencedError: A newer worker has this name.
        """
        with self._opening():
            self._producer.open(self._patience(meanwhile))

    @contextmanager
    def _opening(self) -> Iterator[None]:
        """Around the making of a producer: an error that does not pass ends the worker."""
        try:
            yield
        except ck.KafkaException as failure:
            if not self._producer.is_open and meaning_of(failure.args[0]) is Meaning.FENCED:
                raise self._taken_over(failure.args[0]) from failure
            raise

    def write(self, plans: Sequence[Plan], token: Any) -> None:
        """One transaction: rows, ledger, outputs, positions; committed on return."""
        self._fill(plans)
        try:
            self._producer.send_offsets(self._offsets(plans), token, OFFSETS_S)
            self._on_step("offsets")
            self._on_step("commit")
            self._producer.commit()
        except ck.KafkaException as failure:
            raise self._verdict(failure, None) from failure
        self._was_late = False
        self._on_step("committed")

    def rehearse(self, plans: Sequence[Plan], token: Any, partitions: int) -> None:
        """Does what `write` does, and takes it back: nothing of it is visible, and nothing has moved.

        Args:
            plans: As for `write`.
            token: As for `write`.
            partitions: How many of `D.components` and `D.commands` there are for certain; positions of others cannot be sent yet.

        Raises:
            Doubt: `write` would fail as well, as far as this can find out.
        """
        self._fill(plans)
        offsets = self._offsets([plan for plan in plans if plan.tp.partition < partitions])
        try:
            while self._producer.flush(REFUSED_S):
                # raises once a record was refused: the library keeps those behind it for as long as the transaction lasts
                self._producer.send_offsets(offsets, token, OFFSETS_S)
            self._producer.send_offsets(offsets, token, OFFSETS_S)
            self._producer.abort(self._timeout_s)
        except ck.KafkaException as failure:
            raise self._verdict(failure, None) from failure

    def _fill(self, plans: Sequence[Plan]) -> None:
        """Begins a transaction with all that the plans write."""
        plan, self._refused, self._is_too_large = plans[0], None, False
        try:
            with self._opening():
                self._producer.begin(self._patience_of_a_poll())
            self._on_step("begin")
            for plan in plans:
                began = self._cpu()
                self._produce(self._producer.handle, plan)
                plan.seconds = self._cpu() - began
            self._on_step("produced")
        except ck.KafkaException as failure:
            if not self._producer.is_open:  # there is no new one, and waiting would not help
                raise
            raise self._verdict(failure, plan.tp) from failure

    def replace(self, meanwhile: Meanwhile = lambda: None) -> None:
        """A new epoch. An open transaction is aborted, by us or by `init_transactions`."""
        if self._producer.is_open:
            try:
                self._producer.abort(ABORT_S)
            except (ck.KafkaException, RuntimeError) as failure:
                log.debug("abort before replacing the producer: %s", failure)
        self.open(meanwhile)

    def close(self) -> None:
        """Discards the handle. In an orderly stop no transaction is open; otherwise its records never become visible."""
        self._producer.discard()
        self._contents.close()

    # -- patience

    def _patience_of_a_poll(self) -> Patience:
        """While a poll is in hand no rebalance may be served (ER-15): a replacement fails after a transaction's time, and the driver waits."""
        until = self._monotonic() + self._timeout_s

        def meanwhile() -> None:
            if self._monotonic() > until:
                raise Doubt("the producer cannot be replaced in time: no broker answers")

        return self._patience(meanwhile)

    def _patience(self, meanwhile: Meanwhile) -> Patience:
        """Calls `meanwhile` between two tries, until `broker_wait_ms` is over."""
        since, wait_ms = self._monotonic(), self._settings.broker_wait_ms

        def patience(failure: ck.KafkaException | None) -> None:
            meanwhile()
            if wait_ms >= 0 and (self._monotonic() - since) * 1000 > wait_ms:
                raise failure or Doubt("connections to the brokers break again and again")

        return patience

    # -- a transaction

    def _produce(self, handle: ck.Producer, plan: Plan) -> None:
        produce: Any = handle.produce
        topic, partition = plan.changelog_topic, plan.tp.partition
        for row, content in plan.changelog:
            try:
                produce(topic, content, row, partition)
            except BufferError:
                self._insist(handle, Output(topic, partition, row, content, []))
        if plan.ledger is not None:
            self._insist(handle, Output(plan.ledger_topic, partition, None, plan.ledger, []))
        is_searching = self._monotonic() < self._search_until
        for output in whole_outputs(plan, self._contents, self._is_late):
            topic, partition, key, value, headers = output
            if is_searching and self._producer.age_s < self._timeout_s / 4:
                self._write_alone(handle, output)
                continue
            try:
                produce(topic, value, key, partition, None, None, 0, headers)
            except BufferError:
                self._insist(handle, output)

    def _write_alone(self, handle: ck.Producer, output: Output) -> None:
        """Waits for the fate of one record: of a batch that is refused nobody knows which of its records it was."""
        fates: list[ck.KafkaError | None] = []
        try:
            self._insist(handle, output, lambda error, _: fates.append(error))
            self._producer.flush()
            if fates and fates[0] is not None:
                raise ck.KafkaException(fates[0])
        except ck.KafkaException as failure:
            self._refused = output
            fate = fates[0] if fates and fates[0] is not None else failure.args[0]
            self._is_too_large = fate.code() in TOO_LARGE  # another record of the transaction may be what was refused
            raise

    def _insist(self, handle: ck.Producer, output: Output, on_delivery: Any = None) -> None:
        """Waits for room in the send buffer, within the transaction's time (ER-19)."""
        produce: Any = handle.produce
        topic, partition, key, value, headers = output
        hand_over = partial(produce, topic, value, key, partition, on_delivery, None, 0, headers)
        try:
            self._producer.produce(hand_over, self._timeout_s - self._producer.age_s)
        except BufferError as full:
            raise Doubt("the send buffer stays full: the brokers accept no records") from full

    def _is_late(self) -> bool:
        """True once half of the transaction's time is over: at the second attempt, values that are not read back by then stay where they are.

        Raises:
            Doubt: At the first attempt.
        """
        late = self._producer.age_s > self._timeout_s / 2
        if late and not self._was_late:
            self._was_late = True
            raise Doubt("reading values back takes more than half of transaction_timeout_ms")
        return late

    def _verdict(self, failure: ck.KafkaException, tp: Tp | None) -> Exception:
        """The error for the driver, for a failed call of the open transaction (ER-13, ER-14).

        Args:
            failure: The library's error.
            tp: The partition of the plan that was handed over. A call that failed by an earlier record, of any plan, does not concern it.
        """
        error = self._producer.cause_of(failure.args[0])
        if error is not failure.args[0]:
            tp = None
        match self._producer.fate_of(error):
            case TransactionFate.STALE_GENERATION:
                return self._stale(error)
            case TransactionFate.FENCED:
                return self._taken_over(error)
            case TransactionFate.TIMED_OUT:
                return Doubt(f"the transaction outlived transaction_timeout_ms: {text_of(error)}")
            case TransactionFate.REFUSED:
                self._search_until = self._monotonic() + SEARCH_S
                refused = self._refused if meaning_of(error) is Meaning.REFUSED else None
                return Refused(text_of(error), tp, refused, is_too_large=self._is_too_large)
            case TransactionFate.DOUBT:
                return Doubt(text_of(error))

    def _stale(self, error: ck.KafkaError) -> Exception:
        try:
            self._producer.abort(self._timeout_s)
        except ck.KafkaException as failure:
            return Doubt(f"{text_of(error)}, and the abort: {text_of(failure.args[0])}")
        return StaleGeneration(text_of(error))

    def _taken_over(self, error: ck.KafkaError) -> FencedError:
        name = self._settings.worker_name
        return FencedError(f"the worker name {name!r} was taken over by another worker ({text_of(error)})")

    def _offsets(self, plans: Sequence[Plan]) -> list[ck.TopicPartition]:
        return [self._epochs.place(tp, offset, metadata) for plan in plans for tp, offset, metadata in plan.positions()]
