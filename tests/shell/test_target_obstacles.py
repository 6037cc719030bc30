"""The reasons why a target topic cannot be written to, as brokers describe it (B-57)."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace as Said
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AclOperation

from uow.processor.kafka.target_topics import MISSING, obstacle

WRITE = [AclOperation.DESCRIBE, AclOperation.WRITE]


def future(result: Any) -> Future[Any]:
    made: Future[Any] = Future()
    made.set_exception(result) if isinstance(result, Exception) else made.set_result(result)
    return made


def described(allowed: Any = WRITE, leader: int = 1, in_sync: int = 3) -> Any:
    partition = Said(leader=Said(id=leader), isr=[0] * in_sync, replicas=[0] * 3)
    return Said(authorized_operations=allowed, partitions=[partition])


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (described(), ""),
        (described(allowed=None), ""),
        (described(in_sync=2), ""),
        (described(allowed=WRITE[:1]), "may not be written to by this worker"),
        (described(leader=-1), "has partitions without a leader"),
        (described(in_sync=1), "has 1 replicas in sync, and min.insync.replicas asks for more"),
        (KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)), MISSING),
        (KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)), "may not be described by this worker"),
    ],
)
def test_a_target_that_cannot_be_written_to_says_why_b57(answer: Any, why: str) -> None:
    settings = future({"min.insync.replicas": Said(value="2")})
    admin: Any = Said(describe_configs=lambda asked, request_timeout: {asked[0]: settings})
    assert obstacle(admin, "orders.uk", future(answer)) == why


def test_a_target_of_runs_needs_the_partitions_of_its_components_b60() -> None:
    why = "has 1 partitions, and units that go there as runs need 4"
    assert obstacle(Said(), "orders.uk", future(described()), 4) == why  # type: ignore[arg-type]


def test_brokers_that_do_not_answer_say_nothing_of_a_topic_b57() -> None:
    with pytest.raises(TimeoutError):
        obstacle(Said(), "orders.uk", future(KafkaException(KafkaError(KafkaError._TIMED_OUT))))  # type: ignore[arg-type]
