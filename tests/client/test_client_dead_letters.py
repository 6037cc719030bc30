"""Units that a reader does not hand out: expired before they were read, or delivered in vain too often (W-86, W-87)."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from confluent_kafka import KafkaError
from fake_handles import FakeBroker, failure
from test_client_readers import UNITS, a_unit, record_of
from test_client_runs import of, on_topic, written

import uow
from uow import errors

PAST = 1_000


@pytest.fixture
def fake() -> FakeBroker:
    fake = FakeBroker()
    fake.topics = {UNITS: 1, "megazon.errors": 1}
    return fake


def deliver(fake: FakeBroker, *ids: str) -> None:
    """Units; those whose id begins with `old` expired long ago."""
    units = [replace(a_unit(name), expires_at=PAST if name.startswith("old") else None) for name in ids]
    fake.records += [record_of(unit, offset) for offset, unit in enumerate(units)]


def ids_in_errors(fake: FakeBroker) -> list[bytes | None]:
    return [sent.key for sent in fake.visible if sent.topic() == "megazon.errors"]


@pytest.mark.parametrize("policy", ["discard", "log"])
def test_an_expired_unit_is_not_handed_out_w86(
    fake: FakeBroker, connection: uow.Connection, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    deliver(fake, "old", "fresh")
    caplog.set_level(logging.INFO, "uow.client.dead_letters")
    reader = connection.units("megazon", group="g", expiration_policy=policy, redelivery_limit=-1)
    assert next(reader).id == "fresh"
    assert (ids_in_errors(fake), reader.given_up) == ([], {"expired": 1})
    text = "unit 'old' at megazon.units/0/0 is passed over: unit u-1 of 'old' expired at 1000, before it was read"
    level = logging.WARNING if policy == "log" else logging.INFO
    assert [(each.levelno, each.getMessage()) for each in caplog.records if each.name == "uow.client.dead_letters"] == [
        (level, text)
    ]


@pytest.mark.parametrize("policy", ["redirect", "deliver_partial"])
def test_an_expired_unit_goes_whole_to_errors_with_the_position_behind_it_w86(
    fake: FakeBroker, connection: uow.Connection, policy: str
) -> None:
    deliver(fake, "old", "fresh")
    assert next(connection.units("megazon", group="g", expiration_policy=policy)).id == "fresh"
    (moved,) = fake.visible
    assert (moved.key, moved.value) == (b"old", fake.records[0].value())
    assert moved.headers == [
        *fake.records[0].headers(),
        ("uow-error-class", b"UowError"),
        ("uow-error-case", b"component-expired"),
        ("uow-error-text", b"unit u-1 of 'old' expired at 1000, before it was read"),
        ("uow-source", b"megazon.units/0/0"),
        ("uow-failure-reason", b"expired"),
    ]
    assert fake.committed[UNITS, 0][0] == 1


def test_whoever_looks_without_a_group_sees_expired_units_too_w86(fake: FakeBroker, connection: uow.Connection) -> None:
    deliver(fake, "old")
    reader = connection.units("megazon", group=None, start="earliest", expiration_policy="redirect")
    assert next(reader).id == "old"
    assert ids_in_errors(fake) == []


def test_a_unit_waits_for_its_move_until_everything_before_it_is_acknowledged_w86(
    fake: FakeBroker, connection: uow.Connection
) -> None:
    deliver(fake, "a", "old-1", "b", "old-2", "c")
    reader = connection.units("megazon", group="g", expiration_policy="redirect")
    first, second = next(reader), next(reader)
    assert (first.id, second.id, ids_in_errors(fake)) == ("a", "b", [])
    first.acknowledge()
    third = next(reader)
    assert ids_in_errors(fake) == [b"old-1"]
    assert fake.committed[UNITS, 0][0] == 2
    third.acknowledge()
    assert ids_in_errors(fake) == [b"old-1", b"old-2"]
    assert fake.committed[UNITS, 0][0] == 5


def test_a_later_acknowledgement_takes_along_what_waits_before_it_w86_w87_w117(
    fake: FakeBroker, connection: uow.Connection
) -> None:
    """Every third one is acknowledged: cumulatively, and in one transaction with all that was given up before it."""
    deliver(fake, "a", "old1", "b", "old2", "c", "old3", "d", "e")
    reader = connection.units("megazon", group="g", expiration_policy="redirect")
    units = [next(reader) for _ in range(5)]
    assert [unit.id for unit in units] == ["a", "b", "c", "d", "e"]
    assert ids_in_errors(fake) == []
    units[2].acknowledge()
    assert ids_in_errors(fake) == [b"old1", b"old2", b"old3"]
    assert fake.committed[UNITS, 0][0] == 6
    assert fake.calls.count("commit_transaction") == 1


def test_a_unit_that_waits_for_its_move_comes_again_after_a_roll_back_w86(
    fake: FakeBroker, connection: uow.Connection
) -> None:
    deliver(fake, "a", "old")
    reader = connection.units("megazon", group="g", expiration_policy="redirect")
    assert next(reader).id == "a"
    assert reader.receive(0) is None
    reader.roll_back()
    next(reader).acknowledge()
    assert reader.receive(0) is None
    assert ids_in_errors(fake) == [b"old"]
    assert fake.committed[UNITS, 0][0] == 2


def test_a_unit_delivered_in_vain_too_often_goes_to_errors_and_reading_goes_on_w87(fake: FakeBroker) -> None:
    """Limit 3, a handler that always fails, a restart between: four calls, then the next unit."""
    deliver(fake, "poison", "next")
    calls = []
    for _ in range(2):
        with fake.connect() as connection:
            reader = connection.units("megazon", group="g", redelivery_limit=3)
            for _ in range(2):
                calls.append(next(reader).delivery_count)
                reader.roll_back()
    with fake.connect() as connection:
        following = next(connection.units("megazon", group="g", redelivery_limit=3))
        assert (calls, following.id, following.delivery_count) == ([1, 2, 3, 4], "next", 1)
    (moved,) = fake.visible
    assert (moved.key, moved.marks["uow-failure-reason"], moved.marks["uow-kind"]) == (
        b"poison",
        b"redelivery-limit",
        b"unit",
    )
    assert moved.marks["uow-error-text"] == b"delivered 4 times and not acknowledged; redelivery_limit is 3"
    assert fake.committed[UNITS, 0][0] == 1


def test_without_a_limit_a_unit_is_delivered_for_ever_and_with_none_once_w87(fake: FakeBroker) -> None:
    deliver(fake, "poison")
    with fake.connect() as connection:
        reader = connection.units("megazon", group="g")
        for count in range(1, 20):
            assert next(reader).delivery_count == count
            reader.roll_back()
        reader = connection.units("megazon", group="h", redelivery_limit=0)
        assert next(reader).id == "poison"
        reader.roll_back()
        assert reader.receive(0) is None
        assert ids_in_errors(fake) == [b"poison"]


@pytest.mark.parametrize("streamed", [False, True])
def test_a_run_goes_to_errors_with_all_of_its_records_w87_w116(fake: FakeBroker, streamed: bool) -> None:
    fake.topics = {"D.units": 2, "D.errors": 2}
    fake.records = on_topic(written(*of("a"), *of("b")))
    with fake.connect() as connection:
        open_reader = connection.stream if streamed else connection.units
        reader: uow.Reader[uow.ReceivedUnit] | uow.StreamReader = open_reader("D", group="g", redelivery_limit=0)
        assert next(reader).id == "a"
        reader.roll_back()
        assert next(reader).id == "b"
        assert [sent.marks["uow-pos"] for sent in fake.visible] == [b"1/3", b"2/3", b"3/3"]
        assert fake.committed["D.units", 0][0] == 3


def test_an_expired_envelope_is_not_streamed_either_w86(fake: FakeBroker, connection: uow.Connection) -> None:
    deliver(fake, "old", "fresh")
    assert next(connection.stream("megazon", group="g", expiration_policy="redirect")).id == "fresh"
    assert ids_in_errors(fake) == [b"old"]


def test_a_group_that_moved_on_while_a_unit_was_moved_gets_it_again_w86(
    fake: FakeBroker, connection: uow.Connection
) -> None:
    deliver(fake, "old", "fresh")
    fake.script["send_offsets"] = [failure(KafkaError.ILLEGAL_GENERATION)]
    reader = connection.units("megazon", group="g", expiration_policy="redirect")
    assert next(reader).id == "fresh"
    assert ids_in_errors(fake) == [b"old"]


def test_a_move_that_fails_is_told_and_the_unit_comes_again_w86(fake: FakeBroker, connection: uow.Connection) -> None:
    deliver(fake, "old")
    fake.script["commit_transaction"] = [failure(-1, abort=True)]
    reader = connection.units("megazon", group="g", expiration_policy="redirect")
    with pytest.raises(errors.TransactionRolledBackError):
        reader.receive(0)
    assert ids_in_errors(fake) == []
    assert reader.receive(0) is None
    assert ids_in_errors(fake) == [b"old"]


def test_policies_that_cannot_be_are_refused(connection: uow.Connection) -> None:
    with pytest.raises(errors.ConfigError, match="expiration_policy"):
        connection.units("megazon", group="g", expiration_policy="burn")
    with pytest.raises(errors.ConfigError, match="redelivery_limit"):
        connection.stream("megazon", group="g", redelivery_limit=-2)
