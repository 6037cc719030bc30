"""`UOW_TEST_BROKER=docker`: the tests' Kafka as a container of Apache's own image, by testcontainers."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tests.broker.worker_places import Destination
from tests.kafka_broker import IMAGE, Kafka, origin, running_broker
from tests.processes import Process

QUIET = logging.getLogger("tests.librdkafka")

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def container() -> Iterator[Kafka]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("UOW_TEST_BOOTSTRAP", raising=False)
        patch.setenv("UOW_TEST_BROKER", "docker")
        assert origin() == "docker"
        before = running_containers()
        with running_broker() as kafka:
            yield kafka
        assert running_containers() == before


def running_containers() -> list[str]:
    command = ["docker", "ps", "-q", "--filter", f"ancestor={IMAGE}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def test_clients_of_this_machine_reach_it_and_topics_are_not_created_by_accident(container: Kafka, unique: str) -> None:
    cluster = AdminClient({"bootstrap.servers": container.bootstrap}, logger=QUIET).list_topics(unique, timeout=20)
    (broker,) = cluster.brokers.values()
    assert f"{broker.host}:{broker.port}" == container.bootstrap
    assert cluster.topics[unique].error is not None


def test_worker_assembles_on_it_and_survives_a_kill(
    container: Kafka, unique: str, tmp_path: Path, spawn: Callable[..., Process]
) -> None:
    place = Destination(container.bootstrap, unique, tmp_path, spawn)
    place.create()
    place.send_units(300)
    place.worker(wait=False, UOW_CRASH="offsets:1:9").child.wait(60)
    worker = place.worker()
    place.wait_delivered(300)
    assert worker.child.terminate() == 0
    place.verify()
