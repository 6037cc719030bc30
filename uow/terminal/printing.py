"""Output of commands: a table for people, JSON for programs.

Belongs here: the form of output. Does not belong here: its content.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Self

import click

from uow.schemas.printable import is_text, printable, printable_lines

__all__ = [
    "CELL_CHARS",
    "Progress",
    "moment_text",
    "print_json",
    "print_json_line",
    "print_table",
    "printable",
    "printable_json",
    "say",
    "span_text",
    "wall_clock_ms",
]

CELL_CHARS: Final = 500
"""Longest cell of a table on a terminal."""


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    click.echo(printable_json(json.dumps(value, indent=2, ensure_ascii=False)))


def print_json_line(value: Any) -> None:
    """One JSON document on one line, for streams of them."""
    click.echo(printable_json(json.dumps(value, ensure_ascii=False)))


def printable_json(document: str) -> str:
    """The same document, with escapes for characters that a terminal would execute or show in another order."""
    return "\n".join(line if line.isprintable() else _escaped(line) for line in document.split("\n"))


def _escaped(line: str) -> str:
    return "".join(char if is_text(char) else json.dumps(char)[1:-1] for char in line)


def say(text: str) -> None:
    """Prints a message on standard error, with escapes for unprintable characters except line ends."""
    click.echo(printable_lines(text), err=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Prints a table on a terminal, with the beginning of a long cell; in a pipe the same cells, separated by tabs, none shortened."""
    cells = [["" if cell is None else printable(str(cell)) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        for row in [columns, *cells]:
            click.echo("\t".join(row))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, box=None, header_style="bold", pad_edge=False)
    for row in cells:
        table.add_row(*(Text(_beginning(cell), overflow="fold") for cell in row))
    Console().print(table)


def _beginning(cell: str) -> str:
    """The cell, or as much of it as leaves room for the others: a header of a refused record may have a megabyte."""
    return cell if len(cell) <= CELL_CHARS else f"{cell[:CELL_CHARS]}... ({len(cell):,} characters)"


def wall_clock_ms() -> int:
    """The present moment, epoch ms, to compute ages with."""
    return time.time_ns() // 1_000_000


def moment_text(ms: int) -> str:
    """A moment in local time, to the millisecond; one that no calendar has, as a record of somebody else may have it, in epoch ms."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).astimezone().isoformat(sep=" ", timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"


def span_text(ms: int) -> str:
    """A span of time for people: `850 ms`, `12.0 s`, `5 min`, `3.5 h`, `2.1 d`."""
    sign, ms = ("-", -ms) if ms < 0 else ("", ms)
    for unit, size, digits in (("d", 86_400_000, 1), ("h", 3_600_000, 1), ("min", 60_000, 0), ("s", 1000, 1)):
        if ms >= size:
            return f"{sign}{ms / size:.{digits}f} {unit}"
    return f"{sign}{ms} ms"


class Progress:
    """A line on a terminal that says what is being done; in a pipe nothing is printed.

    Args:
        text: The first text of the line.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._status: Any = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console

            self._status = Console(stderr=True).status(self._text)
            self._status.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._status is not None:
            self._status.__exit__(*error)

    def say(self, text: str) -> None:
        """Replaces the text of the line."""
        if self._status is not None:
            self._status.update(text)
