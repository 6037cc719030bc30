"""The producer hears of refusals: records of `D.rejected` that carry this connection's `uow-producer-id` (W-37).

Belongs here: `Rejection`, and the threads that listen. Does not belong here: reading all refused records, and sending them again
(`uow.client.rejected_records`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from uow.client.following import Follower
from uow.client.kafka_port import ConsumedRecord, coordinates, raw_headers
from uow.client.rejected_records import RefusedRecord
from uow.schemas.error_classes import DecodeError, UowError
from uow.topics.catalogue import DestinationTopics
from uow.topics.headers import (
    COMPONENT_ID,
    ERROR_CASE,
    ERROR_CLASS,
    ERROR_TEXT,
    ID,
    PRODUCER_ID,
    SEQ,
    SOURCE,
)

log = logging.getLogger(__name__)

STEP_S: Final = 0.5
PAUSE_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class Rejection:
    """A component that a destination refused.

    Attributes:
        destination: Which one.
        error: Name of the error class (W-34).
        case: Of the class, or empty.
        text: Both, and what more there is to say.
        source: Where the component lay: `topic/partition/offset`.
        coordinates: Where it lies now, likewise; `uow resubmit` takes it from there.
        id: Group id, None where it has none that can be read.
        seq: Its number as it was written.
        component_id: `uow-component-id`.
        record: The whole record, with key, value and headers.
    """

    destination: str
    error: str
    case: str
    text: str
    source: str
    coordinates: str
    id: str | None
    seq: str | None
    component_id: str | None
    record: RefusedRecord


OnRejected = Callable[[Rejection], object]


class Refusals:
    """Listens to the destinations that a connection sends to, each in a thread of its own.

    Any program that may write to the destination may write any `uow-producer-id`, and so cause a call: it reports records of `D.rejected`, and
    proves nothing.

    Args:
        producer_id: Of this connection.
        on_rejected: Called with each refusal, one at a time for each destination. An exception that it raises is logged, and the calls go on.
        follow: Follows a topic from now on.
    """

    def __init__(self, producer_id: bytes, on_rejected: OnRejected, follow: Callable[[str], Follower]) -> None:
        self._producer_id, self._on_rejected, self._follow = producer_id, on_rejected, follow
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._listeners: dict[str, threading.Thread] = {}

    def listen(self, destination: str) -> None:
        """From now on; call it before anything is sent there.

        Raises:
            DestinationUnavailableError: The destination has no `D.rejected`.
            ReconnectTimeoutError: No broker answered in time.
        """
        with self._lock:
            if destination in self._listeners or self._stop.is_set():
                return
            follower = self._follow(DestinationTopics("", destination).rejected)
            thread = threading.Thread(
                target=self._run, args=(destination, follower), name=f"uow-rejected-{destination}", daemon=True
            )
            self._listeners[destination] = thread
            thread.start()

    def _run(self, destination: str, follower: Follower) -> None:
        said = ""
        try:
            while not self._stop.is_set():
                try:
                    record = follower.poll(STEP_S)
                except UowError as error:
                    if str(error) != said:  # it comes again with every try
                        log.warning("refusals of %s cannot be read now: %s", destination, error)
                    said, record = str(error), None
                if record is None:
                    self._stop.wait(PAUSE_S)
                else:
                    self.take(destination, record)
        finally:
            follower.close()

    def take(self, destination: str, record: ConsumedRecord) -> None:
        """Tells of a record, if it is of ours."""
        topic, partition, offset = coordinates(record)
        try:
            headers = raw_headers(record)
        except DecodeError as error:  # refused for that very reason, whoever sent it
            log.info("%s/%d/%d: %s", topic, partition, offset, error)
            return
        if {value for name, value in headers if name == PRODUCER_ID} != {self._producer_id}:
            return
        refused = RefusedRecord(
            topic, partition, offset, record.timestamp()[1], record.key(), record.value(), tuple(headers)
        )
        try:
            self._on_rejected(_rejection(destination, refused))
        except Exception:
            log.exception("on_rejected failed at %s", refused.coordinates)

    def close(self) -> None:
        """Ends the calls of `on_rejected`, once the one under way is over. From within the callback it does not wait for itself."""
        self._stop.set()
        with self._lock:
            listeners = [*self._listeners.values()]
        for thread in listeners:
            if thread is not threading.current_thread():
                thread.join()


def _rejection(destination: str, refused: RefusedRecord) -> Rejection:
    return Rejection(
        destination,
        refused.header(ERROR_CLASS) or "",
        refused.header(ERROR_CASE) or "",
        refused.header(ERROR_TEXT) or "",
        refused.header(SOURCE) or "",
        refused.coordinates,
        refused.header(ID),
        refused.header(SEQ),
        refused.header(COMPONENT_ID),
        refused,
    )
