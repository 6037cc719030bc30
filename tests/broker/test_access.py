"""The rights of each role are enough, and each is needed: the role runs with them alone, and fails without any one of them.

A role runs as its user does: the client, the command line, a worker process. A warning in the log counts as a failure.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import uow
from tests.broker.guarded_broker import Guard, GuardedBroker, Right, login
from tests.broker.worker_places import Destination
from tests.conftest import QUIET
from tests.processes import PATIENCE_S, Process, wait_for
from uow.cli.main import main
from uow.topics.partitioner import partition_for

pytestmark = [pytest.mark.broker, pytest.mark.timeout(900)]
LIMIT_S = 20
"""So long a worker has for what it does at once with all its rights."""
SHORT_MS = 3_000
"""Blocking time of clients: so long they wait for what a right would give them."""


class Stage:
    """A destination on a guarded broker, a worker that may do everything, and a user whose rights change."""

    def __init__(
        self, broker: GuardedBroker, folder: Path, spawn: Callable[..., Process], is_routed: bool = True
    ) -> None:
        self.broker, self.folder, self.guard = broker, folder, Guard(broker)
        self.user, self.kafka = "user1", login("user1")
        self.place = Destination(broker.bootstrap, f"D{uuid4().hex[:6]}", folder, spawn, partitions=2)
        self.name = self.place.name
        self.topics = {each: f"{self.name}.{each}" for each in ("requests", "hop", "input", "replies")}
        admin = AdminClient({"bootstrap.servers": broker.bootstrap}, logger=QUIET)
        made_before = [self.topics[each] for each in ("requests", "hop", "replies")]
        new = [NewTopic(each, 1, 1, config={"max.message.bytes": "10485760"}) for each in made_before]
        for made in admin.create_topics(new).values():
            made.result(PATIENCE_S)
        rules = folder / "rules.toml"
        row = ['routing_name = "*"', 'complete_when = "manifest"', "age_ms = 600000", 'value_format = "json"']
        lines = ["version = 1", 'author = "a"', 'why = "a test"', "[[rule]]", 'rule_id = "calls"']
        lines += [f'destination = "{self.name}"', 'group_key = "request"', 'sequence = "given"', "[[rule.row]]", *row]
        rules.write_text("\n".join([*lines, f'target_topic = "{self.name}.replies"']))
        self.routed = f'\n[rules]\nsource = "{rules}"\n[routers.calls]\ninputs = ["{self.topics["input"]}"]\n'
        self.place.configure()
        self.config = self.place.config
        self.config.write_text(self.config.read_text() + (self.routed if is_routed else ""))
        self._run("topics", "create", "--partitions", "2", config=self.config)
        self.place.is_created = True
        as_user = [f'"{name}" = "{value}"' for name, value in self.kafka.items()]
        text = self.config.read_text().replace(broker.bootstrap, broker.behind)
        self.users_config = folder / "user.toml"
        self.users_config.write_text("\n".join([text, "[kafka]", *as_user]))

    def rights(self, *roles: str, **options: str) -> list[Right]:
        """Those of `uow acl show`, for the topics of this test."""
        options = {"group": "readers", "from": self.topics["requests"], "to": self.topics["hop"]} | options
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        shown = self._run("acl", "show", *roles, *words, "--json", config=self.config)
        return [
            (row["resource"], row["name"], row["pattern"], row["operation"]) for row in json.loads(shown) if row["for"]
        ]

    def uow(self, *words: str) -> str:
        """A command as the user."""
        return self._run(*words, config=self.users_config)

    def _run(self, *words: str, config: Path) -> str:
        done = CliRunner().invoke(main, [*words, "-c", str(config)])
        assert done.exit_code == 0, done.output
        return done.stdout

    def connect(self, **options: Any) -> uow.Connection:
        """As the user."""
        return uow.connect(self.broker.behind, kafka=self.kafka, reconnect_blocking_ms=SHORT_MS, **options)

    def put(self, topic: str, value: bytes, key: bytes | None = None, partition: int = -1, **headers: str) -> None:
        """A record by somebody who may."""
        producer = Producer({"bootstrap.servers": self.broker.bootstrap, "partitioner": "murmur2_random"})
        producer.produce(
            topic, value, key, partition, headers=[(name.replace("_", "-"), text) for name, text in headers.items()]
        )
        assert not producer.flush(PATIENCE_S)


@pytest.fixture(scope="module")
def guarded() -> Iterator[GuardedBroker]:
    with GuardedBroker() as broker:
        yield broker


@pytest.fixture
def stage(guarded: GuardedBroker, tmp_path: Path, spawn: Callable[..., Process]) -> Stage:
    return Stage(guarded, tmp_path, spawn)


@contextmanager
def no_warnings() -> Iterator[None]:
    """Fails where this project warns."""
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: None if "goes to" in record.getMessage() else said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("uow").addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger("uow").removeHandler(handler)
    assert said == [], said


def produce(stage: Stage) -> None:
    """A unit in a transaction, and a plain record."""
    with stage.connect() as connection:
        with connection.unit(stage.name) as unit:
            unit.send({"a": 1})
            unit.send({"b": 2})
        connection.send(stage.name, {"plain": True})


def read(stage: Stage) -> None:
    """A unit, and a record that is none and is given up."""
    for partition in range(2):  # so it lies before the unit, wherever that goes
        said = {"uow_kind": "unit", "uow_id": "k", "uow_unit_id": str(uuid4())}
        stage.put(stage.place.units, b"no unit", b"k", partition, **said)
    with uow.connect(stage.broker.bootstrap) as anybody, anybody.unit(stage.name) as unit:
        unit.send({"a": 1})
    with stage.connect() as connection, connection.units(stage.name, group="readers") as units:
        found = None
        while found is None or found.id != unit.id:
            found = units.receive(PATIENCE_S)
            assert found is not None
            found.acknowledge()


def call(stage: Stage) -> None:
    """A call whose manifest is the first of its routing name, and its unit."""
    with stage.connect(application=f"A-{stage.name}") as connection:
        requests = [uow.Request(stage.topics["hop"])]
        made = connection.fan_out(stage.name, f"trip {uuid4()}", requests, 200, awaits=True)
        assert made.unit(PATIENCE_S) is not None


def forward(stage: Stage) -> None:
    """A component, to the next topic; another one to the destination, as the last hop."""
    group, key = "readers", str(uuid4())
    for seq in ("1", "2"):
        stage.put(stage.topics["requests"], b"{}", key.encode(), uow_id=key, uow_seq=seq)
    with stage.connect() as connection, connection.messages(stage.topics["requests"], group=group) as messages:
        for where in ({"to": stage.topics["hop"]}, {"destination": stage.name}):
            message = messages.receive(PATIENCE_S)
            assert message is not None
            connection.forward(message, **where)


def give_up(stage: Stage) -> None:
    """A component that comes with the answer that its unit is cancelled."""
    key = str(uuid4())
    stage.put(stage.topics["requests"], b"{}", key.encode(), uow_id=key, uow_seq="1")
    with stage.connect() as connection, connection.messages(stage.topics["requests"], group="readers") as messages:
        message = messages.receive(PATIENCE_S)
        assert message is not None
        assert connection.cancel(message, destination=stage.name, why="a test").answer(PATIENCE_S) is not None


def operate(stage: Stage) -> None:
    """Looks, a command, a refused component sent again."""
    key = str(uuid4())
    stage.put(stage.place.components, b"1", key.encode(), uow_id=key, uow_seq="1")
    stage.put(stage.place.components, b"2", key.encode(), uow_id=key, uow_seq="0")
    rejected = stage.name + ".rejected"
    wait_for(lambda: any(record.key() == key.encode() for record in stage.place.read(rejected)))
    lost = str(uuid4())
    stage.put(stage.place.components, b"1", lost.encode(), uow_id=lost, uow_seq="1")
    stage.uow("cancel", stage.name, lost, "--why", "a test")
    for words in (("doctor",), ("topics", "check"), ("groups", stage.name), ("show", stage.name, key)):
        stage.uow(*words)
    stage.uow("release", stage.name, key, "--why", "a test")
    assert key in stage.uow("rejected", stage.name, "--id", key)
    stage.uow("rejected", stage.name, "--from", "errors")
    stage.uow("resubmit", stage.name, "--id", key, "--set", "uow-seq=2")
    aside = ["set-aside", stage.name, f"{stage.topics['input']}/0/999", "--why", "a test"]
    told = CliRunner().invoke(
        main, [*aside, "-c", str(stage.users_config)]
    )  # the position of the routers says that it does not block
    assert "nothing is done" in told.output, told.output


def author(stage: Stage) -> None:
    """Rules are checked, played on what came in, and looked at."""
    stage.put(stage.topics["input"], b"{}")
    rules = stage.folder / "next.toml"
    rules.write_text((stage.folder / "rules.toml").read_text().replace("version = 1", "version = 2"))
    for words in (("check", str(rules)), ("refresh",), ("rehearse", str(rules)), ("show",), ("history",)):
        stage.uow("rules", *words)
    wrong = stage.folder / "wrong.toml"  # in runs, to a topic with another number of partitions
    wrong.write_text(rules.read_text().replace("[[rule.row]]", '[[rule.row]]\nshape = "consecutive"'))
    told = CliRunner().invoke(main, ["rules", "check", str(wrong), "-c", str(stage.users_config)])
    assert "must be 2, as of" in told.output


def work(stage: Stage) -> None:
    """A worker of the user's own: a unit, a refused component, one on a wrong partition, a command, and what it gives up."""
    child = stage.place.spawn("uow", "worker", "-c", stage.users_config, "--name", uuid4().hex[:8])
    try:
        child.wait_output(" ready", LIMIT_S)
        whole, wrong, lost, misled = (str(uuid4()) for _ in range(4))
        stage.put(stage.place.components, b"1", whole.encode(), uow_id=whole, uow_seq="1", uow_end="true")
        stage.put(stage.place.components, b"1", wrong.encode(), uow_id=wrong, uow_seq="0")
        stage.put(stage.place.components, b"1", lost.encode(), uow_id=lost, uow_seq="1")
        strange = 1 - partition_for(misled.encode(), 2)
        stage.put(stage.place.components, b"1", misled.encode(), strange, uow_id=misled, uow_seq="1", uow_end="true")
        stage._run("cancel", stage.name, lost, "--why", "a test", "--timeout", f"{LIMIT_S}s", config=stage.config)
        for key, topic in ((whole, "units"), (wrong, "rejected"), (lost, "errors"), (misled, "units")):
            name = f"{stage.name}.{topic}"
            wait_for(
                lambda key=key, name=name: key.encode() in {each.key() for each in stage.place.read(name)}, LIMIT_S
            )
    finally:
        child.close()


DEEDS: dict[str, Callable[[Stage], None]] = {
    "producer": produce,
    "reader": read,
    "caller": call,
    "forwarder": forward,
    "canceller": give_up,
    "operator": operate,
    "rules-author": author,
    "worker": work,
}


def check(stage: Stage, *roles: str) -> None:
    """The last of the roles runs with the rights of all, and fails without any one of its own."""
    deed, rights = DEEDS[roles[-1]], stage.rights(*roles)
    useless = []
    for right in stage.rights(roles[-1]):
        known = (
            [(*right[:3], "Describe")] if right[3] in ("Read", "Write") else []
        )  # what READ and WRITE imply is not the point
        stage.guard.set(stage.user, [each for each in rights if each != right] + known)
        with suppress(AssertionError, uow.UowError):
            for _ in range(2):  # a broker may hear a little later of what was taken away
                with no_warnings():
                    deed(stage)
            useless.append(right)
    assert useless == []
    stage.guard.set(stage.user, rights)
    with no_warnings():
        deed(stage)


def test_a_producer_and_a_reader_need_each_of_their_rights_and_no_other(stage: Stage) -> None:
    stage.place.worker()
    for role in ("producer", "reader"):
        check(stage, role)


@pytest.mark.drill
@pytest.mark.parametrize("roles", ["caller", "forwarder", "forwarder canceller", "operator", "rules-author"])
def test_a_role_needs_each_of_its_rights_and_no_other(stage: Stage, roles: str) -> None:
    stage.place.worker()
    check(stage, *roles.split())


@pytest.mark.drill
def test_a_worker_needs_each_of_its_rights_and_no_other(
    guarded: GuardedBroker, tmp_path: Path, spawn: Callable[..., Process]
) -> None:
    check(Stage(guarded, tmp_path, spawn, is_routed=False), "worker")
