"""The scenarios of `docs/rules.md` are played with the rules that stand above them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import uow.testing

PAGE = (Path(__file__).parents[2] / "docs" / "rules.md").read_text(encoding="utf-8")
PLAYED = re.findall(r"```toml\n((?:(?!```).)+?)```\n\n```text\n(at .+?)```", PAGE, re.DOTALL)


def test_the_page_has_a_scenario() -> None:
    assert len(PLAYED) == PAGE.count("```text\nat ") > 0


@pytest.mark.parametrize(("rules", "lines"), PLAYED)
def test_what_the_page_shows_comes_out(rules: str, lines: str) -> None:
    uow.testing.play(rules, lines)


def test_a_change_that_came_twice_stands_for_no_other() -> None:
    ((rules, lines),) = PLAYED
    twice = lines.replace('"total_order": 2', '"total_order": 1')
    with pytest.raises(uow.testing.ScenarioError, match="complete 4"):
        uow.testing.play(rules, twice)
