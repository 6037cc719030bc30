"""Programs under test as child processes that never outlive the tests (`uow.embedded.child_processes`), and waiting."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from uow.embedded import child_processes as children

PATIENCE_S = 90
"""Deadline of everything that is to happen. It costs nothing when it happens, also on a machine with other work; a test ends after `timeout` of pytest."""


class Process(children.ChildProcess):
    """A running program; its output, both streams, is in `log`."""

    def __init__(self, command: list[str], log: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None):
        super().__init__(command, log, {**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})}, cwd)

    @property
    def output(self) -> str:
        """What the program said so far."""
        return self.said

    def wait(self, timeout: float = PATIENCE_S) -> int:
        """Wait for the end; the exit status."""
        return super().wait(timeout)

    def terminate(self, timeout: float = PATIENCE_S) -> int:
        """SIGTERM, then wait; the exit status."""
        self.signal(signal.SIGTERM)
        return self.wait(timeout)

    def wait_output(self, text: str, timeout: float = PATIENCE_S) -> str:
        """Wait until the program has said `text`; the whole line."""

        def line() -> str | None:
            return next((each for each in self.output.splitlines() if text in each), None)

        def found_or_ended() -> bool:
            return line() is not None or self.status is not None

        wait_for(found_or_ended, timeout, lambda: f"{text!r} from {self.command}; it said:\n{self.output[-3000:]}")
        found = line()
        assert found is not None, f"{self.command} ended with {self.status}; it said:\n{self.output[-3000:]}"
        return found

    def close(self) -> None:
        """End it if it still runs, and release the pipes."""
        self.kill()


def wait_for(
    condition: Callable[[], object], timeout: float = PATIENCE_S, what: str | Callable[[], str] = "condition"
) -> None:
    """Wait until a condition holds, with a deadline; the only way a test waits."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout} s: {what() if callable(what) else what}")
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    """A process with this id exists and is no zombie."""
    import psutil

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
