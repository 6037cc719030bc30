"""`--flush-on-stop` beside partitions that are restored meanwhile, and have no state until then (B-76)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from uow.processor.engine.ports import Tp
from uow.processor.shell import worker
from uow.topics.policies import DestinationPolicy

P0, P1 = Tp("D.components", 0), Tp("D.components", 1)


def task(*ids: bytes) -> Any:
    """With these groups open since long ago."""
    groups = {each: SimpleNamespace(opened_at=0, id=each, generation=1) for each in ids}
    context = SimpleNamespace(destination="D", policy=DestinationPolicy())
    return SimpleNamespace(has_let_go=False, groups=groups, context=context)


def useless() -> Any:
    return SimpleNamespace(has_let_go=True, groups={})


class Stopping:
    """The part of a worker that flushes, and what it has given up."""

    def __init__(self, tasks: dict[Tp, Any], on_give_up: Callable[[], None] = lambda: None) -> None:
        self.loop = asyncio.get_running_loop()
        self.status = SimpleNamespace(tasks=tasks, blocked={}, read_unrestored=int)
        self.uow_app = SimpleNamespace(status=self.status, restored=asyncio.Event())
        self.uow_app.restored.set()
        self.given_up: list[bytes] = []
        self.is_stopped = self._is_left_open = False
        self._on_give_up = on_give_up
        self._open_since = partial(worker.UowWorker._open_since, self)  # type: ignore[arg-type]
        self._until_restored = partial(worker.UowWorker._until_restored, self)  # type: ignore[arg-type]
        self._unrestored = partial(worker.UowWorker._unrestored, self)  # type: ignore[arg-type]
        self._until_first_restored = partial(worker.UowWorker._until_first_restored, self)  # type: ignore[arg-type]
        self._is_restored_first = partial(worker.UowWorker._is_restored_first, self)  # type: ignore[arg-type]

    def _give_up(self, groups: Sequence[Any]) -> None:
        async def then() -> None:
            self._on_give_up()

        self.given_up += [each.id for each in groups]
        asyncio.run_coroutine_threadsafe(then(), self.loop).result()  # or the flush might go on before it has run

    def _stop(self) -> None:
        self.is_stopped = True

    async def flush(self) -> bool:
        """True if everything was given up."""
        await asyncio.wait_for(worker.UowWorker._flush(self, self._give_up, "SIGTERM", self._stop), 5)  # type: ignore[arg-type]
        assert self.is_stopped
        return not self._is_left_open


def test_partitions_that_are_being_restored_are_waited_for() -> None:
    async def run() -> None:
        this = Stopping({P0: useless()})
        flushing = asyncio.create_task(this.flush())
        await asyncio.sleep(0.1)
        assert not flushing.done()
        this.status.tasks[P0] = task(b"a")
        assert await flushing
        assert this.given_up == [b"a"]

    asyncio.run(run())


def test_a_doubt_during_the_flush_keeps_no_group_open_and_none_out_of_the_exit_status() -> None:
    """The state was gone, so nothing looked open: the worker ended with 0, and its groups stayed."""

    async def run() -> None:
        def doubt() -> None:
            if len(this.given_up) == 1:
                this.status.tasks[P0] = useless()
                this.loop.call_later(0.1, this.status.tasks.update, {P0: task(b"a", b"read meanwhile")})

        this = Stopping({P0: task(b"a")}, doubt)
        assert await this.flush()
        assert this.given_up == [b"a", b"read meanwhile"]

    asyncio.run(run())


def test_what_no_restore_brings_back_during_the_flush_is_left_open_and_the_others_are_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "RESTORE_S", 0.1)

    async def run() -> None:
        def doubt() -> None:
            this.status.tasks[P0] = useless()

        this = Stopping({P0: task(b"a"), P1: task(b"b")}, doubt)
        assert not await this.flush()
        assert this.given_up == [b"a", b"b"]

    asyncio.run(run())


def test_one_that_is_blocked_without_its_state_is_not_waited_for_and_is_left_open() -> None:
    async def run() -> None:
        this = Stopping({P0: useless(), P1: task(b"b")})
        this.status.blocked[P0] = "the disk"
        assert not await this.flush()
        assert this.given_up == [b"b"]

    asyncio.run(run())


@pytest.mark.parametrize("is_assigned", [True, False])
def test_the_first_restore_is_waited_for_as_well(is_assigned: bool) -> None:
    """Nothing was known of such a partition: its groups stayed open, and where it was not even assigned the worker said that all was done."""

    async def run() -> None:
        this = Stopping({})
        if is_assigned:
            this.status.read_unrestored = lambda: 1 - len(this.status.tasks)
        else:
            this.uow_app.restored.clear()
        flushing = asyncio.create_task(this.flush())
        await asyncio.sleep(0.1)
        assert not flushing.done()
        this.status.tasks[P0] = task(b"a")
        this.uow_app.restored.set()
        assert await flushing
        assert this.given_up == [b"a"]

    asyncio.run(run())


@pytest.mark.parametrize("how", ["blocked", "restored still", "not assigned"])
def test_one_that_never_had_its_state_here_is_left_open(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "RESTORE_S", 0.1)

    async def run() -> None:
        this = Stopping({P1: task(b"b")})
        if how == "blocked":
            this.status.blocked[P0] = "the disk"
        elif how == "not assigned":
            this.uow_app.restored.clear()
        else:
            this.status.read_unrestored = lambda: 1
        assert not await this.flush()
        assert this.given_up == [b"b"]

    asyncio.run(run())


def test_a_restore_that_does_not_end_keeps_nobody_from_stopping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "RESTORE_S", 0.1)

    async def run() -> None:
        assert not await Stopping({P0: useless()}).flush()

    asyncio.run(run())
