"""The checkpoint of a stream, as Structured Streaming writes it: the batches that were planned.

A batch is planned in the file `offsets/NUMBER` before it runs. Planned offsets are JSON by topic and
partition, in the last line.

Belongs here: reading these files. Does not belong here: what a batch writes (`uow.spark_sink.delta_sink`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from uow.spark_sink.folders import Folder

PlannedOffsets = Mapping[str, Mapping[str, int]]
"""An offset by topic and partition."""


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """A batch of a stream.

    Attributes:
        start: The first offset of each partition; partitions from whose beginning it reads are left out.
        end: The offset after the last one of each partition.
        is_repeated: True if it may have run before, in a process that has ended since.
    """

    start: PlannedOffsets
    end: PlannedOffsets
    is_repeated: bool

    @property
    def topics(self) -> set[str]:
        """Topics with new offsets."""
        return {
            topic
            for topic, ends in self.end.items()
            if any(end > self.start.get(topic, {}).get(partition, 0) for partition, end in ends.items())
        }

    @property
    def offsets(self) -> int:
        """Number of offsets, not below the number of records."""
        return sum(
            end - self.start.get(topic, {}).get(partition, 0)
            for topic, ends in self.end.items()
            for partition, end in ends.items()
        )

    def bounds(self, reach: PlannedOffsets | None) -> tuple[int, int] | None:
        """The lowest and the highest offset of any partition.

        Args:
            reach: The last offset of each partition that counts; None for all.

        Returns:
            The bounds; None if no offset counts.
        """
        spans = []
        for topic, ends in self.end.items():
            for partition, end in ends.items():
                last = end - 1 if reach is None else min(end - 1, reach.get(topic, {}).get(partition, -1))
                spans.append((self.start.get(topic, {}).get(partition, 0), last))
        found = [(first, last) for first, last in spans if first <= last]
        return (min(first for first, _ in found), max(last for _, last in found)) if found else None


@dataclass(frozen=True, slots=True)
class StreamCheckpoint:
    """The folder of a stream's checkpoint."""

    folder: Folder

    @property
    def exists(self) -> bool:
        """True if a stream has been started with it."""
        return (self.folder / "metadata").exists()

    @property
    def id(self) -> str:
        """The stream's id, which a new checkpoint changes."""
        metadata: dict[str, str] = json.loads((self.folder / "metadata").read_text())
        return metadata["id"]

    @property
    def planned(self) -> int:
        """Number of the last batch that was planned; -1 for none."""
        return self._last("offsets")

    @property
    def is_new(self) -> bool:
        """True if no batch has ended."""
        return self.written < 0

    @property
    def done(self) -> PlannedOffsets:
        """The offsets up to which batches have ended."""
        return self.offsets(self.written)

    def _last(self, kind: str) -> int:
        return max((int(path.name) for path in (self.folder / kind).glob("[0-9]*")), default=-1)

    @property
    def written(self) -> int:
        """Number of the last batch that every table has; -1 for none."""
        return self._last("commits")

    def offsets(self, number: int) -> PlannedOffsets:
        """The offsets up to which a batch reads; empty if it is not planned."""
        path = self.folder / "offsets" / str(number)
        if not path.exists():
            return {}
        found: dict[str, Any] = json.loads(path.read_text().splitlines()[-1])
        return found

    def batch(self, number: int, *, is_repeated: bool) -> PlannedBatch:
        """A batch that was planned."""
        return PlannedBatch(self.offsets(number - 1), self.offsets(number), is_repeated)
