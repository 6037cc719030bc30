"""`uow broker` where it cannot start: a text that says what to do, exit status 1, no traceback."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from uow.cli.main import FAILED, main
from uow.jvm import jars


def failed(*arguments: str | Path) -> Result:
    """A start that fails as it should."""
    result = CliRunner().invoke(main, ["broker", *map(str, arguments)])
    assert result.exit_code == FAILED
    assert isinstance(result.exception, SystemExit)
    assert result.stdout == ""
    return result


@pytest.fixture
def no_jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A jar folder with nothing in it."""
    folder = tmp_path / "jars"
    monkeypatch.setenv("UOW_JARS", str(folder))
    return folder


def test_missing_jars_are_named_with_the_command_that_fetches_them(tmp_path: Path, no_jars: Path) -> None:
    text = failed("--port", "0", "--dir", tmp_path / "data").stderr
    assert str(no_jars) in text
    assert "make setup" in text


def test_missing_java_is_told_with_where_was_looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "class_path", lambda kind: [])
    monkeypatch.setenv("UOW_JAVA_HOME", str(tmp_path / "nowhere"))
    text = failed("--port", "0", "--dir", tmp_path / "data").stderr
    assert "no Java" in text
    assert "nowhere" in text


def test_taken_port_is_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert f"port {port} is taken" in failed("--port", str(port), "--dir", tmp_path / "data").stderr
