"""Child processes that never outlive the process that started them.

Each runs under `uow/jvm/watch.py`: when the owner ends, killed or not, so does the program. Its output and errors go to a file.

Belongs here: one such program. Does not belong here: the choice of programs (`uow.demo`, `uow.prove`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from uow.jvm import java

WATCH = Path(java.__file__).with_name("watch.py")


class ChildProcess:
    """A running program.

    Args:
        command: The program and its arguments.
        log: File that its output is appended to.
        env: Its complete environment.
        folder: Its working directory; by default that of this process.
    """

    def __init__(self, command: Sequence[str], log: Path, env: Mapping[str, str], folder: Path | None = None) -> None:
        self.command, self.log = command, log
        self._begin = log.stat().st_size if log.exists() else 0
        self._watcher = subprocess.Popen(
            [sys.executable, "-I", "-S", str(WATCH), str(log), "", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=env,
            cwd=folder,
            start_new_session=True,  # a terminal's Ctrl-C must reach the owner only, which then ends its children in order
        )
        assert self._watcher.stdout is not None
        self.pid = int(self._watcher.stdout.readline() or 0)

    @property
    def said(self) -> str:
        """Its output so far."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as log:
            log.seek(self._begin)
            return log.read().decode(errors="replace")

    @property
    def status(self) -> int | None:
        """None while it runs, else its exit status; 128 + N when signal N ended it."""
        return self._watcher.poll()

    def signal(self, number: int) -> None:
        """Sends a signal to the program itself; does nothing when it has ended."""
        if self.status is None and self.pid:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                pass

    def wait(self, timeout: float) -> int:
        """Waits for its end and returns the exit status.

        Raises:
            subprocess.TimeoutExpired: It did not end in time.
        """
        return self._watcher.wait(timeout)

    def end(self, patience: float) -> int:
        """Waits for its end, with SIGKILL after `patience` seconds, closes the pipes and returns the exit status."""
        try:
            status = self._watcher.wait(max(0.1, patience))
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            status = self._watcher.wait()
        for pipe in (self._watcher.stdin, self._watcher.stdout):
            if pipe is not None:
                pipe.close()
        return status

    def kill(self) -> None:
        """Ends it with SIGKILL, like a power failure; returns when it has ended."""
        self.signal(signal.SIGKILL)
        self.end(60)
