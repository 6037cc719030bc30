"""`examples/megazon/unhappy_days.py`, run as its README tells it (W-132)."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.processes import Process

MEGAZON = Path(__file__).parents[2] / "examples" / "megazon"

pytestmark = [pytest.mark.broker, pytest.mark.timeout(400)]


def test_five_unhappy_days_end_as_told_w132(broker: Any, spawn: Callable[..., Process]) -> None:
    env = {"UOW_APPLICATION__BOOTSTRAP_SERVERS": broker.bootstrap, "UOW_WORKER__WEB": "off"}
    config = MEGAZON / "uow.toml"
    assert spawn("uow", "topics", "create", "-c", config, env=env).wait(60) == 0
    worker = spawn("uow", "worker", "-c", config, "--name", "megazon", env=env)
    worker.wait_output("worker megazon ready", 90)
    days = spawn(sys.executable, MEGAZON / "unhappy_days.py", "--bootstrap", broker.bootstrap)
    assert days.wait(300) == 0, days.output
    told = [json.loads(line) for line in days.output.splitlines() if line.startswith("{")]
    assert [day["as required"] for day in told] == [True] * 5
    assert worker.terminate(60) == 0
