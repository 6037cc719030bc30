"""Single records from the event loop: handed over at once, and awaited without a thread for each.

Theory of operation. The library takes a record without waiting, once its topic is known and there is room; else the call runs in a thread. One thread
of the connection serves delivery reports, and wakes the loop once for all that have come.

Belongs here: that thread, and the futures of records under way. Does not belong here: the rules of sending (`uow.client.sending`).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from uow.aio.threads import Lane, begin
from uow.client.outgoing import OutgoingRecord
from uow.client.sending import Delivery, Identity, PlainSender, Sent
from uow.client.session_state import Life, Patience
from uow.schemas.error_classes import UowError

SERVE_S: Final = 0.1
"""Longest single wait for reports."""
IDLE_S: Final = 0.1
"""After so long without a record under way the thread rests until the next one."""
SWEEP_S: Final = 0.25
"""Interval at which it is asked who has waited too long."""
TURN: Final = 256
"""After so many records handed over at once others get their turn of the loop."""


class Sends:
    """The records of one connection that are awaited. For the event loop.

    Args:
        sender: Hands them over.
        life: Of the connection: how long calls wait.
    """

    def __init__(self, sender: PlainSender, life: Life) -> None:
        self._sender, self._life = sender, life
        self._loop = asyncio.get_running_loop()
        self._lanes: dict[str, Lane] = {}
        self._waiting: dict[Identity, tuple[Delivery, Patience, list[asyncio.Future[Sent]]]] = {}
        self._known: deque[Delivery] = deque()
        self._is_woken = False
        self._count = 0
        self._sweep: asyncio.TimerHandle | None = None
        self._work = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    async def send(self, component_id: str, record: OutgoingRecord, way: str = "plain") -> Sent:
        """As `PlainSender.send`. Cancelled, the record goes on: sending the same component again waits for it."""
        begun: Sent | Delivery | None = None
        lane = self._lanes.get(record.topic)
        if self._sender.is_ready(record.topic) and (lane is None or lane.is_free):
            begun = self._sender.begin_at_once(component_id, record)
            self._count += 1
            if self._count % TURN == 0:
                await asyncio.sleep(0)
        if begun is None:  # the topic is new or strict, or there is no room
            begun = await self._lanes.setdefault(record.topic, Lane()).run(
                partial(self._begun, component_id, record, way), keep=self._leave
            )
        if isinstance(begun, Sent):
            return begun
        return await self._settled(begun)

    def _leave(self, begun: asyncio.Future[Sent | Delivery]) -> None:
        if not begun.cancelled() and begun.exception() is None and isinstance(result := begun.result(), Delivery):
            self._sender.leave(result)

    def _begun(self, component_id: str, record: OutgoingRecord, way: str) -> Sent | Delivery:
        """In a thread, in the turn of the topic."""
        return self._sender.begin(component_id, record, way)

    def _settled(self, delivery: Delivery) -> asyncio.Future[Sent]:
        future: asyncio.Future[Sent] = self._loop.create_future()
        waiting = self._waiting.get(delivery.identity)
        if waiting is not None and waiting[0] is delivery:
            waiting[2].append(future)
            return future
        self._waiting[delivery.identity] = delivery, Patience(self._life), [future]
        delivery.on_known = self._on_known
        if delivery.is_known:  # before it was asked for
            self._on_known(delivery)
        self._serve()
        return future

    def _on_known(self, delivery: Delivery) -> None:
        """In whichever thread hears of it."""
        self._known.append(delivery)
        if not self._is_woken:
            self._is_woken = True
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._settle_known)

    def _settle_known(self) -> None:
        self._is_woken = False
        while self._known:
            delivery = self._known.popleft()
            waiting = self._waiting.get(delivery.identity)
            if waiting is None or waiting[0] is not delivery:
                continue
            del self._waiting[delivery.identity]
            if all(future.done() for future in waiting[2]):  # cancelled: whoever sends it again hears of this one
                self._sender.leave(delivery)
            else:
                self._tell(waiting[2], partial(self._sender.settled, delivery))

    def _tell(self, futures: list[asyncio.Future[Sent]], fate: Callable[[], Sent]) -> None:
        try:
            sent = fate()
        except UowError as failure:
            for future in futures:
                if not future.done():
                    future.set_exception(failure)
        else:
            for future in futures:
                if not future.done():
                    future.set_result(sent)

    # -- the thread, and those who wait in vain

    def _serve(self) -> None:
        if self._sweep is None:
            self._sweep = self._loop.call_later(SWEEP_S, self._give_up_late_ones)
        if not self._work.is_set():
            self._work.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="uow-deliveries", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        busy_at = time.monotonic()
        while not self._is_closed:
            if self._waiting:
                busy_at = time.monotonic()
            elif time.monotonic() - busy_at >= IDLE_S:
                self._work.clear()
                # else one came, or `close` was called, at this very moment
                if not self._waiting and not self._is_closed:
                    self._work.wait()
                busy_at = time.monotonic()
            self._sender.serve(SERVE_S)

    def _give_up_late_ones(self) -> None:
        self._sweep = None
        late = []
        for delivery, patience, _ in self._waiting.values():  # in the order of their beginning
            if not patience.is_over:
                break
            late.append(delivery)
        for delivery in late:
            error = self._sender.late(delivery)
            for future in self._waiting.pop(delivery.identity)[2]:
                if not future.done():
                    future.set_exception(error)
        if self._waiting:
            self._sweep = self._loop.call_later(SWEEP_S, self._give_up_late_ones)

    async def close(self) -> None:
        """Ends the thread; call it after the sender's end, which tells the fate of everything under way."""
        self._is_closed = True
        self._work.set()
        if self._sweep is not None:
            self._sweep.cancel()
        if self._thread is not None:
            await begin(self._thread.join)
        self._settle_known()
