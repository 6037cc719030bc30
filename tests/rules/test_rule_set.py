"""Which row applies, and under which name (aggregation, section 5; B-18, B-20 to B-24)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rules.low_stock import NOON, ROWS, RULE, TABLES, changed, row
from uow.processor.rules.rule_set import RuleSet, RuleTables
from uow.topics.rules import Change, Delay, KeyCase, Parameter, ResolvedRow, Rule, Source


def with_versions(*more: RuleTables) -> RuleSet:
    tables = TABLES
    for each in more:
        tables = tables.with_rows_of(each)
    return RuleSet(tables)


def facts(found: ResolvedRow | None) -> tuple[object, ...] | None:
    return None if found is None else (found.row.target_topic, found.row.complete_count, found.row.age_ms)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("France", ("orders.france", 10, 30_000)),
        ("UK", ("orders.uk", 5, 15_000)),
        ("Spain", ("orders.spain", 20, 60_000)),
        ("Mars", ("orders.other", 10, 60_000)),
        ("*", ("orders.other", 10, 60_000)),
    ],
)
def test_a_name_selects_its_row_and_any_other_the_default_b21_b22_b23(name: str, expected: tuple[object, ...]) -> None:
    assert facts(RuleSet(TABLES).resolve(RULE, name, NOON)) == expected


def test_without_a_default_row_an_unknown_name_has_none_b23() -> None:
    assert RuleSet(replace(TABLES, rows=ROWS[:3])).resolve(RULE, "Mars", NOON) is None


def test_names_are_compared_exactly_or_without_case_by_rule_b20() -> None:
    folded = with_versions(changed(2, rules=(replace(RULE, version=2, key_case=KeyCase.CASEFOLD),)))
    for rules, expected in ((RuleSet(TABLES), "*"), (folded, "France")):
        found = rules.resolve(RULE, "france", NOON)
        assert found is not None
        assert found.row.routing_name == expected


def test_a_planned_row_holds_from_its_moment_on_and_the_older_one_before_it_b18() -> None:
    rules = with_versions(changed(2, rows=(row("France", "orders.paris", 3, 30_000, 2, valid_from_ms=NOON),)))
    before, after = rules.resolve(RULE, "France", NOON - 1), rules.resolve(RULE, "France", NOON)
    assert before is not None
    assert after is not None
    assert (before.name, after.name) == ("low-stock/France@1", "low-stock/France@2")
    assert after.row.target_topic == "orders.paris"
    assert rules.is_dated(RULE)


def test_a_row_that_has_ended_leaves_the_older_one() -> None:
    rules = with_versions(changed(2, rows=(row("France", "orders.paris", 3, 30_000, 2, valid_to_ms=NOON),)))
    assert [facts(rules.resolve(RULE, "France", NOON + step)) for step in (-1, 0)] == [
        ("orders.paris", 3, 30_000),
        ("orders.france", 10, 30_000),
    ]


def test_a_disabled_row_gives_way_to_the_default_and_not_to_its_older_version_b18() -> None:
    rules = with_versions(changed(2, rows=(row("France", "orders.france", 10, 30_000, 2, enabled=False),)))
    assert facts(rules.resolve(RULE, "France", NOON)) == ("orders.other", 10, 60_000)


def test_rules_are_asked_by_priority_and_a_disabled_one_is_not() -> None:
    first, second, off = (Rule(name, 2, "supply", priority=at) for name, at in (("b", 50), ("a", 100), ("c", 1)))
    rules = with_versions(changed(2, rules=(first, second, replace(off, enabled=False))))
    assert [rule.rule_id for rule in rules.rules] == ["b", "a", "low-stock"]
    assert [rule.rule_id for rule in rules.rules_for(["low-stock", "a", "c", "unknown"])] == ["a", "low-stock"]


def test_the_delay_of_an_item_is_of_its_row_and_its_latest_version_b05() -> None:
    def delay(item: str, version: int, ms: int | None) -> Delay:
        return Delay("low-stock", "France", item, version, ms)

    rules = with_versions(
        changed(2, delays=(delay("bolt", 2, 5_000), delay("nut", 2, 7_000))),
        changed(3, delays=(delay("nut", 3, None),)),
    )
    assert [rules.delay_ms(RULE, "France", item) for item in ("bolt", "nut", "screw")] == [5_000, None, None]
    assert rules.delay_ms(RULE, "UK", "bolt") is None


def test_a_version_that_changes_the_rule_gives_each_of_its_rows_a_new_name() -> None:
    rules = with_versions(changed(2, rules=(replace(RULE, version=2, order_by="sequence"),)))
    found = rules.resolve(RULE, "UK", NOON)
    assert found is not None
    assert (found.name, found.rule.order_by) == ("low-stock/UK@2", "sequence")


def test_what_is_taken_away_makes_a_new_name_too() -> None:
    source = Source("low-stock", "invoice", 2, quantity=1)
    steps = (
        changed(2, sources=(source,), parameters=(Parameter("reply_hold_ms", 2, "1"),)),
        changed(3, sources=(replace(source, version=3, enabled=False),)),
        changed(4, parameters=(Parameter("reply_hold_ms", 4, "60000"),)),
    )
    names = [with_versions(*steps[:count]).resolve(RULE, "UK", NOON) for count in range(4)]
    assert [each and each.name for each in names] == [f"low-stock/UK@{version}" for version in (1, 2, 3, 4)]
    assert [each and (len(each.sources), len(each.parameters)) for each in names] == [(0, 0), (1, 1), (0, 1), (0, 0)]


def test_before_a_planned_row_the_older_one_is_not_renamed_by_a_later_change_of_the_rule() -> None:
    rules = with_versions(
        changed(2, rows=(row("France", "orders.paris", 3, 30_000, 2, valid_from_ms=NOON),)),
        changed(3, rules=(replace(RULE, version=3, order_by="sequence"),)),
    )
    found = [rules.resolve(RULE, "France", at) for at in (NOON - 1, NOON)]
    assert [each and (each.name, each.rule.order_by) for each in found] == [
        ("low-stock/France@1", "arrival"),
        ("low-stock/France@3", "sequence"),
    ]


def test_content_is_equal_when_only_versions_differ_b214() -> None:
    changed_row = row("France", "orders.france", 99, 30_000, 2)
    new_row = row("Italy", "orders.italy", 1, 1, 2)
    parameter = Parameter("delivery_attempts", 2, "9")
    second = changed(2, rows=(changed_row, new_row), parameters=(parameter,))
    third = changed(
        3,
        rows=(replace(ROWS[0], version=3), replace(new_row, version=3, enabled=False)),
        parameters=(replace(parameter, version=3, value="5"),),
    )
    assert with_versions(second).content() != with_versions().content()
    assert with_versions(second, third).content() == with_versions().content()
    assert with_versions(second, third).as_of(2).content() == with_versions(second).content()


moments = st.none() | st.integers(0, 6)


@given(
    rows=st.lists(st.tuples(moments, moments, st.booleans(), st.booleans()), min_size=1, max_size=6),
    rules=st.lists(st.booleans(), min_size=6, max_size=6),
)
def test_one_name_never_means_two_rows(
    rows: list[tuple[int | None, int | None, bool, bool]], rules: list[bool]
) -> None:
    tables = RuleTables()
    known: dict[str, ResolvedRow] = {}
    for version, ((start, end, enabled, has_row), has_rule) in enumerate(zip(rows, rules, strict=False), 1):
        tables = tables.with_rows_of(
            RuleTables(
                (Change(version, "a", "b", version),),
                (Rule("r", version, "d", max_waiting=version),) if has_rule or version == 1 else (),
                (row("x", f"t{version}", 1, 1, version, valid_from_ms=start, valid_to_ms=end, enabled=enabled),)
                if has_row
                else (),
            )
        )
        tables = replace(tables, rows=tuple(replace(each, rule_id="r") for each in tables.rows))
        found = RuleSet(tables)
        for at in range(-1, 8):
            resolved = found.resolve(Rule("r", 1, "d"), "x", at)
            if resolved is not None:
                assert known.setdefault(resolved.name, resolved) == resolved
