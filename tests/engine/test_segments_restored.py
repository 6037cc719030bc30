"""Pieces of components over restarts: their rows, and what takes their place (B-124, W-125). Drawn streams with pieces: `test_restore.py`."""

from __future__ import annotations

from tests.core.script import Story, c, context_of, policy_of, unit
from tests.core.test_segments import TEXT, cut, piece
from tests.engine.restored_logs import Logs
from tests.engine.test_restore import restored
from tests.fake_record import INPUT
from uow.processor.core.partition import Partition
from uow.processor.core.segments import FIRST_SLOT
from uow.processor.core.snapshot import restore, take
from uow.processor.engine.replayable import ReplayLimits
from uow.processor.engine.rows import ROW_OF_PIECE
from uow.processor.engine.task import PartitionTask
from uow.schemas.records import changelog_key


def test_pieces_have_rows_until_their_component_has_one() -> None:
    pieces = cut(1, 5, 20)
    played = Story(PartitionTask(INPUT, context_of(policy_of())))
    played.send(c(2), *pieces, poll=1)
    keys = [changelog_key(b"a", number) for number in (2, FIRST_SLOT, FIRST_SLOT + 1, 1)]
    written = [(key, value is None) for plan in played.plans for key, value in plan.changelog]
    assert written == [
        *((key, False) for key in keys[:3]),
        *((key, True) for key in keys[1:3]),
        (keys[3], False),
    ]
    rows = dict(row for plan in played.plans for row in plan.changelog if row[1] is not None)
    assert rows[keys[1]].startswith(ROW_OF_PIECE), "an older version must not take it for a component"
    assert [plan.metadata.split(";")[2] for plan in played.plans] == ["R=1", "R=2", "R=3", "R=2"]


def test_pieces_that_are_joined_in_one_poll_leave_no_row() -> None:
    played = Story(PartitionTask(INPUT, context_of(policy_of())))
    played.send(*cut(1, 5, 20))
    assert [key for key, _ in played.plans[0].changelog] == [changelog_key(b"a", 1)]


def test_a_component_that_comes_between_pieces_has_one_row() -> None:
    first, second, _ = cut(1, 5, 20)
    played = Story(PartitionTask(INPUT, context_of(policy_of())))
    played.send(first)
    played.send(c(2), second)
    assert [key for key, _ in played.plans[1].changelog] == [
        changelog_key(b"a", number) for number in (2, FIRST_SLOT + 1)
    ]
    assert played.plans[1].metadata.split(";")[2] == "R=3"


def test_a_unit_in_pieces_goes_on_after_a_restart_between_any_two_of_them() -> None:
    script = [*cut(2, 7, 11, end=True), *cut(1, 20)]
    task, logs = PartitionTask(INPUT, context_of(policy_of())), Logs(INPUT)
    for offset, one in enumerate(script):
        played = Story(task, offset=offset)
        seen = played.send(one)
        logs.add(played.plans[0])
        task = restored(logs, policy_of())
        assert task.counts.open == (0 if seen else task.groups[b"a"].record_count)
        task.partition.counts.received = task.counts.held
    assert seen == [unit(1, 2)]
    assert [each.value for each in played.units[0].components] == [TEXT.encode()] * 2
    assert task.rows == 0


def test_a_group_with_a_piece_is_not_left_to_a_replay() -> None:
    """A replay selects whole components; it joins nothing."""
    replay = ReplayLimits(1_000, 1 << 20, 60_000)
    played = Story(PartitionTask(INPUT, context_of(policy_of(), replay=replay)))
    played.send(c(2), c(3), poll=1)
    assert [plan.changelog for plan in played.plans] == [[], []]
    first, last = cut(1, 5)
    played.send(first, last, c(4, end=True), poll=1)
    assert [sum(value is not None for _, value in plan.changelog) for plan in played.plans[2:]] == [3, 1, 0]
    assert played.seen == [unit(1, 2, 3, 4)]


def test_the_state_of_an_audit_has_pieces() -> None:
    played = Story(PartitionTask(INPUT, context_of(policy_of())))
    played.send(c(2, end=True), piece(1, 0, "ab"))
    before = played.task.partition
    again = Partition(before.place, before.policy)
    restore(again, take(before))
    assert (again.held_bytes, again.piece_count) == (before.held_bytes, 1)
    played.task.partition = again
    again.counts.received = again.counts.held = 2
    assert played.send(piece(1, 2, "cd", True)) == [unit(1, 2)]
