"""A worker dies anywhere and goes on as if it had not: the restore law, and what a restore refuses (W-124, W-125; ER-06, ER-20)."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import uow.processor.engine.restore as restoring
from tests.core.script import TOPICS, Story, c, context_of, latest, ms, plain, policy_of, unit
from tests.core.streams import PARTITIONS, TP, Tick, call, draw_policy, draw_stream, new_task, polls, state_of
from tests.engine.restored_logs import Logs
from tests.fake_record import INPUT
from uow.ops.doctor import clock_ahead
from uow.ops.findings import CheckResult
from uow.processor.engine.ports import Plan, Tp
from uow.processor.engine.restore import restore
from uow.processor.engine.rows import GROUP_ROW_KEY_END, LEDGER_HEADER, read_ledger, read_row
from uow.processor.engine.settings_record import RecordedSettings
from uow.processor.engine.task import PartitionTask
from uow.schemas import codec
from uow.schemas.component import decode_component
from uow.schemas.error_classes import StateCorruptedError
from uow.schemas.records import (
    Attributes,
    ChangelogRow,
    ClosedGroup,
    LedgerRecord,
    Reason,
    UnitOutcome,
    changelog_key,
)
from uow.terminal.printing import wall_clock_ms
from uow.topics.policies import (
    DestinationPolicy,
    ExpirationPolicy,
    HandlingPolicy,
    LatePolicy,
)

CHANGELOG = Tp(TOPICS.groups_changelog, 0)
LEDGER = Tp(TOPICS.closed_changelog, 0)


def restored(logs: Logs, policy: DestinationPolicy, partitions: int = 1, limit: int = 1 << 20) -> PartitionTask:
    contexts = {TOPICS.components: context_of(policy, partitions, record_limit_bytes=limit)}
    return restore(logs, contexts, [logs.tp])[logs.tp]


def said(plan: Plan | None) -> Any:
    return (
        None
        if plan is None
        else (plan.outputs, plan.external, plan.log_lines, plan.changelog, plan.ledger, plan.next_offset)
    )


def assert_restart_changes_nothing(rnd: Random, length: int, ids: int, longest: int) -> None:
    policy = draw_policy(rnd)
    calls = polls(rnd, draw_stream(rnd, length, ids), longest)
    limit = rnd.choice([1 << 20, 1500])  # bytes of a record: small ones make units fail while they are written (W-115)
    steady, restarted = (new_task(policy, record_limit_bytes=limit) for _ in range(2))
    logs = Logs(TP)
    position = 0
    for one in calls:
        if rnd.random() < 0.5:
            if rnd.random() < 0.3:
                logs.compact()
            restarted = restored(logs, policy, PARTITIONS, limit)
            if logs.committed_offset is not None:
                assert state_of(restarted) == state_of(steady)
                restarted.partition.counts.received = restarted.counts.held  # what a restore found counts as held
            else:
                restarted.partition.position = 0
        plan = call(steady, one)
        assert said(call(restarted, one)) == said(plan)
        logs.add(plan)
        if plan is None:
            continue
        assert plan.ledger is not None
        ledger, closed = read_ledger(plan.ledger)
        assert (ledger.from_offset, ledger.to_offset) == (position, plan.next_offset), "the chain has a gap"
        assert ledger.floor == ledger.to_offset
        assert ledger.clock == steady.partition.clock
        position = plan.next_offset
        not_held = {offset for skip in ledger.not_held for offset in range(skip.first, skip.last + 1)}
        fresh = [] if isinstance(one, Tick) else [r.offset() for r in one if ledger.from_offset <= r.offset()]
        assert not_held <= set(fresh)
        held = set(fresh) - not_held
        assert len(held) == len(fresh) - len(not_held)
        assert all(item.before <= ledger.to_offset for item in closed)
        components = [each for each in plan.changelog if not each[0].endswith(GROUP_ROW_KEY_END)]
        rows = {decode_row_offset(value) for _, value in components if value is not None}
        assert rows <= held, "a row for what was not held"


def decode_row_offset(value: bytes) -> int:
    return read_row(value).source_offset


def test_a_component_from_before_its_group_opened_moves_no_idle_deadline_at_a_restart_w124() -> None:
    """The clock was ahead of its append time: the group has been idle since it opened, also for who restores it."""
    assert_restart_changes_nothing(Random(38), 9, 1, 8)


@settings(max_examples=50)
@given(st.integers(0, 2**32), st.integers(1, 80), st.integers(1, 5))
def test_restart_after_any_poll_changes_nothing_on_short_streams_w124_w125(seed: int, length: int, ids: int) -> None:
    assert_restart_changes_nothing(Random(seed), length, ids, 8)


@pytest.mark.parametrize("seed", range(12))
def test_restart_after_any_poll_changes_nothing_on_long_streams_w124_w125(seed: int) -> None:
    rnd = Random(seed)
    assert_restart_changes_nothing(rnd, 400, rnd.choice([3, 12, 60, 200]), 40)


def test_ledger_that_tells_of_more_closed_groups_than_are_remembered_is_sifted_on_the_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A day's ledger must not be in memory at once; what is remembered in the end is the same (W-19)."""
    monkeypatch.setattr(restoring, "SPARE_CLOSED", 0)
    taken: list[int] = []
    original = PartitionTask.restore

    def restore_and_note(self: PartitionTask, position: int, clock: int, closed: Any, *more: Any) -> None:
        taken.append(len(closed))
        original(self, position, clock, closed, *more)

    monkeypatch.setattr(PartitionTask, "restore", restore_and_note)
    for seed in range(4):
        assert_restart_changes_nothing(Random(seed), 200, 12, 40)
    story, logs = Story(PartitionTask(INPUT, context_of(policy_of(closed_max_groups=10)))), Logs(INPUT)
    story.send(*[c(1, id=f"g{number}", end=True) for number in range(300)], poll=7)
    for plan in story.plans:
        logs.add(plan)
    assert len(restored(logs, policy_of(closed_max_groups=10)).partition.closed) == 10
    assert taken[-1] < 60


def test_open_group_and_its_deadline_survive_a_restart_w124_w82() -> None:
    policy = policy_of(incomplete_expiration_ms=100_000, expiration_policy=ExpirationPolicy.REDIRECT)
    before, logs = Story(PartitionTask(INPUT, context_of(policy))), Logs(INPUT)
    before.send(c(1, at=0), c(3, end=True, at=50))
    for plan in before.plans:
        logs.add(plan)
    task = restored(logs, policy)
    assert task.next_deadline() == before.task.next_deadline() == ms(100)
    after = Story(task, offset=2)
    task.partition.counts.received = task.counts.held
    assert after.send(c(2, at=100)) == [unit(1, 2, 3)]


def test_attempt_repeated_after_an_abort_is_the_same_bytes_w125_w90() -> None:
    policy = policy_of()
    first, logs = Story(PartitionTask(INPUT, context_of(policy))), Logs(INPUT)
    first.send(c(1), c(3, end=True, component_id="m3"))
    logs.add(first.plans[0])
    records = first.records([c(2), plain(), c(1, id="b", end=True)])
    attempts = [restored(logs, policy).process(records) for _ in range(2)]
    assert said(attempts[0]) == said(attempts[1]) == said(first.task.process(records))


def test_first_start_begins_at_the_start_of_the_input_er06() -> None:
    logs = Logs(INPUT)
    logs.input_bounds = (17, 40)
    task = restored(logs, policy_of())
    assert (task.position, task.blocked, dict(task.groups)) == (17, None, {})


def test_group_that_closes_within_one_poll_leaves_no_row_w119() -> None:
    played = Story(PartitionTask(INPUT, context_of(policy_of())))
    played.send(c(1), c(2, end=True), c(1, id="b"))
    keys = [key for key, _ in played.plans[0].changelog]
    assert keys == [changelog_key(b"b", 1)]


def test_tombstones_bury_exactly_the_rows_that_were_written_w119() -> None:
    played = Story(PartitionTask(INPUT, context_of(policy_of())))
    played.send(c(1), c(4), poll=1)
    played.send(c(2), c(3), c(5, end=True))
    written = [key for plan in played.plans[:2] for key, value in plan.changelog]
    assert played.plans[2].changelog == [(key, None) for key in written]


def test_state_of_a_thousand_components_is_linear_w119() -> None:
    played = Story(PartitionTask(INPUT, context_of(policy_of())))
    value = "x" * 500
    played.send(*(c(number, value=value) for number in range(1, 1001)), poll=7)
    written = sum(len(key) + len(row or b"") for plan in played.plans for key, row in plan.changelog)
    assert sum(len(plan.changelog) for plan in played.plans) == 1000
    assert written < 2 * 1000 * len(value) + 10_000


def test_reopened_group_is_restored_with_its_generation_w85() -> None:
    policy = policy_of(late_policy=LatePolicy.REOPEN, incomplete_expiration_ms=100_000)
    played, logs = Story(PartitionTask(INPUT, context_of(policy))), Logs(INPUT)
    played.send(c(1, at=0), c(1, at=200), c(3, at=201), poll=1)
    for plan in played.plans:
        logs.add(plan)
    task = restored(logs, policy)
    assert task.groups[b"a"].generation == 2
    assert state_of(task) == state_of(played.task)


def test_component_of_a_reopened_group_stands_where_it_arrived_not_where_its_number_did_before_w213() -> None:
    policy = policy_of(late_policy=LatePolicy.REOPEN, incomplete_expiration_ms=100_000)
    played, logs = Story(PartitionTask(INPUT, context_of(policy))), Logs(INPUT)
    played.send(c(1, at=0), c(3, at=200), c(1, at=201), poll=1)
    for plan in played.plans:
        logs.add(plan)
    group = restored(logs, policy).groups[b"a"]
    assert [*group.held] == [3, 1] == [*played.task.groups[b"a"].held]
    assert group.last_arrived() == (1, None)


def test_pass_through_says_in_one_range_that_nothing_was_held_w65() -> None:
    played = Story(PartitionTask(INPUT, context_of(policy_of(handling_policy=HandlingPolicy.PASS_THROUGH))))
    played.send(c(1), plain(), c(2, end=True))
    ledger, closed = read_ledger(played.plans[0].ledger or b"")
    assert [(skip.first, skip.last) for skip in ledger.not_held] == [(0, 2)]
    assert closed == []
    assert not played.plans[0].changelog


def test_idle_deadline_counts_from_the_last_component_after_a_restart_w70_w124() -> None:
    policy = policy_of(idle_expiration_ms=100_000)
    played, logs = Story(PartitionTask(INPUT, context_of(policy))), Logs(INPUT)
    played.send(c(1, at=0), c(2, at=60))
    logs.add(played.plans[0])
    assert restored(logs, policy).next_deadline() == ms(160)


# -- what is refused, and loudly ------------------------------------------------------------------------------------


def logs_of(*steps: Any) -> Logs:
    played, logs = Story(PartitionTask(INPUT, context_of(policy_of()))), Logs(INPUT)
    played.send(*(steps or (c(1), c(3))))
    for plan in played.plans:
        logs.add(plan)
    return logs


def uncounted_logs() -> Logs:
    """As an older version left them: nothing beside the offset tells how many rows there must be."""
    logs = logs_of()
    logs.metadata = logs.metadata.partition(";R=")[0]
    return logs


@pytest.mark.parametrize("committed", [0, 1, 3])
def test_ledger_that_ends_elsewhere_than_the_committed_offset_is_refused_er20(committed: int) -> None:
    logs = logs_of()
    logs.committed_offset = committed
    with pytest.raises(StateCorruptedError, match=f"the ledger ends at 2, the committed offset is {committed}"):
        restored(logs, policy_of())


@pytest.mark.parametrize("keep", [CHANGELOG, LEDGER])
def test_state_without_a_committed_offset_is_refused_er20(keep: Tp) -> None:
    logs = logs_of()
    logs.committed_offset = None
    logs.written = [record for record in logs.written if record.tp == keep]
    with pytest.raises(StateCorruptedError, match="no committed offset"):
        restored(logs, policy_of())


def test_first_start_where_only_the_settings_row_is_left_is_refused_er20() -> None:
    """Offsets and ledger age away with a long stop; what is in a compacted topic does not."""
    policy = policy_of()
    context = replace(context_of(policy), recorded_settings=RecordedSettings.of("D", policy))
    played, logs = Story(PartitionTask(INPUT, context)), Logs(INPUT)
    played.send(c(1, end=True))
    logs.add(played.plans[0])
    logs.committed_offset, logs.metadata = None, ""
    logs.written = [record for record in logs.written if record.tp == CHANGELOG]
    with pytest.raises(StateCorruptedError, match=r"workers have committed here before.*set the group's offsets"):
        restored(logs, policy)


def test_first_start_where_retention_has_taken_from_the_ledger_is_refused_er20() -> None:
    logs = logs_of(c(1, end=True))
    logs.committed_offset, logs.metadata = None, ""
    logs.cut_ledger()
    with pytest.raises(StateCorruptedError, match="workers have committed here before"):
        restored(logs, policy_of())


def test_first_start_after_a_transaction_that_was_aborted_is_one_er20() -> None:
    """What was aborted leaves an end offset, and nothing that can be read."""
    logs = logs_of(c(1, end=True))
    logs.committed_offset, logs.metadata, logs.written = None, "", []
    assert restored(logs, policy_of()).position == 0


def test_clock_outlives_the_ledger_w19() -> None:
    logs = logs_of(c(1, end=True, at=70))
    logs.cut_ledger()
    assert restored(logs, policy_of()).partition.clock == ms(70)


@pytest.mark.parametrize(("kept", "at", "is_told"), [(0, 109, True), (0, 110, False), (1, 119, True), (1, 120, False)])
def test_ids_that_are_forgotten_too_early_are_told_of_until_nobody_needs_them_w19(
    kept: int, at: int, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """One group closes at 0, at 10 and at 20, and is to be remembered for 100. So many records of the ledger are left."""
    policy = policy_of(closed_retention_ms=100_000)
    played, logs = Story(PartitionTask(INPUT, context_of(policy))), Logs(INPUT)
    played.send(*(c(1, id=f"g{at}", end=True, at=at) for at in ((0, 10) if not kept else (0, 10, 20))), poll=1)
    for plan in played.plans:
        logs.add(plan)
    logs.cut_ledger(keep=kept)
    task = restored(logs, policy)
    assert task.forgotten_until == 0, "nothing was read that it could concern"
    after = Story(task, offset=3)
    after.send(c(1, id="new", at=at), c(2, id="new", at=at))
    assert task.forgotten_until == (ms(110 + 10 * kept) if is_told else 0)
    assert [line.levelname for line in caplog.records] == ["WARNING"] * is_told
    after.send(c(3, id="new", at=130))
    assert task.forgotten_until == 0


@pytest.mark.parametrize("cut", [0, 1])
def test_ledger_that_tells_enough_is_nothing_to_tell_w19(cut: int, caplog: pytest.LogCaptureFixture) -> None:
    policy = policy_of(closed_retention_ms=100_000)
    played, logs = Story(PartitionTask(INPUT, context_of(policy))), Logs(INPUT)
    played.send(c(1, id="a", end=True, at=0), c(1, id="b", end=True, at=10), c(1, id="c", end=True, at=111), poll=1)
    for plan in played.plans:
        logs.add(plan)
    if cut:
        logs.cut_ledger(keep=2)
    Story(restored(logs, policy), offset=3).send(c(1, id="new", at=111))
    assert not caplog.records


def test_committed_offset_behind_the_end_of_the_input_is_refused_er20() -> None:
    logs = logs_of()
    logs.input_bounds = (0, 1)
    with pytest.raises(StateCorruptedError, match="committed offset 2 lies behind the end offset 1"):
        restored(logs, policy_of())


def test_input_that_was_deleted_before_it_was_read_blocks_the_partition_w120() -> None:
    logs = logs_of()
    logs.input_bounds = (5, 9)
    task = restored(logs, policy_of())
    assert task.blocked is not None
    assert "records 2 to 4 of D.components/0 were deleted" in task.blocked
    assert dict(task.groups).keys() == {b"a"}, "who looks still sees the open groups"


@pytest.mark.parametrize("left", [0, 1])
def test_changelog_that_was_cut_emptied_or_deleted_is_refused_f23(left: int) -> None:
    """The number of its rows lies beside the committed offset: open groups never vanish without a word."""
    logs = logs_of()
    rows = [record for record in logs.written if record.tp == CHANGELOG]
    logs.written = [record for record in logs.written if record.tp != CHANGELOG] + rows[len(rows) - left :]
    with pytest.raises(
        StateCorruptedError, match=rf"changelog has {left} components, 2 were committed.*stop all workers"
    ):
        restored(logs, policy_of())


def test_changelog_with_a_row_that_nobody_committed_is_refused() -> None:
    logs = logs_of()
    logs.append(CHANGELOG, GOOD_KEY, GOOD_ROW)
    with pytest.raises(StateCorruptedError, match="has 3 components, 2 were committed"):
        restored(logs, policy_of())


def test_offset_of_an_older_version_does_not_tell_the_number_of_rows() -> None:
    logs = uncounted_logs()
    logs.written = [record for record in logs.written if record.tp != CHANGELOG]
    assert restored(logs, policy_of()).position == 2


def test_ledger_that_aged_away_is_no_fault() -> None:
    logs = logs_of()
    logs.written = [record for record in logs.written if record.tp == CHANGELOG]
    task = restored(logs, policy_of())
    assert task.position == 2
    assert len(task.groups) == 1


GOOD_KEY = changelog_key(b"a", 9)
GOOD_ROW = codec.frame(ChangelogRow(1, ms(0), 0, False, None, b"body"))
SPECIAL_ROW = codec.frame(ChangelogRow(1, ms(0), 0, False, Attributes(1, 2, 3), b"body"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, GOOD_ROW),
        (b"", GOOD_ROW),
        (b"garbage", GOOD_ROW),
        (b"\x02" + GOOD_KEY[1:], GOOD_ROW),
        (GOOD_KEY[:-5] + b"\x01" + GOOD_KEY[-4:], GOOD_ROW),
        (changelog_key(b"a", 0), GOOD_ROW),
        (changelog_key(b"", 1), GOOD_ROW),
        (GOOD_KEY, b""),
        (GOOD_KEY, b"garbage"),
        (GOOD_KEY, LEDGER_HEADER + GOOD_ROW[10:]),
        *((GOOD_KEY, GOOD_ROW[:cut]) for cut in range(10, len(GOOD_ROW))),
        *((GOOD_KEY, SPECIAL_ROW[:cut]) for cut in range(10, len(SPECIAL_ROW))),
        (GOOD_KEY, GOOD_ROW + b"x"),
        (GOOD_KEY, SPECIAL_ROW + b"x"),
    ],
)
def test_row_that_cannot_be_read_is_refused(key: bytes | None, value: bytes) -> None:
    logs = uncounted_logs()
    logs.append(CHANGELOG, key, value)
    with pytest.raises(StateCorruptedError):
        restored(logs, policy_of())


def test_row_whose_component_cannot_be_read_is_refused_where_it_is_needed_w70() -> None:
    logs = uncounted_logs()
    logs.append(CHANGELOG, GOOD_KEY, GOOD_ROW)
    with pytest.raises(StateCorruptedError):
        restored(logs, policy_of(idle_expiration_ms=1000))


LEDGER_RECORD = codec.frame(
    LedgerRecord(1, 2, 2, 2, ms(0), 1, (), (ClosedGroup(b"z", 1, UnitOutcome.EXPIRED, Reason.AGE, 3, 2, ms(0)),))
)


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"garbage",
        GOOD_ROW,
        LEDGER_HEADER,
        LEDGER_HEADER + b"\x04" + LEDGER_RECORD[11:],
        *(LEDGER_RECORD[:cut] for cut in range(10, len(LEDGER_RECORD))),
        LEDGER_RECORD + b"x",
    ],
)
def test_ledger_record_that_cannot_be_read_is_refused(value: bytes | None) -> None:
    logs = logs_of()
    logs.append(LEDGER, None, value)
    with pytest.raises(StateCorruptedError):
        restored(logs, policy_of())


@settings(max_examples=100)
@given(st.binary(max_size=60), st.booleans())
def test_garbage_behind_a_right_header_never_gets_through_as_another_exception(garbage: bytes, ledger: bool) -> None:
    logs = uncounted_logs()
    if ledger:
        logs.append(LEDGER, None, LEDGER_HEADER + garbage)
    else:
        logs.append(CHANGELOG, GOOD_KEY, GOOD_ROW[:10] + garbage)
    try:
        task = restored(logs, policy_of())
    except StateCorruptedError:
        return
    assert task.position == 2


def test_restored_component_is_byte_for_byte_what_arrived_w119() -> None:
    played, logs = Story(PartitionTask(INPUT, context_of(policy_of()))), Logs(INPUT)
    sent = c(1, user=[("h", None), ("h", b"\xff")], value=b"\x00\xff", priority=3)
    played.send(sent)
    logs.add(played.plans[0])
    component = decode_component(restored(logs, policy_of()).groups[b"a"].held[1])
    assert (list(component.headers), component.value, component.key) == (sent.headers, sent.value, sent.key)


def test_restore_after_an_append_time_that_leapt_is_the_state_before_it() -> None:
    """Decision 17: clock, groups and memory; what was not believed then is not asked about again."""
    policy = policy_of(incomplete_expiration_ms=100_000)
    played = Story(PartitionTask(INPUT, context_of(policy)))
    played.send(latest(60), c(1, end=True, id="closed", at=0), plain(at=3600), c(1, at=3600), c(1, id="b", at=1))
    logs = Logs(INPUT)
    for plan in played.plans:
        logs.add(plan)
    found = restored(logs, policy)
    assert state_of(found) == state_of(played.task)
    assert found.clock == ms(1)


def test_clock_that_leapt_before_is_told_by_the_doctor() -> None:
    """Decision 17: it never goes back, so somebody must know."""
    task = PartitionTask(INPUT, context_of(policy_of()))
    assert not [*clock_ahead(task)]
    task.partition.clock = wall_clock_ms() + 3_600_000
    (told,) = clock_ahead(task)
    assert told.verdict is CheckResult.LOOK
    assert "its clock is 1.0 h ahead" in told.what
