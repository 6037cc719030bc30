"""A record at which a partition is blocked is set aside by `uow set-aside`, on brokers that refuse what is made of it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
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
from uow.schemas import codec
from uow.schemas.records import Answer

pytestmark = pytest.mark.broker


def set_aside(place: Destination, record: str, *options: str) -> Result:
    asked = ["set-aside", place.name, record, "--why", "nobody needs it", "--by", "Jill", *options]
    return CliRunner().invoke(main, [*asked, "-c", str(place.config)])


def answers(place: Destination) -> list[tuple[str, bool, str | None, str]]:
    found = [codec.decode(record.value()) for record in place.read(f"{place.name}.outcomes")]
    return [(each.verb, each.done, each.by, each.why) for each in found if isinstance(each, Answer)]


def secret(place: Destination) -> str:
    """The topic of units of type `secret`."""
    return f"{place.name}.secret"


def allow(place: Destination, *operations: AclOperation) -> None:
    """Everybody may do this with the topic `secret`."""
    of = (ResourceType.TOPIC, secret(place), ResourcePatternType.LITERAL, "User:ANONYMOUS", "*")
    given = [AclBinding(*of, each, AclPermissionType.ALLOW) for each in operations]
    admin = AdminClient({"bootstrap.servers": place.bootstrap})
    for made in admin.create_acls(given).values():
        made.result(PATIENCE_S)


@pytest.fixture
def guarded(authorizing: EmbeddedBroker, unique: str, tmp_path: Path, spawn: Callable[..., Process]) -> Destination:
    """A destination of one partition, of which nobody may write the units of type `secret`."""
    place = Destination(authorizing.bootstrap, unique, tmp_path, spawn, partitions=1)
    place.create(routes={secret(place): "uow-type = 'secret'"})
    allow(place, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)
    return place


def send_first(place: Destination, *types: str, **more: bytes) -> None:
    """The first component of units `u0`, `u1`, ..., of these types."""
    producer = Producer({"bootstrap.servers": place.bootstrap}, logger=QUIET)
    for number, type_ in enumerate(types):
        said: Any = [("uow-id", b"u%d" % number), ("uow-seq", b"1"), ("uow-type", type_.encode())]
        said += [(f"uow-{name}", value) for name, value in more.items()]
        producer.produce(place.components, b"x", b"u%d" % number, headers=said)
    assert producer.flush(PATIENCE_S) == 0


def test_a_component_whose_unit_may_not_be_written_is_set_aside_and_the_partition_goes_on(guarded: Destination) -> None:
    """Also the command that was sent while no worker ran; one about another record says that it does nothing."""
    place, unique = guarded, guarded.name
    send_first(place, "open", "secret", "open", "secret", "open", end=b"true")
    worker = place.worker()
    worker.child.wait_output(f"uow set-aside {unique} {place.components}/0/1 --why", 30)
    assert f"{place.components}/0/1 --why" in json.dumps(worker.page())
    refused = set_aside(place, f"{place.components}/0/2")
    assert (refused.exit_code, "/0/1 does: nothing is done" in refused.output) == (1, True), refused.output
    done = set_aside(place, f"{place.components}/0/1")
    assert (done.exit_code, "done: sets" in done.output) == (0, True), done.output
    worker.child.wait_output(f"uow set-aside {unique} {place.components}/0/3 --why", 30)
    assert {record.key() for record in place.read(place.units)} == {b"u0", b"u2"}
    assert worker.child.terminate(PATIENCE_S) == 0
    late = set_aside(place, f"{place.components}/0/3", "--timeout", "1s")
    assert (late.exit_code, "no answer about" in late.output) == (1, True), late.output
    place.worker("other")
    wait_for(lambda: {record.key() for record in place.read(place.units)} == {b"u0", b"u2", b"u4"})
    wait_for(lambda: len(answers(place)) == 3)
    who = ("Jill", "nobody needs it")
    assert sorted(answers(place)) == sorted(("set-aside", done, *who) for done in (False, True, True))
    aside = {
        dict(record.headers())["uow-source"]: dict(record.headers()) for record in place.read(f"{unique}.rejected")
    }
    assert aside.keys() == {f"{place.components}/0/{offset}".encode() for offset in (1, 3)}
    assert {said["uow-error-case"] for said in aside.values()} == {b"command"}
    doctor = CliRunner().invoke(main, ["doctor", "-c", str(place.config)])
    assert "2 of the last records were set aside" in doctor.output, doctor.output
    place.check_account()


def test_a_command_whose_unit_may_not_be_written_is_answered_and_the_partition_goes_on(guarded: Destination) -> None:
    """The group stays open, and the command does what it asks for once the right is granted."""
    place = guarded

    def end(number: int) -> Result:
        asked = ["declare-end", place.name, f"u{number}", "--seq", "1", "--why", "no more", "-c", str(place.config)]
        return CliRunner().invoke(main, asked)

    send_first(place, "open", "secret")
    worker = place.worker()
    refused = end(1)
    assert (refused.exit_code, "so nothing is changed" in refused.output) == (1, True), refused.output
    assert "Topic authorization failed" in refused.output, refused.output
    done = end(0)
    assert done.exit_code == 0, done.output
    wait_for(lambda: {record.key() for record in place.read(place.units)} == {b"u0"})
    assert "partition blocked" not in worker.child.output
    allow(place, AclOperation.WRITE, AclOperation.READ)
    again = CliRunner().invoke(main, ["rebuild", place.name, "--dry-run", "-c", str(place.config)])
    assert (again.exit_code, "1 units can be built; differences: none" in again.output) == (0, True), again.output
    granted = end(1)
    assert granted.exit_code == 0, granted.output
    wait_for(lambda: {record.key() for record in place.read(secret(place))} == {b"u1"})
    place.check_account()


def test_a_record_of_a_routers_input_that_is_refused_is_set_aside_and_the_input_goes_on(place: Destination) -> None:
    """The topic's limit is lowered while the router runs, which only the broker knows."""
    routed = RoutedPlace(place, {"events": 1})
    routed.put_rules({"*": {"target_topic": "other", "complete_count": 2, "value_format": "json"}})
    routed.create()
    worker = place.worker()
    alter_topic(AdminClient({"bootstrap.servers": place.bootstrap}), place.components, max_message_bytes="3000")
    large, small = [json.dumps(random.Random(size).randbytes(size).hex()).encode() for size in (3_000, 30)]
    routed.send([("events", "UK", value) for value in (small, large, small)])
    record = f"{routed.inputs['events']}/0/1"
    worker.child.wait_output(f"uow set-aside {place.name} {record} --why", 30)
    done = set_aside(place, record)
    assert (done.exit_code, "done: sets" in done.output) == (0, True), done.output
    wait_for(lambda: len(place.read(routed.topic("other"))) == 1)
    (aside,) = place.read(f"{place.name}.rejected")
    assert (aside.value(), dict(aside.headers())["uow-input"]) == (large, record.encode())
    assert b"Jill (unverified): nobody needs it" in dict(aside.headers())["uow-error-text"]
    assert answers(place) == [("set-aside", True, "Jill", "nobody needs it")]
    again = set_aside(place, record)
    assert (again.exit_code, "which is at 3: nothing is done" in again.output) == (1, True), again.output
    assert worker.child.terminate(PATIENCE_S) == 0
