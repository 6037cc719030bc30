"""Target topics that are there and cannot be written to: their units wait, nothing else does (B-57). Units that a topic refuses fail alone (B-89)."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from tests.broker.routed_places import RoutedPlace
from tests.broker.worker_places import Destination, alter_topic
from tests.conftest import QUIET
from tests.processes import PATIENCE_S, Process, wait_for
from uow.cli.main import main
from uow.embedded.broker import EmbeddedBroker

pytestmark = pytest.mark.broker


def test_units_for_a_topic_that_may_not_be_written_to_wait_and_others_go_on_b57(
    authorizing: EmbeddedBroker, unique: str, tmp_path: Path, spawn: Callable[..., Process]
) -> None:
    """The worker finds the topic in order at its start, hears of the refusal in a transaction, and of the permission when it looks again."""
    place = Destination(authorizing.bootstrap, unique, tmp_path, spawn, partitions=1)
    routed, admin = RoutedPlace(place, {"events": 1}), AdminClient({"bootstrap.servers": authorizing.bootstrap})
    routed.put_rules({name: {"target_topic": name.lower(), "complete_count": 2} for name in ("UK", "Spain")})
    routed.create()
    worker = place.worker()
    routed.send([("events", "UK", b"<Test/>")] * 2)
    wait_for(lambda: len(place.read(routed.topic("uk"))) == 1)
    allowed = [
        AclBinding(
            ResourceType.TOPIC,
            routed.topic("uk"),
            ResourcePatternType.LITERAL,
            "User:ANONYMOUS",
            "*",
            operation,
            AclPermissionType.ALLOW,
        )
        for operation in (AclOperation.READ, AclOperation.DESCRIBE)
    ]
    for made in admin.create_acls(allowed).values():
        made.result(PATIENCE_S)
    routed.send([("events", "UK", b"<Test/>")] * 4)
    worker.child.wait_output("uk may not be written to by this worker; its records wait")
    routed.send([("events", "Spain", b"<Test/>")] * 2)
    wait_for(lambda: len(place.read(routed.topic("spain"))) == 1)
    assert len(place.read(routed.topic("uk"))) == 1
    told_of_waiting(place, routed.topic("uk"))
    filters = [
        AclBindingFilter(
            each.restype, each.name, each.resource_pattern_type, None, None, each.operation, AclPermissionType.ALLOW
        )
        for each in allowed
    ]
    for gone in admin.delete_acls(filters).values():
        gone.result(PATIENCE_S)
    wait_for(lambda: len(place.read(routed.topic("uk"))) == 3)
    assert [dict(each.headers())["uow-generation"] for each in place.read(routed.topic("uk"))] == [b"1", b"2", b"3"]
    assert not place.read(f"{unique}.errors")
    assert worker.child.terminate(PATIENCE_S) == 0


def told_of_waiting(place: Destination, topic: str) -> None:
    """Two units wait for this topic: everything that people ask says so (B-57, B-201)."""

    def said(*words: str) -> str:
        done = CliRunner().invoke(main, [*words, "-c", str(place.config)])
        return f"{done.exit_code} {done.output}"

    assert said("groups", place.name).count(topic) == 2
    assert [each["topic"] for each in json.loads(said("groups", place.name, "--json")[2:])["waiting_units"]] == [
        topic
    ] * 2
    assert f"topic {topic}: the unit of generation 3" in said("show", place.name, "low-stock/UK")
    assert sum(each["waiting"] for each in json.loads(said("groups", place.name, "--totals", "--json")[2:])) == 2
    doctor, audit = said("doctor"), said("groups", place.name, "--audit")
    assert doctor.startswith("1 ")
    assert f"2 finished units wait for topic {topic}" in " ".join(doctor.split())
    assert audit.startswith("1 ")
    assert audit.count("unit that waits for its topic") == 2


def limit(admin: AdminClient, *topics: str) -> None:
    """These take records of 3,000 bytes from now on, which only the broker knows."""
    for topic in topics:
        alter_topic(admin, topic, max_message_bytes="3000")


def test_a_unit_that_its_topic_refuses_for_its_size_fails_alone_after_its_attempts_b89(
    place: Destination,
) -> None:
    """The topic's limit is lowered while the worker runs."""
    routed, admin = RoutedPlace(place, {"events": 1}), AdminClient({"bootstrap.servers": place.bootstrap})
    rows = {
        name: {"target_topic": name.lower(), "complete_count": 2, "value_format": "json"} for name in ("UK", "Spain")
    }
    routed.put_rules(rows)
    routed.create()
    worker = place.worker()
    target = routed.topic("uk")
    limit(admin, target)
    large, small = [json.dumps(random.Random(size).randbytes(size).hex()).encode() for size in (3_000, 30)]
    routed.send([("events", "UK", large)] * 2)
    wait_for(lambda: len(place.read(f"{place.name}.errors")) == 2)
    routed.send([("events", "UK", small)] * 2 + [("events", "Spain", large)] * 2)
    wait_for(lambda: len(place.read(target)) == len(place.read(routed.topic("spain"))) == 1)
    assert [dict(each.headers())["uow-generation"] for each in place.read(target)] == [b"2"]
    assert {dict(each.headers())["uow-error-case"] for each in place.read(f"{place.name}.errors")} == {b"limit"}
    assert "partition blocked" not in worker.child.output


def test_units_plain_records_and_errors_that_the_topics_of_a_destination_refuse_fail_alone_f20(
    place: Destination,
) -> None:
    """A unit of two components that are larger together, one of a component that is larger alone, a plain record, and some that fit."""
    place.partitions = 1
    place.create()
    worker = place.worker()
    limit(AdminClient({"bootstrap.servers": place.bootstrap}), place.units, f"{place.name}.errors")
    value = {size: random.Random(size).randbytes(size) for size in (2_000, 4_000)}
    producer = Producer({"bootstrap.servers": place.bootstrap}, logger=QUIET)

    def send(key: str, size: int, **headers: str) -> None:
        said: Any = [(f"uow-{name}", text.encode()) for name, text in headers.items()]
        producer.produce(place.components, value.get(size, b"small"), key.encode(), headers=said, partition=0)

    for number in (1, 2):
        send("two", 2_000, id="two", seq=str(number), end=str(number == 2))
    send("one", 4_000, id="one", seq="1", end="true")
    send("plain", 4_000)
    send("small", 0, id="small", seq="1", end="true")
    send("passed", 0)
    assert producer.flush(PATIENCE_S) == 0
    wait_for(lambda: {each.key() for each in place.read(place.units)} == {b"small", b"passed"})
    wait_for(lambda: len(place.read(f"{place.name}.errors")) == 3, what=lambda: worker.child.output)
    errors = [(each.key(), each.value()) for each in place.read(f"{place.name}.errors")]
    assert errors == [(b"two", value[2_000]), (b"two", value[2_000]), (None, None)]
    (rejected,) = place.read(f"{place.name}.rejected")
    assert (rejected.key(), rejected.value()) == (b"plain", value[4_000])
    assert "partition blocked" not in worker.child.output
