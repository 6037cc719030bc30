"""Each promise names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.sim import broken_rules
from tests.sim.defects import DEFECTS
from uow.config.settings import SETTINGS

TESTS = Path(__file__).resolve().parent.parent
PAGE = (TESTS.parent / "docs" / "guarantees.md").read_text("utf-8")
NAMED = re.findall(r"`([a-z_/]+\.py)::(\w+)`", PAGE)


def test_every_promise_names_a_test() -> None:
    promises = re.split(r"^## \d\. ", PAGE, flags=re.MULTILINE)[1:]
    assert len(promises) == 6
    assert all("::" in promise for promise in promises)


@pytest.mark.parametrize(("path", "name"), NAMED, ids=[name for _, name in NAMED])
def test_named_test_exists(path: str, name: str) -> None:
    assert re.search(rf"^\s*(async )?def {name}\(", (TESTS / path).read_text("utf-8"), re.MULTILINE)


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`([a-z]+(?:_[a-z]+){2,})`", PAGE))))
def test_named_defect_is_planted(name: str) -> None:
    """A defect that is named behind a test is one that the test plants: a name of a setting or a metric says so by itself."""
    settings = {setting.key.rpartition(".")[2] for setting in SETTINGS}
    assert name in DEFECTS.keys() | broken_rules.NAMES | settings or name.startswith("uow_")


@pytest.mark.parametrize("row", [row for row in PAGE.splitlines() if "::" in row])
def test_row_says_where_its_test_runs_only_by_make_drill(row: str) -> None:
    named = re.findall(r"`([a-z_/]+\.py)::(\w+)`", row)
    drills = [name for path, name in named if is_drill(path, name)]
    assert not drills or "make drill" in row, drills


def is_drill(path: str, name: str) -> bool:
    """Whether all of a test is a drill."""
    found = re.search(rf"((?:^@.*\n)*)^\s*(?:async )?def {name}\(", (TESTS / path).read_text("utf-8"), re.MULTILINE)
    return found is not None and "@pytest.mark.drill" in found[1]
