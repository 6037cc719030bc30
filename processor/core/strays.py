"""Components that a restore finds without a group: of a group by rule whose own row is not there (B-69, B-72).

The worker writes both rows in one transaction, so such a component comes from elsewhere: from a topic that was put back in part, or from a hand.
It is never guessed where it belongs. It stands aside, survives restarts, and joins the open group of its key when a command `recycle` says so.

Belongs here: what is known of such a component, and the record that it becomes again. Does not belong here: finding them
(`uow.processor.engine.restore`), deciding about them (`partition`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from heapq import heappop, heappush
from typing import NamedTuple

from uow.processor.core.columns import Record
from uow.schemas.records import ComponentRecord
from uow.topics.headers import RECYCLED

_APPEND_TIME = 1


class Stray(NamedTuple):
    """A component without a group.

    Attributes:
        id: Of the group that it says it is of.
        generation: Of that group.
        component: The component.
        row_key: Of its row in the changelog.
        size: Bytes of the row.
    """

    id: bytes
    generation: int
    component: ComponentRecord
    row_key: bytes
    size: int

    @property
    def source(self) -> str:
        """Coordinates of its record in `D.components`."""
        return str(self.component.source)


class Strays(dict[bytes, Stray]):
    """Those of one partition, by the key of their row. Neither a component of their keys nor a command that names one looks through all of them.

    Attributes:
        size: Bytes of their rows.
    """

    def __init__(self) -> None:
        super().__init__()
        self.size = 0
        self._by_source: defaultdict[tuple[bytes, str], list[Stray]] = defaultdict(list)
        self._generations: defaultdict[bytes, list[int]] = defaultdict(list)
        """Heaps by id, of negative numbers. The highest has a stray; another one without goes once it is the highest."""
        self._count: Counter[tuple[bytes, int]] = Counter()

    def take(self, stray: Stray) -> None:
        """A restore has found it."""
        self[stray.row_key] = stray
        self.size += stray.size
        self._by_source[stray.id, stray.source].append(stray)
        self._count[stray.id, stray.generation] += 1
        heappush(self._generations[stray.id], -stray.generation)

    def let_go(self, stray: Stray) -> None:
        """It joins a group."""
        del self[stray.row_key]
        self.size -= stray.size
        place, of_generation = (stray.id, stray.source), (stray.id, stray.generation)
        self._by_source[place].remove(stray)
        if not self._by_source[place]:
            del self._by_source[place]
        self._count[of_generation] -= 1
        if not self._count[of_generation]:
            del self._count[of_generation]
            self._forget_generations(stray.id)

    def _forget_generations(self, group_id: bytes) -> None:
        """The highest ones of an id, as long as they have no stray."""
        heap = self._generations[group_id]
        while heap and not self._count[group_id, -heap[0]]:
            heappop(heap)
        if not heap:
            del self._generations[group_id]

    def first(self, group_id: bytes, source: str) -> Stray | None:
        """The first one of an id whose record was there."""
        return next(iter(self._by_source.get((group_id, source), ())), None)

    def newest(self, group_id: bytes) -> int:
        """The highest generation among those of an id; 0 if there are none."""
        heap = self._generations.get(group_id)
        return -heap[0] if heap else 0


class RecycledRecord:
    """The record that a stray was, once more: with its own append time and arrival, and `uow-recycled` (B-73)."""

    def __init__(self, component: ComponentRecord) -> None:
        self._component = component
        kept = [(name, value) for name, value in component.headers if name != RECYCLED]
        self._headers: list[tuple[str, bytes | None]] = [*kept, (RECYCLED, b"1")]

    def offset(self) -> int:
        """Of its record in `D.components`, which was read long ago."""
        return self._component.source.offset

    def key(self) -> bytes | None:
        """As it came."""
        return self._component.key

    def value(self) -> bytes | None:
        """As it came."""
        return self._component.value

    def headers(self) -> list[tuple[str, bytes | None]]:
        """As they came, with `uow-recycled`."""
        return self._headers

    def timestamp(self) -> tuple[int, int]:
        """Its own append time."""
        return _APPEND_TIME, self._component.timestamp


def is_recycled(record: Record) -> bool:
    """True if it was a stray: it is behind the position, and the ledger says nothing of it."""
    return isinstance(record, RecycledRecord)
