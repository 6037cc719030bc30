"""Every clause of every requirement on units of work names tests that are there, or says what is missing; the page can say no."""

from __future__ import annotations

import pytest

from tools import requirements as page_of
from tools.requirements import TIERS, Clause, Requirement, all_tests, citations, page, requirements


def test_each_clause_of_must_and_should_has_a_test_or_says_what_is_missing() -> None:
    silent = [
        f"{one.id}: {each.text}"
        for one in requirements()
        for each in (*one.clauses, *one.checks)
        if one.weight != "Could" and not (each.tests or each.why or each.not_yet)
    ]
    assert silent == []


def test_each_test_that_is_named_is_there() -> None:
    there = all_tests()
    named = {test for one in requirements() for each in (*one.clauses, *one.checks) for test in each.tests}
    assert sorted(named - there.keys()) == []


def test_each_check_names_its_tier_and_no_clause_both_holds_and_has_nothing_to_try() -> None:
    for one in requirements():
        assert {each.tier for each in one.checks} <= {"", *TIERS}
        assert not [each.text for each in (*one.clauses, *one.checks) if each.why and each.tests]


def test_no_test_cites_a_requirement_that_is_not_listed() -> None:
    listed = {one.id for one in requirements()}
    assert {name: tests for name, tests in citations().items() if name not in listed} == {}


@pytest.mark.parametrize(
    ("clause", "missing"),
    [
        (Clause("x"), "no test"),
        (Clause("x", ["core/test_a.py::test_b"], "broker"), "no test in tier broker"),
        (Clause("x", ["broker/test_a.py::test_b"], "spark"), "no test in tier spark"),
        (Clause("x", ["spark/test_a.py::test_b"], "broker"), ""),
        (Clause("x", ["client/test_a.py::test_b"], "core"), ""),
        (Clause("x", ["core/test_a.py::test_b"], "core", not_yet="half of it"), "half of it"),
        (Clause("x", why="points elsewhere"), ""),
    ],
)
def test_a_clause_holds_by_a_test_of_its_tier_or_a_higher_one(clause: Clause, missing: str) -> None:
    assert clause.missing() == missing


def test_a_row_whose_clause_has_no_test_of_its_tier_shows_as_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Requirement("W-01", "Must", "S", [Clause("a", ["core/t.py::test_a"])], [])
    partly = whole._replace(id="W-02", checks=[Clause("b", ["core/t.py::test_a"], "broker")])
    monkeypatch.setattr(page_of, "requirements", lambda: [whole, partly])
    shown = page()
    assert "2 requirements; 1 that are Must or Should hold in part or not at all." in shown
    assert "### W-01 (Must): holds" in shown
    assert "### W-02 (Must): in part" in shown
    assert (
        "| *to be tried (broker):* b | **in part** | `core/t.py::test_a`<br>**Missing:** no test in tier broker |"
        in shown
    )
