"""Placement of ids for a sender, under path routing (W-105): claimed before the first component goes out, the same for every sender.

A sender knows the names of a destination's topics, not how it is configured. Told the application's id, it looks for `A-D-path-map`: where there
is one, routing is `path`. A sender without the id hashes as ever; the worker sends its components on.

Belongs here: one connection's view of path maps. Does not belong here: claiming itself (`uow.processor.kafka.path_log`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from uow.client.kafka_port import REFRESH_S, ConsumerHandle, check_topic
from uow.client.outgoing import HASHED
from uow.errors import DestinationUnavailableError, ReconnectTimeoutError
from uow.processor.engine.ports import Doubt, PathLog
from uow.topics.catalogue import DestinationTopics
from uow.topics.partitioner import partition_for
from uow.topics.path_map import PathMap, line_of

FOLLOWING: Final = {"auto.offset.reset": "earliest", "enable.partition.eof": True, "fetch.wait.max.ms": 500}
"""Consumer properties for following a path map's log."""

OpenLog = Callable[[DestinationTopics, PathMap], tuple[PathLog, ConsumerHandle]]
"""Opens the log of a destination's path map: the log, and a handle to ask about topics."""


class PathClaims:
    """The placements that one connection knows. For any thread.

    Args:
        application: `application.id` of the workers; empty: everything is hashed.
        open_log: Makes a log; opens nothing before it is asked.
        clock: Seconds, from anywhere.
    """

    def __init__(self, application: str, open_log: OpenLog, clock: Callable[[], float] = time.monotonic) -> None:
        self._application, self._open, self._clock = application, open_log, clock
        self._lock = threading.Lock()
        self._destinations: dict[str, _Destination | None] = {}

    def claimed(self, destination: str, group_id: bytes, order_key: bytes = b"") -> int:
        """The partition that an id belongs to, claimed for that of its order key, else for the least claimed one, if it had none.

        Returns:
            `HASHED` without path routing.

        Raises:
            ReconnectTimeoutError: The map did not answer in time. Nothing harmful was done: call again.
        """
        with self._lock:
            found = self._destination(destination)
            return HASHED if found is None else found.claimed(group_id, order_key)

    def known(self, destination: str, group_id: bytes) -> int:
        """The same without claiming: the partition of an id that is placed, else `HASHED`."""
        with self._lock:
            found = self._destination(destination)
            return HASHED if found is None else found.known(group_id)

    def is_elastic(self, components: str) -> bool:
        """True if a destination's input may get more partitions at any time (W-215)."""
        with self._lock:
            return self._destinations.get(components.removesuffix(".components")) is not None

    def _destination(self, name: str) -> _Destination | None:
        if not self._application:
            return None
        if name not in self._destinations:
            topics = DestinationTopics(self._application, name)
            paths = PathMap()
            path_log, handle = self._open(topics, paths)
            try:
                check_topic(handle, topics.path_map)
            except DestinationUnavailableError:
                handle.close()
                self._destinations[name] = None
            else:
                self._destinations[name] = _Destination(topics.components, paths, path_log, handle, self._clock)
        return self._destinations[name]

    def close(self) -> None:
        """Closes all logs."""
        with self._lock:
            found, self._destinations = self._destinations, {}
        for each in found.values():
            if each is not None:
                each.log.close()


class _Destination:
    """One destination under path routing."""

    def __init__(
        self, components: str, paths: PathMap, path_log: PathLog, handle: ConsumerHandle, clock: Callable[[], float]
    ) -> None:
        self._components, self._paths, self.log, self._handle, self._clock = components, paths, path_log, handle, clock
        self._count = 0
        self._count_at = 0.0

    def claimed(self, group_id: bytes, order_key: bytes = b"") -> int:
        placed = self.known(group_id)
        if placed != HASHED:
            return placed
        if order_key:
            wish = self.claimed(line_of(order_key))
        else:
            count = self._partitions()
            wish = self._paths.least_claimed(partition_for(group_id, count), count)
        try:
            self.log.claim({group_id: wish})
        except Doubt as doubt:
            raise ReconnectTimeoutError(str(doubt)) from doubt
        return wish if (placed := self.known(group_id)) == HASHED else placed

    def known(self, group_id: bytes) -> int:
        self.log.catch_up()
        placed = self._paths.get(group_id)
        return HASHED if placed is None else placed

    def _partitions(self) -> int:
        """Number of partitions now: new ids use new partitions soon after they are added (W-215)."""
        now = self._clock()
        if not self._count or now - self._count_at > REFRESH_S:
            self._count, self._count_at = check_topic(self._handle, self._components), now
        return self._count
