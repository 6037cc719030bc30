"""Clients on three real brokers, replication 3: leaders and coordinators die, stand still and move under load; too few replicas are in sync."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import KafkaException

import uow
from tests.broker.client_places import Topics
from tests.broker.cluster import Cluster
from tests.processes import PATIENCE_S, wait_for
from uow import errors
from uow.prove.client_round import play
from uow.prove.faults import FaultKind
from uow.prove.round import RoundCluster

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.drill, pytest.mark.timeout(900)]

MARK = {"source": "test"}
"""Of a record without headers, a reader looks a second time if they are hidden."""
PROGRAMS = (FaultKind.KILL, FaultKind.FREEZE, FaultKind.STORM)
BROKERS = (FaultKind.BROKER_KILL, FaultKind.BROKER_STOP, FaultKind.BROKER_FREEZE)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


@pytest.mark.parametrize(("number", "seed"), [(2, 21), (3, 22)])
def test_nothing_is_lost_doubled_or_overtaken_while_leaders_and_coordinators_move(
    cluster: Cluster, tmp_path: Path, number: int, seed: int
) -> None:
    """F1, F7 to F12, F15, R-01, R-16, R-57: one of three brokers fails again and again, and so do producers, forwarders and readers."""
    running = RoundCluster(cluster.bootstrap, broker=cluster.nodes[number])
    result = play(running, tmp_path / "round", seed, [*PROGRAMS, *BROKERS], 24, math.inf)
    assert not result.findings.anomalies, result.findings.texts
    assert {"broker-kill", "broker-freeze"} <= result.faults.keys()


def test_senders_and_a_reader_of_six_partitions_go_on_when_a_leader_dies_r55_r60(cluster: Cluster, unique: str) -> None:
    """F1: no error below the blocking time. How long it took from the new leader's election is printed."""
    topics, other = Topics(cluster.bootstrap), cluster.nodes[1].bootstrap
    topics.make(f"{unique}.components", partitions=6)
    leaders = {number: cluster.leader(f"{unique}.components", number) for number in range(6)}
    partition = next(number for number, leader in leaders.items() if leader != 1)
    victim = cluster.nodes[leaders[partition]]
    sent: list[tuple[float, uow.Sent]] = []
    seen: set[bytes | None] = set()
    stop = threading.Event()
    with (
        uow.connect(cluster.bootstrap, reconnect_policy="all") as connection,
        connection.messages(f"{unique}.components", group=unique) as reader,
    ):

        def send() -> None:
            for number in itertools.count():
                if stop.is_set():
                    return
                place = connection.send(unique, str(number), key=str(number), headers=MARK)
                sent.append((time.monotonic(), place))
                time.sleep(0.005)

        def read() -> None:
            while not stop.is_set() or len(seen) < len(sent):
                message = reader.receive(1)
                if message is not None:
                    seen.add(message.value)
                    with suppress(errors.LostServerError):
                        message.acknowledge()

        threads = [threading.Thread(target=each) for each in (send, read)]
        for thread in threads:
            thread.start()
        wait_for(lambda: len(seen) > 50)
        victim.kill()

        def is_elected() -> bool:
            with suppress(KafkaException):
                return cluster.leader(f"{unique}.components", partition) not in (-1, victim.number)
            return False

        wait_for(is_elected, PATIENCE_S, f"a new leader, asked at {other}")
        elected = time.monotonic()
        wait_for(lambda: any(at > elected and place.partition == partition for at, place in sent))
        first = min(at for at, place in sent if at > elected and place.partition == partition)
        print(f"sent to the new leader {first - elected:.2f} s after it was seen to be elected")
        victim.start()
        stop.set()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert not any(thread.is_alive() for thread in threads)
        assert connection.state is uow.ConnectionState.CONNECTED
    values = [record.value() for record in topics.read(f"{unique}.components")]
    assert sorted(values, key=lambda value: int(value or b"0")) == [str(number).encode() for number in range(len(sent))]
    assert seen == {*values}


def test_too_few_replicas_in_sync_hold_a_record_back_and_roll_a_unit_back_r13(cluster: Cluster, unique: str) -> None:
    """F19: certainly not visible meanwhile, and there once when replicas are back."""
    topics = Topics(cluster.bootstrap)
    topics.make(f"{unique}.components", partitions=1)
    with uow.connect(cluster.bootstrap) as connection:
        connection.send(unique, "before")
        for number in (2, 3):
            cluster.nodes[number].stop()
        component = uow.Component("held back")
        with pytest.raises(errors.ReconnectTimeoutError, match="still under way") as raised:
            connection.send(unique, component)
        with (
            pytest.raises((errors.TransactionRolledBackError, errors.ReconnectTimeoutError)),
            connection.unit(unique, id="a") as unit,
        ):
            unit.send("rolled back")
        assert connection.state is uow.ConnectionState.CONNECTED
        for number in (2, 3):
            cluster.nodes[number].start()
        raised.value.pending.wait(PATIENCE_S)
        with connection.unit(unique, id="a") as unit:
            unit.send("again")
    assert [record.value() for record in topics.read(f"{unique}.components")] == [b"before", b"held back", b"again"]
