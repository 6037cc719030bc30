"""Texts that a terminal only prints: an id, a header, an error of somebody else may be any bytes, and a terminal executes some of them. Pure.

Belongs here: the escapes, for the log of workers and for the output of commands. Does not belong here: printing (`uow.terminal.printing`).
"""

from __future__ import annotations


def printable(text: str) -> str:
    """The same text on one line, with escapes for unprintable characters: controls (ESC, C1), and those that turn the order of others around."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def printable_lines(text: str) -> str:
    """The same, line by line: for messages and tracebacks."""
    return "\n".join(map(printable, text.split("\n")))
