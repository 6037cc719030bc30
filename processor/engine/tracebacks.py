"""Exceptions that are kept for longer than the call that raised them, without what its frames held.

A traceback refers to frames, and a frame to its local values: the records, plans and rows of a whole turn. An exception in a local value of a frame that
its own traceback refers to is a cycle, and the cyclic garbage collector runs in idle moments only.

Belongs here: emptying tracebacks. Does not belong here: what an exception means.
"""

from __future__ import annotations

from traceback import clear_frames
from typing import TypeVar

_Error = TypeVar("_Error", bound=BaseException)


def free_frames(error: BaseException | None) -> None:
    """Empties the frames in the tracebacks of an exception and of its causes; the lines of code stay, for the log."""
    for each in _chain(error):
        clear_frames(each.__traceback__)


def without_frames(error: _Error) -> _Error:
    """The exception without any traceback, and so are its causes: also frames that are still running cannot be reached by it."""
    for each in _chain(error):
        clear_frames(each.__traceback__)
        each.__traceback__ = None
    return error


def _chain(error: BaseException | None) -> list[BaseException]:
    """The exception and its causes. They may go round in a circle: one that was raised once more, from another that it had led to."""
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found
