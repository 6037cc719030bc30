"""The path map's log on librdkafka: claims that race, a log that does not answer, a reader that slept (W-105)."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import confluent_kafka as ck
import pytest

from tests.mock.mock_cluster import MockCluster
from tests.processes import PATIENCE_S
from uow.processor.engine.ports import Doubt, Stopped
from uow.processor.kafka import path_log
from uow.processor.kafka.clients import Clients
from uow.processor.kafka.path_log import KafkaPathLog
from uow.processor.kafka.worker_settings import WorkerSettings
from uow.topics.catalogue import DestinationTopics
from uow.topics.path_map import PathMap, claim_key

TOPICS = DestinationTopics("A", "D")
TOPIC = TOPICS.path_map


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster(TOPIC, partitions=1) as running:
        yield running


class Party:
    """Somebody with a map."""

    def __init__(self, cluster: MockCluster, worker_name: str = "0") -> None:
        self.paths = PathMap()
        clients = Clients(WorkerSettings("A", cluster.bootstrap, worker_name))
        self.now = 1.0
        self.end = 0
        self.log = KafkaPathLog(
            TOPICS,
            self.paths,
            clients.path_consumer,
            clients.path_producer,
            lambda meanwhile: self.end,
            lambda: self.now,
        )

    def claim(self, *ids: bytes, partition: int) -> None:
        self.log.claim(dict.fromkeys(ids, partition))


@pytest.fixture
def party(cluster: MockCluster) -> Iterator[Party]:
    made = Party(cluster)
    yield made
    made.log.close()


@pytest.fixture
def other(cluster: MockCluster) -> Iterator[Party]:
    made = Party(cluster, "1")
    yield made
    made.log.close()


def test_who_races_for_an_id_agrees_with_everybody_on_its_placement_w105(party: Party, other: Party) -> None:
    ids = [b"g%d" % number for number in range(100)]
    at_once = threading.Barrier(2)

    def race(who: Party, partition: int) -> None:
        at_once.wait(PATIENCE_S)
        for begin in range(0, 100, 10):
            who.claim(*ids[begin : begin + 10], partition=partition)

    racers = [threading.Thread(target=race, args=(party, 0)), threading.Thread(target=race, args=(other, 1))]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(60)
    placed = {each: party.paths.get(each) for each in ids}
    assert placed == {each: other.paths.get(each) for each in ids}
    assert None not in placed.values()


def test_what_is_there_is_read_to_the_end_that_was_asked_for_w105(party: Party, other: Party) -> None:
    other.claim(b"a", b"b", b"c", partition=2)
    party.end = 3
    party.log.read_all(lambda: None)
    assert {each: party.paths.get(each) for each in party.paths} == {b"a": 2, b"b": 2, b"c": 2}
    party.log.read_all(lambda: None)


def test_stop_is_heard_while_the_log_is_read(party: Party) -> None:
    def stop() -> None:
        raise Stopped

    party.end = 1
    with pytest.raises(Stopped):
        party.log.read_all(stop)


def test_claims_that_are_not_read_back_in_time_are_a_doubt(
    cluster: MockCluster, party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    party.claim(b"a", partition=1)
    monkeypatch.setattr(path_log, "CLAIM_S", -1.0)
    cluster.down()
    with pytest.raises(Doubt, match="1 claims in A-D-path-map were not read back"):
        party.claim(b"b", partition=1)


def test_claim_that_the_library_does_not_take_is_a_doubt(party: Party) -> None:
    class Refusing:
        def produce(self, *_: object) -> None:
            raise ck.KafkaException(ck.KafkaError(ck.KafkaError.TOPIC_AUTHORIZATION_FAILED))

    party.log._producer = Refusing()
    with pytest.raises(Doubt, match="A-D-path-map"):
        party.claim(b"a", partition=1)


def test_full_send_buffer_is_waited_for(party: Party) -> None:
    party.claim(b"a", partition=1)
    producer, refusals = party.log._producer, [BufferError(), BufferError()]

    class Full:
        poll, flush = producer.poll, producer.flush

        def produce(self, *args: object) -> None:
            if refusals:
                raise refusals.pop()
            producer.produce(*args)

    party.log._producer = Full()
    party.claim(b"b", partition=1)
    assert party.paths.get(b"b") == 1


def test_who_slept_through_the_life_of_a_tombstone_reads_the_map_anew_w105(party: Party, other: Party) -> None:
    """Compaction may have taken it, and with it the news that a placement has ended."""
    party.claim(b"a", partition=1)
    party.paths.read(claim_key(b"ghost", bytes(16)), b"3", 0)  # of a time that is over
    party.now += path_log.SLEEP_S + 1
    other.claim(b"b", partition=2)
    party.claim(b"c", partition=0)
    assert {each: party.paths.get(each) for each in party.paths} == {b"a": 1, b"b": 2, b"c": 0}


def test_nothing_that_somebody_writes_ends_a_reader_or_hides_what_lies_behind_it(
    cluster: MockCluster, party: Party, caplog: pytest.LogCaptureFixture
) -> None:
    """Numbers of 4,301 digits, partitions that do not exist, empty keys: ignored, counted, told once."""
    hostile = ck.Producer({"bootstrap.servers": cluster.bootstrap, "message.max.bytes": 2_000_000})
    rows: list[tuple[bytes | None, bytes | None]] = [
        (claim_key(b"a", bytes(16)), b"9" * 4_301),
        (claim_key(b"a", bytes(15) + b"1"), b"99"),
        (claim_key(b"", bytes(16)), b"1"),
        (claim_key(b"x" * 900_000, bytes(16)), b"1"),
        (None, b"1"),
        (b"", None),
        (b"\xff" * 40, b"1"),
    ]
    for key, value in rows:
        hostile.produce(TOPIC, value, key, headers=[("h" * 1_000, b"x")] * 100)
    assert not hostile.flush(PATIENCE_S)
    party.paths.grow(4)
    party.claim(b"a", b"b", partition=1)
    assert {each: party.paths.get(each) for each in party.paths} == {b"a": 1, b"b": 1}
    assert party.paths.ignored == 4
    assert len([line for line in caplog.messages if "is ignored" in line]) == 1


def test_partition_that_was_added_since_is_asked_for_before_its_claims_are_ignored_w215(
    cluster: MockCluster, party: Party, other: Party
) -> None:
    party.paths.grow(2)
    cluster.create(TOPICS.components, 8)
    other.claim(b"a", partition=7)
    party.claim(b"a", partition=1)
    assert (party.paths.get(b"a"), party.paths.partitions) == (7, 8)
