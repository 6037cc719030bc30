"""A producer that knows nothing of ours: Java's client, with Java's defaults."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.broker.client_places import Topics
from tests.broker.java_client import JavaClient, java_client
from tests.broker.worker_places import Destination
from tests.golden.test_producer_vectors import FOLDER, IDS
from tests.kafka_broker import Kafka
from tests.processes import Process
from uow.topics.partitioner import partition_for

ROOT = Path(__file__).parents[2]
COUNTS = ("1", "4", "12", "97")


@pytest.fixture(scope="module")
def java() -> Iterator[JavaClient]:
    with java_client() as client:
        yield client


def test_javas_partitioner_still_says_what_the_golden_file_says_w109(java: JavaClient) -> None:
    said = {count: [java.partition_for(key, int(count)) for key in IDS] for count in COUNTS}
    assert json.loads((FOLDER / "java-kafka-clients.json").read_text())["partitions"] == said


def test_a_java_producer_sends_200_ids_where_we_would_w109(broker: Kafka, topic_prefix: str, java: JavaClient) -> None:
    Topics(broker.bootstrap).make(topic_prefix, partitions=12)
    with java.producer(broker.bootstrap) as producer:
        sent = [producer.send(topic_prefix, key, b"", {}) for key in IDS]
        assert [each.get().partition() for each in sent] == [partition_for(key, 12) for key in IDS]


def test_units_of_a_java_producer_are_read_by_a_program_that_imports_nothing_of_ours(
    broker: Kafka, unique: str, tmp_path: Path, spawn: Callable[..., Process], java: JavaClient
) -> None:
    """W-01, W-59, W-118: three headers and the raw id as key is all that is asked of a producer; a reader needs an Avro library."""
    place = Destination(broker.bootstrap, unique, tmp_path, spawn)
    place.create()
    ids = [f"java-{number}" for number in range(40)]
    with java.producer(place.bootstrap) as producer:
        for number in (3, 1, 2):
            for name in ids:
                key, value = name.encode(), b"%s/%d" % (name.encode(), number)
                headers = {"uow-id": key, "uow-seq": b"%d" % number} | ({"uow-end": b"true"} if number == 3 else {})
                producer.send(place.components, key, value, headers)
                place.sent[key][number], place.ends[key] = value, 3
    worker = place.worker()
    place.wait_delivered(len(ids))
    place.verify()
    assert worker.child.terminate(90) == 0
    reader = spawn(
        sys.executable,
        "-I",
        ROOT / "examples" / "foreign_reader.py",
        ROOT / "schemas" / "definitions" / "unit.avsc",
        env={"BOOTSTRAP": place.bootstrap, "DESTINATION": place.name, "COUNT": str(len(ids))},
    )
    assert reader.wait(60) == 0, reader.output
    units = {unit["id"]: unit["components"] for unit in map(json.loads, reader.output.splitlines())}
    assert units == {name: [[number, f"{name}/{number}"] for number in (1, 2, 3)] for name in ids}
    place.check_account()
