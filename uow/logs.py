"""What commands that look into a destination's logs need: a patient reader, and its context.

Belongs here: wiring for `uow.inspect`. Does not belong here: what is read off a group.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from processor.engine.context import TaskContext
from processor.kafka.clients import Clients
from processor.kafka.reader import KafkaLogReader
from schemas.errors import UowError
from topics.admin import admin_client, partition_counts
from topics.catalogue import DestinationTopics
from uow.config import Settings

PATIENCE_S = 60.0
"""Longest a look takes before it says that Kafka does not answer."""


class NoAnswerError(UowError):
    """Kafka did not answer in time, or a topic is missing: see that it runs, and call again."""


def task_context(settings: Settings, destination: str) -> TaskContext:
    """Context of a destination as its topics are now; nothing can be written with it.

    Raises:
        ConfigError: No such destination is configured.
        NoAnswerError: Its topics do not exist.
        KafkaException: No broker answers.
    """
    policy = settings.policy(destination)
    topics = DestinationTopics(settings.application_id, destination)
    counts = partition_counts(admin_client(settings.bootstrap_servers, settings.kafka))
    for topic in (topics.components, topics.groups_changelog, topics.closed_changelog):
        if topic not in counts:
            raise NoAnswerError(f"topic {topic} does not exist; `uow topics create` makes it")
    return TaskContext(destination, topics, policy, counts[topics.components], b"", b"")


@contextmanager
def log_reader(settings: Settings, patience_s: float = PATIENCE_S) -> Iterator[KafkaLogReader]:
    """A reader of the logs that never joins the group; closed on exit, and of no use after `patience_s`.

    Raises:
        NoAnswerError: Inside the block, when Kafka does not answer in time.
    """
    until = time.monotonic() + patience_s

    def lose_patience() -> None:
        if time.monotonic() > until:
            raise NoAnswerError(f"no answer from {settings.bootstrap_servers} in {patience_s:.0f} s")

    reader = KafkaLogReader(Clients(settings.worker("look")), lose_patience)
    try:
        yield reader
    finally:
        reader.close()
