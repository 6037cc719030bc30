"""The check of versions of rules, with what brokers say of topics: one for workers and commands.

Belongs here: asking. Does not belong here: the check itself (`uow.processor.rules.deployment`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Final

import confluent_kafka as ck

from uow.processor.kafka.clients import Clients
from uow.processor.kafka.worker_settings import WorkerSettings
from uow.processor.rules.changes import RulesUnavailable
from uow.processor.rules.deployment import Deployment
from uow.processor.rules.transforms import installed

ANSWER_S: Final = 10.0


def deployment(settings: WorkerSettings, transforms: Callable[[], Collection[str] | None] = installed) -> Deployment:
    """The check of a version of rules for these settings.

    Args:
        settings: Settings of a worker.
        transforms: Returns those that are installed; None where that is not known.
    """
    asker = cache(Clients(settings).admin)  # made at the first question: most rules ask none

    def partitions() -> Mapping[str, int]:
        try:
            topics = asker().list_topics(timeout=ANSWER_S).topics
        except ck.KafkaException as failure:
            raise RulesUnavailable(f"target topics cannot be looked at: {failure.args[0].str()}") from failure
        return {name: len(topic.partitions) for name, topic in topics.items()}

    return Deployment(settings.application_id, settings.destinations, settings.routers, partitions, cache(transforms))
