"""Exceptions that are no fault of what is handled: at a boundary around records everything else is caught, also what is no `Exception`.

A panic of a library in Rust, as that of the expressions, is a `BaseException`.

Belongs here: which those are; standard library only. Does not belong here: what becomes of the others (`uow.processor.engine.set_aside`).
"""

from __future__ import annotations

from asyncio import CancelledError
from typing import Final

ENDS: Final = (KeyboardInterrupt, SystemExit, GeneratorExit, CancelledError)
"""They end the process or the work of a task: no record's matter."""
