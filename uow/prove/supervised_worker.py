"""A worker process that is started again and again, each time with the next fault, and whose exit status is checked.

Belongs here: processes and signals. Does not belong here: faults of the broker or the whole group (`cluster_faults`), judging (`round`).
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

from uow.embedded.child_processes import ChildProcess
from uow.prove.faults import Fault, FaultKind
from uow.prove.seen_records import Findings
from uow.prove.timeline import EventLog

STEP_PATIENCE_S = 25.0
"""Seconds after which a step is considered out of reach: the worker owns no partition, no records flow, or the machine is busy."""
PUT_OFFS = 3
"""So often a worker is restarted for a step that it did not reach; then it is killed without one."""

METRICS_S = 5.0
BREATH_S = 4.0
"""Seconds that a worker which survived its fault runs before it is killed to make room for the next fault."""

KILLED = 128 + signal.SIGKILL
ALLOWED: Mapping[FaultKind | None, set[int]] = {
    None: set(),
    FaultKind.STOP: {0},
    FaultKind.ROLL: {0},
    FaultKind.FREEZE: {1},
}
"""Allowed exit statuses after a fault; other faults kill the worker. A worker that was frozen may have been replaced, and then exits with 1."""
BOUND_VARIABLES = tuple(f"UOW_WORKER__REPLAY_LIMIT_{name}" for name in ("RECORDS", "BYTES", "MS"))
REPLAY_BOUNDS = (
    (0, 0, 0),
    (100_000, 67_108_864, 60_000),
    (300, 67_108_864, 60_000),
    (100_000, 20_000, 60_000),
    (100_000, 67_108_864, 700),
)
"""Variables of the replay bounds, which differ at each start: a worker must continue from everything that its predecessor wrote."""

PAGES = re.compile(r"pages on (http://[^/\s]+)/")


@dataclass
class Tally:
    """Faults, exits and findings of a round, shared by everything that causes faults."""

    faults: Counter[str] = field(default_factory=Counter)
    exits: Counter[str] = field(default_factory=Counter)
    findings: Findings = field(default_factory=Findings)


@dataclass
class SharedWorkerState:
    """State that the workers of a round share.

    Attributes:
        folder: Folder of the logs.
        command: The command that starts a worker, without `--name`.
        env: Its environment.
        faults: The remaining faults of workers, in order.
        shift: Offset into the list of replay bounds.
        event_log: Collects events.
        tally: Counts faults and exit statuses, and collects findings.
    """

    folder: Path
    command: list[str]
    env: Mapping[str, str]
    faults: deque[Fault]
    shift: int
    event_log: EventLog
    tally: Tally


class SupervisedWorker:
    """One worker, by name. `supervise` is called again and again; `request_restart` may be called from another thread.

    Args:
        name: Its worker name.
        shared: State that it shares with the other workers.
    """

    def __init__(self, name: str, shared: SharedWorkerState) -> None:
        self.name, self._shared = name, shared
        self._child: ChildProcess | None = None
        self._planned: Fault | None = None
        self._happened: FaultKind | None = None
        self._started = self._ready_at = self._frozen_at = self._survived_at = 0.0
        self._runs = self._put_off = 0
        self._restart_requested = self._is_leaving = self._is_armed = False

    @property
    def is_busy(self) -> bool:
        """True while a fault of this run is still to come or is under way."""
        return self._planned is not None

    @property
    def is_restarted(self) -> bool:
        """True if no restart is pending and the worker is ready."""
        return not self._restart_requested and bool(self._ready_at)

    @property
    def metrics(self) -> str:
        """The text of the worker's `/metrics`; empty if it does not answer."""
        found = PAGES.search(self._child.said) if self._child is not None else None
        if found is None:
            return ""
        try:
            with urllib.request.urlopen(f"{found[1]}/metrics", timeout=METRICS_S) as answer:
                body: bytes = answer.read()
        except OSError:
            return ""
        return body.decode()

    def request_restart(self) -> None:
        """Requests a clean restart."""
        self._restart_requested = True

    def start(self) -> None:
        """Starts the worker with the next fault."""
        shared = self._shared
        self._planned = shared.faults.popleft() if shared.faults else None
        self._happened, self._is_leaving = None, False
        self._is_armed = self._planned is not None and self._planned.kind is FaultKind.STEP
        self._runs += 1
        bounds = REPLAY_BOUNDS[(shared.shift + self._runs + sum(map(ord, self.name))) % len(REPLAY_BOUNDS)]
        env = {**shared.env, **dict(zip(BOUND_VARIABLES, map(str, bounds), strict=True)), **_hooks(self._planned)}
        log = shared.folder / f"worker-{self.name}-{self._runs}.log"
        self._child = ChildProcess([*shared.command, "--name", self.name], log, env)
        self._started, self._ready_at, self._frozen_at, self._survived_at = time.monotonic(), 0.0, 0.0, 0.0
        shared.event_log.note(self.name, "start")

    def supervise(self) -> None:
        """One step: causes the fault if it is due, and restarts a worker that has ended."""
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
            self._shared.event_log.note(self.name, "ready")
        if self._restart_requested and self._ready_at and not self._frozen_at:
            self._restart_in_order()
        elif self._planned is not None:
            self._harm(self._planned, now)
        elif self._shared.faults and self._can_make_room(now):
            self._kill(Fault(FaultKind.KILL))

    def _restart_in_order(self) -> None:
        if self._planned is not None:
            self._shared.faults.appendleft(self._planned)
        self._restart_requested = False
        self._planned, self._happened, self._ready_at = None, FaultKind.ROLL, 0.0
        self._leave(signal.SIGTERM)

    def _harm(self, fault: Fault, now: float) -> None:
        running, ready = now - self._started, now - self._ready_at if self._ready_at else -1.0
        match fault.kind:
            case FaultKind.KILL if running >= fault.after_s:
                self._kill(fault)
            case FaultKind.STEP if ready >= STEP_PATIENCE_S and self._put_off < PUT_OFFS:
                self._put_off += 1
                self._restart_in_order()
            case FaultKind.STEP if ready >= STEP_PATIENCE_S:
                self._kill(Fault(FaultKind.KILL))
            case FaultKind.STOP if ready >= fault.after_s:
                self._done(fault)
                self._leave(signal.SIGTERM)
            case FaultKind.FREEZE if self._frozen_at and now - self._frozen_at >= fault.lasts_s:
                self._signal(signal.SIGCONT)
                self._frozen_at = 0.0
                self._survive(fault, now)
            case FaultKind.FREEZE if not self._frozen_at and ready >= fault.after_s:
                self._signal(signal.SIGSTOP)
                self._frozen_at = now
            case FaultKind.CLOCK if self._ready_at and running >= fault.after_s + fault.lasts_s:
                self._survive(fault, now)
            case _:
                pass

    def _kill(self, fault: Fault) -> None:
        self._done(fault)
        self._leave(signal.SIGKILL)

    def _leave(self, number: int) -> None:
        """Sends a signal that ends the worker; it gets no further fault."""
        self._is_leaving = True
        self._signal(number)

    def _survive(self, fault: Fault, now: float) -> None:
        self._survived_at = now
        self._done(fault)

    def _can_make_room(self, now: float) -> bool:
        """True if this run has no more faults, but further faults need a run."""
        if self._happened is None:
            return bool(self._ready_at)
        return bool(self._survived_at) and now - self._survived_at >= BREATH_S

    def _done(self, fault: Fault) -> None:
        self._shared.tally.faults[fault.name] += 1
        self._shared.event_log.note(self.name, fault.name, fault.lasts_s, fault.detail)
        self._planned, self._happened = None, fault.kind

    def _signal(self, number: int) -> None:
        assert self._child is not None
        self._child.signal(number)

    def _ended(self) -> None:
        """Checks that a fault ended the worker. One that waits for a named step may reach it while it stops for a rolling restart."""
        assert self._child is not None
        status = self._child.status
        if self._planned is not None and self._planned.kind is FaultKind.STEP and status == KILLED:
            self._done(self._planned)
        elif self._planned is not None:
            self._shared.faults.appendleft(self._planned)
        if status not in ALLOWED.get(self._happened, {KILLED}) and not (status == KILLED and self._is_armed):
            self._complain(status)
        self._close(status)

    def end(self) -> None:
        """Ends it cleanly."""
        if self._child is None:
            return
        if not self._is_leaving:  # a second signal would end it at once, uncleanly
            self._signal(signal.SIGTERM)
        try:
            status = self._child.wait(60)
        except subprocess.TimeoutExpired:
            status = None
        if status != 0:
            self._complain(status)
        self._close(status)

    def close(self) -> None:
        """Ends it at once with SIGKILL."""
        if self._child is not None:
            self._child.kill()

    def _complain(self, status: int | None) -> None:
        assert self._child is not None
        why = f"after {self._happened}" if self._happened else "by itself"
        text = f"worker {self.name} ended with {status} {why}; {self._child.log} ends with\n{self._child.said[-2000:]}"
        self._shared.tally.findings.say("exit", text)

    def _close(self, status: int | None) -> None:
        assert self._child is not None
        self._shared.tally.exits[str(status)] += 1
        self._shared.event_log.note(self.name, "end", detail=f"status {status}")
        self._child.kill()


def _hooks(fault: Fault | None) -> dict[str, str]:
    """Environment variables that make a worker cause its own fault at the right moment."""
    if fault is None:
        return {}
    if fault.kind is FaultKind.STEP:
        delay = f":{fault.delay_ms}" if fault.delay_ms >= 0 else ""
        return {"UOW_CRASH": f"{fault.step}:{fault.turn}:{int(signal.SIGKILL)}{delay}"}
    if fault.kind is FaultKind.CLOCK:
        return {"UOW_CLOCK": f"{fault.after_s:.3f}:{fault.lasts_s:.3f}:{fault.shift_s:.3f}"}
    return {}
