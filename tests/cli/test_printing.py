"""What people are shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from uow.cli.main import main
from uow.cli.read_command import value_text
from uow.terminal.printing import (
    moment_text,
    print_json,
    print_json_line,
    print_table,
    printable,
    say,
    span_text,
)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1500, "1.5 s"),
        (90_000, "2 min"),
        (5_400_000, "1.5 h"),
        (172_800_000, "2.0 d"),
        (-1500, "-1.5 s"),
    ],
)
def test_spans_of_time_are_told_as_people_do(ms: int, text: str) -> None:
    assert span_text(ms) == text


def test_control_characters_do_not_reach_a_terminal() -> None:
    assert printable("a\x1b[2Jb\nü") == "a\\x1b[2Jb\\nü"


HOSTILE = "a\x1b[2J \x9b2J \u202egnp \x7f"
"""An escape sequence, one that begins with a C1 character, text that turns around, and DEL."""


def test_json_says_the_same_with_escapes_only(capsys: pytest.CaptureFixture[str]) -> None:
    for show in (print_json, print_json_line):
        show({"id": HOSTILE, "name": "Zoë ✓"})
        shown = capsys.readouterr().out
        assert json.loads(shown) == {"id": HOSTILE, "name": "Zoë ✓"}
        assert shown.replace("\n", "").isprintable()
        assert "Zoë ✓" in shown


def test_no_message_on_standard_error_moves_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Its lines stay lines."""
    say(f"uow: {HOSTILE}\nand more")
    assert capsys.readouterr().err == "uow: a\\x1b[2J \\x9b2J \\u202egnp \\x7f\nand more\n"


def test_an_error_is_told_without_raw_control_characters(tmp_path: Path) -> None:
    """Anybody's text may be in one."""
    path = tmp_path / "uow.toml"
    path.write_text('[worker]\n"web\\u001B[2J\\u009B2J\\u202E" = 1\n', encoding="utf-8")
    for arguments in (["groups", "megazon", "-c", str(path)], ["config", "check", "-c", str(path)]):
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 2
        assert "worker.web" in result.output
        assert result.output.replace("\n", "").isprintable()


def test_table_in_a_pipe_is_one_row_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("id", "age"), [("a\tb", None), (1, "x")])
    assert capsys.readouterr().out == "id\tage\na\\tb\t\n1\tx\n"


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "(null)"), (b"", ""), (b"caf\xc3\xa9", "café"), (b"\x00\xff", "\\x00\\xff")],
)
def test_value_is_shown_on_one_line(value: bytes | None, text: str) -> None:
    assert value_text(value) == text


def test_one_long_cell_leaves_room_for_the_others_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A foreign client's header may have a megabyte."""
    rows = [("x" * 1_000_000, "reason")]
    print_table(("id", "text"), rows)
    assert len(capsys.readouterr().out) > 1_000_000, "in a pipe nothing is left out"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_table(("id", "text"), rows)
    shown = capsys.readouterr().out
    assert "reason" in shown
    assert len(shown) < 5_000
    assert "1,000,000" in shown


@pytest.mark.parametrize("ms", [2**62, -(2**62), 253_402_300_800_000])
def test_a_moment_that_no_calendar_has_is_a_number(ms: int) -> None:
    assert moment_text(ms) == f"{ms} ms"
