"""The client against a real broker: reading units (W-13, W-14, W-49, W-52, W-113, R-34, R-53)."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from client_places import Topics

import uow
from tests.processes import PATIENCE_S, stretched
from uow import errors


@pytest.fixture
def places(broker: Any) -> Topics:
    return Topics(broker.bootstrap)


@pytest.fixture
def destination(places: Topics) -> str:
    """A destination of this test alone."""
    name = f"reading-{uuid4().hex[:8]}"
    places.make(f"{name}.units")
    return name


@pytest.fixture
def connection(places: Topics) -> Iterator[uow.Connection]:
    with uow.connect(places.bootstrap) as connection:
        yield connection


def taken(reader: uow.Reader[uow.ReceivedUnit], count: int, timeout: float = 20) -> list[uow.ReceivedUnit]:
    """The next `count` units."""
    units = []
    for _ in range(count):
        unit = reader.receive(timeout)
        assert unit is not None
        units.append(unit)
    return units


def test_units_come_whole_and_acknowledging_moves_the_committed_offset(
    connection: uow.Connection, places: Topics, destination: str
) -> None:
    """P-12, W-52."""
    places.deliver(destination, "a", "b", "c")
    seen = []
    for unit in connection.units(destination, group=destination):
        assert unit.components[0].json() == {"n": 1}
        assert [component.value for component in unit.components] == [b'{"n": 1}', None]
        seen.append(unit.id)
        assert places.committed(f"{destination}.units", destination) == (unit.offset or -1001)
        unit.acknowledge()
        assert places.committed(f"{destination}.units", destination) == unit.offset + 1
        if unit.id == "c":
            break
    assert seen == ["a", "b", "c"]


def test_a_handler_that_raises_gets_the_unit_again_with_a_higher_count(
    connection: uow.Connection, places: Topics, destination: str
) -> None:
    """W-52: the loop is left by an exception and begun again on the same connection."""
    places.deliver(destination, "a", "b")
    counts = []

    def handle() -> None:
        for unit in connection.units(destination, group=destination):
            counts.append((unit.id, unit.delivery_count))
            if len(counts) == 1:
                raise RuntimeError
            unit.acknowledge()
            if unit.id == "b":
                return

    with pytest.raises(RuntimeError):
        handle()
    handle()
    assert counts == [("a", 1), ("a", 2), ("b", 1)]
    assert places.committed(f"{destination}.units", destination) == 2


def test_the_count_survives_a_new_connection(places: Topics, destination: str) -> None:
    """W-87: it is kept beside the committed offset, which does not move (W-52)."""
    places.deliver(destination, "a", "b", "c")
    counts = []
    for _ in range(3):
        with uow.connect(places.bootstrap) as connection, connection.units(destination, group=destination) as reader:
            first, second = taken(reader, 2)
            counts.append((first.id, first.delivery_count, second.id, second.delivery_count))
            if len(counts) == 2:
                first.acknowledge()
    assert counts == [("a", 1, "b", 1), ("a", 2, "b", 2), ("b", 3, "c", 1)]


def test_rolling_back_returns_what_is_not_acknowledged(
    connection: uow.Connection, places: Topics, destination: str
) -> None:
    """W-52 within one reader; what was read before it can no longer be acknowledged."""
    places.deliver(destination, "a", "b", "c")
    reader = connection.units(destination, group=destination)
    first, second = taken(reader, 2)
    first.acknowledge()
    reader.roll_back()
    (again,) = taken(reader, 1)
    assert (again.id, again.delivery_count) == ("b", 2)
    with pytest.raises(errors.LostServerError):
        second.acknowledge()
    again.acknowledge()


def test_acknowledging_after_the_loop_works(connection: uow.Connection, places: Topics, destination: str) -> None:
    places.deliver(destination, "a")
    unit = next(iter(connection.units(destination, group=destination)))
    unit.acknowledge()
    assert places.committed(f"{destination}.units", destination) == 1


def test_two_groups_see_every_unit(connection: uow.Connection, places: Topics, destination: str) -> None:
    """W-113."""
    places.deliver(destination, "a", "b")
    for group in (f"{destination}-invoicing", f"{destination}-shipping"):
        with connection.units(destination, group=group) as reader:
            assert [unit.id for unit in taken(reader, 2)] == ["a", "b"]


def test_readers_of_one_group_share_the_units(places: Topics, destination: str) -> None:
    """W-13: three readers, each unit to one of them, none lost while they join one after the other."""
    ids = {f"{partition}-{number}" for partition in range(4) for number in range(50)}
    for partition in range(4):
        places.deliver(destination, *(f"{partition}-{number}" for number in range(50)), partition=partition)
    seen: dict[str, int] = {}
    readers: list[threading.Thread] = []
    with uow.connect(places.bootstrap) as connection:

        def read() -> None:
            with connection.units(destination, group=destination) as reader:
                while len(seen) < len(ids):
                    unit = reader.receive(0.1)
                    if unit is not None:
                        with contextlib.suppress(errors.LostServerError):
                            unit.acknowledge()
                            seen[unit.id] = seen.get(unit.id, 0) + 1
                        time.sleep(0.01)  # work, so that the others come to join

        deadline = time.monotonic() + 60
        while len(seen) < len(ids):
            assert time.monotonic() < deadline, f"{len(seen)} of {len(ids)}"
            if len(readers) < 3 and len(seen) >= 20 * len(readers):
                readers.append(threading.Thread(target=read))
                readers[-1].start()
            time.sleep(0.01)
        for thread in readers:
            thread.join(PATIENCE_S)
    assert seen == dict.fromkeys(ids, 1)
    for partition in range(4):
        assert places.committed(f"{destination}.units", destination, partition) == 50


def test_a_unit_of_a_partition_that_moved_cannot_be_acknowledged(places: Topics, destination: str) -> None:
    """R-34: it raises, the unit comes again at the other reader."""
    for partition in range(4):
        places.deliver(destination, f"unit-{partition}", partition=partition)
    with uow.connect(places.bootstrap) as connection:
        older = connection.units(destination, group=destination)
        held = {unit.id: unit for unit in taken(older, 4)}
        newer = connection.units(destination, group=destination)
        moved: dict[str, uow.ReceivedUnit] = {}
        deadline = time.monotonic() + 30
        while len(moved) < 2:
            assert time.monotonic() < deadline
            assert older.receive(0.1) is None
            unit = newer.receive(0.1)
            if unit is not None:
                moved[unit.id] = unit
        for name, unit in held.items():
            if name in moved:
                with pytest.raises(errors.LostServerError):
                    unit.acknowledge()
                assert moved[name].delivery_count == 2
                moved[name].acknowledge()
            else:
                unit.acknowledge()
    assert [places.committed(f"{destination}.units", destination, partition) for partition in range(4)] == [1] * 4


KILLED = """
import os, signal, sys, uow
bootstrap, destination = sys.argv[1:]
with uow.connect(bootstrap, kafka={"session.timeout.ms": 6000}) as connection:
    for unit in connection.units(destination, group=destination):
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_next_reader_gets_a_whole_unit_again_when_the_first_is_killed(places: Topics, destination: str) -> None:
    """W-14: rule 4 also when the consumer changes in the middle."""
    places.deliver(destination, "a")
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, places.bootstrap, destination], timeout=stretched(60), check=False
    )
    assert killed.returncode == -signal.SIGKILL
    with uow.connect(places.bootstrap) as connection:
        (unit,) = taken(connection.units(destination, group=destination), 1, timeout=30)
    assert (unit.id, len(unit.components)) == ("a", 2)


def test_plain_records_are_passed_over_or_handed_out(
    connection: uow.Connection, places: Topics, destination: str
) -> None:
    """W-121: a plain record is covered by the acknowledgement of the next unit."""
    places.put(f"{destination}.units", (b"k", b"newsletter", {"x": b"1"}))
    places.deliver(destination, "a")
    with connection.units(destination, group=destination) as reader:
        (unit,) = taken(reader, 1)
        unit.acknowledge()
    assert places.committed(f"{destination}.units", destination) == 2
    with connection.units(destination, group=f"{destination}-all", include_plain=True) as everything:
        plain = everything.receive(PATIENCE_S)
        assert isinstance(plain, uow.Message)
        assert (plain.key, plain.value, plain.headers) == (b"k", b"newsletter", [("x", b"1")])
        plain.acknowledge()
        assert isinstance(everything.receive(PATIENCE_S), uow.ReceivedUnit)


def test_latest_begins_at_the_end_and_stays_there(places: Topics, destination: str) -> None:
    """R-53: the beginning is fixed at the first assignment, not anew at each."""
    places.deliver(destination, "old")
    with (
        uow.connect(places.bootstrap) as connection,
        connection.units(destination, group=destination, start="latest") as reader,
    ):
        deadline = time.monotonic() + 30
        while places.committed(f"{destination}.units", destination) != 1:
            assert time.monotonic() < deadline
            assert reader.receive(0.1) is None
    places.deliver(destination, "between")
    with (
        uow.connect(places.bootstrap) as connection,
        connection.units(destination, group=destination, start="latest") as reader,
    ):
        assert [unit.id for unit in taken(reader, 1)] == ["between"]


def test_committed_refuses_a_group_without_an_offset(
    connection: uow.Connection, places: Topics, destination: str
) -> None:
    """R-53."""
    reader = connection.units(destination, group=destination, start="committed")
    with pytest.raises(errors.SubscriptionExpiredError, match="no committed offset"):
        reader.receive(PATIENCE_S)


def test_an_offset_out_of_range_is_told(connection: uow.Connection, places: Topics, destination: str) -> None:
    """R-53: nothing is skipped silently."""
    from confluent_kafka import TopicPartition

    places.deliver(destination, "a", "b")
    with connection.units(destination, group=destination) as reader:
        taken(reader, 1)[0].acknowledge()
    places.deliver(destination, "c")
    for deleted in places.admin.delete_records([TopicPartition(f"{destination}.units", 0, 3)]).values():
        deleted.result(PATIENCE_S)
    reader = connection.units(destination, group=destination)
    with pytest.raises(errors.SubscriptionExpiredError):
        reader.receive(PATIENCE_S)


def test_a_reader_without_a_group_reads_alone_and_commits_nothing(
    connection: uow.Connection, places: Topics, destination: str
) -> None:
    places.deliver(destination, "a")
    late = connection.units(destination, group=None)
    whole = connection.units(destination, group=None, start="earliest")
    places.deliver(destination, "b")
    assert [unit.id for unit in taken(whole, 2)] == ["a", "b"]
    (unit,) = taken(late, 1)
    assert unit.id == "b"
    unit.acknowledge()


def test_a_topic_that_does_not_exist_is_told_at_once(connection: uow.Connection) -> None:
    with pytest.raises(errors.DestinationUnavailableError, match=r"no-such-place\.units"):
        connection.units("no-such-place", group="nobody")


def test_uncommitted_units_are_not_seen(connection: uow.Connection, places: Topics, destination: str) -> None:
    """W-49."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": places.bootstrap, "transactional.id": destination})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(f"{destination}.units", b"aborted", b"k", 0, headers={"uow-kind": b"unit"})
    producer.flush(PATIENCE_S)
    producer.abort_transaction(PATIENCE_S)
    places.deliver(destination, "a")
    assert [unit.id for unit in taken(connection.units(destination, group=destination), 1)] == ["a"]
