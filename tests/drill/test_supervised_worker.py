"""A fault at a step that a worker does not reach is put off, not left out: how soon one has its first records is up to the machine."""

from __future__ import annotations

import os
import sys
from collections import deque
from pathlib import Path

import pytest

from tests.processes import wait_for
from uow.prove import supervised_worker
from uow.prove.faults import Fault, FaultKind
from uow.prove.supervised_worker import PUT_OFFS, SharedWorkerState, SupervisedWorker, Tally
from uow.prove.timeline import EventLog

IDLE = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("worker a ready", flush=True)
crash = os.environ.get("UOW_CRASH") and os.path.exists(sys.argv[1])
if crash:
    os.kill(os.getpid(), signal.SIGKILL)
while True:
    time.sleep(0.01)
"""
STEP = Fault(FaultKind.STEP, step="committed", turn=1)


@pytest.fixture
def tally(tmp_path: Path) -> Tally:
    return Tally()


@pytest.fixture
def worker(tmp_path: Path, tally: Tally, monkeypatch: pytest.MonkeyPatch) -> SupervisedWorker:
    """A worker without records, whose step comes once the file `records` is there."""
    monkeypatch.setattr(supervised_worker, "STEP_PATIENCE_S", 0.0)
    command = [sys.executable, "-c", IDLE, str(tmp_path / "records")]
    return SupervisedWorker(
        "a", SharedWorkerState(tmp_path, command, dict(os.environ), deque([STEP]), 0, EventLog(), tally)
    )


def supervised(worker: SupervisedWorker) -> bool:
    worker.supervise()
    return not worker.is_busy and worker.is_restarted


def test_a_step_that_is_not_reached_is_tried_again_and_then_a_kill(worker: SupervisedWorker, tally: Tally) -> None:
    worker.start()
    try:
        wait_for(lambda: supervised(worker) and tally.faults)
    finally:
        worker.close()
    assert (tally.faults, tally.exits["0"]) == ({"kill": 1}, PUT_OFFS)


def test_a_step_that_is_reached_later_is_the_fault_that_was_planned(
    worker: SupervisedWorker, tally: Tally, tmp_path: Path
) -> None:
    worker.start()
    try:
        wait_for(lambda: supervised(worker) or tally.exits)
        (tmp_path / "records").touch()
        wait_for(lambda: supervised(worker) and tally.faults)
    finally:
        worker.close()
    assert tally.faults == {"step:committed": 1}
