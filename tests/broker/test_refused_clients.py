"""Each command of `uow` says at once why brokers refuse it: a wrong password, a certificate that is not trusted, a missing right."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient, NewTopic

import uow
from tests.broker.guarded_broker import Guard, GuardedBroker, login
from tests.conftest import QUIET
from tests.processes import Process
from uow.cli.main import COMMANDS, main
from uow.ops.destination_logs import PATIENCE_S

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]
NO_BROKER = ("demo", "broker", "sql", "report", "prove", "config", "acl", "command-key")
SPARK = ("sink", "audit")
"""Their clients are tried in `tests/spark`."""
GROUP = ("D", "some-id", "--why", "a test")
WORDS: dict[str, tuple[str, ...]] = {
    "topics": ("check",),
    "worker": (),
    "send": ("D", __file__),
    "read": ("D", "--count", "1"),
    "groups": ("D",),
    "show": ("D", "some-id"),
    "release": GROUP,
    "set-aside": ("D", "D.components/0/0", "--why", "a test"),
    "cancel": GROUP,
    "expire": GROUP,
    "extend": (*GROUP, "--until", "+1h"),
    "declare-end": (*GROUP, "--seq", "2"),
    "waive": (*GROUP, "--seq", "2"),
    "remove": ("D", "some-id", "2", "--why", "a test"),
    "erase": ("D", "some-id", "2", "--why", "a test"),
    "adopt": ("D", "--why", "a test"),
    "rejected": ("D",),
    "resubmit": ("D", "--id", "some-id"),
    "migrate": (),
    "rebuild": ("D",),
    "rules": ("refresh",),
    "doctor": (),
}
FAULTS = {
    "password": ({"sasl.password": "wrong"}, "sasl.password"),
    "certificate": ({"ssl.ca.location": ""}, "ssl.ca.location"),
    "right": ({}, "uow acl show"),
}


@pytest.fixture(scope="module")
def guarded() -> Iterator[GuardedBroker]:
    with GuardedBroker() as broker:
        yield broker


def config(broker: GuardedBroker, folder: Path, wrong: dict[str, str]) -> Path:
    """`uow.toml` of a user without any right, and with what is wrong."""
    rows = {name: value for name, value in (login("user2") | wrong).items() if value}
    lines = ["[application]", 'id = "A"', f'bootstrap_servers = "{broker.behind}"', "[worker]", 'web = "off"']
    lines += ["[destinations.D]", 'handling_policy = "single_message_delivery"', "[kafka]"]
    path = folder / "uow.toml"
    path.write_text("\n".join([*lines, *(f'"{name}" = "{value}"' for name, value in rows.items())]))
    return path


def test_every_command_that_asks_a_broker_is_tried() -> None:
    assert {*WORDS, *NO_BROKER, *SPARK} == {*COMMANDS}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("command", [name for name in WORDS if name not in ("worker", "migrate", "rebuild")])
def test_a_command_says_why_it_is_refused(guarded: GuardedBroker, tmp_path: Path, command: str, fault: str) -> None:
    wrong, told = FAULTS[fault]
    began = time.monotonic()
    done = CliRunner().invoke(main, [command, *WORDS[command], "-c", str(config(guarded, tmp_path, wrong))])
    assert done.exit_code == 1, done.output
    assert told in done.output
    assert "no broker answers" not in done.output
    assert "topics create" not in done.output
    assert time.monotonic() - began < PATIENCE_S


@pytest.mark.parametrize("fault", FAULTS)
def test_a_worker_that_is_refused_says_why_and_ends(
    guarded: GuardedBroker, tmp_path: Path, spawn: Callable[..., Process], fault: str
) -> None:
    wrong, told = FAULTS[fault]
    child = spawn("uow", "worker", "-c", config(guarded, tmp_path, wrong))
    child.wait_output(told)
    assert child.wait(PATIENCE_S) in (1, 2)


@pytest.mark.parametrize("fault", ["password", "certificate"])
def test_a_client_that_is_refused_says_why(guarded: GuardedBroker, fault: str) -> None:
    wrong, told = FAULTS[fault]
    kafka = {name: value for name, value in (login("user2") | wrong).items() if value}
    with pytest.raises(uow.errors.ReconnectGivenUpError, match=told):
        uow.connect(guarded.behind, kafka=kafka, reconnect_blocking_ms=-1)


def test_a_transaction_names_the_topic_that_may_not_be_written_to(guarded: GuardedBroker, unique: str) -> None:
    """The library says only that the records were purged, also those of the other topic, which was the first."""
    allowed, denied = f"{unique}.first", f"{unique}.components"
    admin = AdminClient({"bootstrap.servers": guarded.bootstrap}, logger=QUIET)
    for made in admin.create_topics([NewTopic(allowed, 1, 1), NewTopic(denied, 1, 1)]).values():
        made.result(PATIENCE_S)
    topics = ((allowed, "Write"), (denied, "Describe"), (f"{unique}.registry", "Describe"))
    rights = [("topic", name, "literal", operation) for name, operation in topics]
    Guard(guarded).set("user3", [*rights, ("transactional-id", "uow-", "prefixed", "Write")])
    with uow.connect(guarded.behind, kafka=login("user3"), reconnect_blocking_ms=60_000) as connection:

        def send() -> None:
            with connection.unit(unique) as unit:
                unit.send({"a": 1}, to=allowed)
                unit.send({"b": 2})

        told = rf"^{denied}: .*Topic authorization failed.*uow acl show"
        with pytest.raises(uow.errors.SendRejectedError, match=told):
            send()
