"""The topics that exist, asked of the brokers: for `uow.processor.engine.target_topics`.

Belongs here: asking, in little time. Does not belong here: when, and what follows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from functools import cache
from typing import Final

import confluent_kafka as ck

from uow.processor.engine.target_topics import TargetTopics
from uow.processor.kafka.clients import Clients

ANSWER_S: Final = 0.5
"""Longest wait for an answer: partitions with other work wait meanwhile."""


def kafka_targets(clients: Clients, wanted: Callable[[], Collection[str]]) -> TargetTopics:
    """The target topics of rules; `wanted` returns those of all rows that are known."""
    asker = cache(
        clients.admin
    )  # needs no close, and keeps its connections: a new one may not be there within the time

    def there(topics: Collection[str]) -> Collection[str]:
        try:
            found = asker().list_topics(timeout=ANSWER_S).topics
        except ck.KafkaException as failure:
            raise TimeoutError(str(failure)) from failure
        return [topic for topic in topics if topic in found and found[topic].error is None]

    return TargetTopics(wanted, there, lambda: time.monotonic() * 1000)
