"""Deliveries as text beside a committed offset: steps, their bounds, and what others may have written there (W-52, W-87)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uow.client.deliveries import (
    MAX_STEPS,
    Deliveries,
    read_steps,
    write_steps,
)

FAR = 2**63


def test_steps_are_text_beside_the_offset() -> None:
    assert write_steps(()) == ""
    assert write_steps(((17, 2), (19, 1))) == "d1;17:2;19:1"
    assert read_steps("d1;17:2;19:1", FAR) == ((17, 2), (19, 1))


@pytest.mark.parametrize("metadata", [None, "", "1;F=5", "d1;", "d1;x:1", "d1;1", "d2;1:1", "d1;1:1\n", "d1;1:-1"])
def test_nobody_elses_text_is_a_count(metadata: str | None) -> None:
    assert read_steps(metadata, FAR) == ()


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=8), st.integers(0, 30))
def test_every_pass_is_counted_for_each_unit_that_it_reached(passes: list[tuple[int, int]], position: int) -> None:
    """Against a count for each unit; every pass begins where the last one was acknowledged, and hands over to the next by text."""
    begin, expected, text = 0, dict.fromkeys(range(31), 0), ""
    for reached, acknowledged in passes:
        deliveries = Deliveries(read_steps(text, FAR))
        for offset in range(begin, reached + 1):
            expected[offset] += 1
            assert deliveries.count(offset) == expected[offset]
        begin = max(begin, min(acknowledged, reached + 1))
        text = write_steps(deliveries.steps(begin))
    deliveries = Deliveries(read_steps(text, FAR))
    assert all(deliveries.of(offset) == expected[offset] for offset in range(begin, 31))


def test_a_delivery_that_was_none_is_not_counted() -> None:
    deliveries = Deliveries(((5, 1),))
    deliveries.count(3)
    deliveries.count(4)
    deliveries.undo(4)
    assert deliveries.steps(0) == ((3, 2), (5, 1))


def test_steps_are_bounded_by_the_brokers_limit() -> None:
    """The broker refuses more than 4096 bytes beside an offset; the units next to the position are the ones that matter."""
    deliveries = Deliveries()
    for last in range(10**18 + 1000, 10**18, -1):
        deliveries = Deliveries(deliveries.steps(0))
        deliveries.count(last)
    steps = deliveries.steps(0)
    assert (len(steps), steps[0]) == (MAX_STEPS, (10**18 + 1, 1000))
    assert len(write_steps(steps)) <= 4096


def test_the_worst_text_counts_nothing_that_is_not_there_and_stays_readable() -> None:
    """Whoever may commit for the group may write anything: no unit that is still to come was ever delivered."""
    worst = "d1" + ";9999999999999999999:999999999" * 100 + ";7:999999999;3:5"
    steps = read_steps(worst, end=8)
    assert steps == ((3, 5), (7, 999_999_999))
    deliveries = Deliveries(steps)
    assert (deliveries.of(8), deliveries.of(10**18)) == (0, 0)
    deliveries.count(7)
    assert read_steps(write_steps(deliveries.steps(0)), 8) == ((3, 6), (7, 999_999_999))
