"""Policies as the destination's workers recorded them, and deliveries that are counted before a unit is opened (W-86, W-87)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from confluent_kafka import KafkaError
from fake_handles import FakeBroker, consumed, failure
from test_client_readers import ERRORS, UNITS, a_unit, record_of

import uow
from uow.client.failure_policies import changelogs_of
from uow.processor.engine.settings_record import row_of
from uow.schemas import codec
from uow.schemas.records import SETTINGS_KEY, SettingsRow
from uow.topics.policies import DestinationPolicy, ExpirationPolicy, HandlingPolicy


@pytest.fixture
def fake() -> FakeBroker:
    fake = FakeBroker()
    fake.topics = {UNITS: 1, ERRORS: 1, "shop-megazon-groups-changelog": 2, "megazon.components": 1}
    fake.records = [record_of(replace(a_unit("old"), expires_at=1), 0), record_of(a_unit("fresh"), 1)]
    return fake


def record_settings(
    fake: FakeBroker, row: SettingsRow | bytes, partition: int, at: int, topic: str = "shop-megazon-groups-changelog"
) -> None:
    value = row if isinstance(row, bytes) else codec.frame(row)
    offset = sum(1 for each in fake.records if (each.topic(), each.partition()) == (topic, partition))
    place = {"topic": topic, "partition": partition, "offset": offset}
    fake.records.append(consumed(value, key=SETTINGS_KEY, timestamp=at, **place))  # type: ignore[arg-type]


def told(**settings: object) -> SettingsRow:
    forms_units = DestinationPolicy(HandlingPolicy.SINGLE_MESSAGE_DELIVERY)
    return row_of(replace(forms_units, **settings))  # type: ignore[arg-type]


def in_errors(fake: FakeBroker) -> list[bytes | None]:
    return [sent.key for sent in fake.visible if sent.topic() == ERRORS]


@pytest.mark.parametrize("application", ["", "shop", "renamed"])
def test_the_newest_row_of_any_partition_holds_w86(fake: FakeBroker, application: str) -> None:
    record_settings(fake, told(expiration_policy=ExpirationPolicy.LOG), 0, at=5)
    record_settings(fake, told(expiration_policy=ExpirationPolicy.REDIRECT), 1, at=9)
    record_settings(fake, told(expiration_policy=ExpirationPolicy.DISCARD), 0, at=7)
    with fake.connect(application=application) as connection:
        assert next(connection.units("megazon", group="g")).id == "fresh"
    assert in_errors(fake) == [b"old"]


def test_what_is_recorded_at_its_default_is_known_and_an_argument_overrides_w86_w87(fake: FakeBroker) -> None:
    record_settings(fake, told(redelivery_limit=0), 0, at=5)
    with fake.connect() as connection:
        reader = connection.units("megazon", group="g")
        assert next(reader).id == "fresh"
        assert (in_errors(fake), reader.given_up) == ([], {"expired": 1})
        reader.roll_back()
        assert reader.receive(0) is None
        assert reader.receive(0) is None
        assert in_errors(fake) == [b"fresh"]
        reader.close()
        fake.committed.clear()
        reader = connection.units("megazon", group="h", expiration_policy="redirect", redelivery_limit=-1)
        assert next(reader).id == "fresh"
        assert in_errors(fake) == [b"fresh", b"old"]


@pytest.mark.parametrize("row", [None, b"nonsense", SettingsRow((("expiration_policy", "burn"),))])
def test_where_nothing_is_known_nothing_is_thrown_away_w86(
    fake: FakeBroker, connection: uow.Connection, row: SettingsRow | bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    if row is not None:
        record_settings(fake, row, 0, at=5)
    assert next(connection.units("megazon", group="g")).id == "fresh"
    assert in_errors(fake) == [b"old"]
    assert "the settings of destination megazon are not known" in caplog.text


def test_a_topic_belongs_to_the_destination_with_the_longest_name_that_fits() -> None:
    here = ["shop-megazon-groups-changelog", "a-west-megazon-groups-changelog", "megazon.components"]
    assert changelogs_of("megazon", here) == ["a-west-megazon-groups-changelog", "shop-megazon-groups-changelog"]
    with_other = [*here, "west-megazon.components"]
    assert changelogs_of("megazon", with_other) == ["shop-megazon-groups-changelog"]
    assert changelogs_of("west-megazon", with_other) == ["a-west-megazon-groups-changelog"]


def test_two_applications_are_told_apart_by_name_only(
    fake: FakeBroker, connection: uow.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    fake.topics["bank-megazon-groups-changelog"] = 1
    record_settings(fake, told(), 0, at=5)
    assert next(connection.units("megazon", group="g")).id == "fresh"
    assert "bank-megazon-groups-changelog, shop-megazon-groups-changelog; give application=" in caplog.text


@pytest.mark.parametrize("call", ["units", "stream"])
def test_under_a_limit_a_delivery_is_committed_before_the_unit_is_handed_out_w87(
    fake: FakeBroker, connection: uow.Connection, call: str
) -> None:
    fake.records = [record_of(a_unit(f"u-{offset}"), offset) for offset in range(4)]
    reader = getattr(connection, call)("megazon", group="g", redelivery_limit=3, expiration_policy="discard")
    first = next(reader)
    assert fake.committed[UNITS, 0] == (0, "d1;0:1")
    next(reader)
    assert fake.committed[UNITS, 0] == (0, "d1;1:1")
    first.acknowledge()
    assert fake.committed[UNITS, 0] == (1, "d1;1:1")


def test_without_a_limit_nothing_is_committed_for_a_delivery(fake: FakeBroker, connection: uow.Connection) -> None:
    fake.records = [record_of(a_unit(f"u-{offset}"), offset) for offset in range(4)]
    reader = connection.units("megazon", group="g", redelivery_limit=-1, expiration_policy="discard")
    next(reader)
    next(reader)
    assert fake.commits == []


def test_a_unit_that_cannot_be_counted_in_a_rebalance_is_not_handed_out_until_it_can_w87(
    fake: FakeBroker, connection: uow.Connection
) -> None:
    fake.records = [record_of(a_unit("a"), 0)]
    fake.script["commit"] = [failure(KafkaError.ILLEGAL_GENERATION)]
    reader = connection.units("megazon", group="g", redelivery_limit=3, expiration_policy="discard")
    assert reader.receive(0) is None
    unit = next(reader)
    assert (unit.id, unit.delivery_count, fake.committed[UNITS, 0]) == ("a", 1, (0, "d1;0:1"))


def test_a_consumer_that_dies_each_time_meets_its_limit_at_the_unit_that_kills_it_w87(fake: FakeBroker) -> None:
    """Nothing is closed. Two poisons, each after units that are acknowledged: order stays, nothing else is given up."""
    fake.records = [
        record_of(a_unit(name), offset) for offset, name in enumerate(["a", "poison-1", "b", "poison-2", "c"])
    ]
    handled: list[tuple[str, int]] = []
    for _ in range(7):
        connection = fake.connect()
        reader = connection.units("megazon", group="g", redelivery_limit=2, expiration_policy="discard")
        while (unit := next(reader)).id != "c":
            handled.append((unit.id, unit.delivery_count))
            if unit.id.startswith("poison"):
                break
            unit.acknowledge()
        fake.kill(connection)  # killed
        if unit.id == "c":
            break
    poisoned = [(f"poison-{n}", count) for n in (1, 2) for count in (1, 2, 3)]
    assert handled == [("a", 1), *poisoned[:3], ("b", 1), *poisoned[3:]]
    assert in_errors(fake) == [b"poison-1", b"poison-2"]
