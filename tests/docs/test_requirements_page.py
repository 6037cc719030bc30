"""Every requirement on units of work has a test that cites it, or says what is missing."""

from __future__ import annotations

import pytest

from tools import requirements as page_of
from tools.requirements import citations, page, requirements


def test_each_must_and_should_has_a_test_or_says_what_is_missing() -> None:
    cited = citations()
    silent = [one.id for one in requirements() if not cited.get(one.id) and not one.not_yet]
    assert silent == []


def test_no_test_cites_a_requirement_that_is_not_listed() -> None:
    listed = {one.id for one in requirements()}
    assert {name: tests for name, tests in citations().items() if name not in listed} == {}


def test_page_tells_a_hole_even_where_tests_cite_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    first, *others = requirements()
    partly = first._replace(not_yet="something is missing")
    monkeypatch.setattr(page_of, "requirements", lambda: [partly, *others])
    row = next(line for line in page().splitlines() if line.startswith(f"| {partly.id} "))
    assert "tests" not in row.split("|")[0]
    assert "::test_" in row
    assert f"**Not yet:** {partly.not_yet}" in row
