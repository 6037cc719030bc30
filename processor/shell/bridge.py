"""The bridge between the driver's thread and Faust's event loop: batches one way, outcomes the other.

Belongs here: the driver's `TaskRunner`, and the two kinds of crossing (a call that waits, a note that does not). Does not belong here: any decision
about records or transactions, and Faust's consumer interface (`uow.processor.shell.transport`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Mapping,
    Sequence,
)
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog
from faust.types import TP, ConsumerMessage

from uow.processor.engine.batch import Batch, Task
from uow.processor.engine.driver import Driver
from uow.processor.engine.ports import (
    Blocked,
    Doubt,
    Plan,
    Tp,
)
from uow.processor.engine.set_aside import frames
from uow.processor.shell.monitor import WorkerStatus

if TYPE_CHECKING:  # the extra `rules` need not be installed
    from uow.processor.kafka.router import Router

log = logging.getLogger("uow.worker")
expired_log = structlog.stdlib.get_logger("uow.expired")

SAY_PAUSED_EVERY_S = 60.0
"""How often partitions that are paused are logged as a warning; in between their changes are lines of debug."""

Deliver = Callable[[Any], Awaitable[None]]
Crash = Callable[[BaseException], Coroutine[Any, Any, None]]


class Bridge:
    """The driver's task runner on the event loop of a Faust app. It starts and stops the router's thread as well, if there is one.

    Args:
        app: The Faust app; see `uow.processor.shell.app.UowApp`.
        deliver: Hands a message to Faust's conductor.
        crash: Makes the worker crash.
    """

    def __init__(self, app: Any, deliver: Deliver, crash: Crash) -> None:
        self._app, self._deliver_message, self._crash = app, deliver, crash
        self._status: WorkerStatus = app.status
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[BaseException | None] = self._loop.create_future()
        self._router_done: asyncio.Future[BaseException | None] = self._loop.create_future()
        self._waiting: Sequence[Batch] = ()
        self._planned = self._pauses_told_until = 0.0
        self._has_told_of_pauses = False
        self.driver: Driver = app.new_driver(self)
        self._status.read_unrestored = lambda: self.driver.unrestored
        self._router: Router | None = app.new_router(
            partial(self._note, app.router_ready.set), partial(self._note, self._on_router_finished)
        )
        if self._router is None:
            self._router_done.set_result(None)
            app.router_ready.set()

    @property
    def assignment(self) -> set[TP]:
        """Partitions owned, in Faust's type."""
        return {TP(*tp) for tp in self._status.tasks}

    # -- called on the event loop

    async def drain(self, timeout_s: float) -> None:
        """Finish the poll in hand, commit it, leave the group; agents still run."""
        threads = [each for each in (self._done, self._router_done) if not each.done()]
        if not threads:
            return
        self.driver.request_stop()
        if self._router is not None:
            self._router.request_stop()
        await asyncio.wait(threads, timeout=timeout_s)
        late = [each for each in threads if not each.done()]
        for each in late:  # a daemon thread: its transaction dies with the process, nothing is acknowledged
            each.set_result(None)
        if late:
            await self._crash(TimeoutError(f"not drained in {timeout_s:g} s, left without commit"))

    def on_agent_died(self, error: BaseException) -> None:
        """It may have died outside its ``with batch``: its batches are finished here, so that the driver does not wait for ever."""
        for batch in self._waiting:
            batch.finish(error)

    # -- TaskRunner: called by the driver's thread

    def assigned(self, tasks: Mapping[Tp, Task]) -> None:
        self._call(self._adopt(tasks))

    def revoked(self, tps: Sequence[Tp]) -> None:
        self._call(self._drop(tps))

    def process(self, batches: Sequence[Batch]) -> None:
        self._call(self._hand_over(batches))
        self._planned = time.perf_counter()

    def committed(self, plans: Sequence[Plan]) -> None:
        self._note(self._on_committed, plans, time.perf_counter() - self._planned)

    def blocked(self, tp: Tp, cause: Blocked) -> None:
        log.error(
            "partition blocked: %s/%d: %s%s",
            tp.topic,
            tp.partition,
            cause,
            f"\n{frames(cause.__cause__)}".rstrip(),
        )
        self._note(self._on_blocked, tp, cause)

    def unblocked(self, tp: Tp) -> None:
        log.warning("partition no longer blocked: %s/%d", tp.topic, tp.partition)
        self._note(self._on_unblocked, tp)

    def paused(self, tps: Collection[Tp]) -> None:
        names = ", ".join(f"{tp.topic}/{tp.partition}" for tp in sorted(tps))
        now = time.monotonic()
        is_told = now >= self._pauses_told_until or (not tps and self._has_told_of_pauses)
        if is_told:
            self._has_told_of_pauses = bool(tps)
        if is_told and tps:
            self._pauses_told_until = now + SAY_PAUSED_EVERY_S
        log.log(
            logging.WARNING if is_told else logging.DEBUG,  # partitions that take turns change every few seconds
            "held components exceed memory_limit_bytes; paused: %s",
            names or "none any more",
        )
        self._note(self._on_paused, frozenset(tps))

    def doubted(self, doubt: Doubt) -> None:
        log.warning(
            "%s: %s; partitions are restored and read again",
            type(doubt).__name__,
            doubt,
        )
        self._note(self._on_doubted, doubt)

    def finished(self, error: BaseException | None) -> None:
        self._note(self._on_finished, error)

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs it on the loop, returns when it is done."""
        if self._done.done() or self._loop.is_closed():
            work.close()
            raise RuntimeError("the worker has stopped without waiting for its driver")
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _note(self, fun: Callable[..., None], *args: Any) -> None:
        """Schedules it on the loop, does not wait."""
        with suppress(RuntimeError):  # the loop is closed: the driver was left behind by a stop that could not wait
            self._loop.call_soon_threadsafe(fun, *args)

    # -- the same, on the event loop

    async def _adopt(self, tasks: Mapping[Tp, Task]) -> None:
        app, status = self._app, self._status
        app.on_rebalance_start()
        status.tasks.update(tasks)
        status.restores += len(tasks)
        app.tables.adopt(tasks)
        await app.topics.on_partitions_assigned(self.assignment)
        await app.on_partitions_assigned.send({TP(*tp) for tp in tasks})
        app.on_rebalance_return()
        app.on_rebalance_end()
        if not self.driver.unrestored:
            app.restored.set()
        if tasks:
            log.info(
                "restored: %s",
                ", ".join(f"{tp.topic}/{tp.partition} at {task.position}" for tp, task in sorted(tasks.items())),
            )
        for tp, task in tasks.items():
            if task.orphans:
                log.warning(
                    "%s/%d: %d components in the changelog have no group: `uow groups D --audit` lists them, "
                    "`uow resubmit D --stranded` brings them back",
                    *tp,
                    task.orphans,
                )

    async def _drop(self, tps: Sequence[Tp]) -> None:
        for tp in tps:
            self._status.tasks.pop(tp, None)
            self._status.unblock(tp)
        self._app.tables.drop(tps)
        await self._app.on_partitions_revoked.send({TP(*tp) for tp in tps})
        if tps:
            log.info("given away: %s", ", ".join(f"{tp.topic}/{tp.partition}" for tp in tps))

    async def _hand_over(self, batches: Sequence[Batch]) -> None:
        app = self._app
        everything: asyncio.Future[None] = self._loop.create_future()
        open_count = len(batches)

        def on_finish() -> None:
            nonlocal open_count
            open_count -= 1
            if not open_count and not everything.done():
                everything.set_result(None)

        self._waiting = batches
        messages = []
        for batch in batches:
            batch.on_finish = on_finish
            message = _message(batch, app.consumer_generation_id)
            app.sensors.on_message_in(
                message.tp, message.offset, message
            )  # Faust calls in and out for acked topics only
            messages.append(message)
            await self._deliver_message(message)
        await everything
        self._waiting = ()
        for message in messages:
            app.sensors.on_message_out(message.tp, message.offset, message)
        self._status.polls += 1
        self._status.records += sum(batch.count for batch in batches)
        self._status.busy_at = self._loop.time()

    def _on_committed(self, plans: Sequence[Plan], seconds: float) -> None:
        self._status.transactions += 1
        self._status.commit_seconds += seconds
        monitor = self._app.monitor
        monitor.commit_latency.append(seconds)
        monitor.on_tp_commit({TP(*plan.tp): plan.next_offset for plan in plans})
        for plan in plans:
            for line in plan.log_lines:
                expired_log.info("component expired", **line)

    def _on_blocked(self, tp: Tp, cause: Blocked) -> None:
        self._status.blocked[tp] = str(cause)
        self._status.blocked_since.setdefault(tp, time.time_ns() // 1_000_000)
        self._status.blocks += 1

    def _on_unblocked(self, tp: Tp) -> None:
        self._status.unblock(tp)

    def _on_paused(self, tps: frozenset[Tp]) -> None:
        self._status.paused = tps

    def _on_doubted(self, doubt: Doubt) -> None:
        self._status.doubts[type(doubt).__name__] += 1

    def _on_finished(self, error: BaseException | None) -> None:
        self._on_thread_finished(self._done, error)

    def _on_router_finished(self, error: BaseException | None) -> None:
        self._on_thread_finished(self._router_done, error)

    def _on_thread_finished(self, done: asyncio.Future[BaseException | None], error: BaseException | None) -> None:
        if done.done():
            return
        done.set_result(error)
        if error is not None:
            self._app.add_future(self._crash(error))

    # -- start

    def start(self) -> None:
        """Starts the threads."""
        self.driver.start()
        if self._router is not None:
            self._router.start()


def _message(batch: Batch, generation: int) -> ConsumerMessage:
    tp = TP(*batch.tp)
    content: Any = batch  # Faust carries the value untouched
    return ConsumerMessage(
        batch.tp.topic,
        batch.tp.partition,
        batch.last_offset,
        0.0,
        0,
        None,
        None,
        content,
        None,
        0,
        0,
        tp,
        generation_id=generation,
    )
