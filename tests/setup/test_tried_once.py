"""Each test is tried once: its deadlines count the machine's time, and who asks for second tries finds them in a file (decision 110)."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.conftest import SECOND_TRIES, keep_second_tries
from tests.processes import CORES, Patience, stretched


def test_time_passes_as_fast_as_the_machine_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(os, "getloadavg", lambda: (20.0 * CORES, 0.0, 0.0))
    patience = Patience(10)
    assert stretched(10) == 200
    now += 150
    assert not patience.is_over
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    assert stretched(10) == 10
    now += 2
    assert not patience.is_over, "7.5 of 10 s were used, and 2"
    now += 1
    assert patience.is_over


def test_what_was_tried_twice_is_kept(tmp_path: Path) -> None:
    for name in ("a", "b"):
        keep_second_tries([SimpleNamespace(nodeid=f"test_x.py::{name}", longreprtext="E  assert 1 == 2")], tmp_path)
    rows = [json.loads(line) for line in (tmp_path / SECOND_TRIES).read_text().splitlines()]
    assert [row["test"] for row in rows] == ["test_x.py::a", "test_x.py::b"]
    assert {row["failure"] for row in rows} == {"E  assert 1 == 2"}
    assert all({"when", "revision", "load"} <= row.keys() for row in rows)
