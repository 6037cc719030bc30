"""`Group` changes in `group.py` alone: no other module of the product assigns its fields, and what the engine keeps of a group is in one slot."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import CodeType
from typing import Any

import pytest

from tests.core.streams import PARTITIONS, TP, Tick, draw_policy, draw_stream, new_task, polls
from tests.engine.restored_logs import Logs
from tests.engine.test_commands_restored import draw_commands
from tests.engine.test_replay import draw_limits, restored
from uow.processor.core import group as module
from uow.processor.core.group import Group

ROOT = Path(__file__).parents[2]
ROOMS = ("processor", "schemas", "topics", "spark_sink", "uow")
OTHERS = {
    ("processor/core/partition_state.py", "self.counts.held"),
    ("processor/core/partition_state.py", "happened.held"),
    ("processor/core/counted_groups.py", "partition.counts.held"),
    ("processor/core/fast_path.py", "partition.counts.held"),
    ("processor/engine/task.py", "partition.counts.held"),
    ("processor/engine/waiting_commands.py", "queue.end"),
    ("processor/sim/simulated_kafka.py", "member.generation"),
    ("uow/prove/judge.py", "group.held"),
    ("uow/prove/judge.py", "group.end"),
}
"""Fields of the same names that other classes have; those of the judge of a proof, which shares no code with the worker, among them."""


def _targets(tree: ast.AST) -> Iterator[ast.Attribute]:
    """Attributes that are assigned or deleted, or of which an entry is."""
    for node in ast.walk(tree):
        written = node.value if isinstance(node, ast.Subscript) else node
        if isinstance(written, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            yield written


def _written(path: Path) -> set[tuple[str, str]]:
    """Fields with the name of one of a group's that a module writes, but for those of its own classes."""
    name = path.relative_to(ROOT).as_posix()
    return {
        (name, ast.unparse(target))
        for target in _targets(ast.parse(path.read_text("utf-8")))
        if target.attr in Group.__slots__ and ast.unparse(target.value) != "self"
    }


def _modules() -> Iterator[Path]:
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):  # does not follow links to folders
            if path.resolve() != Path(module.__file__).resolve() and path.resolve() == path:
                yield path


def test_no_module_but_its_own_assigns_a_field_of_a_group() -> None:
    written = {each for path in _modules() for each in _written(path)}
    assert written <= OTHERS


def test_an_assignment_elsewhere_would_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "group.bytes += 1\ngroup.held[1] = b''\nfor group.end in (): ...\n(each.marked, x) = 1, 2\ndel group.tail\n"
    )
    assert {field for _, field in _written(wrong)} == {
        "group.bytes",
        "group.held",
        "group.end",
        "each.marked",
        "group.tail",
    }


@pytest.mark.parametrize("seed", range(6))
def test_fields_of_groups_are_written_from_one_file_whatever_a_worker_does(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streams, commands, clocks, clean stops and restores, with every assignment looked at."""
    writers: set[CodeType] = set()

    def look(group: Group, name: str, value: Any) -> None:
        writers.add(sys._getframe(1).f_code)
        object.__setattr__(group, name, value)

    monkeypatch.setattr(Group, "__setattr__", look, raising=False)
    rnd = Random(seed)
    policy = draw_policy(rnd)
    task, logs, commands_read = new_task(policy, replay=draw_limits(rnd)), Logs(TP), 0
    for one in polls(rnd, draw_stream(rnd, 300, rnd.choice([3, 12, 60])), 20):
        if rnd.random() < 0.2 and logs.committed_offset is not None:
            logs.add(task.drain() if rnd.random() < 0.3 else None)
            task = restored(logs, policy, draw_limits(rnd), PARTITIONS)
        if isinstance(one, Tick):
            logs.add(task.tick(one.now_ms))
            continue
        logs.take_input(one)
        commands = draw_commands(rnd, task, commands_read, one[-1].at)
        commands_read += len(commands)
        logs.add(task.process(one, commands))
    assert {code.co_filename for code in writers} == {module.__file__}
    assert len(writers) > 5
