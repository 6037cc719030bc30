"""Programs under test as child processes that never outlive the tests (`uow.embedded.child_processes`), and waiting."""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from uow.embedded import child_processes as children

PATIENCE_S = 90
"""Deadline of everything that is to happen. It costs nothing when it happens; a test ends after `timeout` of pytest. Both are counted by `Patience`."""
CORES = os.cpu_count() or 1


class Patience:
    """A deadline that only a hang misses: the time that counts is the share of it that this machine has for one of all who want to run (decision 110).

    Args:
        seconds: The deadline on a machine without other work.
    """

    def __init__(self, seconds: float) -> None:
        self._left_s, self._looked_at = seconds, time.monotonic()

    @property
    def is_over(self) -> bool:
        """True once the time is used up. It has to be asked often, since the load is that of now."""
        now = time.monotonic()
        self._left_s -= (now - self._looked_at) / stretched(1)
        self._looked_at = now
        return self._left_s < 0


def stretched(seconds: float) -> float:
    """A time-out for a call that waits by itself, such as `subprocess.run`: as long as `Patience` would have at the load of now."""
    return seconds * max(1.0, os.getloadavg()[0] / CORES)


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
        wait_for(
            lambda: self.status is not None, timeout, lambda: f"end of {self.command}; it said:\n{self.output[-3000:]}"
        )
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
    patience = Patience(timeout)
    while not condition():
        if patience.is_over:
            raise AssertionError(f"not within {timeout} s: {what() if callable(what) else what}")
        time.sleep(0.05)


def free_port() -> int:
    """A port for a program that starts later. It is none that the system gives to outgoing connections, so nobody gets it by accident until then."""
    while True:
        with socket.socket() as probe, suppress(OSError):
            port = random.SystemRandom().randrange(20_000, 30_000)
            probe.bind(("127.0.0.1", port))
            return port


def is_alive(pid: int) -> bool:
    """A process with this id exists and is no zombie."""
    import psutil

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
