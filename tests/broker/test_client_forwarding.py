"""The client against a real broker: forwarding hops (W-54 to W-60), each exactly once."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from client_places import Topics, headers_of

import uow
from tests.processes import PATIENCE_S
from uow import errors
from uow.topics.headers import (
    END,
    HOPS,
    ID,
    ORIGIN_TS,
    SEQ,
)
from uow.topics.partitioner import partition_for


@pytest.fixture
def places(broker: Any) -> Topics:
    return Topics(broker.bootstrap)


@pytest.fixture
def shop(places: Topics) -> str:
    """Topics `<shop>-1`, `<shop>-2` on the way to destination `<shop>`."""
    name = f"shop-{uuid4().hex[:8]}"
    places.make(f"{name}-1", f"{name}-2", f"{name}.components")
    return name


@pytest.fixture
def connection(places: Topics) -> Iterator[uow.Connection]:
    with uow.connect(places.bootstrap) as connection:
        yield connection


def forward_all(
    reader: uow.Reader[uow.Message],
    connection: uow.Connection,
    count: int,
    to: str | None = None,
    destination: str | None = None,
) -> None:
    for _ in range(count):
        message = reader.receive(PATIENCE_S)
        assert message is not None
        value = {**message.json(), to or "last": True}
        connection.forward(message, to, destination=destination, value=value)


def test_inner_unit_and_the_position_of_what_it_stands_for_are_one_transaction_w205(
    connection: uow.Connection, places: Topics, shop: str
) -> None:
    connection.send(shop, "goods", id="order-1", seq=2, to=f"{shop}-1", key="k")
    reader = connection.messages(f"{shop}-1", group=f"{shop}-splitting")

    def split_but_for(failure: Exception | None) -> None:
        message = reader.receive(PATIENCE_S)
        assert message is not None
        with connection.unit(shop, stands_for=message) as inner:
            for part in "abcd":
                inner.send(part)
            if failure is not None:
                raise failure

    with pytest.raises(RuntimeError):
        split_but_for(RuntimeError())
    assert places.read(f"{shop}.components") == []
    split_but_for(None)
    parts = places.read(f"{shop}.components")
    assert [
        (part.value(), headers_of(part)["uow-parent-id"], headers_of(part)["uow-parent-seq"]) for part in parts
    ] == [(value, b"order-1", b"2") for value in (b"a", b"b", b"c", b"d")]
    partition = partition_for(b"k", 4)
    assert places.committed(f"{shop}-1", f"{shop}-splitting", partition) == places.read(f"{shop}-1")[0].offset() + 1
    reader.close()


def test_two_hops_keep_everything_and_the_last_goes_by_the_id(
    connection: uow.Connection, places: Topics, shop: str
) -> None:
    """W-04, W-53, W-54 to W-60: topics and keys of any kind on the way, the id as key at the destination, hops listed, values changed."""
    ids = [f"order-{number}" for number in range(20)]
    for unit_id in ids:
        with connection.unit(shop, id=unit_id, headers={"colour": "blue"}) as unit:
            unit.send({}, to=f"{shop}-1", key=f"any-{unit_id}")
            unit.send({}, to=f"{shop}-1")
    with connection.messages(f"{shop}-1", group=f"{shop}-first") as first:
        forward_all(first, connection, 40, to=f"{shop}-2")
    with connection.messages(f"{shop}-2", group=f"{shop}-second") as second:
        forward_all(second, connection, 40, destination=shop)
    came = {record.value(): record for record in places.read(f"{shop}-1")}
    assert len(came) == 1
    arrived = places.read(f"{shop}.components")
    assert Counter((headers_of(record)[ID], headers_of(record)[SEQ]) for record in arrived) == Counter(
        (unit_id.encode(), seq) for unit_id in ids for seq in (b"1", b"2")
    )
    for record in arrived:
        headers = headers_of(record)
        assert record.key() == headers[ID]
        assert record.partition() == partition_for(headers[ID], 4)
        assert headers[HOPS] == f"{shop}-1,{shop}-2".encode()
        assert headers["colour"] == b"blue"
        assert (END in headers) == (headers[SEQ] == b"2")
        assert ORIGIN_TS in headers
        assert record.value() == f'{{"{shop}-2":true,"last":true}}'.encode()


def test_output_and_position_are_one_transaction(connection: uow.Connection, places: Topics, shop: str) -> None:
    """The committed position moves with each forwarded message."""
    for seq in range(1, 4):
        connection.send(shop, "x", id="a", seq=seq, to=f"{shop}-1")
    partition = partition_for(b"a", 4)
    with connection.messages(f"{shop}-1", group=shop) as reader:
        for number in range(1, 4):
            message = reader.receive(PATIENCE_S)
            assert message is not None
            assert connection.forward(message, destination=shop) is uow.Forwarded.COMMITTED
            assert places.committed(f"{shop}-1", shop, partition) == number
            assert len(places.read(f"{shop}.components")) == number


def test_an_interval_shares_a_transaction_until_nothing_waits(
    connection: uow.Connection, places: Topics, shop: str
) -> None:
    """Throughput: many messages in one transaction; none is left open when the topic is drained."""
    with connection.unit(shop, id="a") as unit:
        for _ in range(500):
            unit.send("x", to=f"{shop}-1")
    reader = connection.messages(f"{shop}-1", group=shop, commit_interval_ms=1000)
    answers = Counter[uow.Forwarded]()
    while (message := reader.receive(20 if not answers else 1)) is not None:
        answers[connection.forward(message, destination=shop)] += 1
    assert answers == {uow.Forwarded.PENDING: 500}
    assert len(places.read(f"{shop}.components")) == 500
    assert places.committed(f"{shop}-1", shop, partition_for(b"a", 4)) > 500 - 1


def test_a_rolled_back_forward_comes_again(connection: uow.Connection, places: Topics, shop: str) -> None:
    """R-33: after a failed transaction the message is read again, and goes out once."""
    connection.send(shop, "x" * 2_000, id="a", seq=1, to=f"{shop}-1")
    with connection.messages(f"{shop}-1", group=shop) as reader:
        first = next(reader)
        with pytest.raises(errors.SendRejectedError):
            connection.forward(first, destination=shop, value="x" * 2_000_000)
        again = next(reader)
        assert (again.offset, again.value) == (first.offset, first.value)
        assert connection.forward(again, destination=shop) is uow.Forwarded.COMMITTED
        assert reader.receive(0.5) is None
    assert len(places.read(f"{shop}.components")) == 1


def test_plain_records_go_on_untouched(connection: uow.Connection, places: Topics, shop: str) -> None:
    """W-58."""
    connection.send(shop, b"newsletter", to=f"{shop}-1", key="k", headers={"colour": "blue"})
    with connection.messages(f"{shop}-1", group=shop) as reader:
        connection.forward(next(reader), destination=shop)
    (record,) = places.read(f"{shop}.components")
    assert (record.key(), record.value(), record.headers()) == (b"k", b"newsletter", [("colour", b"blue")])


def test_an_acknowledged_message_is_not_forwarded_and_does_not_come_again(
    connection: uow.Connection, places: Topics, shop: str
) -> None:
    connection.send(shop, b"x", id="a", seq=1, to=f"{shop}-1")
    with connection.messages(f"{shop}-1", group=shop) as reader:
        next(reader).acknowledge()
    with connection.messages(f"{shop}-1", group=shop) as reader:
        assert reader.receive(1) is None
    assert places.read(f"{shop}.components") == []


FORWARDER = """
import sys, uow
bootstrap, shop, name, interval = sys.argv[1:]
with uow.connect(bootstrap, transactional_id=name, kafka={"session.timeout.ms": 6000}) as connection:
    for message in connection.messages(f"{shop}-1", group=shop, commit_interval_ms=int(interval)):
        connection.forward(message, destination=shop)
"""


@pytest.mark.parametrize("interval", ["0", "100"])
def test_forwarders_that_join_and_die_forward_each_message_once(places: Topics, shop: str, interval: str) -> None:
    """The simple loop of P-13, as it stands there, through joins and kill -9."""
    count = 800

    def forwarder(name: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", FORWARDER, places.bootstrap, shop, f"{shop}-{name}", interval])

    def feed() -> None:
        with uow.connect(places.bootstrap) as connection:
            for first in range(0, count, 50):
                for number in range(first, first + 50):
                    with connection.unit(shop, id=f"order-{number}") as unit:
                        unit.send("x", to=f"{shop}-1")

    feeder = threading.Thread(target=feed)
    feeder.start()
    running = [forwarder("a")]
    try:
        deadline = time.monotonic() + 100
        joined = killed = False
        while len(arrived := places.read(f"{shop}.components")) < count:
            assert time.monotonic() < deadline, f"{len(arrived)} of {count}"
            if len(arrived) > 150 and not joined:
                joined = True
                running.append(forwarder("b"))
            if len(arrived) > 400 and not killed:
                killed = True
                running[0].kill()
                assert running[0].wait(PATIENCE_S) == -signal.SIGKILL
                running.append(forwarder("a"))
        feeder.join(PATIENCE_S)
        assert [each.poll() for each in running[1:]] == [None, None]
    finally:
        for each in running:
            each.kill()
            each.wait(PATIENCE_S)
    assert Counter(record.key() for record in places.read(f"{shop}.components")) == Counter(
        b"order-%d" % number for number in range(count)
    )
