"""The memory of closed groups: a late component must not be taken for one of a new unit (W-19).

Belongs here: what is remembered, how long and how much. Does not belong here: the ledger's bytes (`processor.engine.ledger`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from processor.core.changes import Closed


class ClosedMemory:
    """Closed groups of one partition, by id; the oldest leave first.

    Attributes:
        by_id: The last closed group of each id.
        order: All of them, oldest first, replaced ones included.

    Args:
        retention_ms: How long an id is remembered, by the partition's clock (`closed_retention_ms`).
        max_groups: How many at most (`closed_max_groups`).
    """

    def __init__(self, retention_ms: int, max_groups: int) -> None:
        self.retention_ms = retention_ms
        self.max_groups = max_groups
        self.by_id: dict[bytes, Closed] = {}
        self.order: deque[Closed] = deque()

    def __len__(self) -> int:
        return len(self.by_id)

    def __iter__(self) -> Iterator[Closed]:
        return iter(self.by_id.values())

    def get(self, group_id: bytes) -> Closed | None:
        """The last closed group of this id, or None."""
        return self.by_id.get(group_id)

    def add(self, closed: Closed) -> None:
        """Remembers a closed group; a later generation replaces an earlier one."""
        self.by_id[closed.id] = closed
        self.order.append(closed)

    def replace(self, before: Closed, after: Closed) -> None:
        """Corrects what was added a moment ago; its place in line stays. Nothing happens if it is forgotten already."""
        if self.by_id.get(before.id) is not before:
            return
        self.by_id[before.id] = after
        for index in range(len(self.order) - 1, -1, -1):
            if self.order[index] is before:
                self.order[index] = after
                return

    def trim(self, clock: int) -> int:
        """Forgets what is too old or too many; returns how many entries were looked at and left."""
        order, by_id, left = self.order, self.by_id, 0
        horizon = clock - self.retention_ms
        while order and (order[0].at < horizon or len(by_id) > self.max_groups):
            oldest = order.popleft()
            if by_id.get(oldest.id) is oldest:
                del by_id[oldest.id]
            left += 1
        return left
