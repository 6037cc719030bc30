"""Texts that a terminal only prints: an id, a header, an error of somebody else may be any bytes, and a terminal executes some of them. Pure.

Belongs here: the escapes, for the log of workers and for the output of commands. Does not belong here: printing (`uow.terminal.printing`).
"""

from __future__ import annotations

import unicodedata
from typing import Final

_JOINERS: Final = "\u200c\u200d"
"""Without them emoji fall apart, and words of Persian and of Indian languages are misspelt."""


def printable(text: str) -> str:
    """The same text on one line, with escapes for unprintable characters: controls (ESC, C1), and those that turn the order of others around.

    Spaces of other scripts and joiners within a word are ordinary text.
    """
    if text.isprintable():
        return text
    return "".join(char if is_text(char) else char.encode("unicode_escape").decode() for char in text)


def is_text(char: str) -> bool:
    """True if a terminal only prints this character."""
    return char.isprintable() or char in _JOINERS or unicodedata.category(char) == "Zs"


def printable_lines(text: str) -> str:
    """The same, line by line: for texts whose lines are ours, such as tracebacks."""
    return "\n".join(map(printable, text.split("\n")))
