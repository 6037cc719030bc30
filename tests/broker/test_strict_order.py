"""Strict order of a destination, for programs that know nothing of it: against a real broker."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, TopicPartition
from strict_places import StrictPlace, numbers

import uow
from tests.drill import order_programs
from tests.kafka_broker import Kafka
from tests.processes import PATIENCE_S, Process, wait_for
from uow import errors
from uow.cli.main import main
from uow.client import strict_order
from uow.ops.leases import leased


@pytest.fixture
def place(broker: Kafka, tmp_path: Path) -> StrictPlace:
    return StrictPlace(broker.bootstrap, f"strict-{uuid4().hex[:8]}", tmp_path)


@pytest.fixture
def connection(place: StrictPlace) -> Iterator[uow.Connection]:
    with uow.connect(place.bootstrap) as connection:
        yield connection


def adopt(place: StrictPlace, *options: str) -> str:
    done = CliRunner().invoke(main, ["adopt", place.name, "-c", place.file, "--why", "a test", *options])
    assert done.exit_code == 0, done.output
    return done.output


def test_a_client_without_the_flag_is_held_to_it_by_what_the_registry_says(
    connection: uow.Connection, place: StrictPlace
) -> None:
    """S-02, S-19, S-23, S-24: several partitions need a key, one way of sending, one priority, persistent records; no reader without a group."""
    place.create(partitions=4)
    with pytest.raises(errors.OrderConfigError, match="takes records in transactions"):
        connection.send(place.name, "x", id="a", seq=1)
    with pytest.raises(errors.OrderConfigError, match="priority"), connection.unit(place.name, priority=9) as unit:
        unit.send("x")
    with (
        pytest.raises(errors.OrderConfigError, match="persistent"),
        connection.unit(place.name, delivery_mode="non-persistent") as unit,
    ):
        unit.send("x")
    with pytest.raises(errors.OrderConfigError, match="needs a group"):
        connection.units(place.name, group=None)
    with connection.unit(place.name, "kept", priority=4) as unit:
        unit.send("x")
    (record,) = place.places.read(place.components)
    place.create(partitions=4, strict_producers="plain")
    with uow.connect(place.bootstrap) as other:
        with pytest.raises(errors.OrderConfigError, match="4 partitions, and without a key"):
            other.send(place.name, "x")
        sent = other.send(place.name, "x", id="kept", seq=1)
        assert sent.partition == record.partition()
        with pytest.raises(errors.OrderConfigError, match="record by record"), other.unit(place.name) as unit:
            unit.send("x")
    assert len(place.places.read(place.components)) == 2


def test_nothing_passes_a_unit_that_is_not_done_also_over_a_restart(
    connection: uow.Connection, place: StrictPlace
) -> None:
    """S-06, S-07, S-28: handed out again until it is acknowledged; a repeat goes back, never forward."""
    place.create()
    place.deliver(1, 2, 3)
    reader = connection.units(place.name, group="g")
    assert [*numbers(reader, 3, done=False)] == [1, 1, 1]
    reader.roll_back()
    assert [*numbers(reader, 1)] == [1]
    assert [*numbers(reader, 1, done=False)] == [2]
    reader.close()
    with connection.units(place.name, group="g") as again:
        assert [*numbers(again, 2)] == [2, 3]
    assert place.committed("g") == 3


def test_a_handler_that_fails_keeps_its_unit_first_and_says_so_beside_the_offset(
    connection: uow.Connection, place: StrictPlace
) -> None:
    """S-10, S-12, S-14, S-31: the partition stands at n, the other goes on; resumed, it is n, then n + 1."""
    place.create(partitions=2)
    place.deliver(1, 2, 3)
    place.deliver(11, 12, partition=1)
    heals, seen, told = threading.Event(), [], []

    def handle(unit: uow.ReceivedUnit) -> None:
        number = int(unit.id[1:])
        seen.append((number, place.committed("g", unit.partition)))
        if number == 2 and not heals.is_set():
            raise ValueError("not today")

    def run() -> None:
        with uow.connect(place.bootstrap) as own:
            reader.append(own.units(place.name, group="g"))
            reader[0].run(handle, on_blocked=told.append)

    reader: list[uow.Reader[uow.ReceivedUnit]] = []
    thread = threading.Thread(target=run)
    thread.start()
    try:
        wait_for(lambda: told and place.committed("g", 1) == 2)
        wait_for(lambda: [number for number, _ in seen].count(2) >= 2, what="tried again by itself")
        assert 3 not in [number for number, _ in seen]
        assert place.committed("g") == 1
        assert told == [uow.OrderBlocked(place.units, 0, 1, "ValueError: not today", True)]
        assert "not%20today" in place.metadata("g")
        heals.set()
        wait_for(lambda: place.committed("g") == 3)
    finally:
        heals.set()
        reader[0].stop()
        thread.join(PATIENCE_S)
    assert [number for number, _ in seen if number < 10] == sorted(number for number, _ in seen if number < 10)
    assert all(committed == number - 1 for number, committed in seen if 1 < number < 10), (
        "each only after the one before is committed"
    )
    assert "not%20today" not in place.metadata("g")


def test_going_forward_needs_a_reason_that_is_recorded(connection: uow.Connection, place: StrictPlace) -> None:
    """S-33: and what cannot be read stays and blocks, until somebody says why it may be passed over (S-14)."""
    place.create()
    place.deliver(1)
    place.places.put(place.units, (b"u2", b"no unit", {"uow-kind": b"unit", "uow-id": b"u2"}))
    place.deliver(3)
    with connection.units(place.name, group="g") as reader:
        assert [*numbers(reader, 1)] == [1]
        with pytest.raises(errors.OrderBlockedError, match="stands at 1"):
            reader.receive(1)
        assert place.committed("g") == 1
        with pytest.raises(errors.OrderConfigError, match="break_order"):
            reader.seek(place.units, 0, 2)
        assert place.row("g").leader_epoch is not None
        reader.seek(place.units, 0, 2, break_order="it is no unit")
        wait_for(lambda: place.row("g").offset == 2)  # the marker of a transaction comes a little later
        assert place.row("g").leader_epoch is None, "that of the record before is not known"
        assert [*numbers(reader, 1)] == [3]
    (gap,) = place.registry().gaps.values()
    assert (gap.whose, gap.topic, gap.first, gap.last, gap.cause) == ("g", place.units, 1, 1, "it is no unit")


def test_a_unit_that_goes_to_the_errors_topic_leaves_a_recorded_gap(
    connection: uow.Connection, place: StrictPlace
) -> None:
    """S-14 with `errors`: moved once, in the same transaction as the gap's record."""
    place.create(exception_destination="errors", redelivery_limit=1)
    place.deliver(1, 2)
    with connection.units(place.name, group="g", redelivery_limit=1) as reader:
        assert [*numbers(reader, 2, done=False)] == [1, 1]
        assert [*numbers(reader, 1)] == [2]
        assert reader.given_up == {uow.Failure.REDELIVERY_LIMIT: 1}
    (gap,) = place.registry().gaps.values()
    assert (gap.first, gap.last, gap.cause) == (0, 0, "delivered 2 times and not acknowledged; redelivery_limit is 1")
    assert len(place.places.read(f"{place.name}.errors")) == 1


def test_one_reader_has_a_partition_and_a_spare_takes_over_or_is_refused(place: StrictPlace) -> None:
    """S-03: `standby` waits for its turn; `fail` raises at once, and the one that reads is not disturbed."""
    place.create()
    place.deliver(1, 2, 3, 4)
    with uow.connect(place.bootstrap) as one, uow.connect(place.bootstrap) as two:
        first, spare = one.units(place.name, group="g"), two.units(place.name, group="g")
        assert [*numbers(first, 1)] == [1]
        turns = threading.Thread(target=lambda: first.receive(3))  # a rebalance needs both to poll
        turns.start()
        assert spare.receive(1) is None
        turns.join()
        first.close()
        assert [*numbers(spare, 1)] == [2]
        place.create(strict_attach="fail")
        with pytest.raises(errors.AlreadyAttachedError, match="has a reader of group 'g'"):
            one.units(place.name, group="g")
        assert [*numbers(spare, 1)] == [3]
        spare.close()
        wait_for(lambda: attached(one, place), what="the group is empty")


def attached(connection: uow.Connection, place: StrictPlace) -> bool:
    try:
        with connection.units(place.name, group="g") as reader:
            return [*numbers(reader, 1)] == [4]
    except errors.AlreadyAttachedError:
        return False


def test_a_spare_gets_nothing_until_the_reader_is_killed_and_then_all_in_time_s03_r54(
    place: StrictPlace, tmp_path: Path, spawn: Callable[..., Process]
) -> None:
    """In time: the session time-out of the one that was killed, and ten seconds."""
    place.create()
    seen = tmp_path / "seen"
    seen.touch()
    first = spawn(sys.executable, order_programs.__file__, "read", place.bootstrap, place.name, str(seen))
    place.deliver(1)
    wait_for(lambda: seen.read_text() == "u1\n", what="the first one reads")
    with uow.connect(place.bootstrap) as connection:
        spare = connection.units(place.name, group="reader", kafka=order_programs.SHORT)
        assert spare.receive(3) is None
        place.deliver(*range(2, 20))
        wait_for(lambda: seen.read_text().endswith("u19\n"), what="the first one reads on")
        assert spare.receive(1) is None
        first.kill()
        killed = time.monotonic()
        place.deliver(20, 21)
        assert [*numbers(spare, 2)] == [20, 21]
        assert time.monotonic() - killed < order_programs.SHORT["session.timeout.ms"] / 1000 + 10


def test_of_two_that_attach_at_once_one_is_refused_and_the_other_one_is_not_disturbed_s03(place: StrictPlace) -> None:
    """`fail`; whoever has the partition hears of no loss, and gets every unit once."""
    place.create(strict_attach="fail")
    together = threading.Barrier(2)
    heard: list[object] = []
    got: list[list[int]] = []
    refused: list[str] = []

    def attach() -> None:
        with uow.connect(place.bootstrap, listener=heard.append) as connection:
            together.wait(PATIENCE_S)
            try:
                reader = connection.units(place.name, group="g")
                got.append([*numbers(reader, 5)])
            except errors.AlreadyAttachedError as refusal:
                refused.append(str(refusal))
                place.deliver(1, 2, 3, 4, 5)

    threads = [threading.Thread(target=attach) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(refused) == 1
    assert got == [[1, 2, 3, 4, 5]]
    assert heard == []


def test_what_was_appended_first_comes_first_whoever_commits_first_s25(place: StrictPlace) -> None:
    """Between producers there is no order but that of the log; the first one's open transaction holds back the second one's records."""
    place.create()
    plain = Consumer({"bootstrap.servers": place.bootstrap, "group.id": "test", "isolation.level": "read_committed"})
    plain.assign([TopicPartition(place.components, 0, 0)])

    def values() -> list[bytes | None]:
        return [each.value() for each in plain.consume(10, 2.0) if each.error() is None]

    with uow.connect(place.bootstrap) as one, uow.connect(place.bootstrap) as two:
        reader = one.messages(place.components, group="g")
        with one.session(transacted=True) as first, two.session(transacted=True) as second:
            first.producer(place.name).send("first", id="a", seq=1)
            wait_for(lambda: len(place.places.read(place.components, "read_uncommitted")) == 1, what="it is appended")
            second.producer(place.name).send("second", id="b", seq=1)
            second.commit()
            assert values() == []
            assert reader.receive(3) is None
            first.commit()
        for expected in (b"first", b"second"):
            message = reader.receive(PATIENCE_S)
            assert message is not None
            assert message.value == expected
            message.acknowledge()
    assert values() == [b"first", b"second"]
    plain.close()


def test_one_output_of_a_strict_destination_has_one_sink(place: StrictPlace) -> None:
    """The lease of S-03 and S-34, in `D.registry`; it is gone when the sink is."""
    place.create()
    settings, stop = place.settings(), threading.Event()
    with leased(settings, [place.name], ["s3://lake"], stop):
        with (
            pytest.raises(errors.AlreadyAttachedError, match="written to s3://lake by"),
            leased(settings, [place.name], ["s3://lake"], stop),
        ):
            pass
        assert len(place.registry().leases) == 1
    assert place.registry().leases == {}
    assert not stop.is_set()


def test_an_ordered_queue_has_one_group_and_another_cluster_of_readers_none(
    connection: uow.Connection, place: StrictPlace
) -> None:
    """`strict_group` (S-03)."""
    place.create(strict_group="the-one")
    with pytest.raises(errors.OrderConfigError, match="ordered queue of the group 'the-one'"):
        connection.units(place.name, group="g")
    connection.units(place.name, group="the-one").close()


def test_switching_it_on_begins_an_era_and_no_backlog_is_lost_by_itself(
    connection: uow.Connection, place: StrictPlace
) -> None:
    """S-13."""
    assert place.create(is_strict=False) == []
    place.deliver(*range(1, 11))
    with connection.units(place.name, group="g") as reader:
        assert [*numbers(reader, 3)] == [1, 2, 3]
    lines = place.create()
    assert lines == [
        f"{place.name}: strict order is on, recorded in {place.name}.registry",
        f"{place.name}: era 1 begins",
    ]
    assert place.create() == []
    place.deliver(11)
    with uow.connect(place.bootstrap) as other:
        with pytest.raises(errors.OrderConfigError, match="backlog of up to 7 records"):
            other.units(place.name, group="g")
        refused = CliRunner().invoke(main, ["adopt", place.name, "-c", place.file, "--why", "x", "--group", "g"])
        assert refused.exit_code == 2
        assert "has not read 7 records" in refused.output
        assert "would begin at the start of era 1" in adopt(place, "--group", "g", "--discard-backlog", "--dry-run")
        assert place.committed("g") == 3
        assert "7 records before it are lost" in adopt(place, "--group", "g", "--discard-backlog")
        assert "nothing to adopt" in adopt(place, "--group", "g")
        with other.units(place.name, group="g") as reader:
            assert [*numbers(reader, 1)] == [11]
        with other.units(place.name, group="new") as reader:
            assert [*numbers(reader, 1)] == [11]
    (gap,) = place.registry().gaps.values()
    assert (gap.first, gap.last, gap.cause) == (3, 9, "a test")


def test_a_group_that_read_everything_is_adopted_and_one_whose_reader_runs_is_not_s13(
    connection: uow.Connection, place: StrictPlace
) -> None:
    """Behind the last unit lies the marker of its transaction, which is no record."""
    assert place.create(is_strict=False) == []
    with uow.connect(place.bootstrap) as other, other.unit(place.name, id="one") as unit:
        unit.send({"n": 1}, to=f"{place.name}.units")  # in a transaction
    reader = connection.messages(f"{place.name}.units", group="g")
    next(reader).acknowledge()
    place.create()
    why = ["adopt", place.name, "-c", place.file, "--why", "x", "--group", "g"]
    refused = CliRunner().invoke(main, why)
    assert refused.exit_code == 2
    assert "1 of its readers run: close them first" in refused.output
    reader.close()
    assert "0 records" not in adopt(place, "--group", "g")
    assert not place.registry().gaps
    with connection.messages(f"{place.name}.units", group="g") as reader:
        assert reader.receive(0) is None


def test_added_partitions_and_topics_made_again_stop_both_sides_until_they_are_adopted(
    place: StrictPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-15, S-21: before any key has moved, and no old commit reaches the new topic."""
    monkeypatch.setattr(strict_order, "REFRESH_S", 1.0)
    place.create()
    place.deliver(1, 2)
    topics = place.places.admin
    with uow.connect(place.bootstrap) as connection:
        reader = connection.units(place.name, group="g")
        with connection.unit(place.name, "kept") as unit:
            unit.send("x")
        assert [*numbers(reader, 1)] == [1]
        held = reader.receive(PATIENCE_S)
        assert held is not None
        grown = admin_partitions(place, place.components, 3)
        wait_for(lambda: stopped(lambda: send(connection, place)), what="the sender stops")
        assert grown == 3
        assert {record.partition() for record in place.places.read(place.components)} == {0}
        with pytest.raises(errors.DestinationChangedError, match="has 3 partitions, and had 1"):
            reader.receive(PATIENCE_S)
        for name in (place.components, place.units):
            topics.delete_topics([name])[name].result(PATIENCE_S)
        wait_for(lambda: not {place.components, place.units} & topics.list_topics(timeout=PATIENCE_S).topics.keys())
        assert any("made again" in line for line in place.create())
        with pytest.raises(errors.UowError):
            held.acknowledge()
        reader.close()
    place.deliver(21)
    with uow.connect(place.bootstrap) as connection:
        with pytest.raises(errors.DestinationChangedError, match="made again since era 1"):
            connection.units(place.name, group="g")
        with pytest.raises(errors.DestinationChangedError, match="made again since era 1"):
            send(connection, place)
    assert place.committed("g") < 0 or place.committed("g") == 1
    assert "adopted: topic" in adopt(place)
    place.deliver(22)
    adopt(place, "--group", "g")
    with uow.connect(place.bootstrap) as connection, connection.units(place.name, group="g") as reader:
        assert [*numbers(reader, 1)] == [22]
        send(connection, place)


def admin_partitions(place: StrictPlace, topic: str, count: int) -> int:
    from uow.topics import admin

    admin.grow(place.places.admin, [topic], count)
    return len(place.places.admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions)


def send(connection: uow.Connection, place: StrictPlace) -> None:
    with connection.unit(place.name) as unit:
        unit.send("x")


def stopped(call: Any) -> bool:
    try:
        call()
    except errors.DestinationChangedError:
        return True
    time.sleep(0.1)
    return False
