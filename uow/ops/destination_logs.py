"""The log reader, with a time limit, and the task context that commands need to inspect a destination.

Belongs here: wiring for `uow.ops.inspect`. Does not belong here: views of a group.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from uow.config.loading import Settings
from uow.errors import AccessDeniedError
from uow.processor.engine.context import TaskContext
from uow.processor.kafka.clients import Clients
from uow.processor.kafka.log_reader import KafkaLogReader
from uow.schemas.error_classes import UowError
from uow.topics.access import denied_text
from uow.topics.admin import admin_client, denied, partition_counts, require_group
from uow.topics.catalogue import DestinationTopics

PATIENCE_S = 60.0
"""Seconds after which an inspection says that Kafka does not answer."""


class NoAnswerError(UowError):
    """Kafka did not answer in time, or a topic is missing: make sure that it runs, and call again."""


def counts_with(settings: Settings, *names: str) -> dict[str, int]:
    """Partition counts of all topics that this user may know of; these must be among them.

    Raises:
        NoAnswerError: One does not exist.
        AccessDeniedError: This user may not know of one.
        KafkaException: No broker answers.
    """
    client = admin_client(settings.bootstrap_servers, settings.kafka)
    counts = partition_counts(client)
    missing = [name for name in names if name not in counts]
    for topic in denied(client, missing):
        raise AccessDeniedError(denied_text(topic))
    for topic in missing:
        raise NoAnswerError(f"topic {topic} does not exist; create it with `uow topics create`")
    return counts


def task_context(settings: Settings, destination: str) -> TaskContext:
    """Context of a destination with its present topics; it cannot be used to write.

    Raises:
        ConfigError: No such destination is configured.
        NoAnswerError: Its topics do not exist.
        AccessDeniedError: This user may not know of them.
        KafkaException: No broker answers.
    """
    policy = settings.policy(destination)
    topics = DestinationTopics(settings.application_id, destination)
    counts = counts_with(settings, topics.components, topics.groups_changelog, topics.closed_changelog)
    context = TaskContext(destination, topics, policy, counts[topics.components], b"", b"")
    if not settings.routers:
        return context
    from uow.processor.kafka.router_desk import LoggedRules
    from uow.processor.kafka.rule_log import open_rule_log

    return replace(context, rules=LoggedRules(open_rule_log(settings.worker("look")), destination, policy))


@contextmanager
def log_reader(
    settings: Settings, patience_s: float = PATIENCE_S, *, of_routers: bool = False
) -> Iterator[KafkaLogReader]:
    """A reader of the logs that never joins the consumer group; it is closed on exit, or after `patience_s` seconds.

    Committed offsets are those of the workers, or of the routers.

    Raises:
        NoAnswerError: Inside the block, when Kafka does not answer in time.
        KafkaException: This user may not use the workers' consumer group, whose positions are asked for.
    """
    until, worker = time.monotonic() + patience_s, settings.worker("look")
    asking = worker.of_routers if of_routers else worker

    def lose_patience() -> None:
        if time.monotonic() > until:
            require_group(admin_client(settings.bootstrap_servers, settings.kafka), asking.application_id)
            raise NoAnswerError(f"no answer from {settings.bootstrap_servers} in {patience_s:.0f} s")

    reader = KafkaLogReader(Clients(asking), lose_patience)
    try:
        yield reader
    finally:
        reader.close()
