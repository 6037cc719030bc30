"""The restore barrier on a real broker, with a transaction open (ER-06, S-08): each question is asked while its answer would be wrong to a hasty reader.

And the proof that these tests can fail: the reader with its isolation levels exchanged, and one that takes the last record for the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.conftest import QUIET
from tests.kafka_broker import Kafka
from tests.processes import PATIENCE_S
from uow.processor.engine.ports import Committed, Tp
from uow.processor.kafka.clients import Clients
from uow.processor.kafka.log_offsets import LogOffsets
from uow.processor.kafka.log_reader import KafkaLogReader
from uow.processor.kafka.worker_settings import WorkerSettings

LOOKS = 10
"""So often whoever waits looks around before the transaction ends: a hasty reader is done by then."""
ASKED_ONCE = 2
"""The same for committed offsets: the library asks again by itself, for five seconds."""


class Barrier:
    """A log with a transaction open in it that also moves a group's offset, and a restore's reader, which ends it after a while.

    Attributes:
        log: One committed record, then three that nobody may read yet.
        looks: How often the reader has looked around.
        patience: How often it does until the transaction ends.
    """

    def __init__(self, bootstrap: str, log: Tp, group: str, transaction_ms: int = 60_000) -> None:
        self.log, self.looks, self.patience = log, 0, LOOKS
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group}, logger=QUIET)
        properties = {
            "transactional.id": group,
            "transaction.timeout.ms": transaction_ms,
            "message.timeout.ms": transaction_ms,
        }
        self._producer = Producer({"bootstrap.servers": bootstrap, **properties}, logger=QUIET)
        self.reader = KafkaLogReader(Clients(WorkerSettings(group, bootstrap, "0")), self._meanwhile)
        self._producer.init_transactions(PATIENCE_S)
        self._write(1, 5)
        self._producer.commit_transaction(PATIENCE_S)
        self._write(3, 7)

    def _write(self, count: int, position: int) -> None:
        self._producer.begin_transaction()
        for number in range(count):
            self._producer.produce(self.log.topic, b"%d" % number, partition=self.log.partition)
        assert not self._producer.flush(PATIENCE_S)
        at = TopicPartition(self.log.topic, self.log.partition, position)
        self._producer.send_offsets_to_transaction([at], self._consumer.consumer_group_metadata(), 30)

    def _meanwhile(self) -> None:
        self.looks += 1
        if self.looks == self.patience:
            self._producer.commit_transaction(PATIENCE_S)

    def close(self) -> None:
        self.reader.close()
        self._consumer.close()


@pytest.fixture
def barrier(broker: Kafka, create_topic: Callable[..., str], unique: str) -> Iterator[Barrier]:
    made = Barrier(broker.bootstrap, Tp(create_topic(partitions=1), 0), unique)
    yield made
    made.close()


def restored(barrier: Barrier) -> tuple[Mapping[Tp, Committed], list[bytes]]:
    """What a restore asks, in its order, and then reads."""
    committed = barrier.reader.committed([barrier.log])
    bounds = barrier.reader.bounds([barrier.log])
    read = [record.value() or b"" for _, stretch in barrier.reader.read(bounds) for record in stretch]
    return committed, read


def check_offsets_wait(barrier: Barrier) -> None:
    barrier.patience = ASKED_ONCE
    committed, read = restored(barrier)
    assert committed[barrier.log].offset == 7
    assert read == [b"0", b"0", b"1", b"2"]


def check_end_lies_behind(barrier: Barrier) -> None:
    barrier.patience = -1  # asking for the ends may take any number of looks
    start, end = barrier.reader.bounds([barrier.log])[barrier.log]
    stable = barrier.reader._asker("read_committed").get_watermark_offsets(
        TopicPartition(*barrier.log), timeout=PATIENCE_S
    )
    assert stable is not None
    assert start == 0
    assert stable[1] == 2 < end == 5, "the condition: the last stable offset lies before the end"
    barrier.patience = barrier.looks + LOOKS
    read = [record.value() or b"" for _, stretch in barrier.reader.read({barrier.log: (0, end)}) for record in stretch]
    assert barrier.looks >= barrier.patience
    assert read == [b"0", b"0", b"1", b"2"]


def test_committed_offsets_wait_for_the_transaction_that_moves_them_er06(barrier: Barrier) -> None:
    check_offsets_wait(barrier)


def test_a_restore_reads_up_to_the_end_behind_an_open_transaction_er06_er07(barrier: Barrier) -> None:
    check_end_lies_behind(barrier)


def test_a_restore_waits_for_the_transaction_of_a_dead_worker_until_it_times_out_er10(
    broker: Kafka, create_topic: Callable[..., str], unique: str
) -> None:
    """Its records are not read, its offsets are not taken; no worker of its name comes to end it."""
    barrier = Barrier(broker.bootstrap, Tp(create_topic(partitions=1), 0), unique, transaction_ms=1_000)
    barrier.patience = -1
    committed, read = restored(barrier)
    assert barrier.looks > ASKED_ONCE
    assert committed[barrier.log].offset == 5
    assert read == [b"0"]
    barrier.close()


# -- the same with a defect


@contextmanager
def last_stable_offset_as_end() -> Iterator[None]:
    with patch.object(LogOffsets, "ends", LogOffsets.stable_ends):
        yield


@contextmanager
def offsets_of(level: str) -> Iterator[None]:
    committed: Any = KafkaLogReader.committed
    with patch.object(KafkaLogReader, "committed", lambda self, tps: committed(self, tps, level)):
        yield


@contextmanager
def last_record_as_end() -> Iterator[None]:
    """Done with what is there."""

    def read(self: KafkaLogReader, consumer: Any, ends: dict[tuple[str, int], int]) -> Iterator[Any]:
        messages: Sequence[Any] = consumer.consume(100, 2.0)
        records = [each for each in messages if each.error() is None]
        if records:
            yield Tp(records[0].topic(), records[0].partition()), records

    with patch.object(KafkaLogReader, "_read", read):
        yield


@pytest.mark.parametrize(
    ("defect", "check"),
    [
        pytest.param(last_stable_offset_as_end, check_end_lies_behind, id="restore-ends-at-last-stable-offset"),
        pytest.param(lambda: offsets_of("read_uncommitted"), check_offsets_wait, id="offsets-are-not-stable"),
        pytest.param(last_record_as_end, check_end_lies_behind, id="restore-ends-at-last-record"),
    ],
)
def test_planted_defect_of_the_reader_is_caught(
    barrier: Barrier, defect: Callable[[], Any], check: Callable[[Barrier], None]
) -> None:
    with defect(), pytest.raises(AssertionError):
        check(barrier)
