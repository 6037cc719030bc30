"""Mutation testing of `processor/core`: small faults, one at a time, and a search for a test that notices each (`make mutants`).

Theory of operation. A fault inverts a comparison, a sign, a truth value, `and`/`or` or `min`/`max`, adds one to a number, or omits a
statement. The tests are imported and collected once. Each fault is then tried in a fork: the function's code is replaced by the faulty
one, and the tests run, the fastest first, until one fails. So most faults cost milliseconds. A fault that no test
notices is a *survivor*: a test is missing, or the fault changes nothing visible. Only code inside functions is tried.

Existing tools are not used, because they bring many dependencies into the lock, and start the tests again for each fault.

`python -m tools.mutants decide group --part 1/4 -j 2`. Results: docs/mutants.md.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
CORE = ROOT / "processor" / "core"
TESTS = (
    "tests/core",
    "tests/engine/test_replay.py",
    "tests/engine/test_commands_restored.py",
    "tests/engine/test_moved_groups.py",
    "tests/engine/test_claim_check.py",
    "tests/client/test_client_tracing.py",
)
CPU_LIMIT_S = 120
"""CPU time after which a fault counts as noticed, because it made a loop endless."""

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
}
NAMES = {"min": "max", "max": "min"}


class Mutant(NamedTuple):
    """A fault: its place, its description, and the function's code with it."""

    module: str
    function: str
    line: int
    what: str
    code: CodeType

    def __str__(self) -> str:
        return f"{self.module}.py:{self.line} {self.function}: {self.what}"

    def plant(self) -> None:
        """Replaces the true code by the faulty one, in this process."""
        found: Any = import_module(f"uow.processor.core.{self.module}")
        for name in self.function.split("."):
            found = vars(found)[name]
        found = getattr(found, "fget", None) or getattr(found, "__func__", found)
        assert isinstance(found, FunctionType), self
        found.__code__ = self.code


def mutants(module: str) -> Iterator[Mutant]:
    """Every fault of a module of the core."""
    tree = ast.parse((CORE / f"{module}.py").read_text("utf-8"))
    functions = [(each.name, each) for each in tree.body if isinstance(each, ast.FunctionDef)]
    for kind in [each for each in tree.body if isinstance(each, ast.ClassDef)]:
        functions += [(f"{kind.name}.{each.name}", each) for each in kind.body if isinstance(each, ast.FunctionDef)]
    for name, function in functions:
        for parent, field, index, node in [] if name.endswith("__repr__") else list(_places(function)):
            for other, what in _faults(node):
                _put(parent, field, index, other)
                whole = compile(ast.fix_missing_locations(tree), str(CORE / f"{module}.py"), "exec")
                line = getattr(node, "lineno", getattr(parent, "lineno", 0))
                yield Mutant(module, name, line, what, next(_code(whole, name)))
                _put(parent, field, index, node)


def _code(whole: CodeType, qualname: str) -> Iterator[CodeType]:
    for const in whole.co_consts:
        if isinstance(const, CodeType):
            if const.co_qualname == qualname:
                yield const
            yield from _code(const, qualname)


def _put(parent: ast.AST, field: str, index: int | None, node: ast.AST) -> None:
    if index is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[index] = node


def _places(node: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, ast.AST]]:
    """Every node that may be replaced, with its parent; without signatures, annotations, texts and code for mypy."""
    for field, value in ast.iter_fields(node):
        if field in ("args", "annotation", "returns", "decorator_list") and not isinstance(node, ast.Call):
            continue
        for index, child in enumerate(value) if isinstance(value, list) else ((None, value),):
            if isinstance(child, ast.AST) and not isinstance(child, ast.Assert | ast.JoinedStr):
                yield node, field, index, child
                yield from _places(child)


def _faults(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    swapped = SWAPS.get(type(node))
    if swapped is not None:
        yield swapped(), f"{type(node).__name__} -> {swapped.__name__}"
    match node:
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value), f"{value} -> {not value}"
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1), f"{value} -> {value + 1}"
        case ast.UnaryOp(op=ast.Not()):
            yield node.operand, f"{ast.unparse(node)} -> {ast.unparse(node.operand)}"
        case ast.Name(id=name) if name in NAMES:
            yield ast.Name(NAMES[name], ast.Load()), f"{name} -> {NAMES[name]}"
        case ast.Expr(value=ast.Call(func=ast.Name(id="assert_never"))):
            pass
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Delete():
            yield ast.Pass(), f"without {ast.unparse(node)}"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript() | ast.Tuple()]):
            yield ast.Pass(), f"without {ast.unparse(node)}"


class Runner:
    """A pytest plugin that runs the collected tests once for each fault, in forks, instead of once.

    Args:
        chosen: The faults.
        jobs: How many at a time.

    Attributes:
        survivors: Faults that no test noticed.
        is_sound: True if the tests pass without a fault.
    """

    def __init__(self, chosen: Sequence[Mutant], jobs: int) -> None:
        self.chosen, self.jobs = chosen, jobs
        self.survivors: list[Mutant] = []
        self.is_sound = False

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Runs in place of pytest's own loop."""
        with tempfile.NamedTemporaryFile() as file:
            self.is_sound = os.waitpid(self._start(session, None, file.name), 0)[1] == 0
            seconds = json.loads(file.read() or "{}")
        if self.is_sound:
            session.items.sort(key=lambda item: seconds[item.nodeid])
            self._try_all(session)
        return True

    def _try_all(self, session: pytest.Session) -> None:
        running: dict[int, Mutant] = {}
        for number, mutant in enumerate((*self.chosen, None)):
            while running and (mutant is None or len(running) >= self.jobs):
                pid, status = os.wait()
                tried = running.pop(pid)
                if status == 0:
                    self.survivors.append(tried)
                    print(tried, flush=True)
            if mutant is not None:
                running[self._start(session, mutant)] = mutant
                if sys.stderr.isatty():
                    print(f"\r{number} of {len(self.chosen)}", end="", file=sys.stderr)

    @staticmethod
    def _start(session: pytest.Session, mutant: Mutant | None, durations: str = os.devnull) -> int:
        """A fork that tries a fault; it ends with status 0 if no test noticed it."""
        pid = os.fork()
        if pid:
            return pid
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT_S, CPU_LIMIT_S))
        if mutant is not None:
            mutant.plant()
        seconds = {}
        for item, after in zip(session.items, [*session.items[1:], None], strict=True):
            since = time.perf_counter()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            if session.testsfailed:
                os._exit(1)
            seconds[item.nodeid] = time.perf_counter() - since
        Path(durations).write_text(json.dumps(seconds))
        os._exit(0)


def main() -> int:
    """The command."""
    names = sorted(path.stem for path in CORE.glob("*.py") if path.stem != "__init__")
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("modules", nargs="*", choices=[*names, []], metavar="MODULE", help="without one: all")
    parser.add_argument("--part", default="1/1", metavar="K/N", help="every Nth fault, from the Kth on")
    parser.add_argument("-j", "--jobs", type=int, default=1)
    asked = parser.parse_args()
    first, step = map(int, asked.part.split("/"))
    chosen = [mutant for module in asked.modules or names for mutant in mutants(module)][first - 1 :: step]
    os.chdir(ROOT)
    runner = Runner(chosen, asked.jobs)
    pytest.main(["-q", "--capture=sys", "-p", "no:cacheprovider", *TESTS], plugins=[runner])
    if not runner.is_sound:
        print("the tests do not pass without any fault", file=sys.stderr)
        return 2
    alive = Counter(mutant.module for mutant in runner.survivors)
    for module, count in sorted(Counter(mutant.module for mutant in chosen).items()):
        print(f"{module}: {count} faults, {count - alive[module]} caught, {alive[module]} survived")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
