"""Committed offsets of a group whose coordinator moves: `uow adopt`, `uow doctor` and `uow migrate` ask again (S-13)."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, ConsumerGroupType, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from uow.ops.consumer_groups import committed_rows, reading_groups
from uow.ops.order_checks import committed_by_groups

ROW = TopicPartition("units", 0, 7)
FOUND = {"g": {("units", 0): (7, "")}}


class Client:
    """An admin client with one group, whose answers fail with these codes, one after the other, and then succeed.

    Args:
        codes: Of the question for its offsets.
        unlisted: So often a broker that has it does not list it.
        failure: Of that broker.
    """

    def __init__(self, *codes: int, unlisted: int = 0, failure: int = KafkaError.COORDINATOR_LOAD_IN_PROGRESS) -> None:
        self.codes, self.unlisted, self.failure = [*codes], unlisted, failure

    def list_consumer_groups(self, **_: Any) -> Future[Any]:
        listed: Future[Any] = Future()
        known = [SimpleNamespace(group_id="g", type=ConsumerGroupType.CLASSIC)]
        self.unlisted -= 1
        is_left_out = self.unlisted >= 0
        failures = [KafkaException(KafkaError(self.failure))] if is_left_out else []
        listed.set_result(SimpleNamespace(valid=[] if is_left_out else known, errors=failures))
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
    assert committed_by_groups(client, ()) == (FOUND, [])


def test_groups_that_a_broker_loads_just_now_are_asked_for_again() -> None:
    client: Any = Client(unlisted=2)
    assert committed_by_groups(client, ()) == (FOUND, [])
    client = Client(unlisted=2)
    assert [*reading_groups(client, ["units"], [], [])] == ["g"]


def test_a_subscription_that_is_not_listed_is_asked_all_the_same_and_the_failure_is_told() -> None:
    client: Any = Client(unlisted=1000, failure=KafkaError._TRANSPORT)
    found, unknown = committed_by_groups(client, {"g"})
    assert found == FOUND
    assert ["does not list its groups" in each for each in unknown] == [True]


def test_a_move_takes_no_groups_where_a_broker_does_not_list_its_own() -> None:
    client: Any = Client(unlisted=1000, failure=KafkaError._TRANSPORT)
    with pytest.raises(KafkaException):
        reading_groups(client, ["units"], [], [])


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (KafkaError._TIMED_OUT, ["g", "stranger"]),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, ["g"]),
        (KafkaError.GROUP_ID_NOT_FOUND, []),
    ],
)
def test_the_doctor_says_of_whom_it_does_not_know_what_is_committed(code: int, told: list[str]) -> None:
    """A group without offsets has none; that of a subscription must be seen, another one may be none of its business."""
    unknown = [
        group
        for group, known in (("g", {"g"}), ("stranger", ()))
        if committed_by_groups(cast(AdminClient, Client(code)), known).unknown
    ]
    assert unknown == told


@pytest.mark.parametrize("code", [KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError._TRANSPORT])
def test_another_error_is_told_at_once(code: int) -> None:
    client: Any = Client(code, code)
    with pytest.raises(KafkaException):
        committed_rows(client, "g")
    assert len(client.codes) == 1
