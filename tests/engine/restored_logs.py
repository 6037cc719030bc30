"""What a worker has written, in memory: plans go in, a restore reads them (`LogReader`). Offsets have holes, as transaction markers leave them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tests.core.script import TOPICS
from tests.fake_record import FakeRecord
from uow.processor.engine.ports import (
    Committed,
    Plan,
    Stretch,
    Tp,
)

STRETCH = 4
"""Records that come at a time: few, so that there is something before and something within."""


class Logs:
    """Changelog, ledger and committed offset of one partition of `D.components`.

    Attributes:
        input_bounds: (log start, end offset) of the partition of `D.components`, and of `D.commands`.
        committed_offset: None before the first plan.
        next_command: The same for `D.commands`.
        written: Records of both internal topics, in order.
    """

    def __init__(self, tp: Tp) -> None:
        self.tp = tp
        self.input_bounds = (0, 1 << 40)
        self.committed_offset: int | None = None
        self.next_command: int | None = None
        self.commands = Tp(TOPICS.commands, tp.partition)
        self.metadata = ""
        self.written: list[FakeRecord] = []
        self._ends: dict[Tp, int] = {}
        self._starts: dict[Tp, int] = {}
        self._input_end = 0

    def add(self, plan: Plan | None) -> None:
        """Writes a plan as the sink would, in one transaction."""
        if plan is None:
            return
        for key, value in plan.changelog:
            self.append(Tp(plan.changelog_topic, plan.tp.partition), key, value)
        if plan.ledger is not None:
            self.append(Tp(plan.ledger_topic, plan.tp.partition), None, plan.ledger)
        self.committed_offset, self.metadata = plan.next_offset, plan.metadata
        self.next_command = plan.next_command
        for log in list(self._ends):
            self._ends[log] += 1  # the marker of the transaction

    def take_input(self, records: Sequence[FakeRecord]) -> None:
        """The same records lie in the partition of `D.components`; one that is read again lies there once."""
        for record in records:
            if record.offset_ >= self._input_end:
                self.written.append(record)
                self._input_end = record.offset_ + 1

    def append(self, log: Tp, key: bytes | None, value: bytes | None) -> None:
        offset = self._ends.get(log, 0)
        self.written.append(FakeRecord(offset, None, value, key, 0, log))
        self._ends[log] = offset + 1

    def compact(self) -> None:
        """Leaves the last record of each changelog key; tombstones go as well."""
        changelog = Tp(TOPICS.groups_changelog, self.tp.partition)
        last = {record.key_: record for record in self.written if record.tp == changelog}
        self.written = [
            record
            for record in self.written
            if record.tp != changelog or (last[record.key_] is record and record.value_ is not None)
        ]

    def cut_ledger(self, keep: int = 0) -> None:
        """Retention takes the ledger's records but the last ones."""
        ledger = [record for record in self.written if record.tp.topic == TOPICS.closed_changelog]
        gone = ledger[: len(ledger) - keep]
        self.written = [record for record in self.written if record not in gone]
        log = Tp(TOPICS.closed_changelog, self.tp.partition)
        self._starts[log] = ledger[-keep].offset_ if keep else self._ends[log]

    # -- LogReader --------------------------------------------------------------------------------------------------

    def committed(self, tps: Sequence[Tp]) -> Mapping[Tp, Committed]:
        positions = {self.tp: (self.committed_offset, self.metadata), self.commands: (self.next_command, "")}
        return {tp: Committed(*positions[tp]) for tp in tps}

    def bounds(self, tps: Sequence[Tp]) -> Mapping[Tp, tuple[int, int]]:
        return {
            tp: self.input_bounds
            if tp in (self.tp, self.commands)
            else (self._starts.get(tp, 0), self._ends.get(tp, 0))
            for tp in tps
        }

    def read(self, ranges: Mapping[Tp, tuple[int, int]]) -> Iterator[Stretch]:
        for tp, (start, end) in ranges.items():
            wanted = [record for record in self.written if record.tp == tp and start <= record.offset_ < end]
            for at in range(0, len(wanted), STRETCH):
                yield tp, wanted[at : at + STRETCH]
