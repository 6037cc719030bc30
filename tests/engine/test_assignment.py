"""Assigned partitions, until they are restored and read (ER-08)."""

from __future__ import annotations

from uow.processor.engine.assignment import LOOK_AGAIN_MS, SOON_MS, Assignment
from uow.processor.engine.ports import Tp

P0, P1 = Tp("D.components", 0), Tp("D.components", 1)


def test_every_assignment_is_due_once_also_one_without_partitions() -> None:
    """A spare worker is announced as well."""
    assignment = Assignment()
    assert not assignment.is_due(0)
    assignment.assign([])
    assert assignment.is_due(0)
    assignment.announce(0)
    assert not assignment.is_due(10**9)


def test_pending_partitions_are_looked_at_again_later_the_longer_it_took() -> None:
    assignment = Assignment()
    assignment.assign([P0])
    assignment.announce(1_000 - SOON_MS)
    assignment.looked(1_000, 1_001)
    assert not assignment.is_due(1_000 + LOOK_AGAIN_MS)
    assert assignment.is_due(1_001 + LOOK_AGAIN_MS)
    assignment.looked(2_000, 3_000)
    assert not assignment.is_due(7_999)
    assert assignment.is_due(8_000)
    assignment.assign([])
    assert assignment.is_due(3_000), "a rebalance is not put off"


def test_behind_an_assignment_partitions_are_looked_at_in_each_turn_for_brokers_answer_soon() -> None:
    assignment = Assignment()
    assignment.assign([P0])
    assignment.announce(1_000)
    for now in (1_000, 1_010, 999 + SOON_MS):
        assignment.looked(now, now)
        assert assignment.is_due(now)
        assert assignment.is_soon(now)
    assignment.looked(1_000 + SOON_MS, 1_000 + SOON_MS)
    assert not assignment.is_due(1_000 + SOON_MS)


def test_a_partition_is_unrestored_until_it_is_dealt_with_once_and_not_while_it_is_tried_again() -> None:
    assignment = Assignment()
    assignment.assign([P0, P1])
    assert assignment.unrestored == {P0, P1}
    assignment.begin_restore()
    assignment.end_restore([P0])
    assert assignment.unrestored == {P1}
    assignment.revoke([P1])
    assert not assignment.unrestored
    assignment.retry(P0)
    assert not assignment.unrestored


def test_restored_partitions_are_pending_no_longer() -> None:
    assignment = Assignment()
    assignment.assign([P0, P1])
    assignment.begin_restore()
    assignment.end_restore([P1])
    assert assignment.pending == {P0}


def test_partition_that_goes_and_comes_back_during_a_restore_stays_pending() -> None:
    assignment = Assignment()
    assignment.assign([P0, P1])
    assignment.begin_restore()
    assert assignment.wanted([P0, P1]) == [P0, P1]
    assignment.revoke([P1])
    assignment.assign([P1])
    assert assignment.wanted([P0, P1]) == [P0]
    assignment.end_restore([P0, P1])
    assert assignment.pending == {P1}
    assignment.begin_restore()
    assert assignment.wanted([P1]) == [P1]


def test_a_partition_that_goes_before_its_restore_is_pending_no_longer() -> None:
    assignment = Assignment()
    assignment.assign([P0, P1])
    assignment.revoke([P0])
    assert assignment.pending == {P1}


def test_a_partition_is_begun_until_it_is_revoked() -> None:
    assignment = Assignment()
    assignment.assign([P0, P1])
    assignment.begin([P0, P1])
    assignment.revoke([P1])
    assert (assignment.is_begun(P0), assignment.is_begun(P1)) == (True, False)
    assert assignment.rebalances == 2


def test_partition_to_be_restored_anew_is_pending_without_a_rebalance() -> None:
    assignment = Assignment()
    assignment.retry(P0)
    assert (assignment.pending, assignment.rebalances, assignment.is_due(0)) == ({P0}, 0, True)
