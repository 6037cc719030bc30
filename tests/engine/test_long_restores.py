"""Restores outside of the rebalance callback: the group is served meanwhile, and what it says is heard (ER-08, ER-17)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence

import pytest

from tests.core.streams import context_of, policy_of
from tests.shell.memory_kafka import (
    ManualClock,
    MemoryKafka,
    MemorySink,
    MemorySource,
)
from uow.processor.engine.batch import Batch, Task
from uow.processor.engine.driver import Driver
from uow.processor.engine.driver_ports import Ports, Wanted
from uow.processor.engine.ports import (
    Blocked,
    Doubt,
    Plan,
    Tp,
)
from uow.processor.engine.task import PartitionTask
from uow.processor.sim.simulated_kafka import Member
from uow.schemas.error_classes import StateCorruptedError

P0, P1 = Tp("D.components", 0), Tp("D.components", 1)


class Watched(MemorySource):
    """Counts how often the group is served, and what begins."""

    served = 0
    began: Mapping[Tp, int] = {}

    def control(self, timeout: float) -> None:
        self.served += 1
        super().control(timeout)

    def begin(self, positions: Mapping[Tp, int]) -> None:
        self.began = {**self.began, **positions}
        super().begin(positions)


class RestoringDriver:
    """A driver on Kafka in memory whose restores are plays: each is given what it may do between two requests.

    It is stopped when the script of restores is at its end and what they restored was adopted.
    """

    def __init__(
        self, *plays: Callable[[RestoringDriver, Sequence[Tp], Wanted], None], source: type[Watched] = Watched
    ) -> None:
        self.kafka = MemoryKafka()
        self.source = source(self.kafka, "a")
        self.plays = [*plays]
        self.restored: list[list[int]] = []
        self.adopted: list[list[int]] = []
        self.refused: list[tuple[int, str]] = []
        self.error: BaseException | None = None
        self.stop = threading.Event()
        ports = Ports(self.source, MemorySink(self.kafka, "A-worker-a"), ManualClock(), self._restore)
        self.driver = Driver(ports, self, {"D.components": "D.commands"}, 100, 1 << 30, self.stop)

    def run(self) -> RestoringDriver:
        self.driver.run()
        if self.error is not None:
            raise self.error
        return self

    def _restore(self, tps: Sequence[Tp], wanted: Wanted) -> Mapping[Tp, Task]:
        self.restored.append([tp.partition for tp in tps])
        play = self.plays.pop(0)
        play(self, tps, wanted)
        return {tp: PartitionTask(tp, context_of(policy_of())) for tp in tps}

    def join(self) -> Member:
        """Another member of the group; it gets partition 1 once we let go of it."""
        return self.kafka.join("b", ["D.components"])

    # -- TaskRunner

    def assigned(self, tasks: Mapping[Tp, Task]) -> None:
        self.adopted.append([tp.partition for tp in tasks])
        if not self.plays:
            self.stop.set()

    def blocked(self, tp: Tp, cause: Blocked) -> None:
        self.refused.append((tp.partition, str(cause)))

    def finished(self, error: BaseException | None) -> None:
        self.error = error

    def unblocked(self, tp: Tp) -> None: ...
    def process(self, batches: Sequence[Batch]) -> None: ...
    def revoked(self, tps: Sequence[Tp]) -> None: ...
    def committed(self, plans: Sequence[Plan]) -> None: ...
    def paused(self, tps: Collection[Tp]) -> None: ...
    def doubted(self, doubt: Doubt) -> None: ...


def in_peace(world: RestoringDriver, tps: Sequence[Tp], wanted: Wanted) -> None:
    assert list(wanted()) == list(tps)


def test_group_is_served_between_any_two_requests_of_a_restore_and_nothing_is_read_before_its_end() -> None:
    """ER-17."""

    def long(world: RestoringDriver, tps: Sequence[Tp], wanted: Wanted) -> None:
        before = world.source.served
        for _ in range(50):
            assert list(wanted()) == [P0, P1]
            assert not world.source.position
        assert world.source.served == before + 50

    world = RestoringDriver(long).run()
    assert world.restored == world.adopted == [[0, 1]]
    assert world.source.began.keys() == {P0, P1, Tp("D.commands", 0), Tp("D.commands", 1)}


def test_partition_that_goes_during_a_restore_is_dropped_and_the_others_are_kept() -> None:
    """ER-08: what is restored already is not restored again."""

    def overtaken(world: RestoringDriver, tps: Sequence[Tp], wanted: Wanted) -> None:
        world.join()
        assert list(wanted()) == [P0]

    world = RestoringDriver(overtaken).run()
    assert world.restored == [[0, 1]]
    assert world.adopted == [[0]]
    assert P1 not in world.source.began


def test_restore_that_nobody_wants_any_more_ends_at_once() -> None:
    """ER-08: lost with the session; on the way back it begins anew."""
    ended = []

    def lost(world: RestoringDriver, tps: Sequence[Tp], wanted: Wanted) -> None:
        world.kafka.expire("a")
        try:
            wanted()
        except BaseException:
            ended.append(True)
            raise

    world = RestoringDriver(lost, in_peace).run()
    assert ended
    assert world.restored == [[0, 1], [0, 1]]
    assert world.adopted == [[], [0, 1]]


def test_partition_that_goes_and_comes_back_during_a_restore_is_restored_again() -> None:
    """ER-08: somebody else may have committed there meanwhile."""

    def away_and_back(world: RestoringDriver, tps: Sequence[Tp], wanted: Wanted) -> None:
        other = world.join()
        assert list(wanted()) == [P0]
        world.kafka.leave(other)
        assert list(wanted()) == [P0]

    def back(world: RestoringDriver, tps: Sequence[Tp], wanted: Wanted) -> None:
        assert world.source.paused == {P0, Tp("D.commands", 0)}, "polls give no records meanwhile"

    world = RestoringDriver(away_and_back, back).run()
    assert not world.source.paused
    assert world.restored == [[0, 1], [1]]
    assert world.adopted == [[0], [1]]


def test_partition_that_went_is_not_blocked_for_what_its_restore_said() -> None:
    def overtaken(world: RestoringDriver, tps: Sequence[Tp], wanted: Wanted) -> None:
        world.join()
        wanted()
        raise StateCorruptedError([P0, P1], "somebody commits", "")

    def corrupted(world: RestoringDriver, tps: Sequence[Tp], wanted: Wanted) -> None:
        raise StateCorruptedError(tps, "no sense in it", "begin anew")

    world = RestoringDriver(overtaken, in_peace, corrupted).run()
    assert world.restored == [[0, 1], [0], [1]]
    assert world.adopted == [[0]]
    assert not world.refused


def test_stop_is_heard_in_the_middle_of_a_restore() -> None:
    """R-68: the worker leaves in order."""

    def stopped(world: RestoringDriver, tps: Sequence[Tp], wanted: Wanted) -> None:
        world.stop.set()
        wanted()
        pytest.fail("the restore went on")

    world = RestoringDriver(stopped).run()
    assert world.adopted == []
    assert not world.kafka.members


def test_assignment_that_comes_along_with_the_leaving_is_not_restored() -> None:
    """R-68."""

    class Late(Watched):
        def close(self) -> None:
            self._on_assign([P1])
            super().close()

    world = RestoringDriver(in_peace, source=Late).run()
    assert world.restored == [[0, 1]]
