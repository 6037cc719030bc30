"""Units in other shapes than an envelope, through worker processes and a real broker (W-12, W-14, W-116, W-122, W-208)."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

import uow
from tests.broker.worker_places import Destination, Worker
from tests.kafka_broker import Kafka
from tests.processes import PATIENCE_S, Process, wait_for
from uow.topics.commands import Command, Verb, command_headers

EXAMPLE = Path(__file__).parents[2] / "examples" / "large_unit"
pytestmark = pytest.mark.timeout(300)


def runs_on(records: list[Any]) -> dict[str, int]:
    """Walks each partition as it is read: every run is 1..n of one unit, and nothing stands inside. Ids, and how often each came."""
    found: dict[str, int] = defaultdict(int)
    for partition in {record.partition() for record in records}:
        expected: tuple[bytes, int, int] | None = None
        for record in sorted(
            (each for each in records if each.partition() == partition), key=lambda record: int(record.offset())
        ):
            said = dict(record.headers() or ())
            if "uow-pos" not in said:
                assert expected is None, "something stands inside a run"
                continue
            place, count = map(int, said["uow-pos"].split(b"/"))
            assert expected in (None, (said["uow-unit-id"], place, count))
            assert expected is not None or place == 1
            assert record.key() == said["uow-id"]
            expected = None if place == count else (said["uow-unit-id"], place + 1, count)
            if expected is None:
                found[said["uow-id"].decode()] += 1
        assert expected is None, "the last run is not whole"
    return found


def test_every_run_is_whole_while_workers_come_and_go_and_plain_records_pass_w12_w122(place: Destination) -> None:
    """Workers join, leave and are killed; each unit comes once, its records neighbours on its partition."""
    place.create({"poll_records": 50}, shape="consecutive")
    one = place.worker("one")
    for seed, worker_name in enumerate(("two", "three")):
        place.send_units(50, seed=seed)
        put_plain(place, 20)
        other = place.worker(worker_name)
        other.wait_owns(2)
        place.send_units(50, seed=10 + seed)  # while it works, it goes
        other.child.kill() if seed else other.child.terminate(90)
    place.send_units(50, seed=9)
    wait_for(lambda: len(runs_on(place.read(place.units))) >= 250, 90)
    assert one.child.terminate(90) == 0
    assert set(runs_on(place.read(place.units)).values()) == {1}
    with uow.connect(place.bootstrap) as connection, connection.units(place.name, group="look") as reader:
        for _ in range(250):
            unit = next(reader)
            wanted = place.sent[unit.id.encode()]
            assert [component.value for component in unit.components] == [wanted[seq] for seq in range(1, 6)]
            unit.acknowledge()


def test_the_large_unit_example_streams_in_memory_that_does_not_grow_with_the_film_w116_w208(
    broker: Kafka, tmp_path: Path, spawn: Callable[..., Process]
) -> None:
    """`examples/large_unit` as its README tells it: 600 frames of 100 kB in less than 10 MB, small films as envelopes beside them."""
    config = tmp_path / "uow.toml"
    config.write_text((EXAMPLE / "uow.toml").read_text().replace("localhost:9092", broker.bootstrap))
    assert spawn("uow", "topics", "create", "-c", config, "--partitions", "1").wait(90) == 0
    worker = spawn("uow", "worker", "-c", config)
    worker.wait_output("ready", 90)
    at = ("--bootstrap", broker.bootstrap)
    assert spawn("python", EXAMPLE / "scanner.py", *at, "--frames", "600").wait(120) == 0
    projector = spawn("python", EXAMPLE / "projector.py", *at)
    assert projector.wait(120) == 0, projector.output
    shown = re.findall(r"(\w+): (\d+) frames, (\d+) bytes; memory grew by ([0-9.]+) MB", projector.output)
    assert [(name, frames) for name, frames, _, _ in shown] == [("trailer", "3"), ("feature", "600"), ("credits", "3")]
    assert int(shown[1][2]) > 60_000_000
    assert float(shown[1][3]) < 10, projector.output
    assert worker.terminate(90) == 0


def put_plain(place: Destination, count: int) -> None:
    producer = Producer({"bootstrap.servers": place.bootstrap, "enable.idempotence": True})
    for number in range(count):
        producer.produce(place.components, b"plain", b"%d" % number)
    assert not producer.flush(PATIENCE_S)


def test_references_are_fetched_and_checked_and_a_deleted_component_moves_its_unit_away_w117(
    place: Destination, admin: AdminClient
) -> None:
    """The plain CRC is compared by the reader; retention is played by deleting records."""
    place.partitions = 1
    place.create(shape="reference", incomplete_expiration_ms=60_000)
    worker = place.worker()
    place.send([("a", 1, False), ("b", 2, True), ("a", 2, True), ("b", 1, False), ("c", 1, True)])
    place.wait_delivered(3)
    assert worker.child.terminate(90) == 0
    place.is_damaged = True
    with uow.connect(place.bootstrap) as connection:
        with connection.units(place.name, group="first") as reader:
            for _ in range(3):
                unit = next(reader)
                values = place.sent[unit.id.encode()]
                assert {component.seq: component.value for component in unit.components} == values
                unit.acknowledge()
        for done in admin.delete_records([TopicPartition(place.components, 0, 1)]).values():
            done.result(PATIENCE_S)
        with connection.units(place.name, group="second") as reader:
            assert next(reader).id == "b"
    (moved,) = place.read(f"{place.name}.errors")
    said = dict(moved.headers())
    assert (moved.key(), said["uow-kind"], said["uow-failure-reason"]) == (b"a", b"unit", b"failed")
    assert f"component 1, {place.components}/0/0, is not there any more".encode() in said["uow-error-text"]


def test_what_was_held_without_its_values_is_read_back_when_it_expires_w117_w80(
    place: Destination, admin: AdminClient
) -> None:
    """A group of 20 MB in a changelog of less than 80 kB, a restart, and a component that retention took meanwhile."""
    place.partitions = 1
    place.create(
        {"replay_limit_records": 0}, shape="reference", incomplete_expiration_ms=600_000, expiration_policy="redirect"
    )

    def worker_that_holds(count: int) -> Worker:
        worker = place.worker()
        wait_for(lambda: sum(each["counts"]["open"] for each in worker.partitions().values()) == count)
        return worker

    frames = random.Random(1).sample(range(1, 201), 200)
    place.send([("film", frame, False) for frame in frames], value=b"frame" * 20_000)
    assert worker_that_holds(200).child.terminate(90) == 0
    worker = worker_that_holds(200)
    place.is_damaged = True
    for done in admin.delete_records([TopicPartition(place.components, 0, 1)]).values():
        done.result(PATIENCE_S)
    command = Command(b"end", Verb.EXPIRE, b"film", "the test ends")
    producer = Producer({"bootstrap.servers": place.bootstrap, "enable.idempotence": True})
    producer.produce(f"{place.name}.commands", None, b"film", headers=command_headers(command))
    assert not producer.flush(PATIENCE_S)
    wait_for(lambda: len(place.read(f"{place.name}.errors")) == 200)
    wanted = dict(sorted(place.sent[b"film"].items())) | {frames[0]: None}
    found = [(record.key(), record.value(), dict(record.headers())) for record in place.read(f"{place.name}.errors")]
    assert [(key, int(said["uow-seq"]), value) for key, value, said in found] == [
        (b"film", number, value) for number, value in wanted.items()
    ]
    gone = f"{len(place.sent[b'film'][frames[0]])} bytes are gone from {place.components}/0/0".encode()
    told = [said.get("uow-error-value") for _, _, said in found]
    assert told == [gone if number == frames[0] else None for number in wanted]
    rows = place.read(f"A-{place.name}-{place.name}-groups-changelog")
    assert sum(len(record.value() or b"") for record in rows) < 200 * 400
    assert worker.child.terminate(90) == 0
