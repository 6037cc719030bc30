"""Memory of a partition: closed groups, so that a late component is not taken for one of a new unit (W-19), and commands (W-203).

Belongs here: what is remembered, how long and how much. Does not belong here: the ledger's bytes (`uow.processor.engine.rows`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Final

from uow.processor.core.changes import Closed
from uow.schemas.fingerprint import id_count, id_fingerprint, ids_in
from uow.topics.commands import signer_of


class ClosedMemory:
    """Closed groups of one partition, by id; the oldest leave first.

    Groups that closed before the partition knew any time are as old as the first that closed after them with one (decision 68).

    Attributes:
        by_id: The last closed group of each id.
        order: All of them, oldest first, replaced ones included.
        memory_bytes: About what they take, as of the last `trim`.

    Args:
        retention_ms: How long an id is remembered, by the partition's clock (`closed_retention_ms`).
        max_groups: How many at most (`closed_max_groups`).
    """

    def __init__(self, retention_ms: int, max_groups: int) -> None:
        self.retention_ms = retention_ms
        self.max_groups = max_groups
        self.by_id: dict[bytes, Closed] = {}
        self.order: deque[Closed] = deque()
        self.memory_bytes = 0
        self._counted = 0
        self._first_at = 0  # when the first group closed whose time is known
        # groups by rule need not close in the order of their generations: those above every one that closed after them
        self._newer: dict[bytes, deque[Closed]] = {}
        # fingerprints of components that the assembler numbered, and in how many of the units they are
        self._delivered: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.by_id)

    def __iter__(self) -> Iterator[Closed]:
        return iter(self.by_id.values())

    def get(self, group_id: bytes) -> Closed | None:
        """The last closed group of this id, or None."""
        return self.by_id.get(group_id)

    def has(self, group_id: bytes, component_id: bytes) -> bool:
        """True if a unit of this id that is remembered has the component, whose number the assembler gave (B-38)."""
        return bool(self._delivered) and id_fingerprint(group_id, component_id) in self._delivered

    def newest_before(self, group_id: bytes) -> int:
        """The highest generation of this id that closed before one below it and is remembered; 0 if there is none."""
        newer = self._newer.get(group_id)
        return newer[0].generation if newer else 0

    def add(self, closed: Closed) -> None:
        """Remembers a closed group; it replaces one of its id that closed before."""
        before = self.by_id.get(closed.id)
        if before is not None and before.generation > closed.generation:
            newer = self._newer.setdefault(closed.id, deque())
            while newer and newer[-1].generation < before.generation:
                newer.pop()
            newer.append(before)
        self.by_id[closed.id] = closed
        self.order.append(closed)
        if closed.prints:
            self._count_components(closed, 1)

    def replace(self, before: Closed, after: Closed) -> None:
        """Corrects what was added a moment ago; its place in line stays. Nothing happens if it is forgotten already."""
        if self.by_id.get(before.id) is not before:
            return
        self._count()
        self.memory_bytes += memory_of(after) - memory_of(before)
        self._count_components(before, -1)
        self._count_components(after, 1)
        self.by_id[before.id] = after
        newest_first = range(len(self.order) - 1, -1, -1)
        self.order[next(index for index in newest_first if self.order[index] is before)] = after

    def trim(self, clock: int) -> None:
        """Forgets what is too old or too many."""
        self._count()
        order, by_id = self.order, self.by_id
        horizon = clock - self.retention_ms
        while order and (len(by_id) > self.max_groups or (order[0].at < horizon and self._is_old(order[0], horizon))):
            self._forget_oldest()

    def _is_old(self, oldest: Closed, horizon: int) -> bool:
        """True if the oldest closed before the horizon, also where it does not say when it closed."""
        if oldest.at:
            return True
        if not self._first_at and self.order[-1].at:
            self._first_at = next(each.at for each in self.order if each.at)
        return 0 < self._first_at < horizon

    def shrink(self, spare_bytes: int) -> Closed | None:
        """Forgets the oldest until so many bytes are spared.

        Returns:
            The youngest of those that are forgotten, None if there are none.
        """
        self._count()
        oldest, until = None, self.memory_bytes - spare_bytes
        while self.order and self.memory_bytes > until:
            oldest = self._forget_oldest()
        return oldest

    def _forget_oldest(self) -> Closed:
        oldest = self.order.popleft()
        self.memory_bytes -= memory_of(oldest)
        if oldest.prints:
            self._count_components(oldest, -1)
        self._counted -= 1
        if self.by_id.get(oldest.id) is oldest:
            del self.by_id[oldest.id]
        newer = self._newer.get(oldest.id) if self._newer else None
        if newer and newer[0] is oldest:
            newer.popleft()
            if not newer:
                del self._newer[oldest.id]
        return oldest

    def _count_components(self, closed: Closed, units: int) -> None:
        for each in ids_in(closed.prints):
            count = self._delivered.pop(each, 0) + units
            if count:
                self._delivered[each] = count

    def _count(self) -> None:
        """Counts those that came since the last time: the fast path adds them by itself."""
        new = len(self.order) - self._counted
        if new:
            self.memory_bytes += sum(map(memory_of, islice(reversed(self.order), new)))
            self._counted += new


_CLOSED_BYTES = 340
_COMPONENT_BYTES = 100
_COMMAND_BYTES = 190


def memory_of(closed: Closed) -> int:
    """About what is taken to remember a closed group. `tests/engine/test_memory.py` measures it."""
    prints = closed.prints
    of_prints = len(prints) + _COMPONENT_BYTES * id_count(prints) if prints else 0
    return _CLOSED_BYTES + len(closed.id) + of_prints


_NOTHING: Final[dict[bytes, int]] = {}


class CommandMemory:
    """Ids of commands that were decided, with their append times.

    One is forgotten when a command comes that is younger by more than the retention, or so many of its signer have come since. So what becomes of it depends
    on those behind it alone, and a restore that reads no more than these knows the same; brokers' clocks may differ. Nobody makes a worker forget the
    commands of somebody else, copies of which would then be executed again.

    Args:
        retention_ms: How long an id is remembered (`closed_retention_ms`).
        max_commands: How many of a signer at most, and how many of all those without a signature (`closed_max_groups`).
    """

    def __init__(self, retention_ms: int, max_commands: int) -> None:
        self.retention_ms = retention_ms
        self.max_commands = max_commands
        self.memory_bytes = 0
        self._lines: dict[bytes, dict[bytes, int]] = {b"": {}}
        self._by_age: list[tuple[int, bytes]] = []

    @property
    def at_by_id(self) -> dict[bytes, int]:
        """The append times, of each signer in order."""
        return {known: at for line in self._lines.values() for known, at in line.items()}

    def __contains__(self, command_id: bytes) -> bool:
        return self.get(command_id) is not None

    def get(self, command_id: bytes) -> int | None:
        """The append time of a command; None if it is not remembered."""
        return self._lines.get(signer_of(command_id), _NOTHING).get(command_id)

    def add(self, command_id: bytes, at: int) -> None:
        """Remembers a command, and forgets what is too old or too many."""
        self._forget(command_id)
        line = self._lines.setdefault(signer_of(command_id), {})
        line[command_id] = at
        self.memory_bytes += _COMMAND_BYTES + len(command_id)
        heappush(self._by_age, (at, command_id))
        while len(line) > self.max_commands:
            self._forget(next(iter(line)))
        if len(self._by_age) > 2 * sum(map(len, self._lines.values())) + 1024:
            self._by_age = [(at, command_id) for command_id, at in self.at_by_id.items()]
            heapify(self._by_age)
        by_age = self._by_age
        while by_age:
            then, oldest = by_age[0]
            if self.get(oldest) == then:  # else it has left already, one of too many
                if then >= at - self.retention_ms:
                    return
                self._forget(oldest)
            heappop(by_age)

    def shrink(self, spare_bytes: int) -> None:
        """Forgets those that came first until so many bytes are spared, those without a signature before the others."""
        until = self.memory_bytes - spare_bytes
        for line in self._lines.values():
            while line and self.memory_bytes > until:
                self._forget(next(iter(line)))

    def _forget(self, command_id: bytes) -> None:
        if self._lines.get(signer_of(command_id), _NOTHING).pop(command_id, None) is not None:
            self.memory_bytes -= _COMMAND_BYTES + len(command_id)
