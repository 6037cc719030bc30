"""Which version is in force, and what holds while the source is away (B-10 to B-12, B-15 to B-17)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.processes import PATIENCE_S
from tests.rules.low_stock import FIXTURE, NOON, ROWS, RULE, TABLES, changed
from uow.processor.rules.checks import complaints_about
from uow.processor.rules.in_force import RuleFollower, RulesInForce, default_rules
from uow.processor.rules.rule_set import RuleTables
from uow.processor.rules.store import RuleDatabase, RuleFile
from uow.schemas.error_classes import ConfigError
from uow.topics.policies import DestinationPolicy, HandlingPolicy
from uow.topics.rules import DefaultGroup, OnNoKey

DESTINATIONS = {"supply": DestinationPolicy(handling_policy=HandlingPolicy.SINGLE_MESSAGE_DELIVERY)}


class Bench:
    """A database, a clock that stands still, and the rules in force."""

    def __init__(self, folder: Path, refresh_ms: int = 10_000) -> None:
        self.path = folder / "rules.db"
        self.now = 100.0
        self.queries: list[str] = []
        self.database = RuleDatabase(f"sqlite:///{self.path}", on_query=self.queries.append)
        self.database.create()
        self.database.put(TABLES, after=0)
        self.refresh_ms = refresh_ms
        self.rules = self.started_again()

    def started_again(self) -> RulesInForce:
        return RulesInForce(
            self.database,
            lambda rules: complaints_about(rules, DESTINATIONS),
            self.refresh_ms,
            monotonic=lambda: self.now,
        )

    def put(self, made: RuleTables) -> None:
        self.database.put(made, after=made.version - 1)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def france(version: int, **more: object) -> RuleTables:
    return changed(version, rows=(replace(ROWS[0], version=version, **more),))  # type: ignore[arg-type]


def count_of_france(bench: Bench) -> int | None:
    found = bench.rules.rules.resolve(RULE, "France", NOON)
    assert found is not None
    return found.row.complete_count


class Periods(threading.Event):
    """Lets time pass period by period: a wait ends at once if the test says so, and tells for how long it would have been.

    Attributes:
        asked_for: Seconds of each wait.
    """

    def __init__(self) -> None:
        super().__init__()
        self.asked_for: list[float | None] = []
        self._passed = threading.Semaphore(0)
        self._waits = threading.Semaphore(0)

    def wait(self, timeout: float | None = None) -> bool:
        self.asked_for.append(timeout)
        self._waits.release()
        self._passed.acquire()
        return self.is_set()

    def set(self) -> None:
        super().set()
        self._passed.release()

    def let_one_pass(self) -> None:
        """A period goes by; returns once the next one has begun."""
        self._passed.release()
        assert self._waits.acquire(timeout=PATIENCE_S)


@contextmanager
def followed(bench: Bench) -> Iterator[tuple[RuleFollower, Periods]]:
    periods = Periods()
    follower = RuleFollower(bench.rules, periods)
    assert periods._waits.acquire(timeout=PATIENCE_S)
    try:
        yield follower, periods
    finally:
        follower.stop()


def test_ten_thousand_records_in_one_period_are_one_query_b10(bench: Bench) -> None:
    bench.rules.start()
    with followed(bench) as (follower, periods):
        bench.queries.clear()
        for _ in range(10_000):
            assert follower.rules.resolve(RULE, "France", NOON) is not None
        periods.let_one_pass()
        assert len(bench.queries) == 1
        bench.put(france(2, complete_count=7))
        bench.queries.clear()
        periods.let_one_pass()
        assert len(bench.queries) > 1, "more only after a new version"
        assert periods.asked_for == [10.0, 10.0, 10.0]


def test_a_new_version_is_in_force_after_the_period_or_at_once_when_asked_b12(bench: Bench) -> None:
    bench.rules.start()
    with followed(bench) as (follower, periods):
        bench.put(france(2, complete_count=7))
        assert (count_of_france(bench), follower.rules.version) == (10, 1)
        periods.let_one_pass()
        assert (count_of_france(bench), follower.rules.version) == (7, 2)
        bench.put(france(3, complete_count=8))
        follower.refresh()
        assert periods._waits.acquire(timeout=PATIENCE_S)
        assert (count_of_france(bench), follower.rules.version) == (8, 3)


def test_who_asks_for_a_look_waits_until_it_is_done(bench: Bench) -> None:
    bench.rules.start()
    follower, waited = RuleFollower(bench.rules), []
    try:
        bench.put(france(2, complete_count=7))
        follower.look(lambda: waited.append(1))
        assert follower.read.version == 2
    finally:
        follower.stop()
    assert waited, "and serves what it has to meanwhile"


def test_an_invalid_version_takes_no_effect_and_is_counted_once_b15(bench: Bench) -> None:
    bench.put(france(2, complete_count=7))
    bench.put(france(3, complete_count=8))
    bench.rules.start()
    bench.put(france(4, complete_count=None, age_ms=None))
    for _ in range(3):
        bench.rules.look()
        assert count_of_france(bench) == 8
    assert (bench.rules.status.version, bench.rules.status.rejected) == (3, 1)
    assert [each.setting for each in bench.rules.status.complaints] == ["rule_row/low-stock/France.complete_count"]
    bench.put(france(5, complete_count=9))
    bench.rules.look()
    assert count_of_france(bench) == 9
    assert bench.rules.status.complaints == ()


def test_a_router_that_starts_late_takes_the_same_version_as_one_that_ran_on_b15(bench: Bench) -> None:
    bench.put(france(2, complete_count=7))
    bench.put(france(3, complete_count=None, age_ms=None))
    assert bench.rules.start().version == 2


def test_the_last_known_rules_hold_while_the_database_is_away_b16(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.rules.start()
    away = bench.path.with_suffix(".away")
    bench.path.rename(away)
    with caplog.at_level(logging.WARNING, "uow.rules"):
        for period in range(30):
            bench.now += 10
            bench.rules.look()
            assert count_of_france(bench) == 10
            assert bench.rules.age_s == 10 * (period + 1)
    assert 4 <= len(caplog.records) <= 6, "about once a minute"
    away.rename(bench.path)
    bench.put(france(2, complete_count=7))
    bench.rules.look()
    assert count_of_france(bench) == 7
    assert bench.rules.age_s == 0


class Kept:
    """A mirror."""

    def __init__(self, tables: RuleTables | None) -> None:
        self._tables = tables

    def tables(self) -> RuleTables | None:
        return self._tables


def test_at_the_start_the_mirror_serves_then_defaults_if_they_are_allowed_else_it_says_so_b17(bench: Bench) -> None:
    away = bench.path.with_suffix(".away")
    bench.path.rename(away)
    with pytest.raises(ConfigError, match=r"rules\.source.*no such file.*allow_defaults"):
        bench.rules.start()
    bench.rules.defaults = default_rules(DESTINATIONS)
    rules = bench.rules.start()
    found = rules.resolve(rules.rules[0], "anything", NOON)
    assert found is not None
    assert (found.rule.destination, found.row.target_topic) == ("supply", None)
    assert (found.row.complete_count, found.row.age_ms) == (10, 60_000)
    bench.rules = bench.started_again()
    bench.rules.mirror = Kept(TABLES)
    assert bench.rules.start().resolve(RULE, "France", NOON) is not None
    assert count_of_france(bench) == 10
    away.rename(bench.path)
    bench.put(france(2, complete_count=7))
    bench.rules.look()
    assert count_of_france(bench) == 7, "the database is followed once it is back"


def test_no_version_at_all_is_no_rules(tmp_path: Path) -> None:
    empty = RuleDatabase(f"sqlite:///{tmp_path}/empty.db")
    empty.create()
    with pytest.raises(ConfigError, match="there are none"):
        RulesInForce(empty, lambda rules: []).start()


class Mirror:
    """The rules that were in force before."""

    def __init__(self, kept: RuleTables) -> None:
        self._kept = kept

    def tables(self) -> RuleTables:
        return self._kept


def of_a_file(path: Path, text: str, kept: RuleTables) -> RulesInForce:
    path.write_text(text)
    rules = RulesInForce(RuleFile(path, settled_s=0), lambda rules: (), mirror=Mirror(kept))
    rules.start()
    return rules


def test_a_file_from_before_means_what_it_meant_until_its_version_grows_b22_b23(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """`default_group` and `on_no_key` had other defaults once, and a file that leaves them out is in force with those."""
    text = FIXTURE.read_text().replace('default_group = "shared"\n', "")
    then = {"default_group": DefaultGroup.SHARED, "on_no_key": OnNoKey.DEFAULT}
    kept = replace(TABLES, rules=(replace(RULE, **then),))  # type: ignore[arg-type]
    rules = of_a_file(tmp_path / "rules.toml", text, kept)
    assert rules.rules.rules == kept.rules
    assert 'default_group = "shared", on_no_key = "default"' in caplog.text
    rules.look()
    assert rules.rules.rules == kept.rules
    (tmp_path / "rules.toml").write_text(text.replace("version = 1", "version = 2"))
    rules.look()
    (rule,) = rules.rules.rules
    assert (rule.version, rule.default_group, rule.on_no_key) == (2, DefaultGroup.PER_NAME, OnNoKey.BY_KEY)


def test_of_a_file_that_changed_in_place_in_more_than_that_the_file_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = FIXTURE.read_text().replace('default_group = "shared"\n', "").replace("= 15000", "= 15001")
    rules = of_a_file(tmp_path / "rules.toml", text, TABLES)
    assert [each.default_group for each in rules.rules.rules] == [DefaultGroup.PER_NAME]
    assert "is not the one that was in force before" in caplog.text


def test_of_a_file_that_says_these_columns_the_file_counts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = FIXTURE.read_text().replace('default_group = "shared"\n', 'default_group = "shared"\non_no_key = "reject"\n')
    kept = replace(TABLES, rules=(replace(RULE, default_group=DefaultGroup.PER_NAME, on_no_key=OnNoKey.BY_KEY),))
    rules = of_a_file(tmp_path / "rules.toml", text, kept)
    (rule,) = rules.rules.rules
    assert (rule.default_group, rule.on_no_key) == (DefaultGroup.SHARED, OnNoKey.REJECT)
    assert "is not the one that was in force before" in caplog.text
