"""How commands print: a table for people, JSON for programs.

Belongs here: the look. Does not belong here: what is shown.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Self

import click


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    click.echo(printable_json(json.dumps(value, indent=2, ensure_ascii=False)))


def print_json_line(value: Any) -> None:
    """One JSON document on one line, for streams of them."""
    click.echo(printable_json(json.dumps(value, ensure_ascii=False)))


def printable_json(document: str) -> str:
    """The same document, with escapes for whatever a terminal may obey or show in another order."""
    return "\n".join(line if line.isprintable() else _escaped(line) for line in document.split("\n"))


def _escaped(line: str) -> str:
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in line)


def say(text: str) -> None:
    """A message on standard error; what is not printable in it as escapes, but for ends of lines."""
    click.echo("\n".join(map(printable, text.split("\n"))), err=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table on a terminal; in a pipe the same cells with tabs between, nothing cut."""
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
        table.add_row(*(Text(cell, overflow="fold") for cell in row))
    Console().print(table)


def printable(text: str) -> str:
    """The same on one line: what is not printable as escapes, since ids and values are anybody's bytes."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def wall_clock_ms() -> int:
    """Now, epoch ms, to tell ages by."""
    return time.time_ns() // 1_000_000


def moment_text(ms: int) -> str:
    """A moment in local time, to the millisecond."""
    return datetime.fromtimestamp(ms / 1000, UTC).astimezone().isoformat(sep=" ", timespec="milliseconds")


def span_text(ms: int) -> str:
    """A span of time as people say it: `850 ms`, `12.0 s`, `5 min`, `3.5 h`, `2.1 d`."""
    sign, ms = ("-", -ms) if ms < 0 else ("", ms)
    for unit, size, digits in (("d", 86_400_000, 1), ("h", 3_600_000, 1), ("min", 60_000, 0), ("s", 1000, 1)):
        if ms >= size:
            return f"{sign}{ms / size:.{digits}f} {unit}"
    return f"{sign}{ms} ms"


class Progress:
    """A line on a terminal that says what is going on; nothing at all in a pipe.

    Args:
        text: What is going on at first.
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
        """What is going on now."""
        if self._status is not None:
            self._status.update(text)
