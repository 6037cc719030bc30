"""Each promise names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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
