"""Whatever a public call takes, returns or hands to a callback has a public name, and so has every error that users can meet (R-82)."""

from __future__ import annotations

import ast
import builtins
import inspect
import subprocess
import sys
import typing
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest
from pyspark.sql import SparkSession

import uow.aio
from tests.setup import test_public_modules
from uow import errors

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("processor", "schemas", "spark_sink", "topics", "uow")
PUBLIC = tuple([import_module(name) for name in test_public_modules.PUBLIC])
"""Modules whose names are public."""


def public_objects() -> dict[str, Any]:
    return {
        f"{module.__name__}.{name}": getattr(module, name)
        for module in PUBLIC
        for name in module.__all__
        if not isinstance(getattr(module, name), ModuleType)
    }


def annotated(name: str, public: Any) -> Iterator[tuple[str, Any]]:
    """Each annotation that a user of a public name meets, and where it stands."""
    if isinstance(public, FunctionType):
        yield from ((f"{name}({each})", hint) for each, hint in hints_of(public).items())
        return
    if not inspect.isclass(public):
        return
    for each, hint in hints_of(public).items():
        if not each.startswith("_"):
            yield f"{name}.{each}", hint
    for each, member in inspect.getmembers_static(public):
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if each.startswith("_") and each not in ("__init__", "__enter__", "__iter__", "__next__"):
            continue
        if isinstance(function, FunctionType) and (each != "__init__" or not is_made_by_us(public)):
            yield from ((f"{name}.{each}({arg})", hint) for arg, hint in hints_of(function).items())


def is_made_by_us(public: type) -> bool:
    """True for what `connect` and its like return: no application calls the constructor."""
    is_ours = public.__module__.startswith(("uow.aio.", "uow.client."))
    return is_ours and public not in (uow.Component, uow.ConnectionFactory, uow.aio.ConnectionFactory)


SPARK: Mapping[str, Any] = {"SparkSession": SparkSession}
"""Imported by public modules for type checkers only, since that takes long."""


def hints_of(public: Any) -> dict[str, Any]:
    return typing.get_type_hints(public, localns={**SPARK, **vars(inspect.getmodule(public))})


def types_in(hint: Any) -> Iterator[type]:
    """The classes inside an annotation."""
    if isinstance(hint, typing.TypeVar):
        yield from types_in(hint.__bound__)
        for each in hint.__constraints__:
            yield from types_in(each)
    origin = typing.get_origin(hint)
    if origin not in (None, hint, typing.Literal):
        yield from types_in(origin)
    if origin is not typing.Literal:
        for each in typing.get_args(hint):
            for part in each if isinstance(each, list) else [each]:
                yield from types_in(part)
    if inspect.isclass(hint):
        yield hint


def unexported() -> list[tuple[str, str]]:
    """Types of ours without a public name, and where one meets them."""
    public = public_objects()
    exported = {id(each) for each in public.values()}
    return [
        (where, f"{found.__module__}.{found.__qualname__}")
        for name, each in public.items()
        for where, hint in annotated(name, each)
        for found in types_in(hint)
        if found.__module__.split(".")[0] == "uow" and id(found) not in exported
    ]


def test_types_in_public_signatures_have_public_names() -> None:
    assert unexported() == []


def test_the_walk_finds_types_wherever_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments, results, callbacks, fields, type arguments: without their names each is found."""
    names = ("Sent", "Span", "Rejection", "Source", "SourceCount", "ReceivedUnit", "AliasFamily", "MessageReader")
    monkeypatch.setattr(uow, "__all__", [name for name in uow.__all__ if name not in names])
    assert {found.rpartition(".")[2] for _, found in unexported()} == set(names)


CAUGHT = {
    "Abandoned": "engine",
    "Blocked": "engine: a partition's page and log",
    "BrokerRefusal": "simulator",
    "CallbackCancelled": "reader for asyncio: becomes `CancelledError`",
    "CardDeclinedError": "demo: a handler of its own",
    "CommitUnansweredError": "sink and transaction",
    "Crash": "simulator",
    "DemoFailed": "command `uow demo`",
    "Doubt": "engine",
    "ExpressionError": "rules: a complaint of `uow rules check`",
    "IncompatibleError": "payload columns: the reason of a row",
    "LookupTimeoutError": "worker and reader",
    "NoXmlError": "router: what a path looks at counts as absent",
    "NotYet": "reader",
    "Refused": "engine",
    "ScenarioError": "public in `uow.testing`, an `AssertionError`",
    "SelectorError": "configuration: a complaint of `ConfigError`",
    "StaleGeneration": "engine and client",
    "Stopped": "engine",
    "TransientError": "simulator",
    "UnitTooLargeForRecordError": "engine",
    "Unusable": "audit: everything is audited, and the report says why",
    "Violation": "simulator",
    "UntrustedRow": "rules: a row of A-rules that is not believed; the component is refused",
    "WrongRows": "rules: complaints of `uow rules check`",
    "WrongValue": "configuration: a complaint of `ConfigError`",
}
"""Exceptions that are caught before a user meets them, and where."""


def product_exceptions() -> set[str]:
    """Names of all exception classes of the product, by the text of its modules: nothing is imported."""
    bases: dict[str, set[str]] = {}
    for path in sorted(each for room in ROOMS for each in (ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                bases.setdefault(node.name, set()).update(ast.unparse(base).rpartition(".")[2] for base in node.bases)
    found = {name for name, exception in vars(builtins).items() if isinstance(exception, type)}
    known = {name for name in found if issubclass(getattr(builtins, name), BaseException)} | {"KafkaException"}
    while more := {name for name, above in bases.items() if above & known} - known:
        known |= more
    return {name for name in known & bases.keys() if not name.startswith("_")}


def test_every_error_is_public_or_caught_inside() -> None:
    assert product_exceptions() - set(errors.__all__) == set(CAUGHT)


def test_every_name_of_errors_can_be_raised_and_is_an_exception() -> None:
    others = {"Complaint", "Suspect"}
    assert all(issubclass(getattr(errors, name), Exception) for name in errors.__all__ if name not in others)
    assert set(errors.__all__) <= set(dir(errors))
    with pytest.raises(AttributeError, match="NoSuchError"):
        _ = errors.NoSuchError  # type: ignore[attr-defined]


def test_errors_are_there_without_the_library_that_they_are_about() -> None:
    """Whoever only names errors loads no Kafka client, no Java and no command."""
    code = "import sys, uow.errors; print(*[each for each in ('confluent_kafka', 'uow.ops', 'uow.jvm') if each in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split() == []


@pytest.mark.parametrize("connect", [uow.connect, uow.aio.connect])
def test_help_shows_each_setting_of_a_connection(connect: Any) -> None:
    settings = inspect.signature(uow.ConnectionFactory).parameters
    assert inspect.signature(connect).parameters == settings
    for name in settings:
        assert f"    {name}: " in connect.__doc__
