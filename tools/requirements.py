"""The page `docs/requirements.md`: each requirement on units of work, the tests that cite it, and what does not hold yet.

`docs/requirements.csv` has id, weight, section, the requirement in a sentence, and, where something is missing, what. Tests cite an id in
their name (`..._w28`) or docstring (`W-28`). Belongs here: finding the citations, and the page. Does not belong here: any requirement.
"""

from __future__ import annotations

import ast
import csv
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGE = Path("docs") / "requirements.md"
SHOWN = 3
"""Tests named per requirement; more are counted."""

HEAD = """\
# Requirements on units of work

<!-- Written by `make docs` from `docs/requirements.csv` and the tests that cite an id. Do not edit. -->

`W-28` is cited by the test that holds it, in its name or docstring. A row without a test, or one that holds in part only, says what is
missing. Exactly-once and failover: [guarantees.md](guarantees.md).

"""


class Requirement(NamedTuple):
    """One row of the list; `not_yet` is empty where the requirement holds."""

    id: str
    weight: str
    section: str
    requirement: str
    not_yet: str


def requirements() -> list[Requirement]:
    """All of them, in order."""
    with (ROOT / "docs" / "requirements.csv").open(encoding="utf-8", newline="") as file:
        return [Requirement(**row) for row in csv.DictReader(file)]


def citations() -> Mapping[str, Sequence[str]]:
    """By id, the tests that cite it: `core/test_deadlines.py::test_...`."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        place = path.relative_to(ROOT / "tests").as_posix()
        for name, text in _tests(path):
            for number in {int(each) for each in re.findall(r"(?:_w|W-)(\d+)", text)}:
                found[f"W-{number:02}"].append(f"{place}::{name}")
    return found


def _tests(path: Path) -> Iterator[tuple[str, str]]:
    """Name of each test of a file, and where it may cite: its name and docstring."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node.name, f"{node.name} {ast.get_docstring(node) or ''}"


def page() -> str:
    """The page's text."""
    listed, cited = requirements(), citations()
    open_rows = [one for one in listed if one.not_yet and one.weight != "Could"]
    lines = [
        HEAD,
        f"{len(listed)} requirements; {len(open_rows)} that are Must or Should do not hold, or hold in part.\n",
    ]
    for section, rows in groupby(listed, key=lambda one: one.section):
        lines += [
            f"\n## {section}\n",
            "| Id | Weight | Requirement | Tests, and what is missing |",
            "| --- | --- | --- | --- |",
        ]
        lines += [
            f"| {one.id} | {one.weight} | {one.requirement} | {_proof(one, cited.get(one.id, ()))} |" for one in rows
        ]
    return "\n".join(lines) + "\n"


def _proof(one: Requirement, tests: Sequence[str]) -> str:
    parts = [f"`{test}`" for test in tests[:SHOWN]]
    if len(tests) > SHOWN:
        parts.append(f"and {len(tests) - SHOWN} more")
    if one.not_yet:
        parts.append(f"**Not yet:** {one.not_yet}")
    return "<br>".join(parts)
