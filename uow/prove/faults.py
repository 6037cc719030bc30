"""Faults of workers, of their group and of their broker, and how a seed draws from them.

Belongs here: the kinds, their meaning, the draw. Does not belong here: causing them (`supervised_worker` for one worker, `cluster_faults` for all).
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from uow.prove.frames import MEMBERSHIP, TRANSACTION, Api
from uow.prove.frames import FrameFault as How

STEPS = ("begin", "produced", "offsets", "commit", "committed")
"""Named steps of a worker's commit, in order: the transaction is open; its records are produced; its offsets are sent; just before the request
to commit; the commit is confirmed."""


class FaultKind(StrEnum):
    """Kinds of fault."""

    KILL = "kill"
    STEP = "step"
    STOP = "stop"
    FREEZE = "freeze"
    CLOCK = "clock"
    ROLL = "roll"
    STORM = "storm"
    BROKER_STOP = "broker-stop"
    BROKER_KILL = "broker-kill"
    BROKER_FREEZE = "broker-freeze"
    DISK_FULL = "disk-full"
    FRAMES = "frames"

    @property
    def text(self) -> str:
        """Description in one line."""
        return TEXTS[self]

    @property
    def is_of_worker(self) -> bool:
        """True if it affects one run of one worker; the others affect all workers."""
        return self in OF_WORKER

    @property
    def is_of_broker(self) -> bool:
        """True if it affects the broker, which is possible with the embedded broker only."""
        return self in OF_BROKER


TEXTS = {
    FaultKind.KILL: "kill -9 of a worker at any moment, its start and its restore included",
    FaultKind.STEP: "kill -9 of a worker at a named step of its commit, or some milliseconds after it",
    FaultKind.STOP: "SIGTERM to a worker: it commits its present poll and leaves the group",
    FaultKind.FREEZE: "SIGSTOP of a worker for less or more than its session, then SIGCONT: a zombie wakes up",
    FaultKind.CLOCK: "a worker's wall clock jumps by minutes, forward or back, while it runs",
    FaultKind.ROLL: "rolling restart: one worker after the other is stopped and started again",
    FaultKind.STORM: "rebalance storm: strangers join the workers' group and leave it, several a second",
    FaultKind.BROKER_STOP: "the broker is stopped cleanly, and started again after seconds",
    FaultKind.BROKER_KILL: "kill -9 of the broker, started again after seconds",
    FaultKind.BROKER_FREEZE: "SIGSTOP of the broker for seconds, then SIGCONT: there are no answers, but no connection breaks",
    FaultKind.FRAMES: "requests between workers and broker arrive late, are lost, repeated or cut off, chosen by kind and chance",
    FaultKind.DISK_FULL: "the broker's writes fail in the middle of a batch; it halts, and is started again with enough space",
}

OF_WORKER = frozenset({FaultKind.KILL, FaultKind.STEP, FaultKind.STOP, FaultKind.FREEZE, FaultKind.CLOCK})
OF_BROKER = frozenset(
    {FaultKind.BROKER_STOP, FaultKind.BROKER_KILL, FaultKind.BROKER_FREEZE, FaultKind.DISK_FULL, FaultKind.FRAMES}
)
KILLS = frozenset({FaultKind.KILL, FaultKind.STEP})

SHARES = {
    FaultKind.KILL: 20,
    FaultKind.STEP: 40,
    FaultKind.STOP: 6,
    FaultKind.FREEZE: 6,
    FaultKind.CLOCK: 6,
    FaultKind.ROLL: 3,
    FaultKind.STORM: 4,
    FaultKind.BROKER_STOP: 3,
    FaultKind.BROKER_KILL: 4,
    FaultKind.BROKER_FREEZE: 4,
    FaultKind.DISK_FULL: 3,
    FaultKind.FRAMES: 6,
}
"""Relative frequency of each kind in the draw."""

REQUESTS: Sequence[Collection[Api]] = (
    *({api} for api in sorted(TRANSACTION)),
    TRANSACTION,
    MEMBERSHIP,
    {Api.FETCH, Api.LIST_OFFSETS},
    {Api.OFFSET_FETCH},
    {Api.FIND_COORDINATOR, Api.METADATA},
)
"""Requests that `frames` disturbs. Not `InitProducerId`: a late one looks like a second worker of the same name, and the first must end (ER-13)."""

WAYS = (How.HOLD, How.HOLD, How.HOLE, How.CUT, How.LOSE_ANSWER, How.REPEAT)
"""Faults of requests; held and repeated requests arrive late."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        kind: Its kind.
        after_s: Seconds to wait: for `kill` from the worker's start, for other faults of a worker from when it is ready, for the rest from the
            last fault.
        step: Step of the commit, for kind `step`.
        turn: How many times the worker must reach the step, this one included.
        delay_ms: Time after the step; negative: exactly at the step.
        lasts_s: Duration; 0 for a fault without one.
        shift_s: How far a clock jumps.
        way: The fault of requests.
        requests: The kinds of request that it affects.
        share: The share of these requests that it affects.
    """

    kind: FaultKind
    after_s: float = 0.0
    step: str = ""
    turn: int = 1
    delay_ms: int = -1
    lasts_s: float = 0.0
    shift_s: float = 0.0
    way: How | None = None
    requests: Collection[Api] = ()
    share: float = 0.0

    @property
    def name(self) -> str:
        """Name for people: `kill`, `step:commit`, `frames:hold`."""
        how = self.way.value if self.way is not None else self.step
        return f"{self.kind}:{how}" if how else str(self.kind)

    @property
    def detail(self) -> str:
        """Delay, duration and other parameters, for people."""
        said = []
        if self.delay_ms >= 0:
            said.append(f"{self.delay_ms} ms after")
        if self.lasts_s:
            said.append(f"for {self.lasts_s:.1f} s")
        if self.shift_s:
            said.append(f"by {self.shift_s:+.0f} s")
        if self.requests:
            said.append(f"{self.share:.0%} of {', '.join(api.name for api in sorted(self.requests))}")
        return ", ".join(said)


def draw(rng: random.Random, kinds: Collection[FaultKind], count: int) -> list[Fault]:
    """Faults for a round: each kind and each named step at least once, if `count` allows it; the others drawn by their shares.

    Args:
        rng: Decides.
        kinds: The kinds to choose from.
        count: The number of faults.
    """
    ordered = [kind for kind in FaultKind if kind in kinds]
    sure = [_drawn(rng, kind) for kind in ordered if kind is not FaultKind.STEP]
    if FaultKind.STEP in kinds:
        sure += [Fault(FaultKind.STEP, step=step, turn=rng.randrange(1, 9)) for step in STEPS]
    rng.shuffle(sure)
    weights = [SHARES[kind] for kind in ordered]
    more = [_drawn(rng, kind) for kind in rng.choices(ordered, weights, k=max(0, count - len(sure)))]
    return [*sure[:count], *more]


def parted(faults: Sequence[Fault]) -> tuple[list[Fault], list[Fault]]:
    """The faults of single workers, and the others."""
    return [each for each in faults if each.kind.is_of_worker], [each for each in faults if not each.kind.is_of_worker]


def _drawn(rng: random.Random, kind: FaultKind) -> Fault:
    between = rng.uniform
    match kind:
        case FaultKind.KILL:
            return Fault(kind, between(0.3, 6.0))
        case FaultKind.STEP:
            turn, delay_ms = rng.randrange(1, 16), rng.choice((-1, -1, 0, 1, 3, 10))
            return Fault(kind, step=rng.choice(STEPS), turn=turn, delay_ms=delay_ms)
        case FaultKind.STOP:
            return Fault(kind, between(0.0, 3.0))
        case FaultKind.FREEZE:
            return Fault(kind, between(0.2, 3.0), lasts_s=between(0.5, 14.0))
        case FaultKind.CLOCK:
            return Fault(
                kind, between(0.5, 2.0), lasts_s=between(3.0, 6.0), shift_s=rng.choice((-1, 1)) * between(5, 600)
            )
        case FaultKind.ROLL:
            return Fault(kind, between(1.0, 4.0))
        case FaultKind.STORM:
            return Fault(kind, between(1.0, 4.0), lasts_s=between(4.0, 8.0))
        case FaultKind.BROKER_STOP | FaultKind.BROKER_KILL:
            return Fault(kind, between(1.0, 5.0), lasts_s=between(0.0, 4.0))
        case FaultKind.BROKER_FREEZE:
            return Fault(kind, between(1.0, 5.0), lasts_s=between(2.0, 14.0))
        case FaultKind.DISK_FULL:
            return Fault(kind, between(1.0, 5.0), lasts_s=between(0.0, 2.0))
        case FaultKind.FRAMES:
            way, requests, share = rng.choice(WAYS), rng.choice(REQUESTS), rng.choice((0.02, 0.1, 0.5))
            after_s, lasts_s = between(0.5, 2.0), between(2.0, 6.0)
            return Fault(kind, after_s, lasts_s=lasts_s, way=way, requests=requests, share=share)
