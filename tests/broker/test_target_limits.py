"""A target topic that takes smaller records than a unit by rule makes (B-59, B-89)."""

from __future__ import annotations

import json
import random

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.broker.routed_places import RoutedPlace
from tests.broker.worker_places import Destination, alter_topic
from tests.processes import PATIENCE_S, wait_for
from uow.cli.main import main

pytestmark = pytest.mark.broker


def noise(count: int, size: int) -> list[bytes]:
    """JSON texts that no codec makes shorter by much."""
    draw = random.Random(size)
    return [json.dumps({"n": number, "v": draw.randbytes(size // 2).hex()}).encode() for number in range(count)]


def test_a_unit_that_cannot_fit_fails_once_and_everything_that_people_ask_says_why_b89(place: Destination) -> None:
    """One component that is larger than its target takes; the next group is one like any other."""
    place.partitions = 1
    routed, admin = RoutedPlace(place, {"events": 1}), AdminClient({"bootstrap.servers": place.bootstrap})
    routed.put_rules({"UK": {"target_topic": "uk", "complete_count": 1, "value_format": "json"}})
    routed.create()
    target = routed.topic("uk")
    alter_topic(admin, target, max_message_bytes="20000")
    worker = place.worker()
    (large,) = noise(1, 30_000)
    routed.send([("events", "UK", large), ("events", "UK", b"small")])
    wait_for(lambda: len(place.read(target)) == 1, what=lambda: worker.child.output)
    (error,) = place.read(f"{place.name}.errors")
    headers = dict(error.headers())
    assert (headers["uow-error-class"], headers["uow-error-case"]) == (b"UnitTooLargeError", b"limit")
    assert f"topic {target} takes records of 20000 bytes".encode() in headers["uow-error-text"]
    (outcome,) = place.read(f"{place.name}.outcomes")
    assert b"takes records of 20000 bytes" in dict(outcome.headers())["uow-error-text"]
    shown = CliRunner().invoke(main, ["show", place.name, "low-stock/UK", "--generation", "1", "-c", str(place.config)])
    assert f"topic {target} takes records of 20000 bytes" in shown.output
    assert worker.child.output.count(f"is refused by {target}") == 1


def test_a_run_for_a_topic_with_fewer_partitions_fails_alone_and_the_worker_goes_on_b60(place: Destination) -> None:
    """The rules were in force when somebody made the target anew. Ids of both rows belong to partition 1, which it has no longer."""
    place.partitions = 3
    routed, admin = RoutedPlace(place, {"events": 1}), AdminClient({"bootstrap.servers": place.bootstrap})
    rows = {name: {"target_topic": "uk", "value_format": "avro"} for name in ("UK", "France")}
    routed.put_rules(rows, sequence="given")
    routed.create(oversize="consecutive")
    worker, target = place.worker(), routed.topic("uk")
    admin.delete_topics([target])[target].result(PATIENCE_S)
    wait_for(lambda: target not in admin.list_topics(timeout=PATIENCE_S).topics)
    admin.create_topics([NewTopic(target, 1, 1)])[target].result(PATIENCE_S)
    wait_for(lambda: target in admin.list_topics(timeout=PATIENCE_S).topics)
    producer = Producer({"bootstrap.servers": place.bootstrap})
    for name, values in [("UK", noise(12, 950_000)), ("France", [b"small"])]:
        for number, value in enumerate(values, 1):
            told = {"uow-destination": name, "uow-seq": f"{number}", "uow-end": str(number == len(values)).lower()}
            headers = [(header, text.encode()) for header, text in told.items()]
            producer.produce(routed.topic("events"), value, headers=headers)  # type: ignore[arg-type]
    assert not producer.flush(PATIENCE_S)
    wait_for(lambda: len(place.read(target)) == 1, what=lambda: worker.child.output)
    errors = [dict(each.headers() or ()) for each in place.read(f"{place.name}.errors")]
    assert [each["uow-error-class"] for each in errors] == [b"UnitTooLargeError"] * 12
    assert (
        f"topic {target} needs as many partitions as {place.components}, 3, and it has 1".encode()
        in errors[0]["uow-error-text"]
    )
