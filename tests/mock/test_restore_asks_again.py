"""What a broker answers while it mends itself keeps no partition from being restored (ER-06, R-34, R-74)."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import closing

import confluent_kafka as ck
import pytest

from tests.mock.mock_cluster import MockCluster
from tests.processes import PATIENCE_S, wait_for
from uow.processor.engine.ports import Committed, Tp
from uow.processor.kafka import log_reader
from uow.processor.kafka.clients import Clients
from uow.processor.kafka.log_offsets import LogOffsets
from uow.processor.kafka.log_reader import REQUEST_S, KafkaLogReader, Readiness
from uow.processor.kafka.worker_settings import WorkerSettings

FETCH, LIST_OFFSETS, OFFSET_FETCH = 1, 2, 9
LOG = Tp("A-D-groups-changelog", 0)
PASSING = ["NOT_LEADER_FOR_PARTITION", "OFFSET_NOT_AVAILABLE", "KAFKA_STORAGE_ERROR", "NETWORK_EXCEPTION"]


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster(LOG.topic) as running:
        yield running


@pytest.fixture
def clients(cluster: MockCluster) -> Clients:
    producer = ck.Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(3):
        producer.produce(LOG.topic, b"%d" % number, partition=0)
    assert producer.flush(PATIENCE_S) == 0
    return Clients(WorkerSettings("A", cluster.bootstrap, "0"))


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("code", PASSING)
@pytest.mark.parametrize("api", [FETCH, LIST_OFFSETS, OFFSET_FETCH])
def test_error_that_passes_is_asked_again(
    cluster: MockCluster, clients: Clients, api: int, code: str, times: int
) -> None:
    """librdkafka's own question for both ends took a log for empty when the broker refused one of the two: (3, 3)."""
    with closing(KafkaLogReader(clients)) as reader:
        cluster.fail(api, *[getattr(ck.KafkaError, code)] * times)
        assert reader.committed([LOG]) == {LOG: Committed(None, "")}
        assert reader.bounds([LOG]) == {LOG: (0, 3)}
        found = [record.value() for _, records in reader.read({LOG: (0, 3)}) for record in records]
    assert found == [b"0", b"1", b"2"]


def test_partition_without_a_leader_is_not_waited_for_by_those_that_have_one(
    cluster: MockCluster, clients: Clients
) -> None:
    """The restore of one partition must not keep the others from working."""
    other = Tp(LOG.topic, 1)
    readiness = Readiness(clients, lambda tp: ([tp], 1))
    wait_for(lambda: sorted(readiness.ready([LOG, other])) == [LOG, other])
    cluster.lead(LOG.topic, 0, broker=-1)
    wait_for(lambda: readiness.ready([LOG, other]) == [other])
    assert readiness.ready([LOG]) == []
    cluster.lead(LOG.topic, 0)
    wait_for(lambda: readiness.ready([LOG]) == [LOG])


@pytest.mark.parametrize("round_trip_ms", [160, 500])
def test_brokers_far_away_keep_no_partition_from_being_restored(
    cluster: MockCluster, clients: Clients, round_trip_ms: int
) -> None:
    """Two answers were wanted within 0.3 s, and late ones thrown away: over a slow line a worker never began."""
    cluster.slow(round_trip_ms)
    both = [LOG, Tp(LOG.topic, 1)]
    readiness = Readiness(clients, lambda tp: ([tp], 1))
    wait_for(lambda: sorted(readiness.ready(both)) == both)


def test_many_partitions_that_wait_are_told_in_one_line(
    clients: Clients, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line each was 217 at a start with 256 partitions."""
    monkeypatch.setattr(log_reader, "SAY_AFTER_S", 0.0)
    readiness = Readiness(clients, lambda tp: ([tp], 1))
    tps = [Tp(LOG.topic, number) for number in range(2, 50)]  # have no leader, since they are not there
    wait_for(lambda: not readiness.ready(tps) and caplog.records)
    lines = [record.getMessage() for record in caplog.records if "not restored yet" in record.getMessage()]
    assert lines[0] == f"{LOG.topic}/2 is not restored yet: no broker answers for its topics, and 47 others"


def test_topic_that_is_not_there_is_for_the_restore_to_tell(clients: Clients) -> None:
    """It blocks the partition with a cause; who waited for the topic would wait for ever."""
    gone = Tp("gone", 0)
    readiness = Readiness(clients, lambda tp: ([tp], 1))
    wait_for(lambda: readiness.ready([gone]) == [gone])


def test_question_that_is_refused_by_an_old_epoch_of_the_leader_is_answered_soon_after(
    cluster: MockCluster, clients: Clients
) -> None:
    """After kill -9 of a single broker librdkafka asked with the old epoch for 70 to 80 s, and a restore waited as long."""
    offsets = LogOffsets(clients)

    def ask() -> int | str:
        try:
            return int(offsets.ends([LOG], PATIENCE_S)[LOG].result().offset)
        except ck.KafkaException as refusal:
            return str(refusal.args[0].name())

    assert ask() == 3
    for broker in (-1, 1):
        cluster.lead(LOG.topic, 0, broker=broker)
    assert ask() == "FENCED_LEADER_EPOCH"
    wait_for(lambda: ask() == 3)


def test_a_leader_that_does_not_answer_in_time_makes_no_log_look_empty() -> None:
    """librdkafka returned -1001 for its partitions, without an error, if another leader was asked by the same question."""
    with MockCluster(LOG.topic, brokers=2) as cluster:
        for partition in (0, 1):
            cluster.lead(LOG.topic, partition, broker=partition + 1)
        other = Tp(LOG.topic, 1)
        with closing(KafkaLogReader(Clients(WorkerSettings("A", cluster.bootstrap, "0")))) as reader:
            assert reader.bounds([LOG, other]) == {LOG: (0, 0), other: (0, 0)}
            cluster.late(LIST_OFFSETS, 2 * int(1000 * REQUEST_S))
            assert reader.bounds([LOG, other]) == {LOG: (0, 0), other: (0, 0)}


def test_a_question_under_way_keeps_no_handle_alive(cluster: MockCluster, clients: Clients) -> None:
    """Its answer comes in a thread of librdkafka, which aborts the process if the last reference to a handle goes there."""
    offsets = LogOffsets(clients)
    cluster.down()
    answers = offsets.ends([LOG], PATIENCE_S)
    asking = weakref.ref(offsets)
    del offsets
    assert asking() is None
    assert not answers[LOG].done()
    cluster.up()


def test_a_long_restore_says_how_much_is_left_r73(
    clients: Clients, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reader, "SAY_AFTER_S", 0.0)
    monkeypatch.setattr(log_reader, "CHUNK", 1)
    with closing(KafkaLogReader(clients)) as reader, caplog.at_level("INFO", "uow.reader"):
        assert sum(len(records) for _, records in reader.read({LOG: (0, 3)})) == 3
    said = [record.getMessage() for record in caplog.records if "still to be read" in record.getMessage()]
    assert "restore: 1 offsets of 1 partitions are still to be read" in said
