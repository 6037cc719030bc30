"""A producer that wants to hear of refusals does: of its own, whatever lies in `D.rejected` (W-37)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from fake_handles import FakeBroker, consumed

import uow
from tests.fake_record import UNREADABLE_HEADERS
from tests.processes import PATIENCE_S
from uow import Rejection, errors

HeardOf = list[Rejection]


@pytest.fixture
def fake() -> FakeBroker:
    fake = FakeBroker()
    fake.topics = {"D.components": 1, "D.rejected": 1, "E.components": 1, "E.rejected": 0, "t": 1}
    return fake


@pytest.fixture
def heard() -> HeardOf:
    return []


@pytest.fixture
def connection(fake: FakeBroker, heard: HeardOf) -> Iterator[uow.Connection]:
    with fake.connect(on_rejected=heard.append) as connection:
        yield connection


def refused(connection: uow.Connection, *more: tuple[str, bytes | None], offset: int = 0, value: bytes = b"v") -> Any:
    headers: list[tuple[str, bytes | None]] = [
        ("uow-id", b"order-1"),
        ("uow-seq", b"2"),
        ("uow-component-id", b"c-1"),
        ("uow-producer-id", connection.id.encode()),
        *more,
        ("uow-error-class", b"DuplicateSequenceNumberError"),
        ("uow-error-case", b"conflict"),
        ("uow-error-text", b"DuplicateSequenceNumberError (conflict)"),
        ("uow-source", b"D.components/0/17"),
    ]
    return consumed(value, key=b"order-1", headers=headers, topic="D.rejected", offset=offset)


def take(connection: uow.Connection, *records: Any) -> None:
    assert connection._session.refusals is not None
    for record in records:
        connection._session.refusals.take("D", record)


def test_class_case_coordinates_and_ids_are_told_w37(connection: uow.Connection, heard: HeardOf) -> None:
    take(connection, refused(connection, offset=5))
    (one,) = heard
    assert (one.destination, one.error, one.case) == ("D", "DuplicateSequenceNumberError", "conflict")
    assert (one.source, one.coordinates) == ("D.components/0/17", "D.rejected/0/5")
    assert (one.id, one.seq, one.component_id, one.record.value) == ("order-1", "2", "c-1", b"v")


def test_what_is_sent_carries_the_producers_id_where_he_wants_to_hear_w37(
    fake: FakeBroker, connection: uow.Connection
) -> None:
    with connection.unit("D") as unit:
        unit.send("a")
        unit.send("b", to="t")
        unit.send("c", headers={"uow-producer-id": "my own"})
    connection.send("D", "d", id="x", seq=1)
    connection.send("D", "plain")
    ours = connection.id.encode()
    assert [sent.marks.get("uow-producer-id") for sent in fake.visible] == [ours, ours, b"my own", ours, None]
    with fake.connect() as silent:
        silent.send("D", "e", id="x", seq=1)
    assert "uow-producer-id" not in fake.visible[-1].marks


def test_only_refusals_of_its_own_are_told_and_no_record_stops_the_listening_w37(
    connection: uow.Connection, heard: HeardOf
) -> None:
    """What others write there: other ids, two of them, none, headers that nobody can read, reasons forged before the real ones."""

    take(
        connection,
        consumed(topic="D.rejected", headers=None, value=None, key=None),
        consumed(topic="D.rejected", headers=[("uow-producer-id", None)]),
        consumed(topic="D.rejected", headers=[("uow-producer-id", b"somebody else")]),
        refused(connection, ("uow-producer-id", b"somebody else")),
        consumed(topic="D.rejected", headers=UNREADABLE_HEADERS),
    )
    assert heard == []
    bare = consumed(None, topic="D.rejected", headers=[("uow-producer-id", connection.id.encode())])
    odd = refused(connection, ("uow-error-class", b"Forged"), ("x", b"\xff"), ("uow-id", b"\xff"))
    take(connection, bare, odd)
    assert [(each.error, each.id) for each in heard] == [
        ("", None),
        ("DuplicateSequenceNumberError", "\\xff"),
    ]


def test_a_callback_that_raises_is_told_of_the_next_one_all_the_same_w37(
    fake: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[str] = []

    def fail(rejection: Rejection) -> None:
        heard.append(rejection.coordinates)
        raise RuntimeError("by script")

    with fake.connect(on_rejected=fail) as connection, caplog.at_level(logging.ERROR):
        take(connection, refused(connection), refused(connection, offset=1))
    assert heard == ["D.rejected/0/0", "D.rejected/0/1"]
    assert "on_rejected failed at D.rejected/0/0" in caplog.text


def test_a_thread_listens_from_before_the_first_component_until_the_connection_is_closed_w37(fake: FakeBroker) -> None:
    told = threading.Event()
    with fake.connect(on_rejected=lambda rejection: told.set()) as connection:
        connection.send("D", "d", id="x", seq=1)
        connection.send("D", "d", id="x", seq=2)
        assert fake.assigned == [[0]], "one for each destination"
        fake.records.append(refused(connection))
        assert told.wait(PATIENCE_S)
    assert all(consumer.closed for consumer in fake.consumers)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("uow-rejected")]


def test_a_callback_may_close_the_connection_w37(fake: FakeBroker) -> None:
    closed = threading.Event()
    connection = fake.connect(on_rejected=lambda rejection: (connection.close(), closed.set()))
    connection.send("D", "d", id="x", seq=1)
    fake.records.append(refused(connection))
    assert closed.wait(PATIENCE_S)
    with pytest.raises(errors.ClientClosedError):
        connection.send("D", "d", id="x", seq=2)


def test_a_destination_without_a_topic_of_refusals_is_told_before_anything_is_sent_w37(
    fake: FakeBroker, connection: uow.Connection
) -> None:
    with pytest.raises(errors.DestinationUnavailableError, match=r"E\.rejected"):
        connection.send("E", "d", id="x", seq=1)
    with pytest.raises(errors.DestinationUnavailableError, match=r"E\.rejected"):
        connection.unit("E")
    assert fake.visible == []
