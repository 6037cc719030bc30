"""The page `docs/requirements.md`: each requirement on units of work, clause by clause, with the tests that hold it, or what is missing.

`docs/requirements/*.toml` has a section each. A requirement's `clause`s are its text, word for word; its `check`s are what must be tried, each
in a *tier*: `core` (no broker), `broker`, `spark`. Both name their tests. A clause that has none says by `why` that there is nothing to try, or by
`not_yet` what is missing. A test of a higher tier counts for a lower one, never the other way round.

Belongs here: reading these files, judging the status, and the page. Does not belong here: any requirement.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
FOLDER = Path("docs") / "requirements"
PAGE = Path("docs") / "requirements.md"
TIERS = ("core", "broker", "spark")
WITH_SPARK = frozenset({"broker/test_demo.py"})
"""Files of other folders whose tests run sink, audit and report, as processes of the demo."""
SHOWN = 3
"""Tests named per clause; more are counted."""

HEAD = """\
# Requirements on units of work

<!-- Written by `make docs` from `docs/requirements/*.toml`. Do not edit. -->

Each requirement in full, clause by clause, and below *to be tried* what must be tried and where: in memory (core), on a broker, in Spark. A clause
holds when its tests are there, in that tier or a higher one; a requirement holds when all of its clauses do, else it holds **in part** and says what
is missing. Exactly-once and failover: [guarantees.md](guarantees.md). Paths are below `tests/`.

"""


class Clause(NamedTuple):
    """A part of a requirement.

    Attributes:
        text: Word for word.
        tests: That hold it: `core/test_deadlines.py::test_...`.
        tier: In which it must be tried; empty: any.
        why: Why there is nothing to try, where that is so.
        not_yet: The missing part, if any.
    """

    text: str
    tests: Sequence[str] = ()
    tier: str = ""
    why: str = ""
    not_yet: str = ""

    def missing(self) -> str:
        """Why the clause does not hold, or only in part; empty if it holds."""
        if self.not_yet or self.why:
            return self.not_yet
        if not self.tests:
            return "no test"
        if self.tier and all(TIERS.index(tier_of(test)) < TIERS.index(self.tier) for test in self.tests):
            return f"no test in tier {self.tier}"
        return ""


class Requirement(NamedTuple):
    """One requirement: its text as clauses, and what must be tried."""

    id: str
    weight: str
    section: str
    clauses: Sequence[Clause]
    checks: Sequence[Clause]

    @property
    def holds(self) -> bool:
        """True if every clause has its tests."""
        return not any(each.missing() for each in (*self.clauses, *self.checks))


def requirements() -> list[Requirement]:
    """All requirements, in order."""
    return [one for path in sorted((ROOT / FOLDER).glob("*.toml")) for one in _section(path)]


def _section(path: Path) -> Iterator[Requirement]:
    read = tomllib.loads(path.read_text("utf-8"))
    section = read.pop("section")
    for number, row in read.items():
        yield Requirement(number, row["weight"], section, _clauses(row["clause"]), _clauses(row.get("check", ())))


def _clauses(rows: Iterable[Mapping[str, Any]]) -> list[Clause]:
    return [Clause(**row) for row in rows]


def tier_of(test: str) -> str:
    """The tier of a test by its folder, or by its file."""
    folder = test.partition("/")[0]
    return "spark" if test.partition("::")[0] in WITH_SPARK else folder if folder in TIERS else "core"


def all_tests() -> Mapping[str, str]:
    """Every test, `core/test_deadlines.py::test_...`, with its name and docstring, which may cite ids."""
    found: dict[str, str] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        place = path.relative_to(ROOT / "tests").as_posix()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                found[f"{place}::{node.name}"] = f"{node.name} {ast.get_docstring(node) or ''}"
    return found


def citations() -> Mapping[str, Sequence[str]]:
    """By id, the tests that cite it, as `..._w28` in their name or as `W-28` in their docstring."""
    found: dict[str, list[str]] = defaultdict(list)
    for test, text in all_tests().items():
        for number in {int(each) for each in re.findall(r"(?:_w|W-)(\d+)", text)}:
            found[f"W-{number:02}"].append(test)
    return found


def page() -> str:
    """The page's text."""
    listed = requirements()
    open_rows = [one for one in listed if not one.holds and one.weight != "Could"]
    lines = [HEAD, f"{len(listed)} requirements; {len(open_rows)} that are Must or Should hold in part or not at all."]
    if open_rows:
        lines += ["", ", ".join(f"[{one.id}](#{_anchor(one)})" for one in open_rows)]
    section = ""
    for one in listed:
        if one.section != section:
            section = one.section
            lines += ["", f"## {section}"]
        lines += ["", f"### {_title(one)}", "", "| | Status | Tests, or what is missing |", "| --- | --- | --- |"]
        lines += [f"| {each.text} | {_status(each)} | {_proof(each)} |" for each in one.clauses]
        lines += [
            f"| *to be tried{f' ({each.tier})' if each.tier else ''}:* {each.text} | {_status(each)} | {_proof(each)} |"
            for each in one.checks
        ]
    return "\n".join(lines) + "\n"


def _title(one: Requirement) -> str:
    return f"{one.id} ({one.weight}): {'holds' if one.holds else 'in part'}"


def _anchor(one: Requirement) -> str:
    """The anchor of a heading in a Markdown page."""
    return re.sub(r"[^a-z0-9 -]", "", _title(one).lower()).replace(" ", "-")


def _status(clause: Clause) -> str:
    if clause.missing():
        return "**in part**" if clause.tests else "**no**"
    return "holds" if clause.tests else "-"


def _proof(clause: Clause) -> str:
    parts = [f"`{test}`" for test in clause.tests[:SHOWN]]
    if len(clause.tests) > SHOWN:
        parts.append(f"and {len(clause.tests) - SHOWN} more")
    parts += [f"**Missing:** {missing}" for missing in [clause.missing()] if missing]
    return "<br>".join([*parts, *([clause.why] if clause.why else [])])
