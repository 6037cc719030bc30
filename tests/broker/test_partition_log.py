"""An audit's reader shows records as the worker saw them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from tests.kafka_broker import Kafka
from tests.processes import PATIENCE_S
from uow.spark_sink.journal import arrivals
from uow.spark_sink.kafka import Cluster
from uow.spark_sink.partition_log import PartitionLog


def test_records_with_headers_that_the_client_hides_are_unreadable_and_bare_ones_are_not(
    broker: Kafka, create_topic: Callable[..., str]
) -> None:
    """The worker refuses them: taken for plain traffic, an audit would miss them among what passed."""
    topic = create_topic(partitions=1)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    for headers in ([], [("h", b"")] * 100_001, [], [("h", b"1")]):
        producer.produce(topic, b"value", None, 0, headers=headers)
    assert not producer.flush(PATIENCE_S)
    log = PartitionLog(Cluster(broker.bootstrap), topic, 0)
    try:
        found = [record for batch in log.until(4) for record in arrivals(batch, log.hidden)]
    finally:
        log.close()
    assert [tuple(record.shown) for record in found] == [(), (), (), (("h", b"1"),)]
    assert [record.headers() for record in (found[0], found[2], found[3])] == [(), (), [("h", b"1")]]
    with pytest.raises(UnicodeDecodeError):
        found[1].headers()
