"""One round: it creates its topics, runs workers, load and faults, waits until all work is done, judges, and deletes its topics.

Belongs here: the order of these steps. Does not belong here: the records (`load`), the faults (`supervised_worker`, `cluster_faults`), the
checks (`checker`), several rounds (`proof`).
"""

from __future__ import annotations

import logging
import math
import os
import random
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import ConfigResource, ResourceType  # type: ignore[attr-defined]

from uow.config.loading import load as load_settings
from uow.embedded.broker import EmbeddedBroker
from uow.prove import checker, reading
from uow.prove.cluster_faults import ClusterFaults, Strangers
from uow.prove.faults import KILLS, Fault, parted
from uow.prove.frames import Proxy
from uow.prove.load import Load, Script
from uow.prove.seen_records import Findings
from uow.prove.supervised_worker import SharedWorkerState, SupervisedWorker, Tally
from uow.prove.timeline import EventLog
from uow.topics import admin
from uow.topics.catalogue import expected

PARTITIONS = 4
QUIET_S = 90.0
TRANSACTIONS_S = 60.0
LOOK_S = 0.02
SAMPLE_S = 0.5
PENDING_S = 20.0
SESSION_MS, USUAL_SESSION_MS = 2000, 6000

SETTINGS = """\
[application]
id = "{name}"
bootstrap_servers = "{bootstrap}"

[worker]
web = "127.0.0.1:0"
session_timeout_ms = {session_ms}
poll_records = {poll_records}

[destinations.{name}]
handling_policy = "single_message_delivery"
outcomes = "all"
expiration_policy = "redirect"
incomplete_expiration_ms = {expiration_ms}
"""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RoundCluster:
    """The Kafka cluster of a proof.

    Attributes:
        bootstrap: `HOST:PORT`, several separated by commas.
        properties: Further librdkafka properties, for example for security.
        broker: The embedded broker, which faults may affect; None on another cluster.
        proxy: The proxy that workers connect to, if their requests are to be disturbed. Load and checker connect directly.
    """

    bootstrap: str
    properties: Mapping[str, str] = field(default_factory=dict)
    broker: EmbeddedBroker | None = None
    proxy: Proxy | None = None

    @property
    def for_workers(self) -> str:
        """`HOST:PORT` for the workers."""
        return self.proxy.address if self.proxy is not None else self.bootstrap

    @property
    def session_ms(self) -> int:
        """The workers' session time-out: the shorter, the more take-overs in the same time."""
        client = admin.admin_client(self.bootstrap, self.properties)
        try:
            one = ConfigResource(ResourceType.BROKER, str(min(client.list_topics(timeout=PENDING_S).brokers)))
            allowed = client.describe_configs([one])[one].result()["group.min.session.timeout.ms"].value
        except KafkaException:  # perhaps not allowed
            return USUAL_SESSION_MS
        return max(SESSION_MS, int(allowed))

    @property
    def client(self) -> dict[str, str]:
        """Librdkafka properties of a client."""
        return {**self.properties, "bootstrap.servers": self.bootstrap}

    @property
    def environment(self) -> dict[str, str]:
        """Environment of every started program: without the user's `UOW_` variables, and with the properties, so that secrets are in no file."""
        own = {name: value for name, value in os.environ.items() if not name.startswith("UOW_")}
        kafka = {f"UOW_KAFKA__{name.replace('.', '_').upper()}": value for name, value in self.properties.items()}
        return own | kafka | {"PYTHONUNBUFFERED": "1"}


@dataclass(frozen=True, slots=True)
class Setup:
    """The parameters of a round.

    Attributes:
        name: Name of application and destination, and so part of every topic's name.
        seed: Seed of the load.
        faults: The faults, in order.
        worker_names: Names of the workers.
        expiration_ms: `incomplete_expiration_ms`; with -1 groups never expire, and components may be held in the end.
        rate: Records per second, roughly.
        poll_records: The workers' setting.
        quiet_s: Longest wait after the load until all is read.
    """

    name: str
    seed: int
    faults: Sequence[Fault]
    worker_names: Sequence[str] = ("a", "b")
    expiration_ms: int = -1
    rate: int = 1500
    poll_records: int = 5000
    quiet_s: float = QUIET_S


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a round.

    Attributes:
        setup: Its parameters.
        seconds: Its duration, from the first worker's start to the judgement.
        faults: Number of faults, by name.
        exits: Number of worker exits, by status.
        findings: Counts and anomalies.
        event_log: Events, and the number of records sent at each time.
        delivered: For each unit or passed-through record, the time it was written (epoch seconds) and its number of records.
        folder: Folder of the logs and of the records sent.
    """

    setup: Setup
    seconds: float
    faults: Mapping[str, int]
    exits: Mapping[str, int]
    findings: Findings
    event_log: EventLog
    delivered: Sequence[tuple[float, int]]
    folder: Path

    @property
    def kills(self) -> int:
        """Number of kill -9 of workers."""
        return sum(count for name, count in self.faults.items() if name.partition(":")[0] in KILLS)

    @property
    def is_good(self) -> bool:
        """True if there is no anomaly."""
        return not self.findings.anomalies


class Round:
    """One round.

    Args:
        cluster: The Kafka cluster.
        folder: Folder for configuration, logs and the records sent.
        setup: Its parameters.
        command: The command that starts a worker; tests use one with a planted defect.
        until: Time by `time.monotonic` after which no fault begins; the round then ends as after its last fault.
    """

    def __init__(
        self, cluster: RoundCluster, folder: Path, setup: Setup, command: Sequence[str] = (), until: float = math.inf
    ) -> None:
        self.cluster, self.folder, self.setup, self._until = cluster, folder, setup, until
        self._name = setup.name
        self._components = f"{setup.name}.components"
        self._command = [*(command or (sys.executable, "-m", "uow", "worker")), "-c", str(folder / "uow.toml")]
        self._tally, self._event_log = Tally(), EventLog()

    def run(self) -> Result:
        """Plays the round. When it returns, every process that it started has ended, and its topics are deleted.

        Raises:
            RuntimeError: The load or the thread of cluster faults failed, and nothing was judged.
        """
        self.folder.mkdir(parents=True)
        self._write_settings()
        created = self._create_topics()
        started = time.monotonic()
        try:
            logs = self._play()
            findings = self._tally.findings
            units = [rec for records in logs.units.values() for rec in records]
            delivered = [(rec.timestamp / 1000, int(rec.first("uow-size") or b"1")) for rec in units]
            if not findings.counts["units"]:
                findings.say("nothing", "not a single unit was delivered: nothing is proved")
            seconds = time.monotonic() - started
            faults, exits = dict(self._tally.faults), dict(self._tally.exits)
            return Result(self.setup, seconds, faults, exits, findings, self._event_log, delivered, self.folder)
        finally:
            self._remove(created)

    # -- before and after

    def _write_settings(self) -> None:
        setup = self.setup
        text = SETTINGS.format(
            name=setup.name,
            bootstrap=self.cluster.for_workers,
            session_ms=self.cluster.session_ms,
            poll_records=setup.poll_records,
            expiration_ms=setup.expiration_ms,
        )
        (self.folder / "uow.toml").write_text(text, encoding="utf-8")

    def _create_topics(self) -> list[str]:
        client = admin.admin_client(self.cluster.bootstrap, self.cluster.properties)
        policy = load_settings(self.folder / "uow.toml", {}).policy(self._name)
        specs = expected(self._name, self._name, policy, PARTITIONS, admin.default_replication(client))
        return list(admin.create_missing(client, specs).created)

    def _remove(self, topics: Sequence[str]) -> None:
        """Deletes the round's consumer group and the topics that it created, and nothing else."""
        client = admin.admin_client(self.cluster.bootstrap, self.cluster.properties)
        pending = {f"group {name}": done for name, done in client.delete_consumer_groups([self._name]).items()}
        if topics:
            done = client.delete_topics(list(topics), operation_timeout=PENDING_S)
            pending |= {f"topic {name}": each for name, each in done.items()}
        for what, each in pending.items():
            try:
                each.result()
            except KafkaException as error:
                log.warning("%s was not deleted: %s", what, error.args[0].str())

    # -- what happens

    def _play(self) -> Any:
        setup, client = self.setup, self.cluster.client
        of_workers, of_cluster = parted(setup.faults)
        shared = SharedWorkerState(
            self.folder,
            self._command,
            self.cluster.environment,
            deque(of_workers),
            setup.seed,
            self._event_log,
            self._tally,
        )
        rng = random.Random(setup.seed)
        strangers = Strangers(client, self._name, [self._components], self.cluster.session_ms, rng)
        with ExitStack() as stack:
            workers = [SupervisedWorker(name, shared) for name in setup.worker_names]
            for worker in workers:
                worker.start()
                stack.callback(worker.close)
            cluster = self.cluster
            cluster_faults = ClusterFaults(
                of_cluster, workers, strangers, cluster.broker, cluster.proxy, self._name, self._event_log, self._tally
            )
            load = Load(client, self._components, Script(setup.seed, PARTITIONS), setup.rate)
            load.start()
            cluster_faults.start()
            stack.callback(cluster_faults.stop)
            self._let_happen(workers, shared, cluster_faults, load)
            truth = load.finish()
            truth.save(self.folder / "truth.jsonl")
            self._wait_quiet(workers, load)
            self._count(workers)
            for worker in workers:
                worker.end()
        findings = self._tally.findings
        for said in cluster.proxy.fences.take() if cluster.proxy is not None else ():
            findings.say("not fenced", said)
        self._wait_no_transaction()
        logs = reading.read_logs(client, self._name, self._name)
        findings.add(checker.check(logs, truth, self._name, setup.expiration_ms))
        return logs

    def _let_happen(
        self, workers: Sequence[SupervisedWorker], shared: SharedWorkerState, cluster_faults: ClusterFaults, load: Load
    ) -> None:
        sampled = 0.0
        while shared.faults or cluster_faults.is_alive() or any(worker.is_busy for worker in workers):
            if time.monotonic() >= self._until:
                shared.faults.clear()
                cluster_faults.hush()
            for worker in workers:
                worker.supervise()
            for thread in (load, cluster_faults):
                if thread.error is not None:
                    raise RuntimeError(f"{thread.name}: {thread.error}") from thread.error
            if time.monotonic() - sampled >= SAMPLE_S:
                sampled = time.monotonic()
                self._event_log.sample(len(load.sent))
            time.sleep(LOOK_S)

    def _wait_quiet(self, workers: Sequence[SupervisedWorker], load: Load) -> None:
        """Waits until all records are read and every group that must expire has expired."""
        self._event_log.sample(len(load.sent))
        until = time.monotonic() + self.setup.quiet_s
        while not self._is_quiet(workers):
            for worker in workers:
                worker.supervise()
            if time.monotonic() > until:
                self._tally.findings.say("not quiet", f"not within {self.setup.quiet_s:.0f} s after the load's end")
                return
            time.sleep(10 * LOOK_S)

    def _is_quiet(self, workers: Sequence[SupervisedWorker]) -> bool:
        """True if all work is done. Recent groups are not in the changelog, so the workers' metrics are used, but only to wait; the checker reads topics."""
        client = self.cluster.client
        if reading.unread(client, self._name, self._components):
            return False
        if self.setup.expiration_ms < 0:
            return True
        counts = [each for worker in workers for each in reading.counters(worker.metrics).values()]
        owned, held = len(counts), sum(count["open"] for count in counts)
        return owned == PARTITIONS and not held and not reading.still_held(client, self._name, self._name)

    def _wait_no_transaction(self) -> None:
        """Returns when no transaction is open. All workers have ended, so every transaction ends at its time-out at the latest.

        Raises:
            RuntimeError: A transaction never ends. No consumer can read beyond it, so nothing can be judged.
        """
        until = time.monotonic() + TRANSACTIONS_S
        while found := reading.open_transactions(self.cluster.client, self._name, self._name):
            if time.monotonic() > until:
                raise RuntimeError(f"a transaction that the broker never ends holds readers back: {'; '.join(found)}")
            time.sleep(1)

    def _count(self, workers: Sequence[SupervisedWorker]) -> None:
        """Checks that the running workers' own counters add up."""
        for worker in workers:
            self._tally.findings.add(reading.conservation(f"worker {worker.name}", worker.metrics))
