"""Committed offsets of a group whose coordinator moves: `uow adopt`, `uow doctor` and `uow migrate` ask again (S-13)."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, ConsumerGroupType, KafkaError, KafkaException, TopicPartition

from uow.ops.consumer_groups import committed_rows
from uow.ops.order_checks import committed_by_groups

ROW = TopicPartition("units", 0, 7)


class Client:
    """An admin client with one group, whose answers fail with these codes, one after the other, and then succeed."""

    def __init__(self, *codes: int) -> None:
        self.codes = [*codes]

    def list_consumer_groups(self, **_: Any) -> Future[Any]:
        listed: Future[Any] = Future()
        listed.set_result(SimpleNamespace(valid=[SimpleNamespace(group_id="g", type=ConsumerGroupType.CLASSIC)]))
        return listed

    def list_consumer_group_offsets(
        self, asked: list[ConsumerGroupTopicPartitions], **_: Any
    ) -> dict[str, Future[Any]]:
        answer: Future[Any] = Future()
        if self.codes:
            answer.set_exception(KafkaException(KafkaError(self.codes.pop(0))))
        else:
            answer.set_result(SimpleNamespace(topic_partitions=[ROW]))
        return {asked[0].group_id: answer}


def test_a_coordinator_that_moves_is_asked_again() -> None:
    client: Any = Client(KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS)
    assert committed_rows(client, "g") == [ROW]
    assert client.codes == []


def test_the_doctor_leaves_no_group_out_whose_coordinator_moves() -> None:
    client: Any = Client(KafkaError.NOT_COORDINATOR)
    assert committed_by_groups(client) == {"g": {("units", 0): (7, "")}}


@pytest.mark.parametrize("code", [KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError._TRANSPORT])
def test_another_error_is_told_at_once(code: int) -> None:
    client: Any = Client(code, code)
    with pytest.raises(KafkaException):
        committed_rows(client, "g")
    assert len(client.codes) == 1
