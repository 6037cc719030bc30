"""A router whose commands would be refused says so when its worker starts (`docs/decisions/0123-signed-commands.md`)."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.rules.low_stock import RULE, TABLES
from tests.shell.whole_worker import UNITS, settings
from uow.processor.kafka.worker_settings import WorkerSettings
from uow.processor.rules.rule_set import RuleSet
from uow.processor.shell.router_rights import check_rights
from uow.processor.shell.router_thread import kafka_router
from uow.schemas.error_classes import ConfigError
from uow.topics.command_keys import CommandKey, CommandSigner
from uow.topics.policies import ViolationPolicy
from uow.topics.routers import RouterSettings
from uow.topics.rules import OnRuleChange

SIGNER = CommandSigner("router", bytes(32))
NOW = 1_000_000_000_000
KEY = CommandKey("router", SIGNER.public, frozenset({"fail", "rule-change"}), NOW - 1)
FIRST = CommandKey("ops", CommandSigner("ops", bytes(31) + b"1").public, frozenset({"release"}), NOW - 5)
WRONG = [
    replace(KEY, name="Router"),
    replace(KEY, public=FIRST.public),
    replace(KEY, verbs=frozenset({"cancel"})),
    replace(KEY, since_ms=NOW + 1),
    replace(KEY, until_ms=NOW),
]


def checked(*keys: CommandKey, signer: CommandSigner | None = SIGNER, check: Any = check_rights, **policy: Any) -> None:
    live = replace(RULE, destination="D", on_rule_change=policy.pop("on_rule_change", OnRuleChange.LIVE))
    known = replace(UNITS, command_keys=keys, **{"violation_policy": ViolationPolicy.FAIL_GROUP} | policy)
    routers = {"stock": RouterSettings(("stock.events",))}
    worker = settings(policy=known, routers=routers, command_signer=lambda: signer)
    check(worker, RuleSet(replace(TABLES, rules=(live,))), NOW)


def begin(worker: WorkerSettings, rules: RuleSet, now_ms: int) -> None:
    """A worker makes its router."""
    kafka_router(worker, SimpleNamespace(rules=rules), None, {}, {}, wall=lambda: now_ms)  # type: ignore[arg-type]


def test_a_worker_asks_when_it_starts() -> None:
    checked(FIRST, KEY, check=begin)
    with pytest.raises(ConfigError, match="D refuses the command fail"):
        checked(FIRST, check=begin)


def test_nothing_is_said_where_all_is_well(caplog: pytest.LogCaptureFixture) -> None:
    checked()
    checked(FIRST, KEY)
    checked(FIRST, unsigned_commands=frozenset({"fail", "rule-change"}), signer=None)
    checked(FIRST, KEY, replace(KEY, until_ms=NOW + 1))
    assert caplog.records == []


@pytest.mark.parametrize("key", WRONG)
def test_a_worker_does_not_start_whose_router_would_be_refused_now(key: CommandKey) -> None:
    for policy in (
        {"violation_policy": ViolationPolicy.FAIL_GROUP},
        {"violation_policy": ViolationPolicy.REJECT_COMPONENT},
    ):
        with pytest.raises(ConfigError, match=r"D refuses the command (fail|rule-change) of this router") as caught:
            checked(FIRST, key, **policy)
        assert caught.value.setting == "application.command_key"
    with pytest.raises(ConfigError, match="fail needs the signature of a key"):
        checked(FIRST, key, signer=None)


@pytest.mark.parametrize("key", WRONG)
def test_a_command_that_its_rules_do_not_need_or_need_later_is_warned_of(
    key: CommandKey, caplog: pytest.LogCaptureFixture
) -> None:
    unneeded = {"violation_policy": ViolationPolicy.REJECT_COMPONENT, "on_rule_change": OnRuleChange.SNAPSHOT}
    checked(FIRST, key, **unneeded)  # type: ignore[arg-type]
    assert [record.message.split(" of")[0] for record in caplog.records] == [
        "rules: D refuses the command fail",
        "rules: D refuses the command rule-change",
    ]
    caplog.clear()
    later = NOW + 2_000
    checked(replace(FIRST, since_ms=later), replace(KEY, since_ms=later))
    assert caplog.records == []
    checked(replace(FIRST, since_ms=later), replace(key, since_ms=later, until_ms=later + 1), signer=None)
    assert len(caplog.records) == 2
    assert all("from 2001-09-09T01:46:42Z on: " in record.message for record in caplog.records)


def test_the_end_of_the_key_is_told(caplog: pytest.LogCaptureFixture) -> None:
    checked(FIRST, replace(KEY, until_ms=NOW + 86_400_000), replace(KEY, name="another"))
    assert [record.message for record in caplog.records] == [
        f"rules: D refuses the command {verb} of this router from 2001-09-10T01:46:40Z on"
        for verb in ("fail", "rule-change")
    ]


@pytest.mark.parametrize(("gap_ms", "is_told"), [(-1, False), (0, False), (1, True)])
def test_a_gap_between_two_entries_of_the_key_is_told(
    gap_ms: int, caplog: pytest.LogCaptureFixture, *, is_told: bool
) -> None:
    end = NOW + 86_400_000
    first, next_ = replace(KEY, until_ms=end), replace(KEY, since_ms=end + gap_ms)
    for keys in ((first, next_), (next_, first)):
        caplog.clear()
        checked(FIRST, *keys)
        assert len(caplog.records) == (2 if is_told else 0)
        assert all("from 2001-09-10T01:46:40Z on" in record.message for record in caplog.records)
