"""The batches of one turn of the poll loop: made of a poll and of the commands that wait, and sorted by their results afterwards.

Belongs here: which records and commands a partition's task gets in this turn. Does not belong here: the order of a turn, and whoever processes
and writes (`uow.processor.engine.driver`).
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from uow.processor.engine.batch import Batch
from uow.processor.engine.input_topics import HasPositions, InputTopics
from uow.processor.engine.portions import Portions
from uow.processor.engine.ports import Blocked, Plan, RawRecord, RecordSource, Tp
from uow.processor.engine.shares import Shares
from uow.processor.engine.waiting_commands import WaitingCommands


class TurnBatches:
    """Makes the batches.

    Args:
        source: Reads again what a smaller batch leaves.
        inputs: Pairs of topics.
        waiting: Commands that cannot be decided yet.
        portions: Limits of partitions in which a record is at fault.
        shares: Limits of partitions that take much more than others.
    """

    def __init__(
        self,
        source: RecordSource,
        inputs: InputTopics,
        waiting: WaitingCommands,
        portions: Portions,
        shares: Shares | None = None,
    ) -> None:
        self._source, self._inputs, self._waiting, self._portions = source, inputs, waiting, portions
        self._shares = shares or Shares()
        self._append_times: dict[Tp, int] = {}

    def make(
        self,
        polled: Mapping[Tp, list[RawRecord]],
        tasks: Mapping[Tp, HasPositions],
        blocked: Container[Tp],
        paused: Container[Tp],
        latest: int,
        now_ms: int = 0,
    ) -> list[Batch]:
        """One batch for each partition that has something to do.

        Args:
            polled: Records of both topics, by partition; none after a read that gave nothing. Lists of which a batch takes a part are emptied.
            tasks: The partitions owned and restored; records of others are dropped.
            blocked: Partitions whose components and commands are dropped.
            paused: Partitions whose components are not fetched, for memory.
            latest: Append times after it are not believed, epoch ms.
            now_ms: Monotonic milliseconds.
        """
        polled_tps = dict.fromkeys(map(self._inputs.components_tp, polled))
        reading = dict.fromkeys(tp for tp in polled_tps if tp in tasks and tp not in blocked)
        for tp in reading:
            commands = from_position(polled.get(self._inputs.commands_tp(tp), []), tasks[tp].command_position)
            if commands:
                self._waiting.take(tp, commands)
        batches = []
        for tp in dict.fromkeys([*polled_tps, *self._waiting]):
            if tp in reading or tp in self._waiting:
                given = polled.get(tp, [])
                records = from_position(given, tasks[tp].position)
                batch = self._batch(tp, records, tasks[tp].position, latest, now_ms, is_paused=tp in paused)
                if batch.records is not given:
                    given.clear()  # else the poll holds them until the turn ends
                if batch.records or batch.commands:
                    batches.append(batch)
        return batches

    def _part(self, tp: Tp, records: list[RawRecord], now_ms: int) -> list[RawRecord]:
        """As many as this turn takes. All of them are the list itself, which whoever is done with it empties."""
        count = len(records)
        size = min(self._portions.size(tp, count), self._shares.size(tp, count, now_ms))
        return records if size >= count else records[:size]

    def _batch(
        self, tp: Tp, polled: list[RawRecord], position: int, latest: int, now_ms: int, *, is_paused: bool
    ) -> Batch:
        is_limited = tp in self._portions
        records = polled if is_limited else self._part(tp, polled, now_ms)
        if is_paused:  # reads on no further: a command that waited for that would wait for ever
            commands = self._waiting.all(tp)
        else:
            commands = self._waiting.ready(tp, position, records, latest)
        if is_limited:  # a command only by itself, after the records that came before it
            before = _not_after(records, commands[0]) if commands else len(records)
            records = self._part(tp, records[:before], now_ms)
            commands = [] if records else commands[:1]
        if len(records) < len(polled):  # the rest is read again
            self._source.seek({tp: polled[len(records)].offset()})
        self._append_times[tp] = first_append_time(records, latest)
        return Batch(tp, records=records, commands=commands, latest=latest)

    def append_time(self, tp: Tp) -> int:
        """Append time of the first record of the partition's latest batch, epoch ms; 0: unknown."""
        return self._append_times.get(tp, 0)

    def forget(self, tp: Tp) -> None:
        """It was taken away."""
        self._append_times.pop(tp, None)


def from_position(records: list[RawRecord], position: int) -> list[RawRecord]:
    """The records at this offset and after it; most often that is all of them."""
    if not records or records[0].offset() >= position:
        return records
    return [record for record in records if record.offset() >= position]


def _not_after(records: Sequence[RawRecord], command: RawRecord) -> int:
    """The number of records, from the first on, that go before a command: those that are not later."""
    at = command.timestamp()[1]
    return next((count for count, record in enumerate(records) if record.timestamp()[1] > at), len(records))


def first_append_time(records: Sequence[RawRecord], latest: int) -> int:
    """Append time of the first record, epoch ms; 0 without records, or if it is after `latest` and not believed."""
    head = records[0].timestamp()[1] if records else 0
    return head if head <= latest else 0


@dataclass(frozen=True, slots=True)
class TurnResults:
    """The results of batches that were processed.

    Attributes:
        planned: Batches with something to write, each with its plan.
        failed: Batches whose task raised, each with the reason.
    """

    planned: Sequence[tuple[Batch, Plan]]
    failed: Sequence[tuple[Batch, Blocked]]

    @classmethod
    def of(cls, batches: Sequence[Batch]) -> Self:
        """Sorts them.

        Raises:
            BaseException: The outcome of a batch whose agent died: nothing of this turn may be written.
        """
        planned, failed = [], []
        for batch in batches:
            if isinstance(batch.outcome, Plan):
                planned.append((batch, batch.outcome))
            elif isinstance(batch.outcome, Blocked):
                failed.append((batch, batch.outcome))
            elif batch.outcome is not None:
                raise batch.outcome
        return cls(planned, failed)

    @property
    def plans(self) -> list[Plan]:
        """The plans to be written."""
        return [plan for _, plan in self.planned]
