"""Quorum by weight and cancel notices on a real broker, with workers that are killed, and a topic for notices that is missing (B-209)."""

from __future__ import annotations

import signal
from collections import Counter

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import uow
from tests.broker.routed_places import RoutedPlace
from tests.broker.worker_places import Destination, Worker
from tests.processes import PATIENCE_S, wait_for

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]
CALLS = 6


def kill(worker: Worker) -> None:
    worker.child.signal(signal.SIGKILL)
    assert worker.child.wait(PATIENCE_S) == 128 + signal.SIGKILL


def test_two_services_reply_and_the_third_hears_once_that_it_need_not_b209(place: Destination) -> None:
    """Workers are killed between the replies and behind the units. A topic that is made later gets its notice then, one that refuses it for its size none, and the units do not wait."""
    routed = RoutedPlace(place, {"replies": 2})
    hotels, flights, cars, stop, later, small = map(
        routed.topic, ("hotels", "flights", "cars", "cars.stop", "later.stop", "small.stop")
    )
    row = {"complete_when": "manifest(3 of 4)", "age_ms": 120_000, "value_format": "json", "target_topic": "trips"}
    routed.put_rules({"*": row}, group_key="request", sequence="given")
    with routed.rules.open("a") as rules:
        rules.write(f'\n[parameter]\nnotice_topics = "{stop}, {later}, {small}"\n')
    routed.create({"session_timeout_ms": 2000})
    admin = AdminClient({"bootstrap.servers": place.bootstrap})  # kept: its calls go on in its own thread

    def make(*topics: str, **config: str) -> None:
        new = [
            NewTopic(each, 2, 1, config={key.replace("_", "."): value for key, value in config.items()})
            for each in topics
        ]
        for made in admin.create_topics(new).values():
            made.result(PATIENCE_S)

    make(hotels, flights, cars, stop)
    make(small, max_message_bytes="100")
    producer = Producer({"bootstrap.servers": place.bootstrap, "enable.idempotence": True})
    first = place.worker()
    wait_for(lambda: bool(place.read(f"A-{place.name}-rules")))  # the router has written the rules that calls read
    with uow.connect(place.bootstrap, application=f"A-{place.name}") as connection:

        def call(topic: str) -> uow.FanOut:
            asked = [uow.Request(hotels, weight=2), uow.Request(flights), uow.Request(cars, notice_topic=topic)]
            return connection.fan_out(place.name, "trip", asked)

        def reply(request_id: str) -> None:
            producer.produce(routed.inputs["replies"], b'"yes"', headers=[("uow-correlation-id", request_id.encode())])
            assert not producer.flush(PATIENCE_S)

        calls = [call(stop) for _ in range(CALLS)]
        unheard, refused = call(later), call(small)
        with pytest.raises(uow.errors.ConfigError, match="notice_topics"):
            call(f"A-{place.name}-rules")
        for each in (*calls, unheard, refused):
            reply(each.request_ids[0])
        wait_for(lambda: len(place.read(place.components)) == CALLS + 2)
        kill(first)
        for each in (*calls, unheard, refused):
            reply(each.request_ids[1])
        second = place.worker()
        trips = routed.topic("trips")
        wait_for(lambda: len(place.read(trips)) == CALLS + 2)
        assert "partition blocked" not in second.child.output
        kill(second)
        with connection.messages(stop, group="cars") as notices:
            heard = [notices.receive(PATIENCE_S) for _ in calls]
            assert {each and each.cancels for each in heard} == {each.request_ids[2] for each in calls}
            assert heard[0] is not None
            assert heard[0].json() | {"request_id": ""} == {
                "request_id": "",
                "folder": cars,
                "topic": cars,
                "outcome": "complete",
                "reason": "manifest",
            }
        make(later)
        place.worker()
        wait_for(lambda: len(place.read(later)) == 1)
        reply(calls[0].request_ids[2])
        wait_for(lambda: len(place.read(f"{place.name}.rejected")) == 1)
    (late,) = place.read(f"{place.name}.rejected")
    assert dict(late.headers())["uow-error-class"] == b"UnitClosedError"
    assert Counter(record.key() for record in place.read(stop)) == {each.request_ids[2].encode(): 1 for each in calls}
    (waited,) = place.read(later)
    assert waited.key() == unheard.request_ids[2].encode()
    sizes = [dict(record.headers())["uow-size"] for record in place.read(trips)]
    assert sizes == [b"2"] * (CALLS + 2)
    assert not place.read(small)
