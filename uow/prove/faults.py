"""What may befall workers, their group and their broker, and how a seed draws from it.

Belongs here: the kinds, what each means, the draw. Does not belong here: doing it (`slot` for one worker, `weather` for the rest).
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from uow.prove.frames import MEMBERSHIP, TRANSACTION, Api
from uow.prove.frames import Fault as How

STEPS = ("begin", "produced", "offsets", "commit", "committed")
"""Named steps of a worker's commit, in order: a transaction is open; its records are handed over; its positions are in it; just before the
commit is asked for; it is known to be committed."""


class Kind(StrEnum):
    """One way to do harm."""

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
        """What it is, in a line."""
        return TEXTS[self]

    @property
    def is_of_worker(self) -> bool:
        """It befalls one run of one worker; the others befall all of them."""
        return self in OF_WORKER

    @property
    def is_of_broker(self) -> bool:
        """It befalls the broker: only where the broker is ours."""
        return self in OF_BROKER


TEXTS = {
    Kind.KILL: "kill -9 of a worker at any moment, its start and its restore included",
    Kind.STEP: "kill -9 of a worker at a named step of its commit, or some milliseconds after it",
    Kind.STOP: "SIGTERM to a worker: the poll in hand is committed, the group left",
    Kind.FREEZE: "SIGSTOP of a worker for less or more than its session, then SIGCONT: a zombie wakes up",
    Kind.CLOCK: "a worker's wall clock jumps by minutes, forward or back, while it runs",
    Kind.ROLL: "rolling restart: one worker after the other is stopped, started again and waited for",
    Kind.STORM: "rebalance storm: strangers join the workers' group and leave it, several a second",
    Kind.BROKER_STOP: "the broker is stopped in order, and started again after seconds",
    Kind.BROKER_KILL: "kill -9 of the broker, started again after seconds",
    Kind.BROKER_FREEZE: "SIGSTOP of the broker for seconds, then SIGCONT: nobody answers, no connection breaks",
    Kind.FRAMES: "requests between workers and broker are held and arrive late, lost, repeated, or cut off, by kind and chance",
    Kind.DISK_FULL: "the broker's writes fail in the middle of a batch; it gives up, and is started again on enough room",
}

OF_WORKER = frozenset({Kind.KILL, Kind.STEP, Kind.STOP, Kind.FREEZE, Kind.CLOCK})
OF_BROKER = frozenset({Kind.BROKER_STOP, Kind.BROKER_KILL, Kind.BROKER_FREEZE, Kind.DISK_FULL, Kind.FRAMES})
KILLS = frozenset({Kind.KILL, Kind.STEP})

SHARES = {
    Kind.KILL: 20,
    Kind.STEP: 40,
    Kind.STOP: 6,
    Kind.FREEZE: 6,
    Kind.CLOCK: 6,
    Kind.ROLL: 3,
    Kind.STORM: 4,
    Kind.BROKER_STOP: 3,
    Kind.BROKER_KILL: 4,
    Kind.BROKER_FREEZE: 4,
    Kind.DISK_FULL: 3,
    Kind.FRAMES: 6,
}
"""How often each is drawn, compared with the others."""

REQUESTS: Sequence[Collection[Api]] = (
    *({api} for api in sorted(TRANSACTION)),
    TRANSACTION,
    MEMBERSHIP,
    {Api.FETCH, Api.LIST_OFFSETS},
    {Api.OFFSET_FETCH},
    {Api.FIND_COORDINATOR, Api.METADATA},
)
"""What `frames` befalls. Not `InitProducerId`: one that comes late is a second worker in the slot, and the first must end (ER-13)."""

WAYS = (How.HOLD, How.HOLD, How.HOLE, How.CUT, How.LOSE_ANSWER, How.REPEAT)
"""How; what is held or repeated arrives late."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        kind: Which.
        after_s: Seconds to wait: from the worker's start for `kill`, from its being ready for other faults of a worker, from the last
            fault for the rest.
        step: Of the commit, for `step`.
        turn: The how manieth time the worker is there.
        delay_ms: How long after the step; negative: at it.
        lasts_s: How long it lasts, where it does.
        shift_s: How far a clock jumps.
        way: What happens to requests.
        requests: To which of them.
        share: To how many of those.
    """

    kind: Kind
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
        """For people: `kill`, `step:commit`, `frames:hold`."""
        how = self.way.value if self.way is not None else self.step
        return f"{self.kind}:{how}" if how else str(self.kind)

    @property
    def detail(self) -> str:
        """What else there is to say about it."""
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


def draw(rng: random.Random, kinds: Collection[Kind], count: int) -> list[Fault]:
    """Faults for a round: each kind at least once, each named step as well, if `count` has room; then by their shares.

    Args:
        rng: Decides.
        kinds: Those to choose from.
        count: How many.
    """
    ordered = [kind for kind in Kind if kind in kinds]
    sure = [_drawn(rng, kind) for kind in ordered if kind is not Kind.STEP]
    if Kind.STEP in kinds:
        sure += [Fault(Kind.STEP, step=step, turn=rng.randrange(1, 9)) for step in STEPS]
    rng.shuffle(sure)
    weights = [SHARES[kind] for kind in ordered]
    more = [_drawn(rng, kind) for kind in rng.choices(ordered, weights, k=max(0, count - len(sure)))]
    return [*sure[:count], *more]


def parted(faults: Sequence[Fault]) -> tuple[list[Fault], list[Fault]]:
    """Those of one worker, and the rest."""
    return [each for each in faults if each.kind.is_of_worker], [each for each in faults if not each.kind.is_of_worker]


def _drawn(rng: random.Random, kind: Kind) -> Fault:
    between = rng.uniform
    match kind:
        case Kind.KILL:
            return Fault(kind, between(0.3, 6.0))
        case Kind.STEP:
            turn, delay_ms = rng.randrange(1, 16), rng.choice((-1, -1, 0, 1, 3, 10))
            return Fault(kind, step=rng.choice(STEPS), turn=turn, delay_ms=delay_ms)
        case Kind.STOP:
            return Fault(kind, between(0.0, 3.0))
        case Kind.FREEZE:
            return Fault(kind, between(0.2, 3.0), lasts_s=between(0.5, 14.0))
        case Kind.CLOCK:
            return Fault(
                kind, between(0.5, 2.0), lasts_s=between(3.0, 6.0), shift_s=rng.choice((-1, 1)) * between(5, 600)
            )
        case Kind.ROLL:
            return Fault(kind, between(1.0, 4.0))
        case Kind.STORM:
            return Fault(kind, between(1.0, 4.0), lasts_s=between(4.0, 8.0))
        case Kind.BROKER_STOP | Kind.BROKER_KILL:
            return Fault(kind, between(1.0, 5.0), lasts_s=between(0.0, 4.0))
        case Kind.BROKER_FREEZE:
            return Fault(kind, between(1.0, 5.0), lasts_s=between(2.0, 14.0))
        case Kind.DISK_FULL:
            return Fault(kind, between(1.0, 5.0), lasts_s=between(0.0, 2.0))
        case Kind.FRAMES:
            way, requests, share = rng.choice(WAYS), rng.choice(REQUESTS), rng.choice((0.02, 0.1, 0.5))
            after_s, lasts_s = between(0.5, 2.0), between(2.0, 6.0)
            return Fault(kind, after_s, lasts_s=lasts_s, way=way, requests=requests, share=share)
