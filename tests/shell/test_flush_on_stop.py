"""The partitions for which `--flush-on-stop` waits before it looks which groups are open (B-76)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from uow.processor.shell import worker


def stopping(*tasks: Any, blocked: dict[int, str] | None = None) -> Any:
    status = SimpleNamespace(tasks=dict(enumerate(tasks)), blocked=blocked or {})
    loop = asyncio.get_running_loop()
    return SimpleNamespace(loop=loop, uow_app=SimpleNamespace(status=status), _is_left_open=False)


def useless() -> Any:
    return SimpleNamespace(has_let_go=True)


def test_partitions_that_are_being_restored_are_waited_for() -> None:
    async def run() -> None:
        this = stopping(useless())
        waits = asyncio.create_task(worker.UowWorker._until_restored(this))
        await asyncio.sleep(0.1)
        assert not waits.done()
        this.uow_app.status.tasks[0] = SimpleNamespace(has_let_go=False)
        await waits
        assert not this._is_left_open

    asyncio.run(run())


def test_one_that_is_blocked_without_its_state_is_not_waited_for_and_counts_as_left_open() -> None:
    async def run() -> None:
        this = stopping(useless(), blocked={0: "the disk"})
        await asyncio.wait_for(worker.UowWorker._until_restored(this), 5)
        assert this._is_left_open

    asyncio.run(run())


def test_a_restore_that_does_not_end_keeps_nobody_from_stopping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "RESTORE_S", 0.1)

    async def run() -> None:
        this = stopping(useless())
        await asyncio.wait_for(worker.UowWorker._until_restored(this), 5)
        assert this._is_left_open

    asyncio.run(run())
