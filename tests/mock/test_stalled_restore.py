"""A restore whose position does not move: what explains it, and what does not (ER-10, `restore_stall_ms`)."""

from __future__ import annotations

import logging
from typing import Any

import confluent_kafka as ck
import pytest

from processor.engine.ports import Blocked, Stopped, Tp
from processor.kafka.reader import KafkaLogReader

LOG = Tp("A-D-groups-changelog", 0)


class Still:
    """A consumer that gets nothing; `stable_end` is what it hears of the partition's last stable offset."""

    def __init__(self, stable_end: int | ck.KafkaException | None) -> None:
        self.stable_end = stable_end

    def consume(self, count: int, timeout: float) -> list[Any]:
        return []

    def position(self, partitions: list[ck.TopicPartition]) -> list[ck.TopicPartition]:
        return [ck.TopicPartition(each.topic, each.partition, 0) for each in partitions]

    def get_watermark_offsets(self, partition: ck.TopicPartition, timeout: float) -> tuple[int, int] | None:
        if isinstance(self.stable_end, ck.KafkaException):
            raise self.stable_end
        return None if self.stable_end is None else (0, self.stable_end)

    def assign(self, partitions: list[ck.TopicPartition]) -> None: ...
    def close(self) -> None: ...


class Clients:
    def __init__(self, consumer: Still) -> None:
        self.consumer = consumer

    def log_consumer(self, isolation: str) -> Still:
        return self.consumer


def read(stable_end: int | ck.KafkaException | None, looks: int = 3) -> None:
    left = iter(range(looks))

    def meanwhile() -> None:
        if next(left, None) is None:
            raise Stopped

    clients: Any = Clients(Still(stable_end))
    reader = KafkaLogReader(clients, meanwhile, stall_ms=0)
    list(reader.read({LOG: (0, 9)}))


def test_restore_that_nothing_explains_is_an_error_that_names_the_partition() -> None:
    with pytest.raises(Blocked, match=r"A-D-groups-changelog.*no transaction is open"):
        read(9)


@pytest.mark.parametrize(
    ("stable_end", "reason"),
    [
        (7, "a transaction is open in A-D-groups-changelog/0 at offset 7"),
        (None, "no broker answers"),
        (ck.KafkaException(ck.KafkaError(ck.KafkaError._TRANSPORT)), "no broker: "),
    ],
)
def test_restore_waits_on_and_says_why_where_something_explains_it(
    stable_end: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), pytest.raises(Stopped):
        read(stable_end)
    assert f"before [('A-D-groups-changelog', 0)]: {reason}" in caplog.text


@pytest.mark.parametrize("code", [ck.KafkaError._DESTROY_BROKER, ck.KafkaError._TRANSPORT, ck.KafkaError._TIMED_OUT])
def test_question_that_met_a_broken_connection_is_asked_again(code: int) -> None:
    """Found by `uow prove --faults frames`: a broker's handle that was thrown away with its connections blocked the partition for ever."""
    consumer = Still(ck.KafkaException(ck.KafkaError(code)))
    asked: list[None] = []

    def meanwhile() -> None:
        asked.append(None)
        if len(asked) == 2:
            consumer.stable_end = 9

    clients: Any = Clients(consumer)
    assert KafkaLogReader(clients, meanwhile).bounds([LOG]) == {LOG: (0, 9)}
    assert len(asked) == 2
