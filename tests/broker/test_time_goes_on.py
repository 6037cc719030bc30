"""Limits of time of groups by rule are late, never absent, whatever happens to an input (B-218), on a real broker."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from tests.broker.routed_places import RoutedPlace
from tests.broker.worker_places import Destination
from tests.processes import PATIENCE_S, wait_for
from uow.cli.main import main

pytestmark = pytest.mark.timeout(300)
STALL_MS = 13_000
AGE_MS = 1_500


def routed_place(place: Destination, **inputs: int) -> RoutedPlace:
    """Groups by routing name, which only their age ends; an input that stands is waited for no longer than a death of a worker takes."""
    routed = RoutedPlace(place, inputs)
    routed.put_rules(
        {"*": {"target_topic": "units", "complete_count": 1_000_000, "age_ms": AGE_MS}}, default_group="per_name"
    )
    routed.create({"session_timeout_ms": 2_000, "poll_records": 100}, router={"input_stall_ms": STALL_MS})
    return routed


def producer_to(routed: RoutedPlace, transactional: str = "") -> Producer:
    properties: dict[str, Any] = {"bootstrap.servers": routed.place.bootstrap, "linger.ms": 5}
    if not transactional:
        return Producer(properties)
    producer = Producer(properties | {"transactional.id": transactional, "transaction.timeout.ms": 600_000})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    return producer


def given_up(routed: RoutedPlace) -> set[str]:
    """Names of the groups whose units are there."""
    return {
        dict(record.headers())["uow-id"].decode().partition("/")[2]
        for record in routed.place.read(routed.topic("units"))
    }


@contextmanager
def steady(routed: RoutedPlace, name: str, partition: int) -> Iterator[None]:
    """Records without end to one partition of an input, for one group after the other."""
    stop = threading.Event()

    def send() -> None:
        producer, number = producer_to(routed), 0
        while not stop.wait(0.002):
            for _ in range(4):
                headers = [("uow-destination", b"busy-%d" % (number // 2_000))]
                producer.produce(routed.inputs[name], b"<a/>", partition=partition, headers=headers)  # type: ignore[arg-type]
                number += 1
            producer.poll(0)
        assert not producer.flush(PATIENCE_S)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_input_that_never_stops_beside_one_that_ends_with_a_marker_delays_no_limit_for_ever_b218(
    place: Destination,
) -> None:
    """The quiet input ends with the marker of a transaction, which the router passed only when nothing came to any input."""
    routed = routed_place(place, busy=1, quiet=1)
    place.worker()
    with steady(routed, "busy", 0):
        wait_for(lambda: routed.place.committed() > 1_000)
        routed.send([("quiet", f"quiet-{number}", b"<a/>") for number in range(8)], transactional=place.name)
        wait_for(lambda: {f"quiet-{number}" for number in range(8)} <= given_up(routed))


def test_an_open_transaction_in_an_input_delays_limits_for_a_bounded_time_and_is_told_b218(place: Destination) -> None:
    """Nobody else's groups were ever given up, and `/` said OK."""
    routed = routed_place(place, first=2, second=1)
    worker = place.worker()
    holding = producer_to(routed, f"{place.name}-holding")
    holding.produce(routed.inputs["first"], b"<a/>", partition=1, headers=[("uow-destination", b"held")])
    assert not holding.flush(PATIENCE_S)
    routed.send([("second", f"free-{number}", b"<a/>") for number in range(8)])
    wait_for(lambda: {f"free-{number}" for number in range(8)} <= given_up(routed))
    where = f"{routed.inputs['first']}/1"
    assert (worker.health()["status"], [*worker.health()["why"]]) == ("stalled", [where])
    metric = f'uow_input_stalled_seconds{{partition="1",topic="{routed.inputs["first"]}"}}'
    assert worker.metric(metric) >= STALL_MS / 1000
    told = CliRunner().invoke(main, ["doctor", "-c", str(place.config)])
    assert f"{where}: a transaction that began at offset 0 holds back 1 records" in " ".join(told.output.split())
    holding.commit_transaction(PATIENCE_S)
    wait_for(lambda: "held" in given_up(routed))
    routed.send([("second", "later", b"<a/>")])
    wait_for(lambda: "later" in given_up(routed) and worker.health()["status"] == "OK")


def test_a_new_partition_of_an_input_is_waited_for_like_an_old_one_b218(place: Destination) -> None:
    """Second components that lie in it came in time: it was looked for once in thirty seconds only."""
    routed = RoutedPlace(place, {"events": 1})
    routed.put_rules({"*": {"target_topic": "units", "complete_count": 2, "age_ms": 6_000}}, default_group="per_name")
    routed.create({"session_timeout_ms": 2_000}, router={"input_stall_ms": 120_000})
    place.worker()
    routed.send([("events", f"pair-{number}", b"<a/>") for number in range(20)])
    wait_for(lambda: place.committed() >= 20)
    admin = AdminClient({"bootstrap.servers": place.bootstrap})
    topic = routed.inputs["events"]
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result(PATIENCE_S)
    producer = producer_to(routed)
    wait_for(lambda: len(producer.list_topics(topic, PATIENCE_S).topics[topic].partitions) == 2)
    for number in range(20):
        headers = [("uow-destination", b"pair-%d" % number)]
        producer.produce(topic, b"<a/>", partition=1, headers=headers)  # type: ignore[arg-type]
    assert not producer.flush(PATIENCE_S)
    wait_for(lambda: len(place.read(routed.topic("units"))) >= 20)
    sizes = {dict(record.headers())["uow-size"] for record in place.read(routed.topic("units"))}
    assert sizes == {b"2"}
