"""One preloaded topic, drained by one process: CPU and time from readiness to the last committed position.

Belongs here: the topics, groups and end offsets on the broker, one drain, and the check of its outputs. Does not belong here:
repeating and comparing (`bench.__main__`).
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import confluent_kafka as ck

from bench.programs import Program, Usage
from bench.workloads import (
    PARTITIONS,
    QUIET,
    Workload,
    produce,
)
from uow.topics import admin
from uow.topics.catalogue import DestinationTopics, expected
from uow.topics.policies import DestinationPolicy, HandlingPolicy

POLICY = DestinationPolicy(handling_policy=HandlingPolicy.SINGLE_MESSAGE_DELIVERY)
DRAIN_S = 600.0
LEAST_CPU_S = 0.1
"""The kernel counts a process's CPU in hundredths of a second."""
WARM = 0.1
"""Share of the records before the first measurement: start-up and first fetches are not part of a component's cost."""


@dataclass(frozen=True, slots=True)
class Drain:
    """One run.

    Attributes:
        components: Records that were processed between the two looks; the first tenth is warming up.
        cpu_us: CPU microseconds per component, user and system, all threads.
        per_s: Components per second of wall clock.
        peak_mb: Peak resident memory of the process.
        units: Units that a `read_committed` reader sees.
        internal: Bytes that lie in changelog and ledger when the process has stopped, per byte of input; both as brokers keep them.
    """

    components: int
    cpu_us: float
    per_s: float
    peak_mb: float
    units: int
    internal: float

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


class BenchBroker:
    """A broker, and how the bench looks at it.

    Args:
        bootstrap: Where it is.
        folder: For configurations and logs.
        data: Where the broker keeps its partitions, if that is on this machine.
        env: Environment of `uow worker`, if not that of the bench.
    """

    def __init__(
        self, bootstrap: str, folder: Path, data: Path | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        self.bootstrap, self.folder, self.data, self.env = bootstrap, folder, data, env
        self.admin = admin.admin_client(bootstrap, {})
        self._mark = uuid4().hex[:6]
        self._runs = 0
        self.preloaded: set[str] = set()

    def destination(self, name: str) -> str:
        """A name that no other bench on this broker has."""
        return f"bench-{self._mark}-{name}"

    def application(self) -> str:
        """A new one for each run: its own group, changelog and ledger."""
        self._runs += 1
        return f"bench-{self._mark}-{self._runs}"

    def create(self, application: str, destination: str) -> DestinationTopics:
        """Creates the destination's topics with the settings of `uow topics create`."""
        admin.create_missing(self.admin, expected(application, destination, POLICY, PARTITIONS))
        return DestinationTopics(application, destination)

    def consumer(self, group: str, **more: Any) -> Any:
        properties = {
            "bootstrap.servers": self.bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
        return ck.Consumer({**properties, **more}, logger=QUIET)

    def ends(self, topic: str) -> list[int]:
        """End offsets, markers included."""
        asker = self.consumer("bench-ends", **{"isolation.level": "read_uncommitted"})
        try:
            return [
                asker.get_watermark_offsets(ck.TopicPartition(topic, number), timeout=10)[1]
                for number in range(PARTITIONS)
            ]
        finally:
            asker.close()

    def size(self, *topics: str) -> int:
        """Bytes of these topics' segments on the broker's disk; 0 where that cannot be seen."""
        if self.data is None:
            return 0
        return sum(
            segment.stat().st_size
            for topic in topics
            for number in range(PARTITIONS)
            for segment in (self.data / f"{topic}-{number}").glob("*.log")
        )

    def preload(self, workload: Workload) -> int:
        """Creates and fills the input; the number of records."""
        topics = self.create(self.application(), self.destination(workload.name))
        self.preloaded.add(workload.name)
        return produce(self.bootstrap, topics.components, workload)

    def config(self, application: str, destination: str, worker: str = "") -> Path:
        """A `uow.toml` for one run; `worker` has further lines of that section."""
        path = self.folder / f"{application}.toml"
        path.write_text(
            f'[application]\nid = "{application}"\nbootstrap_servers = "{self.bootstrap}"\n[worker]\nweb = "off"\n{worker}'
            f'[destinations.{destination}]\nhandling_policy = "{POLICY.handling_policy.value}"\n'
        )
        return path

    def worker(
        self, application: str, destination: str, worker: str = "", env: Mapping[str, str] | None = None
    ) -> Program:
        """`uow worker`, the real one."""
        command = [
            str(Path(sys.executable).with_name("uow")),
            "worker",
            "-c",
            str(self.config(application, destination, worker)),
        ]
        return Program(self.folder / f"{application}.log", *command, "--name", "bench", env=env or self.env)

    def changelog(self, application: str, destination: str) -> Program:
        """The same without replay: every component that survives its poll is written at once."""
        return self.worker(application, destination, "replay_limit_ms = 0\n")

    def forgetful(self, application: str, destination: str) -> Program:
        """Comparison (c)."""
        command = [sys.executable, "-m", "bench.forgetful", str(self.config(application, destination))]
        return Program(self.folder / f"{application}.log", *command)

    def untransacted(self, application: str, destination: str) -> Program:
        """Comparison (d)."""
        command = [sys.executable, "-m", "bench.untransacted", str(self.config(application, destination))]
        return Program(self.folder / f"{application}.log", *command)

    def bare(self, application: str, destination: str) -> Program:
        """Comparison (a)."""
        command = [sys.executable, "-m", "bench.bare", self.bootstrap, application, destination]
        return Program(self.folder / f"{application}.log", *command)

    def plain_faust(self, application: str, destination: str) -> Program:
        """Comparison (b)."""
        folder = self.folder / application
        command = [sys.executable, "-m", "bench.plain_faust", self.bootstrap, application, destination, str(folder)]
        return Program(self.folder / f"{application}.log", *command)

    def run_through(self, application: str, destination: str, kill: bool) -> None:
        """Lets a worker process the whole input: killed then, it leaves replayable groups; else every row that it had to write is there."""
        topics = DestinationTopics(application, destination)
        ends = self.ends(topics.components)
        with (
            self.committed(application, topics.components) as committed,
            (self.worker if kill else self.changelog)(application, destination) as worker,
        ):
            worker.wait_output("ready")  # before, a new broker may have no coordinator to ask
            worker.wait(lambda: committed() == ends, f"worker drains {destination}", DRAIN_S)
            if kill:
                worker.process.kill()

    @contextmanager
    def committed(self, application: str, topic: str) -> Iterator[Callable[[], list[int]]]:
        """Asks for the group's positions; not `require_stable`: a look must not wait for the transaction in flight."""
        asker = self.consumer(application, **{"isolation.level": "read_uncommitted"})
        places = [ck.TopicPartition(topic, number) for number in range(PARTITIONS)]

        def ask() -> list[int]:
            return [max(0, each.offset) for each in asker.committed(places, timeout=10)]

        try:
            yield ask
        finally:
            asker.close()

    def drain(self, kind: str, destination: str) -> Drain:
        """Drains the input by a new group.

        Args:
            kind: `worker`, `changelog`, `forgetful`, `untransacted`, `bare` or `plain_faust`.
            destination: Whose input is preloaded.
        """
        application = self.application()
        topics = self.create(application, destination)
        ends, begin = self.ends(topics.components), self.ends(topics.units)
        with (
            self.committed(application, topics.components) as committed,
            getattr(self, kind)(application, destination) as program,
        ):
            began = Usage(0.0, time.perf_counter(), 0)
            program.wait_output("ready")
            program.wait(lambda: sum(committed()) >= WARM * sum(ends), f"{kind} begins {destination}", DRAIN_S)
            first, before = sum(committed()), program.usage()
            program.wait(lambda: committed() == ends, f"{kind} drains {destination}", DRAIN_S)
            after = program.usage()
        if first > sum(ends) / 2 or after.cpu_s - before.cpu_s < LEAST_CPU_S:  # too little to look at: the start counts
            first, before = 0, began
        components = sum(ends) - first
        return Drain(
            components,
            (after.cpu_s - before.cpu_s) / components * 1e6,
            components / (after.at_s - before.at_s),
            after.peak_bytes / 1e6,
            self.count_units(topics.units, begin),
            self.size(topics.groups_changelog, topics.closed_changelog) / max(1, self.size(topics.components)),
        )

    def count_units(self, topic: str, begin: list[int]) -> int:
        """Units from these offsets on, as a `read_committed` reader sees them; one id twice is an error."""
        reader = self.consumer("bench-count", **{"isolation.level": "read_committed"})
        reader.assign([ck.TopicPartition(topic, number, offset) for number, offset in enumerate(begin)])
        ids: set[bytes] = set()
        count = ended = 0
        deadline = time.monotonic() + 120
        while ended < PARTITIONS and time.monotonic() < deadline:
            for message in reader.consume(10_000, 0.5):
                if message.error() is None:
                    count += 1
                    ids.add(message.key())
                else:
                    ended += 1
        reader.close()
        if count != len(ids):
            raise RuntimeError(f"{count} units with {len(ids)} ids: some came twice")
        return count


def scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="uow-bench-")
