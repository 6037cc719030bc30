"""All workers of a destination are told alike: recorded beside its state, compared before a worker joins (W-68, W-69)."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.core.script import TOPICS, Story, c, context_of, ms, policy_of, told
from tests.engine.restored_logs import Logs
from tests.fake_record import INPUT
from uow.cli import rebuild_command
from uow.cli.main import main
from uow.config.loading import Settings
from uow.ops import destination_logs, destination_rules
from uow.ops.doctor import settings_differences
from uow.ops.findings import CheckResult
from uow.ops.recorded_rights import rights_complaint
from uow.processor.engine.context import TaskContext
from uow.processor.engine.ports import Committed, Tp
from uow.processor.engine.restore import Hints, hints, restore
from uow.processor.engine.settings_record import (
    RecordedSettings,
    differences,
    mark_in,
    row_of,
)
from uow.processor.engine.task import PartitionTask
from uow.processor.shell.settings_check import checked_contexts
from uow.schemas.error_classes import ConfigError, StateCorruptedError
from uow.schemas.records import SETTINGS_KEY, SettingsRow
from uow.topics.command_keys import CommandKey, CommandSigner
from uow.topics.commands import Verb
from uow.topics.policies import (
    AliasFamily,
    DestinationPolicy,
    ExpirationPolicy,
    Fingerprints,
    HandlingPolicy,
)
from uow.topics.routes import Route
from uow.topics.selector import Selector

DISCARD = policy_of()
REDIRECT = policy_of(expiration_policy=ExpirationPolicy.REDIRECT, incomplete_expiration_ms=5000)
LOGGING = policy_of(expiration_policy=ExpirationPolicy.LOG)
PASSING = policy_of(handling_policy=HandlingPolicy.PASS_THROUGH)


def worker(policy: DestinationPolicy) -> TaskContext:
    return context_of(policy, recorded_settings=RecordedSettings.of("D", policy))


def begin(logs: Logs, policy: DestinationPolicy, others: Callable[[], int] = lambda: 0) -> TaskContext:
    """What a worker does before it joins."""
    contexts = {TOPICS.components: context_of(policy)}
    return checked_contexts(contexts, logs, lambda: logs.committed([logs.tp]), others, [None] * 3)[TOPICS.components]


def assigned(logs: Logs, context: TaskContext) -> PartitionTask:
    return restore(logs, {TOPICS.components: context}, [logs.tp])[logs.tp]


def lived(*steps: Any, policy: DestinationPolicy = DISCARD, context: TaskContext | None = None) -> Logs:
    """The logs of a worker with these settings, after these components."""
    logs = Logs(INPUT)
    played = Story(PartitionTask(INPUT, context or worker(policy)))
    played.send(*steps or [c(1), c(3)])
    for plan in played.plans:
        logs.add(plan)
    return logs


# -- the row --------------------------------------------------------------------------------------------------------


def test_a_row_says_what_is_not_at_its_default_in_the_words_of_the_configuration() -> None:
    policy = policy_of(
        max_bytes=7,
        max_run_components=5,
        strict_order=True,
        fingerprints=Fingerprints.ALWAYS,
        accept_aliases=frozenset({AliasFamily.NIFI, AliasFamily.JMS}),
        expiration_log_headers=("trace",),
        routes=(Route(Selector("uow-priority >= 7"), "urgent"),),
    )
    assert row_of(policy) == SettingsRow(
        (
            ("accept_aliases", '["jms", "nifi"]'),
            ("expiration_log_headers", '["trace"]'),
            ("fingerprints", "always"),
            ("handling_policy", "single_message_delivery"),
            ("max_bytes", "7"),
            ("max_run_components", "5"),
            ("routes", '["urgent when uow-priority >= 7"]'),
            ("strict_order", "true"),
        ),
    )
    assert row_of(DestinationPolicy()) == SettingsRow()


def test_two_rows_differ_by_name_and_both_values_defaults_included() -> None:
    newer = SettingsRow((("expiration_policy", "redirect"), ("invented_later", "7")))
    assert [tuple(each) for each in differences(SettingsRow((("max_bytes", "7"),)), newer)] == [
        ("expiration_policy", "discard", "redirect"),
        ("invented_later", "unknown", "7"),
        ("max_bytes", "7", "67108864"),
    ]
    assert differences(newer, newer) == []


def test_first_plan_of_a_partition_records_the_settings_and_no_later_one_does_w68() -> None:
    context = worker(DISCARD)
    assert context.recorded_settings is not None
    played = Story(PartitionTask(INPUT, context))
    played.send(c(1), c(2), poll=1)
    first, second = played.plans
    assert (SETTINGS_KEY, context.recorded_settings.value) in first.changelog
    assert SETTINGS_KEY not in dict(second.changelog)
    marks = {mark_in(plan.metadata) for plan in played.plans}
    assert marks == {context.recorded_settings.mark}


def test_a_partition_without_traffic_records_them_when_it_is_found_read_to_its_end_w68() -> None:
    context = worker(DISCARD)
    task = PartitionTask(INPUT, context)
    assert task.next_deadline() == 0
    plan = task.tick(1)
    assert plan is not None
    assert [key for key, _ in plan.changelog] == [SETTINGS_KEY]
    assert (task.next_deadline(), task.tick(2)) == (None, None)


def test_the_row_survives_restart_and_compaction_and_is_no_component_w124() -> None:
    logs = lived()
    logs.compact()
    task = assigned(logs, worker(DISCARD))
    assert (task.rows, task.next_deadline(), [*task.groups]) == (2, None, [b"a"])
    looking = assigned(logs, context_of(REDIRECT))
    assert [*looking.groups] == [b"a"], "who only looks may be told anything"


def test_state_of_an_older_version_is_taken_and_recorded() -> None:
    logs = lived(context=context_of(DISCARD))
    assert mark_in(logs.metadata) is None
    task = assigned(logs, begin(logs, REDIRECT, others=lambda: 2))
    assert task.next_deadline() == 0
    logs.add(task.tick(1))
    assert mark_in(logs.metadata) is not None


# -- before a worker joins ------------------------------------------------------------------------------------------


def test_other_settings_are_refused_while_another_worker_lives_w68() -> None:
    logs = lived()
    with pytest.raises(ConfigError) as refused:
        begin(logs, REDIRECT, others=lambda: 1)
    assert {(each.setting, each.value) for each in refused.value.complaints} == {
        ("destinations.D.expiration_policy", "redirect"),
        ("destinations.D.incomplete_expiration_ms", "5000"),
    }
    assert "'discard' is recorded, and 1 other worker of the group live" in str(refused.value)
    begin(logs, DISCARD, others=lambda: 1)


def test_alone_a_worker_records_its_own_settings_and_says_what_changed_w68(caplog: pytest.LogCaptureFixture) -> None:
    logs = lived()
    with caplog.at_level(logging.WARNING, "uow.worker"):
        context = begin(logs, REDIRECT)
    assert "destination D: expiration_policy was discard, and is redirect from now on" in caplog.messages
    task = assigned(logs, context)
    assert task.next_deadline() == 0
    logs.add(task.tick(1))
    assert assigned(logs, begin(logs, REDIRECT, others=lambda: 1)).next_deadline() == ms(5)
    with pytest.raises(ConfigError, match="'redirect' is recorded"):
        begin(logs, DISCARD, others=lambda: 1)


def test_one_that_was_killed_is_waited_for_w68() -> None:
    living = iter([2, 1, 0])
    begin(lived(), REDIRECT, others=lambda: next(living))
    assert list(living) == []


def test_workers_started_together_with_new_settings_all_begin_w68() -> None:
    """The first one lives already, and has not recorded them yet, when the second one looks."""
    logs = lived()
    first = assigned(logs, begin(logs, REDIRECT))

    def others() -> int:
        logs.add(first.tick(1))
        return 1

    assert begin(logs, REDIRECT, others).policy is REDIRECT


def test_whoever_was_overtaken_by_a_worker_with_other_settings_stops_w68() -> None:
    logs = lived()
    ours, theirs = begin(logs, REDIRECT), begin(logs, LOGGING)
    logs.add(assigned(logs, theirs).tick(1))
    with pytest.raises(ConfigError, match="another worker has recorded it since this one began"):
        assigned(logs, ours)


def test_settings_may_change_when_partitions_were_added_w68_w107() -> None:
    """What moved groups knows of no settings: the rows are there, no mark is."""
    logs = lived()
    logs.metadata = logs.metadata.partition(";S=")[0]
    task = assigned(logs, begin(logs, REDIRECT))
    logs.add(task.tick(1))
    assert assigned(logs, begin(logs, REDIRECT, others=lambda: 1)).rows == 2


def test_a_mark_without_its_row_is_corrupted_state() -> None:
    logs = lived()
    logs.written = [record for record in logs.written if record.key_ != SETTINGS_KEY]
    with pytest.raises(StateCorruptedError, match="the row of settings is missing"):
        begin(logs, REDIRECT)


def test_doctor_finds_settings_that_differ_from_those_of_the_workers_w68() -> None:
    logs = lived()
    assert list(settings_differences(logs, context_of(DISCARD))) == []
    findings = [(each.verdict, each.what) for each in settings_differences(logs, context_of(LOGGING))]
    assert findings == [(CheckResult.LOOK, "D: expiration_policy is log here, but discard for the workers")]


KEYS = (CommandKey("ops", CommandSigner("ops", bytes(32)).public, frozenset({"all"}), 5),)
SIGNED = policy_of(command_keys=KEYS, command_window_ms=60_000)


class Offsets:
    """A reader of committed offsets alone: whatever else is asked of it ends the test."""

    def __init__(self, *logs: Logs) -> None:
        self.logs = {each.tp: each for each in logs}

    def committed(self, tps: Sequence[Tp], isolation: str) -> Mapping[Tp, Committed]:
        assert isolation == "read_uncommitted", "else it would wait for the open transaction of a dead worker"
        return {tp: found for tp in tps for found in self.logs[tp].committed([tp]).values()}


@pytest.mark.parametrize(
    "here",
    [
        {"command_keys": ()},
        {"command_keys": (replace(KEYS[0], since_ms=6),)},
        {"command_keys": (replace(KEYS[0], verbs=frozenset({"cancel"})),)},
        {"unsigned_commands": frozenset({"cancel"})},
        {"command_window_ms": 60_001},
    ],
    ids=str,
)
def test_nobody_decides_old_commands_by_other_keys_than_the_workers(
    here: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A file without them would obey strangers, and drop what was obeyed, without a word."""
    other = replace(SIGNED, **here)

    class Asked(Exception):
        """It would begin."""

    def begin_work(*_: object) -> None:
        raise Asked

    monkeypatch.chdir(tmp_path)
    (tmp_path / "uow.toml").write_text(
        f'[application]\nid = "{TOPICS.application}"\n[destinations.D]\nhandling_policy = "single_message_delivery"'
    )
    monkeypatch.setattr(destination_logs, "counts_with", lambda *_: {TOPICS.components: 1})
    monkeypatch.setattr(destination_rules, "destination_rules", begin_work)
    monkeypatch.setattr(rebuild_command, "rebuilt", begin_work)
    monkeypatch.setattr(rebuild_command, "destination_rules", lambda *_: {})
    monkeypatch.setattr(rebuild_command, "counts_with", lambda *_: {})
    monkeypatch.setattr(rebuild_command, "task_context", lambda settings, _: context_of(settings.policy("D")))
    for theirs in (SIGNED, other):
        reader = Offsets(lived(policy=theirs))
        for place in (destination_logs, rebuild_command):
            monkeypatch.setattr(place, "log_reader", lambda *_, found=reader: nullcontext(found))
        for ours in (SIGNED, other):
            monkeypatch.setattr(Settings, "policy", lambda *_, found=ours: found)
            for arguments in (["audit", "--tables", "tables"], ["rebuild", "D", "--dry-run"]):
                result = CliRunner().invoke(main, arguments)
                assert isinstance(result.exception, Asked) is (ours is theirs)
                assert ("the workers judge commands by other keys" in result.stderr) is (ours is not theirs)


def test_a_setting_that_says_nothing_of_commands_stops_no_audit_and_reads_no_log() -> None:
    """Also where nobody has keys: what was recorded is not looked at, and other partitions are not asked about."""
    for ours, theirs in ((SIGNED, replace(SIGNED, max_bytes=7)), (DISCARD, REDIRECT), (DISCARD, NO_KEYS)):
        logs = lived(policy=theirs)
        logs.written.clear()
        reader: Any = Offsets(logs)
        assert rights_complaint(reader, TOPICS, [0], ours) is None
    reader = Offsets(lived(context=context_of(SIGNED)))
    assert rights_complaint(reader, TOPICS, [0], DISCARD) is None, "of a worker that recorded no settings yet"


def test_without_keys_nothing_more_stands_beside_the_offset_and_with_them_older_workers_still_read_it() -> None:
    assert RecordedSettings.of("D", NO_KEYS).rights == ""
    with_keys = lived(policy=SIGNED).metadata
    found = re.fullmatch("(1;F=.*;S=[0-9a-f]{16})([0-9a-f]{16})", with_keys)
    assert found is not None
    assert mark_in(with_keys) == mark_in(found[1]) == RecordedSettings.of("D", SIGNED).mark
    assert hints(Committed(5, with_keys)) == hints(Committed(5, found[1])) != Hints()


NO_KEYS = policy_of(unsigned_commands=frozenset({"cancel"}), command_window_ms=5)


# -- from units to pass_through -------------------------------------------------------------------------------------


def test_pass_through_is_refused_while_groups_are_open_w69() -> None:
    logs = lived(c(1, id="a"), c(1, id="b"))
    with pytest.raises(
        ConfigError, match=r"handling_policy = 'pass_through': 2 groups are open .*`uow release"
    ) as refused:
        begin(logs, PASSING)
    assert len(refused.value.complaints) == 1


def test_pass_through_is_accepted_when_none_is_open_w69() -> None:
    logs = lived(c(1), c(2, end=True))
    context = begin(logs, PASSING)
    logs.add(assigned(logs, context).tick(1))
    assert begin(logs, PASSING, others=lambda: 1).policy is PASSING


def test_groups_closed_by_commands_no_longer_keep_from_pass_through_w69() -> None:
    logs = Logs(INPUT)
    played = Story(PartitionTask(INPUT, worker(DISCARD)))
    played.send(c(1), told(Verb.CANCEL, at=1))
    for plan in played.plans:
        logs.add(plan)
    assert begin(logs, PASSING).policy is PASSING


def test_state_that_cannot_be_restored_is_left_to_the_restore_that_blocks_it() -> None:
    logs = lived()
    logs.committed_offset = 7
    assert begin(logs, PASSING).policy is PASSING


def test_a_destination_that_nobody_has_worked_on_is_not_restored_for_a_look() -> None:
    class Unread(Logs):
        def read(self, ranges: Any) -> Iterator[Any]:
            raise AssertionError("nothing is to be read")

    assert begin(Unread(Tp(TOPICS.components, 0)), PASSING).policy is PASSING
