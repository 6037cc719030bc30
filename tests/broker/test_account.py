"""The account that every test with a worker closes with is able to fail."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.broker.worker_places import Destination
from tests.processes import PATIENCE_S


def commit(place: Destination, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": place.bootstrap, "group.id": f"A-{place.name}"})
    consumer.commit(offsets=[TopicPartition(place.components, 0, offset)], asynchronous=False)
    consumer.close()


def test_a_record_that_nobody_took_and_one_that_came_out_twice_are_told(place: Destination) -> None:
    place.create()
    place.is_damaged = True
    (name,) = place.fitting(0, 1)
    place.send([(name, 1, False)])
    place.check_account()
    commit(place, 1)
    with pytest.raises(AssertionError, match="1 received, 0 out"):
        place.check_account()
    producer = Producer({"bootstrap.servers": place.bootstrap, "enable.idempotence": True})
    for times in (1, 2):
        source = f"{place.components}/0/0".encode()
        producer.produce(f"{place.name}.rejected", b"v", headers=[("uow-source", source)])
        assert not producer.flush(PATIENCE_S)
        if times == 1:
            place.check_account()
    with pytest.raises(AssertionError, match="came out twice"):
        place.check_account()
