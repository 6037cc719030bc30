"""One check for `put`, a start, the mirror and running workers (B-15): no version is in force that a start would refuse.

Each version is the valid one with one column changed; all of them judge it in their own way, through the code that users run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.rules.low_stock import NOON, ROWS, RULE, TABLES
from uow.config.loading import Settings, load
from uow.ops.rules import RuleDesk
from uow.processor.kafka import rule_topics
from uow.processor.kafka.router_desk import RouterDesk
from uow.processor.kafka.rule_topics import deployment
from uow.processor.rules.changes import CannotChange, RulesUnavailable, rows_for
from uow.processor.rules.columns import TABLES as KINDS
from uow.processor.rules.deployment import Deployment
from uow.processor.rules.in_force import RulesInForce, default_rules
from uow.processor.rules.mirror import mirrored, read_mirror
from uow.processor.rules.routing import RouteTarget
from uow.processor.rules.row_table import RowTable
from uow.processor.rules.rule_file import written
from uow.processor.rules.rule_set import RuleSet, RuleTables
from uow.schemas.error_classes import ConfigError
from uow.topics.catalogue import DestinationTopics
from uow.topics.columns import columns
from uow.topics.policies import Shape
from uow.topics.record_size import RecordLimit
from uow.topics.rules import Change, DefaultGroup, Delay, OnNoKey, Parameter, Source

CONFIG = """
[application]
id = "shop"
[rules]
source = "sqlite:///rules.db"
[destinations.supply]
handling_policy = "single_message_delivery"
incomplete_expiration_ms = 60000
[destinations.bare]
handling_policy = "pass_through"
[routers.named]
inputs = ["stock.events"]
rules = ["low-stock"]
[routers.every]
inputs = ["other.events"]
"""
COUNTS = {"supply.components": 2, "orders.france": 2, "orders.uk": 3}
BASE = replace(
    TABLES,
    rules=(
        RULE,
        replace(RULE, rule_id="spare", priority=200, on_no_key=OnNoKey.REJECT, default_group=DefaultGroup.PER_NAME),
    ),
    rows=(*ROWS, replace(ROWS[3], rule_id="spare", routing_name="*", target_topic=None)),
    delays=(Delay("low-stock", "France", "bolt", 1, 5_000),),
    sources=(Source("spare", "invoice", 1, quantity=2),),
    parameters=(Parameter("reply_hold_ms", 1, "1000"),),
)
TEXTS = (
    "", " ", "x" * 300, "supply", "bare", "orders.uk", "supply.components", "shop-rules", "header:kind", "request", "path:/-a",
    "path://*[local-name()='\x01']", "size(", "count(3)", "manifest", "urgent(true, alone)", "age(5)", "behind(50)", "at(25:00)",
    "at(17:00, Mars)", "event_time header:t", "field:price", "upper", "a/b", "low-stock", "'\x00'", "predicate(sum(a) > 1)", "*",
)  # fmt: skip
NUMBERS = (-1, 0, 1, 5, 2**31, 2**62)


class FakeAdmin:
    """Says how many partitions topics have, or that no broker answers."""

    def __init__(self, counts: Mapping[str, int] | None) -> None:
        self._counts = counts

    def list_topics(self, timeout: float) -> Any:
        from confluent_kafka import KafkaError, KafkaException

        if self._counts is None:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        return SimpleNamespace(
            topics={name: SimpleNamespace(partitions=range(count)) for name, count in self._counts.items()}
        )


def answered(monkeypatch: pytest.MonkeyPatch, counts: Mapping[str, int] | None) -> None:
    """Brokers say this from now on."""
    monkeypatch.setattr(rule_topics, "Clients", lambda settings: SimpleNamespace(admin=lambda: FakeAdmin(counts)))


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.chdir(tmp_path)
    Path("uow.toml").write_text(CONFIG)
    answered(monkeypatch, COUNTS)
    return load(Path("uow.toml"), {})


class Kept:
    """A source, or a mirror, that has these versions."""

    name = "the test's"
    has_all_versions = True

    def __init__(self, tables: RuleTables) -> None:
        self.now = tables

    def version(self) -> int:
        return self.now.version

    def read(self, known: RuleTables) -> RuleTables:
        return self.now

    def tables(self) -> RuleTables:
        return self.now


class Away(Kept):
    """A source that cannot be read."""

    def version(self) -> int:
        raise RulesUnavailable("away")


def mutated() -> Iterator[RuleTables]:
    """The base with one column of one row changed, for every column of every table."""
    yield replace(BASE, rules=BASE.rules[1:], rows=BASE.rows[4:], delays=())
    yield replace(BASE, rules=(), rows=(), delays=(), sources=())
    for table, kind in KINDS.items():
        rows = getattr(BASE, table)
        for at, row in enumerate(rows if table not in ("changes", "rows") else rows[:1] if table == "rows" else ()):
            for name, column in columns(kind).items():
                if name == "version":
                    continue
                values: tuple[Any, ...] = TEXTS if column.kind is str else NUMBERS
                if issubclass(column.kind, bool | StrEnum):
                    values = (True, False) if column.kind is bool else tuple(column.kind)
                for value in (*values, *[None] * column.nullable):
                    yield replace(BASE, **{table: (*rows[:at], replace(row, **{name: value}), *rows[at + 1 :])})


def versions() -> Iterator[RuleTables]:
    """Version 1, which is valid, and a version 2 of it that `put` would write if it were allowed."""
    for wanted in mutated():
        change = Change(2, "a test", "to see", NOON)
        try:
            made = rows_for(RuleSet(BASE), RuleSet(replace(wanted, changes=(change,))), change)
        except CannotChange:
            continue  # nothing differs
        yield BASE.with_rows_of(made)


def put_takes(desk: RuleDesk, tables: RuleTables) -> bool:
    path = Path("next.toml")
    path.write_text(written(RuleSet(tables)), "utf-8")
    try:
        desk.proposed(path, RuleSet(BASE), "", "", NOON)
    except ConfigError:
        return False
    return True


def a_worker_really_works(settings: Settings, judged: Deployment, rules: RuleSet) -> bool:
    """A router is made with the rules, all its inputs are routed, and each row has a policy."""
    worker = settings.worker("w")
    targets = {
        name: RouteTarget(DestinationTopics("shop", name), policy, RecordLimit())
        for name, policy in worker.destinations.items()
    }
    log: Any = SimpleNamespace(rows={}, mirror=None)
    desk = RouterDesk(lambda: rules, worker.routers, targets, log, "shop-rules", lambda: NOON, judged.held)
    rows = [each.resolved for each in rules.row_versions() if each.resolved is not None]
    enabled = {rule.rule_id for rule in rules.rules}
    table = RowTable({row.name: row for row in rows}, "supply", worker.destinations["supply"])
    return not any(map(desk.obstacle, ("stock.events", "other.events"))) and all(
        table.policy(row.name) is not None for row in rows if row.rule.rule_id in enabled
    )


def test_put_start_mirror_and_running_workers_give_one_verdict_on_every_version_b15(settings: Settings) -> None:
    desk, judged = RuleDesk(settings), deployment(settings.worker("w"))
    assert judged.complaints(RuleSet(BASE)) == []
    verdicts = {True: 0, False: 0}
    for tables in versions():
        rules = RuleSet(tables)
        running = RulesInForce(source := Kept(BASE), judged.complaints)
        running.start()
        source.now = tables
        running.look()
        from_mirror = RulesInForce(Away(tables), judged.complaints, mirror=Kept(read_mirror(mirrored(rules))))
        from_mirror.start()
        found = {
            "put": put_takes(desk, tables),
            "running": running.rules.version == 2,
            "start": RulesInForce(Kept(tables), judged.complaints).start().version == 2,
            "mirror": not from_mirror.status.complaints,
        }
        assert len({*found.values()}) == 1, (found, rules.content(), desk.complaints(rules))
        verdict = found["put"]
        verdicts[verdict] += 1
        assert not verdict or a_worker_really_works(settings, judged, rules), rules.content()
    assert min(verdicts.values()) > 50, verdicts


def test_a_rule_that_a_router_names_cannot_be_taken_away_by_anybody_b15_b18(settings: Settings) -> None:
    judged = deployment(settings.worker("w"))
    gone = replace(
        BASE, changes=(Change(2, "a", "b", NOON),), rules=(replace(RULE, version=2, enabled=False), BASE.rules[1])
    )
    running = RulesInForce(source := Kept(BASE), judged.complaints)
    running.start()
    source.now = BASE.with_rows_of(gone)
    running.look()
    assert running.rules.version == 1
    assert [str(each) for each in running.status.complaints] == [
        "routers.named.rules = 'low-stock': is no enabled rule"
    ]


@pytest.mark.parametrize("made", ["complaints_about", "RuleRouting", "group_policy"])
def test_whatever_routers_and_assemblers_cannot_make_of_a_version_is_a_complaint_b15(
    settings: Settings, made: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object) -> Any:
        raise RecursionError("too deep")

    monkeypatch.setattr(f"uow.processor.rules.deployment.{made}", broken)
    judged = deployment(settings.worker("w"))
    told = ["rules.version = 1: cannot be made: RecursionError: too deep"]
    assert [str(each) for each in judged.complaints(RuleSet(BASE))] == told
    assert set(judged.held(RuleSet(BASE))) == {"named", "every"}


def test_without_a_version_free_of_faults_a_worker_goes_on_with_the_routers_that_can(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    judged = deployment(settings.worker("w"))
    lost = replace(BASE, rules=(replace(RULE, transform="nowhere"), BASE.rules[1]))
    started = RulesInForce(Kept(lost), judged.complaints)
    assert started.start().version == 1
    assert "version 1 has faults, and what they concern waits: rule/low-stock.transform = 'nowhere'" in caplog.text
    assert {*judged.held(started.rules)} == {"named", "every"}, "both ask it"
    spare = replace(BASE, rules=(RULE, replace(BASE.rules[1], transform="nowhere")))
    assert [*judged.held(RuleSet(spare))] == ["every"], "the other router does not"


@pytest.mark.parametrize("condition", ["component_deadline", "all(idle(5), not(idle(2)), component_deadline)"])
def test_a_row_in_force_of_which_a_condition_never_holds_goes_on_closing_by_its_count(
    settings: Settings, condition: str
) -> None:
    """It is a mistake, which `uow rules check` and `put` name; but an upgrade changes no rule in force (decision 122)."""
    judged = deployment(settings.worker("w"))
    rule = replace(RULE, delay_item=None)
    rows = (replace(ROWS[0], give_up_when=condition), *BASE.rows[1:])
    rules = RuleSet(replace(BASE, rules=(rule, BASE.rules[1]), rows=rows, delays=BASE.delays[:0]))
    assert (judged.complaints(rules), judged.held(rules)) == ([], {})
    assert RulesInForce(Kept(rules.tables), judged.complaints).start().version == 1


def test_a_version_is_not_judged_while_no_broker_says_how_many_partitions_its_targets_have(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = deployment(settings.worker("w"))
    runs = replace(BASE, rows=(replace(ROWS[1], shape=Shape.CONSECUTIVE, value_format=None), *BASE.rows))
    assert [each.setting for each in judged.complaints(RuleSet(runs))] != []
    running = RulesInForce(source := Kept(BASE), judged.complaints)
    running.start()
    answered(monkeypatch, None)
    unheard = deployment(settings.worker("w"))
    running.check = unheard.complaints
    row = replace(ROWS[0], version=2, shape=Shape.CONSECUTIVE, value_format=None)
    source.now = BASE.with_rows_of(RuleTables((Change(2, "a", "b", NOON),), rows=(row,)))
    running.look()
    assert (running.rules.version, running.status.rejected) == (1, 0)
    running.check = judged.complaints
    running.look()
    assert running.rules.version == 2


def test_no_version_is_followed_by_an_earlier_one(settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    """A file that was replaced, or a database restored from a backup: the mirror tells the latest version that was in force."""
    judged = deployment(settings.worker("w"))
    later = replace(BASE, changes=(Change(5, "a", "b", NOON),))
    started = RulesInForce(source := Kept(replace(BASE, changes=(Change(3, "a", "b", NOON),))), judged.complaints)
    started.mirror = Kept(later)
    assert started.start().version == 5
    assert "the latest valid version of the test's is 3; version 5 was in force, and stays" in caplog.text
    for version, in_force in ((4, 5), (5, 5), (6, 6), (5, 6)):
        source.now = replace(BASE, changes=(Change(version, "a", "b", NOON),))
        started._logged_at = None
        started.look()
        assert started.rules.version == in_force
        told = f"is at version {version}, an earlier one, which is not taken"
        assert (told in caplog.text) == (version < in_force)


def test_a_rule_that_is_taken_away_for_its_fault_is_no_fault_any_more(settings: Settings) -> None:
    judged = deployment(settings.worker("w"))
    wrong = replace(BASE, rows=(*BASE.rows[:4], replace(BASE.rows[4], give_up_when="at(25:00)")))
    assert judged.complaints(RuleSet(wrong)) != []
    away = Change(2, "a", "b", NOON), replace(BASE.rules[1], version=2, enabled=False)
    assert judged.complaints(RuleSet(wrong.with_rows_of(RuleTables(away[:1], away[1:])))) == []


def test_built_in_rules_give_way_to_the_first_version(settings: Settings) -> None:
    judged = deployment(settings.worker("w"))
    source: Any = Away(BASE)
    started = RulesInForce(source, lambda rules: [], defaults=default_rules(settings.destinations))
    assert started.start().rules[0].rule_id == "default"
    started.source, started.check = Kept(BASE), judged.complaints
    started.look()
    assert [rule.rule_id for rule in started.rules.rules] == ["low-stock", "spare"]


@pytest.mark.parametrize("fault", ["source", "check"])
def test_the_thread_that_follows_survives_whatever_happens_there(
    settings: Settings, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    judged = deployment(settings.worker("w"))
    running = RulesInForce(source := Kept(BASE), judged.complaints)
    running.start()

    def broken(*arguments: object) -> Any:
        raise ValueError("All strings must be XML compatible")

    better = BASE.with_rows_of(RuleTables((Change(2, "a", "b", NOON),), rows=(replace(ROWS[0], version=2, age_ms=7),)))
    source.now = better
    if fault == "source":
        source.read = broken  # type: ignore[method-assign]
    else:
        running.check = broken
    running.look()
    assert (running.rules.version, running.status.errors) == (1, 1)
    assert "must be XML compatible" in caplog.text
    running.source, running.check = Kept(better), judged.complaints
    running.look()
    assert running.rules.version == 2
