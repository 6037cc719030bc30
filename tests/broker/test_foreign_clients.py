"""Producers and readers in Java, Go and Node, each with its own Kafka client: whole units in one transaction, through a worker and back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.broker.worker_places import Destination
from tests.foreign.foreign_programs import BUILD_S, LANGUAGES, client_program
from tests.kafka_broker import Kafka
from tests.processes import PATIENCE_S, Process
from uow.topics.partitioner import partition_for

ITEMS = ["flash drive", "bööks", "lava lamp"]


@pytest.mark.clients
@pytest.mark.timeout(BUILD_S + 120)
@pytest.mark.parametrize("language", LANGUAGES)
def test_units_of_another_language_go_through_a_worker_and_back_w01_w118(
    broker: Kafka, unique: str, tmp_path: Path, spawn: Callable[..., Process], language: str
) -> None:
    program = client_program(language, tmp_path)
    place = Destination(broker.bootstrap, unique, tmp_path, spawn)
    place.create()
    ids = [f"{language}-{number}" for number in range(6)]
    for name in ids:
        key = name.encode()
        [said] = program.lines("send", place.bootstrap, place.name, name, *ITEMS)
        assert said == {"id": name, "partitions": [partition_for(key, place.partitions)] * len(ITEMS)}
        place.sent[key] = {number: item.encode() for number, item in enumerate(ITEMS, start=1)}
        place.ends[key] = len(ITEMS)
    plain = Producer({"bootstrap.servers": place.bootstrap, "enable.idempotence": True})
    plain.produce(place.components, b"no component")
    assert not plain.flush(PATIENCE_S)
    worker = place.worker()
    place.wait_delivered(len(ids) + 1)
    assert worker.child.terminate(90) == 0
    units = program.lines("read", place.bootstrap, place.name, f"group-{unique}", len(ids))
    assert {unit["id"]: unit["components"] for unit in units} == {
        name: [[number, item] for number, item in enumerate(ITEMS, start=1)] for name in ids
    }
    assert {unit["outcome"] for unit in units} == {"complete"}
    place.check_account()
