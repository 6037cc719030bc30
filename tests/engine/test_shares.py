"""How many records of a partition a turn takes: a flood leaves the others their turn, and where all have much to do nothing is cut."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import pytest

from uow.processor.engine.ports import Tp
from uow.processor.engine.shares import LATELY_MS, MUCH, SHARE_S, SMALL, Shares

POLL = 5_000
RECORD_S = 0.0001
FLOOD, OTHER = Tp("D.components", 0), Tp("D.components", 1)


def tp(number: int) -> Tp:
    return Tp("D.components", number)


def after(turns: int, backlog: Mapping[int, int], record_s: float = RECORD_S, shares: Shares | None = None) -> Shares:
    """So many turns, of which each takes from every partition what it has in a poll."""
    shares = shares or Shares()
    for turn in range(turns):
        now = turn * 100
        for number, count in backlog.items():
            size = shares.size(tp(number), count, now)
            shares.took(tp(number), size, size * record_s, now)
    return shares


def test_of_a_flood_a_turn_takes_its_share_and_of_others_everything() -> None:
    shares = after(3, {0: POLL, 1: 20, 2: 5, 3: 1})
    assert shares.size(FLOOD, POLL, 300) == int(SHARE_S / RECORD_S) < POLL
    assert shares.size(FLOOD, 10, 300) == 10
    assert [shares.size(tp(number), count, 300) for number, count in ((1, 20), (2, 5), (3, 1), (4, POLL))] == [
        20,
        5,
        1,
        POLL,
    ]


@pytest.mark.parametrize("floods", [2, 3, 6, 7])
def test_several_floods_have_their_shares_each(floods: int) -> None:
    shares = after(3, {number: POLL if number < floods else 3 for number in range(8)})
    assert {shares.size(tp(number), POLL, 300) for number in range(floods)} == {int(SHARE_S / RECORD_S)}


def test_a_cheap_flood_is_taken_as_it_comes() -> None:
    shares = after(3, {0: POLL, 1: 20}, record_s=SHARE_S / POLL)
    assert shares.size(FLOOD, POLL, 300) == POLL


@pytest.mark.parametrize("partitions", [1, 2, 4, 64, 240])
def test_where_all_have_as_much_to_do_nothing_is_cut(partitions: int) -> None:
    """Also where one poll has the records of one partition, and the next one those of another."""
    shares, rnd = Shares(), Random(partitions)
    sizes = []
    for turn in range(8 * partitions):
        number, now = turn % partitions, turn * 20
        sizes.append(shares.size(tp(number), POLL, now))
        shares.took(tp(number), sizes[-1], sizes[-1] * RECORD_S * rnd.uniform(0.9, 1.1), now)
    assert set(sizes[4 * partitions :]) == {POLL}


@pytest.mark.parametrize("others", [{}, {1: 20}])
def test_after_a_silence_of_all_nothing_is_cut(others: dict[int, int]) -> None:
    shares = after(3, {0: POLL, **others})
    assert shares.size(FLOOD, POLL, 201 + LATELY_MS) == POLL


def test_nobody_else_is_waited_for_that_was_silent_for_long_or_was_taken_away() -> None:
    shares = after(3, {0: POLL, 1: 20})
    assert shares.size(FLOOD, POLL, 200 + LATELY_MS) < POLL
    shares.took(FLOOD, POLL, POLL * RECORD_S, 201 + LATELY_MS)
    assert shares.size(FLOOD, POLL, 201 + LATELY_MS) == POLL
    shares = after(3, {0: POLL, 1: 20})
    shares.forget(OTHER)
    assert shares.size(FLOOD, POLL, 300) == POLL


def test_the_time_of_a_record_follows_from_batches_that_are_large_or_long() -> None:
    shares = after(3, {0: POLL, 1: 20})
    shares.took(FLOOD, SMALL - 1, SHARE_S, 300)
    assert shares.size(FLOOD, POLL, 300) == int(SHARE_S / RECORD_S)
    shares.took(FLOOD, 1, 4 * SHARE_S, 300)
    assert shares.size(FLOOD, POLL, 300) == 1
    shares.took(FLOOD, SMALL, SMALL * RECORD_S, 300)
    assert shares.size(FLOOD, POLL, 300) == int(SHARE_S / RECORD_S)


@pytest.mark.parametrize("hiccup_s", [0.05, 0.5, 5.0])
def test_one_slow_turn_takes_a_partition_its_share_for_a_few_turns_only(hiccup_s: float) -> None:
    """A share that became small makes batches small, and these must still tell that a record takes as little as before."""
    shares, turn_s = after(3, {0: POLL, 1: 20}), 0.0005
    whole = shares.size(FLOOD, POLL, 300)
    sizes = []
    for turn in range(20):
        now = 300 + 100 * turn
        sizes.append(shares.size(FLOOD, POLL, now))
        shares.took(FLOOD, sizes[-1], turn_s + sizes[-1] * RECORD_S + (0 if turn else hiccup_s), now)
        shares.took(OTHER, 20, 20 * RECORD_S, now)
    assert sizes[0] == whole
    assert sizes[1] < whole / 2
    assert 0.9 * whole < sizes[-1] <= whole


def test_a_few_times_as_much_as_another_one_is_not_much() -> None:
    light = 500
    shares = after(1, {0: int(0.9 * MUCH * light), 1: light})
    assert shares.size(FLOOD, POLL, 0) == POLL
    shares = after(1, {0: int(1.1 * MUCH * light), 1: light})
    assert shares.size(FLOOD, POLL, 0) < POLL
