"""The task of one partition: records in, a plan out. Pure; nothing is sent while a plan is made (engine rule 1).

A plan says what survived the poll: a component whose group opened and closed inside it has no row in the changelog. With replay bounds of
0 every survivor is promoted at once, so the changelog alone restores the open groups and the replay floor is the position.

Belongs here: turning what happened in the core into a plan, and back into state. Does not belong here: rules (`processor.core`), bytes
of single records (`rows`, `outputs`), and sending (`processor.kafka`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from processor.core.changes import Closed, Delivered, GivenUp, Held
from processor.core.group import NEVER, Group
from processor.core.partition import Counts, Outward, Partition
from processor.engine.outputs import (
    TaskContext,
    UnitTooLargeForRecordError,
    Writer,
    Written,
    too_large,
)
from processor.engine.ports import Plan, RawRecord, Tp
from processor.engine.rows import begin_rows, component_row, ledger_value, tombstone_keys
from schemas.errors import UnitTooLargeError
from topics.headers import Reading
from topics.policies import HandlingPolicy


class PartitionTask:
    """State of one partition of one destination.

    Args:
        tp: The partition of `D.components`.
        context: Of its destination.

    Attributes:
        blocked: Why the partition must not be read, or None (engine rule 8).
    """

    def __init__(self, tp: Tp, context: TaskContext) -> None:
        self.tp = tp
        self.context = context
        self.partition = Partition(context.place(tp.partition), context.policy)
        self.writer = Writer(context, tp.partition, self.partition.reading)
        self.blocked: str | None = None

    @property
    def position(self) -> int:
        """Next input offset."""
        return self.partition.position

    @property
    def counts(self) -> Counts:
        """Where records went (engine rule 10)."""
        return self.partition.counts

    @property
    def groups(self) -> Mapping[bytes, Group]:
        """Open groups by id."""
        return self.partition.groups

    @property
    def held_bytes(self) -> int:
        """Bytes of the components held."""
        return self.partition.held_bytes

    def next_deadline(self) -> int | None:
        """The wall clock must be strictly after this (epoch ms) before a tick can do anything; None: no deadline."""
        return None if self.partition.due == NEVER else self.partition.due - 1

    def process(self, records: Sequence[RawRecord]) -> Plan:
        """One poll's records of this partition, in offset order."""
        start = self.position
        self.partition.feed(records)
        return self._plan(start)

    def tick(self, now_ms: int) -> Plan | None:
        """The partition was read to an end offset that was asked for at `now_ms` (W-82): what is due then closes.

        Returns:
            A plan, or None if nothing was due.
        """
        if self.partition.first_due(now_ms) is None:
            return None
        self.partition.advance(now_ms)
        return self._plan(self.position)

    def drain(self) -> Plan | None:
        """A clean stop; with replay bounds of 0 everything is promoted already."""
        return None

    # -- plan -------------------------------------------------------------------------------------------------------

    def _plan(self, start: int) -> Plan:
        partition, context = self.partition, self.context
        happened = partition.settle()
        topics = context.topics
        plan = Plan(
            self.tp,
            topics.groups_changelog,
            topics.closed_changelog,
            partition.position,
            f"1;F={partition.position}",
        )
        written = Written(plan.outputs, plan.log_lines)
        closed = happened.closed
        write = self.writer.write
        for outward in happened.effects:
            try:
                write(outward, written)
            except UnitTooLargeForRecordError:
                closed = self._fail(outward, closed, written)
        if written.not_sent_on:
            partition.counts.passed -= written.not_sent_on
            partition.counts.rejected += written.not_sent_on
        rows = plan.changelog
        for group, one in closed:
            if group is None:
                self.writer.failed_unopened(one, written)
            elif group.promoted:
                rows += [(key, None) for key in tombstone_keys(group)]
        for group, seq, end, offset, attributes in happened.held:
            if group.is_open:  # what opened and closed within the poll leaves no row (W-119)
                group.promoted += 1
                rows.append(component_row(group, seq, end, offset, attributes))
        plan.ledger = self._ledger(start, happened.not_held, [one for _, one in closed])
        return plan

    def _ledger(self, start: int, not_held: Iterable[int], closed: Sequence[Closed]) -> bytes:
        partition = self.partition
        if self.context.policy.handling_policy is HandlingPolicy.PASS_THROUGH:
            not_held = range(start, partition.position)  # nothing is ever held: one range says so
        return ledger_value(
            start,
            partition.position,
            partition.position,
            partition.clock,
            Reading.VERSION,
            not_held,
            closed,
        )

    def _fail(
        self,
        outward: Outward,
        closed: list[tuple[Group | None, Closed]],
        written: Written,
    ) -> list[tuple[Group | None, Closed]]:
        """A unit does not fit one record: its group fails, as if it had been over a limit (W-115)."""
        effect, _, group = outward
        assert isinstance(effect, Delivered)
        assert group is not None
        failed = too_large(effect.closed)
        self.partition.amend(effect.closed, failed, len(group.held))
        self.writer.write((GivenUp(failed, UnitTooLargeError), None, group), written)
        return [(of, failed if one is effect.closed else one) for of, one in closed]

    # -- restore ----------------------------------------------------------------------------------------------------

    def restore(self, position: int, clock: int, closed: Iterable[Closed]) -> None:
        """Takes position, clock and memory of closed groups from the ledger; call it before `restore_row` and `restored`."""
        partition = self.partition
        partition.position, partition.clock = position, clock
        for one in closed:
            partition.closed.add(one)

    def restore_row(self, group_id: bytes, generation: int, opened_at: int, held: Held) -> None:
        """Takes one held component from its changelog row."""
        groups = self.partition.groups
        group = groups.get(group_id)
        if group is None:
            group = groups[group_id] = Group(group_id, generation, opened_at)
            begin_rows(group)
        group.apply(held)
        group.promoted += 1
        self.partition.held_bytes += len(held.body)
        self.partition.counts.held += 1
        self.partition.counts.received += 1

    def restored(self) -> None:
        """All rows are in: forgets what the ledger remembers too long, and puts deadlines in line."""
        self.partition.closed.trim(self.partition.clock)
        self.partition.reschedule(self.partition.groups.values())
