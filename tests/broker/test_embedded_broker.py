"""The embedded broker: ready, restart, ports, folders, and its end in every way a process can end."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.kafka_broker import Kafka
from tests.processes import PATIENCE_S, Process, is_alive, wait_for
from uow.embedded.broker import (
    BrokerFailed,
    EmbeddedBroker,
    FolderInUse,
    PortTaken,
    class_archive,
)

pytestmark = pytest.mark.broker

QUIET = logging.getLogger("tests.librdkafka")


def create(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap}, logger=QUIET)
    for future in admin.create_topics([NewTopic(topic, 1)]).values():
        future.result(PATIENCE_S)


def write(bootstrap: str, topic: str, values: list[str], transactional_id: str = "writer") -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id}, logger=QUIET)
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value)
    producer.commit_transaction(PATIENCE_S)


def read(bootstrap: str, topic: str, count: int, group: str = "reader") -> list[str]:
    settings = {"group.id": f"{topic}-{group}", "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    consumer = Consumer({"bootstrap.servers": bootstrap, **settings}, logger=QUIET)
    got: list[str] = []

    def enough() -> bool:
        for message in consumer.consume(count, 0.2):
            value = message.value()
            assert message.error() is None
            assert value is not None
            got.append(value.decode())
        return len(got) >= count

    try:
        consumer.subscribe([topic])
        wait_for(enough, PATIENCE_S, lambda: f"{count} records, got {len(got)}")
    finally:
        consumer.close()
    return got


def test_a_transaction_comes_back_whole(broker: Kafka, create_topic: Callable[..., str], unique: str) -> None:
    topic = create_topic(partitions=1)
    values = [str(n) for n in range(100)]
    write(broker.bootstrap, topic, values, unique)
    assert read(broker.bootstrap, topic, 100) == values


def test_topics_are_not_created_by_accident(broker: Kafka, admin: Any, unique: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "message.timeout.ms": 1000}, logger=QUIET)
    producer.produce(unique, b"x")
    producer.flush(5)
    assert unique not in admin.list_topics(timeout=PATIENCE_S).topics


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[EmbeddedBroker]]:
    """Two brokers that were started at once, each in a folder of its own."""
    brokers = [EmbeddedBroker(tmp_path_factory.mktemp(name), heap="256m") for name in "ab"]
    try:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(EmbeddedBroker.start, brokers))
        yield brokers
    finally:
        for each in brokers:
            each.close()


def test_two_start_at_once_on_ports_of_their_own(pair: list[EmbeddedBroker]) -> None:
    assert len({each.port for each in pair}) == 2
    assert all(each.is_running for each in pair)


def session_ms(broker: EmbeddedBroker) -> int:
    """For how long its controller lets it be silent."""
    lines = (broker.folder / "server.properties").read_text().splitlines()
    return int(dict(line.split("=", 1) for line in lines)["broker.session.timeout.ms"])


def test_data_and_port_survive_stop_and_kill(tmp_path: Path) -> None:
    """A busy machine may keep it silent for a minute without its topics losing their leader; one that was killed need not wait as long for itself."""
    with EmbeddedBroker(tmp_path, heap="256m") as broker:
        before = broker.bootstrap
        assert session_ms(broker) == 60_000
        create(before, "kept")
        write(before, "kept", ["a", "b"])
        assert read(before, "kept", 2, "before") == ["a", "b"]  # the end of the transaction is on disk
        broker.kill()
        broker.start()
        assert (broker.bootstrap, session_ms(broker)) == (before, 3_000)
        assert read(before, "kept", 2) == ["a", "b"]
        broker.stop()
        assert not broker.is_running
    with EmbeddedBroker(tmp_path, heap="256m") as other:
        assert session_ms(other) == 60_000
        assert read(other.bootstrap, "kept", 0) == []
        assert (
            "kept"
            in AdminClient({"bootstrap.servers": other.bootstrap}, logger=QUIET).list_topics(timeout=PATIENCE_S).topics
        )


def test_a_taken_port_is_said_at_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = int(other.getsockname()[1])
        with pytest.raises(PortTaken) as caught:
            EmbeddedBroker(tmp_path, port=port).start()
    assert caught.value.port == port


def test_a_folder_in_use_is_refused(pair: list[EmbeddedBroker], monkeypatch: pytest.MonkeyPatch) -> None:
    second = EmbeddedBroker(pair[0].folder)
    monkeypatch.setattr("uow.embedded.broker.FOLDER_PATIENCE_SECONDS", 0.2)
    with pytest.raises(FolderInUse) as caught:
        second.start()
    assert caught.value.folder == pair[0].folder


def test_a_setting_kafka_refuses_shows_its_words(tmp_path: Path) -> None:
    with pytest.raises(BrokerFailed, match=r"ConfigException|num\.partitions") as caught:
        EmbeddedBroker(tmp_path, settings={"num.partitions": "none"}).start()
    assert caught.value.log == tmp_path / "server.log"


def test_a_broker_starts_with_the_class_archive_that_setup_made(pair: list[EmbeddedBroker]) -> None:
    if not class_archive().exists():
        pytest.skip("`make setup` makes it")
    mapped = {each.path for each in psutil.Process(pair[0].pid).memory_maps()}
    assert str(class_archive()) in mapped


def test_a_class_archive_that_is_damaged_costs_time_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = tmp_path / "classes.jsa"
    damaged.write_bytes(b"no archive" * 1000)
    monkeypatch.setattr("uow.embedded.broker.class_archive", lambda: damaged)
    with EmbeddedBroker(tmp_path / "data", heap="256m") as running:
        create(running.bootstrap, "kept")
        assert "cds" not in running.log.read_text()


def test_an_abandoned_scratch_folder_is_removed_by_the_next_broker() -> None:
    abandoned, fresh = EmbeddedBroker(), EmbeddedBroker()
    try:
        assert abandoned.folder.exists()  # the second saw it, and found it young
        os.utime(abandoned.folder, (0, 0))
        EmbeddedBroker().close()
        assert not abandoned.folder.exists()
        assert fresh.folder.exists()
    finally:
        abandoned.close()
        fresh.close()


def test_a_stopped_broker_keeps_its_scratch_folder_from_others_and_takes_it_along_in_the_end() -> None:
    """Found by `uow prove`: a demo that began while a broker was between stop and start took its data away."""
    with EmbeddedBroker(heap="256m") as broker:
        before = broker.bootstrap
        create(before, "kept")
        broker.stop()
        os.utime(broker.folder, (0, 0))
        EmbeddedBroker().close()  # sweeps what nobody holds
        assert (broker.folder / "data").is_dir()
        broker.start()
        assert broker.bootstrap == before
        assert read(before, "kept", 0) == []
        assert broker.log.exists()
    assert not broker.folder.exists()


def test_only_the_loopback_interface_listens(pair: list[EmbeddedBroker]) -> None:
    listening = [each for each in psutil.Process(pair[0].pid).net_connections("inet") if each.status == "LISTEN"]
    addresses = {str(each.laddr.ip).removeprefix("::ffff:") for each in listening}
    assert addresses == {"127.0.0.1"}


@pytest.mark.parametrize("folder", ["kept", "scratch"])
def test_a_killed_owner_takes_the_broker_along(tmp_path: Path, folder: str) -> None:
    code = (
        "import sys, time; from uow.embedded.broker import EmbeddedBroker\n"
        "broker = EmbeddedBroker(*sys.argv[1:], heap='256m').start()\n"
        "print(broker.pid, broker.folder, flush=True); time.sleep(600)"
    )
    arguments = [str(tmp_path / "data")] if folder == "kept" else []
    with subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid, used = owner.stdout.readline().split()
        owner.kill()
    wait_for(lambda: not is_alive(int(pid)), PATIENCE_S, "the end of Kafka")
    if folder == "scratch":
        wait_for(lambda: not Path(used).exists(), PATIENCE_S, "the scratch folder's removal")
    else:
        with EmbeddedBroker(used, heap="256m") as again:
            assert again.is_running


SERVE = "import sys; from uow.embedded.broker import *; sys.exit(serve(0, *sys.argv[1:], heap='256m', tier=Tier.QUICK))"


def kafka_below(pid: int) -> int:
    """The process id of the JVM somewhere below a process."""
    return next(each.pid for each in psutil.Process(pid).children(recursive=True) if "java" in each.name())


def test_served_in_the_foreground_until_asked_to_end(spawn: Callable[..., Process], tmp_path: Path) -> None:
    child = spawn("uow", "broker", "--port", "0", "--dir", tmp_path / "data")
    ready = child.wait_output("broker ready on")
    host, port = ready.removeprefix("broker ready on ").split(":")
    socket.create_connection((host, int(port)), 5).close()
    kafka = kafka_below(child.pid)
    assert child.terminate() == 0
    assert child.output == ready + "\n"
    assert not is_alive(kafka)


def test_asked_to_end_while_starting_it_ends(spawn: Callable[..., Process], tmp_path: Path) -> None:
    child = spawn("python", "-c", SERVE, tmp_path / "data")
    log = tmp_path / "data" / "server.log"
    wait_for(lambda: log.exists(), PATIENCE_S, "a start")
    child.signal(signal.SIGINT)
    assert child.wait() == 0
    assert "ready" not in child.output


def test_served_ends_with_status_1_when_kafka_dies(spawn: Callable[..., Process]) -> None:
    child = spawn("python", "-c", SERVE)
    child.wait_output("broker ready on")
    os.kill(kafka_below(child.pid), signal.SIGKILL)
    assert child.wait() == 1
    assert "Kafka ended by itself" in child.output


@pytest.mark.parametrize("killed", ["itself", "its parent"])
def test_a_served_broker_leaves_no_kafka_behind(spawn: Callable[..., Process], killed: str) -> None:
    # the shell stays the parent: a last command would replace it
    shell = f'"{sys.executable}" -c "{SERVE}" </dev/null; true'
    child = spawn("sh", "-c", shell)
    child.wait_output("broker ready on")
    served = psutil.Process(child.pid).children()[0].pid
    kafka = kafka_below(served)
    os.kill(served if killed == "itself" else child.pid, signal.SIGKILL)
    wait_for(lambda: not is_alive(kafka) and not is_alive(served), PATIENCE_S, "the end of Kafka")
