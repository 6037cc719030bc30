"""`uow show` of a unit that waits for its topic for longer than its closed id is remembered (B-57)."""

from __future__ import annotations

import pytest

from uow.cli.show_command import _print
from uow.ops.group_story import Owner
from uow.ops.inspect import InspectedGroup, WaitingUnit


def test_a_unit_that_waits_is_told_though_its_closed_id_is_forgotten(capsys: pytest.CaptureFixture[str]) -> None:
    found = InspectedGroup(0, waiting=(WaitingUnit("low-stock/UK", 3, "complete", "orders.uk", 0),))
    assert found.is_known
    _print(found, Owner("w"), 0)
    told = capsys.readouterr().out
    assert "orders.uk" in told
    assert "generation 3" in told
    assert "cannot be written to" not in told, "it may be the unit that the topic refuses"
    assert not InspectedGroup(0).is_known
