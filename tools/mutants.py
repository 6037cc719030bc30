"""Mutation testing of `processor/core`: small faults, one at a time, and a search for a test that notices each (`make mutants`).

Theory of operation. A fault inverts a comparison, a sign, a truth value, `and`/`or` or `min`/`max`, adds one to a number, or omits a
statement. The tests are imported and collected once. Each fault is then tried in a fork: the function's code is replaced by the faulty
one, and the tests that call the function run until one fails: those first that noticed another fault of it, then the fastest. So most
faults cost milliseconds. A fault that no test notices is a *survivor*: a test is missing, or the fault changes nothing visible. Only
code inside functions is tried.

Existing tools are not used, because they bring many dependencies into the lock, and start the tests again for each fault.

`python -m tools.mutants decide group --part 1/4 -j 2`. Results: docs/mutants.md.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import IO, Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
CORE = ROOT / "uow" / "processor" / "core"
PACKAGE = "uow.processor.core"
TESTS = (
    "tests/core",
    "tests/engine/test_replay.py",
    "tests/engine/test_commands_restored.py",
    "tests/engine/test_moved_groups.py",
    "tests/engine/test_claim_check.py",
    "tests/engine/test_hostile.py::test_component_with_more_headers_than_the_destination_takes_is_refused",
    "tests/client/test_client_tracing.py",
)
CPU_LIMIT_S = 5
"""CPU time, beside ten times what a test takes without a fault, after which the fault counts as noticed: it made a loop endless."""
Run = tuple[float, Collection[str]]
"""The run of a test without a fault: seconds, and the functions of the core that it called."""

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

    @property
    def path(self) -> str:
        """Module and function."""
        return f"{self.module}.{self.function}"

    def plant(self) -> None:
        """Replaces the true code by the faulty one, in this process."""
        found: Any = import_module(f"{PACKAGE}.{self.module}")
        for name in self.function.split("."):
            found = vars(found)[name]
        found = getattr(found, "fget", None) or getattr(found, "__func__", found)
        assert isinstance(found, FunctionType), self
        found.__code__ = self.code


def module_names() -> list[str]:
    """Those of the core."""
    return sorted(path.stem for path in CORE.glob("*.py") if path.stem != "__init__")


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
        pid, said = _fork(session.items)
        with said:
            runs: dict[str, Run] = json.loads(said.read() or "{}")
        self.is_sound = os.waitpid(pid, 0)[1] == 0
        if self.is_sound:
            session.items.sort(key=lambda item: runs[item.nodeid][0])
            self._try_all(session.items, {nodeid: (seconds, set(called)) for nodeid, (seconds, called) in runs.items()})
        return True

    def _try_all(self, items: Sequence[pytest.Item], runs: Mapping[str, Run]) -> None:
        running: dict[int, tuple[Mutant, IO[str]]] = {}
        noticing = defaultdict[str, set[str]](set)
        for number, mutant in enumerate((*self.chosen, None)):
            while running and (mutant is None or len(running) >= self.jobs):
                pid, status = os.wait()
                tried, said = running.pop(pid)
                with said:
                    noticing[tried.path].add(said.read())
                if status == 0:
                    self.survivors.append(tried)
                    print(tried, flush=True)
            if mutant is not None:
                path = mutant.path
                # a look-up table calls it once for all tests
                callers = [each for each in items if path.endswith("__missing__") or path in runs[each.nodeid][1]]
                callers.sort(key=lambda item: item.nodeid not in noticing[path])
                pid, said = _fork(callers, mutant, runs)
                running[pid] = mutant, said
                if sys.stderr.isatty():
                    print(f"\r{number} of {len(self.chosen)}", end="", file=sys.stderr)


def _fork(
    items: Sequence[pytest.Item], mutant: Mutant | None = None, runs: Mapping[str, Run] | None = None
) -> tuple[int, IO[str]]:
    """A fork that runs tests until one fails; it ends with status 0 if none did.

    Args:
        items: The tests.
        mutant: The fault that it tries.
        runs: Of the tests without a fault.

    Returns:
        Its id, and a stream: the id of the test that noticed the fault; without a fault the runs of all tests.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return pid, os.fdopen(reader)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    if mutant is not None:
        mutant.plant()
    seen: dict[str, Run] = {}
    for item, after in zip(items, [*items[1:], None], strict=True):
        since, called = time.perf_counter(), set[str]()
        if runs is None:
            sys.setprofile(_noting(called))
        else:
            signal.setitimer(
                signal.ITIMER_PROF, CPU_LIMIT_S + 10 * runs[item.nodeid][0]
            )  # then the fork dies of SIGPROF
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        sys.setprofile(None)
        if item.session.testsfailed:
            os.write(writer, item.nodeid.encode())
            os._exit(1)
        seen[item.nodeid] = time.perf_counter() - since, list(called)
    if mutant is None:
        with os.fdopen(writer, "w") as report:
            json.dump(seen, report)
    os._exit(0)


def _noting(called: set[str]) -> Callable[[FrameType, str, object], None]:
    """A profiler that notes which functions of the core are called."""
    modules = {f"{PACKAGE}.{name}": name for name in module_names()}

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and (module := modules.get(frame.f_globals.get("__name__", ""))):
            called.add(f"{module}.{frame.f_code.co_qualname}")

    return note


def main() -> int:
    """The command."""
    names = module_names()
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
