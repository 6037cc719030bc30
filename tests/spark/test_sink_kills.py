"""The sink is killed again and again while units arrive; afterwards every committed record is a row, and each unit a file, once (W-127).

Topics, tables and files are read here without any part of the product: Kafka's consumer, Avro by `fastavro`, Delta's log as JSON, and Parquet files.
"""

from __future__ import annotations

import io
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote

import fastavro
import pyarrow.parquet as parquet
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from bench.finished_units import FinishedUnits
from bench.workloads import PARTITIONS
from uow.topics.admin import admin_client, create_missing
from uow.topics.catalogue import DestinationTopics, expected
from uow.topics.policies import DestinationPolicy, HandlingPolicy

KILLS = int(os.environ.get("UOW_SINK_KILLS", "50"))
START_S = 300.0
TOPICS = ("units", "rejected", "errors")
SCHEMA = Path(__file__).parents[2] / "schemas" / "definitions" / "unit.avsc"

Rows = Counter[tuple[Any, ...]]


class Sender:
    """Sends units, and some other records, in transactions of which every fourth is aborted, until it is stopped."""

    def __init__(self, servers: str, names: DestinationTopics) -> None:
        self.names, self._stop = names, threading.Event()
        self._units = FinishedUnits(names, 1_000_000).records()
        self._producer = Producer({"bootstrap.servers": servers, "transactional.id": f"{names.destination}-sender"})
        self._producer.init_transactions(30)
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        rnd, number = random.Random(2), 0
        while not self._stop.wait(0.2):
            number += 1
            self._producer.begin_transaction()
            for _ in range(rnd.randrange(1, 20)):
                unit = next(self._units)
                self._put(self.names.units, unit.key, unit.value, [*unit.headers], rnd)
            self._put(self.names.units, b"plain", b"%d" % number, [], rnd)
            self._put(rnd.choice([self.names.rejected, self.names.errors]), b"bad", b"%d" % number, [], rnd)
            self._put(self.names.units, b"odd", b"%d" % number, [("uow-id", b"odd"), ("uow-kind", b"unit")], rnd)
            if number % 4:
                self._producer.commit_transaction(30)
            else:
                self._producer.flush(30)
                self._producer.abort_transaction(30)

    def _put(self, topic: str, key: bytes, value: bytes, headers: list[Any], rnd: random.Random) -> None:
        self._producer.produce(topic, value, key, rnd.randrange(PARTITIONS), headers=headers)


def committed(servers: str, topic: str) -> Iterator[Any]:
    """The committed records of a topic."""
    own = {"bootstrap.servers": servers, "group.id": "judge", "isolation.level": "read_committed"}
    consumer = Consumer({**own, "enable.partition.eof": True, "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    ended = 0
    while ended < PARTITIONS:
        for message in consumer.consume(1000, 1.0):
            if message.error() is None:
                yield message
            else:
                ended += 1
    consumer.close()


def of_topics(servers: str, destination: str) -> dict[str, Rows]:
    """The rows that the tables must have."""
    schema = fastavro.parse_schema(json.loads(SCHEMA.read_text()))
    found: dict[str, Rows] = {table: Counter() for table in ("units", "passed", "rejected", "unreadable")}
    for topic in TOPICS:
        for message in committed(servers, f"{destination}.{topic}"):
            place = (message.topic(), message.partition(), message.offset(), message.key())
            if topic != "units":
                found["rejected"][(*place, message.value())] += 1
            elif "uow-kind" not in dict(message.headers() or ()):
                found["passed"][(*place, message.value())] += 1
            elif message.key() == b"odd":
                found["unreadable"][(*place, message.value())] += 1
            else:
                unit: Any = fastavro.schemaless_reader(io.BytesIO(message.value()[10:]), schema, None)
                parts = tuple((part["seq"], part["value"]) for part in unit["components"])
                found["units"][(*place, unit["unit_id"], parts)] += 1
    return found


def live_files(table: Path) -> list[Path]:
    """The files of the last version of a Delta table, by its log."""
    files: set[str] = set()
    for version in sorted((table / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in version.read_text().splitlines()]
        files -= {action["remove"]["path"] for action in actions if "remove" in action}
        files |= {action["add"]["path"] for action in actions if "add" in action}
    return [table / unquote(each) for each in files]


def of_tables(folder: Path) -> dict[str, Rows]:
    """The rows that the tables have."""
    found: dict[str, Rows] = {}
    for table in ("units", "passed", "rejected", "unreadable"):
        rows: Rows = Counter()
        for file in live_files(folder / table):
            for row in parquet.read_table(file).to_pylist():
                place = (row["topic"], row["partition"], row["offset"], row["key"])
                if table == "units":
                    parts = tuple((part["seq"], part["value"]) for part in row["components"])
                    rows[(*place, row["unit_id"], parts)] += 1
                    assert row["superseded_by"] is None
                else:
                    rows[(*place, row["value"])] += 1
        found[table] = rows
    return found


def check_files(folder: Path, wanted: Rows) -> None:
    """Each unit is one file with its components, and one line of a manifest."""
    lines = [line.split() for path in folder.glob("manifest/*") for line in path.read_text().splitlines()]
    assert sorted(path for _, path in lines) == sorted(str(path.relative_to(folder)) for path in folder.glob("??/*"))
    rows: Rows = Counter()
    for digest, path in lines:
        data = (folder / path).read_bytes()
        assert sha256(data).hexdigest() == digest
        (unit,) = fastavro.reader(io.BytesIO(data))
        assert isinstance(unit, dict)
        rows[(unit["unit_id"], tuple((part["seq"], part["value"]) for part in unit["components"]))] += 1
    assert rows == Counter({(unit_id, parts): 1 for *_, unit_id, parts in wanted})


def destination(servers: str, name: str, folder: Path) -> list[str]:
    """Makes the topics of a destination and its settings below `folder`; the command that carries it into `folder/tables`."""
    policy = DestinationPolicy(handling_policy=HandlingPolicy.SINGLE_MESSAGE_DELIVERY)
    create_missing(admin_client(servers, {}), expected("kills", name, policy, PARTITIONS))
    config = folder / "uow.toml"
    config.write_text(
        f'[application]\nid = "kills"\nbootstrap_servers = "{servers}"\n'
        f'[destinations."{name}"]\nhandling_policy = "single_message_delivery"\n'
    )
    uow = str(Path(sys.executable).with_name("uow"))
    return [uow, "sink", "-c", str(config), "--tables", str(folder / "tables")]


def check_tables(servers: str, name: str, tables: Path, more_than: int) -> Rows:
    """Every table has the committed records, each once, and more than so many; the rows of `units`."""
    wanted, rows = of_topics(servers, name), of_tables(tables / name)
    for table, records in wanted.items():
        assert sum(records.values()) > more_than, table
        assert rows[table] == records, table
    return wanted["units"]


def steps(tables: Path, files: Path, destination: str) -> int:
    """How far a sink has come: batches planned and done, commits to tables, temporary files, manifests."""
    found = [
        *(tables / "_checkpoints" / destination).glob("*s/[0-9]*"),
        *(tables / destination).glob("*/_delta_log/*.json"),
        *(files / destination).glob("_sink/checkpoint/*s/[0-9]*"),
        *(files / destination).glob("*/manifest/*"),
    ]
    return len(found) + any((files / destination).glob("_sink/temporary/*"))


def is_killed(command: list[str], tables: Path, files: Path, destination: str, rnd: random.Random, log: Path) -> bool:
    """Starts the sink and kills its driver and JVM a few steps on, or at its start; False if it was done before."""
    first = steps(tables, files, destination)
    wanted = first + rnd.randrange(1, 9)
    with log.open("ab") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
    try:
        until = time.monotonic() + rnd.choice([rnd.uniform(0, 20), *[START_S] * 9])
        while steps(tables, files, destination) < wanted and time.monotonic() < until and process.poll() is None:
            time.sleep(0.02)
        time.sleep(rnd.uniform(0, 0.5))
        if process.poll() is not None:
            assert (process.returncode, command[-1]) == (0, "--once"), log.read_text()[-3000:]
            return False
        return True
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.drill
@pytest.mark.timeout(7200)
def test_sink_killed_at_random_moments_loses_and_doubles_nothing_w127(broker: Any, tmp_path: Path, unique: str) -> None:
    tables, files, log = tmp_path / "tables", tmp_path / "files", tmp_path / "log"
    command = [*destination(broker.bootstrap, unique, tmp_path), "--files", str(files), "--format", "avro"]
    rnd = random.Random(1)
    with Sender(broker.bootstrap, DestinationTopics("kills", unique)):
        kills = 0
        while kills < KILLS:
            # mostly with `--once`, whose first batch costs half the CPU time
            kills += is_killed([*command, *rnd.choice([["--once"]] * 3 + [[]])], tables, files, unique, rnd, log)
            print(f"{kills} kills, {steps(tables, files, unique)} steps", flush=True)
    last = subprocess.run([*command, "--once"], capture_output=True, text=True, check=False)
    assert last.returncode == 0, last.stderr[-3000:]
    units = check_tables(broker.bootstrap, unique, tables, KILLS)
    check_files(files / unique / f"{unique}.units", units)
