"""The simulator is worth what it catches: every planted defect, within a number of seeds."""

from __future__ import annotations

import pytest

from processor.sim.run import play
from tests.sim.defects import DEFECTS, planted

pytestmark = pytest.mark.slow

SEEDS = 800


@pytest.mark.parametrize("name", DEFECTS)
def test_planted_defect_is_caught(name: str) -> None:
    with planted(name):
        assert any(play(seed).violation for seed in range(SEEDS)), f"{name} was not caught within {SEEDS} seeds"


def test_there_are_enough_of_them() -> None:
    assert len(DEFECTS) >= 20
