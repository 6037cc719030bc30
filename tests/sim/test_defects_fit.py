"""Planted defects fit the code as it is: a renamed attribute that one of them replaces is found here, without a simulation."""

from __future__ import annotations

import pytest

from tests.sim import broken_routers, broken_rules
from tests.sim.defects import DEFECTS, planted


@pytest.mark.parametrize("name", sorted(DEFECTS.keys() | broken_rules.NAMES | broken_routers.NAMES))
def test_planted_defect_replaces_something(name: str) -> None:
    owner, attribute, _ = DEFECTS[name][0]
    before = getattr(owner, attribute)
    with planted(name):
        assert getattr(owner, attribute) is not before
