"""A consumer group whose coordinator moves, or is being made, while it is asked for."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from uow.ops.sole_member import live_members
from uow.topics.admin import described_group, require_group


class Client:
    """An admin client whose answers fail with these codes, one after the other, and then tell of two members."""

    def __init__(self, *codes: int) -> None:
        self.codes = [*codes]

    def describe_consumer_groups(self, groups: list[str], request_timeout: float) -> dict[str, Future[Any]]:
        answer: Future[Any] = Future()
        if self.codes:
            answer.set_exception(KafkaException(KafkaError(self.codes.pop(0))))
        else:
            answer.set_result(SimpleNamespace(members=[1, 2]))
        return {groups[0]: answer}


MOVING = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
)


def test_a_coordinator_that_moves_is_asked_for_again() -> None:
    client: Any = Client(*MOVING)
    assert live_members(client, "g") == 2
    client = Client(*MOVING)
    require_group(client, "g")
    assert client.codes == []


def test_a_coordinator_that_moves_for_too_long_is_told() -> None:
    client: Any = Client(*[KafkaError.NOT_COORDINATOR] * 100)
    with pytest.raises(KafkaException, match="NOT_COORDINATOR"):
        described_group(client, "g", timeout=0.3)
    assert client.codes


@pytest.mark.parametrize("code", [KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError._TIMED_OUT])
def test_another_error_is_told_at_once(code: int) -> None:
    client: Any = Client(code, KafkaError._NOENT)
    with pytest.raises(KafkaException):
        described_group(client, "g")
    assert len(client.codes) == 1
