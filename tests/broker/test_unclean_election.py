"""Acknowledged records that an unclean election takes: readers and workers say so, running or started later, also when the log has grown past them (F27)."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import NewTopic

import uow
from tests.broker.client_places import Topics
from tests.broker.cluster import Cluster
from tests.broker.worker_places import Destination, alter_topic
from tests.processes import PATIENCE_S, Process, wait_for
from uow import errors

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.drill, pytest.mark.timeout(600)]

KEPT, LOST, NEW = 5, 5, 12
"""Records on both replicas, on the one that is lost, and behind its successor's."""
UNCLEAN = {"unclean_leader_election_enable": "true", "min_insync_replicas": "1"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


@contextmanager
def elected_uncleanly(cluster: Cluster, topic: str, write: Callable[[], None]) -> Iterator[None]:
    """The follower stands aside while `write` writes; then it leads alone, and knows nothing of that."""

    def leads(number: int) -> bool:
        try:
            found = cluster.admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions[0]
        except KafkaException:
            return False
        return bool(found.leader == number and found.isrs == [number])

    first, second = cluster.nodes[2], cluster.nodes[3]
    second.stop()
    wait_for(lambda: leads(2), PATIENCE_S, "the follower is out of sync")
    write()
    first.kill()
    second.start()
    wait_for(lambda: leads(3), PATIENCE_S, "an unclean election")
    try:
        yield
    finally:
        first.start()


def make(cluster: Cluster, topic: str, **config: str) -> None:
    """On the two nodes that are not the controller; the first leads."""
    settings = {name.replace("_", "."): value for name, value in config.items()}
    cluster.admin.create_topics([NewTopic(topic, 1, replica_assignment=[[2, 3]], config=settings)])[topic].result(
        PATIENCE_S
    )
    wait_for(lambda: topic in cluster.admin.list_topics(timeout=PATIENCE_S).topics)


@pytest.mark.parametrize("count", [NEW, 1], ids=["the log has grown past it", "the position is behind the end"])
def test_readers_say_that_the_log_was_cut_off_and_pass_over_nothing_s33(
    cluster: Cluster, unique: str, count: int
) -> None:
    """One that runs, and one that is started later, at its committed offset."""
    topic, places = f"{unique}.records", Topics(cluster.nodes[1].bootstrap)
    make(cluster, topic, **UNCLEAN)

    def put(*names: str) -> None:
        places.put(topic, *((b"k", name.encode(), {"source": b"test"}) for name in names))

    def read(reader: uow.Reader[uow.Message], count: int) -> None:
        for _ in range(count):
            message = reader.receive(PATIENCE_S)
            assert message is not None
            message.acknowledge()

    heard: list[object] = []
    with uow.connect(places.bootstrap, reconnect_policy="all", listener=heard.append) as connection:
        running = connection.messages(topic, group="running")
        stopped = connection.messages(topic, group="stopped")
        put(*(f"kept {number}" for number in range(KEPT)))

        def write() -> None:
            put(*(f"lost {number}" for number in range(LOST)))
            for reader in (running, stopped):
                read(reader, KEPT + LOST)
            stopped.close()

        with elected_uncleanly(cluster, topic, write):
            put(*(f"new {number}" for number in range(count)))
            for reader in (running, connection.messages(topic, group="stopped")):
                with pytest.raises(errors.SubscriptionExpiredError):
                    read(reader, 1)
                with pytest.raises(errors.SubscriptionExpiredError):
                    reader.receive(1)
            wait_for(lambda: len(heard) >= 2, what="the listener hears of both")
            assert {type(each) for each in heard} == {errors.SubscriptionExpiredError}


@pytest.mark.parametrize("is_running", [True, False], ids=["running", "started later"])
def test_a_worker_blocks_a_partition_whose_log_was_cut_off_until_somebody_accepts_it(
    cluster: Cluster, unique: str, tmp_path: Path, spawn: Callable[..., Process], is_running: bool
) -> None:
    """The log has grown past its position. `uow doctor` says it too."""
    place = Destination(cluster.nodes[1].bootstrap, unique, tmp_path, spawn, partitions=1)
    make(cluster, place.components, message_timestamp_type="LogAppendTime", compression_type="uncompressed")
    place.create({"session_timeout_ms": 2_000})
    worker = place.worker()
    alter_topic(cluster.admin, place.components, **UNCLEAN)

    def send(what: str, count: int) -> None:
        place.send((f"{what}-{number}", 1, True) for number in range(count))

    def write() -> None:
        send("lost", LOST)
        place.wait_delivered(KEPT + LOST)
        if is_running:
            worker.child.signal(signal.SIGSTOP)
        else:
            assert worker.child.terminate() == 0

    send("kept", KEPT)
    place.wait_delivered(KEPT)
    with elected_uncleanly(cluster, place.components, write):
        send("new", NEW)
        alter_topic(cluster.admin, place.components, unclean_leader_election_enable="false", min_insync_replicas="2")
        worker.child.signal(signal.SIGCONT) if is_running else None
        worker = worker if is_running else place.worker("0", wait=False)
        worker.child.wait_output("the log was cut off before position 10, by an unclean election")
        assert len(place.delivered()) == KEPT + LOST
        assert worker.child.terminate() == 0
        doctor = place.spawn("uow", "doctor", "-c", place.config)
        assert doctor.wait() == 1
        assert "the log was cut off before position 10" in doctor.output

    position = TopicPartition(place.components, 0, KEPT + LOST)
    asked = ConsumerGroupTopicPartitions(f"A-{place.name}", [position])
    cluster.admin.alter_consumer_group_offsets([asked])[f"A-{place.name}"].result(PATIENCE_S)
    place.worker()
    place.wait_delivered(NEW + KEPT)
    assert {key for key in place.delivered() if key.startswith(b"new")} == {b"new-%d" % n for n in range(LOST, NEW)}
