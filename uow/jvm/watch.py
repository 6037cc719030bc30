"""Run a program that ends when the process that started it ends, whatever the cause.

Started by path with `python -I -S`, so nothing of the project is imported, and it stays small:

    watch.py LOG REMOVE PROGRAM ARGUMENT...

The program's process id is the first line on standard output; the program's own output goes to LOG. The owner, the process that
started this one, holds the write end of its standard input. When the owner dies, the kernel closes the pipe; if a forked
child has kept the pipe open, at least the parent id changes. In both cases the program is stopped: with SIGTERM, or at once when
its data is to be deleted (REMOVE names that folder, or is empty). Only calls that exist on every platform are used.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType

LOOK_SECONDS = 0.5
GENTLE_SECONDS = 20


def _stop(program: "subprocess.Popen[bytes]", patience: float) -> None:
    """Ask the program to end; kill it after `patience` seconds."""
    if patience:
        program.terminate()
        try:
            program.wait(patience)
        except subprocess.TimeoutExpired:
            pass
    program.kill()


def _wait_orphaned(parent: int) -> None:
    """Return once the owner has ended."""
    while os.getppid() == parent:
        if select.select([0], [], [], LOOK_SECONDS)[0] and not os.read(0, 64):
            return


def main() -> int:
    """Start the program, report its id, and wait until it or its owner ends."""
    parent = os.getppid()
    log, remove, *command = sys.argv[1:]
    ended, orphaned = threading.Event(), threading.Event()

    with Path(log).open("ab") as out:
        program = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)

    def on_term(signum: int, frame: FrameType | None) -> None:
        program.terminate()

    signal.signal(signal.SIGTERM, on_term)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def on_orphaned() -> None:
        _wait_orphaned(parent)
        if ended.is_set():
            return
        orphaned.set()
        _stop(program, 0 if remove else GENTLE_SECONDS)
        program.wait()
        if remove:
            shutil.rmtree(remove, ignore_errors=True)
        os._exit(1)

    try:
        os.write(1, f"{program.pid}\n".encode())
        os.close(1)
    except OSError:
        pass  # the owner has ended already: the thread notices it
    watcher = threading.Thread(target=on_orphaned, daemon=True)
    watcher.start()
    code = program.wait()
    # While the owner lives it looks after the folder itself; once it has ended, the thread removes the folder and exits.
    # The owner's pipe closes before its children get another parent.
    if orphaned.is_set() or os.getppid() != parent:
        watcher.join(GENTLE_SECONDS)
    ended.set()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    os._exit(main())
