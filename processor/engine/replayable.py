"""Replayable groups: open, and not written to the changelog, because a restore can read them from the input again.

`D.components` is a durable log already, so a group that closes soon is never written twice. A group stays replayable within the replay
bounds; beyond any of them it is *promoted*: its components go to the changelog, once, and later ones follow at once. The replay floor is
the input offset of the oldest replayable group's first component; a restore reads the input from there.

Belongs here: which groups are replayable, and when they no longer are. Does not belong here: the rows (`rows`), and what a restore selects
(`replay`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from uow.processor.core.gathered import NEVER
from uow.processor.core.group import Group
from uow.processor.engine.group_storage import is_replayable


@dataclass(frozen=True, slots=True)
class ReplayLimits:
    """How much input a restore may read again, per partition. If one of them is 0, every group is promoted at once.

    Attributes:
        records: Input records (`replay_limit_records`).
        bytes: Bytes of components held (`replay_limit_bytes`).
        age_ms: Milliseconds since the group opened (`replay_limit_ms`).
    """

    records: int = 0
    bytes: int = 0
    age_ms: int = 0

    @property
    def allow_replay(self) -> bool:
        """True if there are replayable groups at all."""
        return self.records > 0 and self.bytes > 0 and self.age_ms > 0


NO_REPLAY = ReplayLimits()
"""Every group is promoted at once: the plain changelog."""


class ReplayableGroups:
    """The replayable groups of one partition, oldest first. Groups that closed or were promoted leave when they come to the front.

    Args:
        limits: The replay bounds.
    """

    def __init__(self, limits: ReplayLimits) -> None:
        self.limits = limits
        self._queue: deque[tuple[Group, int, int]] = deque()

    def __len__(self) -> int:
        """How many are in the queue, those included that left and are not at its front yet."""
        return len(self._queue)

    def add(self, group: Group, offset: int, fed_bytes: int) -> None:
        """Takes a group whose first component has this offset; offsets rise. `fed_bytes`: bytes of components the partition has seen by then."""
        group.list_plain(False)
        self._queue.append((group, offset, fed_bytes))

    def floor(self, position: int) -> int:
        """The replay floor: offset of the oldest replayable group's first component, else the position."""
        self._forget()
        return self._queue[0][1] if self._queue else position

    def overdue(self, position: int, fed_bytes: int, clock: int) -> Iterator[Group]:
        """Groups beyond a bound, oldest first, no longer replayable from here on."""
        limits = self.limits
        while self._queue:
            group, offset, seen = self._queue[0]
            if group.is_open and is_replayable(group):
                within = position - offset <= limits.records and fed_bytes - seen <= limits.bytes
                if within and clock - group.opened_at <= limits.age_ms:
                    return
                group.list_plain(True)
                yield group
            self._queue.popleft()

    def all(self) -> Iterator[Group]:
        """Every replayable group, oldest first, no longer replayable from here on: a clean stop leaves none."""
        while self._queue:
            group = self._queue.popleft()[0]
            if group.is_open and is_replayable(group):
                group.list_plain(True)
                yield group

    def due_at(self) -> int:
        """The earliest clock value at which the oldest replayable group is beyond its age; `NEVER` if there is none."""
        self._forget()
        return self._queue[0][0].opened_at + self.limits.age_ms + 1 if self._queue else NEVER

    def _forget(self) -> None:
        queue = self._queue
        while queue and not (queue[0][0].is_open and is_replayable(queue[0][0])):
            queue.popleft()
