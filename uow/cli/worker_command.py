"""`uow worker`: one worker. Its signals and exit statuses are described in `uow.processor.shell.worker`."""

from __future__ import annotations

import gc
import itertools
import logging
import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from uow.cli.options import config_option
from uow.config.loading import Settings

if TYPE_CHECKING:
    from uow.processor.shell.worker import GiveUp

CRASH_VARIABLE = "UOW_CRASH"
"""For drills only: `STEP:WHEN:SIGNAL[:DELAY_MS]` makes the worker send itself a signal at a named commit step (`uow.processor.kafka.sink.STEPS`, or `any`),
once: the WHENth time the step is reached, or, below 1, each time with that probability; with a delay the signal comes while the next call is under way.
Never set it where records matter: it serves to prove that kill -9 is harmless."""

CLOCK_VARIABLE = "UOW_CLOCK"
"""For drills only: `AFTER_S:LASTS_S:SHIFT_S` shifts the worker's wall clock by SHIFT_S seconds, from AFTER_S seconds after its first use, for LASTS_S seconds."""


@click.command()
@config_option
@click.option(
    "--name",
    "worker_name",
    metavar="NAME",
    help="Worker name, part of its transactional id; two running workers must not share one. [default: HOSTNAME-0]",
)
@click.option(
    "--flush-on-stop",
    is_flag=True,
    help="At SIGTERM give up the open groups first, each by its policy; for runs that are not continued.",
)
def command(settings: Settings, worker_name: str | None, flush_on_stop: bool) -> None:
    """Assemble components into units, until SIGTERM.

    Prints `worker NAME ready` once it owns partitions and has restored them, or when there are none left for it.
    """
    signal.signal(signal.SIGTERM, _leave)  # the imports take a second; a SIGTERM during them ends cleanly too
    gc.disable()  # an import makes many objects and hardly any garbage: looking for it would take a quarter of the time
    from uow.processor.shell.worker import run_worker, set_up_log

    gc.enable()
    if note := settings.without_effect_on_workers:
        set_up_log()
        logging.getLogger("uow.worker").warning(note)
    settings.command_signer()  # now, and not when it is needed
    crash, wall = crash_hook(os.environ.get(CRASH_VARIABLE, "")), shifted_clock(os.environ.get(CLOCK_VARIABLE, ""))
    name = worker_name or f"{socket.gethostname()}-0"
    sys.exit(run_worker(settings.worker(name), crash, wall, _give_up(settings, name) if flush_on_stop else None))


def _give_up(settings: Settings, name: str) -> GiveUp:
    from uow.ops.flush import give_up

    return partial(give_up, settings, name)


def _leave(number: int, frame: Any) -> None:
    sys.exit(0)


def shifted_clock(text: str) -> Callable[[], int]:
    """The wall clock, epoch ms, shifted as `UOW_CLOCK` says; the true one when it is not set."""
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
    """The hook for `UOW_CRASH`; it does nothing when the variable is not set."""
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
