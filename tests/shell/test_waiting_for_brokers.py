"""A worker that starts while brokers come and go asks again, whatever it was asking."""

from __future__ import annotations

from collections.abc import Callable

import confluent_kafka as ck
import pytest

from uow.processor.kafka.worker_settings import WorkerSettings
from uow.processor.shell import worker
from uow.processor.shell.worker import _insist, known_topics
from uow.schemas.error_classes import Complaint, ConfigError


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


UNKNOWN = ck.KafkaException(ck.KafkaError(ck.KafkaError.UNKNOWN_TOPIC_OR_PART))
MISSING = ConfigError.many(
    [
        Complaint("topic D.units, retention.ms", "1", "must be 2"),
        Complaint("topic D.rules, topic", "missing", "must be there"),
    ]
)
WRONG = ConfigError.many([Complaint("topic D.units, retention.ms", "1", "must be 2")])


def answering(*answers: dict[str, int] | Exception) -> Callable[[WorkerSettings], dict[str, int]]:
    """Answers in this order, the last one for ever."""
    left = [*answers]

    def check(_: WorkerSettings) -> dict[str, int]:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return check


@pytest.fixture
def topics(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, int]]:
    """Counts that a worker starts with if brokers answer like this."""

    def known(*answers: dict[str, int] | Exception) -> dict[str, int]:
        monkeypatch.setattr(worker, "check_topics", answering(*answers))
        return known_topics(settings())[0]

    monkeypatch.setattr(worker, "input_limits", lambda _: {"D.components": 1_000})
    monkeypatch.setattr(worker, "LOOK_AGAIN_S", 0)
    return known


def test_new_topic_that_one_broker_does_not_know_yet_is_looked_for_again(topics: Callable[..., dict[str, int]]) -> None:
    assert topics(MISSING, {"D.components": 0}, UNKNOWN, {"D.components": 8}) == {"D.components": 8}


@pytest.mark.parametrize("answer", [MISSING, UNKNOWN, {"D.components": 0}])
def test_topic_that_stays_missing_is_told(
    topics: Callable[..., dict[str, int]], answer: Exception | dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "NEW_TOPIC_S", 0.05)
    with pytest.raises(type(answer) if isinstance(answer, Exception) else ConfigError):
        topics(answer)


def test_topic_of_others_without_partitions_is_no_matter(topics: Callable[..., dict[str, int]]) -> None:
    """One that is being deleted, for example."""
    found = {"D.components": 8, "others": 0}
    assert topics(found, {}) == found


def test_topic_that_is_not_as_it_must_be_is_told_at_once(topics: Callable[..., dict[str, int]]) -> None:
    with pytest.raises(ConfigError):
        topics(WRONG, {"D.components": 8})
