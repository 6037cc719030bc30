"""`routing = "path"` on a broker: senders that race for an id, one that hashes, partitions that are added while groups are open."""

from __future__ import annotations

import threading

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

import uow
from tests.broker.worker_places import Destination
from tests.processes import PATIENCE_S, wait_for
from uow.cli.main import main
from uow.topics.catalogue import DestinationTopics
from uow.topics.partitioner import partition_for
from uow.topics.path_map import PathMap, claim_key

pytestmark = pytest.mark.timeout(200)


def path_map(place: Destination) -> PathMap:
    """What the map's topic says, read by a plain consumer."""
    paths = PathMap(place.partitions)
    for record in place.read(DestinationTopics(f"A-{place.name}", place.name).path_map):
        paths.read(record.key(), record.value(), record.timestamp()[1])
    return paths


def send(place: Destination, connection: uow.Connection, name: str, seq: int, *, end: bool = False) -> int:
    """A component by a sender that claims; its partition."""
    value = f"{name}/{seq}".encode()
    place.sent[name.encode()][seq] = value
    if end:
        place.ends[name.encode()] = seq
    return connection.send(place.name, value, id=name, seq=seq, end=end).partition


def test_ids_are_placed_once_and_outlive_more_partitions_w105_w106_w215(place: Destination) -> None:
    place.create({"web": "127.0.0.1:0"}, routing="path")
    with place.config.open("a") as config:  # so that the worker hears of new partitions soon
        config.write('\n[kafka]\n"topic.metadata.refresh.interval.ms" = "1000"\n')
    worker = place.worker()
    raced, left_open = [f"raced-{number}" for number in range(20)], [f"open-{number}" for number in range(20)]
    places: dict[tuple[str, int], int] = {}

    def race(seq: int) -> None:
        with uow.connect(place.bootstrap, application=f"A-{place.name}") as connection:
            at_once.wait(PATIENCE_S)
            for name in raced:
                places[name, seq] = send(place, connection, name, seq)

    at_once = threading.Barrier(2)
    racers = [threading.Thread(target=race, args=(seq,)) for seq in (1, 2)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(60)
    assert all(places[name, 1] == places[name, 2] for name in raced), "two senders, one partition"
    assert {places[name, 1] for name in raced} == {0, 1, 2, 3}

    place.send([(name, 3, True) for name in raced])  # by a sender that hashes: the worker sends its components on
    place.send([(name, 1, False) for name in left_open])  # and claims for them where they came to
    place.wait_delivered(20)
    placed = path_map(place)
    units = {record.key(): record.partition() for record in place.read(place.units)}
    assert units == {name.encode(): placed.get(name.encode()) for name in raced}

    grown = CliRunner().invoke(
        main, ["topics", "repartition", place.name, "--partitions", "8", "-c", str(place.config)]
    )
    assert grown.exit_code == 0, grown.output
    place.partitions = 8
    worker.wait_owns(8)
    place.send([(name, 2, True) for name in left_open])  # hashed under the new count
    assert {partition_for(name.encode(), 8) for name in left_open} > {4, 5, 6, 7}
    with uow.connect(place.bootstrap, application=f"A-{place.name}") as connection:
        new = {send(place, connection, f"new-{number}", 1, end=True) for number in range(16)}
    assert new == {4, 5, 6, 7}, "fewest ids are placed there"
    place.wait_delivered(56)
    place.verify()
    units = {record.key(): record.partition() for record in place.read(place.units)}
    assert all(units[name.encode()] == partition_for(name.encode(), 4) for name in left_open), "where they opened"

    assert worker.child.terminate(60) == 0
    place.configure(routing="hash")
    refused = place.worker("1", wait=False)
    assert refused.child.wait(60) == 2, "while the map is there"
    assert "groups lie where it says, not where a hash does" in refused.child.output


def test_claims_that_no_worker_can_follow_stop_neither_workers_nor_senders_w105(place: Destination) -> None:
    """Somebody writes what he likes into the path map, before and while everybody reads it."""
    place.create(routing="path")
    topic = DestinationTopics(f"A-{place.name}", place.name).path_map
    claimed, hashed, late = ([f"{kind}-{number}" for number in range(20)] for kind in ("claimed", "hashed", "late"))
    hostile = Producer({"bootstrap.servers": place.bootstrap, "enable.idempotence": True})

    def claim_nonsense(names: list[str]) -> None:
        for name in names:
            for number, value in enumerate((b"9" * 4_301, b"99", b"-1", "\N{ARABIC-INDIC DIGIT ONE}".encode())):
                hostile.produce(topic, value, claim_key(name.encode(), number.to_bytes(16, "big")))
        hostile.produce(topic, b"1", b"\x01")
        assert not hostile.flush(PATIENCE_S)

    claim_nonsense(claimed + hashed)
    workers = [place.worker("0"), place.worker("1")]
    with uow.connect(place.bootstrap, application=f"A-{place.name}") as connection:
        for name in claimed:
            send(place, connection, name, 1, end=True)
        place.send([(name, 1, True) for name in hashed])
        place.wait_delivered(40)
        claim_nonsense(late)
        for name in late:
            send(place, connection, name, 1, end=True)
    place.wait_delivered(60)
    place.verify()
    assert [worker.child.status for worker in workers] == [None, None]
    wait_for(lambda: path_map(place).ignored_due() is None, PATIENCE_S, "what nobody heeds is ended")
    for worker in workers:
        assert worker.child.terminate(60) == 0
        assert worker.child.output.count("is ignored; further ones are counted only") == 1
