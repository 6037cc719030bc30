"""Two workers under load, and what befalls them: kill -9 at random and at each named commit step, SIGTERM, a pause past the session.

`make drill` runs it for long, `tests/broker/test_kill_drill.py` for short. Belongs here: workers, faults, the result. Does not belong
here: what is sent (`load`), what must come out (`checker`).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tests.drill import checker
from tests.drill.load import Load, Script
from tests.processes import Child

STEPS = ("begin", "produced", "offsets", "commit", "committed")
"""Named commit steps of the worker (architecture section 4, rule 2)."""
SLOTS = ("a", "b")
SESSION_S = 6.0
PARTITIONS = 4
STEP_PATIENCE_S = 25.0
QUIET_S = 90.0
UOW = Path(sys.executable).with_name("uow")


BOUND_VARIABLES = tuple(f"UOW_WORKER__REPLAY_LIMIT_{name}" for name in ("RECORDS", "BYTES", "MS"))
REPLAY_BOUNDS = (
    (0, 0, 0),
    (100_000, 67_108_864, 60_000),
    (300, 67_108_864, 60_000),
    (100_000, 20_000, 60_000),
    (100_000, 67_108_864, 700),
)
"""Replay bounds, another one at each start: a worker must go on from whatever its predecessor wrote."""


class Fault(NamedTuple):
    """What befalls one run of one worker.

    Attributes:
        kind: `kill`, `step`, `term` or `stop`.
        delay: Seconds from the worker's start to a `kill`; from its readiness to `term` and `stop`; for `stop` see `pause`.
        step: Of the transaction, for `step`.
        delay_ms: How long after the step; negative: at it.
        pause: How long a stopped worker stands still, seconds.
    """

    kind: str
    delay: float = 0.0
    step: str = ""
    delay_ms: int = -1
    pause: float = 0.0

    @property
    def name(self) -> str:
        return f"step:{self.step}" if self.kind == "step" else self.kind


@dataclass
class Result:
    """Of one round, or of several put together."""

    seed: int
    rounds: int = 1
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    exits: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    anomalies: Counter[str] = field(default_factory=Counter)
    texts: list[str] = field(default_factory=list)

    @property
    def kills(self) -> int:
        return sum(count for name, count in self.faults.items() if name == "kill" or name.startswith("step:"))

    @property
    def line(self) -> str:
        found = ", ".join(f"{count} {kind}" for kind, count in self.anomalies.items()) or "0"
        counts = self.counts
        return (
            f"rounds {self.rounds}, kills {self.kills}, terms {self.faults['term']}, pauses {self.faults['stop']}, records {counts['records']}, "
            f"units {counts['units']}, rejected {counts['rejected']}, expired groups {counts['expired']}, anomalies: {found}"
        )

    def add(self, other: Result) -> None:
        self.rounds += other.rounds
        self.seconds += other.seconds
        for mine, more in zip(self._counters, other._counters, strict=True):
            mine.update(more)
        self.texts += other.texts

    @property
    def _counters(self) -> tuple[Counter[str], ...]:
        return self.faults, self.exits, self.counts, self.anomalies

    def as_json(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "rounds": self.rounds,
            "seconds": round(self.seconds, 1),
            "kills": self.kills,
            "faults": dict(self.faults),
            "exits": dict(self.exits),
            "counts": dict(self.counts),
            "anomalies": dict(self.anomalies),
            "texts": self.texts,
        }


def short_faults(rng: random.Random) -> list[Fault]:
    """Each named step once, a delayed one, a kill at any time, a clean stop."""
    faults = [Fault("step", step=step) for step in STEPS]
    rng.shuffle(faults)
    return [*faults, Fault("kill", rng.uniform(1.5, 4.0)), Fault("term", 0.2), Fault("kill", rng.uniform(0.5, 3.0))]


def long_faults(rng: random.Random, count: int) -> list[Fault]:
    """A mixture, for minutes."""
    faults = []
    for _ in range(count):
        way = rng.random()
        if way < 0.5:
            faults.append(Fault("step", step=rng.choice(STEPS), delay_ms=rng.choice((-1, -1, 0, 1, 3, 10))))
        elif way < 0.82:
            faults.append(Fault("kill", rng.uniform(0.3, 8.0)))
        elif way < 0.92:
            faults.append(Fault("term", rng.uniform(0.0, 3.0)))
        else:
            faults.append(Fault("stop", rng.uniform(0.2, 3.0), pause=SESSION_S + rng.uniform(-4.0, 8.0)))
    return faults


class Slot:
    """One worker slot: starts its worker again and again, each time with the next fault."""

    def __init__(self, name: str, drill: Drill) -> None:
        self.name, self.drill = name, drill
        self.child: Child | None = None
        self.fault: Fault | None = None
        self.started = self.ready_at = self.stopped_at = 0.0
        self.runs = 0

    def start(self) -> None:
        self.fault = self.drill.faults.popleft() if self.drill.faults else None
        self.runs += 1
        bounds = REPLAY_BOUNDS[(self.drill.seed + self.runs + sum(map(ord, self.name))) % len(REPLAY_BOUNDS)]
        env = dict(zip(BOUND_VARIABLES, map(str, bounds), strict=True))
        if self.fault is not None and self.fault.kind == "step":
            delay = f":{self.fault.delay_ms}" if self.fault.delay_ms >= 0 else ""
            env["UOW_CRASH"] = f"{self.fault.step}:0.15:9{delay}"
        log = self.drill.folder / f"worker-{self.name}-{self.runs}.log"
        command = [*self.drill.command, "-c", str(self.drill.folder / "uow.toml"), "--name", self.name]
        self.child = Child(command, log, env)
        self.started, self.ready_at, self.stopped_at = time.monotonic(), 0.0, 0.0

    def supervise(self) -> None:
        """One look: do what the fault asks for, start again what has ended."""
        child = self.child
        assert child is not None
        now = time.monotonic()
        if child.status is not None:
            self._ended(child)
            self.start()
            return
        if not self.ready_at and f"worker {self.name} ready" in child.output:
            self.ready_at = now
        fault = self.fault
        if fault is None:
            last = self.drill.last.get(self.name)
            if self.drill.faults and self.ready_at and (last is None or last.kind == "stop"):
                child.signal(
                    signal.SIGKILL
                )  # nothing is planned for this run, or it survived its pause: the next fault needs a new one
                self._done(Fault("kill"))
            return
        match fault.kind:
            case "kill" if now - self.started >= fault.delay:
                child.signal(signal.SIGKILL)
                self._done(fault)
            case "step" if now - self.started >= STEP_PATIENCE_S:  # this slot owns nothing, or nothing flows
                child.signal(signal.SIGKILL)
                self._done(Fault("kill"))
            case "term" if self.ready_at and now - self.ready_at >= fault.delay:
                child.signal(signal.SIGTERM)
                self._done(fault)
            case "stop" if self.ready_at and now - self.ready_at >= fault.delay:
                if not self.stopped_at:
                    child.signal(signal.SIGSTOP)
                    self.stopped_at = now
                elif now - self.stopped_at >= fault.pause:
                    child.signal(signal.SIGCONT)
                    self._done(fault)
            case _:
                pass

    def _done(self, fault: Fault) -> None:
        self.drill.result.faults[fault.name] += 1
        self.drill.last[self.name] = fault
        self.fault = None

    def _ended(self, child: Child) -> None:
        """Only the faults may end a worker; a paused one may find its place taken and leave with 1."""
        status = child.status
        result = self.drill.result
        fault, last = self.fault, self.drill.last.pop(self.name, None)
        result.exits[str(status)] += 1
        if fault is not None and fault.kind == "step" and status == 128 + signal.SIGKILL:
            self._done(fault)
            self.drill.last.pop(self.name, None)
        else:
            allowed = {
                "kill": {137},
                "term": {0},
                "stop": {1},
            }.get(last.kind if last else "kill", set())
            if status not in allowed:
                result.anomalies["exit"] += 1
                result.texts.append(f"worker {self.name} ended with {status} after {last}: {child.output[-2000:]}")
        child.close()

    def end(self) -> None:
        """A clean stop at the end of the round."""
        child = self.child
        if child is None:
            return
        last = self.drill.last.get(self.name)
        asked_already = last is not None and last.kind == "term"  # a second signal means: leave at once, unclean
        status = (child.wait(60) if asked_already else child.terminate(60)) if child.status is None else child.status
        self.drill.result.exits[str(status)] += 1
        if status != 0:
            self.drill.result.anomalies["exit"] += 1
            self.drill.result.texts.append(f"worker {self.name} ended with {status} at the end: {child.output[-2000:]}")
        child.close()


class Drill:
    """One round: topics, two workers, load, faults, quiet, check.

    Args:
        bootstrap: Brokers.
        folder: For configuration, logs and what was sent.
        name: Of application and destination.
        faults: What happens, in order.
        seed: Of the load.
        expiration_ms: `incomplete_expiration_ms`; -1: never.
        rate: Records a second, about.
        command: What starts a worker; tests put one with a planted defect here.
        settings: Further lines of `[worker]`.
        slots: Of the workers.
        quiet_s: Longest wait, after the load, for all to be read.
    """

    def __init__(
        self,
        bootstrap: str,
        folder: Path,
        name: str,
        faults: Sequence[Fault],
        seed: int,
        expiration_ms: int = -1,
        rate: int = 1500,
        command: Sequence[str] = (str(UOW), "worker"),
        settings: str = "",
        slots: Sequence[str] = SLOTS,
        quiet_s: float = QUIET_S,
    ) -> None:
        self.bootstrap, self.folder, self.name, self.seed = bootstrap, folder, name, seed
        self.faults, self.expiration_ms, self.rate, self.command = deque(faults), expiration_ms, rate, list(command)
        self.slots, self.quiet_s = slots, quiet_s
        self.topic = f"{name}.components"
        self.result = Result(seed)
        self.last: dict[str, Fault] = {}
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "uow.toml").write_text(
            f"[application]\nid = '{name}'\nbootstrap_servers = '{bootstrap}'\n"
            f"[worker]\nweb = 'off'\nsession_timeout_ms = {int(SESSION_S * 1000)}\n{settings}\n"
            f"[destinations.{name}]\nhandling_policy = 'single_message_delivery'\noutcomes = 'all'\n"
            f"expiration_policy = 'redirect'\nincomplete_expiration_ms = {expiration_ms}\n",
            encoding="utf-8",
        )

    def create_topics(self) -> None:
        command = [str(UOW), "topics", "create", "-c", str(self.folder / "uow.toml"), "--partitions", str(PARTITIONS)]
        subprocess.run(command, check=True, capture_output=True, timeout=120)

    def run(self) -> Result:
        """The whole round; everything it started has ended when it returns."""
        started = time.monotonic()
        self.create_topics()
        with ExitStack() as stack:
            slots = [Slot(name, self) for name in self.slots]
            for slot in slots:
                slot.start()
                stack.callback(lambda slot=slot: slot.child and slot.child.close())
            load = Load(self.bootstrap, self.topic, Script(self.seed, PARTITIONS), self.rate)
            load.start()
            while self.faults or any(slot.fault for slot in slots):
                for slot in slots:
                    slot.supervise()
                if load.error is not None:
                    raise RuntimeError("the load failed") from load.error
                time.sleep(0.02)
            truth = load.finish()
            truth.save(self.folder / "truth.jsonl")
            self._wait_quiet(slots)
            for slot in slots:
                slot.end()
        logs = checker.read_logs(self.bootstrap, self.name, self.name)
        report = checker.check(logs, truth, self.name, self.name, self.expiration_ms)
        self.result.counts.update(report.counts)
        self.result.anomalies.update(report.anomalies)
        self.result.texts += report.texts
        self.result.seconds = time.monotonic() - started
        return self.result

    def _wait_quiet(self, slots: Sequence[Slot]) -> None:
        """Until all is read, and nothing is held that is to expire."""
        until = time.monotonic() + self.quiet_s
        while True:
            for slot in slots:
                slot.supervise()
            if self._is_quiet():
                return
            if time.monotonic() > until:
                self.result.anomalies["not quiet"] += 1
                return
            time.sleep(0.2)

    def _is_quiet(self) -> bool:
        if checker.unread(self.bootstrap, self.name, self.topic):
            return False
        return self.expiration_ms < 0 or not checker.still_held(self.bootstrap, self.name, self.name)


def long_run(bootstrap: str, folder: Path, rounds: int, seed: int, faults: int, minutes: float) -> Result:
    """Rounds until both `rounds` and `minutes` are reached; every second one with expiry."""
    total = Result(seed, rounds=0)
    started = time.monotonic()
    at = 0
    while at < rounds or time.monotonic() - started < minutes * 60:
        rng = random.Random(f"{seed}/{at}")
        name = f"drill-{os.getpid()}-{at}"
        expiration_ms = -1 if at % 2 == 0 else rng.choice((3000, 8000, 20_000))
        settings = f"poll_records = {rng.choice((200, 1000, 5000))}"
        rate = rng.choice((500, 1500, 3000))
        drill = Drill(
            bootstrap,
            folder / name,
            name,
            long_faults(rng, faults),
            rng.randrange(1 << 30),
            expiration_ms,
            rate,
            settings=settings,
        )
        one = drill.run()
        print(f"round {at}: {one.line} ({one.seconds:.0f} s)", flush=True)
        for text in one.texts:
            print(f"  {text}", flush=True)
        total.add(one)
        (folder / "result.json").write_text(json.dumps(total.as_json(), indent=2), encoding="utf-8")
        at += 1
    return total


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m tests.drill.kill`: the long drill; exit status 1 on any anomaly."""
    parser = argparse.ArgumentParser(prog="python -m tests.drill.kill", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--minutes", type=float, default=0.0, help="go on for at least so long")
    parser.add_argument("--faults", type=int, default=25, help="per round")
    parser.add_argument("--seed", type=int, default=None, help="default: by the clock; it is printed")
    parser.add_argument("--bootstrap", default=os.environ.get("UOW_TEST_BOOTSTRAP", ""))
    parser.add_argument("--dir", type=Path, default=None, help="for logs, what was sent, and result.json")
    options = parser.parse_args(arguments)
    seed = options.seed if options.seed is not None else int(time.time()) % 1_000_000
    folder = options.dir or Path(tempfile.mkdtemp(prefix="uow-drill-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"seed {seed}, logs and result.json in {folder}", flush=True)
    with ExitStack() as stack:
        bootstrap = options.bootstrap
        if not bootstrap:
            from uow.broker import EmbeddedBroker

            bootstrap = stack.enter_context(EmbeddedBroker(heap="512m")).bootstrap
        total = long_run(bootstrap, folder, options.rounds, seed, options.faults, options.minutes)
    print(f"{total.line} ({total.seconds:.0f} s, seed {seed})")
    return 1 if total.anomalies else 0


if __name__ == "__main__":
    sys.exit(main())
