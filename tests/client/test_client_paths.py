"""A sender under path routing: claims before the first component, sends straight there, and hashes where there is no path map (W-105)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from confluent_kafka import KafkaError
from fake_handles import FakeBroker, consumed, failure

import uow
from uow import errors
from uow.client import kafka_port, session
from uow.client.outgoing import HASHED
from uow.processor.engine.ports import Doubt
from uow.topics.commands import Command, Verb
from uow.topics.partitioner import partition_for
from uow.topics.path_map import PathMap, claim_key, claim_value

MAP = "shop-megazon-path-map"


class FakeLog:
    """In place of `KafkaPathLog`: everybody's claims, in order."""

    claims: list[tuple[bytes, int]]
    doubts: int

    def __init__(self, topics: Any, paths: PathMap, make_consumer: Callable[[], Any], make_producer: Any) -> None:
        assert topics.path_map == MAP
        self.paths, self._next, self._consumer = paths, 0, make_consumer()
        make_producer()

    def catch_up(self) -> None:
        for number, (group_id, partition) in [*enumerate(self.claims)][self._next :]:
            self.paths.read(claim_key(group_id, number.to_bytes(16, "big")), claim_value(partition), 0)
        self._next = len(self.claims)

    def claim(self, wanted: Mapping[bytes, int]) -> None:
        if FakeLog.doubts:
            FakeLog.doubts -= 1
            raise Doubt("by script")
        self.claims.extend(wanted.items())
        self.catch_up()

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeBroker:
    broker = FakeBroker()
    broker.topics = {"megazon.components": 4, "megazon.commands": 4, MAP: 1, "other.components": 4, "t": 1, "on": 1}
    broker.topics["shop-other-path-map"] = 0
    FakeLog.claims, FakeLog.doubts = [], 0
    monkeypatch.setattr(session, "KafkaPathLog", FakeLog)
    return broker


@pytest.fixture
def connection(fake: FakeBroker) -> Iterator[uow.Connection]:
    with fake.connect(application="shop") as connection:
        yield connection


def to(fake: FakeBroker) -> list[int]:
    return [sent.to for sent in fake.visible]


def test_unit_is_claimed_once_and_all_of_it_goes_there_w105(fake: FakeBroker, connection: uow.Connection) -> None:
    with connection.unit("megazon", id="a") as unit:
        unit.send("x")
        unit.send("y")
        unit.send("z", to="on")
    assert FakeLog.claims == [(b"a", partition_for(b"a", 4))]
    assert to(fake) == [partition_for(b"a", 4)] * 2 + [HASHED]


def test_placement_that_somebody_else_claimed_is_followed_w105(fake: FakeBroker, connection: uow.Connection) -> None:
    other = (partition_for(b"a", 4) + 1) % 4
    connection.send("megazon", "x", id="z", seq=1)
    FakeLog.claims += [(b"a", other), (b"a", 0)]
    connection.send("megazon", "x", id="a", seq=1)
    connection.send("megazon", "x", id="a", seq=2, to="on")
    connection.send("megazon", "plain", key="k")
    assert to(fake)[1:] == [other, HASHED, HASHED]


def test_least_claimed_partition_is_chosen_w105(fake: FakeBroker, connection: uow.Connection) -> None:
    for number in range(40):
        connection.send("megazon", "x", id=f"g{number}", seq=1)
    assert [to(fake).count(partition) for partition in range(4)] == [10] * 4


def test_new_ids_use_partitions_that_are_added_w215(
    fake: FakeBroker, connection: uow.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The count is asked for again; that it changed is no error here, unlike under hash (W-107)."""
    for name in ("a", "b", "c", "d"):
        connection.send("megazon", "x", id=name, seq=1)
    fake.topics["megazon.components"] = 8
    monkeypatch.setattr("uow.client.path_claims.REFRESH_S", -1.0)
    monkeypatch.setattr(kafka_port, "REFRESH_S", -1.0)
    fake.script["produce"] = [failure(KafkaError._UNKNOWN_PARTITION)]  # the handle has not heard of it yet
    for name in ("e", "f", "g", "h"):
        connection.send("megazon", "x", id=name, seq=1)
    assert sorted(to(fake)[4:]) == [4, 5, 6, 7]


def test_hop_and_commands_follow_the_placement_w105(fake: FakeBroker, connection: uow.Connection) -> None:
    fake.records = [consumed(headers=[("uow-id", b"a"), ("uow-seq", b"1")]), consumed(headers=[], offset=1)]
    FakeLog.claims.append((b"a", 3))
    reader = connection.messages("t", group="g")
    component, plain = reader.receive(0), reader.receive(0)
    assert component is not None
    assert plain is not None
    connection.forward(component, destination="megazon")
    connection.forward(plain, destination="megazon")
    connection.command("megazon", Command(b"c", Verb.CANCEL, b"a", "why"))
    connection.command("megazon", Command(b"d", Verb.CANCEL, b"unknown", "why"))
    assert to(fake) == [3, HASHED, 3, HASHED]
    assert FakeLog.claims == [(b"a", 3)], "a command claims nothing"


def test_destination_without_a_path_map_is_hashed_and_asked_for_once_w104(
    fake: FakeBroker, connection: uow.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "KafkaPathLog", lambda *_: None)
    fake.topics = {"other.components": 4}
    for _ in range(2):
        connection.send("other", "x", id="a", seq=1)
    assert to(fake) == [HASHED] * 2
    assert len(fake.consumers) == 1
    assert fake.consumers[0].closed


def test_sender_that_was_not_told_the_application_hashes_w105(fake: FakeBroker) -> None:
    with fake.connect() as connection:
        connection.send("megazon", "x", id="a", seq=1)
    assert (to(fake), fake.consumers) == ([HASHED], [])


def test_map_that_does_not_answer_is_told_and_harms_nothing_w105(fake: FakeBroker, connection: uow.Connection) -> None:
    FakeLog.doubts = 1
    with pytest.raises(errors.ReconnectTimeoutError, match="by script"):
        connection.send("megazon", "x", id="a", seq=1)
    connection.send("megazon", "x", id="a", seq=1)
    assert len(fake.visible) == 1


def test_unknown_partition_of_a_hashed_record_is_no_reason_to_ask(fake: FakeBroker) -> None:
    fake.script["produce"] = [failure(KafkaError._UNKNOWN_PARTITION)]
    with fake.connect() as connection, pytest.raises(errors.DestinationUnavailableError):
        connection.send("megazon", "x", id="a", seq=1)


def test_units_of_one_order_key_are_claimed_for_one_partition_w210(
    fake: FakeBroker, connection: uow.Connection
) -> None:
    line = b"\xffjill"
    for name in ("a", "b"):
        with connection.unit("megazon", id=name, headers={"uow-order-key": "jill"}) as unit:
            unit.send("x")
    connection.send("megazon", "x", id="c", seq=1, headers={"uow-order-key": "jill"})
    fake.records = [consumed(headers=[("uow-id", b"d"), ("uow-seq", b"1"), ("uow-order-key", b"jill")])]
    message = connection.messages("t", group="g").receive(0)
    assert message is not None
    connection.forward(message, destination="megazon")
    home = partition_for(line, 4)
    assert FakeLog.claims == [(line, home), *[(name, home) for name in (b"a", b"b", b"c", b"d")]]
    assert to(fake) == [home] * 4
