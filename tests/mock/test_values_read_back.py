"""Values read back from a mock cluster: jumps, what is gone, and a broker that does not answer (W-117)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import confluent_kafka as ck
import pytest

from tests.fake_record import FakeRecord
from tests.mock.mock_cluster import MockCluster
from tests.processes import PATIENCE_S
from uow.processor.engine import external_values as external
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
from uow.schemas.claim_check import encode_without_value
from uow.schemas.component import decode_component
from uow.schemas.records import ComponentRecord, Reference, Source

COUNT, LENGTH = 40, 50_000
VALUE = b"value" * 100


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster("in", partitions=2) as running:
        producer = ck.Producer({"bootstrap.servers": running.bootstrap})
        for number in range(COUNT):
            for partition in (0, 1):
                producer.produce("in", b"%d/%d" % (partition, number) + b"x" * LENGTH, partition=partition)
        assert not producer.flush(PATIENCE_S)
        yield running


def at(partition: int, offset: int) -> ComponentRecord:
    return ComponentRecord(1, False, None, None, b"", (), 0, Source("in", partition, offset), Reference(LENGTH, 0))


def read(contents: KafkaContents, *places: tuple[int, int]) -> list[bytes]:
    return [record.value()[:-LENGTH] for record in contents.read([at(*place) for place in places])]


def test_records_are_found_wherever_they_lie_and_what_is_not_there_is_left_out(cluster: MockCluster) -> None:
    """Neighbours, jumps over much and to another partition, an offset behind the end, and all of it again."""
    contents = KafkaContents(Clients(WorkerSettings("A", cluster.bootstrap, "0")), 10.0)
    for _ in range(2):
        places = (0, 1), (0, 2), (0, 9), (0, COUNT - 1), (0, COUNT), (1, 0), (1, COUNT + 5)
        assert read(contents, *places) == [b"0/1", b"0/2", b"0/9", b"0/%d" % (COUNT - 1), b"1/0"]
    contents.close()


def test_a_broker_that_does_not_answer_is_a_doubt_and_no_loss(cluster: MockCluster) -> None:
    contents = KafkaContents(Clients(WorkerSettings("A", cluster.bootstrap, "0")), 0.5)
    cluster.down()
    with pytest.raises(Doubt, match="in/0/3 cannot be read back"):
        read(contents, (0, 3))
    cluster.up()
    contents = KafkaContents(Clients(WorkerSettings("A", cluster.bootstrap, "0")), 10.0)
    assert read(contents, (0, 3)) == [b"0/3"]
    contents.close()


class ReadWatch:
    """Port `Contents` on a clock of its own: each portion takes a second."""

    def __init__(self) -> None:
        self.now, self.is_closed = 0.0, False

    def monotonic(self) -> float:
        return self.now

    def read(self, components: Sequence[ComponentRecord]) -> list[FakeRecord]:
        self.now += 1.0
        return [FakeRecord(each.source.offset, [], VALUE, None, 0, Tp("in", 0)) for each in components]

    def close(self) -> None:
        self.is_closed = True


def plan_without_values(count: int) -> Plan:
    plan = Plan(Tp("in", 0), "changelog", "ledger", 1, "commands", 0)
    for number in range(count):
        body, _ = encode_without_value(replace(at(0, number), value=VALUE, reference=None))
        plan.external[number] = decode_component(body)
        plan.outputs.append(Output("errors", 0, None, None, [("uow-error-text", b"expired")]))
    return plan


def test_reading_back_longer_than_half_of_a_transaction_is_tried_twice_and_then_the_rest_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A partition must not stand still for ever because too much is given up at once (W-115, W-117)."""
    monkeypatch.setattr(external, "PORTION_BYTES", 1)
    with MockCluster("errors", "in", "commands", "changelog", "ledger") as cluster:
        settings = WorkerSettings("A", cluster.bootstrap, "0", transaction_timeout_ms=3000)
        clients, watch = Clients(settings), ReadWatch()
        sink, group = KafkaSink(clients, settings, monotonic=watch.monotonic, contents=watch), clients.group_consumer()
        sink.open()
        for _ in range(2):  # what was late once is forgotten with the next commit
            with pytest.raises(Doubt, match="more than half of transaction_timeout_ms"):
                sink.write([plan_without_values(3)], group.consumer_group_metadata())
            sink.replace()
            sink.write([plan_without_values(3)], group.consumer_group_metadata())
        records = read_all(cluster, "errors")[-3:]
        assert [record.value() for record in records] == [VALUE, VALUE, None]
        assert dict(records[-1].headers())["uow-error-value"] == b"500 bytes were not read back in time from in/0/2"
        sink.close()
        assert watch.is_closed
        group.close()


def read_all(cluster: MockCluster, topic: str) -> list[Any]:
    consumer = ck.Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "look", "enable.partition.eof": True})
    consumer.assign([ck.TopicPartition(topic, 0, 0)])
    records = []
    while (record := consumer.poll(PATIENCE_S)) is not None and record.error() is None:
        records.append(record)
    consumer.close()
    return records
