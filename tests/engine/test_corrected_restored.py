"""Units that a late component may correct, over restarts, moves and want of memory (B-205)."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.core.script import Story, c, clock, context_of, is_unit, policy_of, refused, told, unit
from tests.core.test_corrected_units import AMEND, PARTIAL
from tests.engine.restored_logs import Logs
from tests.engine.test_moved_groups import GrowingCluster
from tests.engine.test_replay import WIDE, restored
from tests.fake_record import INPUT
from uow.processor.engine.replayable import NO_REPLAY, ReplayLimits
from uow.processor.engine.rows import KEPT_KEY
from uow.processor.engine.task import PartitionTask
from uow.processor.sim.checks import difference, state_of
from uow.schemas.error_classes import DecodeError, StateCorruptedError, UnitClosedError
from uow.topics.policies import DestinationPolicy, LatePolicy


def logs_of(played: Story) -> Logs:
    logs = Logs(INPUT)
    logs.take_input([played.lying[offset] for offset in sorted(played.lying)])
    for plan in played.plans:
        logs.add(plan)
    return logs


def after_restart(played: Story, policy: DestinationPolicy, limits: ReplayLimits = NO_REPLAY) -> Story:
    """The story goes on with what a restore made of its logs."""
    task = restored(logs_of(played), policy, limits)
    return Story(task, offset=played.offset, now=played.now, command_offset=played.command_offset)


def test_a_unit_is_corrected_after_a_restart_b205() -> None:
    policy = policy_of(**AMEND)
    played = Story(PartitionTask(INPUT, context_of(policy)))
    played.send(*PARTIAL)
    again = after_restart(played, policy)
    assert again.send(c(3, end=True, at=20)) == [unit(1, 2, 3)]
    assert again.unit_headers[0]["uow-supersedes"] == played.unit_headers[0]["uow-unit-id"]
    assert again.task.rows == 0


@pytest.mark.parametrize("replay", [NO_REPLAY, WIDE], ids=["changelog", "replay"])
@pytest.mark.parametrize("seed", range(12))
def test_a_restart_anywhere_changes_nothing_about_corrections_b205(seed: int, replay: ReplayLimits) -> None:
    rnd = Random(seed)
    settings = AMEND | {"closed_retention_ms": rnd.choice([15_000, 3_600_000])}
    policy = policy_of(**settings, amend_max_bytes=rnd.choice([3_000, 1 << 24]), closed_max_groups=rnd.choice([3, 999]))
    steady = Story(PartitionTask(INPUT, context_of(policy, replay=replay)))
    corrected = 0
    for now in range(150):
        if rnd.random() < 0.2:
            steady.send(clock(now))
        elif rnd.random() < 0.1:
            steady.send(told(rnd.choice(["release", "waive", "cancel"]), id=rnd.choice("abcdef"), seq=2, at=now))
        else:
            steps = [c(rnd.randint(1, 5), rnd.random() < 0.2, rnd.choice("abcdef"), at=now) for _ in range(3)]
            steady.send(*steps, poll=rnd.randint(1, 3))
        if rnd.random() < 0.3:
            corrected += steady.counts.corrected
            again = after_restart(steady, policy, replay)
            one, other = (state_of(each.task, by_idle=False) for each in (steady, again))
            assert one == other, difference(one, other)
            assert again.task.rows == steady.task.rows
            again.plans, again.lying = steady.plans, steady.lying
            again.task.counts.received = again.task.counts.held
            steady = again
    assert corrected


def test_what_is_kept_of_a_group_that_was_warned_of_says_so_after_a_restart_too_b202_b205() -> None:
    policy = policy_of(**AMEND | {"incomplete_expiration_ms": 200, "warn_at_percent": 50})
    steady = Story(PartitionTask(INPUT, context_of(policy)))
    steady.send(c(2, at=4), c(1, id="b", at=215))
    again = after_restart(steady, policy)
    for story in (steady, again):
        story.send(c(3, at=265))
    assert again.plans[-1].changelog == steady.plans[-1].changelog


def units_in(cluster: GrowingCluster) -> list[dict[str, bytes | None]]:
    return [dict(output.headers) for output in cluster.outputs if is_unit(output)]


def test_what_is_kept_moves_to_where_its_id_belongs_b205() -> None:
    cluster = GrowingCluster(1, policy_of(**AMEND))
    ids = [f"g{number}" for number in range(12)]
    for name in ids:
        cluster.send(c(1, False, name))
        cluster.tell("release", name)
    first = {said["uow-id"]: said["uow-unit-id"] for said in units_in(cluster)}
    cluster.repartition(4)
    cluster.outputs.clear()
    for name in ids:
        cluster.send(c(2, True, name))
    assert {said["uow-id"]: said["uow-supersedes"] for said in units_in(cluster)} == first
    assert all(task.rows == 0 for task in cluster.tasks.values())


def test_for_want_of_memory_units_are_let_go_before_ids_are_forgotten_b205(caplog: pytest.LogCaptureFixture) -> None:
    played = Story(PartitionTask(INPUT, context_of(policy_of(**AMEND))))
    played.send(*PARTIAL)
    task = played.task
    before = task.remembered_bytes
    task.forget(1)
    assert (task.correctable_units, task.closed_groups) == (0, 1)
    assert task.remembered_bytes < before
    assert "a late component of one is refused" in caplog.text
    assert task.next_deadline() == 0
    late = c(3, end=True, at=20)
    assert played.send(clock(12), late) == [refused(late, UnitClosedError, "partial")]
    assert task.rows == 0


def test_another_policy_lets_go_of_what_is_kept_b205() -> None:
    played = Story(PartitionTask(INPUT, context_of(policy_of(**AMEND))))
    played.send(*PARTIAL)
    again = after_restart(played, policy_of(**AMEND | {"late_policy": LatePolicy.REJECT}))
    late = c(3, end=True, at=20)
    assert again.send(late) == [refused(late, UnitClosedError, "partial")]
    assert again.task.rows == 0


@pytest.mark.parametrize("damage", ["group row", "components", "value"])
def test_damaged_rows_of_what_is_kept_stop_a_restore_b205(damage: str) -> None:
    policy = policy_of(**AMEND)
    played = Story(PartitionTask(INPUT, context_of(policy)))
    played.send(*PARTIAL)
    rows: dict[bytes, Any] = {
        key: value for plan in played.plans for key, value in plan.changelog if key[:1] == KEPT_KEY
    }
    is_group = {key: key[-4:] == bytes(4) for key in rows}
    task = PartitionTask(INPUT, context_of(policy))
    if damage == "value":
        rows = dict.fromkeys(rows, b"x")
    else:
        rows = {key: value for key, value in rows.items() if is_group[key] == (damage == "components")}
    with pytest.raises((DecodeError, StateCorruptedError)):
        task.restore_kept(rows)
