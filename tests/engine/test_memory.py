"""What open groups cost in memory: the estimate that `memory_limit_bytes` is compared with, and numbers that must cost nothing (ER-19)."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from processor.engine.task import PartitionTask
from processor.engine.young import NO_REPLAY, ReplayLimits
from tests.core.script import INPUT, FakeRecord, Story, c, context_of, policy_of
from topics.policies import ExpirationPolicy

GROUPS = 5_000


@contextmanager
def traced() -> Iterator[list[int]]:
    """(bytes left, bytes at the peak) of what is allocated inside."""
    found: list[int] = []
    gc.collect()
    tracemalloc.start()
    try:
        yield found
        gc.collect()
        found += tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("replay", [NO_REPLAY, ReplayLimits(100_000, 1 << 26, 60_000)], ids=["changelog", "replay"])
@pytest.mark.parametrize("age", [-1, 10_000_000])
@pytest.mark.parametrize("components", [1, 4, 50])
def test_estimate_is_what_groups_take(components: int, age: int, replay: ReplayLimits) -> None:
    """A million groups of one small component are ten times their bytes."""
    task = PartitionTask(INPUT, context_of(policy_of(incomplete_expiration_ms=age), replay=replay))
    groups = GROUPS // components
    with traced() as found:
        for group in range(groups):
            key = b"group-%06d" % group
            said = [
                [("uow-id", key), ("uow-seq", b"%d" % (seq + 1)), ("uow-end", b"false")] for seq in range(components)
            ]
            first = group * components
            task.process([FakeRecord(first + n, each, b"v" * 20, key, 1_000, INPUT) for n, each in enumerate(said)])
    assert len(task.groups) == groups
    assert 0.6 < found[0] / task.memory_bytes < 1.4, f"{found[0] / groups:.0f} bytes a group"


@pytest.mark.parametrize("policy", [ExpirationPolicy.REDIRECT, ExpirationPolicy.DELIVER_PARTIAL])
def test_one_component_of_the_highest_number_costs_no_more_than_any_other(policy: ExpirationPolicy) -> None:
    """W-20: held, an end above it refused, given up with its missing numbers told."""
    story = Story(PartitionTask(INPUT, context_of(policy_of(incomplete_expiration_ms=1_000, expiration_policy=policy))))
    with traced() as found:
        story.send(c(2_147_483_647, end=True, at=0), c(2_147_483_646, at=1))
        outputs = story.send(c(1, id="b", at=100))
        assert outputs
    assert not story.task.groups.keys() - {b"b"}
    assert found[1] < 200_000
