"""A target topic that takes smaller records than a unit by rule makes (B-59, B-89)."""

from __future__ import annotations

import json
import random

import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient

from tests.broker.routed_places import RoutedPlace
from tests.broker.worker_places import Destination, alter_topic
from tests.processes import wait_for
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
