"""Counts of deliveries that were not acknowledged, kept as text beside a committed offset (W-52, W-87).

Theory of operation. Every pass over a partition begins at the committed offset and hands out what comes, in order. So the count never rises from
one unit to the next: it is a flight of steps, one for each pass at most, whatever the number of units. A step says up to which offset a count
holds.

Belongs here: the steps, and their text. Does not belong here: committing them (`uow.client.consumption`), and deciding by a count
(`uow.client.dead_letters`).
"""

from __future__ import annotations

import re
from typing import Final

Steps = tuple[tuple[int, int], ...]
"""(last offset, count), by offset."""

MAX_STEPS: Final = 64
"""Steps that are kept, the nearest to the committed offset: bounds memory, and the text to half of the 4096 bytes that a broker takes."""
_MOST: Final = 999_999_999
_TEXT: Final = re.compile(r"d1(;[0-9]{1,19}:[0-9]{1,9})*", re.ASCII)


class Deliveries:
    """Deliveries in one partition: those of earlier passes, and how far this one has come.

    Args:
        earlier: Of passes before this one.
        start: Where this pass begins, if that is not where the earlier ones did.
    """

    __slots__ = ("_earlier", "_reached", "_start")

    def __init__(self, earlier: Steps = (), start: int = 0) -> None:
        self._earlier = earlier
        self._start = start
        self._reached = -1

    def of(self, offset: int) -> int:
        """Number of deliveries of the unit at `offset`."""
        return self._before(offset) + (self._start <= offset <= self._reached)

    def _before(self, offset: int) -> int:
        return next((count for last, count in self._earlier if offset <= last), 0)

    def count(self, offset: int) -> int:
        """One more delivery of the unit at `offset`; returns which one it is, from 1."""
        self._reached = max(self._reached, offset)
        return self.of(offset)

    def undo(self, offset: int) -> None:
        """The unit at `offset`, and those behind it, were not delivered in this pass after all."""
        self._reached = min(self._reached, offset - 1)

    def steps(self, position: int) -> Steps:
        """The steps for units from `position` on."""
        ends = {last for last, _ in self._earlier} | {self._start - 1, self._reached}
        found: list[tuple[int, int]] = []
        for last in sorted(end for end in ends if end >= position):
            count = min(self.of(last), _MOST)
            if found and found[-1][1] == count:
                found.pop()
            found.append((last, count))
        if found and not found[-1][1]:
            found.pop()
        return tuple(found[:MAX_STEPS])


def write_steps(steps: Steps) -> str:
    """Steps as text for the metadata of a committed offset: `d1;17:2;19:1`, twice up to offset 17, once up to 19. Empty for none."""
    return "".join(["d1", *(f";{last}:{count}" for last, count in steps)]) if steps else ""


def read_steps(metadata: str | None, end: int) -> Steps:
    """The steps that `write_steps` wrote; none for any other text. A `|` ends them.

    Args:
        metadata: Of a committed offset; any program that may commit for the group may have written it.
        end: End offset of the partition: nothing from there on was ever delivered, whatever the text says.
    """
    text = (metadata or "").partition("|")[0]
    if not text or not _TEXT.fullmatch(text):
        return ()
    pairs = (pair.split(":") for pair in text.split(";")[1:])
    said = {int(last): int(count) for last, count in pairs}
    return tuple(sorted(step for step in said.items() if step[0] < end)[:MAX_STEPS])
