"""Units over several transactions, resumed after a crash (B-123, B-120)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError
from fake_handles import FakeBroker, consumed, failure

import uow
from tests.fake_record import FakeRecord
from tests.signed_commands import ForeignSigner
from uow import errors
from uow.terminal.printing import wall_clock_ms
from uow.topics.command_keys import CommandKey
from uow.topics.commands import COMMAND, Command, CommandReader
from uow.topics.headers import DIGEST, END, ID, SEQ
from uow.topics.policies import DestinationPolicy

SENDERS, KEY = "shop-senders", b"megazon\0export"


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


@pytest.fixture
def shop(broker: FakeBroker) -> Iterator[uow.Connection]:
    with broker.connect(application="shop") as connection:
        yield connection


def long(connection: uow.Connection, **more: Any) -> uow.UnitWriter:
    return connection.unit("megazon", id="export", resume=True, **more)


def sent(broker: FakeBroker) -> list[tuple[str, Any, Any]]:
    """Topic, number and end mark of what is visible."""
    return [(each.name, each.marks.get(SEQ), each.marks.get(END)) for each in broker.visible]


def as_committed(broker: FakeBroker) -> None:
    """What was sent to `A-senders` lies there, for whoever reads."""
    for each in [each for each in broker.visible if each.name == SENDERS][len(broker.records) :]:
        broker.records.append(
            consumed(each.value, key=each.key, headers=each.headers, topic=SENDERS, offset=len(broker.records))
        )


def test_each_save_commits_the_components_and_how_many_there_are(shop: uow.Connection, broker: FakeBroker) -> None:
    with long(shop) as unit:
        for value in "abc":
            unit.send(value)
        assert unit.save() == 2
        assert sent(broker) == [
            ("megazon.components", b"1", None),
            ("megazon.components", b"2", None),
            (SENDERS, b"2", None),
        ]
        assert (broker.visible[-1].key, broker.visible[-1].value) == (KEY, b"open")
        unit.send("d")
    assert sent(broker)[3:] == [
        ("megazon.components", b"3", None),
        ("megazon.components", b"4", b"true"),
        (SENDERS, b"4", None),
    ]
    assert broker.visible[-1].value is None
    assert DIGEST in broker.visible[-2].marks


def test_a_unit_goes_on_behind_what_is_committed(shop: uow.Connection, broker: FakeBroker) -> None:
    values = [f"value {number}" for number in range(1, 10)]
    crashed = long(shop).__enter__()
    for value in values[:4]:
        crashed.send(value)
    assert crashed.save() == 3
    as_committed(broker)
    crashed.send("lost")
    with broker.connect(application="shop") as other, long(other) as unit:
        assert unit.count == 3
        for value in values[unit.count :]:
            unit.send(value)
    components = [each for each in broker.visible if each.name == "megazon.components"]
    assert [each.value for each in components] == [value.encode() for value in values]
    assert [each.marks[SEQ] for each in components] == [b"%d" % number for number in range(1, 10)]
    assert components[-1].marks[END] == b"true"
    assert DIGEST not in components[-1].marks, "nothing is known of the values before"
    ids = {producer.properties["transactional.id"] for producer in broker.producers}
    assert ids == {"shop-sender-7-megazon-export"}, "whoever resumes fences whoever sent before"


def test_a_program_that_runs_again_after_its_end_sends_nothing(shop: uow.Connection, broker: FakeBroker) -> None:
    for _ in range(2):
        with long(shop) as unit:
            for value in ["a", "b"][unit.count :]:
                unit.send(value)
        as_committed(broker)
    assert len(broker.visible) == 3
    with long(shop) as unit, pytest.raises(errors.UnitClosedError):
        unit.send("one more")


def test_a_block_that_is_left_by_an_exception_cancels_what_is_out(shop: uow.Connection, broker: FakeBroker) -> None:
    def fail(**more: Any) -> None:
        with long(shop, **more) as unit:
            unit.send("a")
            unit.send("b")
            unit.save()
            unit.send("c")
            raise LookupError

    with pytest.raises(LookupError):
        fail(leave_open=True)
    assert [name for name, *_ in sent(broker)] == ["megazon.components", SENDERS]
    broker.visible.clear()
    with pytest.raises(LookupError):
        fail()
    _, _, command, record = broker.visible
    assert (command.name, command.marks[COMMAND], command.marks[ID]) == ("megazon.commands", b"cancel", b"export")
    assert (record.name, record.value, record.marks["uow-outcome"]) == (SENDERS, None, b"cancelled")
    broker.visible[:] = [record]
    as_committed(broker)
    with pytest.raises(errors.UnitClosedError, match="cancelled"), long(shop):
        pass


def test_a_block_that_fails_before_anything_is_out_sends_nothing(shop: uow.Connection, broker: FakeBroker) -> None:
    def fail() -> None:
        with long(shop) as unit:
            unit.send("a")
            unit.send("b")
            raise LookupError

    with pytest.raises(LookupError):
        fail()
    assert broker.visible == []


@pytest.mark.parametrize("verb", [None, "release", "cancel"])
def test_the_cancel_of_a_unit_is_obeyed_where_its_connection_has_a_key_for_it(
    verb: str | None, broker: FakeBroker, tmp_path: Path
) -> None:
    """Its sender does not wait for an answer: without such a key the group stays open."""
    signer = ForeignSigner("exporter")
    key = CommandKey(signer.name, signer.public, frozenset({verb or "cancel"}))
    command_key = signer.write(tmp_path / "exporter.key") if verb is not None else ""

    def fail(connection: uow.Connection) -> None:
        with long(connection) as unit:
            unit.send("a")
            unit.send("b")
            unit.save()
            raise LookupError

    with broker.connect(application="shop", command_key=command_key) as connection, pytest.raises(LookupError):
        fail(connection)
    (sent,) = [each for each in broker.visible if each.name == "megazon.commands"]
    record = FakeRecord(0, sent.headers, sent.value, sent.key, wall_clock_ms())
    found = CommandReader("megazon", DestinationPolicy(command_keys=(key,))).read(sent.headers, record)
    assert isinstance(found, Command) is (verb == "cancel")
    assert found.is_verified is (verb is not None)


def test_a_cancel_that_cannot_be_sent_is_logged_and_hides_no_error(
    shop: uow.Connection, broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        with long(shop) as unit:
            unit.send("a")
            unit.send("b")
            unit.save()
            broker.script["begin_transaction"] = [failure(KafkaError._FENCED, fatal=True)]
            raise LookupError

    with pytest.raises(LookupError):
        fail()
    assert "could not be cancelled" in caplog.text


@pytest.mark.parametrize(
    ("value", "headers"),
    [
        (b"open", []),
        (b"open", [("uow-seq", b"many")]),
        (b"open", [("uow-seq", b"0")]),
        (None, [("uow-seq", b"2")]),
        (b"open", [("uow-seq", b"2"), ("uow-outcome", b"complete")]),
    ],
)
def test_a_record_of_somebody_else_is_told_by_its_place(
    shop: uow.Connection, broker: FakeBroker, value: bytes | None, headers: list[tuple[str, bytes]]
) -> None:
    other: FakeRecord = consumed(b"open", key=b"megazon\0other", headers=[("uow-seq", b"7")], topic=SENDERS)
    broker.records = [other, consumed(value, key=KEY, headers=headers, topic=SENDERS, offset=1)]
    with pytest.raises(errors.DecodeError, match="shop-senders/0/1"), long(shop):
        pass
    broker.records.pop()
    with long(shop, leave_open=True) as unit:
        assert unit.count == 0
        unit.send("a")


def test_what_a_long_unit_needs_is_asked_for(shop: uow.Connection, broker: FakeBroker) -> None:
    with pytest.raises(errors.ConfigError):
        shop.unit("megazon", resume=True)
    with broker.connect() as nameless, pytest.raises(errors.ConfigError):
        nameless.unit("megazon", id="export", resume=True)
    with shop.unit("megazon") as unit:
        unit.send("a")
        with pytest.raises(errors.ClientClosedError):
            unit.save()
