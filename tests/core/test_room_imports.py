"""Core, engine and rules import what their lists name, and nothing else: neither themselves nor by what they import."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "uow"
CORE, ENGINE, RULES = "uow.processor.core", "uow.processor.engine", "uow.processor.rules"

ALLOWED: Mapping[str, tuple[str, ...]] = {
    CORE: ("uow.schemas", "uow.topics"),
    ENGINE: (CORE, "uow.schemas", "uow.topics"),
    RULES: ("uow.schemas", "uow.topics"),
}
"""Rooms whose modules each of them may import, beside its own and the standard library."""
LIBRARIES: Mapping[str, frozenset[str]] = {
    CORE: frozenset({"google_crc32c", "cryptography"}),
    ENGINE: frozenset({"google_crc32c", "cryptography", "fastavro"}),
    RULES: frozenset({"google_crc32c", "cryptography", "cel", "jsonpath", "lxml", "sqlalchemy"}),
}
"""Libraries that `uow.schemas` and `uow.topics` bring along: checksums, signatures of commands, and Avro where a record is written by its schema. Those of expressions and their store."""


def _path(module: str) -> Path | None:
    """The file of a module of ours; None if there is none of this name."""
    path = ROOT.joinpath(*module.split(".")[1:])
    return next((each for each in (path.with_suffix(".py"), path / "__init__.py") if each.is_file()), None)


def imports_of(source: str) -> Iterator[str]:
    """Modules that a module imports, in functions and for type checkers as well; what is imported from a package may be one of its modules."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None, "modules of ours are named in full"
            for each in node.names:
                name = f"{node.module}.{each.name}"
                yield name if _path(name) is not None else node.module


def _imports(module: str) -> set[str]:
    path = _path(module)
    return set() if path is None else set(imports_of(path.read_text("utf-8")))


def _modules(room: str) -> list[str]:
    folder = ROOT.joinpath(*room.split(".")[1:])
    return [f"{room}.{path.stem}" for path in sorted(folder.glob("*.py")) if path.stem != "__init__"]


def _is_in(module: str, rooms: tuple[str, ...]) -> bool:
    return any(module == room or module.startswith(f"{room}.") for room in rooms)


def _reached(room: str) -> set[str]:
    """All modules, ours and others, that the modules of a room come to import."""
    reached, further = set(_modules(room)), _modules(room)
    while further:
        new = {each for each in _imports(further.pop()) if each not in reached}
        reached |= new
        further += [each for each in new if each.startswith("uow.")]
    return reached


@pytest.mark.parametrize("room", ALLOWED)
def test_room_imports_only_what_its_list_names(room: str) -> None:
    reached = _reached(room)
    ours = {each for each in reached if each.split(".")[0] == "uow"}
    assert {each for each in ours if not _is_in(each, (room, *ALLOWED[room]))} == set()
    assert {each.split(".")[0] for each in reached - ours} - sys.stdlib_module_names <= LIBRARIES[room]
    assert len(_modules(room)) > 5
    assert len(ours) > len(_modules(room)) + 5, "the walk goes through what is imported"


@pytest.mark.parametrize("room", ALLOWED)
def test_modules_of_a_room_import_each_other_in_no_circle(room: str) -> None:
    graph = {module: {each for each in _imports(module) if _is_in(each, (room,))} for module in _modules(room)}
    assert len([*TopologicalSorter(graph).static_order()]) == len(graph)


def test_imports_are_seen_wherever_they_stand() -> None:
    source = "import avro.io, os\nif TYPE_CHECKING:\n    from uow.processor.core import group\ndef f():\n    from uow.topics.headers import ID"
    assert set(imports_of(source)) == {"avro.io", "os", "uow.processor.core.group", "uow.topics.headers"}
