"""What commands write is for their user alone, whatever the umask says, and so is what programs write that they start."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from uow.cli import main as cli

WRITES = "import sys, pathlib; p = pathlib.Path(sys.argv[1]); p.mkdir(); (p / 'file').write_text('a payload')"


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> list[str]:
    """What others than the owner may do something with, below a folder."""
    return [f"{path} {path.lstat().st_mode:o}" for path in folder.rglob("*") if path.lstat().st_mode & 0o077]


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_each_command_and_its_child_processes_write_private_files(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @click.command(name)
    def writing() -> None:
        subprocess.run([sys.executable, "-c", WRITES, str(tmp_path / "by-child")], check=True)
        (tmp_path / "own").mkdir()
        (tmp_path / "own" / "file").write_text("a payload")
        (tmp_path / "created").touch(0o644)

    monkeypatch.setattr(cli.LazyGroup, "get_command", lambda self, ctx, asked: writing)
    done = CliRunner().invoke(cli.main, [name], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert len([*tmp_path.rglob("*")]) == 5
    assert open_to_others(tmp_path) == []
    (tmp_path / "after").touch()
    assert open_to_others(tmp_path), "the umask of whoever calls is as before"


def test_a_stricter_umask_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command("show")
    def writing() -> None:
        (tmp_path / "file").touch()

    os.umask(0o277)
    monkeypatch.setattr(cli.LazyGroup, "get_command", lambda self, ctx, asked: writing)
    CliRunner().invoke(cli.main, ["show"], catch_exceptions=False)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o400
