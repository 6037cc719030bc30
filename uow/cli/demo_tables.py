"""`uow sink --once`, `uow report` and `uow audit` in one process: Spark starts only once, and while the demo still waits for groups to expire.

    python -m uow.cli.demo_tables CONFIG TABLES SETTLED PAGE AUDIT

They run as soon as the file SETTLED exists. The report goes to PAGE, the audit's JSON to AUDIT, and its exit status is that of this program.

Belongs here: the moment at which they run. Does not belong here: their work.
"""

from __future__ import annotations

import signal
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from types import FrameType

from uow.cli.main import main as uow
from uow.demo.environment import REPORT_READY, TABLES_READY
from uow.spark_sink.delta_sink import settings
from uow.spark_sink.session import session

LOOK_S = 0.05


def run(*arguments: str) -> int:
    """Runs a `uow` command in this process and returns its exit status."""
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
    """Starts Spark, waits, runs all three."""
    config, tables, settled, page, audit = sys.argv[1:]
    signal.signal(signal.SIGTERM, _leave)
    session("uow sink", settings=settings(is_short=True))
    while not Path(settled).exists():
        time.sleep(LOOK_S)
    status = run("sink", "-c", config, "--tables", tables, "--once")
    if status:
        return status
    print(TABLES_READY, flush=True)
    status = run("report", "-c", config, "--tables", tables, "--out", page)
    if status:
        return status
    print(REPORT_READY, flush=True)
    with Path(audit).open("w", encoding="utf-8") as out, redirect_stdout(out):
        return run("audit", "-c", config, "--tables", tables, "--json")


if __name__ == "__main__":
    sys.exit(main())
