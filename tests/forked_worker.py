"""Workers that are forked from a process that has imported what a worker imports: nearly all of the CPU time of a worker's start.

Such a worker has a process id, a session, an environment and an output of its own, hears signals, and ends with the tests. That `uow worker` starts
as a program of its own is shown by those tests that ask for its path, by the demo and by `uow prove`.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from io import TextIOWrapper
from pathlib import Path

from tests.processes import PATIENCE_S, Process, wait_for
from uow.cli.main import main

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload([__name__, "uow.cli.worker_command", "uow.processor.shell.worker"])


class ForkedWorker(Process):
    """`uow worker`, forked.

    Args:
        words: The command, from `worker` on.
        log: File that its output is appended to.
        env: Environment variables beside those of the tests.
    """

    def __init__(self, words: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self.command, self.log, self._begin = ["uow", *words], log, 0
        self._process = CONTEXT.Process(target=_run, args=(self.command, log, {**os.environ, **(env or {})}))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def status(self) -> int | None:
        code = self._process.exitcode
        return code if code is None or code >= 0 else 128 - code

    def wait(self, timeout: float = PATIENCE_S) -> int:
        wait_for(
            lambda: self.status is not None, timeout, lambda: f"end of {self.command}; it said:\n{self.output[-3000:]}"
        )
        assert self.status is not None
        return self.status

    def end(self, patience: float) -> int:
        return self.wait(patience)


def _run(command: list[str], log: Path, env: Mapping[str, str]) -> None:
    """The new process, up to its end."""
    os.setsid()
    with log.open("ab") as out:
        for number, stream in (1, sys.stdout), (2, sys.stderr):
            os.dup2(out.fileno(), number)
            assert isinstance(stream, TextIOWrapper)
            stream.reconfigure(line_buffering=True)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = command
    threading.Thread(target=_end_with_tests, daemon=True).start()
    main()


def _end_with_tests() -> None:
    tests = multiprocessing.parent_process()
    assert tests is not None
    tests.join()
    os.kill(os.getpid(), signal.SIGKILL)
