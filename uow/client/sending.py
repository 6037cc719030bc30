"""Sending records one by one, outside transactions: each is waited for, until its delivery is known.

Belongs here: the plain producer of a connection. Does not belong here: transactions (`uow.client.transaction`), headers (`uow.client.outgoing`).
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException

from uow.client.kafka_port import (
    KnownTopics,
    LogWatch,
    ProducerHandle,
    check_topic,
)
from uow.client.library_errors import sent_error
from uow.client.order_latch import Failed, OrderLatches
from uow.client.outgoing import HASHED, OutgoingRecord
from uow.client.session_state import Ended, Life, Patience
from uow.errors import AmbiguousSendError, ReconnectTimeoutError, SendRejectedError, Suspect
from uow.processor.kafka.transactional_producer import LOST_EXCEPTION
from uow.schemas.error_classes import UowError
from uow.topics.headers import COMPONENT_ID

log = logging.getLogger(__name__)

LOST_IN_HEADERS: Final = "header key to be unicode string"
"""In the text of the `TypeError` that comes out of `produce` in place of the exception of a signal (confluent_kafka 2.16)."""
NOWHERE: Final = -1
"""The offset of a record that the broker has, where it did not say at which place."""
CLOSE_S: Final = 6.0
"""Longest that closing waits for records that are still under way."""
REMEMBERED: Final = 1000
"""Most records that were answered after their senders had stopped waiting, and are known to whoever sends them again."""

Identity = tuple[str, str, bytes | None]
"""Component id, topic and key: one record. The same component may go to several places."""


class Sent(NamedTuple):
    """The place of a record that was sent alone.

    Attributes:
        topic: Its topic.
        partition: Its partition.
        offset: Its offset; -1, as Kafka's own client says, where the broker has the record and did not say where: it was sent twice, since the
            first answer was late, and the second answer was that it is there already.
    """

    topic: str
    partition: int
    offset: int


@dataclass(slots=True)
class Delivery:
    """The fate of one record.

    Attributes:
        identity: Of the record.
        partition: Where it was sent; -1: where its key belongs.
        ends: Ends of partitions that were known before.
        at: When it was sent, epoch seconds.
        carried: The component id in the record's headers; empty without one.
        is_handed_over: True once the library may have it.
        owner: The thread that hands it over.
        hear: Its sender's: called once it is known.
        sent: Its place in the log.
        error: Why it has none.
        is_left: True if nobody waits for it any more.
        on_known: Called once it is known, in whichever thread hears of it.
    """

    identity: Identity
    partition: int
    ends: Mapping[tuple[str, int], int]
    at: float
    carried: bytes
    hear: Callable[[Delivery], object]
    sent: Sent | None = None
    error: UowError | None = None
    is_handed_over: bool = False
    owner: int = field(default_factory=threading.get_ident)
    is_left: bool = False
    on_known: Callable[[Delivery], object] | None = None

    @property
    def component_id(self) -> str:
        return self.identity[0]

    @property
    def topic(self) -> str:
        return self.identity[1]

    @property
    def suspect(self) -> Suspect | None:
        """Identity and place of the record, should nobody be able to tell its fate; None for one that carries no identity."""
        if not self.carried:
            return None
        return Suspect(self.carried.decode("utf-8", "replace"), self.topic, self.partition, self.ends, self.at)

    @property
    def is_known(self) -> bool:
        return self.sent is not None or self.error is not None

    def on_delivery(self, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            self.fail(sent_error(error, self.topic, self.suspect))
            return
        offset = message.offset()
        self.sent = Sent(self.topic, message.partition(), NOWHERE if offset is None else offset)
        self._known()

    def fail(self, error: UowError) -> None:
        """It has no place, or nobody can tell."""
        self.error = error
        self._known()

    def _known(self) -> None:
        self.hear(self)
        if self.on_known is not None:
            self.on_known(self)


class Pending:
    """A record that was accepted, and whose fate is not known yet: it goes on in the background (R-22).

    Args:
        sender: Where it was sent.
        delivery: Its fate.

    Attributes:
        component_id: Its identity.
    """

    def __init__(self, sender: PlainSender, delivery: Delivery) -> None:
        self._sender, self._delivery = sender, delivery
        self.component_id = delivery.component_id

    @property
    def is_known(self) -> bool:
        """True once `wait` does not wait any more."""
        return self._delivery.is_known

    @property
    def is_written(self) -> bool:
        """True once the broker is known to have it."""
        return self._delivery.sent is not None

    def wait(self, timeout: float | None = None) -> Sent:
        """Its place in the log, waiting so many seconds for it; None: for ever.

        Raises:
            ReconnectTimeoutError: Not known yet; wait again.
            DestinationUnavailableError, SendRejectedError: Certainly not written.
            AmbiguousSendError: It may be written or not.
        """
        until = math.inf if timeout is None else time.monotonic() + timeout
        return self._sender.settle(self._delivery, lambda: time.monotonic() >= until)


class PlainSender:
    """The plain producer of a connection, made when it is first needed. For any thread."""

    def __init__(self, make: Callable[[logging.Logger], ProducerHandle], topics: KnownTopics, life: Life) -> None:
        self._make = make
        self._topics = topics
        self._life = life
        self._lock = threading.Lock()
        self._handle: ProducerHandle | None = None
        self._pending: dict[Identity, Delivery] = {}
        self._left: OrderedDict[Identity, Delivery] = OrderedDict()
        """Those that were answered after nobody waited for them any more."""
        self._latches = OrderLatches()
        self._ends: dict[tuple[str, int], int] = {}
        self._noted_ends: Mapping[tuple[str, int], int] | None = None
        """The same as of now, for suspects; None: to be copied."""
        self._ended: Ended | None = None

    def send(self, component_id: str, record: OutgoingRecord, way: str = "plain") -> Sent:
        """Sends a record and waits until the broker has it. A record of the same component id that is still under way is waited for instead.

        Raises:
            OrderConfigError, OrderBlockedError: The destination's order is strict: it takes no such record, or an earlier one failed (S-30).
            DestinationUnavailableError, SendRejectedError: Certainly not written.
            ReconnectTimeoutError: No answer in time. What was accepted goes on in the background (R-20), and is in `pending`.
            ConfigError: The destination's partition count has changed (W-107).
            AmbiguousSendError: It may be written or not.
        """
        if self._topics.admit(self._open_handle(), record, way, self._life) and way == "plain":
            return self._latches.send(component_id, record, self._send)
        return self._send(component_id, record)

    # -- the same in parts, for `uow.aio`

    def is_ready(self, topic: str) -> bool:
        """True if `begin_at_once` may be called for it: nothing has to be asked for first."""
        return self._handle is not None and self._topics.is_known(topic)

    def begin(self, component_id: str, record: OutgoingRecord, way: str = "plain") -> Sent | Delivery:
        """Hands a record over, waiting no longer than for its topic and for room. Under strict order sends it. Raises as `send`."""
        if self._topics.admit(self._open_handle(), record, way, self._life) and way == "plain":
            return self._latches.send(component_id, record, self._send)
        return self._begin(component_id, record, Patience(self._life))

    def begin_at_once(self, component_id: str, record: OutgoingRecord) -> Delivery | None:
        """Hands a record over if there is room for it, else returns None; waits for nothing. Raises as `send`."""
        noted: Delivery | None = None
        try:
            delivery, is_new = self._noted(component_id, record)
            if is_new:
                noted = delivery
                _hand_over(self._open_handle(), record, delivery)
        except BufferError:
            if noted is not None:
                self._pending.pop(noted.identity, None)
            return None
        except BaseException as failure:
            self._not_sent(noted, failure)
            raise
        return delivery

    def serve(self, timeout: float) -> None:
        """Waits so long for delivery reports. A handle that fails for good is thrown away: whatever is under way on it is in doubt."""
        handle = self._handle
        if handle is None:
            return
        try:
            _serve(handle, timeout)
        except KafkaException as failure:
            self._discard(handle, failure)

    def late(self, delivery: Delivery) -> ReconnectTimeoutError:
        """The error of whoever waited in vain for the fate of a record, which goes on."""
        self.leave(delivery)
        error = self._life.too_long(f"{delivery.topic}: component {delivery.component_id} is still under way")
        error.pending = Pending(self, delivery)
        return error

    def settled(self, delivery: Delivery) -> Sent:
        """The place of a record whose fate is known. Raises as `send`."""
        self._pending.pop(delivery.identity, None)
        if delivery.sent is None:
            assert delivery.error is not None
            raise delivery.error
        return delivery.sent

    def leave(self, delivery: Delivery) -> None:
        """Nobody waits for it any more. Whoever sends it again while it is remembered hears of this one."""
        with self._lock:
            delivery.is_left = True
            if delivery.is_known:
                self._remember(delivery)

    def _hear(self, delivery: Delivery) -> None:
        """The fate of a record, in whichever thread serves delivery reports."""
        if delivery.sent is not None:
            self._life.count(sent=1)
            topic, partition, offset = delivery.sent
            if offset >= self._ends.get((topic, partition), 0):
                self._ends[topic, partition] = offset + 1
                self._noted_ends = None
        if delivery.is_left:
            with self._lock:
                self._remember(delivery)

    def _remember(self, delivery: Delivery) -> None:
        self._pending.pop(delivery.identity, None)
        if delivery.sent is None:
            return
        self._left[delivery.identity] = delivery
        while len(self._left) > REMEMBERED:
            self._left.popitem(last=False)

    # -- strict order

    def resend(self, topic: str) -> Sent | None:
        """Sends again what latched a topic; None if nothing did. Raises as `send`."""
        return self._latches.resend(topic, self._send)

    def skip(self, topic: str, record_gap: Callable[[Failed], object]) -> bool:
        """Gives up what latched a topic, once that is recorded; False if nothing did. Raises OrderBlockedError: it is still under way."""
        return self._latches.skip(topic, record_gap)

    def _send(self, component_id: str, record: OutgoingRecord) -> Sent:
        patience = Patience(self._life)
        return self.settle(self._begin(component_id, record, patience), lambda: patience.is_over)

    def _begin(self, component_id: str, record: OutgoingRecord, patience: Patience) -> Delivery:
        noted: Delivery | None = None
        try:
            delivery, is_new = self._noted(component_id, record)
            if is_new:
                noted = delivery
                _produce(self._open_handle(), record, delivery, patience, self._life)
        except BaseException as failure:
            self._not_sent(noted, failure)
            raise
        return delivery

    def _noted(self, component_id: str, record: OutgoingRecord) -> tuple[Delivery, bool]:
        """The delivery of a record; True with it for whoever hands the record over, which one thread does."""
        identity = component_id, record.topic, record.key
        with self._lock:
            found = self._pending.get(identity) or self._left.get(identity)
            if (
                found is not None
            ):  # that of a call of this thread that Ctrl-C ended before it handed the record over goes on here
                is_abandoned = not (found.is_handed_over or found.is_known) and found.owner == threading.get_ident()
                return found, is_abandoned
            if self._noted_ends is None:
                self._noted_ends = self._ends.copy()
            carried = next((value for name, value in record.headers if name == COMPONENT_ID and value), b"")
            delivery = Delivery(identity, record.partition, self._noted_ends, time.time(), carried, self._hear)
            self._pending[identity] = delivery
            return delivery, True

    def _not_sent(self, delivery: Delivery | None, failure: BaseException) -> None:
        """A record was not handed over, or Ctrl-C came in the middle of that: whoever else waits for it hears of it as well."""
        if delivery is None:
            return
        is_cut_short = not isinstance(failure, Exception)
        if is_cut_short and delivery.is_handed_over and not isinstance(failure.__cause__, TypeError):
            self.leave(delivery)  # the library has it: its report will tell
            return
        self._pending.pop(delivery.identity, None)
        if not isinstance(failure, UowError):
            failure = AmbiguousSendError(
                f"{delivery.topic}: handing it over was cut short: {failure!r}", delivery.suspect
            )
        delivery.fail(failure)

    def settle(self, delivery: Delivery, is_over: Callable[[], bool]) -> Sent:
        """Waits until the fate of a record is known. Raises as `send`."""
        try:
            while not delivery.is_known:
                if self._handle is None:
                    raise AmbiguousSendError(f"{delivery.topic}: its producer is gone", delivery.suspect)
                self.serve(0.01)
                if is_over() and not delivery.is_known:
                    raise self.late(delivery)
        except BaseException:  # Ctrl-C as well
            self.leave(delivery)
            raise
        return self.settled(delivery)

    def _open_handle(self) -> ProducerHandle:
        with self._lock:
            if self._ended is not None:
                raise self._ended.error("the producer")
            if self._handle is None:
                self._handle = self._make(LogWatch().logger)
            return self._handle

    def _discard(self, handle: ProducerHandle, failure: Exception) -> None:
        """The next send gets a new handle."""
        with self._lock:
            if self._handle is not handle:
                return
            self._handle = None
            self._life.count(rebuilds=1)
            doubtful = {key: each for key, each in self._pending.items() if each.is_handed_over}
            self._pending = {key: each for key, each in self._pending.items() if key not in doubtful}
        for delivery in doubtful.values():
            if not delivery.is_known:
                error = AmbiguousSendError(f"{delivery.topic}: {failure}", delivery.suspect)
                error.__cause__ = failure
                delivery.fail(error)

    def left_behind(self, ended: Ended) -> None:
        """In a child of fork: whatever a thread of the parent had in hand, nothing of it is touched any more."""
        self._lock, self._ended = threading.Lock(), ended

    def end(self, ended: Ended, timeout: float = CLOSE_S) -> None:
        """Waits for what is under way, but not for ever; what is left is reported as in doubt (R-66)."""
        with self._lock:
            if self._ended is not None:
                return
            self._ended = ended
            handle, under_way = self._handle, list(self._pending.values())
        if handle is None:
            return
        with suppress(KafkaException, SystemError):  # a handle in fatal state raises its error at every call
            unsent = handle.flush(timeout)
            if unsent:
                log.warning("%d records were not answered within %g s: they may or may not be written", unsent, timeout)
                handle.purge()
                handle.poll(0)
        self._handle = None
        for delivery in under_way:
            if delivery.sent is None:
                error = delivery.error or AmbiguousSendError(
                    f"{delivery.topic}: not answered before {ended.event}", delivery.suspect
                )
                delivery.fail(error)
                self._life.tell(error)


def _serve(handle: ProducerHandle, timeout: float) -> None:
    """Runs the library's callbacks.

    Raises:
        KafkaException: The library throws a fatal error out of here, each time.
        KeyboardInterrupt: It looks for signals, and may lose the exception (confluent_kafka 2.16); of a fatal error too, where a callback got in its way.
    """
    try:
        handle.poll(timeout)
    except SystemError as failure:
        if LOST_EXCEPTION not in str(failure):
            raise
        handle.poll(0)
        raise KeyboardInterrupt from failure


def hand_over(
    handle: ProducerHandle, record: OutgoingRecord, on_delivery: Callable[[KafkaError | None, Any], None]
) -> None:
    """Gives a record to the library; a partition that it has not heard of yet is asked for first (W-215).

    Raises:
        BufferError, KafkaException: As the library.
        KeyboardInterrupt: It looks for signals as well, and says that a header's name is no text in place of the exception (confluent_kafka 2.16).
    """
    topic, key, value, headers, partition = record.topic, record.key, record.value, record.headers, record.partition
    try:
        handle.produce(topic, value, key, partition, on_delivery=on_delivery, headers=headers)
    except TypeError as failure:
        if LOST_IN_HEADERS not in str(failure) or not all(isinstance(name, str) for name, _ in headers):
            raise
        raise KeyboardInterrupt from failure
    except KafkaException as failure:
        if partition == HASHED or failure.args[0].code() != KafkaError._UNKNOWN_PARTITION:
            raise
        check_topic(handle, topic)
        handle.produce(topic, value, key, partition, on_delivery=on_delivery, headers=headers)


def _produce(
    handle: ProducerHandle, record: OutgoingRecord, delivery: Delivery, patience: Patience, life: Life
) -> None:
    while True:
        try:
            _hand_over(handle, record, delivery)
            return
        except BufferError:
            if patience.is_over:
                text = f"{record.topic}: the send buffer stayed full for {life.waits.answer_s:g} s"
                raise SendRejectedError(text) from None
            handle.poll(0.05)


def _hand_over(handle: ProducerHandle, record: OutgoingRecord, delivery: Delivery) -> None:
    delivery.is_handed_over = True
    try:
        hand_over(handle, record, delivery.on_delivery)
    except KafkaException as failure:
        raise sent_error(failure.args[0], record.topic) from failure
