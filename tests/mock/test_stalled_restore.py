"""A restore whose position does not move: what explains it, and what does not (ER-10, R-74, `restore_stall_ms`)."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import confluent_kafka as ck
import pytest

from uow.processor.engine.ports import Blocked, Stopped, Tp
from uow.processor.kafka.log_reader import KafkaLogReader

LOG = Tp("A-D-groups-changelog", 0)


class Still:
    """A consumer that gets nothing."""

    def consume(self, count: int, timeout: float) -> list[Any]:
        return []

    def position(self, partitions: list[ck.TopicPartition]) -> list[ck.TopicPartition]:
        return [ck.TopicPartition(each.topic, each.partition, 0) for each in partitions]

    def assign(self, partitions: list[ck.TopicPartition]) -> None: ...
    def close(self) -> None: ...


class StalledClients:
    """`end` is what is heard of every partition's end offsets."""

    def __init__(self, end: int | ck.KafkaException) -> None:
        self.end = end

    def log_consumer(self, isolation: str) -> Still:
        return Still()

    def admin(self) -> StalledClients:
        return self

    def list_offsets(self, wanted: Any, **how: Any) -> dict[ck.TopicPartition, Future[Any]]:
        answer: Future[Any] = Future()
        if isinstance(self.end, ck.KafkaException):
            answer.set_exception(self.end)
        else:
            answer.set_result(SimpleNamespace(offset=self.end))
        return dict.fromkeys(wanted, answer)


def read(stable_end: int | ck.KafkaException, looks: int = 3) -> None:
    left = iter(range(looks))

    def meanwhile() -> None:
        if next(left, None) is None:
            raise Stopped

    clients: Any = StalledClients(stable_end)
    reader = KafkaLogReader(clients, meanwhile, stall_ms=0)
    list(reader.read({LOG: (0, 9)}))


def test_restore_that_nothing_explains_is_an_error_that_names_the_partition() -> None:
    with pytest.raises(Blocked, match=r"A-D-groups-changelog.*no transaction is open"):
        read(9)


@pytest.mark.parametrize(
    ("stable_end", "reason"),
    [
        (7, "a transaction is open in A-D-groups-changelog/0 at offset 7"),
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
    clients: Any = StalledClients(ck.KafkaException(ck.KafkaError(code)))
    asked: list[None] = []

    def meanwhile() -> None:
        asked.append(None)
        if len(asked) == 2:
            clients.end = 9

    assert KafkaLogReader(clients, meanwhile).bounds([LOG]) == {LOG: (9, 9)}
    assert len(asked) == 3, "twice for the start, once for the end"
