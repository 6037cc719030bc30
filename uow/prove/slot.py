"""One worker's slot: starts `uow worker` again and again, each time with the next fault, and holds it to account for how it ends.

Belongs here: processes and signals. Does not belong here: what befalls the broker or the whole group (`weather`), what is judged (`round`).
"""

from __future__ import annotations

import re
import signal
import subprocess
import time
import urllib.request
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from uow.children import Child
from uow.prove.events import Notebook
from uow.prove.faults import Fault, Kind
from uow.prove.records import Findings

STEP_PATIENCE_S = 25.0
"""A step that is not reached in this time is never reached: the slot owns nothing, or nothing flows."""

METRICS_S = 5.0
BREATH_S = 4.0
"""How long a worker that survived its fault is watched before it is killed to make room for the next."""

KILLED = 128 + signal.SIGKILL
ALLOWED: Mapping[Kind | None, set[int]] = {None: set(), Kind.STOP: {0}, Kind.ROLL: {0}, Kind.FREEZE: {1}}
"""Exit statuses by what befell a worker; all else kills it. One that was frozen may find its place taken and leave with 1."""
BOUND_VARIABLES = tuple(f"UOW_WORKER__REPLAY_LIMIT_{name}" for name in ("RECORDS", "BYTES", "MS"))
REPLAY_BOUNDS = (
    (0, 0, 0),
    (100_000, 67_108_864, 60_000),
    (300, 67_108_864, 60_000),
    (100_000, 20_000, 60_000),
    (100_000, 67_108_864, 700),
)
"""Replay bounds, others at each start: a worker must go on from whatever its predecessor wrote."""

PAGES = re.compile(r"pages on (http://[^/\s]+)/")


@dataclass
class Tally:
    """What happened in a round, and what was wrong: shared by all who do harm."""

    faults: Counter[str] = field(default_factory=Counter)
    exits: Counter[str] = field(default_factory=Counter)
    findings: Findings = field(default_factory=Findings)


@dataclass
class Workshop:
    """What the slots of a round share.

    Attributes:
        folder: For logs.
        command: What starts a worker, `--name` excepted.
        env: Its environment.
        faults: What is still to befall workers, in order.
        shift: Turns the order of the replay bounds.
        notebook: Takes events.
        tally: Takes what happened.
    """

    folder: Path
    command: list[str]
    env: Mapping[str, str]
    faults: deque[Fault]
    shift: int
    notebook: Notebook
    tally: Tally


class Slot:
    """One slot. `supervise` is called again and again; `roll` may be called from another thread.

    Args:
        name: Of the slot.
        shop: What it shares with the others.
    """

    def __init__(self, name: str, shop: Workshop) -> None:
        self.name, self._shop = name, shop
        self._child: Child | None = None
        self._planned: Fault | None = None
        self._happened: Kind | None = None
        self._started = self._ready_at = self._frozen_at = self._survived_at = 0.0
        self._runs = 0
        self._roll_asked = self._is_leaving = self._is_armed = False

    @property
    def is_busy(self) -> bool:
        """A fault is planned for this run and did not happen yet, or is going on."""
        return self._planned is not None

    @property
    def is_rolled(self) -> bool:
        """Nobody waits for a restart of this slot, and its worker is ready."""
        return not self._roll_asked and bool(self._ready_at)

    @property
    def metrics(self) -> str:
        """What the worker's `/metrics` says; empty where it does not answer."""
        found = PAGES.search(self._child.said) if self._child is not None else None
        if found is None:
            return ""
        try:
            with urllib.request.urlopen(f"{found[1]}/metrics", timeout=METRICS_S) as answer:
                body: bytes = answer.read()
        except OSError:
            return ""
        return body.decode()

    def roll(self) -> None:
        """Asks for a restart in order."""
        self._roll_asked = True

    def start(self) -> None:
        """Starts the worker with the next fault."""
        shop = self._shop
        self._planned = shop.faults.popleft() if shop.faults else None
        self._happened, self._is_leaving = None, False
        self._is_armed = self._planned is not None and self._planned.kind is Kind.STEP
        self._runs += 1
        bounds = REPLAY_BOUNDS[(shop.shift + self._runs + sum(map(ord, self.name))) % len(REPLAY_BOUNDS)]
        env = {**shop.env, **dict(zip(BOUND_VARIABLES, map(str, bounds), strict=True)), **_hooks(self._planned)}
        log = shop.folder / f"worker-{self.name}-{self._runs}.log"
        self._child = Child([*shop.command, "--name", self.name], log, env)
        self._started, self._ready_at, self._frozen_at, self._survived_at = time.monotonic(), 0.0, 0.0, 0.0
        shop.notebook.note(self.name, "start")

    def supervise(self) -> None:
        """One look: do what the fault asks for, start again what has ended."""
        assert self._child is not None
        if self._child.status is not None:
            self._ended()
            self.start()
            return
        if self._is_leaving:
            return
        now = time.monotonic()
        if not self._ready_at and f"worker {self.name} ready" in self._child.said:
            self._ready_at = now
            self._shop.notebook.note(self.name, "ready")
        if self._roll_asked and self._ready_at and not self._frozen_at:
            self._restart_in_order()
        elif self._planned is not None:
            self._harm(self._planned, now)
        elif self._shop.faults and self._can_make_room(now):
            self._kill(Fault(Kind.KILL))

    def _restart_in_order(self) -> None:
        if self._planned is not None:
            self._shop.faults.appendleft(self._planned)
        self._roll_asked = False
        self._planned, self._happened, self._ready_at = None, Kind.ROLL, 0.0
        self._leave(signal.SIGTERM)

    def _harm(self, fault: Fault, now: float) -> None:
        running, ready = now - self._started, now - self._ready_at if self._ready_at else -1.0
        match fault.kind:
            case Kind.KILL if running >= fault.after_s:
                self._kill(fault)
            case Kind.STEP if ready >= STEP_PATIENCE_S:
                self._kill(Fault(Kind.KILL))
            case Kind.STOP if ready >= fault.after_s:
                self._done(fault)
                self._leave(signal.SIGTERM)
            case Kind.FREEZE if self._frozen_at and now - self._frozen_at >= fault.lasts_s:
                self._signal(signal.SIGCONT)
                self._frozen_at = 0.0
                self._survive(fault, now)
            case Kind.FREEZE if not self._frozen_at and ready >= fault.after_s:
                self._signal(signal.SIGSTOP)
                self._frozen_at = now
            case Kind.CLOCK if self._ready_at and running >= fault.after_s + fault.lasts_s:
                self._survive(fault, now)
            case _:
                pass

    def _kill(self, fault: Fault) -> None:
        self._done(fault)
        self._leave(signal.SIGKILL)

    def _leave(self, number: int) -> None:
        """Sends a signal that ends the worker; nothing more befalls it."""
        self._is_leaving = True
        self._signal(number)

    def _survive(self, fault: Fault, now: float) -> None:
        self._survived_at = now
        self._done(fault)

    def _can_make_room(self, now: float) -> bool:
        """This run has no fault left to come, but others wait for a run."""
        if self._happened is None:
            return bool(self._ready_at)
        return bool(self._survived_at) and now - self._survived_at >= BREATH_S

    def _done(self, fault: Fault) -> None:
        self._shop.tally.faults[fault.name] += 1
        self._shop.notebook.note(self.name, fault.name, fault.lasts_s, fault.detail)
        self._planned, self._happened = None, fault.kind

    def _signal(self, number: int) -> None:
        assert self._child is not None
        self._child.signal(number)

    def _ended(self) -> None:
        """Only the faults may end a worker; one that waits for a named step may reach it on its way out of a rolling restart."""
        assert self._child is not None
        status = self._child.status
        if self._planned is not None and self._planned.kind is Kind.STEP and status == KILLED:
            self._done(self._planned)
        elif self._planned is not None:
            self._shop.faults.appendleft(self._planned)
        if status not in ALLOWED.get(self._happened, {KILLED}) and not (status == KILLED and self._is_armed):
            self._complain(status)
        self._close(status)

    def end(self) -> None:
        """Ends it in order."""
        if self._child is None:
            return
        if not self._is_leaving:  # a second signal means: leave at once, unclean
            self._signal(signal.SIGTERM)
        try:
            status = self._child.wait(60)
        except subprocess.TimeoutExpired:
            status = None
        if status != 0:
            self._complain(status)
        self._close(status)

    def close(self) -> None:
        """Ends it at once, whatever it does."""
        if self._child is not None:
            self._child.kill()

    def _complain(self, status: int | None) -> None:
        assert self._child is not None
        why = f"after {self._happened}" if self._happened else "by itself"
        text = f"worker {self.name} ended with {status} {why}; {self._child.log} ends with\n{self._child.said[-2000:]}"
        self._shop.tally.findings.say("exit", text)

    def _close(self, status: int | None) -> None:
        assert self._child is not None
        self._shop.tally.exits[str(status)] += 1
        self._shop.notebook.note(self.name, "end", detail=f"status {status}")
        self._child.kill()


def _hooks(fault: Fault | None) -> dict[str, str]:
    """Variables that make a worker harm itself at the right moment."""
    if fault is None:
        return {}
    if fault.kind is Kind.STEP:
        delay = f":{fault.delay_ms}" if fault.delay_ms >= 0 else ""
        return {"UOW_CRASH": f"{fault.step}:{fault.turn}:{int(signal.SIGKILL)}{delay}"}
    if fault.kind is Kind.CLOCK:
        return {"UOW_CLOCK": f"{fault.after_s:.3f}:{fault.lasts_s:.3f}:{fault.shift_s:.3f}"}
    return {}
