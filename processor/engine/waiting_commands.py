"""Commands that wait until their partition has read what was appended before them (W-62, W-203).

Append times order `D.components` and `D.commands` among each other, but a component that is not read yet is unknown. So a command is decided once
one of two things is certain: a component with a later append time was read, or the partition was read up to an end offset that was asked for after
the command was read. An idle partition is at that end already; a backlog, an open transaction and a paused partition delay the command. A
restart reads it again, since its offset is committed together with its effect.

Belongs here: which commands wait, and for which offset. Does not belong here: carrying them out (`uow.processor.engine.task`), and the order of a turn
(`uow.processor.engine.driver`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from uow.processor.core.columns import Seen, looked_at
from uow.processor.engine.input_topics import InputTopics
from uow.processor.engine.ports import EndQuestion, RawRecord, RecordSource, Tp


@dataclass(slots=True)
class _Queue:
    """The commands of one partition.

    Attributes:
        records: In offset order.
        end: The question for the end offset of `D.components`, put after the last of them was read; None: not put yet.
    """

    records: list[RawRecord] = field(default_factory=list)
    end: EndQuestion | None = None


class WaitingCommands:
    """The commands that wait, by partition. Where some wait, no more are fetched, so that they are those of one poll at most.

    Args:
        source: Is asked for end offsets.
        inputs: Pairs of topics.

    Attributes:
        paused: Partitions of `D.commands` that are not fetched because some of theirs wait.
    """

    def __init__(self, source: RecordSource, inputs: InputTopics) -> None:
        self._source, self._inputs = source, inputs
        self._queues: dict[Tp, _Queue] = {}
        self.paused: frozenset[Tp] = frozenset()

    def __bool__(self) -> bool:
        return bool(self._queues)

    def __iter__(self) -> Iterator[Tp]:
        """Partitions of `D.components` whose commands wait."""
        return iter([*self._queues])

    @property
    def is_asking(self) -> bool:
        """True while an end is not told that some wait for."""
        return any(queue.end is not None and queue.end.answer() is None for queue in self._queues.values())

    def take(self, tp: Tp, records: Sequence[RawRecord]) -> None:
        """Adds what was read just now; commands that are here already are not added again."""
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
            position: Next offset before `records`.
            records: Its records of this turn, in offset order.
            latest: An append time after this is not believed (decision 17).
        """
        queue = self._queues.get(tp)
        if queue is None:
            return []
        if queue.end is None:
            queue.end = self._source.end(tp)
        position = records[-1].offset() + 1 if records else position
        end = queue.end.answer()
        if end is not None and self._source.has_read(tp, position, end):
            return queue.records
        return queue.records[: _followed(queue.records, records, latest)]

    def end_turn(self, positions: Mapping[Tp, int]) -> None:
        """Stops fetching commands where some still wait, and fetches again where none does.

        Args:
            positions: Next offset of `D.commands` by partition of `D.components`, of those whose commands wait.
        """
        for tp, queue in self._queues.items():
            queue.records = [record for record in queue.records if record.offset() >= positions[tp]]
        self._queues = {tp: queue for tp, queue in self._queues.items() if queue.records}
        now = frozenset(self._inputs.commands_tp(tp) for tp in self._queues)
        if now != self.paused:
            self._source.pause(sorted(now - self.paused))
            self._source.resume(sorted(self.paused - now))
            self.paused = now

    def forget(self, tps: Collection[Tp]) -> None:
        """These partitions were revoked, are blocked, or are read again from their committed offsets. The caller pauses and resumes them."""
        for tp in tps:
            self._queues.pop(tp, None)
        self.paused -= {self._inputs.commands_tp(tp) for tp in tps}


def _followed(commands: Sequence[RawRecord], records: Sequence[RawRecord], latest: int) -> int:
    """The number of commands, from the first on, that are older than one of the records."""
    last = max((at for record in records if (at := record.timestamp()[1]) <= latest), default=0)
    return next((count for count, command in enumerate(commands) if command.timestamp()[1] >= last), len(commands))
