"""What commands changed survives a restart, under any replay bounds: the restored state is the live one (W-124, W-203)."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from tests.core.script import TOPICS, Story, c, context_of, policy_of, told, unit
from tests.core.streams import PARTITIONS, TP, Tick, call, draw_policy, draw_stream, new_task, polls
from tests.engine.restored_logs import Logs
from tests.engine.test_replay import WIDE, draw_limits, groups_of, restored
from tests.fake_record import INPUT, FakeRecord
from uow.processor.core.changes import Closed
from uow.processor.engine.group_storage import has_group_row, is_replayable, rows_of
from uow.processor.engine.ports import Plan, Tp
from uow.processor.engine.replayable import ReplayLimits
from uow.processor.engine.restore import restore
from uow.processor.engine.rows import ledger_value, read_ledger
from uow.processor.engine.task import PartitionTask
from uow.schemas.error_classes import StateCorruptedError
from uow.schemas.framing import single_object_header
from uow.schemas.records import (
    Range,
    Reason,
    UnitOutcome,
    changelog_key,
)
from uow.topics.commands import Command, Verb, command_headers
from uow.topics.policies import DestinationPolicy, ExpirationPolicy


def draw_commands(rnd: Random, task: PartitionTask, offset: int, now: int) -> list[FakeRecord]:
    """Some commands, most of them for groups that are open."""
    ids = [*task.groups, b"id-1", b"nobody"]
    found = []
    for number in range(rnd.choice([0, 0, 1, 1, 2, 4])):
        group_id = rnd.choice(ids)
        group = task.groups.get(group_id)
        highest = group.highest if group is not None else 1
        first = rnd.randrange(1, min(highest, 1 << 20) + 2)
        command = Command(
            b"c%d" % rnd.randrange(40),
            rnd.choice([Verb.WAIVE, Verb.EXTEND, Verb.DECLARE_END, *Verb]),
            group_id,
            "drawn",
            None,
            (Range(first, first + rnd.choice([0, 0, 1])),),
            now + rnd.randrange(-20, 300),
            rnd.random() < 0.1,
        )
        if command.verb is Verb.DECLARE_END:
            command = command._replace(numbers=(Range(highest + 1, highest + 1),))
        where = Tp(TOPICS.commands, TP.partition)
        found.append(FakeRecord(offset + number, command_headers(command), None, group_id, now, where))
    return found


def effects(plan: Plan | None) -> Any:
    return None if plan is None else (plan.outputs, plan.external, plan.log_lines, plan.next_offset, plan.next_command)


@pytest.mark.parametrize("seed", range(60))
def test_a_restart_between_components_and_commands_changes_nothing_w124_w203(seed: int) -> None:
    rnd = Random(seed)
    policy = draw_policy(rnd)
    calls = polls(rnd, draw_stream(rnd, rnd.choice([60, 300]), rnd.choice([3, 12, 60])), rnd.choice([4, 20]))
    steady, logs = new_task(policy), Logs(TP)
    restarted = new_task(policy, replay=draw_limits(rnd))
    amended = replayed = commands_read = 0
    for one in calls:
        if rnd.random() < 0.3 and logs.committed_offset is not None:
            if rnd.random() < 0.2:
                logs.add(restarted.drain())  # a clean stop: nothing is left to replay
                assert restarted.replayable.floor(restarted.position) == restarted.position
            if rnd.random() < 0.3:
                logs.compact()
            restarted = restored(logs, policy, draw_limits(rnd), PARTITIONS)
            replayed += sum(is_replayable(group) for group in restarted.groups.values())
            amended += sum(has_group_row(group) for group in restarted.groups.values())
            assert groups_of(restarted) == groups_of(steady)
            restarted.partition.counts.received = restarted.counts.held
        if isinstance(one, Tick):
            plan, again = call(steady, one), call(restarted, one)
        else:
            logs.take_input(one)
            commands = draw_commands(rnd, steady, commands_read, one[-1].at if one else 0)
            commands_read += len(commands)
            plan, again = steady.process(one, commands), restarted.process(one, commands)
        if again is not None and plan is None:
            assert not again.outputs, "only young groups grew old"
        else:
            assert again is None or effects(again) == effects(plan)
        logs.add(again)
    assert groups_of(restarted) == groups_of(steady)
    if seed == 1:
        assert amended, "no restart met a group that a command changed"
        assert replayed, "no restart read input again"


def play(logs: Logs, task: PartitionTask, *steps: Any) -> Story:
    """Lets the task work on each step, and keeps what a broker would keep."""
    story = Story(task)
    for step in steps:
        first = len(story.plans)
        if isinstance(step, Sequence):
            records = story.records(step)
            logs.take_input(records)
            logs.add(task.process(records))
            continue
        story.send(step)
        for plan in story.plans[first:]:
            logs.add(plan)
    return story


def waived(limits: ReplayLimits, policy: DestinationPolicy | None = None) -> Logs:
    logs = Logs(INPUT)
    task = PartitionTask(INPUT, context_of(policy or policy_of(), replay=limits))
    play(logs, task, [c(1), c(3)], told("waive", seq=2), told("declare-end", seq=4))
    return logs


@pytest.mark.parametrize("limits", [ReplayLimits(), WIDE], ids=["promoted at once", "replayable"])
def test_a_group_that_a_command_changed_is_written_with_its_group_row(limits: ReplayLimits) -> None:
    logs = waived(limits)
    task = restored(logs, policy_of(), limits)
    group = task.groups[b"a"]
    assert (group.waived, group.declared_end, is_replayable(group), rows_of(group)) == ((Range(2, 2),), 4, False, 2)
    story = Story(task, offset=2)
    assert story.send(c(4)) == [unit(1, 3, 4, outcome="partial", missing="2")]
    buried = [key for key, value in story.plans[-1].changelog if value is None]
    assert buried == [changelog_key(b"a", number) for number in (0, 1, 3)]


def test_a_waived_number_that_was_held_since_is_not_waived_after_a_restart() -> None:
    logs = waived(WIDE)
    task = restored(logs, policy_of(), WIDE)
    story = Story(task, offset=2)
    records = story.records([c(2)])
    logs.take_input(records)
    logs.add(task.process(records))
    again = restored(logs, policy_of(), WIDE)
    for group in (task.groups[b"a"], again.groups[b"a"]):
        assert (group.waived, group.waived_held, group.spared(group.waived, 2)) == ((Range(2, 2),), 1, 0)
    assert Story(again, offset=3).send(c(4)) == [unit(1, 2, 3, 4)]


def test_an_extended_deadline_survives_a_restart_w203() -> None:
    policy = policy_of(incomplete_expiration_ms=100_000, expiration_policy=ExpirationPolicy.REDIRECT)
    logs = Logs(INPUT)
    play(logs, PartitionTask(INPUT, context_of(policy, replay=WIDE)), [c(1)], told("extend", until=500))
    task = restored(logs, policy, WIDE)
    assert task.tick(task.groups[b"a"].opened_at + 400_000) is None
    assert task.next_deadline() == task.groups[b"a"].opened_at + 500_000


def test_a_command_is_known_by_its_id_after_a_restart_wherever_reading_goes_on_w203() -> None:
    logs = Logs(INPUT)
    order = told("cancel", command_id="once")
    play(logs, PartitionTask(INPUT, context_of(policy_of())), [c(1)], order)
    logs.next_command = None  # the group has forgotten the position
    task = restored(logs, policy_of(), ReplayLimits())
    assert task.command_position == 0
    story = Story(task, offset=1)
    story.send(c(1, id="b"), order)
    assert [answer.text for answer in story.answers] == ["a repeated command does nothing more"]


@pytest.mark.parametrize(("committed", "bounds", "position"), [(7, (3, 9), 7), (2, (3, 9), 3), (12, (3, 9), 3)])
def test_reading_of_commands_goes_on_where_the_log_still_has_them(
    committed: int, bounds: tuple[int, int], position: int
) -> None:
    logs = waived(WIDE)
    logs.next_command = committed

    class Bounded(Logs):
        def bounds(self, tps: Sequence[Tp]) -> dict[Tp, tuple[int, int]]:
            return {**super().bounds(tps), self.commands: bounds}

    logs.__class__ = Bounded
    assert restored(logs, policy_of(), WIDE).command_position == position


def test_a_group_row_of_another_version_or_without_its_group_is_refused() -> None:
    for value, what in ((b"\xc3\x01unknown.", "no group row"), (b"", "no group row")):
        logs = waived(WIDE)
        logs.append(Tp(TOPICS.groups_changelog, 0), changelog_key(b"a", 0), value)
        with pytest.raises(StateCorruptedError, match=what):
            restored(logs, policy_of(), WIDE)
    logs = waived(WIDE)
    row = next(record.value_ for record in logs.written if record.key_ == changelog_key(b"a", 0))
    logs.append(Tp(TOPICS.groups_changelog, 0), changelog_key(b"nobody", 0), row)
    logs.metadata = logs.metadata.replace("R=3", "R=4")
    with pytest.raises(StateCorruptedError, match="a group row of 'nobody', and no component of it"):
        restored(logs, policy_of(), WIDE)


@pytest.mark.parametrize("before", [[[c(3)], told("waive", seq=2)], [[c(4), c(3)]]], ids=["a group row", "two rows"])
def test_rows_go_with_their_group_and_no_others_w203(before: list[Any]) -> None:
    """In one poll a component arrives, one that has a row is taken out, and the group is cancelled."""
    logs, task = Logs(INPUT), PartitionTask(INPUT, context_of(policy_of()))
    story = play(logs, task, *before)
    assert task.rows == 2
    commands = [story.command(order) for order in (told("remove", seq=3), told("cancel"))]
    logs.add(task.process(story.records([c(1)]), commands))
    assert task.rows == 0
    assert restored(logs, policy_of(), ReplayLimits()).groups == {}


def test_ledger_records_of_before_there_were_fingerprints_and_commands_are_read_w40() -> None:
    closed = Closed(b"a", 1, UnitOutcome.COMPLETE, Reason.END, 2, 5, 9)
    today = ledger_value(3, 5, 5, 9, 1, [3], [closed])
    without_prints = (
        today[10:-3] + today[-2:]
    )  # behind the one closed group stand its prints, the end of the list, and the commands
    assert read_ledger(single_object_header("Ledger", 2) + without_prints) == read_ledger(today)
    assert read_ledger(single_object_header("Ledger", 1) + without_prints[:-1]) == read_ledger(today)


def test_restore_reads_both_positions_at_once() -> None:
    """A commit between two questions would give positions of two moments."""
    asked: list[list[Tp]] = []

    class Asked(Logs):
        def committed(self, tps: Sequence[Tp]) -> Any:
            asked.append(list(tps))
            return super().committed(tps)

    logs = waived(WIDE)
    logs.__class__ = Asked
    restore(logs, {TOPICS.components: context_of(policy_of())}, [INPUT])
    assert asked == [[INPUT, Tp(TOPICS.commands, 0)]]
