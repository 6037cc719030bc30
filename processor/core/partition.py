"""All groups of one partition of one destination: its clock, its open groups, its memory of closed ones. Pure.

Events come in by `feed` (records), `obey` (commands), `advance` (the clock). What they mean is collected in `changes` and `effects`, in order, until
`take` hands them out: the engine makes a plan of them, the audit compares them with tables.

Belongs here: finding the group an event concerns, applying what was decided, keeping deadlines in order. Does not belong here: rules
(`decide`), bytes of changelogs and outputs (`processor.engine`).
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter, methodcaller
from typing import NamedTuple, assert_never

from processor.core import shelf
from processor.core.changes import (
    Amended,
    Answered,
    Closed,
    Decision,
    Delivered,
    Dropped,
    Effect,
    GivenUp,
    Held,
    Opened,
    Passed,
    Rejected,
    Removed,
    Rerouted,
    TakenOut,
)
from processor.core.closed import ClosedMemory, CommandMemory
from processor.core.columns import UNREADABLE, Caps, Record, Unreadable, look_at_headers, looked_at, reader_of
from processor.core.command import decide_command, held_marks
from processor.core.decide import Arrival, decide_arrival, decide_due, decide_refusal
from processor.core.group import NEVER, Group
from processor.core.layout import tail_of
from processor.core.room import CLOSE_BYTES, ENTRY_BYTES, HEADER_BYTES, LEDGER_SHARE, UNBOUNDED
from schemas.component import decode_component
from schemas.errors import DecodeError, DuplicateSequenceNumberError, InvariantViolation
from schemas.records import Attributes, UnitOutcome
from topics.catalogue import HELD_LIMIT_BYTES
from topics.commands import DRY_RUN_WOULD, BadCommand, Command, read_command
from topics.headers import ORDER_KEY, Marks, Reading, Refusal
from topics.partitioner import partition_for
from topics.policies import NEVER_MS, DestinationPolicy, HandlingPolicy


class Place(NamedTuple):
    """Which partition this is.

    Attributes:
        destination: Name of the destination.
        topic: `D.components`.
        partition: Its number.
        partitions: How many `D.components` has.
        partition_for: Which of them a key belongs to.
    """

    destination: str
    topic: str
    partition: int
    partitions: int
    partition_for: Callable[[bytes, int], int] = partition_for


@dataclass(slots=True)
class Counts:
    """Where records went (engine rule 10).

    received = held + duplicate + rejected + passed + ignored, and held = delivered + expired + cancelled + failed + open. Counted since the
    partition was assigned; what a restore found counts as received and held.

    Attributes:
        rerouted: Of those passed: sent on to their right partition (W-110).
        mixed: Units delivered whose components are not uniform (W-133).
    """

    received: int = 0
    held: int = 0
    duplicate: int = 0
    rejected: int = 0
    passed: int = 0
    ignored: int = 0
    delivered: int = 0
    expired: int = 0
    cancelled: int = 0
    failed: int = 0
    rerouted: int = 0
    mixed: int = 0

    @property
    def open(self) -> int:
        """Components held in open groups."""
        return self.held - self.delivered - self.expired - self.cancelled - self.failed


_OFFSET = methodcaller("offset")
_NO_UTF8 = Refusal(DecodeError, "headers", "a header name is no UTF-8")
_NO_COMMAND = BadCommand("", "", "", "", None, "a header name is no UTF-8")
HeldRow = tuple[Group, int, bool, int, Attributes | None]
"""A component held: its group, number, end mark, source offset, and attributes (None for a plain one). Its body is in the group."""
Outward = tuple[Effect, Record | None, Group | None]
"""An effect with what it is about: the record in hand, or the group."""


@dataclass(slots=True)
class Happened:
    """What a stretch of events came to, in order.

    Attributes:
        held: Components held, but not plain ones of a young group; those of groups still open at the end are the survivors.
        closed: Groups closed, in order, with what is remembered of them; the group is None where nothing was held.
        not_held: Source offsets that were not held: passed, refused, dropped, rerouted.
        effects: For the world, in order.
        amended: Groups that a command changed and left open then.
        removed: Components that a command took out of groups in the changelog: group and number.
        commands: Ids of commands decided, with their append times: what the ledger must remember.
    """

    held: list[HeldRow] = field(default_factory=list)
    closed: list[tuple[Group | None, Closed]] = field(default_factory=list)
    not_held: list[int] = field(default_factory=list)
    effects: list[Outward] = field(default_factory=list)
    amended: list[Group] = field(default_factory=list)
    removed: list[tuple[Group, int]] = field(default_factory=list)
    commands: list[tuple[bytes, int]] = field(default_factory=list)


class Partition:
    """The state of one partition.

    Args:
        place: Which one.
        policy: Of the destination.
        plan_bytes: What the groups that one plan closes may weigh (`processor.core.room`).

    Attributes:
        groups: Open groups by id.
        closed: Memory of closed ones.
        commands: Memory of commands.
        clock: Epoch ms; never goes backwards.
        latest: An append time after this is not believed: it does not move the clock (decision 17).
        disbelieved: How many there were.
        position: Next input offset.
        command_position: Next offset of `D.commands`.
        held_bytes: Sum over the open groups, without what stays in `D.components`.
        fed_bytes: Bytes of plain components fed so far, and of values that stay where they are.
        due: The earliest clock value at which a group must be looked at.
        room: What is left of `plan_bytes`; below 0 nothing more is closed or decided until `settle`.
        is_cut: Whether something was left for the next plan.
        lines: Open groups by order key and id, in the order in which they opened (W-210).
    """

    def __init__(self, place: Place, policy: DestinationPolicy, plan_bytes: int = UNBOUNDED) -> None:
        self.place = place
        self.policy = policy
        if policy.fits_one_record:
            self.policy = replace(policy, max_bytes=min(policy.max_bytes, HELD_LIMIT_BYTES))
        self.reading = Reading.of(policy)
        self.reader = reader_of(policy)(place.topic, place.partition, self.reading, Caps.of(policy))
        self.groups: dict[bytes, Group] = {}
        self.closed = ClosedMemory(policy.closed_retention_ms, policy.closed_max_groups)
        self.commands = CommandMemory(policy.closed_retention_ms, policy.closed_max_groups)
        self.counts = Counts()
        self.clock = 0
        self.latest = NEVER
        self.disbelieved = 0
        self.position = 0
        self.command_position = 0
        self.held_bytes = 0
        self.fed_bytes = 0
        self.due = NEVER
        self.plan_bytes = self.room = plan_bytes
        self.is_cut = False
        self.lines: dict[bytes, dict[bytes, Group]] = {}
        self.happened = Happened()
        self.timed = policy.incomplete_expiration_ms != NEVER_MS or policy.idle_expiration_ms != NEVER_MS
        self._deadlines: list[tuple[int, bytes, int, Group]] = []  # of equal deadlines the id decides, not the past
        self._serial = 0
        self._is_freed = False

    # -- events -----------------------------------------------------------------------------------------------------

    def feed(self, records: Sequence[Record]) -> bool:
        """One poll's records, in offset order. A source offset below the position is a replay and ignored (line 7).

        Returns:
            Whether all of them were taken. Else the plan is full, and `position` is that of the first that was not.
        """
        if self.is_full():
            self.is_cut |= bool(records)
            return False
        if records and records[0].offset() < self.position:
            fresh = [record for record in records if record.offset() >= self.position]
            self.counts.received += len(records) - len(fresh)
            self.counts.ignored += len(records) - len(fresh)
            records = fresh
        passes = self.policy.handling_policy is HandlingPolicy.PASS_THROUGH
        taken = self._pass_on(records) if passes else self._judge(records)
        self.counts.received += taken
        if self.is_cut:
            return False
        if records:
            self.position = records[-1].offset() + 1
        return True

    def _judge(self, records: Sequence[Record]) -> int:
        """How many were taken; see `feed`."""
        taken = 0
        for columns in self.reader.read(records):
            if self.is_full():
                self.position, self.is_cut = columns.offsets[0], True
                break
            shelf.judge(self, columns)
            self.room -= HEADER_BYTES * columns.header_count
            here = bisect_left(columns.offsets, self.position) if self.is_cut else len(columns.offsets)
            self.fed_bytes += sum(map(len, columns.bodies[:here]))
            if max(columns.times, default=0) > self.latest:
                self.disbelieved += sum(at > self.latest for at in columns.times[:here])
            taken += here
            if self.is_cut:
                break
        return taken

    def _pass_on(self, records: Sequence[Record]) -> int:
        """The same where nothing is assembled."""
        for headers, portion in look_at_headers(records):
            for pairs, record in zip(headers, portion, strict=True):
                if self.is_full():
                    self.position, self.is_cut = record.offset(), True
                    return bisect_left(records, self.position, key=_OFFSET)
                self.clock = max(self.clock, self._believed(record.timestamp()[1]))
                # what cannot be shown cannot be passed on untouched
                self.room -= HEADER_BYTES * len(pairs or ())
                self._concerning(record, Rejected(_NO_UTF8) if isinstance(record, Unreadable) else Passed())
        return len(records)

    def obey(self, records: Sequence[Record], recent: Callable[[int], bool]) -> None:
        """Records of `D.commands`, in offset order, of which nothing waits any more (`processor.engine.waiting`). Commands never move the clock.

        Once the plan is full, those that are left wait for the next one.

        Args:
            records: The commands. An offset below the position is a replay and ignored.
            recent: Called with each command's append time before it is decided: feeds the components that came before it, and tells
                whether all of them were taken.
        """
        for headers, record in looked_at(records):
            if record.offset() < self.command_position:
                continue
            at = record.timestamp()[1]
            if not (recent(at) and self.advance(self.clock)):
                self.is_cut = True
                return
            self.command_position = record.offset() + 1
            done, text = False, ""
            command = read_command(headers or []) if not isinstance(record, Unreadable) else _NO_COMMAND
            if not isinstance(command, Command):
                text = f"cannot be read: {command.complaint}"
            elif command.id in self.commands:
                text = "a repeated command does nothing more"
            else:
                done, text = self._decide_command(command, at)
            self.happened.effects.append((Answered(command, done, text, at, record.offset()), None, None))

    def _decide_command(self, command: Command, at: int) -> tuple[bool, str]:
        """Whether it was done, and the answer's text."""
        self.closed.trim(self.clock)
        group, closed = self.groups.get(command.group_id), self.closed.get(command.group_id)
        home = self.elsewhere(command.group_id) if group is None and closed is None else None
        obeyed, text, decision = decide_command(
            command, group, closed, home, self._believed(at), self.clock, self.position, self.policy
        )
        if command.dry_run:
            return False, f"{DRY_RUN_WOULD}{text}" if obeyed else text
        self.commands.add(command.id, at)
        self.happened.commands.append((command.id, at))
        self._carry_out(decision, None)
        self._deliver_freed()
        if group is not None and group.is_open:
            self.schedule(group)
        return obeyed, text

    def arrive(self, record: Record, encoded: bytes = b"") -> None:
        """One record, by the whole decision table. The clock moves first, and what is then due closes (W-84).

        A record that comes when the plan is full, or fills it by what is due before it, is left, and all that follow: `position` stays at
        the first one.

        Args:
            record: The record.
            encoded: Its Avro body, where that is made already.
        """
        if self.is_cut:
            return
        at = record.timestamp()[1]
        self.position = record.offset()
        if self.is_full() or not self.advance(self._believed(at)):
            self.is_cut = True
            return
        marks = self._marks(record)
        if marks is None:
            self._concerning(record, Passed())
            return
        group_id = marks.id
        self.closed.trim(self.clock)  # here too, so that nothing depends on where a poll was cut
        group = self.groups.get(group_id) if group_id is not None else None
        closed = self.closed.get(group_id) if group_id is not None else None
        home = self.elsewhere(group_id) if group_id is not None and group is None else None
        if isinstance(marks, Refusal):
            decision = decide_refusal(marks, group, closed, home, record.offset(), self.clock, self.policy)
        else:
            headers = (record.headers() or ()) if marks.end else ()
            tail = tail_of(marks.component_id, record.offset(), headers, self.reading)
            body, stays = (encoded, 0) if encoded else self.reader.encode(record, marks)
            arrival = Arrival(marks, record.offset(), at, record.value(), body, tail, stays)
            waits = group.waits if group is not None else marks.order_key in self.lines
            decision = decide_arrival(arrival, group, closed, home, self.clock, self.policy, waits)
        self._carry_out(decision, record)
        self._deliver_freed()

    def _marks(self, record: Record) -> Marks | Refusal | None:
        try:
            headers = record.headers()
        except UNREADABLE:
            return _NO_UTF8
        count = len(headers or ())
        marks = self.reading.read(headers, record.value())
        if marks is not None and self.reader.caps.are_exceeded([name for name, _ in headers or ()]):
            text = f"{count} headers; most are {self.policy.max_headers}, with {self.policy.max_header_name_bytes} bytes of names"
            return Refusal(DecodeError, "headers", text, marks.id, marks.seq)
        if isinstance(marks, Marks) and marks.order_key and not self.policy.has_paths:
            return Refusal(DecodeError, ORDER_KEY, "ordered units need routing = path (W-210)", marks.id, marks.seq)
        return marks

    def _believed(self, at: int) -> int:
        """How far an append time moves the clock: one that cannot be does not."""
        return at if at <= self.latest else self.clock

    def advance(self, now: int) -> bool:
        """Moves the clock to `now` unless it is past it, and closes what is then due, in the order of the deadlines.

        Returns:
            False where the plan is full before that. The clock has then come as far as the last deadline that was dealt with: what is left
            is not due yet by it, or in that same moment.
        """
        reached = self.clock
        if now > reached:
            self.clock = now
        while (group := self.first_due(self.clock)) is not None:
            if self.is_full():
                self.clock = reached
                return False
            reached = max(reached, self.due)
            self._carry_out(decide_due(group, self.clock, self.position, self.policy), None)
        self._is_freed = False
        return True

    def is_full(self) -> bool:
        """Whether what is left must wait for the next plan."""
        return self.room < 0

    @property
    def deadlines(self) -> int:
        """How many there are in line, stale ones included."""
        return len(self._deadlines)

    def elsewhere(self, group_id: bytes) -> int | None:
        """The partition an id belongs to if it is not this one, else None (line 6).

        Asked only where no open group of the id is here: a group never opens on a wrong partition. A closed one may be of a time when there
        were fewer partitions (W-107).
        """
        home = self.place.partition_for(group_id, self.place.partitions)
        return None if home == self.place.partition else home

    # -- carrying out -----------------------------------------------------------------------------------------------

    def _carry_out(self, decision: Decision, record: Record | None) -> None:
        group: Group | None = None
        for change in decision.changes:
            match change:
                case Opened():
                    group = self.open(change)
                case Held():
                    group = self.groups[change.id]
                    self.hold(group, change)
                case Amended():
                    group = self.groups[change.id]
                    group.apply(change)
                    self.happened.amended.append(group)
                case Removed():
                    group = self.groups[change.id]
                    self.remove(group, change)
                case Closed():
                    group = self.groups.pop(change.id, None)
                    self.close(group, change)
                case _:
                    assert_never(change)
        for effect in decision.effects:
            match effect:
                case Delivered() | GivenUp() | TakenOut() | Answered():
                    self.happened.effects.append((effect, None, group))
                case Rejected() | Passed() | Rerouted() | Dropped():
                    if record is None:
                        raise InvariantViolation(self.place, effect, "no record in hand")
                    self._concerning(record, effect)
                case _:
                    assert_never(effect)
        if group is not None and group.is_open and record is not None:
            self.schedule(group)

    def open(self, opened: Opened) -> Group:
        """The new group."""
        group = self.groups[opened.id] = Group(opened.id, opened.generation, opened.at)
        if opened.order_key:
            self.line_up(group, opened.order_key)
        return group

    def hold(self, group: Group, held: Held) -> None:
        """Applies a held component to its group, and accounts for it."""
        group.apply(held)
        self.counts.held += 1
        self.held_bytes += len(held.body)
        self.fed_bytes += held.stays
        self.happened.held.append((group, held.seq, held.end, held.offset, held.attributes))

    def remove(self, group: Group, removed: Removed) -> None:
        """Takes a component out of a group, and out of what this poll held."""
        happened, seq = self.happened, removed.seq
        index = [*group.held].index(seq)
        if index < group.promoted:
            group.promoted -= 1
            happened.removed.append((group, seq))
        self.held_bytes -= len(group.held[seq])
        self.counts.cancelled += 1
        group.apply(removed)
        happened.amended.append(group)
        happened.held = [row for row in happened.held if row[0] is not group or row[1] != seq]
        if index == 0 and self.policy.has_paths:
            self._line_up_anew(group)

    def close(self, group: Group | None, closed: Closed) -> None:
        """Applies a close, and accounts for the components that leave."""
        self.closed.add(closed)
        self.happened.closed.append((group, closed))
        self.room -= LEDGER_SHARE * (ENTRY_BYTES + len(closed.prints)) + CLOSE_BYTES
        if group is None:
            return
        group.apply(closed)
        self.room -= group.bytes + CLOSE_BYTES * len(group.held)
        if group.order_key:
            self._leave_line(group, min(closed.at, self.clock))
        self.held_bytes -= group.bytes - group.stays
        count, counts = len(group.held), self.counts
        match closed.outcome:
            case UnitOutcome.COMPLETE | UnitOutcome.PARTIAL:
                counts.delivered += count
            case UnitOutcome.EXPIRED:
                counts.expired += count
            case UnitOutcome.CANCELLED:
                counts.cancelled += count
            case UnitOutcome.FAILED:
                counts.failed += count
            case _:
                assert_never(closed.outcome)

    def amend(self, before: Closed, after: Closed, count: int) -> None:
        """A unit of `count` components that was to be delivered failed while it was written (W-115)."""
        self.closed.replace(before, after)
        self.counts.delivered -= count
        self.counts.failed += count

    def _concerning(self, record: Record, effect: Rejected | Passed | Rerouted | Dropped) -> None:
        counts = self.counts
        match effect:
            case Rejected(refusal) if refusal.error is DuplicateSequenceNumberError:
                counts.duplicate += 1
            case Rejected():
                counts.rejected += 1
            case Passed():
                counts.passed += 1
            case Rerouted():
                counts.passed += 1
                counts.rerouted += 1
            case Dropped():
                counts.duplicate += 1
            case _:
                assert_never(effect)
        self.happened.not_held.append(record.offset())
        self.happened.effects.append((effect, record, None))

    # -- ordered units (W-210) --------------------------------------------------------------------------------------

    def line_up(self, group: Group, order_key: bytes) -> None:
        """The group has opened after all others of its order key that are open."""
        line = self.lines.setdefault(order_key, {})
        group.order_key, group.waits = order_key, bool(line)
        line[group.id] = group

    def line_up_again(self, groups: Iterable[Group]) -> None:
        """Groups that are in no line yet, in the order in which they opened."""
        places = [(*self._place(group), group) for group in groups]
        for _, order_key, group in sorted(places, key=itemgetter(0)):
            if order_key:
                self.line_up(group, order_key)

    def free_again(self) -> None:
        """After a restore: who is first in line and complete was let go of when the clock stood where it does, and its plan was full."""
        for line in self.lines.values():
            next(iter(line.values())).free_at = self.clock

    def _line_up_anew(self, group: Group) -> None:
        """The first component was taken out: the group stands where the next one came, maybe in another line."""
        keys = {group.order_key, self._place(group)[1]}
        groups = [each for key in keys for each in self.lines.pop(key, {}).values()]
        if not group.order_key:
            groups.append(group)
        waited = [each for each in groups if each.waits]
        for each in groups:
            each.order_key, each.waits = b"", False
        self.line_up_again(groups)
        for each in waited:
            if not each.waits:
                self._free(each, self.clock)

    def _place(self, group: Group) -> tuple[int, bytes]:
        """Where a group stands among others, and its order key, by the first component held: after a restore nobody knows more."""
        first = decode_component(next(iter(group.held.values())))
        return first.source.offset, held_marks(group.id, first, self.reading).order_key

    def _leave_line(self, group: Group, at: int) -> None:
        """Whoever is first in line now waits no longer."""
        line = self.lines[group.order_key]
        del line[group.id]
        if not line:
            del self.lines[group.order_key]
            return
        first = next(iter(line.values()))
        if first.waits:
            self._free(first, at)

    def _free(self, group: Group, at: int) -> None:
        group.waits, group.free_at = False, at
        self.schedule(group)
        self._is_freed = True

    def _deliver_freed(self) -> None:
        """A group that was complete and waited is delivered in the same moment as the last one before it."""
        if self._is_freed:
            self.advance(self.clock)

    # -- deadlines --------------------------------------------------------------------------------------------------

    def first_due(self, now: int) -> Group | None:
        """The group with the earliest deadline, if it is due by `now`. Entries that became too early are put right on the way."""
        while self.due <= now:
            due, *_, group = self._deadlines[0]
            if group.is_open and group.due_at(self.policy) == due:
                return group
            heapq.heappop(self._deadlines)
            if group.is_open:
                self.schedule(group)
            self.due = self._deadlines[0][0] if self._deadlines else NEVER
        return None

    def first_deadline(self) -> int | None:
        """When the first open group will be given up, or delivered by the clock, epoch ms; None: nothing is open, or it has no deadline."""
        group = self.first_due(NEVER - 1)
        return None if group is None else group.deadline(self.policy)

    def schedule(self, group: Group) -> None:
        """Puts a group's next moment of interest in line. Entries that became too early are put right when they come up."""
        due = group.due_at(self.policy)
        if due != NEVER:
            self._serial += 1
            heapq.heappush(self._deadlines, (due, group.id, self._serial, group))
            if due < self.due:
                self.due = due

    def settle(self) -> Happened:
        """Hands out what happened since the last call, forgets old closed groups and stale deadlines."""
        happened, self.happened = self.happened, Happened()
        self.room, self.is_cut = self.plan_bytes, False
        self.closed.trim(self.clock)
        if len(self._deadlines) > 2 * len(self.groups) + 1024:
            self.reschedule(self.groups.values())
        return happened

    def reschedule(self, groups: Iterable[Group]) -> None:
        """Puts all deadlines in line anew."""
        self._deadlines = []
        self.due = NEVER
        for group in groups:
            self.schedule(group)
