"""`make ci-tools` installs what is missing, does nothing where all is there, and names what cannot be had (decision 112)."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tools import ci_tools

NAMES = ("javac", "node", "npm", "chromium")


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with an empty path, and a package index that does not answer."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(ci_tools, "install_go", lambda: "pip ended with status 1")
    return tmp_path


def put(folder: Path, name: str, code: str = "") -> None:
    """A program on the path."""
    program = folder / name
    program.write_text(f"#!/bin/sh\n{code}\n")
    program.chmod(0o755)


def put_go(folder: Path, version: str) -> None:
    put(folder, "go", f"echo 'go version go{version} linux/amd64'")


def test_nothing_is_started_where_all_is_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*NAMES, "apt-get"):
        put(path, name)
    put_go(path, "99.0")
    started: list[Any] = []
    real = subprocess.run

    def run(command: list[str], **more: Any) -> Any:
        started.append(command)
        return real(command, **more)

    monkeypatch.setattr(subprocess, "run", run)
    assert ci_tools.main() == 0
    assert started == [[str(path / "go"), "version"]]


def test_what_is_missing_is_installed_as_root(path: Path) -> None:
    put_go(path, "99.0")
    put(path, "node")
    (path / "env").symlink_to(shutil.which("env", path=os.defpath) or "/usr/bin/env")
    made = "\n".join(f"  : > {path}/{name}; /bin/chmod 755 {path}/{name}" for name in ("javac", "npm", "chromium"))
    put(path, "apt-get", f'echo "$*" >> {path}/log\ncase "$*" in *install*)\n{made}\n  ;; esac')
    assert ci_tools.main() == 0
    update, install = (path / "log").read_text().splitlines()
    assert update.endswith(" update")
    assert install.endswith(" default-jdk-headless npm chromium")


@pytest.mark.parametrize(("user", "reason"), [(0, "there is no apt-get here"), (1000, "apt-get needs root")])
def test_what_cannot_be_had_is_named(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], user: int, reason: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    if user:
        put(path, "apt-get", "exit 1")
    assert ci_tools.main() == 1
    lines = capsys.readouterr().out.splitlines()
    for name in NAMES:
        assert [line for line in lines if line.startswith(f"ci-tools: {name} is missing") and line.endswith(reason)]
    assert lines[-1].endswith("or newer is missing: pip ended with status 1")


def test_go_that_is_too_old_for_the_client_is_replaced(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        put(path, name)
    put_go(path, "1.19.8")
    assert ci_tools.main() == 1

    def install() -> str:
        put_go(path, "99.0")
        return ""

    monkeypatch.setattr(ci_tools, "install_go", install)
    assert ci_tools.main() == 0
