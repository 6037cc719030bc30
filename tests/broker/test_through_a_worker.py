"""From producers through a real worker to readers: what holds of many producers, of hops, of one consumer group and of other traffic."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

import uow
from tests.broker.worker_places import Destination, Worker, alter_topic, decoded
from tests.kafka_broker import Kafka
from tests.processes import PATIENCE_S, Process, wait_for
from uow.topics.partitioner import partition_for

HOP_PARTITIONS = 7


@pytest.fixture(scope="module")
def shared(
    broker: Kafka, tmp_path_factory: pytest.TempPathFactory, spawn_shared: Callable[..., Process]
) -> Iterator[tuple[Destination, Worker]]:
    """One destination with one worker for all tests that only need it to be there; accounted for in the end."""
    place = Destination(broker.bootstrap, "through", tmp_path_factory.mktemp("through"), spawn_shared)
    place.create()
    yield place, place.worker()
    place.check_account()


def make_topic(admin: Any, name: str, partitions: int) -> str:
    """The topic, once the broker names it to clients: it may do so a moment after it has made it."""
    admin.create_topics([NewTopic(name, partitions)])[name].result(PATIENCE_S)
    wait_for(lambda: name in admin.list_topics(timeout=PATIENCE_S).topics)
    return name


def unit_of(place: Destination, name: str) -> dict[str, Any] | None:
    """The only unit of this id, once it is there."""
    found = [record for record in place.read(place.units) if record.key() == name.encode()]
    assert len(found) <= 1
    return decoded(found[0].value()) if found else None


def test_four_producers_at_a_time_fill_one_unit_w03_w41(shared: tuple[Destination, Worker]) -> None:
    """25 disjoint numbers each of 1..100, each producer a client of its own that knows nothing of the others; one unit of 100."""
    place, _ = shared

    def send(first: int) -> None:
        with uow.connect(place.bootstrap) as connection:
            for seq in range(first, 101, 4):
                connection.send(place.name, str(seq), id="shared", seq=seq, end=seq == 100)

    threads = [threading.Thread(target=send, args=(first,)) for first in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    wait_for(lambda: unit_of(place, "shared"))
    unit = unit_of(place, "shared")
    assert unit is not None
    assert [component["value"] for component in unit["components"]] == [b"%d" % seq for seq in range(1, 101)]


def test_a_unit_forms_of_components_that_came_by_any_key_over_seven_partitions_w04_w53_w54(
    shared: tuple[Destination, Worker], admin: Any
) -> None:
    """The hop is a topic that nobody registered; its consumer handles the only component that is there, and waits for no other."""
    place, _ = shared
    hop = make_topic(admin, f"{place.name}-hop", HOP_PARTITIONS)
    rng = random.Random(53)
    producer = Producer({"bootstrap.servers": place.bootstrap, "enable.idempotence": True})

    def send(seq: int) -> None:
        headers: Any = [
            ("uow-id", b"hopping"),
            ("uow-seq", b"%d" % seq),
            ("uow-end", b"true" if seq == 9 else b"false"),
        ]
        key = rng.randbytes(rng.randrange(9)) or None
        producer.produce(hop, b"%d" % seq, key, (seq * 3) % HOP_PARTITIONS, headers=headers)
        assert not producer.flush(PATIENCE_S)

    with uow.connect(place.bootstrap) as connection, connection.messages(hop, group=f"{place.name}-hop") as messages:
        send(2)
        first = messages.receive(60)
        assert first is not None
        assert first.value == b"2"
        connection.forward(first, destination=place.name)
        for seq in (9, 1, 3, 5, 4, 8, 6, 7):
            send(seq)
        for _ in range(8):
            message = messages.receive(60)
            assert message is not None
            connection.forward(message, destination=place.name)
    assert len({record.partition() for record in place.read(hop)}) == HOP_PARTITIONS
    wait_for(lambda: unit_of(place, "hopping"))
    unit = unit_of(place, "hopping")
    assert unit is not None
    assert [component["value"] for component in unit["components"]] == [b"%d" % seq for seq in range(1, 10)]


def test_a_transaction_over_three_topics_that_is_aborted_shows_nothing_in_any_w51(
    shared: tuple[Destination, Worker], admin: Any
) -> None:
    """And one that is committed shows all three, so that there was something to take back."""
    place, _ = shared
    hops = [make_topic(admin, f"{place.name}-{name}", 2) for name in ("gadgets", "housewares")]

    def order(connection: uow.Connection, name: str, *, fails: bool) -> None:
        with connection.unit(place.name, id=name) as unit:
            unit.send({"item": "flash drive"}, to=hops[0])
            unit.send({"item": "lava lamp"}, to=hops[1])
            unit.send({"item": "book"})
            if fails:
                raise ZeroDivisionError

    with uow.connect(place.bootstrap) as connection:
        with pytest.raises(ZeroDivisionError):
            order(connection, "aborted", fails=True)
        order(connection, "kept", fails=False)
    for topic in (*hops, place.components):
        ids = {dict(record.headers())["uow-id"] for record in place.read(topic)}
        assert b"kept" in ids, topic
        assert b"aborted" not in ids, topic


def test_plain_records_keep_their_order_per_key_w123(shared: tuple[Destination, Worker]) -> None:
    """1,000 numbered records of each of five keys, among units: same partition number in and out, arrival order."""
    place, _ = shared
    producer = Producer(
        {"bootstrap.servers": place.bootstrap, "partitioner": "murmur2_random", "enable.idempotence": True}
    )
    keys = [f"newsletter-{number}".encode() for number in range(5)]
    for number in range(1000):
        for key in keys:
            producer.produce(place.components, b"%d" % number, key)
        producer.poll(0)
    assert not producer.flush(60)
    place.send_units(50, prefix="among-news-")

    def passed() -> dict[bytes, list[Any]]:
        found: dict[bytes, list[Any]] = defaultdict(list)
        for record in place.read(place.units):
            if record.key() in keys:
                found[record.key()].append(record)
        return found

    wait_for(lambda: sum(map(len, passed().values())) >= 5000)
    for key, records in passed().items():
        assert [int(record.value()) for record in records] == list(range(1000))
        assert {record.partition() for record in records} == {partition_for(key, place.partitions)}


def test_each_unit_goes_to_one_reader_of_a_group_and_lies_on_one_partition_w13(place: Destination) -> None:
    """Four partitions, three readers; written as runs of records, a unit could be torn, and is not."""
    place.create(shape="consecutive")
    place.worker()
    ids = [f"order-{number}" for number in range(600)]
    place.send([(name, seq, seq == 3) for name in ids for seq in (3, 1, 2)])
    wait_for(lambda: len(place.read(place.units)) >= 3 * len(ids))
    partitions = defaultdict(set)
    for record in place.read(place.units):
        partitions[record.key()].add(record.partition())
    assert {len(each) for each in partitions.values()} == {1}
    assert len(set.union(*partitions.values())) == 4
    seen: dict[str, list[int]] = defaultdict(list)

    def read(number: int) -> None:
        with uow.connect(place.bootstrap) as connection, connection.units(place.name, group=place.name) as reader:
            while len(seen) < len(ids):
                unit = reader.receive(0.2)
                if unit is None:
                    continue
                values = [component.value for component in unit.components]
                with contextlib.suppress(uow.errors.LostServerError):  # the group shares out anew: another one gets it
                    unit.acknowledge()
                    seen[unit.id].append(number if values == place_values(place, unit.id) else -1)
                have_read = {each for numbers in [*seen.values()] for each in numbers}
                time.sleep(0.01 if len(have_read) == 3 else 0.1)  # work, so that the others come to join

    readers: list[threading.Thread] = []

    def are_read() -> bool:
        if len(readers) < 3 and len(seen) >= 60 * len(readers):
            readers.append(threading.Thread(target=read, args=(len(readers),)))
            readers[-1].start()
        return len(seen) == len(ids)

    wait_for(are_read, 90, lambda: f"{len(seen)} of {len(ids)} by {len(readers)} readers")
    for thread in readers:
        thread.join(60)
    assert set(seen) == set(ids)
    assert {len(numbers) for numbers in seen.values()} == {1}
    assert {number for numbers in seen.values() for number in numbers} == {0, 1, 2}


def place_values(place: Destination, name: str) -> list[bytes]:
    return [place.sent[name.encode()][seq] for seq in (1, 2, 3)]


def test_pass_through_gives_everything_on_as_it_came_and_says_that_nothing_expires_w65_w73(place: Destination) -> None:
    """Bytes, headers and count equal, in arrival order per partition; nothing waits, is ordered, refused or expires."""
    place.create(handling_policy="pass_through", incomplete_expiration_ms=500, expiration_policy="redirect")
    worker = place.worker()
    producer = Producer({"bootstrap.servers": place.bootstrap, "enable.idempotence": True})
    rng = random.Random(65)
    for number in range(400):
        headers: Any = [
            ("uow-id", b"one"),
            ("uow-seq", rng.choice([b"1", b"7", b"-3", b"x"])),
            ("uow-end", rng.choice([b"true", b"perhaps"])),
            ("uow-expires-at", b"1"),
            ("x", None),
            ("x", rng.randbytes(3)),
        ][: rng.randrange(7)]
        producer.produce(place.components, b"%d" % number, rng.choice([None, b"", b"key"]), number % 4, headers=headers)
    assert not producer.flush(PATIENCE_S)
    wait_for(lambda: len(place.read(place.units)) >= 400)

    def lying(topic: str) -> dict[int, list[Any]]:
        found: dict[int, list[Any]] = defaultdict(list)
        for record in place.read(topic):
            found[record.partition()].append((record.key(), record.value(), record.headers()))
        return found

    assert lying(place.units) == lying(place.components)
    assert not place.read(f"{place.name}.rejected")
    assert not place.read(f"{place.name}.errors")
    assert (
        f"destination {place.name}: expiration has no effect under handling_policy = pass_through"
        in worker.child.output
    )
    assert worker.child.terminate() == 0


def test_the_worker_warns_at_start_that_groups_may_wait_for_ever_w72(shared: tuple[Destination, Worker]) -> None:
    place, worker = shared
    assert f"destination {place.name}: incomplete_expiration_ms = -1, groups may wait for ever" in worker.child.output


def test_a_unit_spans_two_transactions_and_comes_when_the_second_commits_w48(
    shared: tuple[Destination, Worker],
) -> None:
    """None comes while it is open, and none if it aborts."""
    place, _ = shared

    def send(transaction: str, *components: tuple[str, int, bool]) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": place.bootstrap,
                "partitioner": "murmur2_random",
                "transactional.id": f"{place.name}-{transaction}",
            }
        )
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        for name, seq, end in components:
            headers: Any = [
                ("uow-id", name.encode()),
                ("uow-seq", b"%d" % seq),
                ("uow-end", b"true" if end else b"false"),
            ]
            producer.produce(place.components, b"%d" % seq, name, headers=headers)
        assert not producer.flush(PATIENCE_S)
        return producer

    send("first", ("spans", 1, False), ("spans", 2, False), ("torn", 1, False)).commit_transaction(PATIENCE_S)
    second, torn = send("second", ("spans", 3, True)), send("torn", ("torn", 2, True))
    place.send_units(8, prefix="others-")
    wait_for(lambda: len({record.partition() for record in place.read(place.units)}) > 1)
    assert unit_of(place, "spans") is None
    torn.abort_transaction(PATIENCE_S)
    second.commit_transaction(PATIENCE_S)
    wait_for(lambda: unit_of(place, "spans"))
    unit = unit_of(place, "spans")
    assert unit is not None
    assert [component["value"] for component in unit["components"]] == [b"1", b"2", b"3"]
    assert unit_of(place, "torn") is None


def test_the_block_of_a_producer_becomes_one_unit_w45(shared: tuple[Destination, Worker]) -> None:
    """Numbers from 1, the end mark on the last one; one unit of the five."""
    place, _ = shared
    with uow.connect(place.bootstrap) as connection, connection.unit(place.name) as sent:
        for item in range(5):
            sent.send({"item": item})
    wait_for(lambda: unit_of(place, sent.id))
    unit = unit_of(place, sent.id)
    assert unit is not None
    assert [(each["seq"], each["end"], json.loads(each["value"])["item"]) for each in unit["components"]] == [
        (seq, seq == 5, seq - 1) for seq in range(1, 6)
    ]


FORWARDER = """
import sys, time
from confluent_kafka import Consumer, Producer
bootstrap, hop, components = sys.argv[1:]
consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": hop, "auto.offset.reset": "earliest", "enable.auto.commit": False, "session.timeout.ms": 3000})
consumer.subscribe([hop])
producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random", "enable.idempotence": True})
while True:
    record = consumer.poll(1)
    if record is None or record.error():
        continue
    headers = record.headers()
    producer.produce(components, record.value(), dict(headers)["uow-id"], headers=headers)
    assert not producer.flush(30)
    print("sent", flush=True)
    if "--commit" not in sys.argv[0]:
        time.sleep(600)
    consumer.commit(record, asynchronous=False)
"""


@pytest.mark.parametrize(("policy", "refused"), [("reject", [b"resend"]), ("drop_identical", [])])
def test_a_plain_forwarder_that_dies_between_send_and_commit_doubles_nothing_w44(
    place: Destination, admin: Any, tmp_path: Path, spawn: Callable[..., Process], policy: str, refused: list[bytes]
) -> None:
    """Killed after it sent, before it committed: its successor sends the same component again, and the component id shows it."""
    place.create(duplicate_policy=policy)
    place.worker()
    hop = make_topic(admin, f"{place.name}-hop", 1)
    for name in ("dies", "lives--commit"):
        (tmp_path / f"{name}.py").write_text(FORWARDER)
    with uow.connect(place.bootstrap) as connection:
        connection.send(place.name, "on the way", id="doubled", seq=1, to=hop)
    first = spawn("python", tmp_path / "dies.py", place.bootstrap, hop, place.components)
    first.wait_output("sent")
    first.signal(signal.SIGKILL)
    second = spawn("python", tmp_path / "lives--commit.py", place.bootstrap, hop, place.components)
    second.wait_output("sent", 90)
    wait_for(lambda: place.committed() >= len(place.read(place.components)) == 2)
    place.send([("doubled", 2, True)], value=b"straight")
    wait_for(lambda: unit_of(place, "doubled"))
    made = unit_of(place, "doubled")
    assert made is not None
    assert [each["value"] for each in made["components"]] == [b"on the way", b"doubled/2/straight"]
    told = [dict(record.headers())["uow-error-case"] for record in place.read(f"{place.name}.rejected")]
    assert told == refused


def test_fifty_plain_records_and_twenty_units_all_come_out_w121(shared: tuple[Destination, Worker]) -> None:
    """The plain ones one by one with their own key, value and headers; one that says it is a unit is none."""
    place, _ = shared
    producer = Producer({"bootstrap.servers": place.bootstrap, "enable.idempotence": True})
    mark = b"letter-of-w121"
    for number in range(50):
        headers: Any = [("letter", mark), ("uow-kind", b"unit"), ("n", None)][: 1 + number % 3]
        producer.produce(
            place.components, b"%d" % number, b"reader-%d" % number if number % 2 else None, headers=headers
        )
    assert not producer.flush(PATIENCE_S)
    place.send_units(20, prefix="among-letters-")

    def out() -> tuple[list[Any], set[bytes]]:
        records = place.read(place.units)
        plain = [record for record in records if ("letter", mark) in (record.headers() or ())]
        return plain, {key for record in records if (key := record.key() or b"").startswith(b"among-letters-")}

    wait_for(lambda: (len(out()[0]), len(out()[1])) == (50, 20))
    for record in out()[0]:
        number = int(record.value())
        assert record.key() == (b"reader-%d" % number if number % 2 else None)
        assert record.headers() == [("letter", mark), ("uow-origin-kind", b"unit"), ("n", None)][: 1 + number % 3]


def test_a_component_is_split_on_the_way_and_the_outer_unit_holds_the_inner_one_w205(
    shared: tuple[Destination, Worker], place: Destination, admin: Any
) -> None:
    """2 of 3 becomes four at another destination; the outer unit has three, the second of which is the unit of four."""
    orders, _ = shared
    place.create()
    place.worker()
    hop = make_topic(admin, f"{place.name}-hop", 1)
    with uow.connect(orders.bootstrap) as connection:
        with connection.unit(orders.name) as order:
            order.send("first")
            order.send("second", to=hop)
            order.send("third")
        with connection.messages(hop, group=hop) as messages:
            message = messages.receive(60)
            assert message is not None
            with connection.unit(place.name, stands_for=message) as inner:
                for part in "abcd":
                    inner.send(part)
        with connection.messages(place.units, group=hop) as finished:
            whole = finished.receive(60)
            assert whole is not None
            connection.forward(whole, destination=orders.name)
        wait_for(lambda: unit_of(orders, order.id))
        with connection.units(orders.name, group=hop) as units:
            outer = next(unit for unit in units if unit.id == order.id)
            assert [component.seq for component in outer.components] == [1, 2, 3]
            held = outer.components[1].unit
            assert held is not None
            assert [component.text() for component in held.components] == ["a", "b", "c", "d"]
            assert [outer.components[at].text() for at in (0, 2)] == ["first", "third"]


def test_ten_small_units_and_a_large_one_come_through_one_loop_w208(place: Destination) -> None:
    """Twelve components of 900 kB fit no record: that unit is a run, the others are envelopes, and the reader tells none from the other."""
    place.create(oversize="consecutive")
    place.worker()
    place.send([("large", seq, seq == 12) for seq in range(1, 13)], value=b"v" * 900_000)
    place.send_units(10, size=3)
    with uow.connect(place.bootstrap) as connection, connection.units(place.name, group=place.name) as units:
        for _ in range(11):
            unit = units.receive(60)
            assert unit is not None
            sent = place.sent[unit.id.encode()]
            assert [component.value for component in unit.components] == [sent[seq] for seq in sorted(sent)]
            unit.acknowledge()
        assert units.receive(1) is None
    positions = [dict(record.headers()).get("uow-pos") for record in place.read(place.units)]
    assert (len(positions), positions.count(None)) == (22, 10)


def test_an_input_that_loses_components_or_their_times_ends_the_worker_with_status_two_w70_w120(
    place: Destination, admin: Any
) -> None:
    """Compaction keeps one component of a unit, and the producer's clock counts for nothing."""
    place.create()
    alter_topic(admin, place.components, cleanup_policy="compact", message_timestamp_type="CreateTime")
    worker = place.worker(wait=False)
    assert worker.child.wait(90) == 2
    assert f"{place.components}" in worker.child.output
    assert "cleanup.policy" in worker.child.output
    assert "message.timestamp.type" in worker.child.output
