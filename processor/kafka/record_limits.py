"""The largest record that a topic takes (`max.message.bytes`), asked of the brokers.

Belongs here: asking. Does not belong here: what is done about a unit that is larger (`uow.processor.engine.target_topics`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Final

import confluent_kafka as ck
from confluent_kafka.admin import ConfigResource, ResourceType  # type: ignore[attr-defined]

from uow.processor.kafka.clients import Clients

ANSWER_S: Final = 1.0
"""Longest wait for an answer: whoever asks does nothing else meanwhile."""
SETTING: Final = "max.message.bytes"


def limit_reader(clients: Clients) -> Callable[[str], int | None]:
    """Asks for the limit of one topic; None: it is not known."""
    asker = cache(clients.admin)

    def limit(topic: str) -> int | None:
        try:
            (answer,) = (
                asker().describe_configs([ConfigResource(ResourceType.TOPIC, topic)], request_timeout=ANSWER_S).values()
            )
            entry = answer.result(2 * ANSWER_S).get(SETTING)
        except (ck.KafkaException, TimeoutError):
            return None
        text = "" if entry is None else entry.value or ""
        return int(text) if text.isdecimal() else None

    return limit
