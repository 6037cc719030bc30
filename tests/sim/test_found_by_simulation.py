"""What the simulator found in the product, each as a small test of its own: seeds change their meaning when dice are added."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pytest

from tests.core.script import TOPICS, Story, c, context_of, policy_of
from tests.core.streams import state_of
from tests.engine.restored_logs import Logs
from tests.fake_record import INPUT
from uow.processor.engine.ports import Committed, Stretch, Tp
from uow.processor.engine.replayable import ReplayLimits
from uow.processor.engine.restore import restore
from uow.processor.engine.task import PartitionTask
from uow.schemas.error_classes import StateCorruptedError


class OvertakenLogs(Logs):
    """The owner commits between the first answer to `committed` and the next question."""

    def __init__(self, tp: Tp, story: Story) -> None:
        super().__init__(tp)
        self.story = story

    def committed(self, tps: Sequence[Tp]) -> Mapping[Tp, Committed]:
        answer = super().committed(tps)
        if self.story.plans:
            self.add(self.story.plans.pop(0))
        return answer


def test_commit_of_the_owner_during_a_restore_is_no_corruption_er06() -> None:
    """A worker that was thrown out of the group restores what is no longer its own, while the new owner goes on: it blamed the logs."""
    story = Story(PartitionTask(INPUT, context_of(policy_of())))
    story.send(c(1), c(3), c(1, id="b"), poll=1)
    logs = OvertakenLogs(INPUT, story)
    found = restore(logs, {TOPICS.components: context_of(policy_of())}, [INPUT])[INPUT]
    assert state_of(found) == state_of(story.task)


def test_ledger_that_is_gone_while_replayable_groups_need_it_is_refused() -> None:
    """Retention took every ledger record during a long downtime: without them nobody knows what to replay, and held components were lost."""
    context = context_of(policy_of(), replay=ReplayLimits(100, 1 << 20, 1 << 40))
    story, logs = Story(PartitionTask(INPUT, context)), Logs(INPUT)
    story.send(c(1), c(3))
    logs.add(story.plans[0])
    logs.written.clear()
    with pytest.raises(StateCorruptedError, match="components from 0 on are to be read again"):
        restore(logs, {TOPICS.components: context}, [INPUT])


class BuriedLogs(Logs):
    """Compaction takes the tombstones while the first reader is on its way: it has met the rows, and never meets their end."""

    is_buried = True

    def read(self, ranges: Mapping[Tp, tuple[int, int]]) -> Iterator[Stretch]:
        for tp, records in super().read(ranges):
            left = [each for each in records if each.value() is not None] if self.is_buried else records
            if left:
                yield tp, left
        self.is_buried = False


def test_tombstones_that_go_during_a_restore_bring_no_closed_group_back() -> None:
    """The number of rows beside the offset tells; whoever reads once more finds what is right."""
    context = context_of(policy_of())
    story, logs = Story(PartitionTask(INPUT, context)), BuriedLogs(INPUT)
    story.send(c(1), poll=1)
    story.send(c(2, end=True), c(1, id="open"), poll=2)
    for plan in story.plans:
        logs.add(plan)
    with pytest.raises(StateCorruptedError, match="has 2 components, 1 were committed"):
        restore(logs, {TOPICS.components: context}, [INPUT])
    found = restore(logs, {TOPICS.components: context}, [INPUT])[INPUT]
    assert state_of(found) == state_of(story.task)
