"""End offsets of topics that were made a moment ago (S-13)."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from uow.ops.eras import end_offsets


class Client:
    """An admin client whose answers fail with these codes, one after the other, and then succeed."""

    def __init__(self, *codes: int) -> None:
        self.codes = [*codes]

    def list_offsets(self, asked: dict[TopicPartition, Any], **_: Any) -> dict[TopicPartition, Future[Any]]:
        answers: dict[TopicPartition, Future[Any]] = {row: Future() for row in asked}
        failure = KafkaException(KafkaError(self.codes.pop(0))) if self.codes else None
        for answer in answers.values():
            answer.set_exception(failure) if failure else answer.set_result(SimpleNamespace(offset=7))
        return answers


def test_a_partition_that_has_no_leader_yet_is_asked_for_again() -> None:
    client: Any = Client(KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE, KafkaError._NOENT)
    assert end_offsets(client, {"a": 2}) == {"a": (7, 7)}
    assert client.codes == []


def test_another_error_is_told_at_once() -> None:
    client: Any = Client(KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(KafkaException):
        end_offsets(client, {"a": 1})
    assert len(client.codes) == 1
