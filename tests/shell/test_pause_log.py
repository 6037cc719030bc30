"""Lines of the log about partitions that are paused for memory: two a minute at most, while they take turns every few seconds."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from uow.processor.engine.ports import Tp
from uow.processor.shell.bridge import SAY_PAUSED_EVERY_S, Bridge

P0, P1 = Tp("D.components", 0), Tp("D.components", 1)


class Pausing:
    """The part of a bridge that tells of pauses."""

    def __init__(self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        monkeypatch.setattr("uow.processor.shell.bridge.time", SimpleNamespace(monotonic=lambda: self.now))
        caplog.set_level(logging.DEBUG, "uow")
        self._caplog = caplog
        self._bridge: Any = Bridge.__new__(Bridge)
        self._bridge._pauses_told_until, self._bridge._has_told_of_pauses = 0.0, False
        self._bridge._note = lambda *_: None
        self._bridge._on_paused = None

    def told(self, *tps: Tp) -> str | None:
        """The line above debug, if there is one, of what is paused from now on."""
        self._caplog.clear()
        self._bridge.paused(frozenset(tps))
        said = [each for each in self._caplog.records if each.levelno > logging.DEBUG]
        assert len(self._caplog.records) == 1
        return said[0].getMessage() if said else None


@pytest.fixture
def pausing(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Pausing:
    return Pausing(caplog, monkeypatch)


def test_a_pause_is_told_and_its_end(pausing: Pausing) -> None:
    assert "paused: D.components/0" in (pausing.told(P0) or "")
    assert "paused: none any more" in (pausing.told() or "")


def test_partitions_that_take_turns_are_told_of_once_a_minute(pausing: Pausing) -> None:
    lines = []
    for _ in range(100):
        lines += [line for tps in ([P0], [P0, P1], [P1], []) if (line := pausing.told(*tps))]
        pausing.now += SAY_PAUSED_EVERY_S / 10
    assert len(lines) == 2 * 100 / 10
    assert "none any more" in lines[-1]
