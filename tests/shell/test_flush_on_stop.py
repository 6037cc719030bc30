"""What `--flush-on-stop` waits for before it looks which groups are open (B-76)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from uow.processor.shell import worker
from uow.schemas.error_classes import UowError


def waiting(tasks: list[Any]) -> Any:
    loop = asyncio.get_running_loop()
    return SimpleNamespace(loop=loop, uow_app=SimpleNamespace(status=SimpleNamespace(tasks=dict(enumerate(tasks)))))


def test_open_groups_of_partitions_that_are_being_restored_are_waited_for() -> None:
    task = SimpleNamespace(has_let_go=True)

    async def run() -> None:
        this = waiting([task])
        waits = asyncio.create_task(worker.UowWorker._until_restored(this))
        await asyncio.sleep(0.1)
        assert not waits.done()
        this.uow_app.status.tasks[0] = SimpleNamespace(has_let_go=False)
        await waits

    asyncio.run(run())


def test_a_restore_that_does_not_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "RESTORE_S", 0.1)

    async def run() -> None:
        with pytest.raises(UowError, match="still being restored"):
            await worker.UowWorker._until_restored(waiting([SimpleNamespace(has_let_go=True)]))

    asyncio.run(run())
