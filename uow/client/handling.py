"""Calling a handler with each unit or message: one at a time, acknowledged when it returns, first again when it fails (S-10, S-12, S-14).

Belongs here: the loop. Does not belong here: standing still and trying again (`uow.client.consumption`), and receiving (`uow.client.reader`).
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable
from typing import Any, Final

from uow.client.consumption import PASSING, Consumption
from uow.errors import (
    CommitOutcomeUnknownError,
    CommitPendingError,
    LostServerError,
    ReconnectTimeoutError,
    TransactionRolledBackError,
)
from uow.schemas.error_classes import ConfigError, FencedError

log = logging.getLogger(__name__)

STEP_S: Final = 0.5
"""Longest single wait, so that `stop` is heard."""


ROLLED_BACK: Final = (TransactionRolledBackError, CommitOutcomeUnknownError)
"""Errors of the commit of what handlers forwarded before, which passes: those messages come again, unless that was committed."""


class HandlerLoop:
    """Calls one handler. For the thread of the reader.

    Args:
        consumption: Gives the reader's of now: a reader may be opened anew.
        receive: Gives the next one, or None after so many seconds.
        handler: Called with each.
    """

    def __init__(
        self, consumption: Callable[[], Consumption], receive: Callable[[float], Any], handler: Callable[[Any], object]
    ) -> None:
        if inspect.iscoroutinefunction(handler):
            raise TypeError("the handler is a coroutine function: it returns before its work is done")
        self._consumption_of_now, self._receive, self._handler = consumption, receive, handler
        self._seen_running: set[str] = set()

    @property
    def _consumption(self) -> Consumption:
        return self._consumption_of_now()

    def run(self, stopping: threading.Event, *, concurrency: int, max_batch_size: int) -> None:
        """Goes on until `stopping` is set. Raises as `Reader.run`."""
        requested = {"concurrency": concurrency, "max_batch_size": max_batch_size}
        if self._consumption.strict is not None:
            self._consumption.strict.warn(requested)
        else:
            for name, value in requested.items():
                if value != 1:
                    raise ConfigError(name, value, "only 1 is supported yet: handlers get one after the other")
        while not stopping.is_set():
            try:
                received = self._receive(STEP_S)
            except ReconnectTimeoutError as outage:
                log.debug("%s", outage)  # the total time ends the wait, not this call's
                continue
            except CommitPendingError as outage:
                if not self._has_open_hop:  # of a session: its owner asks for it again
                    raise
                log.debug("%s", outage)
                continue
            except ROLLED_BACK as failure:
                log.warning("what was forwarded comes again: %s", failure)
                stopping.wait(STEP_S)
                continue
            if received is not None:
                self._handle_or_leave(received)

    def _handle_or_leave(self, received: Any) -> None:
        """One that Ctrl-C, or anything else that is no failure of the handler, takes out of its hands comes again."""
        try:
            self._handle(received)
        except BaseException as left:
            ownership, hop = received._ownership, self._consumption.hop
            if not isinstance(left, Exception) and ownership.acknowledged <= received.offset:
                if hop is not None:  # what it forwarded goes with it
                    hop.abort()
                ownership.go_back(received.offset)
            raise

    @property
    def _has_open_hop(self) -> bool:
        hop = self._consumption.hop
        return hop is not None and hop.is_open

    def _handle(self, received: Any) -> None:
        before = {*threading.enumerate()}
        try:
            with self._consumption.handling():
                self._consumption.require_open()
                result = self._handler(received)
        except Exception as failure:
            if isinstance(failure, FencedError):  # to try again would wait for ever
                self._consumption.fenced(failure)
            if self._consumption.is_closed:  # before it started, or within
                raise
            self._failed(received, failure)
            return
        self._look_for_work_left(result, before)
        try:
            received.acknowledge()
        except (LostServerError, CommitPendingError, *PASSING) as failure:
            log.info("not acknowledged: %s", failure)  # it comes again, here or elsewhere, or is with a later one

    def _failed(self, received: Any, failure: Exception) -> None:
        ownership = received._ownership
        if isinstance(failure, CommitPendingError):
            if not self._has_open_hop:
                raise failure
            log.info("%s", failure)  # it goes on, and is asked for again by the next `receive`
            return
        if self._consumption.is_ours(ownership, received.offset):
            log.warning("the handler failed at %s/%d/%d", *ownership.tp, received.offset, exc_info=failure)
            if self._consumption.hop is not None:
                self._consumption.hop.abort()
            self._consumption.block(ownership, received.offset, f"{type(failure).__name__}: {failure}")

    def _look_for_work_left(self, result: object, before: set[threading.Thread]) -> None:
        """Warns of work that goes on after the handler returned, as far as that can be seen (S-26)."""
        left = {
            each.name
            for each in {*threading.enumerate()} - before
            if each.is_alive() and not each.name.startswith("uow-")
        }
        if inspect.isawaitable(result):
            left.add("an awaitable that nobody waits for")
            if inspect.iscoroutine(result):
                result.close()
        for name in sorted(left - self._seen_running):
            log.warning("the handler returned and left work behind: %s; its order is not kept", name)
        self._seen_running |= left
