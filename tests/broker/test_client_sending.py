"""The client against a real broker: sending (W-18, W-41, W-45 to W-51, W-54, W-59, W-109)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from client_places import Topics, headers_of

import uow
from tests.broker.worker_places import Destination
from tests.processes import stretched, wait_for
from uow import errors
from uow.schemas import codec
from uow.schemas.records import Outcome
from uow.topics.headers import (
    COMPONENT_ID,
    CORRELATION_ID,
    END,
    ID,
    PRIORITY,
    SEQ,
)
from uow.topics.partitioner import partition_for


@pytest.fixture
def places(broker: Any) -> Topics:
    return Topics(broker.bootstrap)


@pytest.fixture
def destination(places: Topics) -> str:
    """A destination of this test alone."""
    name = f"sending-{uuid4().hex[:8]}"
    places.make(f"{name}.components", f"{name}-hop")
    return name


@pytest.fixture
def connection(places: Topics) -> Iterator[uow.Connection]:
    with uow.connect(places.bootstrap) as connection:
        yield connection


def test_a_unit_arrives_whole_with_numbers_and_one_end_mark(
    connection: uow.Connection, places: Topics, destination: str
) -> None:
    """W-45, W-51: numbers from 1, the end mark on the last one, keys raw, one transaction over two topics."""
    with connection.unit(destination, correlation_id="order 7", priority=6) as unit:
        assert unit.send({"item": "flash drive"}, to=f"{destination}-hop") == 1
        unit.send("é")
        unit.send(b"\x00\xff")
        unit.send(None)
    straight = sorted(places.read(f"{destination}.components"), key=lambda record: headers_of(record)[SEQ])
    (hop,) = places.read(f"{destination}-hop")
    assert json.loads(hop.value() or b"") == {"item": "flash drive"}
    assert [record.value() for record in straight] == ["é".encode(), b"\x00\xff", None]
    records = [hop, *straight]
    assert [headers_of(record)[SEQ] for record in records] == [b"1", b"2", b"3", b"4"]
    assert [headers_of(record).get(END) for record in records] == [None, None, None, b"true"]
    assert {headers_of(record)[ID] for record in records} == {unit.id.encode()}
    assert {record.key() for record in records} == {unit.id.encode()}
    assert len({headers_of(record)[COMPONENT_ID] for record in records}) == 4
    assert {headers_of(record)[CORRELATION_ID] for record in records} == {b"order 7"}
    assert {headers_of(record)[PRIORITY] for record in records} == {b"6"}


def test_an_exception_in_the_block_sends_nothing_and_the_id_stays_usable(
    connection: uow.Connection, places: Topics, destination: str
) -> None:
    """W-46: aborted means never sent."""

    def checkout() -> None:
        with connection.unit(destination, id="order-1") as unit:
            for number in range(3):
                unit.send({"number": number})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        checkout()
    assert places.read(f"{destination}.components") == []
    with connection.unit(destination, id="order-1") as unit:
        unit.send("again")
    (record,) = places.read(f"{destination}.components")
    assert record.value() == b"again"
    assert headers_of(record)[END] == b"true"


def test_many_units_of_one_connection_use_one_transactional_id(
    connection: uow.Connection, places: Topics, destination: str
) -> None:
    """Transactions follow each other on one producer, aborted ones among them (R-77)."""
    for number in range(40):
        try:
            with connection.unit(destination, id=f"order-{number}") as unit:
                unit.send("1")
                unit.send("2")
                if number % 2:
                    raise KeyError(number)
        except KeyError:
            pass
    ids = {record.key() for record in places.read(f"{destination}.components")}
    assert ids == {b"order-%d" % number for number in range(0, 40, 2)}


def test_two_units_may_be_open_at_once(connection: uow.Connection, places: Topics, destination: str) -> None:
    """Each has a transaction of its own: one aborts, the other commits."""

    def give_up() -> None:
        with connection.unit(destination, id="inner") as inner:
            inner.send("1")
            inner.send("2")
            raise KeyError

    with connection.unit(destination, id="outer") as outer:
        outer.send("1")
        outer.send("2")
        with pytest.raises(KeyError):
            give_up()
    assert {record.key() for record in places.read(f"{destination}.components")} == {b"outer"}


def test_a_unit_larger_than_the_send_buffer_is_sent_as_it_comes(places: Topics, destination: str) -> None:
    """W-45: a large unit is never held in memory as a whole."""
    with (
        uow.connect(places.bootstrap, kafka={"queue.buffering.max.messages": 100}) as connection,
        connection.unit(destination) as unit,
    ):
        for number in range(2000):
            unit.send(str(number))
    found = places.read(f"{destination}.components")
    assert [record.value() for record in found] == [str(number).encode() for number in range(2000)]


def test_a_topic_that_does_not_exist_is_told_at_once(
    connection: uow.Connection, places: Topics, destination: str
) -> None:
    """R-04's certain case; nothing of the unit is visible."""

    def checkout() -> None:
        with connection.unit(destination) as unit:
            unit.send("1")
            unit.send("2", to="no-such-topic")
            unit.send("3")

    with pytest.raises(errors.DestinationUnavailableError, match="no-such-topic"):
        checkout()
    assert places.read(f"{destination}.components") == []
    with connection.unit(destination) as unit:
        unit.send("after it")
    assert len(places.read(f"{destination}.components")) == 1


def test_a_record_that_is_too_large_rolls_the_unit_back(
    connection: uow.Connection, places: Topics, destination: str
) -> None:
    """Refused for good: certainly not written."""

    def checkout() -> None:
        with connection.unit(destination) as unit:
            unit.send("1")
            unit.send(b"x" * 2_000_000)
            unit.send("3")

    with pytest.raises(errors.SendRejectedError):
        checkout()
    assert places.read(f"{destination}.components") == []


def test_a_unit_that_swallows_the_error_of_a_send_is_not_committed(
    connection: uow.Connection, places: Topics, destination: str
) -> None:
    """W-45: never a unit with a hole in it."""

    def checkout() -> None:
        with connection.unit(destination) as unit:
            unit.send(b"x" * 11_000_000)  # more than the client itself takes
            with pytest.raises(errors.SendRejectedError):
                unit.send("2")

    with pytest.raises(errors.SendRejectedError):
        checkout()
    assert places.read(f"{destination}.components") == []


def test_every_client_sends_one_id_to_one_partition(
    connection: uow.Connection, places: Topics, destination: str
) -> None:
    """W-103, W-109: murmur2 of the raw key bytes."""
    for number in range(50):
        connection.send(destination, "x", id=f"id-{number}é", seq=1, end=True)
    for record in places.read(f"{destination}.components"):
        assert record.partition() == partition_for(record.key() or b"", 4)


def test_threads_share_a_unit_by_numbering_themselves(
    connection: uow.Connection, places: Topics, destination: str
) -> None:
    """W-03, W-41: four threads send 25 disjoint numbers each."""

    def send(first: int) -> None:
        for seq in range(first, 101, 4):
            connection.send(destination, str(seq), id="shared", seq=seq, end=seq == 100)

    threads = [threading.Thread(target=send, args=(first,)) for first in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    found = places.read(f"{destination}.components")
    assert sorted(int(headers_of(record)[SEQ]) for record in found) == list(range(1, 101))
    assert len({record.partition() for record in found}) == 1


def test_sent_says_where_the_record_lies(connection: uow.Connection, places: Topics, destination: str) -> None:
    component = uow.Component("x")
    sent = connection.send(destination, component, id="a", seq=1)
    (record,) = places.read(f"{destination}.components")
    assert (sent.topic, sent.partition, sent.offset) == (record.topic(), record.partition(), record.offset())
    assert headers_of(record)[COMPONENT_ID] == component.component_id.encode()


KILLED = """
import os, signal, sys, uow
bootstrap, destination = sys.argv[1:]
with uow.connect(bootstrap, transactional_id=destination) as connection, connection.unit(destination, id="order-1") as unit:
    for _ in range(3):
        unit.send("first attempt")
    unit._transaction._transaction._producer.handle.flush(10)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_producer_leaves_nothing_and_its_successor_need_not_wait(places: Topics, destination: str) -> None:
    """W-47: a restart with the same transactional id ends the orphan at once."""
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, places.bootstrap, destination], timeout=stretched(60), check=False
    )
    assert killed.returncode == -signal.SIGKILL
    assert len(places.read(f"{destination}.components", "read_uncommitted")) == 2
    with (
        uow.connect(places.bootstrap, transactional_id=destination) as connection,
        connection.unit(destination, id="order-1") as unit,
    ):
        unit.send("second attempt")
    (record,) = places.read(f"{destination}.components")
    assert record.value() == b"second attempt"


def test_a_successor_fences_the_older_connection(places: Topics, destination: str) -> None:
    """Two live connections must not share a transactional id: the older one is told, and keeps being told."""
    with (
        uow.connect(places.bootstrap, transactional_id=destination) as older,
        uow.connect(places.bootstrap, transactional_id=destination) as newer,
    ):
        with older.unit(destination, id="a") as unit:
            unit.send("1")
        with newer.unit(destination, id="b") as unit:
            unit.send("1")
        for _ in range(2):
            with pytest.raises(errors.FencedError), older.unit(destination, id="c") as unit:
                unit.send("1")
        with newer.unit(destination, id="d") as unit:
            unit.send("1")
    assert {record.key() for record in places.read(f"{destination}.components")} == {b"a", b"b", b"d"}


def test_a_long_unit_goes_on_where_its_lost_sender_stood_b123(places: Topics, destination: str) -> None:
    """Three of nine are committed, a fourth is not; the lost sender, which lives on somewhere, adds nothing more."""
    places.make(f"{destination}-senders")
    values = [b"%d" % number for number in range(1, 10)]

    def unit(connection: uow.Connection) -> uow.UnitWriter:
        return connection.unit(destination, id="export", resume=True)

    with (
        uow.connect(places.bootstrap, application=destination) as first,
        uow.connect(places.bootstrap, application=destination) as second,
    ):
        lost = unit(first).__enter__()
        for value in values[:4]:
            lost.send(value)
        assert lost.save() == 3
        lost.send(b"lost")
        with unit(second) as resumed:
            assert resumed.count == 3
            for value in values[resumed.count :]:
                resumed.send(value)
        with pytest.raises(errors.FencedError):
            lost.save()
        with unit(second) as again:
            assert again.count == 9
    records = sorted(places.read(f"{destination}.components"), key=lambda record: int(headers_of(record)[SEQ]))
    assert [record.value() for record in records] == values
    assert [headers_of(record).get(END) for record in records] == [None] * 8 + [b"true"]


def test_no_broker_is_told_within_the_blocking_time() -> None:
    """R-22: a call waits for a connection, but not for ever."""
    with pytest.raises(errors.ReconnectTimeoutError, match=r"no broker of 127.0.0.1:1 answered within 6 s: .*refused"):
        uow.connect("127.0.0.1:1")


def test_the_examples_run(places: Topics, destination: str) -> None:
    """The two producers that the README shows, ours and the plain Kafka one, send units that look alike."""
    environ: dict[str, Any] = {**os.environ, "BOOTSTRAP": places.bootstrap, "DESTINATION": destination}

    seen: set[tuple[int | None, int | None]] = set()

    def sent_by(name: str) -> list[Any]:
        subprocess.run([sys.executable, f"examples/{name}"], env=environ, timeout=stretched(60), check=True)
        found = [(record.partition(), record.offset(), record) for record in places.read(f"{destination}.components")]
        new = [record for partition, offset, record in found if (partition, offset) not in seen]
        seen.update((partition, offset) for partition, offset, _ in found)
        return new

    ours, foreign = sent_by("producer.py"), sent_by("foreign_producer.py")
    assert ours
    assert foreign
    under_asyncio = sent_by("asyncio_producer.py")
    assert sum(headers_of(record).get("uow-end") == b"true" for record in under_asyncio) == 3
    assert len(under_asyncio) == 6


def test_a_long_unit_left_by_an_exception_is_cancelled_b120(place: Destination, places: Topics) -> None:
    """Three components are out already, so leaving the block must take them back."""
    place.create(outcomes="all")
    place.is_created = False  # its account knows what it sent itself
    application = f"A-{place.name}"
    places.make(f"{application}-senders")
    worker = place.worker()

    def export(connection: uow.Connection) -> None:
        with connection.unit(place.name, id="export", resume=True) as unit:
            for value in ("1", "2", "3", "4"):
                unit.send(value)
            assert unit.save() == 3
            raise LookupError

    with uow.connect(places.bootstrap, application=application) as connection, pytest.raises(LookupError):
        export(connection)

    def outcomes() -> list[Outcome]:
        told = [codec.decode(record.value() or b"") for record in places.read(f"{place.name}.outcomes")]
        return [each for each in told if isinstance(each, Outcome)]  # the command's answer lies there, too

    wait_for(outcomes, what=lambda: worker.child.output)
    (told,) = outcomes()
    assert (told.id, told.outcome, told.count) == ("export", "cancelled", 3)
    assert places.read(place.units) == []
    assert worker.child.terminate() == 0
