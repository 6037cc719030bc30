"""The group is served while rules are read: a partition that goes meanwhile is left alone (ER-08, ER-17)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tests.core.script import context_of, policy_of
from tests.engine.test_long_restores import P0, P1, RestoringDriver
from uow.processor.engine.batch import Batch, Task
from uow.processor.engine.driver_ports import Wanted
from uow.processor.engine.ports import Tp
from uow.processor.engine.task import PartitionTask
from uow.topics.grouping import GroupPolicy
from uow.topics.headers import ID, INPUT, RULE


class RulesDriver(RestoringDriver):
    """A driver whose components name a row that nobody knows; while the rows are read, a partition or both are taken away."""

    def __init__(self, *taken: Tp) -> None:
        super().__init__()
        self.taken = [*taken]
        self.reads = 0
        self.noted: list[Tp] = []
        self.driver._shares.took = lambda tp, *_: self.noted.append(tp)  # type: ignore[method-assign]
        for tp in P0, P1:
            headers = [(ID, b"r/a"), (RULE, b"r/a@1"), (INPUT, b"events/0/1")]
            self.kafka.append(tp.topic, b"r/a", b"x", headers, tp.partition)

    def policy(self, name: str) -> GroupPolicy | None:
        return None

    kept = policy

    def catch_up(self, meanwhile: Callable[[], object]) -> None:
        self.reads += 1
        self.driver._on_revoke(self.taken)

    def _restore(self, tps: Sequence[Tp], wanted: Wanted) -> Mapping[Tp, Task]:
        return {tp: PartitionTask(tp, context_of(policy_of(), rules=self)) for tp in tps}

    def assigned(self, tasks: Mapping[Tp, Task]) -> None: ...

    def process(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            with batch:
                batch.apply(self.driver._partitions.tasks[batch.tp])
        self.stop.set()


def check_rules_are_read_of_what_is_left() -> None:
    for taken, reads in (((P0, P1), 1), ((P1,), 1), ((P0,), 2)):
        world = RulesDriver(*taken)
        world.driver.run()
        assert (world.error, world.reads) == (None, reads)
        assert set(world.noted).isdisjoint(taken), "its work is not remembered: it is forgotten when it is taken away"


def test_a_partition_that_goes_while_rules_are_read_is_left_alone() -> None:
    """The driver read the rules for one, and ended when it came to the other."""
    check_rules_are_read_of_what_is_left()
