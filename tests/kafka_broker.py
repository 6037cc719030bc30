"""Where the tests' Kafka comes from: given, a container, or the embedded one."""

from __future__ import annotations

import gc
import io
import os
import tarfile
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.processes import PATIENCE_S, wait_for
from uow.embedded.broker import EmbeddedBroker
from uow.processor.kafka.error_table import is_passing

IMAGE = "apache/kafka:4.3.1"


class Kafka(Protocol):
    """All that a test may know about its broker."""

    @property
    def bootstrap(self) -> str: ...


class Given:
    """A broker somebody else runs, named by UOW_TEST_BOOTSTRAP; it allows sessions of a second (`group.min.session.timeout.ms`)."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap


@cache
def docker_answers() -> bool:
    """A Docker engine can be reached; asked once."""
    import docker
    from docker.errors import DockerException

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # a client that cannot connect leaves its socket open
        try:
            client = docker.from_env(timeout=5)
            try:
                return bool(client.ping())
            finally:
                client.close()
        except DockerException:
            return False
        finally:
            gc.collect()


def origin() -> str:
    """`given`, `docker` or `embedded`: what this run of the tests uses."""
    if os.environ.get("UOW_TEST_BOOTSTRAP"):
        return "given"
    wanted = os.environ.get("UOW_TEST_BROKER", "embedded")
    if wanted not in {"docker", "embedded"}:
        raise ValueError(f"UOW_TEST_BROKER is docker or embedded, not {wanted}")
    return "docker" if wanted == "docker" and docker_answers() else "embedded"


@contextmanager
def running_broker() -> Iterator[Kafka]:
    """The broker of this run, started if it has to be."""
    match origin():
        case "given":
            yield Given(os.environ["UOW_TEST_BOOTSTRAP"])
        case "docker":
            with apache_kafka() as container:
                yield container
        case _:
            with EmbeddedBroker(heap="512m") as broker:
                yield broker


@contextmanager
def apache_kafka(image: str = IMAGE) -> Iterator[Kafka]:
    """Apache's own image by testcontainers; its class for Kafka wants another vendor's."""
    # The reaper is an image of its own that has to be pulled; the context manager removes the container.
    os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.wait_strategies import LogMessageWaitStrategy

    settings: dict[str, Any] = {
        "NODE_ID": 1,
        "PROCESS_ROLES": "broker,controller",
        "LISTENERS": "EXT://:9092,INT://:19092,CTL://:9093",
        "LISTENER_SECURITY_PROTOCOL_MAP": "EXT:PLAINTEXT,INT:PLAINTEXT,CTL:PLAINTEXT",
        "INTER_BROKER_LISTENER_NAME": "INT",
        "CONTROLLER_LISTENER_NAMES": "CTL",
        "CONTROLLER_QUORUM_VOTERS": "1@localhost:9093",
        "AUTO_CREATE_TOPICS_ENABLE": "false",
        "OFFSETS_TOPIC_REPLICATION_FACTOR": 1,
        "OFFSETS_TOPIC_NUM_PARTITIONS": 4,
        "TRANSACTION_STATE_LOG_REPLICATION_FACTOR": 1,
        "TRANSACTION_STATE_LOG_MIN_ISR": 1,
        "TRANSACTION_STATE_LOG_NUM_PARTITIONS": 4,
        "GROUP_INITIAL_REBALANCE_DELAY_MS": 0,
        "GROUP_MIN_SESSION_TIMEOUT_MS": 1000,
        "HEAP_OPTS": "-Xmx512m -Xms256m",
        "OPTS": "-XX:TieredStopAtLevel=1",
    }
    # The mapped port is known only after the start: the command waits for a file that carries what to advertise.
    command = "while [ ! -f /go.sh ]; do sleep .05; done; . /go.sh; exec /etc/kafka/docker/run"
    container = DockerContainer(image).with_exposed_ports(9092).with_command(["sh", "-c", command])
    for name, value in settings.items():
        container.with_env(f"KAFKA_{name}", str(value))
    with container:
        bootstrap = f"{container.get_container_host_ip()}:{container.get_exposed_port(9092)}"
        advertised = f"export KAFKA_ADVERTISED_LISTENERS=EXT://{bootstrap},INT://localhost:19092\n".encode()
        container.get_wrapped_container().put_archive("/", _tar("go.sh", advertised))
        LogMessageWaitStrategy("Kafka Server started").with_startup_timeout(120).wait_until_ready(container)
        yield Given(bootstrap)


def _tar(name: str, content: bytes) -> bytes:
    with io.BytesIO() as out:
        with tarfile.TarFile(fileobj=out, mode="w") as archive:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
        return out.getvalue()


def committed_rows(bootstrap: str, group: str, places: Iterable[tuple[str, int]]) -> list[TopicPartition]:
    """What a group has committed at these topics and partitions, with all that is beside it; the only way a test looks at it.

    A coordinator that is new, or moves, answers a moment later: it is asked again. Of a transaction its end is waited for.
    """
    rows: list[TopicPartition] = []

    def answered() -> bool:
        try:
            rows[:] = consumer.committed([TopicPartition(*place) for place in asked], timeout=PATIENCE_S)
        except KafkaException as failure:
            if not is_passing(failure.args[0]):
                raise
            return False
        faults = [row.error for row in rows if row.error is not None]
        for fault in faults:
            if not is_passing(fault):
                raise KafkaException(fault)
        return not faults

    asked = list(places)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "isolation.level": "read_committed"})
    try:
        wait_for(answered, what=f"committed offsets of {group}")
    finally:
        consumer.close()
    return rows


def scratch_folders() -> set[Path]:
    """Scratch folders of embedded brokers that exist now."""
    return set(Path(tempfile.gettempdir()).glob("uow-broker-*"))
