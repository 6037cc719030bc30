"""One partition of a reader: the units handed out, the acknowledged position, and the units given up that wait to be written to `D.errors`.

Theory of operation. A position is committed in one of two ways: by the consumer alone, or in a transaction that also takes units to
`D.errors`. Before a position is committed, `due` gives the units given up that it would pass. So no position ever passes
one that is not in `D.errors`, in whichever order units are acknowledged.

Belongs here: that state of one partition. Does not belong here: committing (`uow.client.consumption`, `uow.client.forwarding`,
`uow.client.nesting`), and giving up (`uow.client.dead_letters`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from confluent_kafka import TopicPartition

from uow.client.blocking import Block, write_block
from uow.client.deliveries import Deliveries, Steps, write_steps
from uow.client.open_runs import OpenRun
from uow.client.outgoing import OutgoingRecord
from uow.client.redelivery import HandedOut
from uow.client.unfetchable import Gap
from uow.processor.kafka.leader_epochs import UNKNOWN, known

Tp = tuple[str, int]

TOGETHER_BYTES: Final = 16_777_216
"""Moves that go in one transaction: more of them must not outlast its time-out of 10 s."""
MANY: Final = 1000
"""So many moves do not wait for more."""


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """A unit given up, on its way to `D.errors`.

    Attributes:
        records: The records to write there.
        first: Offset of its first record.
        last: Offset of its last record.
        after: Offset of the unit handed out last before it; -1 for none.
        bytes: Of keys and values.
    """

    records: Sequence[OutgoingRecord]
    first: int
    last: int
    after: int
    bytes: int


class Due(NamedTuple):
    """A position, and the units that must be written together with it."""

    position: int
    moves: Sequence[Move]

    @property
    def records(self) -> list[OutgoingRecord]:
        return [record for move in self.moves for record in move.records]


@dataclass(eq=False, slots=True)
class Ownership:
    """One partition from assignment to revocation; a new assignment makes a new one, so what was read under an old one is recognised.

    Attributes:
        tp: Topic and partition.
        acknowledged: The next offset to be read after all that is acknowledged, or where reading began (negative: not seen yet).
        deliveries: Of units that were handed out and not acknowledged (W-52).
        kept: Position and text that the broker has.
        waiting: Units given up that are not in `D.errors` yet, by offset.
        deferred: An acknowledged offset that could not be committed in the middle of a rebalance.
        rewind: Where reading goes on before the next record is taken, because something was rolled back.
        run: The unit of shape `consecutive` whose records are coming in.
        broken: Id of the unit whose run was found broken last.
        handed_out: Offset of the unit handed out last, -1 before the first one.
        is_at_end: True if no more record is visible for the moment.
        waiting_bytes: Of `waiting`.
        next: The offset to be read next; negative where that is not known.
        gap: The gap there that cannot be fetched.
        block: The record at which the partition stands, if it failed (S-14).
        before: What was handed out before this assignment.
        epoch: The latest leader epoch of records read so far, or beside the committed offset; -1: unknown (`uow.processor.kafka.leader_epochs`).
        is_same_log: True once it is known that the log was not cut off before the committed offset.
    """

    tp: Tp
    acknowledged: int = -1
    deliveries: Deliveries = field(default_factory=Deliveries)
    kept: tuple[int, str] = (-1, "")
    waiting: list[Move] = field(default_factory=list)
    deferred: int = -1
    rewind: int | None = None
    run: OpenRun | None = None
    broken: str = ""
    handed_out: int = -1
    is_at_end: bool = False
    waiting_bytes: int = 0
    next: int = -1
    gap: Gap | None = None
    block: Block | None = None
    before: HandedOut = field(default_factory=HandedOut)
    epoch: int = UNKNOWN
    is_same_log: bool = False

    def hand_out(self, offset: int) -> bool | None:
        """Notes that the unit or message at `offset` is handed out; its mark of redelivery (R-35)."""
        self.handed_out = offset
        return self.before.mark(offset)

    @property
    def has_much_waiting(self) -> bool:
        """True if the units given up should be written now and not wait for more."""
        return len(self.waiting) >= MANY or self.waiting_bytes >= TOGETHER_BYTES

    @property
    def position(self) -> int:
        """The offset at which reading goes on; negative where that is not known."""
        behind = self.next if self.run is None else self.run.first
        return behind if self.rewind is None else min(behind, self.rewind)

    @property
    def is_all_acknowledged(self) -> bool:
        """True if all units that were handed out are acknowledged."""
        return self.handed_out < self.acknowledged

    def go_back(self, offset: int) -> None:
        """Reads from `offset` again, at the latest."""
        self.rewind = offset if self.rewind is None else min(self.rewind, offset)

    def gone_back(self) -> None:
        """Reading goes on at `rewind`: records from there on come again."""
        if self.rewind is None:
            return
        self._keep_waiting([move for move in self.waiting if move.first < (self.rewind or 0)])
        self.deliveries.undo(max(self.rewind, self.handed_out + 1))
        if self.rewind <= self.handed_out:  # another pass
            self.deliveries = Deliveries(self._steps(self.acknowledged), self.rewind)
            self.handed_out = self.rewind - 1
        self.next = self.rewind
        self.rewind = self.run = self.gap = None
        self.is_at_end = False

    def stop(self) -> None:
        """Reading ends here: a unit whose records were still coming in was not delivered."""
        if self.run is not None and self.handed_out < self.run.first:
            self.deliveries.undo(self.run.first)

    def begun_again(self) -> Ownership:
        """The same partition from the acknowledged position on: units read so far can no longer be acknowledged."""
        self.stop()
        return Ownership(
            self.tp,
            self.acknowledged,
            Deliveries(self._steps(self.acknowledged)),
            self.kept,
            [move for move in self.waiting if move.first < self.acknowledged],
            self.deferred,
            self.acknowledged,
            block=self.block,
            before=self.before,
            epoch=self.epoch,
            is_same_log=self.is_same_log,
        )

    def add_dead_letter(self, records: Sequence[OutgoingRecord], first: int, last: int) -> None:
        """A unit goes to `D.errors`, with the next position behind it that is committed."""
        if self.waiting and self.waiting[-1].first > first:  # a run that ended at what could not be fetched
            self.waiting.sort(key=lambda move: move.first)
        size = sum(len(record.key or b"") + len(record.value or b"") for record in records)
        self.waiting.append(Move(records, first, last, self.handed_out, size))
        self.waiting_bytes += size

    def _keep_waiting(self, moves: list[Move]) -> None:
        self.waiting, self.waiting_bytes = moves, sum(move.bytes for move in moves)

    def pass_by(self, last: int) -> None:
        """A unit is done with, and leaves nothing. The position moves where nothing waits before it, and is committed when there is an occasion."""
        if self.is_all_acknowledged and not self.waiting and self.rewind is None:
            self.mark_acknowledged(last + 1)

    def due(self, next_offset: int) -> list[Due]:
        """The commits that make `next_offset` the position: several where much goes to `D.errors`.

        Units given up before any other unit was handed out go along.
        """
        dues: list[Due] = []
        moves: list[Move] = []
        size = 0
        for move in self.waiting:
            if move.after >= next_offset:
                break
            if moves and size + move.bytes > TOGETHER_BYTES:
                dues.append(Due(moves[-1].last + 1, moves))
                moves, size = [], 0
            moves.append(move)
            size += move.bytes
        end = max(next_offset, moves[-1].last + 1) if moves else next_offset
        return [*dues, Due(end, moves)]

    def due_at_once(self, next_offset: int) -> Due:
        """The same in one step, for a transaction that has to be one."""
        dues = self.due(next_offset)
        return Due(dues[-1].position, [move for due in dues for move in due.moves])

    def _steps(self, position: int) -> Steps:
        """Deliveries from `position` on. Single messages are counted here and not one by one: no limit applies to them."""
        self.deliveries.count(self.handed_out)
        return self.deliveries.steps(position)

    def row(self, position: int) -> TopicPartition:
        """The committed offset, and beside it the counts of deliveries of units behind it, and the block it stands at."""
        block = write_block(self.block if self.block is not None and self.block.position >= position else None)
        steps = write_steps(self._steps(position))
        return TopicPartition(*self.tp, position, f"{steps}|{block}" if block else steps, self.epoch)

    def see_epoch(self, epoch: int | None) -> None:
        """Notes the leader epoch of a record, or beside a committed offset."""
        self.epoch = max(self.epoch, known(epoch))

    def place(self, offset: int) -> TopicPartition:
        """Where reading goes on."""
        return TopicPartition(*self.tp, offset, leader_epoch=self.epoch if offset <= self.next else UNKNOWN)

    def committed(self, row: TopicPartition) -> None:
        """The broker has it: everything before it is done with."""
        self.kept = (row.offset, row.metadata or "")
        self.before.is_committed = True
        self._keep_waiting([move for move in self.waiting if move.first >= row.offset])
        self.mark_acknowledged(row.offset)

    def mark_acknowledged(self, next_offset: int) -> None:
        """Everything before `next_offset` is acknowledged."""
        self.acknowledged = max(self.acknowledged, next_offset)
        if self.block is not None and self.block.position < self.acknowledged:
            self.block = None
        if self.rewind is not None:
            self.rewind = max(self.rewind, next_offset)
