"""`uow worker`: one worker. Signals and exit status: `processor.shell.worker`."""

from __future__ import annotations

import itertools
import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import click

from uow.config import Settings
from uow.options import config_option

CRASH_VARIABLE = "UOW_CRASH"
"""For drills only: `STEP:WHEN:SIGNAL[:DELAY_MS]` makes the worker signal itself at a named commit step (`processor.kafka.sink.STEPS`, or `any`),
once: the WHENth time the step is reached, or, below 1, each time with that probability; with a delay while the next call is under way.
Never set it where records matter to you: it proves that kill -9 is harmless."""

CLOCK_VARIABLE = "UOW_CLOCK"
"""For drills only: `AFTER_S:LASTS_S:SHIFT_S` puts the worker's wall clock forward or back, so many seconds after it is first looked at, for so long."""


@click.command()
@config_option
@click.option(
    "--name",
    "slot",
    metavar="SLOT",
    help="Names the transactional id; two live workers never share one. [default: HOSTNAME-0]",
)
def command(settings: Settings, slot: str | None) -> None:
    """Assemble components into units, until SIGTERM.

    Prints `worker SLOT ready` once its partitions are owned and restored, or it is a spare.
    """
    signal.signal(signal.SIGTERM, _leave)  # imports take a second; a stop in it is a clean one as well
    from processor.shell.worker import run_worker

    crash, wall = crash_hook(os.environ.get(CRASH_VARIABLE, "")), shifted_clock(os.environ.get(CLOCK_VARIABLE, ""))
    sys.exit(run_worker(settings.worker(slot or f"{socket.gethostname()}-0"), crash, wall))


def _leave(number: int, frame: Any) -> None:
    sys.exit(0)


def shifted_clock(text: str) -> Callable[[], int]:
    """The wall clock, epoch ms, as `UOW_CLOCK` has it; the true one where it is not set."""
    after_s, lasts_s, shift_s = map(float, text.split(":")) if text else (0.0, 0.0, 0.0)
    started: float | None = None

    def wall_ms() -> int:
        nonlocal started
        now = time.monotonic()
        started = now if started is None else started
        is_shifted = after_s <= now - started < after_s + lasts_s
        return time.time_ns() // 1_000_000 + (int(shift_s * 1000) if is_shifted else 0)

    return wall_ms


def crash_hook(text: str) -> Callable[[str], None]:
    """The hook for `UOW_CRASH`; one that does nothing where it is not set."""
    if not text:
        return lambda step: None
    at, when, number, *delay = text.split(":")
    turns = itertools.count(1)
    armed = [True]

    def now() -> bool:
        return random.random() < float(when) if float(when) < 1 else next(turns) == int(when)

    def crash() -> None:
        os.kill(os.getpid(), int(number))

    def on_step(step: str) -> None:
        if armed and at in (step, "any") and now():
            armed.clear()
            if delay:
                threading.Timer(float(delay[0]) / 1000, crash).start()
            else:
                crash()

    return on_step
