"""Path routing in a worker: before records are judged, every id in them has a way (W-105); after a restore, every open group (W-106).

Claiming needs an answer from Kafka, judging must not wait for one. So the driver, between a poll and its batches, lets `Ways.settle` look at the
ids: those without a way are claimed for the partition they lie on, all at once, and read back. A task then only looks into the map, by
the same question that a hash would answer; where the way leads elsewhere, line 6 of the decision table sends the component on.

An order key has a way like an id, and claims for the ids of its groups lead there, so that one partition has them all in line (W-210).

Belongs here: which ids are asked for when. Does not belong here: the map (`topics.paths`), how claims are written and read (the port `PathLog`),
when a way ends (`processor.engine.task`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from processor.core.columns import Seen, Unreadable, looked_at
from processor.engine.batch import Batch, Task
from processor.engine.driver import Restore, Wanted
from processor.engine.ports import Doubt, Meanwhile, PathLog, Tp
from schemas.errors import StateCorruptedError
from topics.commands import Command, Verb, read_command
from topics.headers import Marks, Reading
from topics.paths import PathMap, line_of

log = logging.getLogger("uow.paths")

_REMEDY = (
    "routing became path, or the path map was lost, while its group was open, and somebody claimed it for another partition. With all workers and "
    "senders stopped delete the path map, make it again by `uow topics create`, and start the workers before the senders"
)


class Ways:
    """The ways of one destination, for one worker.

    Args:
        paths: The map, shared with the tasks.
        log: Where it is read from and claimed in.
        reading: How headers are read.
    """

    def __init__(self, paths: PathMap, log: PathLog, reading: Reading) -> None:
        self._paths, self._log, self._reading = paths, log, reading

    @property
    def memory_bytes(self) -> int:
        """About what the map takes."""
        return self._paths.memory_bytes

    def read_on(self) -> None:
        """Takes what we ended out of a map that is full, also while nothing arrives: else it stays full, and is ended again and again."""
        if self._paths.is_full and self._paths.is_leaving:
            self._log.catch_up()

    def settle(self, batches: Sequence[Batch]) -> None:
        """Sees to it that every id in these batches has a way.

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
                marks = None if isinstance(record, Unreadable) else self._reading.read(pairs, record.value())
                if marks is None or marks.id is None:  # plain traffic, or no id that can be read
                    continue
                wanted.setdefault(marks.id, batch.tp.partition)
                if isinstance(marks, Marks) and marks.order_key:
                    in_line[marks.id] = line_of(marks.order_key)
                    lines.setdefault(in_line[marks.id], batch.tp.partition)
            batch.records[:] = seen  # the poll lets go of them as well
        self._log.catch_up()
        self._claim(lines)
        self._claim(
            wanted | {group_id: _way_or(self._paths.get(line), wanted[group_id]) for group_id, line in in_line.items()}
        )

    def _cancelled(self, batch: Batch) -> Iterator[bytes]:
        """Ids that commands close, whether or not anything of them is here: what comes of them later must find that (W-62)."""
        for pairs, record in looked_at(batch.commands):
            command = None if isinstance(record, Unreadable) else read_command(pairs or [])
            if isinstance(command, Command) and command.verb is Verb.CANCEL and not command.dry_run:
                yield command.group_id

    def _claim(self, wanted: Mapping[bytes, int]) -> None:
        while lacking := self._paths.unknown(wanted):  # reading up to a claim may tell that another way has ended
            self._log.claim({group_id: wanted[group_id] for group_id in lacking})
            self._paths.settled(lacking)

    def adopt(self, tasks: Mapping[Tp, Task], meanwhile: Meanwhile) -> None:
        """Sees to it that every restored open group has its way here: after a change to path routing, or a loss of the map.

        What the last owner ended is read before: from here on only we end ways to these partitions.

        Raises:
            StateCorruptedError: One has a way elsewhere.
        """
        self._claim_open(tasks, meanwhile)
        for tp, task in tasks.items():
            for group_id in task.groups:
                way = self._paths.get(group_id)
                if way != tp.partition:
                    why = f"group {group_id.decode()!r} is open here, and its way leads to partition {way}"
                    raise StateCorruptedError([tp], why, _REMEDY)

    def _claim_open(self, tasks: Mapping[Tp, Task], meanwhile: Meanwhile) -> None:
        """Again and again while nobody answers: a restore insists."""
        while True:
            self._log.read_all(meanwhile)
            try:
                self._claim({group_id: tp.partition for tp, task in tasks.items() for group_id in task.groups})
                return
            except Doubt as doubt:
                log.warning("waiting for the path map: %s", doubt)
                meanwhile()


def _way_or(way: int | None, here: int) -> int:
    return here if way is None else way


class AllWays:
    """The ways of all destinations of a worker that are under path routing, by name of `D.components`."""

    def __init__(self, ways: Mapping[str, Ways]) -> None:
        self._ways = ways

    def __bool__(self) -> bool:
        return bool(self._ways)

    @property
    def memory_bytes(self) -> int:
        """About what their maps take."""
        return sum(ways.memory_bytes for ways in self._ways.values())

    def settle(self, batches: Sequence[Batch]) -> None:
        """Raises like `Ways.settle`."""
        for topic, ways in self._ways.items():
            here = [batch for batch in batches if batch.tp.topic == topic]
            if work := [batch for batch in here if batch.records or batch.commands]:
                ways.settle(work)
            elif here:
                ways.read_on()

    def restoring(self, restore: Restore) -> Restore:
        """A restore that adopts what it restores; raises like `Ways.adopt`."""

        def restore_and_adopt(tps: Sequence[Tp], wanted: Wanted) -> Mapping[Tp, Task]:
            tasks = restore(tps, wanted)
            for topic, ways in self._ways.items():
                here = {tp: task for tp, task in tasks.items() if tp.topic == topic}
                if here:
                    ways.adopt(here, wanted)
            return tasks

        return restore_and_adopt
