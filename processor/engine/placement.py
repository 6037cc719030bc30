"""Path routing in a worker: every id is placed on a partition before its records are judged (W-105), every open group after a restore (W-106).

Claiming needs an answer from Kafka, and judging must not wait for one. So the driver calls `Placements.ensure_placed` between a poll and its batches:
ids that are not placed are claimed for the partition they lie on, all at once, and read back. A task then only looks into the map, by the same
question that a hash would answer; if the id is placed elsewhere, line 6 of the decision table sends the component on.

An order key is placed like an id, and the ids of its groups are claimed for its partition, so that one partition has them all in line (W-210).

Belongs here: which ids are claimed, and when. Does not belong here: the map (`uow.topics.path_map`), how claims are written and read (the port
`PathLog`), when a placement ends (`uow.processor.engine.task`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from uow.processor.core.columns import Seen, UnreadableRecord, looked_at
from uow.processor.engine.batch import Batch, Task
from uow.processor.engine.driver_ports import Restore, Wanted
from uow.processor.engine.ports import (
    Doubt,
    Meanwhile,
    PathLog,
    Tp,
)
from uow.schemas.error_classes import StateCorruptedError
from uow.topics.commands import Command, CommandReader, Verb
from uow.topics.headers import Marks, Reading
from uow.topics.path_map import PathMap, line_of

log = logging.getLogger("uow.paths")

_REMEDY = (
    "routing became path, or the path map was lost, while its group was open, and somebody claimed it for another partition. With all workers and "
    "senders stopped delete the path map, make it again by `uow topics create`, and start the workers before the senders"
)


class Placement:
    """The placement of one destination's ids, for one worker.

    Args:
        paths: The map, shared with the tasks.
        log: Where it is read from and claimed in.
        reading: How headers are read.
        commands: How commands are read.
    """

    def __init__(self, paths: PathMap, log: PathLog, reading: Reading, commands: CommandReader) -> None:
        self._paths, self._log, self._reading, self._commands = paths, log, reading, commands

    @property
    def memory_bytes(self) -> int:
        """Memory of the map, about."""
        return self._paths.memory_bytes

    def read_on(self) -> None:
        """Reads our own tombstones where the map is full, also while nothing arrives: else it stays full, and the same ids are ended again."""
        if self._paths.is_full and self._paths.is_leaving:
            self._log.catch_up()

    def ensure_placed(self, batches: Sequence[Batch]) -> None:
        """Claims a partition for every id in these batches that has none. Replaces their records by ones whose headers were read.

        Raises:
            Doubt: The log did not answer in time. No task was touched.
        """
        wanted: dict[bytes, int] = {}
        lines: dict[bytes, int] = {}
        in_line: dict[bytes, bytes] = {}
        for batch in batches:
            for group_id in self._cancelled(batch):
                wanted.setdefault(group_id, batch.tp.partition)
            seen: list[Any] = []
            for pairs, record in looked_at(batch.records):
                seen.append(Seen(record, pairs))
                marks = None if isinstance(record, UnreadableRecord) else self._reading.read(pairs, record.value())
                if marks is None or marks.id is None:  # plain traffic, or no id that can be read
                    continue
                wanted.setdefault(marks.id, batch.tp.partition)
                if isinstance(marks, Marks) and marks.order_key:
                    in_line[marks.id] = line_of(marks.order_key)
                    lines.setdefault(in_line[marks.id], batch.tp.partition)
            batch.records[:] = seen  # the poll lets go of them as well
        self._log.catch_up()
        self._claim(lines)
        self._claim(wanted | {group_id: self._placed(line, wanted[group_id]) for group_id, line in in_line.items()})

    def _cancelled(self, batch: Batch) -> Iterator[bytes]:
        """Ids that commands close, even if nothing of them is here: a component that comes later must find its id closed (W-62)."""
        for pairs, record in looked_at(batch.commands):
            command = None if isinstance(record, UnreadableRecord) else self._commands.read(pairs or [], record)
            if isinstance(command, Command) and command.verb is Verb.CANCEL and not command.dry_run:
                yield command.group_id

    def _placed(self, line: bytes, otherwise: int) -> int:
        partition = self._paths.get(line)
        return otherwise if partition is None else partition

    def _claim(self, wanted: Mapping[bytes, int]) -> None:
        while lacking := self._paths.unknown(wanted):  # reading up to a claim may end another placement
            self._log.claim({group_id: wanted[group_id] for group_id in lacking})
            self._paths.on_claims_read(lacking)

    def adopt(self, tasks: Mapping[Tp, Task], meanwhile: Meanwhile) -> None:
        """Claims every restored open group for its partition, where it is not placed: after a change to path routing, or a loss of the map.

        The tombstones of the last owner are read before: from here on only we end placements on these partitions.

        Raises:
            StateCorruptedError: A group is placed on another partition.
        """
        self._claim_open(tasks, meanwhile)
        for tp, task in tasks.items():
            for group_id in task.groups:
                placed = self._paths.get(group_id)
                if placed != tp.partition:
                    why = f"group {group_id.decode()!r} is open here, but the path map places it on partition {placed}"
                    raise StateCorruptedError([tp], why, _REMEDY)

    def _claim_open(self, tasks: Mapping[Tp, Task], meanwhile: Meanwhile) -> None:
        """Tries again as long as nobody answers: a restore insists."""
        while True:
            self._log.read_all(meanwhile)
            try:
                self._claim({group_id: tp.partition for tp, task in tasks.items() for group_id in task.groups})
                return
            except Doubt as doubt:
                log.warning("waiting for the path map: %s", doubt)
                meanwhile()

    def close(self) -> None:
        """Closes the log."""
        self._log.close()


class Placements:
    """The placements of all destinations of a worker that are under path routing, by name of `D.components`."""

    def __init__(self, by_topic: Mapping[str, Placement]) -> None:
        self._by_topic = by_topic

    def __bool__(self) -> bool:
        return bool(self._by_topic)

    @property
    def memory_bytes(self) -> int:
        """Memory of their maps, about."""
        return sum(placement.memory_bytes for placement in self._by_topic.values())

    def ensure_placed(self, batches: Sequence[Batch]) -> None:
        """Does it for each destination; raises like `Placement.ensure_placed`."""
        for topic, placement in self._by_topic.items():
            here = [batch for batch in batches if batch.tp.topic == topic]
            if work := [batch for batch in here if batch.records or batch.commands]:
                placement.ensure_placed(work)
            elif here:
                placement.read_on()

    def restoring(self, restore: Restore) -> Restore:
        """Wraps a restore so that each restored open group is placed; raises like `Placement.adopt`."""

        def restore_and_adopt(tps: Sequence[Tp], wanted: Wanted) -> Mapping[Tp, Task]:
            tasks = restore(tps, wanted)
            for topic, placement in self._by_topic.items():
                here = {tp: task for tp, task in tasks.items() if tp.topic == topic}
                if here:
                    placement.adopt(here, wanted)
            return tasks

        return restore_and_adopt

    def close(self) -> None:
        """Closes each."""
        for placement in self._by_topic.values():
            placement.close()
