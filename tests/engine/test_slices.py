"""A task that is fed a poll in slices makes the plan of the whole poll (ER-01), whatever the slices are."""

from __future__ import annotations

from random import Random

import pytest

from tests.core.script import c
from tests.core.streams import TP, Tick, call, draw_policy, draw_stream, new_task, polls, state_of
from tests.fake_record import FakeRecord
from uow.processor.engine.batch import SLICE, Batch


@pytest.mark.parametrize("seed", range(60))
def test_slices_change_neither_plan_nor_state(seed: int) -> None:
    rnd = Random(seed)
    policy = draw_policy(rnd)
    whole, sliced = new_task(policy), new_task(policy)
    for one in polls(rnd, draw_stream(rnd, 120), longest=40):
        plan = call(whole, one)
        if isinstance(one, Tick):
            assert sliced.tick(one.now_ms) == plan
            continue
        batch = Batch(TP, records=list(one))
        with batch:
            batch.apply(sliced, rnd.choice([1, 3, 10]))
        assert batch.outcome == plan
        assert state_of(sliced) == state_of(whole)


def test_a_record_is_let_go_of_before_the_next_slice_is_read() -> None:
    """Only then is its memory free for that slice; what a batch says of its records stays."""
    records = [FakeRecord(at, c(1, id=str(at)).headers, b"v") for at in range(SLICE + 2)]
    batch = Batch(TP, records=list(records))
    with batch:
        batch.apply(new_task(draw_policy(Random(0))))
    assert batch.records == records[SLICE:]
    assert (batch.count, batch.last_offset) == (SLICE + 2, SLICE + 1)
