"""Temporary destinations: topics that a connection makes for itself, for replies, and that go with it (R-10).

Nobody makes one again: the client never creates topics by the way, and a reader or sender of one that is gone is told so.

Belongs here: making and deleting. Does not belong here: the name (`uow.topics.temporary`).
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from types import MappingProxyType

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from uow.errors import DestinationUnavailableError
from uow.topics import admin
from uow.topics.catalogue import TopicSpec
from uow.topics.temporary import Owner, temporary_name

log = logging.getLogger(__name__)


class TemporaryDestinations:
    """Those of one connection. For any thread.

    Args:
        connection_id: Part of their names.
        client: Gives the admin client.
    """

    def __init__(self, connection_id: str, client: Callable[[], AdminClient]) -> None:
        self._id, self._client = connection_id, client
        self._lock = threading.Lock()
        self._names: list[str] = []

    def make(self) -> str:
        """Makes one, of one partition.

        Raises:
            DestinationUnavailableError: The brokers refuse, or do not answer.
        """
        owner = Owner(time.time_ns() // 1_000_000, os.getpid(), socket.gethostname())
        with self._lock:
            name = temporary_name(owner, self._id, len(self._names))
            self._names.append(name)  # also if nobody answers: it may be made all the same
        try:
            client = self._client()
            admin.create_missing(
                client, [TopicSpec(name, 1, admin.default_replication(client), MappingProxyType({}), counted=False)]
            )
        except KafkaException as failure:
            raise DestinationUnavailableError(f"{name} cannot be made: {failure.args[0].str()}") from failure
        return name

    def delete(self, timeout: float) -> None:
        """Deletes all, in so many seconds; what is left is in the log."""
        with self._lock:
            names, self._names = self._names, []
        if not names:
            return
        until = time.monotonic() + timeout
        for name, answer in self._client().delete_topics(names, request_timeout=max(timeout, 0.1)).items():
            try:
                answer.result(max(0.0, until - time.monotonic()))
            except (KafkaException, TimeoutError) as failure:
                log.warning("temporary destination %s is not deleted: %s", name, failure)
