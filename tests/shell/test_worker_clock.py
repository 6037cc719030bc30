"""A worker's idea of the brokers' time, when its own clock is put forward or back (W-82, W-83)."""

from __future__ import annotations

import logging

import pytest

from uow.processor.engine.ports import Tp
from uow.processor.kafka.worker_clock import WorkerClock

BUSY, IDLE = Tp("megazon.components", 0), Tp("megazon.components", 1)
START = 1_000_000


class Machine:
    """A machine's clocks, moved by hand; they agree with the brokers' until somebody sets them."""

    def __init__(self) -> None:
        self.true, self.shift = START, 0
        self.clock = WorkerClock(lambda: self.true + self.shift, lambda: self.true - 999)

    def pass_time(self, ms: int) -> None:
        self.true += ms


def test_time_goes_by_without_any_record() -> None:
    machine = Machine()
    machine.pass_time(700)
    assert machine.clock.at(IDLE) == machine.clock.now_ms() == machine.true


def test_clock_put_forward_is_not_believed_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    machine.pass_time(700)
    machine.shift = 3_600_000
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            machine.pass_time(10)
            assert machine.clock.at(IDLE) == machine.clock.now_ms() == machine.true
    assert [record.getMessage() for record in caplog.records] == [
        "the wall clock was put forward by 3600000 ms; deadlines go on without it"
    ]


def test_clock_put_back_delays_an_idle_partition_only() -> None:
    machine = Machine()
    machine.pass_time(700)
    machine.clock.see(BUSY, machine.true - 5)
    machine.shift = -60_000
    machine.pass_time(1000)
    assert machine.clock.at(BUSY) == machine.true - 5
    assert machine.clock.at(IDLE) == machine.true - 60_000
    assert machine.clock.now_ms() == machine.true - 5, "whoever asks, asks early enough for the busy one"


def test_old_records_of_a_backlog_move_nothing_back() -> None:
    machine = Machine()
    machine.clock.see(BUSY, machine.true)
    machine.pass_time(50)
    machine.clock.see(BUSY, machine.true - 80_000)
    machine.shift = -60_000
    assert machine.clock.at(BUSY) == machine.true


def test_clock_that_was_wrong_at_the_start_and_is_put_right_is_believed_again() -> None:
    machine = Machine()
    machine.shift = 5000
    machine.clock = WorkerClock(lambda: machine.true + machine.shift, lambda: machine.true)
    machine.shift = 0
    machine.pass_time(10)
    assert machine.clock.at(IDLE) == machine.true


def test_clock_that_was_behind_at_the_start_and_is_put_right_is_believed_as_far_as_any_record_says() -> None:
    """W-83: else a partition without traffic would be late for as long as the worker lives."""
    machine = Machine()
    machine.shift = -5000
    machine.clock = WorkerClock(lambda: machine.true + machine.shift, lambda: machine.true)
    machine.clock.see(BUSY, machine.true)
    assert machine.clock.at(IDLE) == machine.true - 5000, "one broker's clock alone moves no other partition"
    machine.shift = 0
    machine.pass_time(10)
    assert machine.clock.at(IDLE) == machine.true
    machine.shift = 9000
    assert machine.clock.at(IDLE) == machine.true


def test_append_time_that_leaps_tells_no_time_and_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """Decision 17: else the partition's next tick would be an hour early."""
    machine = Machine()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            machine.clock.see(BUSY, machine.true + 3_600_000)
            assert machine.clock.at(BUSY) == machine.clock.now_ms() == machine.true
    (said,) = caplog.records
    assert "megazon.components/0: an append time is 3600000 ms ahead of this machine's clock" in said.getMessage()


def test_clock_that_is_put_back_does_not_make_brokers_liars() -> None:
    machine = Machine()
    machine.shift = -3_600_000
    assert machine.clock.latest_ms() == machine.true + 60_000
    machine.clock.see(BUSY, machine.true)
    assert machine.clock.at(BUSY) == machine.true
