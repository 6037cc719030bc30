"""`uow sink --once`, again, and `uow audit`, in one process: Spark starts once, while the story still waits for time to pass.

    python -m uow.demo.tables CONFIG TABLES SETTLED REPORT

The first `sink` carries what is there; the second one, once the file SETTLED exists, what came since. The audit's JSON goes to
REPORT, and its exit status is that of this program.

Belongs here: the order of the three. Does not belong here: what they do.
"""

from __future__ import annotations

import signal
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from types import FrameType

from uow.cli import main as uow

LOOK_S = 0.05
CARRIED = "tables are up to date"


def run(*arguments: str) -> int:
    """Runs a `uow` command in this process; its exit status."""
    try:
        status = uow([*arguments], standalone_mode=False)
    except SystemExit as end:
        status = end.code
    finally:
        signal.signal(signal.SIGTERM, _leave)
    return status if isinstance(status, int) else 0


def _leave(signum: int, frame: FrameType | None) -> None:
    sys.exit(1)


def main() -> int:
    """Runs all three."""
    config, tables, settled, report = sys.argv[1:]
    sink = ("sink", "-c", config, "--tables", tables, "--once")
    status = run(*sink)
    while not status and not Path(settled).exists():
        time.sleep(LOOK_S)
    status = status or run(*sink)
    if status:
        return status
    print(CARRIED, flush=True)
    with Path(report).open("w", encoding="utf-8") as out, redirect_stdout(out):
        return run("audit", "-c", config, "--tables", tables, "--json")


if __name__ == "__main__":
    sys.exit(main())
