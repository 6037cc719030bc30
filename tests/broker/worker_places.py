"""A destination on a broker, worker processes, and a reader that shares no code with the worker."""

from __future__ import annotations

import itertools
import json
import random
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fastavro
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, ResourceType

from tests.kafka_broker import committed_rows
from tests.processes import PATIENCE_S, Process, wait_for
from uow.cli.main import main
from uow.config.loading import load
from uow.ops.destination_logs import log_reader, task_context
from uow.ops.inspect import totals
from uow.topics.partitioner import partition_for
from uow.topics.routes import unit_topics

DEFINITION = json.loads((Path(__file__).parents[2] / "schemas/definitions/unit.avsc").read_text())


class Destination:
    """One application with one destination, named after the test."""

    def __init__(
        self, bootstrap: str, name: str, folder: Path, spawn: Callable[..., Process], partitions: int = 4
    ) -> None:
        self.bootstrap, self.name, self.spawn, self.partitions = bootstrap, name, spawn, partitions
        self.config = folder / "uow.toml"
        self.components, self.units = f"{name}.components", f"{name}.units"
        self.sent: dict[bytes, dict[int, bytes]] = defaultdict(dict)
        self.ends: dict[bytes, int] = {}
        self.workers: list[Worker] = []
        self.is_created = self.is_damaged = False
        """Somebody took records away: there is nothing to account for."""

    def configure(self, worker: Mapping[str, Any] | None = None, **destination: Any) -> None:
        """Writes `uow.toml`."""
        lines = ["[application]", f'id = "A-{self.name}"', f'bootstrap_servers = "{self.bootstrap}"', "[worker]"]
        lines += [
            f"{key} = {json.dumps(value)}" for key, value in ({"web": "127.0.0.1:0"} | dict(worker or {})).items()
        ]
        lines += [f"[destinations.{self.name}]"]
        destination = {"handling_policy": "single_message_delivery"} | destination
        routes = destination.pop("routes", {})
        lines += [f"{key} = {json.dumps(value)}" for key, value in destination.items()]
        for to, when in routes.items():
            lines += [f"[[destinations.{self.name}.routes]]", f"when = {json.dumps(when)}", f"to = {json.dumps(to)}"]
        self.config.write_text("\n".join(lines))

    def create(self, worker: Mapping[str, Any] | None = None, **destination: Any) -> None:
        """Configuration and topics."""
        self.configure(worker, **destination)
        asked = ["topics", "create", "-c", str(self.config), "--partitions", str(self.partitions)]
        made = CliRunner().invoke(main, asked)
        assert made.exit_code == 0, made.output
        self.is_created = True

    def worker(
        self,
        worker_name: str = "0",
        *,
        wait: bool = True,
        uow: str | Path = "uow",
        options: Sequence[str] = (),
        **env: str,
    ) -> Worker:
        """A worker process, forked; with the path of `uow`, a program of its own."""
        child = self.spawn(uow, "worker", "-c", self.config, "--name", worker_name, *options, env=env)
        started = Worker(child, worker_name)
        self.workers.append(started)
        if wait:
            started.child.wait_output(f"worker {worker_name} ready", 90)
        return started

    def send(self, components: Iterable[tuple[str, int, bool]], value: bytes = b"v" * 100, partition: int = -1) -> None:
        """Components (id, number, end), by a plain producer."""
        # idempotent, so that a request that is sent again changes no order: the first may meet a topic without a leader
        properties = {"partitioner": "murmur2_random", "linger.ms": 5, "enable.idempotence": True}
        producer = Producer({"bootstrap.servers": self.bootstrap, **properties})
        for name, seq, end in components:
            key = name.encode()
            content = b"%s/%d/%s" % (key, seq, value)
            headers = [("uow-id", key), ("uow-seq", b"%d" % seq), ("uow-end", b"true" if end else b"false")]
            producer.produce(self.components, content, key, partition, headers=headers)  # type: ignore[arg-type]
            self.sent[key].setdefault(seq, content)
            if end:
                self.ends[key] = seq
            producer.poll(0)
        assert not producer.flush(90)  # brokers may stand still meanwhile

    def send_units(
        self, count: int, size: int = 5, seed: int = 0, prefix: str = "u", open_at_a_time: int = 200
    ) -> None:
        """Whole units, shuffled."""
        rng = random.Random(seed)
        waiting = [
            [(f"{prefix}{seed}-{number}", seq, seq == size) for seq in rng.sample(range(1, size + 1), size)]
            for number in range(count)
        ]
        rows, held = [], []
        while waiting or held:
            while waiting and len(held) < open_at_a_time:
                held.append(waiting.pop())
            one = rng.choice(held)
            rows.append(one.pop())
            if not one:
                held.remove(one)
        self.send(rows)

    def fitting(self, partition: int, count: int) -> list[str]:
        """Ids that belong to a partition."""
        names = (f"of-{partition}-{number}" for number in itertools.count())
        fit = (name for name in names if partition_for(name.encode(), self.partitions) == partition)
        return list(itertools.islice(fit, count))

    @contextmanager
    def _reader(self, topic: str) -> Iterator[tuple[Consumer, set[int]]]:
        """A `read_committed` reader at the start of a topic, and the partitions."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "foreign",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
            }
        )
        partitions = set(consumer.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        yield consumer, partitions
        consumer.close()

    def read(self, topic: str) -> list[Any]:
        """Everything a `read_committed` reader sees up to the end offsets of now."""
        records = []
        with self._reader(topic) as (consumer, waiting):
            while waiting:
                for record in consumer.consume(1000, 0.1):
                    if record.error() is not None:
                        waiting.discard(record.partition())
                    elif record.partition() in waiting:  # what comes after the end may be a part of a transaction
                        records.append(record)
        return records

    def delivered(self) -> Counter[bytes]:
        """How often each unit was delivered."""
        return Counter(record.key() for record in self.read(self.units))

    def wait_delivered(self, count: int, timeout: float = 90) -> None:
        """Waits for that many units, counting repeats."""
        with self._reader(self.units) as (consumer, _):
            seen = 0

            def are_there() -> bool:
                nonlocal seen
                seen += sum(record.error() is None for record in consumer.consume(1000, 0.1))
                return seen >= count

            wait_for(are_there, timeout, lambda: f"{count} units; there are {seen}")

    def verify(self) -> None:
        """Every whole group once, with its components in order and unchanged, and nothing else."""
        whole = {key for key, end in self.ends.items() if len(self.sent[key]) == end}
        count: Counter[bytes] = Counter()
        for record in self.read(self.units):
            unit = decoded(record.value())
            key = unit["id"].encode()
            count[key] += 1
            assert record.key() == key
            assert [each["seq"] for each in unit["components"]] == sorted(self.sent[key])
            assert [each["value"] for each in unit["components"]] == [
                self.sent[key][seq] for seq in sorted(self.sent[key])
            ]
        assert {key: times for key, times in count.items() if times > 1} == {}, "doubled"
        assert set(count) == whole

    def check_account(self) -> None:
        """Each input record below the committed offsets is in exactly one place (EN-10, W-216).

        received = delivered + rejected + given up + passed on + sent on + open; what policy lets vanish is the rest.
        """
        for worker in self.workers:
            if worker.child.status is None:
                worker.child.terminate(60)
        settings = load(self.config, {})
        context = task_context(settings, self.name)
        with log_reader(settings) as reader:
            held = sum(each.components for each in totals(reader, context))
        committed = self.positions()
        inputs = [record for record in self.read(self.components) if record.offset() < committed[record.partition()]]
        sent_on = sum(
            any(name == "uow-rerouted" for name, _ in record.headers() or ()) for record in self.read(self.components)
        )
        sources: Counter[str] = Counter()
        passed = 0
        policy = settings.policy(self.name)
        for record in itertools.chain.from_iterable(map(self.read, unit_topics(policy.routes, self.units))):
            said = dict(record.headers() or ())
            if "uow-pos" in said:
                sources[said["uow-source"].decode()] += 1
            elif "uow-unit-id" in said:
                unit = decoded(record.value())
                sources.update(
                    f"{self.components}/{each['source']['partition']}/{each['source']['offset']}"
                    for each in unit["components"]
                )
            else:
                passed += 1
        for topic in (f"{self.name}.rejected", f"{self.name}.errors"):
            sources.update(dict(record.headers())["uow-source"].decode() for record in self.read(topic))
        there = {f"{record.topic()}/{record.partition()}/{record.offset()}" for record in inputs}
        assert {source for source, count in sources.items() if count > 1} == set(), "came out twice"
        assert set(sources) - there == set(), "came out, and was never sent"
        gone = len(inputs) - len(sources) - passed - sent_on - held
        account = f"{len(inputs)} received, {len(sources)} out, {passed} passed, {sent_on} sent on, {held} held"
        keeps_all = policy.expiration_policy in ("redirect", "deliver_partial") or policy.incomplete_expiration_ms < 0
        if keeps_all and policy.duplicate_policy == "reject":
            assert gone == 0, account
        else:
            assert gone >= 0, account

    def positions(self) -> dict[int, int]:
        """The group's committed offsets."""
        places = [(self.components, number) for number in range(self.partitions)]
        rows = committed_rows(self.bootstrap, f"A-{self.name}", places)
        return {row.partition: max(row.offset, 0) for row in rows}

    def committed(self) -> int:
        """Their sum."""
        return sum(self.positions().values())


class Worker:
    """A worker process and its page."""

    def __init__(self, child: Process, worker_name: str) -> None:
        self.child, self.worker_name = child, worker_name

    def _get(self, path: str) -> bytes:
        line = self.child.wait_output("pages on http://")
        address = line.partition("pages on ")[2].partition("/groups/")[0]
        with urllib.request.urlopen(f"{address}{path}", timeout=PATIENCE_S) as answer:
            body: bytes = answer.read()
            return body

    def page(self) -> dict[str, Any]:
        """`/groups/`."""
        page: dict[str, Any] = json.loads(self._get("/groups/"))
        return page

    def health(self) -> dict[str, Any]:
        """`/`, where it is 200."""
        return dict(json.loads(self._get("/")))

    def metrics(self) -> str:
        """`/metrics`."""
        return self._get("/metrics").decode()

    def metric(self, series: str) -> float:
        """The value of a metric with its labels; 0 where it is not told."""
        told = [line.rpartition(" ") for line in self.metrics().splitlines()]
        return next((float(value) for name, _, value in told if name == series), 0.0)

    def partitions(self) -> dict[str, Any]:
        """The partitions of its only destination."""
        return next(iter(self.page()["destinations"].values()), {})

    def check_counts(self) -> None:
        """received = held + duplicate + rejected + passed + ignored, and held = delivered + expired + cancelled + failed + open."""
        for number, view in self.partitions().items():
            counts = view["counts"]
            fates = sum(counts[fate] for fate in ("held", "duplicate", "rejected", "passed", "ignored"))
            assert counts["received"] == fates, f"{number}: {counts}"
            ends = sum(counts[fate] for fate in ("delivered", "expired", "cancelled", "failed", "open"))
            assert counts["held"] == ends, f"{number}: {counts}"

    def wait_owns(self, count: int, timeout: float = 90) -> None:
        """Waits until it owns that many partitions."""
        wait_for(lambda: len(self.partitions()) == count, timeout, lambda: f"{count} partitions; page {self.page()}")


def alter_topic(admin: Any, topic: str, **settings: str) -> None:
    """Changes settings of a topic, and waits until the broker has heard of it; `_` stands for `.`."""
    wanted = {name.replace("_", "."): value for name, value in settings.items()}
    entries = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in wanted.items()]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(PATIENCE_S)

    def are_told() -> bool:
        [told] = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
        found = told.result(PATIENCE_S)
        return all(found[name].value == value for name, value in wanted.items())

    wait_for(are_told)


def add_partitions(admin: Any, topic: str, count: int) -> None:
    """Makes it `count` partitions, and waits until the broker has heard of them."""
    admin.create_partitions([NewPartitions(topic, count)])[topic].result(PATIENCE_S)
    wait_for(lambda: len(admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions) == count)


def decoded(value: bytes) -> dict[str, Any]:
    """A unit by the published definition and fastavro alone."""
    import io

    assert value[:2] == b"\xc3\x01"
    unit = fastavro.schemaless_reader(io.BytesIO(value[10:]), DEFINITION, None)
    assert isinstance(unit, dict)
    return unit
