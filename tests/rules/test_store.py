"""Where rules are kept: SQLite, PostgreSQL and TOML give equal rules, and a change is one version (B-09 to B-11, B-18, B-19, B-214)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import pytest

from tests.rules.low_stock import FIXTURE, NOON, ROWS, RULE, TABLES, changed, row
from uow.processor.rules import store
from uow.processor.rules.changes import CannotChange, differences, rows_for
from uow.processor.rules.columns import NAMES, WrongRows
from uow.processor.rules.rule_file import read_rules, written
from uow.processor.rules.rule_set import RuleSet, RuleTables
from uow.processor.rules.store import RuleDatabase, RuleFile, RulesUnavailable, rule_source
from uow.topics.rules import Change, Delay, OnNoKey, Parameter, Source, WaitFrom

EVERYTHING = RuleTables(
    (Change(2, "buyer", "all kinds of rows", NOON),),
    (replace(RULE, version=2, priority=-5, max_waiting=3, accept="quantity > 1", on_rule_change=RULE.on_rule_change),),
    (row("Émile \"é'", "orders.x", None, None, 2, idle_ms=5, valid_from_ms=NOON, enabled=True),),
    (Delay("low-stock", "France", "bolt", 2, 5_000), Delay("low-stock", "France", "nut", 2, None)),
    (Source("low-stock", "invoice", 2, quantity=2, wait_from=WaitFrom.GROUP),),
    (Parameter("reply_hold_ms", 2, "1"),),
)


def same(one: RuleTables, other: RuleTables) -> bool:
    """True if both have the same rows, in any order."""
    return all(set(getattr(one, name)) == set(getattr(other, name)) for name in one.__slots__)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RuleDatabase]:
    """An empty store of each kind."""
    url = f"sqlite:///{tmp_path}/rules.db" if request.param == "sqlite" else request.getfixturevalue("empty_postgres")
    found = RuleDatabase(url)
    found.create()
    yield found
    found.close()


def test_all_sources_give_equal_rules_with_exact_numbers_b09(database: RuleDatabase) -> None:
    database.put(TABLES, after=0)
    database.put(EVERYTHING, after=1)
    assert same(database.read(RuleTables()), TABLES.with_rows_of(EVERYTHING))
    assert same(database.read(TABLES), TABLES.with_rows_of(EVERYTHING))
    assert same(RuleFile(FIXTURE).read(RuleTables()), TABLES)
    rules = RuleSet(database.read(RuleTables()))
    again = RuleSet(read_rules(written(rules), NOON))
    assert again.content() == rules.content()
    database.create()
    assert database.version() == 2, "making the tables again changes nothing"


def test_the_database_itself_refuses_a_count_of_0_and_the_whole_version_with_it(database: RuleDatabase) -> None:
    with pytest.raises(RulesUnavailable):
        database.put(changed(1, rows=(replace(ROWS[0], complete_count=0),)), after=0)
    assert (database.version(), database.read(RuleTables())) == (0, RuleTables())


def test_of_two_changes_of_one_version_one_is_refused(database: RuleDatabase) -> None:
    database.put(TABLES, after=0)
    refused: list[Exception] = []

    def put(why: str) -> None:
        try:
            database.put(changed(2, why=why, rows=(replace(ROWS[0], version=2, complete_count=7),)), after=1)
        except (CannotChange, RulesUnavailable) as error:
            refused.append(error)

    threads = [Thread(target=put, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [type(error) for error in refused] == [CannotChange]
    assert len(database.read(RuleTables()).changes) == 2


def test_a_look_is_one_query_and_reading_again_brings_only_newer_rows_b10(tmp_path: Path) -> None:
    queries: list[str] = []
    database = RuleDatabase(f"sqlite:///{tmp_path}/rules.db", on_query=queries.append)
    database.create()
    database.put(TABLES, after=0)
    known = database.read(RuleTables())
    queries.clear()
    assert database.version() == 1
    assert len(queries) == 1
    assert "uow_rule_head" in queries[0]
    assert database.read(known) == known


def test_a_file_is_whole_and_its_version_must_grow(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    text = FIXTURE.read_text()

    def write(new: str) -> None:
        path.write_text(new)
        os.utime(path, ns=(0, write.calls))  # type: ignore[attr-defined]
        write.calls += 1_000_000_000  # type: ignore[attr-defined]

    write.calls = 1  # type: ignore[attr-defined]
    file = RuleFile(path, settled_s=0.01)
    with pytest.raises(RulesUnavailable):
        file.version()
    write(text)
    assert file.version() == 1
    write(text)
    assert file.version() == 1
    shorter = "\n".join(line for line in text.splitlines() if "Spain" not in line)
    write(shorter)
    with pytest.raises(WrongRows, match="must grow above 1"):
        file.version()
    write(shorter.replace("version = 1", "version = 2"))
    assert [each.routing_name for each in file.read(TABLES).rows] == ["France", "UK", "*"]


def test_a_file_that_is_being_written_is_believed_once_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every beginning of the file that is TOML would be a version of its own: the first one without any rule."""
    path = tmp_path / "rules.toml"
    first, *more = FIXTURE.read_text("utf-8").splitlines(keepends=True)
    path.write_text(first)

    def slept(seconds: float) -> None:
        with path.open("a") as file:
            file.write(more.pop(0) if more else "")

    clock = SimpleNamespace(sleep=slept, time=lambda: path.stat().st_mtime, monotonic=lambda: 0.0)
    monkeypatch.setattr(store, "time", clock)
    assert same(RuleFile(path).read(RuleTables()), TABLES)


def test_a_file_that_changes_all_the_time_is_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rules.toml"
    path.write_bytes(FIXTURE.read_bytes())
    moments = iter(range(1_000))

    def slept(seconds: float) -> None:
        path.write_text(f"version = {next(moments)}")

    clock = SimpleNamespace(sleep=slept, time=lambda: path.stat().st_mtime, monotonic=lambda: float(next(moments)))
    monkeypatch.setattr(store, "time", clock)
    with pytest.raises(RulesUnavailable, match="is being written"):
        RuleFile(path).version()
    monkeypatch.undo()
    path.write_bytes(FIXTURE.read_bytes())
    assert RuleFile(path, settled_s=0.01).version() == 1


@pytest.mark.parametrize(
    ("source", "complaint"),
    [("mysql://x/y", "not mysql"), ("postgresql+asyncpg://x/y", "not postgresql"), ("://", "must be sqlite")],
)
def test_another_database_is_refused(source: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        rule_source(source)


def test_a_password_is_never_shown() -> None:
    database = RuleDatabase("postgresql://uow:secret@127.0.0.1:1/rules")
    with pytest.raises(RulesUnavailable) as raised:
        database.version()
    assert "secret" not in str(raised.value) + database.name


@pytest.mark.parametrize(
    "url", ["postgresql://u:pa secret@h/db", "postgresql://u:p%20secret@h/db", "postgresql://h/db?password=a+secret"]
)
def test_nor_is_one_with_a_space(url: str) -> None:
    assert "secret" not in RuleDatabase(url).name


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[", "is not TOML"),
        ("", "version = None"),
        ("version = true", "version = True"),
        ("version = 1\nrule = 5", "must be a list of tables"),
        ("version = 1\n[[rule]]\nrow = [1]", "must be a list of tables"),
        ("version = 1\nauthor='a'\nwhy='b'\n[[rule]]\nrule_idd = 'x'", "did you mean rule_id"),
        ("version = 1\nauthor='a'\nwhy='b'\n[[rule]]\nrule_id='x'\ndestination='d'\nkey_case='no'", "exact, casefold"),
        ("version = 1\nauthor='a'\nwhy='b'\n[[rule]]\nrule_id='x'\ndestination='d'\nversion=2", "above the file's"),
        ("version = 1\nauthor='a'\nwhy='b'\n[[rule]]\nrule_id='x'\ndestination='d'\npriority=1e3", "whole number"),
        (
            "version = 1\nauthor='a'\nwhy='b'\n[[rule]]\nrule_id='x'\ndestination='d'\npriority=9999999999999999999",
            "large",
        ),
        ("version = 1\nauthor='a'\nwhy='b'\ncolour='red'", "no such key"),
        ("a = " + "[" * 5_000, "is not TOML"),
    ],
)
def test_a_file_that_is_none_is_refused_with_a_complaint(text: str, complaint: str) -> None:
    with pytest.raises(WrongRows, match=complaint):
        read_rules(text, NOON)


# -- one version and the next


def put(rules: RuleSet, wanted: RuleTables, version: int) -> RuleSet:
    made = rows_for(rules, RuleSet(wanted), Change(version, "buyer", "because", NOON))
    return RuleSet(rules.tables.with_rows_of(made))


def test_putting_a_whole_set_writes_what_differs_and_disables_what_it_lacks_b19() -> None:
    first = put(RuleSet(RuleTables()), TABLES.with_rows_of(EVERYTHING), 1)
    second = put(first, replace(TABLES, rows=(*ROWS[:2], replace(ROWS[3], complete_count=11))), 2)
    assert second.content() == RuleSet(replace(TABLES, rows=(*ROWS[:2], replace(ROWS[3], complete_count=11)))).content()
    newer = [each for each in second.tables.rows if each.version == 2]
    assert {(each.routing_name, each.enabled) for each in newer} == {
        ("*", True),
        ("Spain", False),
        ("Émile \"é'", False),
    }
    assert second.as_of(1).content() == first.content()
    told = {(each.name, each.column): (each.old, each.new) for each in differences(first, second)}
    assert told["row low-stock/*", "complete_count"] == (10, 11)
    assert told["row low-stock/Spain", ""][1] is None
    assert told["rule low-stock", "accept"] == ("quantity > 1", None)


def test_a_version_is_taken_back_by_a_new_one_that_equals_the_old_b214() -> None:
    first = put(RuleSet(RuleTables()), TABLES, 1)
    second = put(first, TABLES.with_rows_of(EVERYTHING), 2)
    third = put(second, second.as_of(1).tables, 3)
    assert third.content() == first.content() != second.content()


def test_a_rule_that_was_taken_away_comes_back_as_it_is_wanted_then() -> None:
    first = put(RuleSet(RuleTables()), TABLES, 1)
    none = put(first, RuleTables(), 2)
    assert none.rules == ()
    back = put(none, replace(TABLES, rows=ROWS[:1]), 3)
    assert back.content() == RuleSet(replace(TABLES, rows=ROWS[:1])).content()


def test_nothing_new_is_no_version_and_two_planned_times_at_once_are_refused() -> None:
    first = put(RuleSet(RuleTables()), TABLES, 1)
    with pytest.raises(CannotChange, match="nothing differs"):
        put(first, TABLES, 2)
    planned = [replace(ROWS[0], version=2 + at, complete_count=at, valid_from_ms=NOON + at) for at in (1, 2)]
    with pytest.raises(CannotChange, match="one version after another"):
        put(first, replace(TABLES, rows=(*ROWS, *planned)), 2)
    second = put(first, replace(TABLES, rows=(*ROWS, planned[0])), 2)
    third = put(second, replace(TABLES, rows=(*ROWS, *planned)), 3)
    assert [each.row.complete_count for each in third.row_versions() if each.row.routing_name == "France"] == [2, 1, 10]


@pytest.mark.parametrize(("key", "said"), [("header:region", OnNoKey.DEFAULT), ("path:order.id", OnNoKey.REJECT)])
def test_tables_that_were_made_before_by_key_get_what_it_comes_to_b22(
    database: RuleDatabase, monkeypatch: pytest.MonkeyPatch, key: str, said: OnNoKey
) -> None:
    """Their check refuses the new word, and a row put by hand without it still means what it meant."""
    as_made = [
        text.replace("DEFAULT 'by_key'", "DEFAULT 'default'").replace("'by_key', ", "") for text in store.statements()
    ]
    assert as_made != store.statements()
    with database._connected(begin=True) as connection:
        for name in reversed(list(NAMES.values())):
            connection.exec_driver_sql(f"DROP TABLE {name}")
        connection.exec_driver_sql("DROP TABLE uow_rule_head")
    monkeypatch.setattr(store, "statements", lambda: as_made)
    database.create()
    rule = replace(RULE, group_key=key, on_no_key=OnNoKey.BY_KEY)
    database.put(replace(TABLES, rules=(rule,)), after=0)
    assert [each.on_no_key for each in database.read(RuleTables()).rules] == [said]
    source = Source("low-stock", "invoice", 2, quantity=1, correlation_path="path:order.id")
    database.put(changed(2, sources=(source,), rules=(replace(rule, version=2),)), after=1)
    assert [each.on_no_key for each in database.read(RuleTables()).rules] == [said, OnNoKey.REJECT]
