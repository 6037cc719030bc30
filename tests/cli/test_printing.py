"""What people are shown."""

from __future__ import annotations

import pytest

from uow.commands.read import value_text
from uow.printing import print_table, printable, span_text


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


def test_table_in_a_pipe_is_one_row_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("id", "age"), [("a\tb", None), (1, "x")])
    assert capsys.readouterr().out == "id\tage\na\\tb\t\n1\tx\n"


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "(null)"), (b"", ""), (b"caf\xc3\xa9", "café"), (b"\x00\xff", "\\x00\\xff")],
)
def test_value_is_shown_on_one_line(value: bytes | None, text: str) -> None:
    assert value_text(value) == text
