"""Blocked partitions: when they are tried again, and which upkeep they need (EN-08)."""

from __future__ import annotations

import pytest

from uow.processor.engine.ports import Blocked, Tp
from uow.processor.engine.quarantine import RETRY_MS, Quarantine

P0, P1 = Tp("D.components", 0), Tp("D.components", 1)


def test_tries_become_seldom_and_start_anew_once_it_went_on() -> None:
    quarantine, now = Quarantine(), 0
    for wait in [*RETRY_MS, RETRY_MS[-1]]:
        quarantine.block(P0, Blocked("why"), now)
        assert P0 in quarantine
        assert not quarantine.recovered(P0)
        assert quarantine.take_due(now + wait - 1) == []
        now += wait
        assert quarantine.take_due(now) == [P0]
        assert P0 not in quarantine
        assert quarantine.take_due(now) == []
    assert quarantine.recovered(P0)
    assert not quarantine.recovered(P0)
    quarantine.block(P0, Blocked("why"), now)
    assert quarantine.take_due(now + RETRY_MS[0]) == [P0]


@pytest.mark.parametrize("forget", [True, False])
def test_upkeep_is_returned_once_and_gone_with_its_partition(forget: bool) -> None:
    quarantine = Quarantine()
    quarantine.block(P0, Blocked("why"), 0)
    quarantine.stopped_at(P0, 17)
    if forget:
        quarantine.forget(P0)
    assert quarantine.needs_upkeep is not forget
    assert (quarantine.take_unsaved(), quarantine.take_ticks()) == (([], {}) if forget else ([P0], {P0: 17}))
    assert (quarantine.take_unsaved(), quarantine.take_ticks()) == ([], {})
    assert not quarantine.needs_upkeep


def test_deadlines_wait_where_the_append_time_is_unknown() -> None:
    quarantine = Quarantine()
    quarantine.block(P0, Blocked("why"), 0)
    quarantine.stopped_at(P0, 0)
    assert quarantine.needs_upkeep
    assert (quarantine.take_unsaved(), quarantine.take_ticks()) == ([P0], {})


def test_a_tick_that_was_put_off_comes_again_until_the_partition_is_tried() -> None:
    quarantine = Quarantine()
    quarantine.block(P0, Blocked("why"), 0)
    quarantine.block(P1, Blocked("why"), 500)
    for tp in (P0, P1):
        quarantine.tick_later(tp, 17)
    assert quarantine.take_due(RETRY_MS[0]) == [P0]
    assert quarantine.take_ticks() == {P1: 17}


def test_a_partition_under_a_try_is_not_saved() -> None:
    """Its task reads on, and its plans save what it holds."""
    quarantine = Quarantine()
    quarantine.block(P0, Blocked("why"), 0)
    quarantine.stopped_at(P0, 17)
    assert quarantine.take_due(RETRY_MS[0]) == [P0]
    assert quarantine.take_unsaved() == []
