"""Headers that the Kafka client does not show, against librdkafka itself: it is asked what it can tell."""

from __future__ import annotations

from collections.abc import Iterator

import confluent_kafka as ck
import pytest

from tests.mock.mock_cluster import MockCluster
from tests.mock.test_values_read_back import read_all
from tests.processes import PATIENCE_S
from uow.processor.engine.ports import (
    Doubt,
    Output,
    Plan,
    Tp,
)
from uow.processor.kafka.clients import Clients
from uow.processor.kafka.contents import KafkaContents
from uow.processor.kafka.sink import KafkaSink
from uow.processor.kafka.worker_settings import WorkerSettings
from uow.topics.catalogue import HEADERS_LIMIT

HEADERS = (0, HEADERS_LIMIT + 1, 1, 0, HEADERS_LIMIT, HEADERS_LIMIT + 5, 0)


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster("in", partitions=2) as running:
        producer = ck.Producer({"bootstrap.servers": running.bootstrap})
        for partition in (0, 1):
            for count in HEADERS if partition == 0 else (0, 0):
                producer.produce("in", b"v", partition=partition, headers=[("h", b"")] * count)
        assert not producer.flush(PATIENCE_S)
        yield running


def contents_of(cluster: MockCluster, answer_s: float = 10.0) -> KafkaContents:
    return KafkaContents(Clients(WorkerSettings("A", cluster.bootstrap, "0")), answer_s)


def shown(cluster: MockCluster) -> list[int | None]:
    """How many headers the client shows of each record."""
    consumer = ck.Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "look"})
    consumer.assign([ck.TopicPartition("in", 0, 0)])
    found: list[int | None] = []
    while len(found) < len(HEADERS):
        for record in consumer.consume(len(HEADERS), 10.0):
            headers = record.headers()
            found.append(None if headers is None else len(headers))
    consumer.close()
    return found


def test_the_client_shows_too_many_headers_as_none_and_the_library_tells_them_apart(cluster: MockCluster) -> None:
    assert shown(cluster) == [None, None, 1, None, HEADERS_LIMIT, None, None]
    contents = contents_of(cluster)
    bare = [0, 1, 3, 5, 6]
    assert contents.hidden(Tp("in", 0), bare) == {1, 5}
    assert contents.hidden(Tp("in", 1), [0, 1]) == set()
    assert contents.hidden(Tp("in", 0), [5]) == {5}
    assert contents.hidden(Tp("in", 0), [0, 99]) == set()
    contents.close()


def test_what_comes_later_is_looked_at_where_the_look_before_ended(cluster: MockCluster) -> None:
    """Whoever asks record by record pays no jump for each; that the log had ended there before means nothing."""
    contents = contents_of(cluster)
    assert [contents.hidden(Tp("in", 0), [offset]) for offset in (5, 6)] == [{5}, set()]
    producer = ck.Producer({"bootstrap.servers": cluster.bootstrap})
    for count in (HEADERS_LIMIT + 1, 0):
        producer.produce("in", b"v", partition=0, headers=[("h", b"")] * count)
    assert not producer.flush(PATIENCE_S)
    assert [contents.hidden(Tp("in", 0), [offset]) for offset in (7, 8, 3)] == [{7}, set(), set()]
    contents.close()


def test_a_broker_that_does_not_answer_is_a_doubt(cluster: MockCluster) -> None:
    contents = contents_of(cluster, 0.3)
    cluster.down()
    with pytest.raises(Doubt, match="in/0/1 was not read again"):
        contents.hidden(Tp("in", 0), [1])
    contents.close()


def test_a_sink_writes_what_is_hidden_to_rejected_and_the_rest_where_it_passes() -> None:
    """In one transaction, the records asked about while it is open."""
    with MockCluster("in", "units", "rejected", "commands", "changelog", "ledger") as cluster:
        producer = ck.Producer({"bootstrap.servers": cluster.bootstrap})
        for count in (0, HEADERS_LIMIT + 1, 0):
            producer.produce("in", b"v", partition=0, headers=[("h", b"")] * count)
        assert not producer.flush(PATIENCE_S)
        settings = WorkerSettings("A", cluster.bootstrap, "0")
        clients = Clients(settings)
        sink, group = KafkaSink(clients, settings), clients.group_consumer()
        sink.open()
        plan = Plan(Tp("in", 0), "changelog", "ledger", 3, "commands", 0, rejected_topic="rejected")
        for offset in range(3):
            plan.bare[len(plan.outputs)] = offset
            plan.outputs.append(Output("units", 0, b"k", b"v%d" % offset, []))
        sink.write([plan], group.consumer_group_metadata())
        assert [record.value() for record in read_all(cluster, "units")] == [b"v0", b"v2"]
        (refused,) = read_all(cluster, "rejected")
        assert (refused.value(), dict(refused.headers())["uow-source"]) == (b"v1", b"in/0/1")
        sink.close()
        group.close()
