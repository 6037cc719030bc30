"""Partitions of one worker: what is fetched, and what the runner hears, as they are assigned, restored, paused, blocked and revoked."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.core.script import c
from tests.core.streams import context_of, policy_of
from tests.fake_record import FakeRecord
from uow.processor.engine.assignment import LOOK_AGAIN_MS, SOON_MS
from uow.processor.engine.batch import Task
from uow.processor.engine.driver_ports import Ports
from uow.processor.engine.input_topics import InputTopics
from uow.processor.engine.memory_limit import PauseDecision, RestoreRoom
from uow.processor.engine.owned_partitions import OwnedPartitions
from uow.processor.engine.ports import Blocked, Doubt, Tp
from uow.processor.engine.quarantine import RETRY_MS
from uow.processor.engine.task import PartitionTask
from uow.schemas.error_classes import InvariantViolation

P0, P1 = Tp("D.components", 0), Tp("D.components", 1)
C0, C1 = Tp("D.commands", 0), Tp("D.commands", 1)


@dataclass
class OwningWorker:
    """A source that fetches what it is told, a runner that notes what it hears, a clock and a restore."""

    fetched: set[Tp] = field(default_factory=set)
    sought: dict[Tp, int] = field(default_factory=dict)
    heard: list[Any] = field(default_factory=list)
    restored: list[list[int]] = field(default_factory=list)
    broken: set[Tp] = field(default_factory=set)
    unready: set[Tp] = field(default_factory=set)
    fetched_in_restore: set[Tp] = field(default_factory=set)
    room: RestoreRoom = field(default_factory=RestoreRoom)
    held_in_restore: list[dict[Tp, int]] = field(default_factory=list)
    states: list[weakref.ref[Any]] = field(default_factory=list)
    states_in_restore: int = 0
    now: int = 0

    def __post_init__(self) -> None:
        this: Any = self
        ready = lambda tps: [tp for tp in tps if tp not in self.unready]  # noqa: E731
        ports = Ports(this, this, this, self.restore, ready=ready, room=self.room)
        self.owned = OwnedPartitions(ports, this, InputTopics({"D.components": "D.commands"}), lambda: None)

    def restore(self, tps: Sequence[Tp], wanted: Any) -> Mapping[Tp, Task]:
        self.restored.append([tp.partition for tp in tps])
        self.fetched_in_restore |= self.fetched
        self.held_in_restore.append(dict(self.room.taken))
        self.states_in_restore = sum(each() is not None for each in self.states)
        if self.broken.intersection(wanted()):
            raise LookupError("the disk")
        tasks = {tp: PartitionTask(tp, context_of(policy_of())) for tp in tps}
        for task in tasks.values():
            task.restore(7, 0, (), 0)
            self.states.append(weakref.ref(task.partition))
        return tasks

    def monotonic_ms(self) -> int:
        return self.now

    def begin(self, positions: Mapping[Tp, int]) -> None:
        self.fetched |= positions.keys()

    def seek(self, positions: Mapping[Tp, int]) -> None:
        self.sought.update(positions)

    def pause(self, tps: Sequence[Tp]) -> None:
        self.fetched -= set(tps)

    def resume(self, tps: Sequence[Tp]) -> None:
        self.fetched |= set(tps)

    def assigned(self, tasks: Mapping[Tp, Task]) -> None:
        self.heard.append(("assigned", [tp.partition for tp in tasks]))

    def revoked(self, tps: Sequence[Tp]) -> None:
        self.heard.append(("revoked", [tp.partition for tp in tps]))

    def blocked(self, tp: Tp, cause: Blocked) -> None:
        self.heard.append(("blocked", tp.partition))

    def unblocked(self, tp: Tp) -> None:
        self.heard.append(("unblocked", tp.partition))

    def paused(self, tps: Collection[Tp]) -> None:
        self.heard.append(("paused", sorted(tp.partition for tp in tps)))

    def take_heard(self) -> list[Any]:
        heard, self.heard = self.heard, []
        return heard


@pytest.fixture
def worker() -> OwningWorker:
    """It owns two partitions and reads them."""
    worker = OwningWorker()
    worker.owned.assign([P1, P0])
    worker.owned.restore_assigned()
    assert worker.take_heard() == [("assigned", [0, 1])]
    assert worker.fetched == {P0, P1, C0, C1}
    return worker


def test_an_assignment_is_restored_once_and_a_spare_is_announced() -> None:
    worker = OwningWorker()
    worker.owned.restore_assigned()
    assert worker.take_heard() == []
    worker.owned.assign([])
    for _ in range(2):
        worker.owned.restore_assigned()
    assert worker.take_heard() == [("assigned", [])]
    assert worker.restored == []


def test_what_would_wait_for_others_is_looked_at_again_later_and_the_others_are_read() -> None:
    worker = OwningWorker(unready={P1})
    worker.owned.assign([P0, P1])
    worker.owned.restore_assigned()
    assert (worker.restored, worker.fetched, worker.owned.unrestored) == ([[0]], {P0, C0}, 1)
    worker.now += SOON_MS
    worker.owned.restore_assigned()
    worker.unready.clear()
    worker.now += LOOK_AGAIN_MS - 1
    worker.owned.restore_assigned()
    assert worker.restored == [[0]]
    worker.now += 1
    worker.owned.restore_assigned()
    assert (worker.restored, worker.fetched) == ([[0], [1]], {P0, C0, P1, C1})
    assert worker.owned.unrestored == 0


def test_nothing_is_fetched_during_a_restore_and_afterwards_what_was_fetched_before(worker: OwningWorker) -> None:
    worker.owned.block(P1, Blocked("why"))
    worker.owned.restore_again([P0])
    assert not worker.fetched_in_restore
    assert worker.fetched == {P0, C0, C1}
    assert worker.sought == {P0: 7, C0: 0}


def open_groups(task: Any, count: int) -> None:
    """One component in each, and one delivered unit."""
    rows = [FakeRecord(7 + number, c(1, id=f"g{number}").headers, b"v", None, 0, task.tp) for number in range(count)]
    end = c(1, id="whole", end=True).headers
    task.process([*rows, FakeRecord(7 + count, end, b"v", None, 0, task.tp)])


def test_a_state_that_is_useless_is_gone_before_it_is_restored_while_the_cyclic_collector_is_off(
    worker: OwningWorker,
) -> None:
    """Both stood in memory beside each other, and a container of the documented size was killed at the first broken connection."""
    for task in worker.owned.tasks.values():
        open_groups(task, 20)
    old = worker.owned.tasks[P0]
    gc.collect()
    gc.disable()
    try:
        worker.owned.restore_again([P0, P1])
    finally:
        gc.enable()
    assert worker.states_in_restore == 0
    assert worker.held_in_restore[-1] == {P0: 0, P1: 0}
    assert worker.owned.tasks[P0] is not old
    assert (old.has_let_go, old.memory_bytes, old.position) == (True, 0, 28)
    with pytest.raises(InvariantViolation, match="let go"):
        old.process([])


def test_who_looks_while_a_state_is_let_go_sees_its_position_or_the_same_of_none(worker: OwningWorker) -> None:
    """Pages and metrics are of another thread: a position of 0 would be a partition that has lost everything."""
    task: Any = worker.owned.tasks[P0]
    open_groups(task, 3)
    seen = []

    class Looking(type(task)):  # type: ignore[misc]
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value)
            seen.append((self.position, self.clock))

    before = task.position, task.clock
    task.__class__ = Looking
    task.let_go()
    assert set(seen) == {before}
    assert not task.groups


def test_a_partition_whose_restore_meets_a_doubt_is_restored_the_next_time(worker: OwningWorker) -> None:
    """Its task has let go of its state, and is not used in between."""

    def seek(positions: Mapping[Tp, int]) -> None:
        raise Doubt("it cannot be set back")

    right, worker.seek = worker.seek, seek  # type: ignore[method-assign]
    with pytest.raises(Doubt):
        worker.owned.restore_again([P0])
    worker.seek = right  # type: ignore[method-assign]
    worker.owned.restore_again([*worker.owned.tasks])
    assert worker.restored == [[0, 1], [0], [0, 1]]
    assert not any(task.has_let_go for task in worker.owned.tasks.values())


def test_a_revoked_partition_is_forgotten_with_its_commands(worker: OwningWorker) -> None:
    assert worker.owned.revoke([P0]) == [P0, C0]
    assert worker.owned.tasks.keys() == {P1}
    assert worker.take_heard() == [("revoked", [0])]


def test_a_paused_partition_stays_paused_over_a_restore_and_is_reported_when_it_goes(worker: OwningWorker) -> None:
    worker.owned.pause_or_resume(PauseDecision(pause=P0))
    assert worker.fetched == {P1, C0, C1}, "its commands may free memory"
    worker.owned.restore_again([P0, P1])
    assert worker.fetched == {P1, C0, C1}
    worker.take_heard()
    worker.owned.revoke([P0])
    assert worker.take_heard() == [("revoked", [0]), ("paused", [])]


def test_all_paused_partitions_go_on_together_but_blocked_ones(worker: OwningWorker) -> None:
    for tp in (P0, P1):
        worker.owned.pause_or_resume(PauseDecision(pause=tp))
    worker.owned.block(P1, Blocked("why"))
    worker.take_heard()
    worker.owned.pause_or_resume(PauseDecision(resume=[*worker.owned.paused]))
    assert worker.fetched == {P0, C0, C1}
    assert worker.take_heard() == [("paused", [])]
    worker.owned.pause_or_resume(PauseDecision())
    assert worker.take_heard() == []


def test_a_blocked_partition_is_tried_by_one_record_and_unblocked_by_progress(worker: OwningWorker) -> None:
    worker.owned.block_at(P0, Blocked("why"), 17)
    assert worker.owned.quarantine.take_ticks() == {P0: 17}
    assert worker.owned.unblocked_tasks.keys() == {P1}
    worker.owned.on_progress(P0)
    worker.now += RETRY_MS[0] - 1
    worker.owned.retry_blocked()
    assert worker.fetched == {P1, C0, C1}
    worker.now += 1
    worker.owned.retry_blocked()
    assert worker.fetched == {P0, P1, C0, C1}
    assert worker.sought == {P0: 7, C0: 0}
    assert worker.owned.portions.size(P0, 100) == 1
    worker.owned.on_progress(P0)
    assert worker.take_heard() == [("blocked", 0), ("unblocked", 0)]


def test_a_partition_that_cannot_be_restored_is_blocked_and_restored_anew_later() -> None:
    worker = OwningWorker(broken={P1})
    worker.owned.assign([P0, P1])
    worker.owned.restore_assigned()
    assert worker.restored == [[0, 1], [0], [1]]
    assert worker.take_heard() == [("blocked", 1), ("assigned", [0])]
    assert worker.fetched == {P0, C0}
    worker.broken.clear()
    worker.now += RETRY_MS[0]
    worker.owned.retry_blocked()
    worker.owned.restore_assigned()
    assert worker.take_heard() == [("assigned", [1]), ("unblocked", 1)]
    assert worker.fetched == {P0, P1, C0, C1}


def test_each_restore_knows_what_other_partitions_hold_r73(worker: OwningWorker) -> None:
    """Also when each is restored by itself, since together they failed; one that went holds nothing."""
    worker.owned.tasks[P0].process([FakeRecord(7, [("uow-id", b"a"), ("uow-seq", b"1")], b"v" * 1_000, b"a")])
    holds = worker.owned.tasks[P0].memory_bytes
    assert holds > 1_000
    worker.owned.restore_again([P1])
    assert worker.held_in_restore[-1] == {P0: holds, P1: 0}
    worker.owned.revoke([P0, P1])
    worker.held_in_restore.clear()
    worker.broken = {P1}
    worker.owned.assign([P0, P1])
    worker.owned.restore_assigned()
    assert worker.held_in_restore == [{}, {}, {P0: 0}]
