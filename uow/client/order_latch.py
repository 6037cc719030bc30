"""The latch of plain producers under strict order: a record that failed lets no later one pass (S-30).

Theory of operation. Idempotence prevents swaps, not holes: what the library has buffered behind a record that it gives up is still sent. So a strict
destination has one unanswered record at a time, and once one failed, nothing more is sent to it until the application sends that record again
(`resend`) or gives it up for good (`skip`, which records an order gap).

Belongs here: the latches. Does not belong here: sending (`uow.client.sending`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from uow.client.outgoing import OutgoingRecord
from uow.errors import OrderBlockedError, ReconnectTimeoutError
from uow.schemas.error_classes import UowError

Answer = TypeVar("Answer")


class Failed(NamedTuple):
    """A record that was not delivered for certain."""

    component_id: str
    record: OutgoingRecord
    error: UowError


class OrderLatches:
    """The latches of one plain producer, by topic. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sending: dict[str, threading.RLock] = {}
        self._failed: dict[str, Failed] = {}

    def send(self, component_id: str, record: OutgoingRecord, send: Callable[[str, OutgoingRecord], Answer]) -> Answer:
        """Sends a record after the one before it was answered.

        Raises:
            OrderBlockedError: An earlier record failed.
            UowError: As `send`: this record failed, and latches its topic.
        """
        with self._turn(record.topic):
            failed = self._failure_of(record.topic)
            if failed is not None and not (
                failed.component_id == component_id and isinstance(failed.error, ReconnectTimeoutError)
            ):
                raise OrderBlockedError(
                    f"{record.topic}: component {failed.component_id} was not delivered, and nothing may pass it: {failed.error}; "
                    "resend() it, or skip() it for good"
                )
            return self._attempt(component_id, record, send)

    def resend(self, topic: str, send: Callable[[str, OutgoingRecord], Answer]) -> Answer | None:
        """Sends the record that failed again; None if none did. Raises as `send`."""
        with self._turn(topic):
            failed = self._failure_of(topic)
            return None if failed is None else self._attempt(failed.component_id, failed.record, send)

    def skip(self, topic: str, record_gap: Callable[[Failed], object]) -> bool:
        """Gives the record that failed up, once that is recorded. Returns False if none did.

        Raises:
            OrderBlockedError: It is still under way, and may be written yet: `resend` waits for it.
        """
        with self._turn(topic):
            failed = self._failure_of(topic)
            if failed is None:
                return False
            if isinstance(failed.error, ReconnectTimeoutError):
                raise OrderBlockedError(
                    f"{topic}: component {failed.component_id} is still under way: resend() waits for it"
                )
            record_gap(failed)
            del self._failed[topic]
            return True

    def _failure_of(self, topic: str) -> Failed | None:
        """The record that latches a topic; one that was answered meanwhile (`pending.wait`) does so no longer."""
        failed = self._failed.get(topic)
        pending = getattr(failed.error, "pending", None) if failed is not None else None
        if pending is not None and pending.is_written:
            del self._failed[topic]
            return None
        return failed

    def _attempt(
        self, component_id: str, record: OutgoingRecord, send: Callable[[str, OutgoingRecord], Answer]
    ) -> Answer:
        try:
            answer = send(component_id, record)
        except UowError as failure:
            self._failed[record.topic] = Failed(component_id, record, failure)
            raise
        self._failed.pop(record.topic, None)
        return answer

    @contextmanager
    def _turn(self, topic: str) -> Iterator[None]:
        with self._lock:
            lock = self._sending.setdefault(topic, threading.RLock())
        with lock:
            yield
