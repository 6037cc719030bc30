"""A plain producer under strict order: whatever fails, the log is a prefix of what was sent (S-30)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

import uow
from tests.mock.mock_cluster import PRODUCE, MockCluster
from tests.processes import PATIENCE_S
from uow import errors
from uow.client.strict_log import record_of
from uow.topics.policies import StrictProducers
from uow.topics.strict_registry import Era, EraTopic, StrictRules

INPUT, REGISTRY = "d.components", "d.registry"


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster(INPUT, partitions=1) as cluster:
        cluster.create(REGISTRY, 1)
        with uow.connect(cluster.bootstrap) as connection:
            era = Era(1, {INPUT: EraTopic("", (0,))}, 1, "a test", "me")
            for entry in (StrictRules(strict_producers=StrictProducers.PLAIN), era):
                connection.send_again("registry", record_of("d", entry))
        yield cluster


def log_of(cluster: MockCluster, topic: str = INPUT) -> list[bytes | None]:
    reader = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "look",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    reader.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes | None] = []
    while (record := reader.poll(PATIENCE_S)) is not None and record.error() is None:
        found.append(record.key() if topic == REGISTRY else record.value())
    reader.close()
    return found


def test_a_record_that_is_refused_lets_no_later_one_pass_until_it_is_sent_again(cluster: MockCluster) -> None:
    with uow.connect(cluster.bootstrap) as connection:
        connection.send("d", "0")
        cluster.fail(PRODUCE, KafkaError.MSG_SIZE_TOO_LARGE)
        with pytest.raises(errors.SendRejectedError):
            connection.send("d", "1")
        for value in "234":
            with pytest.raises(errors.OrderBlockedError, match="nothing may pass it"):
                connection.send("d", value)
        assert log_of(cluster) == [b"0"]
        assert connection.resend("d") is not None
        assert connection.resend("d") is None
        connection.send("d", "2")
    assert log_of(cluster) == [b"0", b"1", b"2"]


def test_a_record_that_is_given_up_leaves_a_recorded_gap(cluster: MockCluster) -> None:
    with uow.connect(cluster.bootstrap, client_id="till") as connection:
        cluster.fail(PRODUCE, KafkaError.MSG_SIZE_TOO_LARGE)
        with pytest.raises(errors.SendRejectedError):
            connection.send("d", "0")
        with pytest.raises(errors.ConfigError):
            connection.skip("d", why="")
        assert connection.skip("d", why="too large for anybody")
        assert not connection.skip("d", why="again")
        connection.send("d", "1")
    assert log_of(cluster) == [b"1"]
    assert log_of(cluster, REGISTRY)[-1].startswith(b"gap/producer/d.components/0/")  # type: ignore[union-attr]


def test_an_outage_keeps_the_order_and_the_same_component_is_sent_once(cluster: MockCluster) -> None:
    with uow.connect(cluster.bootstrap, reconnect_blocking_ms=500) as connection:
        connection.send("d", "0")
        cluster.down()
        waiting = uow.Component("1")
        with pytest.raises(errors.ReconnectTimeoutError) as late:
            connection.send("d", waiting)
        with pytest.raises(errors.OrderBlockedError):
            connection.send("d", "2")
        with pytest.raises(errors.OrderBlockedError, match="still under way"):
            connection.skip("d", why="it may be written yet")
        with pytest.raises(errors.ReconnectTimeoutError):
            connection.send("d", waiting)
        cluster.up()
        assert late.value.pending is not None
        late.value.pending.wait(PATIENCE_S)
        assert connection.resend("d") is None
        connection.send("d", "2")
    assert log_of(cluster) == [b"0", b"1", b"2"]


def test_both_ways_of_sending_from_one_client_are_refused(cluster: MockCluster) -> None:
    """S-24."""
    with uow.connect(cluster.bootstrap) as connection:
        connection.send("d", "0")
        with pytest.raises(errors.OrderConfigError, match="record by record"), connection.unit("d") as unit:
            unit.send("1")
    assert log_of(cluster) == [b"0"]
