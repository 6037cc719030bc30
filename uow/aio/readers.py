"""Readers in the event loop.

Belongs here: receiving, and what becomes of it when it is cancelled. Does not belong here: the rules of reading (`uow.client.reader`).
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar

import uow.aio
from uow.aio.threads import CallbackCancelled, Lane, finish
from uow.aio.values import Message, wrapped
from uow.client import reader as reading
from uow.client.blocking import OrderBlocked
from uow.client.timely_messages import MessageReader as SyncMessageReader
from uow.client.verdict import Failure
from uow.errors import ClientClosedError, OrderBlockedError, ReconnectTimeoutError

T_co = TypeVar("T_co", covariant=True)

CLOSE_S: Final = 12.0
"""Longest that closing a reader holds back a cancellation: it waits for the call under way, then for brokers."""


class Reader(Generic[T_co]):
    """As `uow.Reader`, in the event loop: an asynchronous iterator and context manager, for one task.

    It opens with the block, or with the first call. A `receive` that is cancelled loses nothing: what it would have returned comes with the next one.
    A thread is taken while it waits; each reader of a connection has one at most.

    Args:
        open_it: Makes the client's reader; runs in a thread.
        lane: The turns of whatever it belongs to; None: its own.
    """

    def __init__(self, open_it: Callable[[Lane], reading.Reader[Any]], lane: Lane | None = None) -> None:
        self._open_it = open_it
        self._lane = lane or Lane()
        self._sync: reading.Reader[Any] | None = None
        self._is_closed = False
        self._kept: deque[Any] = deque()
        self._stopping = threading.Event()

    async def _opened(self) -> reading.Reader[Any]:
        if self._sync is None:
            if self._is_closed:
                raise ClientClosedError("the reader is closed")
            await self._lane.run(self._open)
        assert self._sync is not None
        return self._sync

    def _open(self) -> None:
        """In a thread, and to its end, whoever is cancelled: then the next call finds it open."""
        if self._sync is None:
            self._sync = self._open_it(self._lane)

    @property
    def given_up(self) -> Counter[Failure]:
        """As of `uow.Reader`."""
        return Counter() if self._sync is None else self._sync.given_up

    async def __aenter__(self) -> Self:
        await self._opened()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T_co:
        received = await self.receive(None)
        assert received is not None
        return received

    async def receive(self, timeout: float | None = None) -> T_co | None:
        """As `uow.Reader.receive`."""
        sync = await self._opened()
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            sync._is_interrupted = False
            left = None if until is None else max(0.0, until - time.monotonic())
            try:
                received = await self._lane.run(
                    partial(self._receive, sync, left), partial(setattr, sync, "_is_interrupted", True), self._keep
                )
            except (OrderBlockedError, ReconnectTimeoutError):
                if not self._was_interrupted(sync, until):
                    raise
                continue
            if received is not None or not self._was_interrupted(sync, until):
                sync._hand_out(received)
                found: T_co | None = wrapped(received, self._lane)
                return found

    @staticmethod
    def _was_interrupted(sync: reading.Reader[Any], until: float | None) -> bool:
        """True if another call wanted its turn, so that it did not wait as long as it may."""
        return sync._is_interrupted and (until is None or time.monotonic() < until)

    def _receive(self, sync: reading.Reader[Any], timeout: float | None) -> Any:
        """In a thread: one that nobody waited for comes first, unless its partition has moved, or goes back."""
        while self._kept:
            kept = self._kept.popleft()
            if kept._consumption.is_ours(kept._ownership, kept.offset) and kept._ownership.rewind != kept.offset:
                sync._before_receive()
                return kept
        return sync._next(timeout)

    def _keep(self, future: asyncio.Future[Any]) -> None:
        if not future.cancelled() and future.exception() is None and future.result() is not None:
            self._kept.append(future.result())

    async def receive_nowait(self) -> T_co | None:
        """As `uow.Reader.receive_nowait`."""
        return await self.receive(0.0)

    async def run(
        self,
        handler: Callable[[T_co], object],
        *,
        on_blocked: Callable[[OrderBlocked], object] | None = None,
        concurrency: int = 1,
        max_batch_size: int = 1,
    ) -> None:
        """As `uow.Reader.run`; the handler is a coroutine function, or a function that does not wait.

        Cancelled, so is the handler that runs, and its unit or message comes again.
        """
        sync, loop = await self._opened(), asyncio.get_running_loop()
        stopping = self._stopping
        handling: list[asyncio.Task[Any]] = []

        async def handle(received: Any) -> None:
            if stopping.is_set():
                raise asyncio.CancelledError
            handling[:] = [asyncio.current_task()]  # type: ignore[list-item]
            result = handler(wrapped(received, self._lane))
            if inspect.isawaitable(result):
                await result

        waiting = self._lane.back(handle, loop)

        def in_thread(received: Any) -> None:
            try:
                waiting(received)
            except CallbackCancelled:
                received._ownership.go_back(received.offset)
                raise

        blocked = None if on_blocked is None else self._lane.back(on_blocked, loop)

        def work() -> None:
            while self._kept:  # the handler gets what nobody waited for
                kept = self._kept.popleft()
                if kept._consumption.is_ours(kept._ownership, kept.offset):
                    kept._ownership.go_back(kept.offset)
            sync._run(stopping, in_thread, blocked, concurrency, max_batch_size)

        try:
            await self._lane.run(work, stopping.set)
        except CallbackCancelled as cancelled:
            raise asyncio.CancelledError from cancelled
        except asyncio.CancelledError:
            for task in handling:
                task.cancel()
            raise
        finally:
            self._stopping = threading.Event()

    def stop(self) -> None:
        """As `uow.Reader.stop`."""
        self._stopping.set()

    async def resume(self) -> None:
        """As `uow.Reader.resume`."""
        await self._call("resume")

    async def seek(self, topic: str, partition: int, offset: int, *, break_order: str = "") -> None:
        """As `uow.Reader.seek`."""
        await self._call("seek", topic, partition, offset, break_order=break_order)

    async def roll_back(self) -> None:
        """As `uow.Reader.roll_back`."""
        await self._call("roll_back")

    async def renew(self, connection: uow.aio.Connection) -> None:
        """As `uow.Reader.renew`."""
        sync = await self._opened()
        sync.renew(connection._sync)

    async def _call(self, name: str, *arguments: Any, **settings: Any) -> None:
        sync = await self._opened()
        await self._lane.run(partial(getattr(sync, name), *arguments, **settings))

    async def close(self) -> None:
        """As `uow.Reader.close`. Cancelled, it waits for its end all the same, some seconds at most."""
        self._is_closed = True
        if self._sync is not None:
            self._stopping.set()
            await finish(self._lane.run(self._sync.close), CLOSE_S)


class MessageReader(Reader[Message]):
    """As `uow.MessageReader`, in the event loop."""

    @property
    def hurried(self) -> int:
        """As of `uow.MessageReader`."""
        return self._sync.hurried if isinstance(self._sync, SyncMessageReader) else 0
