"""librdkafka's producer, with a bound on the one transactional call that has none.

Belongs here: that call. Does not belong here: the consequence of a time-out (`uow.processor.kafka.transactional_producer`).

`send_offsets_to_transaction` does not keep its time-out while the group's coordinator cannot be found or reached: it waits for a change
that may never come (librdkafka issue 5456, open in 2.16). A worker would stand still for ever, with its partitions. So the call is made
in a thread of its own, and left behind when it is overdue. Its handle can do nothing more: callers throw it away after a time-out,
and the next epoch fences whatever it may still send.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final

import confluent_kafka as ck

STEP_S = 0.5
"""Longest single wait, so that Ctrl-C is heard."""
GRACE_S = 0.5
"""Beyond the time-out: most errors the library does report in time."""
KEPT: Final = 16
"""Threads that are kept for the next call: to start one costs more than most calls take."""
BUSY, IDLE = "uow-bounded", "uow-idle"
"""Names of these threads."""

_idle: list[SimpleQueue[Callable[[], None]]] = []
"""The threads that wait, by what they wait for."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)  # a child has none of them, and its calls would wait for ever


class BoundedProducer(ck.Producer):
    """`confluent_kafka.Producer`, every call of which returns in its time."""

    def send_offsets_to_transaction(
        self, positions: list[ck.TopicPartition], group_metadata: Any, timeout: float = -1
    ) -> None:
        """As the library's.

        Raises:
            KafkaException: The library's, or `_TIMED_OUT`.
        """
        send = super().send_offsets_to_transaction
        if not returns(lambda: send(positions, group_metadata, timeout), timeout + GRACE_S if timeout >= 0 else None):
            text = f"offsets were not taken in {timeout:g} s: the group's coordinator cannot be found or reached"
            raise ck.KafkaException(ck.KafkaError(ck.KafkaError._TIMED_OUT, text, retriable=True))


def in_thread(call: Callable[[], None]) -> None:
    """Runs a call, which raises nothing, in a daemon thread that is used again; returns at once."""
    try:
        calls = _idle.pop()
    except IndexError:
        calls = SimpleQueue()
        threading.Thread(target=_serve, args=(calls,), name=BUSY, daemon=True).start()
    calls.put(call)


def _serve(calls: SimpleQueue[Callable[[], None]]) -> None:
    thread = threading.current_thread()
    call = calls.get()
    while True:
        thread.name = BUSY
        call()
        del call  # and with it the handle that it may hold
        if len(_idle) >= KEPT:
            return
        thread.name = IDLE
        _idle.append(calls)
        call = calls.get()


class Call:
    """A call that runs in a thread of its own, so that waiting for it can end, by time or by Ctrl-C, while it goes on.

    Args:
        call: Begins at once.
    """

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._failure: BaseException | None = None
        self._done = threading.Event()
        in_thread(self._run)

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as failure:  # noqa: BLE001 - handed over to whoever waits
            self._failure = failure
        finally:
            self._done.set()

    def is_over(self, within_s: float | None) -> bool:
        """True if it returned in that time, or raised. Waits in short steps: a signal may reach another thread, and wake up nobody."""
        until = None if within_s is None else time.monotonic() + within_s
        while True:
            left = STEP_S if until is None else min(STEP_S, until - time.monotonic())
            if self._done.wait(max(0.0, left)):
                return True
            if until is not None and time.monotonic() >= until:
                return False

    def returned(self, within_s: float | None) -> bool:
        """True if it returned in that time; raises its exception."""
        if not self.is_over(within_s):
            return False
        if self._failure is not None:
            raise self._failure
        return True


def returns(call: Callable[[], None], within_s: float | None) -> bool:
    """True if a call returned in time; raises its exception. One that does not return is left behind in its thread."""
    return Call(call).returned(within_s)
