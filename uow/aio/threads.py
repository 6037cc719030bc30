"""From the event loop into threads and back: the calls of the client that wait, one after the other for each object.

Theory of operation. A call that may wait runs in a thread that is used again (`uow.processor.kafka.bounded`); one that does not, in the loop. Cancelling
whoever waits for a call does not end the call: it goes on to its own end, which has a limit, and the next call of the same object waits for that. So no two
calls ever meet inside an object, and none is cut in half.

Belongs here: threads, turns, callbacks. Does not belong here: the meaning of any call.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import CancelledError as CallCancelled
from contextlib import suppress
from contextvars import ContextVar, copy_context
from functools import partial
from types import TracebackType
from typing import Any, Final, Generic, Protocol, TypeVar

from uow.processor.kafka.bounded import in_thread

T = TypeVar("T")

MOST: Final = 32
"""Calls of one connection that run in threads at the same time, readers not counted."""

_inside: ContextVar[Lane | None] = ContextVar("uow_inside", default=None)
"""The object whose call waits for the callback that runs here."""


def begin(call: Callable[[], T]) -> asyncio.Future[T]:
    """Begins a call in a thread; the context of the caller goes along."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = copy_context()

    def run() -> None:
        try:
            tell = partial(_give, future, context.run(call))
        except BaseException as failure:  # noqa: BLE001 - handed over to whoever waits
            tell = partial(_refuse, future, failure)
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(tell)

    in_thread(run)
    return future


def _give(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _refuse(future: asyncio.Future[Any], failure: BaseException) -> None:
    if not future.done():
        future.set_exception(failure)


async def finish(work: Coroutine[Any, Any, T], within_s: float) -> T:
    """Waits for the end of something that must not be left half done, also if it is cancelled meanwhile: then so many seconds at most.

    Raises:
        CancelledError: It was cancelled meanwhile; raised after the end.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    until = None
    while not task.done():
        try:
            await asyncio.wait([task], timeout=None if until is None else max(0.0, until - time.monotonic()))
        except asyncio.CancelledError as error:
            cancelled, until = error, until or time.monotonic() + within_s
        if until is not None and time.monotonic() >= until:
            break
    if cancelled is None:
        return task.result()
    task.add_done_callback(_forget)
    raise cancelled


def _forget(task: asyncio.Future[Any]) -> None:
    """Nobody asks for the error of a call that was left."""
    if not task.cancelled():
        task.exception()


class Lane:
    """The calls of one object, one after the other.

    Args:
        room: Bounds the calls of a connection that run at once; None: not bounded.
    """

    def __init__(self, room: asyncio.Semaphore | None = None) -> None:
        self._room = room
        self._turn = asyncio.Lock()
        self._left: asyncio.Future[Any] | None = None
        self._interrupt: Callable[[], None] | None = None
        self._callbacks = 0

    @property
    def is_free(self) -> bool:
        """True if a call need not wait for another one."""
        return not self._turn.locked() and (self._left is None or self._left.done())

    async def run(
        self,
        call: Callable[[], T],
        interrupt: Callable[[], None] | None = None,
        keep: Callable[[asyncio.Future[T]], object] | None = None,
    ) -> T:
        """Runs a call in its turn.

        Args:
            call: What runs in a thread.
            interrupt: Makes it return soon; called if it is cancelled, and if another call waits for its turn.
            keep: Called with its future, once that is done, if nobody waits for it any more.
        """
        if self._callbacks and _inside.get() is self:
            return await begin(call)  # a callback of the call whose turn it is
        if self._interrupt is not None:
            self._interrupt()
        async with self._turn:
            while self._left is not None and not self._left.done():
                await asyncio.wait([self._left])
            if self._room is None:
                return await self._in_turn(call, interrupt, keep)
            async with self._room:
                return await self._in_turn(call, interrupt, keep)

    async def _in_turn(
        self,
        call: Callable[[], T],
        interrupt: Callable[[], None] | None,
        keep: Callable[[asyncio.Future[T]], object] | None,
    ) -> T:
        self._left = future = begin(call)
        self._interrupt = interrupt
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if interrupt is not None:
                interrupt()
            self._left = kept = asyncio.get_running_loop().create_future()

            def end(future: asyncio.Future[T]) -> None:
                try:
                    _forget(future)
                    if keep is not None:
                        keep(future)
                finally:
                    kept.set_result(None)  # the next call comes behind what becomes of this one

            future.add_done_callback(end)
            raise
        finally:
            self._interrupt = None

    def back(self, callback: Callable[..., object], loop: asyncio.AbstractEventLoop) -> Callable[..., Any]:
        """A callback as the client calls it in a thread: it runs in the loop, be it a coroutine function or not, and the thread waits for it.

        It may call this very object, which is waiting for it.
        """
        waiting = in_loop(callback, loop)

        def call(*arguments: Any) -> Any:
            before = _inside.set(self)
            self._callbacks += 1
            try:
                return waiting(*arguments)
            finally:
                self._callbacks -= 1
                _inside.reset(before)

        return call


class CallbackCancelled(BaseException):
    """The task of a callback was cancelled: no failure, and nothing that the client may catch."""


def in_loop(callback: Callable[..., object], loop: asyncio.AbstractEventLoop) -> Callable[..., Any]:
    """A callback as the client calls it in a thread: it runs in the loop, and the thread waits for it."""

    async def run(*arguments: Any) -> Any:
        result = callback(*arguments)
        return await result if inspect.isawaitable(result) else result

    def call(*arguments: Any) -> Any:
        work = run(*arguments)
        try:
            future = asyncio.run_coroutine_threadsafe(work, loop)
        except RuntimeError:
            work.close()
            raise
        try:
            return future.result()
        except CallCancelled as cancelled:
            raise CallbackCancelled from cancelled

    return call


class Closing(Protocol):
    """Something to close."""

    async def close(self) -> None: ...


Opened = TypeVar("Opened", bound=Closing)


class Opening(Generic[Opened]):
    """Something that is being opened: await it, or open and close it by `async with`."""

    def __init__(self, open_it: Callable[[], Awaitable[Opened]]) -> None:
        self._open = open_it
        self._opened: Opened | None = None

    def __await__(self) -> Generator[Any, Any, Opened]:
        return self._open().__await__()

    async def __aenter__(self) -> Opened:
        self._opened = await self._open()
        return self._opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._opened is not None
        await self._opened.close()
