"""Groups that are never whole, on a real broker and a real worker: why they are not, and what becomes of their components (W-74 to W-83)."""

from __future__ import annotations

import json
import time
from typing import Any

from confluent_kafka import Producer

from tests.broker.worker_places import Destination
from tests.processes import PATIENCE_S, wait_for

LIMIT_MS = 800
SLOW = 90.0
AHEAD_S = 8.0
"""Longer than it takes from the first look at the clock to being ready."""


def outcomes(place: Destination) -> list[dict[str, bytes]]:
    return [dict(record.headers()) for record in place.read(f"{place.name}.outcomes")]


def test_component_in_an_aborted_transaction_leaves_a_group_that_expires(place: Destination) -> None:
    """W-74: cause A of a stuck group."""
    place.create(incomplete_expiration_ms=LIMIT_MS, expiration_policy="redirect", outcomes="all")
    worker = place.worker()
    producer = Producer(
        {"bootstrap.servers": place.bootstrap, "transactional.id": place.name, "partitioner": "murmur2_random"}
    )
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    headers: Any = [("uow-id", b"torn"), ("uow-seq", b"2"), ("uow-end", b"true")]
    producer.produce(place.components, b"never", b"torn", headers=headers)
    producer.flush(PATIENCE_S)
    producer.abort_transaction(PATIENCE_S)
    place.send([("torn", 1, False)])
    wait_for(lambda: outcomes(place), SLOW)
    (said,) = outcomes(place)
    assert (said["uow-id"], said["uow-outcome"], said["uow-reason"]) == (b"torn", b"expired", b"age")
    (given_up,) = place.read(f"{place.name}.errors")
    assert dict(given_up.headers())["uow-missing"] == b"2-"
    assert not place.read(place.units)
    assert worker.child.terminate() == 0


def test_worker_whose_clock_is_put_right_expires_what_is_due(place: Destination) -> None:
    """W-83: it starts minutes ahead, and asks whether partitions are read to their ends; then somebody puts its clock right."""
    place.create(incomplete_expiration_ms=LIMIT_MS, expiration_policy="redirect", outcomes="all")
    worker = place.worker(UOW_CLOCK=f"0:{AHEAD_S}:1000")
    ready = time.monotonic()
    wait_for(lambda: time.monotonic() - ready > AHEAD_S)
    place.send([("slow", 1, False)])
    wait_for(lambda: place.read(f"{place.name}.errors"))
    (said,) = outcomes(place)
    assert (said["uow-id"], said["uow-outcome"], said["uow-reason"]) == (b"slow", b"expired", b"age")
    assert worker.child.terminate() == 0


def test_log_policy_writes_one_line_per_component_and_no_record(place: Destination) -> None:
    """W-79, W-83: on a partition without traffic."""
    place.create(
        incomplete_expiration_ms=LIMIT_MS, expiration_policy="log", outcomes="all", expiration_log_headers=["shop"]
    )
    worker = place.worker()
    producer = Producer(
        {"bootstrap.servers": place.bootstrap, "partitioner": "murmur2_random", "enable.idempotence": True}
    )
    for seq in (3, 1):
        headers: Any = [
            ("uow-id", b"forgotten"),
            ("uow-seq", b"%d" % seq),
            ("uow-component-id", b"c-%d" % seq),
            ("shop", b"north"),
            ("secret", b"not for the log"),
        ]
        producer.produce(place.components, b"x", b"forgotten", headers=headers)
    assert not producer.flush(PATIENCE_S)
    wait_for(lambda: worker.child.output.count("component expired") == 2, SLOW, lambda: worker.child.output[-2000:])
    lines = [json.loads(line) for line in worker.child.output.splitlines() if "component expired" in line]
    assert [(line["id"], line["seq"], line["component_id"], line["missing"]) for line in lines] == [
        ("forgotten", 1, "c-1", "2,4-"),
        ("forgotten", 3, "c-3", "2,4-"),
    ]
    assert all(line["headers"] == {"shop": "north"} for line in lines)
    assert all(line["source"].startswith(f"{place.components}/") for line in lines)
    assert "not for the log" not in worker.child.output
    assert worker.child.terminate() == 0
    assert not place.read(f"{place.name}.errors")


def test_redirected_components_are_as_they_were(place: Destination) -> None:
    """W-71, W-80: key, value and headers byte for byte, each component singly, in number order, same partition number."""
    place.create(incomplete_expiration_ms=LIMIT_MS, expiration_policy="redirect")
    worker = place.worker()
    producer = Producer(
        {"bootstrap.servers": place.bootstrap, "partitioner": "murmur2_random", "enable.idempotence": True}
    )
    odd: list[tuple[str, bytes | None]] = [("x", b"\xff\x00"), ("x", None), ("uow-priority", b"7"), ("é", b"")]
    for seq, value in ((4, None), (2, b""), (1, bytes(range(256)))):
        headers: Any = [odd[0], ("uow-id", b"whole"), ("uow-seq", b"%d" % seq), *odd[1:]]
        producer.produce(place.components, value, b"whole", headers=headers)
    assert not producer.flush(PATIENCE_S)
    errors = f"{place.name}.errors"
    wait_for(lambda: len(place.read(errors)) == 3, SLOW)
    sources = {record.headers()[2][1]: record for record in place.read(place.components)}
    found = place.read(errors)
    assert [record.headers()[2][1] for record in found] == [b"1", b"2", b"4"]
    for record in found:
        origin = sources[record.headers()[2][1]]
        count = len(origin.headers())
        assert (record.key(), record.value(), record.partition()) == (origin.key(), origin.value(), origin.partition())
        assert record.headers()[:count] == origin.headers()
        added = dict(record.headers()[count:])
        assert added["uow-source"].decode() == f"{place.components}/{origin.partition()}/{origin.offset()}"
        assert (added["uow-error-class"], added["uow-error-case"]) == (b"UowError", b"age")
        assert (added["uow-failure-reason"], added["uow-missing"]) == (b"expired", b"3,5-")
    assert worker.child.terminate() == 0


def test_redirect_without_its_topic_refuses_to_start_and_names_the_remedy(place: Destination, admin: Any) -> None:
    """W-81: exit status 2; created again, it starts."""
    errors = f"{place.name}.errors"
    place.create(incomplete_expiration_ms=LIMIT_MS, expiration_policy="redirect")
    admin.delete_topics([errors])[errors].result(PATIENCE_S)
    wait_for(lambda: errors not in admin.list_topics(timeout=PATIENCE_S).topics)
    worker = place.worker(wait=False)
    assert worker.child.wait(60) == 2
    assert errors in worker.child.output
    assert "uow topics create" in worker.child.output
    place.create(incomplete_expiration_ms=LIMIT_MS, expiration_policy="redirect")
    assert place.worker().child.terminate() == 0
