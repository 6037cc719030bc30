"""The fast path and the decision table are one: the same stream, in bulk and row by row, in one poll or cut anywhere, comes to the same.

What is compared: open groups, memory of closed ones, clock, position, counts, held bytes, and everything put out, byte for byte.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.streams import World, call, draw_policy, draw_stream, new_task, polls, state_of


def lived(task: Any, calls: Any) -> tuple[dict[str, Any], dict[str, Any], Any]:
    world = World()
    for one in calls:
        world.add(call(task, one))
    return state_of(task), world.seen(), task.counts


def assert_one_rule(rnd: Random, length: int, ids: int, longest: int) -> None:
    policy = draw_policy(rnd)
    events = draw_stream(rnd, length, ids)
    in_bulk = lived(new_task(policy), polls(rnd, events, 1 << 30))
    for fast_path, cut in ((False, 1 << 30), (True, longest), (False, longest), (True, 1)):
        state, seen, counts = lived(new_task(policy, fast_path=fast_path), polls(rnd, events, cut))
        for part, value in seen.items():
            assert value == in_bulk[1][part], (part, fast_path, cut, policy)
        for part, value in state.items():
            if part == "groups":
                value, expected = (
                    {k: v[:-1] for k, v in value.items()},
                    {k: v[:-1] for k, v in in_bulk[0][part].items()},
                )
                assert value == expected, (part, fast_path, cut, policy)
            else:
                assert value == in_bulk[0][part], (part, fast_path, cut, policy)
        assert counts == in_bulk[2], (fast_path, cut, policy)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 80), st.integers(1, 5))
def test_bulk_and_row_by_row_agree_on_short_streams_w38_w216(seed: int, length: int, ids: int) -> None:
    assert_one_rule(Random(seed), length, ids, 8)


@pytest.mark.parametrize("seed", range(12))
def test_bulk_and_row_by_row_agree_on_long_streams_w38_w216(seed: int) -> None:
    rnd = Random(seed)
    assert_one_rule(rnd, 400, rnd.choice([3, 12, 60, 400]), 50)
