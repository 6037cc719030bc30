"""Deadlines of tests count the machine's time (decision 110)."""

from __future__ import annotations

import os
import time

import pytest

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
