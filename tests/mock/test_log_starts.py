"""A broker that refuses an offset for a moment, as while a leader moves, makes no log look empty: the records are there."""

from __future__ import annotations

from collections.abc import Iterator

import confluent_kafka as ck
import pytest

from tests.mock.mock_cluster import MockCluster
from tests.processes import PATIENCE_S
from uow.client.kafka_port import log_start
from uow.spark_sink.kafka import (
    Cluster,
    OffsetSpan,
    begins,
    committed,
    within,
)

LIST_OFFSETS, TOPIC = 2, "D.components"
REFUSALS = ["NOT_LEADER_FOR_PARTITION", "NETWORK_EXCEPTION", "OFFSET_NOT_AVAILABLE", "KAFKA_STORAGE_ERROR"]


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster(TOPIC, partitions=1) as running:
        producer = ck.Producer({"bootstrap.servers": running.bootstrap})
        for number in range(3):
            producer.produce(TOPIC, b"%d" % number, partition=0)
        assert producer.flush(PATIENCE_S) == 0
        yield running


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("code", REFUSALS)
def test_sink_and_audit_ask_again_where_a_log_begins(cluster: MockCluster, code: str, times: int) -> None:
    """The audit read nothing, and units lost the components that they refer to."""
    refusals = [getattr(ck.KafkaError, code)] * times
    asked = Cluster(cluster.bootstrap)
    cluster.fail(LIST_OFFSETS, *refusals)
    assert begins(asked, TOPIC) == {0: 0}
    cluster.fail(LIST_OFFSETS, *refusals)
    assert within(asked, TOPIC, {0: (1, 9), 7: (0, 1)}) == OffsetSpan({0: 1}, {0: 3})
    cluster.fail(LIST_OFFSETS, *refusals)
    assert committed(asked, "A", TOPIC).start == {0: 0}


def test_nothing_is_there_of_a_partition_that_is_not(cluster: MockCluster) -> None:
    """Anybody may write a reference to one."""
    assert within(Cluster(cluster.bootstrap), TOPIC, {7: (0, 1)}) == OffsetSpan({}, {})


def test_refusal_that_does_not_pass_is_raised(cluster: MockCluster) -> None:
    cluster.fail(LIST_OFFSETS, ck.KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(ck.KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        begins(Cluster(cluster.bootstrap), TOPIC)


@pytest.mark.parametrize("code", REFUSALS)
def test_reader_is_not_told_that_a_log_begins_at_its_end(cluster: MockCluster, code: str) -> None:
    """What it would take for gone is skipped (`test_a_leader_that_moves_makes_no_gap_longer`)."""
    reader = ck.Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g"})
    try:
        cluster.fail(LIST_OFFSETS, getattr(ck.KafkaError, code))
        with pytest.raises(ck.KafkaException):
            log_start(reader, (TOPIC, 0))
        assert log_start(reader, (TOPIC, 0)) == 0
    finally:
        reader.close()
