"""Commands that wait until their partition has read what was appended before them (W-62, W-203).

Append times order `D.components` and `D.commands`, and nobody knows of a component that lies unread. So a command is decided when one of two
things is sure: a component that is later by its append time is in hand, or the partition has read up to an end offset that was asked for
after the command was read. Whoever is idle is at that end already; a backlog, an open transaction and a partition that stands still delay
the command, and a restart reads it again, since its offset is committed with what it did.

Belongs here: which commands wait, and for which offset. Does not belong here: deciding them (`processor.engine.task`), and the order of a turn
(`processor.engine.driver`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from processor.core.columns import Seen, looked_at
from processor.engine.ports import RawRecord, Source, Tp


@dataclass(slots=True)
class _Queue:
    """Those of one partition.

    Attributes:
        records: In offset order.
        end: Of `D.components`, asked for after the last of them was read; None: not yet.
    """

    records: list[RawRecord] = field(default_factory=list)
    end: int | None = None


class WaitingCommands:
    """Of all partitions that one driver reads. Where some wait, no more are fetched, so that they are one poll's at most.

    Args:
        source: Is asked for end offsets.
        commands_of: The topic of commands by that of components.

    Attributes:
        paused: Partitions of `D.commands` that are not fetched for their sake.
    """

    def __init__(self, source: Source, commands_of: Mapping[str, str]) -> None:
        self._source, self._commands_of = source, commands_of
        self._queues: dict[Tp, _Queue] = {}
        self.paused: frozenset[Tp] = frozenset()

    def __bool__(self) -> bool:
        return bool(self._queues)

    def __iter__(self) -> Iterator[Tp]:
        """Partitions of `D.components` whose commands wait."""
        return iter([*self._queues])

    def take(self, tp: Tp, records: Sequence[RawRecord]) -> None:
        """These were read just now; those that are known already are not taken twice."""
        queue = self._queues.setdefault(tp, _Queue())
        behind = queue.records[-1].offset() if queue.records else -1
        for headers, record in looked_at([record for record in records if record.offset() > behind]):
            queue.records.append(Seen(record, headers))
        queue.end = None

    def all(self, tp: Tp) -> list[RawRecord]:
        """The commands of a partition, whether or not they wait."""
        queue = self._queues.get(tp)
        return queue.records if queue is not None else []

    def ready(self, tp: Tp, position: int, records: Sequence[RawRecord], latest: int) -> list[RawRecord]:
        """The commands of a partition that wait no longer, in offset order.

        Args:
            tp: The partition of `D.components`.
            position: Where it was read to before.
            records: Its records in hand, in offset order.
            latest: An append time after this tells nothing (decision 17).
        """
        queue = self._queues.get(tp)
        if queue is None:
            return []
        if queue.end is None:
            queue.end = self._source.end(tp)
        position = records[-1].offset() + 1 if records else position
        if queue.end is not None and self._source.has_read(tp, position, queue.end):
            return queue.records
        return queue.records[: _followed(queue.records, records, latest)]

    def settle(self, positions: Mapping[Tp, int]) -> None:
        """A turn is over: stops fetching where some still wait, and fetches again where none does.

        Args:
            positions: Next offset of `D.commands` by partition of `D.components`, of those whose commands wait.
        """
        for tp, queue in self._queues.items():
            queue.records = [record for record in queue.records if record.offset() >= positions[tp]]
        self._queues = {tp: queue for tp, queue in self._queues.items() if queue.records}
        now = frozenset(self._commands(tp) for tp in self._queues)
        if now != self.paused:
            self._source.pause(sorted(now - self.paused))
            self._source.resume(sorted(self.paused - now))
            self.paused = now

    def forget(self, tps: Collection[Tp]) -> None:
        """These partitions went, stand still, or are read again from where they are committed: whoever says so pauses and resumes them."""
        for tp in tps:
            self._queues.pop(tp, None)
        self.paused -= {self._commands(tp) for tp in tps}

    def _commands(self, tp: Tp) -> Tp:
        return Tp(self._commands_of[tp.topic], tp.partition)


def _followed(commands: Sequence[RawRecord], records: Sequence[RawRecord], latest: int) -> int:
    """How many of the commands, from the first on, have a later record behind them."""
    last = max((at for record in records if (at := record.timestamp()[1]) <= latest), default=0)
    return next((count for count, command in enumerate(commands) if command.timestamp()[1] >= last), len(commands))
