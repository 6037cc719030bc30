"""Programs that are measured, as processes of their own: started, watched from outside, ended with us.

Belongs here: starting, CPU time and memory of a process. Does not belong here: what is run.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, Self

import psutil

from uow.jvm import watch


class Usage(NamedTuple):
    """CPU seconds, user and system, of all threads so far; wall clock of the look; peak resident bytes so far."""

    cpu_s: float
    at_s: float
    peak_bytes: int


class Program:
    """A running program; its output is in `log`. Ends with us, killed or not (`uow/jvm/watch.py`)."""

    def __init__(self, log: Path, *command: str, env: Mapping[str, str] | None = None) -> None:
        self.log = log
        self._watcher = subprocess.Popen(
            [sys.executable, "-I", "-S", watch.__file__, str(log), "", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=dict(env) if env is not None else None,
            start_new_session=True,
        )
        assert self._watcher.stdout is not None
        self.process = psutil.Process(int(self._watcher.stdout.readline()))
        self._peak = 0

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def usage(self) -> Usage:
        """CPU time, wall time and peak memory so far."""
        times = self.process.cpu_times()
        return Usage(times.user + times.system, time.perf_counter(), self.peak_bytes())

    def peak_bytes(self) -> int:
        """Peak memory from the kernel if it records it, else the largest value seen at a measurement."""
        try:
            for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
        except OSError:
            pass
        self._peak = max(self._peak, self.process.memory_info().rss)
        return self._peak

    def wait(self, condition: Callable[[], bool], what: str, timeout_s: float, every_s: float = 0.02) -> None:
        """Waits; fails with the program's last words when it ended or the time is over."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if self._watcher.poll() is not None or time.monotonic() > deadline:
                if condition():
                    return
                why = "ended" if self._watcher.poll() is not None else f"took longer than {timeout_s:g} s"
                raise RuntimeError(f"{what}: the program {why}; it said\n{self.output[-3000:]}")
            time.sleep(every_s)

    def wait_output(self, text: str, timeout_s: float = 60, every_s: float = 0.005) -> None:
        """Waits until the program has said `text`."""
        self.wait(lambda: text in self.output, f"waiting for {text!r}", timeout_s, every_s)

    def wait_end(self, timeout_s: float) -> str:
        """Waits for its own end; what it said."""
        if self._watcher.wait(timeout_s):
            raise RuntimeError(f"failed:\n{self.output[-3000:]}")
        return self.output

    def stop(self) -> None:
        """SIGTERM, then SIGKILL."""
        if self._watcher.poll() is None:
            try:
                self.process.terminate()
                self._watcher.wait(20)
            except (subprocess.TimeoutExpired, psutil.NoSuchProcess):
                self._watcher.kill()
                self._watcher.wait()
        for pipe in (self._watcher.stdin, self._watcher.stdout):
            assert pipe is not None
            pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
