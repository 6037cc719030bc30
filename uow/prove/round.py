"""One round: topics of its own, workers, load, faults, quiet, judgement, topics removed.

Belongs here: the order of things in a round. Does not belong here: what is sent (`load`), what befalls whom (`slot`, `weather`), what must
come out (`checker`), several rounds (`proof`).
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

from topics import admin
from topics.catalogue import expected
from uow.broker import EmbeddedBroker
from uow.config import load as load_settings
from uow.prove import checker, reading
from uow.prove.events import Notebook
from uow.prove.faults import KILLS, Fault, parted
from uow.prove.frames import Proxy
from uow.prove.load import Load, Script
from uow.prove.records import Findings
from uow.prove.slot import Slot, Tally, Workshop
from uow.prove.weather import Strangers, Weather

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
class Cluster:
    """Where the brokers are.

    Attributes:
        bootstrap: `HOST:PORT`, several with commas.
        properties: Further librdkafka properties, for example for security.
        broker: The broker if it is ours to harm.
        proxy: What workers reach it by, if their requests are to be harmed. Load and checker go around it.
    """

    bootstrap: str
    properties: Mapping[str, str] = field(default_factory=dict)
    broker: EmbeddedBroker | None = None
    proxy: Proxy | None = None

    @property
    def for_workers(self) -> str:
        """`HOST:PORT` that workers are given."""
        return self.proxy.address if self.proxy is not None else self.bootstrap

    @property
    def session_ms(self) -> int:
        """When the group takes a silent worker's partitions away: the shorter, the more take-overs in the same time."""
        client = admin.admin_client(self.bootstrap, self.properties)
        try:
            one = ConfigResource(ResourceType.BROKER, str(min(client.list_topics(timeout=PENDING_S).brokers)))
            allowed = client.describe_configs([one])[one].result()["group.min.session.timeout.ms"].value
        except KafkaException:  # not ours to know
            return USUAL_SESSION_MS
        return max(SESSION_MS, int(allowed))

    @property
    def client(self) -> dict[str, str]:
        """Librdkafka properties of a handle."""
        return {**self.properties, "bootstrap.servers": self.bootstrap}

    @property
    def environment(self) -> dict[str, str]:
        """Of every program we start: what the user has set for workers of their own is not for ours; secrets stay out of files."""
        own = {name: value for name, value in os.environ.items() if not name.startswith("UOW_")}
        kafka = {f"UOW_KAFKA__{name.replace('.', '_').upper()}": value for name, value in self.properties.items()}
        return own | kafka | {"PYTHONUNBUFFERED": "1"}


@dataclass(frozen=True, slots=True)
class Setup:
    """What a round is like.

    Attributes:
        name: Of application and destination, hence of every topic.
        seed: Of the load.
        faults: What happens, in order.
        slots: Of the workers.
        expiration_ms: `incomplete_expiration_ms`; -1: never, and then something may be held in the end.
        rate: Records a second, about.
        poll_records: The workers' setting.
        quiet_s: Longest wait, after the load, for all to be read.
    """

    name: str
    seed: int
    faults: Sequence[Fault]
    slots: Sequence[str] = ("a", "b")
    expiration_ms: int = -1
    rate: int = 1500
    poll_records: int = 5000
    quiet_s: float = QUIET_S


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a round.

    Attributes:
        setup: What it was like.
        seconds: How long it took, from the first worker's start to the judgement.
        faults: What happened, by name.
        exits: How workers ended, by status.
        findings: Counts, and what was wrong.
        notebook: Events and what the load had sent when.
        delivered: When each unit or passed-through record was written, epoch seconds, and how many records are in it.
        folder: Logs, and what was sent.
    """

    setup: Setup
    seconds: float
    faults: Mapping[str, int]
    exits: Mapping[str, int]
    findings: Findings
    notebook: Notebook
    delivered: Sequence[tuple[float, int]]
    folder: Path

    @property
    def kills(self) -> int:
        """How many workers were killed."""
        return sum(count for name, count in self.faults.items() if name.partition(":")[0] in KILLS)

    @property
    def is_good(self) -> bool:
        """Nothing is wrong."""
        return not self.findings.anomalies


class Round:
    """One round.

    Args:
        cluster: Where.
        folder: For configuration, logs and what was sent.
        setup: What it is like.
        command: What starts a worker; tests put one with a planted defect here.
        until: By `time.monotonic`; no fault begins after it, and the round ends as it would after its last one.
    """

    def __init__(
        self, cluster: Cluster, folder: Path, setup: Setup, command: Sequence[str] = (), until: float = math.inf
    ) -> None:
        self.cluster, self.folder, self.setup, self._until = cluster, folder, setup, until
        self._name = setup.name
        self._components = f"{setup.name}.components"
        self._command = [*(command or (sys.executable, "-m", "uow", "worker")), "-c", str(folder / "uow.toml")]
        self._tally, self._notebook = Tally(), Notebook()

    def run(self) -> Result:
        """All of it; everything it started has ended when it returns, and its topics are removed.

        Raises:
            RuntimeError: The load or the weather failed: nothing was judged.
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
                findings.say("nothing", "not a single unit was delivered: nothing is proven")
            seconds = time.monotonic() - started
            faults, exits = dict(self._tally.faults), dict(self._tally.exits)
            return Result(self.setup, seconds, faults, exits, findings, self._notebook, delivered, self.folder)
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
        """Removes what this round made, and nothing else: its consumer group, and the topics that it created."""
        client = admin.admin_client(self.cluster.bootstrap, self.cluster.properties)
        pending = {f"group {name}": done for name, done in client.delete_consumer_groups([self._name]).items()}
        if topics:
            done = client.delete_topics(list(topics), operation_timeout=PENDING_S)
            pending |= {f"topic {name}": each for name, each in done.items()}
        for what, each in pending.items():
            try:
                each.result()
            except KafkaException as error:
                log.warning("%s is not removed: %s", what, error.args[0].str())

    # -- what happens

    def _play(self) -> Any:
        setup, client = self.setup, self.cluster.client
        of_workers, of_weather = parted(setup.faults)
        shop = Workshop(
            self.folder,
            self._command,
            self.cluster.environment,
            deque(of_workers),
            setup.seed,
            self._notebook,
            self._tally,
        )
        rng = random.Random(setup.seed)
        strangers = Strangers(client, self._name, [self._components], self.cluster.session_ms, rng)
        with ExitStack() as stack:
            slots = [Slot(name, shop) for name in setup.slots]
            for slot in slots:
                slot.start()
                stack.callback(slot.close)
            cluster = self.cluster
            weather = Weather(
                of_weather, slots, strangers, cluster.broker, cluster.proxy, self._name, self._notebook, self._tally
            )
            load = Load(client, self._components, Script(setup.seed, PARTITIONS), setup.rate)
            load.start()
            weather.start()
            stack.callback(weather.stop)
            self._let_happen(slots, shop, weather, load)
            truth = load.finish()
            truth.save(self.folder / "truth.jsonl")
            self._wait_quiet(slots, load)
            self._count(slots)
            for slot in slots:
                slot.end()
        findings = self._tally.findings
        for said in cluster.proxy.fences.take() if cluster.proxy is not None else ():
            findings.say("not fenced", said)
        self._wait_no_transaction()
        logs = reading.read_logs(client, self._name, self._name)
        findings.add(checker.check(logs, truth, self._name, setup.expiration_ms))
        return logs

    def _let_happen(self, slots: Sequence[Slot], shop: Workshop, weather: Weather, load: Load) -> None:
        sampled = 0.0
        while shop.faults or weather.is_alive() or any(slot.is_busy for slot in slots):
            if time.monotonic() >= self._until:
                shop.faults.clear()
                weather.hush()
            for slot in slots:
                slot.supervise()
            for thread in (load, weather):
                if thread.error is not None:
                    raise RuntimeError(f"{thread.name}: {thread.error}") from thread.error
            if time.monotonic() - sampled >= SAMPLE_S:
                sampled = time.monotonic()
                self._notebook.sample(len(load.sent))
            time.sleep(LOOK_S)

    def _wait_quiet(self, slots: Sequence[Slot], load: Load) -> None:
        """Until all is read, and nothing is held that is to expire."""
        self._notebook.sample(len(load.sent))
        until = time.monotonic() + self.setup.quiet_s
        while not self._is_quiet(slots):
            for slot in slots:
                slot.supervise()
            if time.monotonic() > until:
                self._tally.findings.say("not quiet", f"not within {self.setup.quiet_s:.0f} s after the load's end")
                return
            time.sleep(10 * LOOK_S)

    def _is_quiet(self, slots: Sequence[Slot]) -> bool:
        """Young groups are in no changelog: the workers are asked for them. What they say is only waited for; the checker reads topics."""
        client = self.cluster.client
        if reading.unread(client, self._name, self._components):
            return False
        if self.setup.expiration_ms < 0:
            return True
        counts = [each for slot in slots for each in reading.counters(slot.metrics).values()]
        owned, held = len(counts), sum(count["open"] for count in counts)
        return owned == PARTITIONS and not held and not reading.still_held(client, self._name, self._name)

    def _wait_no_transaction(self) -> None:
        """Returns when no transaction is open; everybody has left, so all of them end at their time-outs at the latest.

        Raises:
            RuntimeError: One never ends. Nobody can read beyond it, so nothing can be judged.
        """
        until = time.monotonic() + TRANSACTIONS_S
        while found := reading.open_transactions(self.cluster.client, self._name, self._name):
            if time.monotonic() > until:
                raise RuntimeError(f"a transaction that the broker never ends holds readers back: {'; '.join(found)}")
            time.sleep(1)

    def _count(self, slots: Sequence[Slot]) -> None:
        """The live workers' own counters must add up."""
        for slot in slots:
            self._tally.findings.add(reading.conservation(f"worker {slot.name}", slot.metrics))
