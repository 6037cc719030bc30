"""A proof: rounds until the time is over, each drawn from the seed, and their results together.

Belongs here: the draw of a round's setup, the totals, the versions. Does not belong here: a round itself (`round`), reports (`proof_report`,
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

from uow.jvm import jars
from uow.prove.faults import KILLS, FaultKind, draw
from uow.prove.round import Result, Round, RoundCluster, Setup
from uow.prove.seen_records import Findings

WORKER_NAMES = ("a", "b", "c", "d", "e", "f", "g", "h")
EXPIRATIONS_MS = (4000, 8000, 20_000)
RATES = (500, 1500, 3000)
POLLS = (200, 1000, 5000)


@dataclass(frozen=True, slots=True)
class ProofSettings:
    """The parameters of a proof.

    Attributes:
        seed: Decides everything except timing.
        kinds: Kinds of fault.
        minutes: New rounds and faults are begun for this time.
        rounds: Exact number of rounds, however long they take; 0: until the time is over.
        workers: Number of worker processes.
        per_round: Number of faults in a round.
        rate: Records per second, roughly; 0: drawn for each round.
    """

    seed: int
    kinds: Collection[FaultKind]
    minutes: float = 3.0
    rounds: int = 0
    workers: int = 2
    per_round: int = 20
    rate: int = 0

    def setup(self, number: int) -> Setup:
        """The setup of a round; the same for the same seed and number, except for its name."""
        rng = random.Random(f"{self.seed}/{number}")
        return Setup(
            name=f"prove-{uuid4().hex[:8]}-{number}",
            seed=rng.randrange(1 << 30),
            faults=draw(rng, self.kinds, self.per_round),
            worker_names=WORKER_NAMES[: self.workers],
            expiration_ms=rng.choice(EXPIRATIONS_MS),
            rate=self.rate or rng.choice(RATES),
            poll_records=rng.choice(POLLS),
        )

    @property
    def command(self) -> str:
        """The command that repeats the proof, without the cluster's options."""
        length = f"--rounds {self.rounds}" if self.rounds else f"--minutes {self.minutes:g}"
        rate = f" --rate {self.rate}" if self.rate else ""
        kinds = ",".join(kind for kind in FaultKind if kind in self.kinds)
        rest = f"--workers {self.workers} --per-round {self.per_round} --faults {kinds}{rate}"
        return f"uow prove {length} --seed {self.seed} {rest}"


class Proof:
    """The rounds played so far, and their results.

    Args:
        cluster: The Kafka cluster.
        settings: The parameters.
        folder: Each round gets a folder in it for its logs and the records that it sent.
        keep: True to keep the folders of good rounds too.
    """

    def __init__(self, cluster: RoundCluster, settings: ProofSettings, folder: Path, keep: bool = False) -> None:
        self.cluster, self.settings, self.folder, self.keep = cluster, settings, folder, keep
        self.results: list[Result] = []
        self.failure = ""
        self.began_at = time.time()
        self._until = time.monotonic() + settings.minutes * 60

    @property
    def is_enough(self) -> bool:
        """True if no further round is wanted or possible."""
        if self.failure:
            return True
        return len(self.results) >= self.settings.rounds if self.settings.rounds else time.monotonic() >= self._until

    def play(self, setup: Setup) -> Result | None:
        """Plays one more round; None if it could not be completed, which proves nothing."""
        try:
            until = math.inf if self.settings.rounds else self._until
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
        """True if rounds were completed and none has an anomaly."""
        return bool(self.results) and not self.failure and all(result.is_good for result in self.results)

    @property
    def seconds(self) -> float:
        """Duration of all rounds together."""
        return sum(result.seconds for result in self.results)

    @property
    def findings(self) -> Findings:
        """Findings of all rounds together."""
        total = Findings()
        for result in self.results:
            total.add(result.findings)
        return total

    @property
    def faults(self) -> Counter[str]:
        """Number of faults, by name."""
        total: Counter[str] = Counter()
        for result in self.results:
            total.update(result.faults)
        return total

    @property
    def kills(self) -> int:
        """Number of kill -9 of workers."""
        return sum(count for name, count in self.faults.items() if name.partition(":")[0] in KILLS)


def versions(cluster: RoundCluster) -> dict[str, str]:
    """Versions of everything involved, as far as they can be found out."""
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
