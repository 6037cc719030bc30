"""Why topics cannot be written to now, asked of the brokers: for `uow.processor.engine.target_topics`.

Belongs here: asking, in little time. Does not belong here: when, and what follows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from functools import cache
from typing import Any, Final

import confluent_kafka as ck
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclOperation,
    AdminClient,
    ConfigResource,
    ResourceType,
    TopicDescription,
)

from uow.processor.engine.target_topics import TargetTopics
from uow.processor.kafka.clients import Clients

ANSWER_S: Final = 1.0
"""Longest wait for an answer: partitions with other work wait meanwhile."""
MISSING: Final = "does not exist"


def kafka_targets(
    clients: Clients, wanted: Callable[[], Collection[str]], in_runs: Callable[[], Mapping[str, int]] = dict
) -> TargetTopics:
    """The target topics of rules.

    Args:
        clients: Ask the brokers.
        wanted: Returns those of all rows that are known.
        in_runs: Returns how many partitions those must have to which units go as runs (B-60).
    """
    asker = cache(
        clients.admin
    )  # needs no close, and keeps its connections: a new one may not be there within the time

    def obstacles(topics: Collection[str]) -> dict[str, str]:
        asked = ck.TopicCollection([*topics])
        answers = asker().describe_topics(asked, include_authorized_operations=True, request_timeout=ANSWER_S)
        needed = in_runs()
        found = {topic: obstacle(asker(), topic, answer, needed.get(topic)) for topic, answer in answers.items()}
        told = {topic: answer.result() for topic, answer in answers.items() if answer.exception() is None}
        targets.partitions.update({topic: len(described.partitions) for topic, described in told.items()})
        return {topic: why for topic, why in found.items() if why}

    targets = TargetTopics(wanted, obstacles, lambda: time.monotonic() * 1000)
    return targets


def obstacle(admin: AdminClient, topic: str, answer: Future[TopicDescription], needed: int | None = None) -> str:
    """Why a topic cannot be written to, as its description says; empty if it can be.

    Args:
        admin: Asks for what the description does not say.
        topic: The topic.
        answer: Its description.
        needed: How many partitions it must have; None: any number.

    Raises:
        TimeoutError: No broker says it.
    """
    try:
        described = answer.result(2 * ANSWER_S)
    except ck.KafkaException as failure:
        match failure.args[0].code():
            case ck.KafkaError.UNKNOWN_TOPIC_OR_PART:
                return MISSING
            case ck.KafkaError.TOPIC_AUTHORIZATION_FAILED:
                return "may not be described by this worker"
            case _:
                raise TimeoutError(str(failure)) from failure
    allowed: Any = described.authorized_operations  # None of brokers that do not tell it
    if allowed is not None and AclOperation.WRITE not in allowed:
        return "may not be written to by this worker"
    if needed is not None and len(described.partitions) != needed:
        return f"has {len(described.partitions)} partitions, and units that go there as runs need {needed}"
    leaders: list[Any] = [each.leader for each in described.partitions]
    if any(leader is None or leader.id < 0 for leader in leaders):
        return "has partitions without a leader"
    fewest = min([len(each.isr) for each in described.partitions if len(each.isr) < len(each.replicas)], default=None)
    if fewest is not None and fewest < _least_in_sync(admin, topic):
        return f"has {fewest} replicas in sync, and min.insync.replicas asks for more"
    return ""


def _least_in_sync(admin: AdminClient, topic: str) -> int:
    """`min.insync.replicas`; 1 where that is not told."""
    resource: Any = ConfigResource(ResourceType.TOPIC, topic)
    try:
        answer = admin.describe_configs([resource], request_timeout=ANSWER_S)[resource].result(2 * ANSWER_S)
    except ck.KafkaException:
        return 1
    return int(answer["min.insync.replicas"].value)
