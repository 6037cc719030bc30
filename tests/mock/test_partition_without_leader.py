"""What a sender meets when the partition of its id has no leader: it waits for that partition, and never takes another (W-108)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

import uow
from tests.mock.mock_cluster import PRODUCE, MockCluster
from tests.processes import PATIENCE_S
from uow import errors
from uow.client.kafka_port import Librdkafka, ProducerHandle
from uow.client.session_state import Waits
from uow.topics.partitioner import partition_for

TOPIC, UNIT_ID = "shop.components", "order-1"
HOME = partition_for(UNIT_ID.encode(), 2)


class Impatient(Librdkafka):
    """Real handles; a transaction, and with it each of its sends, has 1 s in place of 10."""

    def producer(self, properties: dict[str, Any], logger: logging.Logger) -> ProducerHandle:
        if "transactional.id" in properties:
            properties = properties | {"transaction.timeout.ms": 1000, "socket.timeout.ms": 1000}
        return super().producer(properties, logger)


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster(TOPIC) as running:
        yield running


@pytest.fixture
def connection(cluster: MockCluster) -> Iterator[uow.Connection]:
    with uow.connect(cluster.bootstrap, kafka_port=Impatient()) as opened:
        yield opened


def ends(cluster: MockCluster) -> dict[int, int]:
    """How many records each partition took."""
    reader = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "looks"})
    found = {
        number: reader.get_watermark_offsets(TopicPartition(TOPIC, number), timeout=PATIENCE_S)[1] for number in (0, 1)
    }
    reader.close()
    return found


def test_transactional_send_to_a_partition_without_leader_fails_after_the_delivery_timeout_w108(
    cluster: MockCluster, connection: uow.Connection
) -> None:
    cluster.lead(TOPIC, HOME, broker=-1)
    unit = connection.unit("shop", id=UNIT_ID)
    unit.__enter__()
    unit.send("x")
    unit.send("y")
    with pytest.raises(errors.TransactionRolledBackError, match="timed out"):
        unit.__exit__(None, None, None)
    cluster.lead(TOPIC, HOME)
    assert ends(cluster) == {0: 0, 1: 0}


def test_plain_send_to_a_partition_without_leader_is_not_given_up_by_time_w108(
    cluster: MockCluster, connection: uow.Connection
) -> None:
    """R-20, S-30: the call returns, the record stays under way, and calling again waits for the same one."""
    connection._session.life.waits = Waits(blocking_ms=1500)
    component = uow.Component("x")
    cluster.lead(TOPIC, HOME, broker=-1)
    with pytest.raises(errors.ReconnectTimeoutError, match="still under way"):
        connection.send("shop", component, id=UNIT_ID, seq=1)
    cluster.lead(TOPIC, HOME)
    connection._session.life.waits = Waits(blocking_ms=30_000)
    assert connection.send("shop", component, id=UNIT_ID, seq=1).partition == HOME
    assert ends(cluster) == {HOME: 1, 1 - HOME: 0}


def test_a_record_without_a_key_is_nowhere_twice_when_its_partition_loses_its_leader_r37(
    cluster: MockCluster, connection: uow.Connection
) -> None:
    """The library may choose any partition for it, once: whatever the brokers say then, it goes to that one."""
    sent = []
    for number in range(16):
        cluster.fail(PRODUCE, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION)
        sent.append(connection.send("shop", b"%d" % number, to=TOPIC))
    found = ends(cluster)
    assert min(found.values()) > 0, "both partitions were chosen"
    assert sum(found.values()) == len({(each.partition, each.offset) for each in sent}) == len(sent)
