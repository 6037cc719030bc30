"""Polls are halved until the record that cannot be processed stands alone (ER-03)."""

from __future__ import annotations

import pytest

from uow.processor.engine.portions import Portions
from uow.processor.engine.ports import Tp

TP = Tp("D.components", 0)


@pytest.mark.parametrize("bad", range(10))
def test_halving_ends_with_the_bad_record_alone_and_all_before_it_written(bad: int) -> None:
    portions, position, tried = Portions(), 0, []
    for _ in range(20):
        batch = range(position, 10)[: portions.size(TP, 10 - position)]
        tried.append(len(batch))
        if bad not in batch:
            position = batch[-1] + 1
            portions.passed(TP, position)
        elif len(batch) > 1:
            portions.halve(TP, batch[-1], len(batch))
        else:
            break
    assert position == bad
    assert tried[-1] == 1


def test_the_limit_holds_until_the_whole_batch_that_failed_is_behind() -> None:
    portions = Portions()
    portions.halve(TP, 9, 10)
    portions.passed(TP, 5)
    assert portions.size(TP, 100) == 5
    portions.passed(TP, 9)
    assert TP in portions
    portions.passed(TP, 10)
    assert TP not in portions
    assert portions.size(TP, 100) == 100


def test_a_refused_plan_is_halved_from_the_size_of_a_poll_and_then_from_the_last_portion() -> None:
    portions, sizes = Portions(), []
    while portions.halve_again(TP, position=50, command_position=0, poll_records=100):
        sizes.append(portions.size(TP, 1_000))
    assert sizes == [50, 25, 12, 6, 3, 1]
    portions.passed(TP, 49)
    assert TP in portions
    portions.passed(TP, 50)
    assert TP not in portions


def test_a_retry_takes_one_record() -> None:
    portions = Portions()
    portions.single(TP, 7)
    assert portions.size(TP, 100) == 1
    assert not portions.halve_again(TP, 8, 0, 100)
    assert portions.size(TP, 100) == 1
    portions.passed(TP, 8)
    assert TP not in portions


def test_a_blocked_partition_has_no_limit_any_more() -> None:
    portions = Portions()
    portions.single(TP, 7)
    portions.forget(TP)
    assert TP not in portions


def test_a_command_of_what_failed_stands_alone_until_it_is_behind() -> None:
    portions = Portions()
    assert portions.halve_again(TP, position=8, command_position=3, poll_records=100)
    portions.passed(TP, 7, 1)
    assert portions.size(TP, 100) == 50
    portions.passed(TP, 8, 2)
    assert (TP in portions, portions.size(TP, 100)) == (True, 100)
    portions.halve(TP, 20, 10)  # of the next records one is at fault
    portions.single(TP, 17)
    portions.passed(TP, 18, 2)
    assert portions.halve_again(TP, position=30, command_position=2, poll_records=100)
    assert portions.size(TP, 100) == 50
    portions.passed(TP, 30, 3)
    assert TP not in portions


def test_one_command_limits_no_records() -> None:
    portions = Portions()
    portions.single_command(TP, 4)
    assert (TP in portions, portions.size(TP, 100)) == (True, 100)
    portions.passed(TP, 200, 4)
    assert TP in portions
    portions.passed(TP, 200, 5)
    assert TP not in portions
