"""Production workers on three real brokers, replication 3: leaders move, replicas and leaders stand still, markers come late, a worker is killed."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ElectionType, KafkaException, Producer

from tests.broker.cluster import Cluster
from tests.broker.routed_places import RoutedPlace
from tests.broker.worker_places import Destination, alter_topic
from tests.conftest import QUIET
from tests.processes import PATIENCE_S, Process, wait_for

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


class Weather:
    """What happens to the cluster, and to the workers, while units are sent.

    Args:
        cluster: The brokers.
        place: The destination.
        seed: Of the choices.
    """

    def __init__(self, cluster: Cluster, place: Destination, seed: int) -> None:
        self.cluster, self.place, self.rnd = cluster, place, random.Random(seed)
        self.sent = self.batch = 0
        self.moves = 0

    def send(self, count: int = 150) -> None:
        """Units; acknowledged by the replicas in sync when it returns."""
        self.batch += 1
        self.place.send_units(count, seed=self.batch)
        self.sent += count

    def slow_replica(self) -> None:
        """One node answers nothing for less than a session: what is written waits for it, markers as well, its leaders stay its own."""
        with self.cluster.frozen(self.rnd.choice((2, 3))):
            self.send(50)

    def leaders_stand_still(self) -> None:
        """One node stands still until others lead in its place, and wakes up as one that believes to lead."""
        number = self.rnd.choice((2, 3))
        led = self.led_by(number)
        with self.cluster.frozen(number):
            wait_for(lambda: not self.led_by(number), PATIENCE_S, f"leaders move away from {number}")
            self.send()
        self.moves += len(led)
        self.lead_again()

    def restart(self) -> None:
        """One node is stopped in order, and comes back."""
        node = self.cluster.nodes[self.rnd.choice((2, 3))]
        self.moves += len(self.led_by(node.number))
        node.stop()
        self.send()
        node.start()
        self.lead_again()

    def kill_worker(self) -> None:
        """kill -9 of a worker while a replica is slow: its successor waits for markers, and restores from moved leaders."""
        worker = self.place.workers.pop(0)
        with self.cluster.frozen(self.rnd.choice((2, 3))):
            worker.child.kill()
            self.send(50)
        self.place.worker(worker.worker_name, wait=False)
        self.send()

    def led_by(self, number: int) -> set[tuple[str, int]]:
        """Partitions that a node leads. Who is asked may be the node that stands still: another one is asked then."""
        found: list[Any] = []

        def are_told() -> bool:
            with suppress(KafkaException):
                found.append(self.cluster.admin.list_topics(timeout=5).topics)
            return bool(found)

        wait_for(are_told, 90, "a broker that answers")
        topics = found[0]
        return {
            (name, partition)
            for name, topic in topics.items()
            for partition, found in topic.partitions.items()
            if found.leader == number
        }

    def lead_again(self) -> None:
        """Every partition is led by its first replica again, as soon as that has caught up: once more leaders move.

        The client may ask over a connection of before, which ends meanwhile: it is asked again.
        """

        def elected() -> bool:
            with suppress(KafkaException):
                self.cluster.admin.elect_leaders(ElectionType.PREFERRED, None).result(PATIENCE_S)
            return bool(self.led_by(2) and self.led_by(3))

        wait_for(elected, PATIENCE_S, "preferred leaders")


def play(cluster_faults: Weather, kinds: list[Callable[[Weather], None]]) -> None:
    """Two workers, one kind of weather after another, then the account: every unit once, whole, in order, and nothing besides."""
    place = cluster_faults.place
    place.create(
        {
            "transaction_timeout_ms": 10_000,
            "replay_limit_records": 300,
            "replay_limit_bytes": 10**6,
            "replay_limit_ms": 2_000,
        }
    )
    for worker_name in ("a", "b"):
        place.worker(worker_name, wait=False)
    cluster_faults.send()
    place.wait_delivered(cluster_faults.sent, 120)
    for kind in kinds:
        kind(cluster_faults)
    place.wait_delivered(cluster_faults.sent, 180)
    place.verify()
    assert cluster_faults.moves > 0
    place.check_account()


@pytest.fixture
def cluster_faults(
    cluster: Cluster, unique: str, tmp_path: Path, spawn: Callable[..., Process], request: pytest.FixtureRequest
) -> Weather:
    return Weather(cluster, Destination(cluster.bootstrap, unique, tmp_path, spawn), getattr(request, "param", 1))


def test_units_come_out_once_while_leaders_move_and_replicas_are_slow(cluster_faults: Weather) -> None:
    play(cluster_faults, [Weather.slow_replica, Weather.leaders_stand_still, Weather.kill_worker, Weather.restart])


@pytest.mark.drill
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("cluster_faults", [7], indirect=True)
def test_units_come_out_once_in_a_long_storm_over_three_brokers(cluster_faults: Weather) -> None:
    kinds = [Weather.slow_replica, Weather.leaders_stand_still, Weather.kill_worker, Weather.restart]
    play(cluster_faults, cluster_faults.rnd.choices(kinds, k=int(os.environ.get("UOW_DRILL_TIMES", "1000")) // 25))


def test_component_in_time_that_a_slow_replica_holds_back_makes_its_unit(
    cluster: Cluster, unique: str, tmp_path: Path, spawn: Callable[..., Process]
) -> None:
    """W-82: brokers tell an end offset below what is not replicated yet; the deadline passes meanwhile."""
    place = Destination(cluster.bootstrap, unique, tmp_path, spawn, partitions=1)
    place.create(incomplete_expiration_ms=IN_TIME_MS, expiration_policy="redirect")
    place.worker()
    place.send([("first", 1, True)])
    place.wait_delivered(1)
    with follower(cluster) as slow:
        for attempt in range(5):
            name = f"u{attempt}"
            before = place.committed()
            place.send([(name, 1, False)])
            wait_for(lambda before=before: place.committed() > before)
            with cluster.frozen(slow):
                appended_at = unreplicated(place, name, 2)
                wait_for(lambda name=name: name.encode() in place.delivered() or errors(place, name))
            opened_at = next(
                record.timestamp()[1] for record in place.read(place.components) if record.key() == name.encode()
            )
            if appended_at - opened_at < IN_TIME_MS:
                assert name.encode() in place.delivered()
                assert not errors(place, name)
                return
    raise AssertionError("no second component was in time: this machine is too slow")


IN_TIME_MS = 3_000
"""Shorter than `replica.lag.time.max.ms`: the deadline passes while the record is held back."""


@contextmanager
def follower(cluster: Cluster) -> Iterator[int]:
    """A node that leads nothing and has everything: stopped in order, and back. Only what is replicated waits for it, nobody's questions do."""

    with stopped(cluster, 3):
        pass
    try:
        yield 3
    finally:
        cluster.admin.elect_leaders(ElectionType.PREFERRED, None).result(PATIENCE_S)


@contextmanager
def stopped(cluster: Cluster, number: int) -> Iterator[None]:
    """A node is stopped in order meanwhile; afterwards it has everything again."""

    def is_back() -> bool:
        topics = cluster.admin.list_topics(timeout=PATIENCE_S).topics.values()
        return all(number in found.isrs for topic in topics for found in topic.partitions.values())

    cluster.nodes[number].stop()
    try:
        yield
    finally:
        cluster.nodes[number].start()
        wait_for(is_back, PATIENCE_S, "everything on the node that was stopped")


def unreplicated(place: Destination, name: str, seq: int) -> int:
    """Appends the last component, acknowledged by the leader alone. When."""
    at: list[int] = []
    producer = Producer({"bootstrap.servers": place.bootstrap, "acks": "1", "linger.ms": 0}, logger=QUIET)
    headers = [("uow-id", name.encode()), ("uow-seq", b"%d" % seq), ("uow-end", b"true")]
    place.sent[name.encode()][seq], place.ends[name.encode()] = b"late", seq
    producer.produce(
        place.components,
        b"late",
        name.encode(),
        0,
        headers=headers,
        on_delivery=lambda _, sent: at.append(sent.timestamp()[1]),
    )
    assert not producer.flush(PATIENCE_S)
    return at[0]


def errors(place: Destination, name: str) -> bool:
    """Whether the group was given up."""
    return any(record.key() == name.encode() for record in place.read(f"{place.name}.errors"))


def test_a_target_with_too_few_replicas_holds_up_its_own_units_alone_b57(
    cluster: Cluster, unique: str, tmp_path: Path, spawn: Callable[..., Process]
) -> None:
    """The marker of a transaction needs the replicas as well: until they are back nobody gets another one under its transactional id."""
    place = Destination(cluster.bootstrap, unique, tmp_path, spawn, partitions=2)
    routed = RoutedPlace(place, {"events": 1})
    routed.put_rules({name: {"target_topic": name.lower(), "complete_count": 2} for name in ("UK", "Spain")})
    routed.create({"transaction_timeout_ms": 4_000})
    uk, spain = routed.topic("uk"), routed.topic("spain")
    alter_topic(cluster.admin, uk, min_insync_replicas="3")
    worker = place.worker()

    def send(name: str, units: int = 1) -> None:
        routed.send([("events", name, b"<Test/>")] * 2 * units)

    def wait_out(topic: str, count: int) -> None:
        wait_for(lambda: len(place.read(topic)) == count, what=lambda: worker.child.output)

    send("UK")
    wait_out(uk, 1)
    with stopped(cluster, 3):
        send("UK", 2)
        worker.child.wait_output("uk has 2 replicas in sync")
        send("Spain")
        wait_out(spain, 1)
        worker.child.kill()
        worker = place.worker()
        send("Spain")
        wait_out(spain, 2)
        assert len(place.read(uk)) == 1
    wait_out(uk, 3)
    send("UK")
    wait_out(uk, 4)
    assert [dict(each.headers())["uow-generation"] for each in place.read(uk)] == [b"1", b"2", b"3", b"4"]
    assert worker.child.terminate(PATIENCE_S) == 0
