"""Programs that never outlive whoever started them.

Each runs under `jvm/watch.py`: when the owner ends, killed or not, so does the program. What it says, on both streams, goes to a file.

Belongs here: one such program. Does not belong here: what is started and why (`uow.demo`, `uow.prove`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from jvm import java

WATCH = Path(java.__file__).with_name("watch.py")


class Child:
    """A running program.

    Args:
        command: The program and its arguments.
        log: Takes what it says; appended to.
        env: Its whole environment.
        folder: Its working directory; default ours.
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
            start_new_session=True,  # a terminal's Ctrl-C is for the owner, who ends its children in order
        )
        assert self._watcher.stdout is not None
        self.pid = int(self._watcher.stdout.readline() or 0)

    @property
    def said(self) -> str:
        """What it said so far."""
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
        """Waits for its end; the exit status.

        Raises:
            subprocess.TimeoutExpired: It did not end in time.
        """
        return self._watcher.wait(timeout)

    def end(self, patience: float) -> int:
        """Waits for its end, insisting with SIGKILL after `patience` seconds, and closes the pipes; the exit status."""
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
        """SIGKILL, as a power failure would; returns when it has ended."""
        self.signal(signal.SIGKILL)
        self.end(60)
