"""Docstrings of the product say what a thing is or returns: none opens with "What" or "Whether"."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("uow", "processor", "topics", "schemas", "spark_sink", "tools", "bench", "examples")
OPENING = re.compile(r"\s*(What|Whether)\b")


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of every string that stands by itself: docstrings, and texts below attributes and constants."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for each in body if isinstance(body, list) else []:
            if (
                isinstance(each, ast.Expr)
                and isinstance(each.value, ast.Constant)
                and isinstance(each.value.value, str)
            ):
                yield each.lineno, each.value.value


def riddles(source: str) -> list[int]:
    """Lines of docstrings with a forbidden opening."""
    return sorted(line for line, text in docstrings(source) if OPENING.match(text))


def files(folder: str) -> list[Path]:
    """Python files of a folder, without those below the links of `uow/`."""
    found = (ROOT / folder).rglob("*.py")
    return [path for path in sorted(found) if not any(parent.is_symlink() for parent in path.parents)]


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_docstring_opens_with_what_or_whether(folder: str) -> None:
    assert files(folder)
    assert [
        f"{path.relative_to(ROOT)}:{line}" for path in files(folder) for line in riddles(path.read_text("utf-8"))
    ] == []


def test_such_docstrings_are_found() -> None:
    source = '"""What it is."""\nX = 1\n"""Whether."""\nclass A:\n    """Whatever it is."""\n    def b(self):\n        """What\n        not."""\n'
    assert riddles(source) == [1, 3, 7]
