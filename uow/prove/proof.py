"""A proof: rounds until time is up, each drawn from the seed, and what they come to together.

Belongs here: the draw of a round's setup, the sum, the versions. Does not belong here: a round itself (`round`), how it is told (`report`,
`page`).
"""

from __future__ import annotations

import math
import os
import platform
import random
import shutil
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from uuid import uuid4

import confluent_kafka as ck

from jvm import jars
from uow.prove.faults import KILLS, Kind, draw
from uow.prove.records import Findings
from uow.prove.round import Cluster, Result, Round, Setup

SLOTS = ("a", "b", "c", "d", "e", "f", "g", "h")
EXPIRATIONS_MS = (4000, 8000, 20_000)
RATES = (500, 1500, 3000)
POLLS = (200, 1000, 5000)


@dataclass(frozen=True, slots=True)
class Wish:
    """What was asked for.

    Attributes:
        seed: Decides everything but timing.
        kinds: Of fault.
        minutes: Rounds and faults are begun until so much time has gone by.
        rounds: Exactly so many, whatever the time; 0: by time.
        workers: Processes.
        per_round: Faults in a round.
        rate: Records a second, about; 0: drawn for each round.
    """

    seed: int
    kinds: Collection[Kind]
    minutes: float = 3.0
    rounds: int = 0
    workers: int = 2
    per_round: int = 20
    rate: int = 0

    def setup(self, number: int) -> Setup:
        """What a round is like; the same for the same seed and number, but for its name."""
        rng = random.Random(f"{self.seed}/{number}")
        return Setup(
            name=f"prove-{uuid4().hex[:8]}-{number}",
            seed=rng.randrange(1 << 30),
            faults=draw(rng, self.kinds, self.per_round),
            slots=SLOTS[: self.workers],
            expiration_ms=rng.choice(EXPIRATIONS_MS),
            rate=self.rate or rng.choice(RATES),
            poll_records=rng.choice(POLLS),
        )

    @property
    def command(self) -> str:
        """What to type to have the same again, but for the cluster."""
        length = f"--rounds {self.rounds}" if self.rounds else f"--minutes {self.minutes:g}"
        rate = f" --rate {self.rate}" if self.rate else ""
        kinds = ",".join(kind for kind in Kind if kind in self.kinds)
        rest = f"--workers {self.workers} --per-round {self.per_round} --faults {kinds}{rate}"
        return f"uow prove {length} --seed {self.seed} {rest}"


class Proof:
    """Rounds played so far, and what they come to.

    Args:
        cluster: Where.
        wish: How much, and with what.
        folder: Each round's logs, and what it sent, go to a folder in it.
        keep: Leave those of good rounds as well.
    """

    def __init__(self, cluster: Cluster, wish: Wish, folder: Path, keep: bool = False) -> None:
        self.cluster, self.wish, self.folder, self.keep = cluster, wish, folder, keep
        self.results: list[Result] = []
        self.failure = ""
        self.began_at = time.time()
        self._until = time.monotonic() + wish.minutes * 60

    @property
    def is_enough(self) -> bool:
        """No further round is asked for, or possible."""
        if self.failure:
            return True
        return len(self.results) >= self.wish.rounds if self.wish.rounds else time.monotonic() >= self._until

    def play(self, setup: Setup) -> Result | None:
        """One more round; None where it could not be played to its end, which proves nothing."""
        try:
            until = math.inf if self.wish.rounds else self._until
            result = Round(self.cluster, self.folder / setup.name, setup, until=until).run()
        except (RuntimeError, OSError, ck.KafkaException) as error:
            self.failure = (
                f"round {len(self.results)} could not be judged: {error}; logs are in {self.folder / setup.name}"
            )
            return None
        self.results.append(result)
        if result.is_good and not self.keep:
            shutil.rmtree(result.folder)
        return result

    @property
    def where(self) -> str:
        """The cluster, in words."""
        return (
            "an embedded Apache Kafka, one node" if self.cluster.broker else f"the cluster at {self.cluster.bootstrap}"
        )

    @property
    def is_good(self) -> bool:
        """Rounds were played to their end, and none has an anomaly."""
        return bool(self.results) and not self.failure and all(result.is_good for result in self.results)

    @property
    def seconds(self) -> float:
        """How long the rounds took together."""
        return sum(result.seconds for result in self.results)

    @property
    def findings(self) -> Findings:
        """Of all rounds together."""
        total = Findings()
        for result in self.results:
            total.add(result.findings)
        return total

    @property
    def faults(self) -> Counter[str]:
        """How often each fault happened."""
        total: Counter[str] = Counter()
        for result in self.results:
            total.update(result.faults)
        return total

    @property
    def kills(self) -> int:
        """Workers killed."""
        return sum(count for name, count in self.faults.items() if name.partition(":")[0] in KILLS)


def versions(cluster: Cluster) -> dict[str, str]:
    """Of everything that takes part, as far as we can know."""
    found: dict[str, str] = {
        "uow": version("uow"),
        "python": platform.python_version(),
        "confluent-kafka": str(ck.version()),
        "librdkafka": str(ck.libversion()[0]),
        "fastavro": version("fastavro"),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}, {os.cpu_count()} CPUs",
    }
    if cluster.broker is not None:
        found["kafka"] = jars.version("broker", "kafka_2.13")
    return found
