"""A worker that starts while brokers come and go asks again, whatever it was asking."""

from __future__ import annotations

import confluent_kafka as ck
import pytest

from uow.processor.kafka.worker_settings import WorkerSettings
from uow.processor.shell.worker import _insist


class Brokers:
    """Fails with these codes, one after the other, then answers."""

    def __init__(self, *codes: int) -> None:
        self._codes = [*codes]
        self.asked = 0

    def __call__(self) -> str:
        self.asked += 1
        if self._codes:
            raise ck.KafkaException(ck.KafkaError(self._codes.pop(0)))
        return "here"


def settings(broker_wait_ms: int = -1) -> WorkerSettings:
    return WorkerSettings("shop", "nowhere:9092", "a", broker_wait_ms=broker_wait_ms)


def test_no_answer_and_a_time_out_are_asked_again() -> None:
    """Found by `uow prove`: brokers that went away between two questions ended the worker with status 1."""
    brokers = Brokers(ck.KafkaError._TRANSPORT, ck.KafkaError._TIMED_OUT, ck.KafkaError.REQUEST_TIMED_OUT)
    assert _insist(settings(), brokers) == "here"
    assert brokers.asked == 4


def test_coordinator_that_is_not_there_yet_is_asked_again() -> None:
    """The first worker of a new cluster: the topic of committed offsets is being made."""
    brokers = Brokers(ck.KafkaError.NOT_COORDINATOR, ck.KafkaError.COORDINATOR_LOAD_IN_PROGRESS)
    assert _insist(settings(), brokers) == "here"


def test_refusal_is_an_answer() -> None:
    brokers = Brokers(ck.KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(ck.KafkaException):
        _insist(settings(), brokers)
    assert brokers.asked == 1


def test_waiting_ends_where_it_is_limited() -> None:
    brokers = Brokers(*[ck.KafkaError._TRANSPORT] * 1_000_000)
    with pytest.raises(ck.KafkaException):
        _insist(settings(broker_wait_ms=0), brokers)
