"""`uow rebuild` on a broker: units by rule in their target topic, beside records that are refused; and into a topic of their own (W-209)."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner, Result
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.broker.routed_places import RoutedPlace
from tests.broker.worker_places import Destination
from tests.processes import PATIENCE_S, wait_for
from uow.cli.main import main


def test_units_by_rule_are_built_again_whatever_a_refused_record_says_and_nowhere_twice_w209(
    place: Destination,
) -> None:
    routed = RoutedPlace(place, {"events": 1})
    routed.put_rules({"*": {"target_topic": "ready", "complete_count": 2, "age_ms": 3_600_000}})
    routed.create()
    place.is_created = False  # what a hand writes here is in no account
    place.worker()
    ready = routed.topic("ready")

    def rebuild(*options: str) -> Result:
        return CliRunner().invoke(main, ["rebuild", place.name, "-c", str(place.config), *options])

    def send_and_wait(count: int) -> None:
        routed.send([("events", f"order-{number}", b"<a/>") for number in range(count - 4, count) for _ in "ab"])
        wait_for(lambda: len(place.read(ready)) == count, PATIENCE_S, lambda: str(len(place.read(ready))))

    send_and_wait(4)
    producer = Producer({"bootstrap.servers": place.bootstrap})
    produce: Any = producer.produce
    forged = [("uow-id", b"x"), ("uow-seq", b"1"), ("uow-rule", b"nobody/has@1"), ("uow-input", b"in/0/1")]
    for partition in range(place.partitions):
        produce(place.components, b"x", b"x", partition, headers=[*forged, ("uow-rerouted", b"1")])
    assert not producer.flush(PATIENCE_S)
    send_and_wait(8)
    clean = rebuild("--dry-run", "--json")
    assert (clean.exit_code, json.loads(clean.stdout)) == (0, {"units": 8, "differences": []}), clean.output

    refused = rebuild("--into", ready)
    assert (refused.exit_code, len(place.read(ready))) == (2, 8), refused.output
    again = routed.topic("again")
    admin = AdminClient({"bootstrap.servers": place.bootstrap})
    admin.create_topics([NewTopic(again, 1, -1)])[again].result(PATIENCE_S)
    done = rebuild("--into", again)
    assert done.exit_code == 0, done.output
    told = [(record.key(), record.value(), sorted(record.headers())) for record in place.read(again)]
    assert sorted(told) == sorted((each.key(), each.value(), sorted(each.headers())) for each in place.read(ready))
