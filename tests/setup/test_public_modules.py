"""The public names: each can be used, and is all that a program of somebody else has to import."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from tests.setup.wheels import ROOT

PUBLIC = (
    "uow",
    "uow.aio",
    "uow.errors",
    "uow.embedded",
    "uow.client.kafka_port",
    "uow.spark_sink.views",
    "uow.testing",
)
PAGES = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").glob("*.md"),
    *(page for page in (ROOT / "examples").rglob("*.md") if "node_modules" not in page.parts),
]
PROGRAMS = [*(ROOT / "examples").rglob("*.py")]


def imported(code: str) -> Iterator[str]:
    """Modules of ours that a program imports."""
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Import(names=names):
                yield from (each.name for each in names if each.name.split(".")[0] == "uow")
            case ast.ImportFrom(module=str(module), names=names) if module.split(".")[0] == "uow":
                # a name of `uow` may be one of its public modules
                yield from (f"uow.{each.name}" if f"uow.{each.name}" in PUBLIC else module for each in names)


@pytest.mark.parametrize("module", PUBLIC)
def test_each_public_name_is_there_and_says_what_it_is(module: str) -> None:
    names = import_module(module).__all__
    assert len(names) == len({*names})
    for name in names:
        found = getattr(import_module(module), name)
        assert found.__doc__, name


@pytest.mark.parametrize("module", PUBLIC)
def test_a_name_that_is_not_there_is_an_attribute_error(module: str) -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = import_module(module).Nothing


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_an_example_imports_public_names_only(path: Path) -> None:
    assert {*imported(path.read_text())} <= {*PUBLIC}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_page_shows_programs_that_import_public_names_only(path: Path) -> None:
    programs = re.findall(r"^```python\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)
    assert {module for code in programs for module in imported(code)} <= {*PUBLIC}


def test_the_page_lists_the_public_modules() -> None:
    page = (ROOT / "docs" / "public-names.md").read_text()
    assert {*re.findall(r"^\| `(uow[.\w]*)` \|", page, re.MULTILINE)} == {*PUBLIC}
