"""Run a program that ends when the process that asked for it ends, however that happens.

Started by path with `python -I -S`, so nothing of the project is imported, and it stays small:

    watch.py LOG REMOVE PROGRAM ARGUMENT...

The program's process id is the first line on standard output; what the program says goes to LOG. The one who asked holds
the write end of our standard input. When it dies, the kernel closes the pipe; should a forked child have kept it open,
our parent id changes. Either way the program is stopped: gently, or at once when its data is to be thrown away
(REMOVE names that folder, or is empty). No call of one platform only.
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
    """Ask the program to end; insist after `patience` seconds."""
    if patience:
        program.terminate()
        try:
            program.wait(patience)
        except subprocess.TimeoutExpired:
            pass
    program.kill()


def _wait_orphaned(parent: int) -> None:
    """Return once the one who asked is gone."""
    while os.getppid() == parent:
        if select.select([0], [], [], LOOK_SECONDS)[0] and not os.read(0, 64):
            return


def main() -> int:
    """Start the program, report its id, stand by until it or its owner ends."""
    parent = os.getppid()
    log, remove, *command = sys.argv[1:]
    ended = threading.Event()

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
        _stop(program, 0 if remove else GENTLE_SECONDS)
        program.wait()
        if remove:
            shutil.rmtree(remove, ignore_errors=True)
        os._exit(1)

    try:
        os.write(1, f"{program.pid}\n".encode())
        os.close(1)
    except OSError:
        pass  # the one who asked is gone already: the thread sees it
    watcher = threading.Thread(target=on_orphaned, daemon=True)
    watcher.start()
    code = program.wait()
    # While the owner lives, the folder is the owner's business; once it is gone, the thread tidies up and leaves.
    if os.getppid() != parent:
        watcher.join(GENTLE_SECONDS)
    ended.set()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    os._exit(main())
