"""Single messages in time: none early, none that has expired, and whose position that is (W-08, W-53, W-58)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from fake_handles import FakeBroker, consumed

import uow
from tests.fake_record import FakeRecord
from uow import errors
from uow.client import timely_messages as messages

NOON = 1_700_000_000_000


class Wall:
    """A clock on the wall that a test sets; every look at it takes no time."""

    now = NOON


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Iterator[Wall]:
    wall = Wall()
    monkeypatch.setattr(messages.InTime.__init__, "__defaults__", (lambda: wall.now,))
    return wall


def said(**times: int) -> list[tuple[str, bytes | None]]:
    return [(name.replace("_", "-"), b"%d" % at) for name, at in times.items()]


def record(offset: int, headers: Any = None, partition: int = 0) -> FakeRecord:
    marks: list[tuple[str, bytes | None]] = [("uow-id", b"order-1"), ("uow-seq", b"%d" % (offset + 1))]
    return consumed(b"v%d" % offset, headers=[*marks, *(headers or [])], partition=partition, offset=offset)


def offsets(reader: uow.Reader[uow.Message], count: int = 9) -> list[tuple[int, int]]:
    found = [message for _ in range(count) if (message := reader.receive(0)) is not None]
    return [(message.partition, message.offset) for message in found]


def test_a_message_waits_for_its_delivery_time_and_so_does_what_is_behind_it_but_no_other_partition_w08(
    fake: FakeBroker, connection: uow.Connection, wall: Wall
) -> None:
    fake.topics = {"t": 2}
    early = said(uow_deliver_at=NOON + 500)
    fake.records = [record(0), record(1, early), record(2), record(0, partition=1), record(1, partition=1)]
    reader = connection.messages("t", group="g")
    assert offsets(reader) == [(0, 0), (1, 0), (1, 1)]
    wall.now += 499
    assert offsets(reader) == []
    wall.now += 1
    assert offsets(reader) == [(0, 1), (0, 2)]


def test_a_message_that_has_expired_is_passed_over_logged_and_counted_w53(
    fake: FakeBroker, connection: uow.Connection, wall: Wall, caplog: pytest.LogCaptureFixture
) -> None:
    fake.records = [record(0, said(uow_expires_at=NOON - 1)), record(1, said(uow_expires_at=NOON)), record(2)]
    reader = connection.messages("t", group="g")
    with caplog.at_level(logging.WARNING):
        assert offsets(reader) == [(0, 1), (0, 2)], "a deadline is passed strictly after it"
    assert reader.given_up == {"expired": 1}
    assert f"t/0/0 is passed over: expired at {NOON - 1}, before it was read" in caplog.text


def test_a_message_that_expires_while_it_waits_is_not_handed_out_w53(
    fake: FakeBroker, connection: uow.Connection, wall: Wall
) -> None:
    fake.records = [record(0, said(uow_deliver_at=NOON + 500, uow_expires_at=NOON + 100)), record(1)]
    reader = connection.messages("t", group="g")
    assert offsets(reader) == []
    wall.now += 101
    assert offsets(reader) == [(0, 1)], "it holds nobody up for longer than it lives"


def test_times_in_the_spelling_of_an_accepted_family_count_and_what_is_no_time_does_not_w17(
    fake: FakeBroker, wall: Wall
) -> None:
    expired: Any = [("JMSExpiration", b"%d" % (NOON - 1))]
    early: Any = [("JMS_BEA_DeliveryTime", b"%d" % (NOON + 1))]
    odd: list[tuple[str, bytes | None]] = [("uow-expires-at", b"soon"), ("uow-deliver-at", None)]
    fake.records = [record(0, odd), record(1, expired), record(2), record(3, early)]
    for families, seen in (["weblogic"], [0, 2]), ([], [0, 1, 2, 3]):
        with fake.connect(accept_aliases=families) as connection:
            assert [offset for _, offset in offsets(connection.messages("t", group=str(families)))] == seen


def test_an_expired_message_may_be_given_to_somebody_else_and_comes_again_if_he_fails_w62(
    fake: FakeBroker, connection: uow.Connection, wall: Wall
) -> None:
    fake.records = [record(0, said(uow_expires_at=NOON - 1)), record(1)]
    given: list[int] = []

    def give(message: uow.Message) -> None:
        given.append(message.offset)
        if len(given) == 1:
            raise RuntimeError("not now")
        connection.forward(message, to="too-late")

    reader = connection.messages("t", group="g", on_expired=give)
    with pytest.raises(RuntimeError, match="not now"):
        reader.receive(0)
    assert offsets(reader) == [(0, 1)]
    assert given == [0, 0]
    assert [sent.name for sent in fake.visible] == ["too-late"]
    assert fake.committed["t", 0] == (1, "")


def test_a_message_that_waits_is_dropped_where_its_partition_is_read_again_from_before_w52(
    fake: FakeBroker, connection: uow.Connection, wall: Wall
) -> None:
    """Else what comes again behind it would be passed by."""
    fake.records = [record(0), record(1, said(uow_deliver_at=NOON + 500)), record(2)]
    reader = connection.messages("t", group="g")
    assert offsets(reader) == [(0, 0)]
    reader.roll_back()
    wall.now += 500
    assert offsets(reader) == [(0, 0), (0, 1), (0, 2)]


def test_a_message_that_waits_goes_with_its_partition_and_is_read_when_that_comes_back_er15(
    fake: FakeBroker, connection: uow.Connection, wall: Wall
) -> None:
    fake.records = [record(0), record(1, said(uow_deliver_at=NOON + 500))]
    reader = connection.messages("t", group="g")
    message = reader.receive(0)
    assert message is not None
    message.acknowledge()
    assert offsets(reader) == []
    fake.consumers[-1].moved("revoke", 0)
    assert offsets(reader, 1) == []
    assert not fake.consumers[-1].paused
    wall.now += 500
    assert offsets(reader) == []
    fake.consumers[-1].moved("assign", 0)
    assert offsets(reader) == [(0, 1)]


def test_nobody_stops_a_topic_for_ever_by_a_delivery_time(
    fake: FakeBroker, connection: uow.Connection, wall: Wall
) -> None:
    fake.records = [record(0, said(uow_deliver_at=NOON + 60_001)), record(1, said(uow_deliver_at=NOON + 60_000))]
    reader = connection.messages("t", group="g", longest_wait_ms=60_000)
    assert offsets(reader) == [(0, 0)]
    assert reader.hurried == 1
    with pytest.raises(errors.ConfigError, match="longest_wait_ms"):
        connection.messages("t", group="g", longest_wait_ms=-1)


def test_a_reader_that_is_closed_hands_out_nothing_that_waited(
    fake: FakeBroker, connection: uow.Connection, wall: Wall
) -> None:
    fake.records = [record(0, said(uow_deliver_at=NOON + 500))]
    reader = connection.messages("t", group="g")
    assert offsets(reader) == []
    reader.close()
    wall.now += 500
    with pytest.raises(errors.ClientClosedError):
        reader.receive(0)
