"""One partition that cannot be restored does not keep the others from working (EN-08)."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest

from tests.core.streams import context_of, policy_of
from uow.processor.engine.batch import Task
from uow.processor.engine.driver_ports import Wanted
from uow.processor.engine.isolated_restore import restore_isolated
from uow.processor.engine.ports import Blocked, Doubt, Stopped, Tp
from uow.processor.engine.task import PartitionTask
from uow.schemas.error_classes import ConfigError, FencedError, StateCorruptedError

TPS = [Tp("D.components", number) for number in range(3)]


class Row:
    """Something that a restore reads."""


def restoring(fails: Callable[[Tp], Exception | None], asked: list[list[int]]) -> Callable[..., Mapping[Tp, Task]]:
    """A restore that fails if any of its partitions does, and serves the group once."""

    def restore(tps: Sequence[Tp], wanted: Wanted) -> Mapping[Tp, Task]:
        asked.append([tp.partition for tp in tps])
        for tp in wanted():
            error = fails(tp)
            if error is not None:
                raise error
        return {tp: PartitionTask(tp, context_of(policy_of())) for tp in tps}

    return restore


def test_all_are_restored_together() -> None:
    asked: list[list[int]] = []
    restored = dict(restore_isolated(restoring(lambda tp: None, asked), TPS, lambda tps: tps))
    assert asked == [[0, 1, 2]]
    assert [*restored] == TPS


def test_where_one_fails_each_is_restored_by_itself_in_order() -> None:
    asked: list[list[int]] = []
    fails = restoring(lambda tp: LookupError("the disk") if tp.partition == 1 else None, asked)
    restored = dict(restore_isolated(fails, TPS, lambda tps: tps))
    assert asked == [[0, 1, 2], [0], [1], [2]]
    assert [*restored] == TPS
    cause = restored.pop(TPS[1])
    assert str(cause) == "cannot be restored: LookupError: the disk"
    assert isinstance(cause, Blocked)
    assert isinstance(cause.__cause__, LookupError)
    assert not any(isinstance(each, Blocked) for each in restored.values())


def test_the_next_partition_is_restored_after_the_caller_has_dealt_with_the_last() -> None:
    asked: list[list[int]] = []
    results = restore_isolated(restoring(lambda tp: LookupError("the disk"), asked), TPS, lambda tps: tps)
    assert next(results)[0] == TPS[0]
    assert asked == [[0, 1, 2], [0]]


@pytest.fixture
def no_collector() -> Iterator[None]:
    """As in a worker: the collector is off while it works."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
def test_what_a_failed_restore_had_read_is_freed_at_once() -> None:
    read: weakref.WeakSet[Row] = weakref.WeakSet()
    left: list[int] = []

    def restore(tps: Sequence[Tp], wanted: Wanted) -> Mapping[Tp, Task]:
        left.append(len(read))
        rows = [Row() for _ in tps]
        read.update(rows)
        try:
            parse(rows)
        except LookupError as error:
            raise ValueError("a row") from error

    def parse(rows: Sequence[Row]) -> None:
        raise LookupError(f"row {len(rows)}")

    results = dict(restore_isolated(restore, TPS, lambda tps: tps))
    assert left == [0, 0, 0, 0]
    assert len(read) == 0
    assert all(isinstance(each, Blocked) and each.__cause__ is not None for each in results.values())


def test_a_reason_to_block_is_passed_on_as_it_is() -> None:
    why = Blocked("the log is gone")
    assert list(restore_isolated(restoring(lambda tp: why, []), TPS[:1], lambda tps: tps)) == [(TPS[0], why)]


def test_a_restore_of_which_every_partition_was_taken_away_ends_without_a_result() -> None:
    asked: list[list[int]] = []
    fails = restoring(lambda tp: StateCorruptedError([tp], "others commit", ""), asked)
    refused = [tp for tp, _ in restore_isolated(fails, TPS, lambda tps: [tp for tp in tps if tp == TPS[1]])]
    assert refused == [TPS[1]]
    assert asked == [[0, 1, 2], [0], [1], [2]]
    assert list(restore_isolated(fails, TPS, lambda tps: [])) == []
    assert list(restore_isolated(fails, [], lambda tps: tps)) == []


@pytest.mark.parametrize("error", [Stopped(), Doubt(), FencedError("by another"), ConfigError("x", "y", "z")])
def test_what_concerns_the_whole_worker_is_raised(error: Exception) -> None:
    with pytest.raises(type(error)):
        list(restore_isolated(restoring(lambda tp: error, []), TPS, lambda tps: tps))
