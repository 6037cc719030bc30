"""Young groups are not written, they are replayed (notes on the ledger; W-124, W-125). Restarts at random moments: `test_commands_restored.py`."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.core.script import TOPICS, Story, c, context_of, policy_of, unit
from tests.core.streams import state_of
from tests.engine.restored_logs import Logs
from tests.fake_record import INPUT, FakeRecord
from uow.processor.core.group import Group
from uow.processor.engine.group_storage import is_replayable, rows_of
from uow.processor.engine.ports import Plan
from uow.processor.engine.replayable import ReplayLimits
from uow.processor.engine.restore import restore
from uow.processor.engine.rows import read_ledger, read_row
from uow.processor.engine.task import PartitionTask
from uow.schemas.error_classes import StateCorruptedError
from uow.schemas.records import Attributes
from uow.topics.headers import Reading
from uow.topics.policies import (
    AliasFamily,
    DestinationPolicy,
    LatePolicy,
    ViolationPolicy,
)

WIDE = ReplayLimits(1_000_000, 1 << 40, 1 << 40)


def draw_limits(rnd: Random) -> ReplayLimits:
    return rnd.choice(
        [
            ReplayLimits(),
            WIDE,
            ReplayLimits(rnd.randint(1, 40), 1 << 40, 1 << 40),
            ReplayLimits(1_000_000, rnd.randint(1, 4000), 1 << 40),
            ReplayLimits(1_000_000, 1 << 40, rnd.randint(1, 200_000)),
        ]
    )


def restored(logs: Logs, policy: DestinationPolicy, limits: ReplayLimits, partitions: int = 1) -> PartitionTask:
    return restore(logs, {TOPICS.components: context_of(policy, partitions, replay=limits)}, [logs.tp])[logs.tp]


def play(logs: Logs, task: PartitionTask, *polls: list[Any]) -> None:
    """Lets the task work on each poll, and keeps what a broker would keep."""
    story = Story(task)
    for steps in polls:
        records = story.records(steps)
        logs.take_input(records)
        logs.add(task.process(records))


def groups_of(task: PartitionTask) -> dict[str, Any]:
    """The state but for how many components have rows: that is what the bounds are about."""
    state = state_of(task)
    return state | {"groups": {group_id: group[:-1] for group_id, group in state["groups"].items()}}


def test_policies_do_not_matter_to_a_replay() -> None:
    before = policy_of(violation_policy=ViolationPolicy.FAIL_GROUP, max_components=10)
    logs = Logs(INPUT)
    play(
        logs,
        PartitionTask(INPUT, context_of(before, replay=WIDE)),
        [c(1), c(2), c(2, value=b"other"), c(1, id="b"), c(3, id="b")],
    )
    after = restored(logs, policy_of(max_components=1, late_policy=LatePolicy.REOPEN), WIDE)
    assert {group.id: sorted(group.held) for group in after.groups.values()} == {b"b": [1, 3]}


def test_components_read_by_alias_are_replayed_by_alias_w17() -> None:
    policy = policy_of(accept_aliases=frozenset({AliasFamily.JMS}))
    headers = [("JMSXGroupID", b"a"), ("JMSXGroupSeq", b"1")]
    record = FakeRecord(0, headers, b"v", b"a", 1_000, INPUT)
    task, logs = PartitionTask(INPUT, context_of(policy, replay=WIDE)), Logs(INPUT)
    logs.take_input([record])
    logs.add(task.process([record]))
    assert sorted(restored(logs, policy_of(), WIDE).groups[b"a"].held) == [1]


def test_what_an_earlier_reading_held_is_replayed_as_it_was_held_w17_w119(monkeypatch: pytest.MonkeyPatch) -> None:
    """Version 1 took the id of no group of MQ for a group, and a ledger of it says so."""
    headers = [("mq-group-id", b"0" * 48), ("mq-msg-seq-number", b"2")]
    record = FakeRecord(0, headers, b"v", b"0" * 48, 1_000, INPUT)
    mq = policy_of(accept_aliases=frozenset({AliasFamily.MQ}))
    logs = Logs(INPUT)
    logs.take_input([record])
    with monkeypatch.context() as earlier:
        earlier.setattr(Reading, "of", classmethod(lambda cls, policy: Reading(policy.accept_aliases, 1)))
        logs.add(PartitionTask(INPUT, context_of(mq, replay=WIDE)).process([record]))
    again = restored(logs, mq, WIDE)
    assert sorted(again.groups[b"0" * 48].held) == [2]
    assert again.partition.reading.version == Reading.VERSION


def test_a_replayed_group_is_promoted_whole_when_the_bounds_are_gone_and_a_special_components_come() -> None:
    logs = Logs(INPUT)
    play(logs, PartitionTask(INPUT, context_of(policy_of(), replay=WIDE)), [c(2)])
    task = restored(logs, policy_of(), ReplayLimits())
    special = [(b"1", ("uow-count", b"3")), (b"3", ("uow-deliver-at", b"9000000000000"))]
    plan = task.process(
        [
            FakeRecord(offset, [("uow-id", b"a"), ("uow-seq", seq), said], b"v", b"a", 5_000, INPUT)
            for offset, (seq, said) in enumerate(special, start=1)
        ]
    )
    rows = {read_row(value or b"").attributes for _, value in plan.changelog}
    assert rows == {None, Attributes(count=3), Attributes(deliver_at=9_000_000_000_000)}
    assert len(plan.changelog) == rows_of(task.groups[b"a"]) == 3


def test_a_group_that_opens_again_is_never_replayable() -> None:
    policy = policy_of(late_policy=LatePolicy.REOPEN, incomplete_expiration_ms=1_000)
    logs = Logs(INPUT)
    play(logs, PartitionTask(INPUT, context_of(policy, replay=WIDE)), [c(1, at=0), c(1, at=5)])
    group = restored(logs, policy, WIDE).groups[b"a"]
    assert (group.generation, is_replayable(group), rows_of(group)) == (2, False, 1)


def test_replayable_groups_leave_no_row_and_hold_the_floor_down() -> None:
    task = PartitionTask(INPUT, context_of(policy_of(), replay=ReplayLimits(3, 1 << 40, 1 << 40)))
    played = Story(task)
    played.send(c(1), c(1, id="b"), c(2, end=True))
    first = played.plans[-1]
    assert first.changelog == []
    assert floor_of(first) == 1, "a is closed, b began at 1"
    played.send(c(1, id="d"), c(1, id="e"))
    assert [key[1:-5] for key, _ in played.plans[-1].changelog] == [b"b"], "beyond three records the oldest is promoted"
    assert floor_of(played.plans[-1]) == 3
    assert played.send(c(2, id="b", end=True)) == [unit(1, 2, id="b")]
    assert [value for _, value in played.plans[-1].changelog] == [None], "promoted once, buried once"


def test_the_bytes_of_a_partition_since_a_group_opened_promote_it() -> None:
    task = PartitionTask(INPUT, context_of(policy_of(), replay=ReplayLimits(100, 1_000, 1 << 40)))
    played = Story(task)
    played.send(c(1))
    assert played.plans[-1].changelog == []
    played.send(c(1, id="b", value="x" * 500))
    played.send(c(1, id="d", value="x" * 500))
    assert [key[1:-5] for plan in played.plans for key, _ in plan.changelog] == [b"a"], (
        "more than 1,000 bytes came behind it"
    )


def test_quiet_partition_promotes_by_the_wall_clock_without_traffic() -> None:
    task = PartitionTask(INPUT, context_of(policy_of(), replay=ReplayLimits(100, 1 << 40, 60_000)))
    played = Story(task)
    played.send(c(1, at=0))
    opened = task.groups[b"a"].opened_at
    assert task.next_deadline() == opened + 60_000
    assert task.tick(opened + 60_000) is None
    plan = task.tick(opened + 60_001)
    assert plan is not None
    assert len(plan.changelog) == 1
    assert floor_of(plan) == plan.next_offset == task.position
    assert task.next_deadline() is None


def floor_of(plan: Plan) -> int:
    assert plan.ledger is not None
    floor = read_ledger(plan.ledger)[0].floor
    assert plan.metadata.startswith(f"1;F={floor};R=")
    return floor


def replayable_logs() -> Logs:
    logs = Logs(INPUT)
    play(logs, PartitionTask(INPUT, context_of(policy_of(), replay=WIDE)), [c(1)], [c(1, id="b")], [c(2)])
    return logs


def test_whole_logs_are_replayed() -> None:
    groups = restored(replayable_logs(), policy_of(), ReplayLimits()).groups
    assert {group_id: sorted(group.held) for group_id, group in groups.items()} == {b"a": [1, 2], b"b": [1]}


def test_input_deleted_above_the_floor_is_refused() -> None:
    logs = replayable_logs()
    logs.input_bounds = (1, 3)
    with pytest.raises(
        StateCorruptedError, match=r"begins at 1, above the replay floor 0; .*to begin anew, stop all workers"
    ):
        restored(logs, policy_of(), WIDE)


@pytest.mark.parametrize(("lost", "gap"), [(0, "0 to 1"), (1, "1 to 2")])
def test_ledger_with_a_hole_is_refused(lost: int, gap: str) -> None:
    """Cut at its head by retention, or anywhere."""
    logs = replayable_logs()
    ledgers = [record for record in logs.written if record.tp.topic == TOPICS.closed_changelog]
    logs.written.remove(ledgers[lost])
    with pytest.raises(StateCorruptedError, match=f"no record of {gap}; the logs do not belong together: put"):
        restored(logs, policy_of(), WIDE)


def test_ledger_that_is_gone_beside_an_offset_that_somebody_else_set_is_refused() -> None:
    """Nothing is left that could tell whether the offset belongs to this state; begun anew, both topics are new and empty."""
    logs = replayable_logs()
    logs.written = [record for record in logs.written if record.tp == INPUT]
    logs.committed_offset, logs.metadata = 2, ""
    with pytest.raises(
        StateCorruptedError, match=r"somebody else set the committed offset 2.*to begin anew, stop all workers"
    ):
        restored(logs, policy_of(), WIDE)
    anew = Logs(INPUT)
    anew.committed_offset = 2
    assert restored(anew, policy_of(), WIDE).position == 2


def test_emptied_input_is_refused_where_it_is_needed() -> None:
    logs = replayable_logs()
    logs.written = [record for record in logs.written if record.tp != INPUT]
    with pytest.raises(StateCorruptedError, match="the replay floor is 0"):
        restored(logs, policy_of(), WIDE)


def test_offsets_reset_by_an_administrator_are_refused() -> None:
    logs = replayable_logs()
    logs.committed_offset = 1
    with pytest.raises(
        StateCorruptedError, match=r"the ledger ends at 3, the committed offset is 1; .*put the old offsets back"
    ):
        restored(logs, policy_of(), WIDE)


def test_promotion_writes_the_rows_that_would_have_been_written_at_once() -> None:
    script = [c(1), c(3, end=True), c(300, id="b"), c(1, id="b")]
    at_once, later = (
        Story(PartitionTask(INPUT, context_of(policy_of(), replay=limits))) for limits in (ReplayLimits(), WIDE)
    )
    for played in (at_once, later):
        played.send(*script)
    drained = later.task.drain()
    assert drained is not None
    assert dict(drained.changelog) == dict(at_once.plans[-1].changelog)
    assert later.task.drain() is None


def test_a_closed_group_lets_go_of_its_components() -> None:
    task = PartitionTask(INPUT, context_of(policy_of(incomplete_expiration_ms=1_000_000)))
    groups: list[Group] = []
    played = Story(task)
    played.send(c(1))
    groups += task.groups.values()
    played.send(c(2, end=True))
    assert [group.held for group in groups] == [{}], "the line of deadlines would keep them"
