"""Signed commands on a real broker with a real worker, sent by a client that shares no code with ours (`tests/signed_commands.py`)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.broker.worker_places import Destination
from tests.kafka_broker import Kafka
from tests.processes import PATIENCE_S, Process, wait_for
from tests.signed_commands import ForeignSigner, Headers
from uow import connect
from uow.cli.main import main
from uow.config.loading import load
from uow.ops.destination_logs import log_reader
from uow.ops.recorded_rights import rights_complaint
from uow.schemas import codec
from uow.schemas.records import Answer
from uow.terminal.printing import wall_clock_ms
from uow.topics.catalogue import DestinationTopics


@pytest.fixture
def place(broker: Kafka, unique: str, tmp_path: Path, spawn: Callable[..., Process]) -> Destination:
    return Destination(broker.bootstrap, unique, tmp_path, spawn, partitions=2)


class Signed:
    """A destination whose operators and whose forwarder have a key each."""

    def __init__(self, place: Destination) -> None:
        self.place, self.forwarder, self.answered = place, ForeignSigner("forwarder"), 0
        self.key = place.config.parent / "operators.key"
        made = CliRunner().invoke(main, ["command-key", "create", "operators", "--out", str(self.key)])
        assert made.exit_code == 0, made.output
        lines = made.output.replace("NAME", place.name)
        lines += f'[[destinations.{place.name}.command_keys]]\nname = "forwarder"\npublic = "{self.forwarder.public}"\n'
        place.create(outcomes="all", late_policy="reopen")
        place.config.write_text(f'{place.config.read_text()}\n{lines}verbs = ["cancel"]\nfrom = 2026-01-01T00:00:00Z\n')
        self.producer = Producer({"bootstrap.servers": place.bootstrap, "partitioner": "murmur2_random"})

    def run(self, *arguments: str, **env: str) -> Result:
        asked = [*arguments, "-c", str(self.place.config)]
        return CliRunner().invoke(main, asked, env=env, catch_exceptions=False)

    def release(self, id: str, *more: str) -> Result:
        asked = "release", self.place.name, id, "--why", "w", "--by", "Jill", "--json", *more
        return self.run(*asked, UOW_APPLICATION__COMMAND_KEY=str(self.key))

    def send(self, id: str, headers: Headers) -> tuple[bool, str, str | None, bytes | None]:
        """Sends a command. Returns what is answered: done, text, the name and whether it is proved."""
        self.producer.produce(f"{self.place.name}.commands", None, id.encode(), headers=headers)  # type: ignore[arg-type]
        assert self.producer.flush(PATIENCE_S) == 0
        wait_for(lambda: len(self.answers()) > self.answered)
        self.answered += 1
        return self.answers()[-1]

    def answers(self) -> list[tuple[bool, str, str | None, bytes | None]]:
        records = self.place.read(f"{self.place.name}.outcomes")
        records = [each for each in records if ("uow-kind", b"answer") in each.headers()]
        read = [
            (codec.decode_as(Answer, each.value()), dict(each.headers()))
            for each in sorted(records, key=lambda each: each.timestamp())
        ]
        return [(one.done, one.text, one.by, said.get("uow-user-verified")) for one, said in read]

    def open_groups(self) -> set[str]:
        return {group["id"] for group in json.loads(self.run("groups", self.place.name, "--json").output)["groups"]}


def asked(verb: str, id: str, command_id: str) -> Headers:
    said = {"uow-command": verb, "uow-command-id": command_id, "uow-id": id, "uow-why": "because"}
    return [(name, text.encode()) for name, text in said.items()]


def test_who_may_write_commands_may_send_only_those_that_his_key_may_sign_over_restarts_and_in_a_rebuild(
    place: Destination,
) -> None:
    signed, name = Signed(place), place.name
    worker = place.worker()
    id, other = place.fitting(0, 2)  # noqa: A001
    place.send([(id, 1, False), (other, 1, False)])
    wait_for(lambda: signed.open_groups() == {id, other})
    begun = wall_clock_ms()

    unsigned = [*asked("release", id, "1"), ("uow-user-id", b"operators")]
    assert signed.send(id, unsigned)[::2] == (False, "operators")
    forged = ForeignSigner("operators").sign(name, id.encode(), asked("release", id, "2"), wall_clock_ms())
    assert signed.send(id, forged) == (
        False,
        "refused: the signature is not that of key 'operators' on this record",
        "operators",
        b"false",
    )
    of_forwarder = signed.forwarder.sign(name, id.encode(), asked("release", id, "3"), wall_clock_ms())
    assert signed.send(id, of_forwarder) == (
        False,
        "refused: key 'forwarder' has no right to release",
        "forwarder",
        b"true",
    )
    elsewhere = signed.forwarder.sign("elsewhere", other.encode(), asked("cancel", other, "4"), wall_clock_ms())
    assert not signed.send(other, elsewhere)[0]
    long_ago = signed.forwarder.sign(name, other.encode(), asked("cancel", other, "5"), wall_clock_ms() - 3_600_000)
    assert "refused: it was appended more than" in signed.send(other, long_ago)[1]
    assert signed.open_groups() == {id, other}

    cancel = signed.forwarder.sign(name, other.encode(), asked("cancel", other, "6"), wall_clock_ms())
    assert signed.send(other, cancel)[::2] == (True, "forwarder")
    released = signed.release(id)
    assert released.exit_code == 0, released.output
    answer = json.loads(released.output)
    assert (answer["done"], answer["by"], answer["by_verified"]) == (True, "operators", True)
    signed.answered += 1
    assert signed.open_groups() == set()

    trail = signed.run("show", name, id).output
    assert "release, by operators: w" in trail
    assert "release, by operators (unverified), refused: because" in trail
    assert "release, by forwarder, refused: because" in trail

    place.send([(id, 2, False)])
    wait_for(lambda: signed.open_groups() == {id})
    (copied,) = [each for each in place.read(f"{name}.commands") if dict(each.headers())["uow-why"] == b"w"]
    assert signed.send(id, copied.headers())[:2] == (False, "a repeated command does nothing more")
    assert worker.child.terminate(60) == 0
    again = place.worker("1")
    assert signed.send(id, copied.headers())[:2] == (False, "a repeated command does nothing more")
    assert signed.send(id, forged)[0] is False
    assert signed.open_groups() == {id}
    assert signed.release(id).exit_code == 0
    place.wait_delivered(2)
    assert again.child.terminate(60) == 0

    compared = signed.run("rebuild", name, "--from", str(begun), "--dry-run", "--json")
    assert compared.exit_code == 0, compared.output
    assert json.loads(compared.stdout)["differences"] == []


def test_rights_are_compared_while_the_open_transaction_of_a_dead_worker_holds_another_partition(
    place: Destination,
) -> None:
    """A question for stable offsets would wait until it ends."""
    signed, name = Signed(place), place.name
    worker = place.worker()
    id, other = place.fitting(0, 1), place.fitting(1, 1)  # noqa: A001
    place.send([(id[0], 1, False), (other[0], 1, False)])
    wait_for(lambda: signed.open_groups() == {id[0], other[0]})
    assert worker.child.terminate(60) == 0
    settings = load(place.config, {})
    group = settings.application_id
    dead = Producer({"bootstrap.servers": place.bootstrap, "transactional.id": f"dead-{name}"})
    dead.init_transactions(PATIENCE_S)
    dead.begin_transaction()
    asking = Consumer({"bootstrap.servers": place.bootstrap, "group.id": group})
    held = TopicPartition(f"{name}.components", 1, 1)
    dead.send_offsets_to_transaction([held], asking.consumer_group_metadata(), PATIENCE_S)
    topics = DestinationTopics(group, name)
    without = replace(settings.policy(name), command_keys=())
    with log_reader(settings, PATIENCE_S) as reader:
        assert rights_complaint(reader, topics, range(2), settings.policy(name)) is None
        assert rights_complaint(reader, topics, range(2), without) is not None
    dead.abort_transaction(PATIENCE_S)
    asking.close()


def test_a_forwarder_cancels_by_the_key_of_its_connection_and_not_without_one(place: Destination) -> None:
    signed, name, hop = Signed(place), place.name, f"{place.name}.rejected"
    key = signed.forwarder.write(place.config.parent / "forwarder.key")
    place.worker()
    place.send([("order", 1, False)])
    wait_for(lambda: signed.open_groups() == {"order"})
    for command_key in ("", key):
        with connect(place.bootstrap, command_key=command_key) as connection:
            connection.send(name, b"nobody has it", id="order", seq=2, to=hop)
            message = next(iter(connection.messages(hop, group=name)))
            answer = connection.cancel(message, destination=name, why="out of stock", by="Jill").answer(PATIENCE_S)
        assert answer is not None
        assert (answer.done, answer.by) == ((True, "forwarder") if command_key else (False, "Jill"))
        assert signed.open_groups() == (set() if command_key else {"order"})
