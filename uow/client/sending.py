"""Sending records one by one, outside transactions: each is waited for, until its delivery is known.

Belongs here: the plain producer of a connection. Does not belong here: transactions (`uow.client.transaction`), headers (`uow.client.outgoing`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException

from uow.client.kafka_port import (
    BLOCKING_S,
    KnownTopics,
    LogWatch,
    ProducerHandle,
    check_topic,
)
from uow.client.library_errors import sent_error
from uow.client.order_latch import Failed, OrderLatches
from uow.client.outgoing import HASHED, OutgoingRecord
from uow.errors import AmbiguousSendError, ClientClosedError, ReconnectTimeoutError, SendRejectedError
from uow.schemas.error_classes import UowError

log = logging.getLogger(__name__)

CLOSE_S: Final = 6.0
"""Longest that closing waits for records that are still under way."""


class Sent(NamedTuple):
    """The place of a record that was sent alone."""

    topic: str
    partition: int
    offset: int


@dataclass(slots=True)
class Delivery:
    """The fate of one record."""

    topic: str
    sent: Sent | None = None
    error: UowError | None = None

    @property
    def is_known(self) -> bool:
        return self.sent is not None or self.error is not None

    def on_delivery(self, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            self.error = sent_error(error, self.topic)
        else:
            self.sent = Sent(self.topic, message.partition(), message.offset())


class PlainSender:
    """The plain producer of a connection, made when it is first needed. For any thread."""

    def __init__(self, make: Callable[[logging.Logger], ProducerHandle], topics: KnownTopics) -> None:
        self._make = make
        self._topics = topics
        self._lock = threading.Lock()
        self._handle: ProducerHandle | None = None
        self._pending: dict[str, Delivery] = {}
        self._latches = OrderLatches()
        self._closed = False

    @property
    def is_used(self) -> bool:
        return self._handle is not None

    def send(self, component_id: str, record: OutgoingRecord, way: str = "plain") -> Sent:
        """Sends a record and waits until the broker has it. A record of the same component id that is still under way is waited for instead.

        Raises:
            OrderConfigError, OrderBlockedError: The destination's order is strict: it takes no such record, or an earlier one failed (S-30).
            DestinationUnavailableError, SendRejectedError: Certainly not written.
            ReconnectTimeoutError: No answer in time; it goes on in the background (R-20).
            ConfigError: The destination's partition count has changed (W-107).
            AmbiguousSendError: It may be written or not.
        """
        if self._topics.admit(self._open_handle(), record, way) and way == "plain":
            return self._latches.send(component_id, record, self._send)
        return self._send(component_id, record)

    def resend(self, topic: str) -> Sent | None:
        """Sends again what latched a topic; None if nothing did. Raises as `send`."""
        return self._latches.resend(topic, self._send)

    def skip(self, topic: str, record_gap: Callable[[Failed], object]) -> bool:
        """Gives up what latched a topic, once that is recorded; False if nothing did. Raises OrderBlockedError: it is still under way."""
        return self._latches.skip(topic, record_gap)

    def _send(self, component_id: str, record: OutgoingRecord) -> Sent:
        handle = self._open_handle()
        deadline = time.monotonic() + BLOCKING_S
        delivery = self._pending.get(component_id)
        if delivery is None:
            delivery = Delivery(record.topic)
            _produce(handle, record, delivery, deadline)
            self._pending[component_id] = delivery
        self._wait(handle, component_id, delivery, deadline)
        self._pending.pop(component_id, None)
        if delivery.sent is None:
            raise delivery.error or AmbiguousSendError(record.topic)
        return delivery.sent

    def _open_handle(self) -> ProducerHandle:
        with self._lock:
            if self._closed:
                raise ClientClosedError("the connection is closed")
            if self._handle is None:
                self._handle = self._make(LogWatch().logger)
            return self._handle

    def _wait(self, handle: ProducerHandle, component_id: str, delivery: Delivery, deadline: float) -> None:
        while True:
            try:
                handle.poll(0.01)
            except (
                KafkaException,
                SystemError,
            ) as failure:  # fatal: the library throws it out of here, see `uow.processor.kafka.transactional_producer.serve`
                self._discard(handle)
                raise AmbiguousSendError(f"{delivery.topic}: {failure}") from failure
            if delivery.is_known:
                return
            if time.monotonic() >= deadline:
                text = f"no answer within {BLOCKING_S:g} s; component {component_id} is still under way"
                raise ReconnectTimeoutError(f"{delivery.topic}: {text}")

    def _discard(self, handle: ProducerHandle) -> None:
        """The next send gets a new handle."""
        with self._lock:
            if self._handle is handle:
                self._handle = None
                self._pending.clear()

    def close(self) -> None:
        """Waits for what is under way, but not for ever (R-66)."""
        with self._lock:
            self._closed = True
            handle, self._handle = self._handle, None
        if handle is None:
            return
        unsent = handle.flush(CLOSE_S)
        if unsent:
            log.warning("%d records were not answered within %g s: they may or may not be written", unsent, CLOSE_S)
            handle.purge()


def hand_over(
    handle: ProducerHandle, record: OutgoingRecord, on_delivery: Callable[[KafkaError | None, Any], None]
) -> None:
    """Gives a record to the library; a partition that it has not heard of yet is asked for first (W-215).

    Raises:
        BufferError, KafkaException: As the library.
    """
    topic, key, value, headers, partition = record.topic, record.key, record.value, record.headers, record.partition
    try:
        handle.produce(topic, value, key, partition, on_delivery=on_delivery, headers=headers)
    except KafkaException as failure:
        if partition == HASHED or failure.args[0].code() != KafkaError._UNKNOWN_PARTITION:
            raise
        check_topic(handle, topic)
        handle.produce(topic, value, key, partition, on_delivery=on_delivery, headers=headers)


def _produce(handle: ProducerHandle, record: OutgoingRecord, delivery: Delivery, deadline: float) -> None:
    while True:
        try:
            hand_over(handle, record, delivery.on_delivery)
            return
        except BufferError:
            if time.monotonic() >= deadline:
                text = f"{record.topic}: the send buffer stayed full for {BLOCKING_S:g} s"
                raise SendRejectedError(text) from None
            handle.poll(0.05)
        except KafkaException as failure:
            raise sent_error(failure.args[0], record.topic) from failure
