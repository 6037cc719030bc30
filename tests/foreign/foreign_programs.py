"""The programs of `examples/producers`, built and run: Java, Go and Node, none of which knows anything of ours."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from uow.jvm import jars, java

LANGUAGES = ("java", "go", "node")
FOLDER = Path(__file__).parents[2] / "examples" / "producers"
_TOOLS = {"java": "javac", "go": "go", "node": "node"}
_ENVIRONMENT: Mapping[str, str] = {
    **os.environ,
    "LC_ALL": "C.UTF-8",  # so that Java reads its arguments as UTF-8
    "GOTOOLCHAIN": "local",
    "GOFLAGS": "-mod=readonly",
    "GOPROXY": "off",  # a test fetches nothing
}
BUILD_S = 280


class ForeignProgram:
    """A program that can be run."""

    def __init__(self, command: list[str]) -> None:
        self.command = command

    def status(self, *arguments: object, stdin: str = "") -> int:
        """Its exit status."""
        return self._run([str(each) for each in arguments], stdin).returncode

    def lines(self, *arguments: object, stdin: str = "") -> list[Any]:
        """The lines that it prints, each of which is JSON."""
        done = self._run([str(each) for each in arguments], stdin)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def _run(self, arguments: list[str], stdin: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.command, *arguments],
            input=stdin,
            env=_ENVIRONMENT,
            capture_output=True,
            encoding="utf-8",
            timeout=90,
            check=False,
        )


def wire_program(language: str, folder: Path) -> ForeignProgram:
    """The program that knows the wire format and no Kafka; its sources need nothing but the language's standard library."""
    _require(language)
    match language:
        case "java":
            return _java(folder, "Wire", [])
        case "go":
            return _go(FOLDER / "go", "./cmd/wire", folder / "wire")
        case _:
            return ForeignProgram(["node", str(FOLDER / "node" / "wire.mjs")])


def client_program(language: str, folder: Path) -> ForeignProgram:
    """The program that sends and reads units, with the Kafka client that `make test-clients` has fetched."""
    _require(language)
    match language:
        case "java":
            return _java(folder, "Units", jars.class_path("broker"))
        case "go":
            return _go(FOLDER / "go" / "kafka", ".", folder / "kafka")
        case _:
            if not (FOLDER / "node" / "node_modules" / "kafkajs").is_dir():
                pytest.skip("kafkajs is not there: `make test-clients` fetches it")
            return ForeignProgram(["node", str(FOLDER / "node" / "units.mjs")])


def _require(language: str) -> None:
    tool = _TOOLS[language]
    if shutil.which(tool) is None:
        pytest.skip(f"no {tool} on the path")


def _java(folder: Path, program: str, needed: list[Path]) -> ForeignProgram:
    path = os.pathsep.join([str(folder), *map(str, needed)])
    sources = [str(FOLDER / "java" / "Wire.java"), *([str(FOLDER / "java" / "Units.java")] if needed else [])]
    _build(["javac", "--release", str(java.OLDEST), "-encoding", "UTF-8", "-cp", path, "-d", str(folder), *sources])
    return ForeignProgram([str(java.find().executable), "-cp", path, program])


def _go(module: Path, package: str, program: Path) -> ForeignProgram:
    _build(["go", "build", "-o", str(program), package], module)
    return ForeignProgram([str(program)])


_MISSING = {
    "module lookup disabled": "franz-go is not there: `make test-clients` fetches it",
    "(running go ": "no Go that is new enough for franz-go on the path",
}
"""What Go says where a client cannot be built here, and what that means."""


def _build(command: list[str], folder: Path = FOLDER) -> None:
    done = subprocess.run(
        command, cwd=folder, env=_ENVIRONMENT, capture_output=True, encoding="utf-8", timeout=BUILD_S, check=False
    )
    for sign, meaning in _MISSING.items():
        if sign in done.stderr:
            pytest.skip(f"{meaning} ({done.stderr.splitlines()[-1]})")
    assert done.returncode == 0, done.stderr


def hex_lines(values: Iterator[bytes] | list[bytes]) -> str:
    """Bytes as the programs read them: hexadecimal, a line each."""
    return "".join(f"{each.hex()}\n" for each in values)
