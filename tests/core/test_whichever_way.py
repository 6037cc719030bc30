"""One meaning, whichever way: drawn streams of everything that the wire allows come to the same bytes in bulk, one by one, in cut plans, with restarts, and replayed.

For longer: `make drill`, or `UOW_WAYS_SECONDS=600 pytest -m drill tests/core/test_whichever_way.py`; `UOW_WAYS_SEED` is the first seed. What differs is shown
as its smallest stream.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator

import pytest

from tests.core.drawn import Stream, draw
from tests.core.ways import difference, smallest

SECONDS = float(os.environ.get("UOW_WAYS_SECONDS", "300"))
FIRST_SEED = int(os.environ.get("UOW_WAYS_SEED", time.time_ns() // 1_000_000 % 1_000_000_000))


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def assert_one_meaning(seed: int) -> None:
    stream = draw(seed)
    if difference(stream) is not None:
        pytest.fail(f"seed {seed}: {told(smallest(stream))}", pytrace=False)


def told(stream: Stream) -> str:
    """A stream for people."""
    parts = [f"{difference(stream)}", f"{stream.policy}", *map(str, stream.rows), *map(str, stream.events)]
    return "\n  ".join(parts)


@pytest.mark.parametrize("first", range(0, 60, 15))
def test_whichever_way_a_stream_is_played_it_comes_to_the_same(first: int) -> None:
    for seed in range(first, first + 15):
        assert_one_meaning(seed)


@pytest.mark.drill
@pytest.mark.timeout(SECONDS + 600)
def test_whichever_way_streams_are_played_for_minutes_they_come_to_the_same() -> None:
    until, seed = time.monotonic() + SECONDS, FIRST_SEED
    while time.monotonic() < until:
        assert_one_meaning(seed)
        seed += 1
    print(f"seeds {FIRST_SEED} to {seed - 1}")
