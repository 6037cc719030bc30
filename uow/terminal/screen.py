"""Output of long commands: titles, steps with a tick and a duration, tables; with colours and a spinner on a terminal, else plain lines.

Belongs here: the form of output. Does not belong here: its content.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO

from rich.console import Console
from rich.status import Status
from rich.text import Text

WIDTH = 78
_INDENT = "  "


class Step:
    """A step that is running.

    Attributes:
        text: The text of the finished step; may be changed while it runs.
        is_good: True if it gets a tick in the end.
    """

    def __init__(self, text: str, status: Status | None) -> None:
        self.text = text
        self.is_good = True
        self._status = status
        self._doing = text

    def progress(self, text: str) -> None:
        """Shows the progress of the step; on a terminal only."""
        if self._status is not None:
            self._status.update(f"{self._doing}  [dim]{text}[/dim]")


class Screen:
    """Output for people.

    Args:
        file: The stream to print on.
    """

    def __init__(self, file: IO[str]) -> None:
        self._console = Console(file=file, highlight=False, soft_wrap=True, emoji=False)
        encoding = (getattr(file, "encoding", None) or "ascii").lower()
        self._tick = "✓" if encoding.startswith("utf") else "+"
        self._cross = "✗" if encoding.startswith("utf") else "!"

    def title(self, text: str) -> None:
        """The first line."""
        self._console.print(Text(text, "bold"))

    def act(self, text: str) -> None:
        """Begins a new part of the output."""
        self._console.print()
        self._console.print(Text(text, "bold cyan"))

    def say(self, text: str = "", style: str = "") -> None:
        """Prints a line."""
        self._console.print(Text(f"{_INDENT}{text}" if text else "", style))

    def command(self, text: str) -> None:
        """Prints a command that people can type."""
        self._console.print(Text.assemble(_INDENT, ("$ ", "dim"), (text, "green")))

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[int] = ()) -> None:
        """A small table; columns named in `right` by their number are aligned to the right."""
        cells = [[str(cell) for cell in row] for row in rows]
        widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]

        def line(row: Sequence[str]) -> str:
            return "  ".join(
                cell.rjust(width) if number in right else cell.ljust(width)
                for number, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()

        if any(columns):
            self.say(f"  {line(columns)}", "dim")
        for row in cells:
            self.say(f"  {line(row)}")

    def done(self, text: str, seconds: float | None = None) -> None:
        """Prints that something went well."""
        self._verdict(self._tick, "green", text, seconds)

    def failed(self, text: str) -> None:
        """Prints that something failed."""
        self._verdict(self._cross, "bold red", text, None)

    def check(self, good: bool, text: str) -> None:
        """Prints one or the other."""
        if good:
            self.done(text)
        else:
            self.failed(text)

    def _verdict(self, mark: str, style: str, text: str, seconds: float | None) -> None:
        took = "" if seconds is None else "  " + f"{seconds:.1f} s".rjust(WIDTH - len(text) - 6)
        self._console.print(Text.assemble(_INDENT, (mark, style), f" {text}", (took, "dim")))

    @contextmanager
    def step(self, doing: str, done: str = "") -> Iterator[Step]:
        """A step that takes a while: a spinner while it runs on a terminal, one line when it is done.

        Args:
            doing: The text while it runs.
            done: The text afterwards; by default the same.
        """
        begin = time.monotonic()
        if self._console.is_terminal:
            with self._console.status(doing) as status:
                step = Step(doing, status)
                step.text = done or doing
                yield step
        else:
            step = Step(doing, None)
            step.text = done or doing
            yield step
        mark, style = (self._tick, "green") if step.is_good else (self._cross, "bold red")
        self._verdict(mark, style, step.text, time.monotonic() - begin)
