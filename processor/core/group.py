"""One open group: the numbers held, the end if known, and its deadlines. `apply` is the only code that changes it, beside the shelf.

Theory of operation. A group exists from its first held component to its close. It is *complete* when its end is known and every
number from 1 to the end is held once or waived (W-15): the numbers are distinct and none held lies above the end, so comparing counts is
enough and nothing ever scans the group. It is *ready* when the latest `uow-deliver-at` has been reached (W-08) and no earlier group of its order key is open
(W-210). Its next moment of interest is `due_at`: the earliest clock value at which it must be looked at, whether to deliver or to give up.

Belongs here: the state of a group and what can be read off it. Does not belong here: what to do with an event (`decide`).
"""

from __future__ import annotations

from processor.core.changes import Amended, Closed, Held, Removed, Tail
from processor.core.ranges import Ranges, count_up_to, those_in, without
from schemas.component import component_id_of
from schemas.records import MAX_SEQ, Range, Reason, UnitOutcome
from schemas.stayed import stays
from topics.policies import NEVER_MS, DestinationPolicy, ExpirationPolicy

UNKNOWN_END = MAX_SEQ + 1
"""Above every legal number, so that one comparison serves known and unknown ends."""
NEVER = 1 << 62
"""Later than every clock."""


class Group:
    """The state of one open group.

    Attributes:
        id: UTF-8 bytes of the group id.
        generation: How many groups of this id the destination has opened, from 1.
        opened_at: Append time of the first component held, epoch ms.
        last_at: Append time of the last one held.
        end: The highest number, by end mark or count; `UNKNOWN_END` until known.
        marked: Whether an end mark is held (else the end, if known, came by `uow-count`).
        highest: Highest number held.
        held: Number to Avro body, in order of arrival.
        bytes: Sum of the bodies' lengths, with all values: what `max_bytes` limits.
        stays: How many of these bytes stay in `D.components` and are not held (W-117).
        expires_at: Earliest `uow-expires-at` of the components held, 0 for none (W-92).
        deliver_at: Latest `uow-deliver-at`, 0 for none.
        order_key: Its place in line is among groups of this key; empty for none (W-210).
        waits: Whether an earlier group of its order key is open, so that it is not delivered yet.
        free_at: When the last earlier one closed, epoch ms.
        special: Whether a component carries, or left behind, or a command said, what only `decide` can judge; the shelf leaves the group alone then.
        declared_end: The end that a command declared, 0 for none.
        waived: Numbers that a command said are not needed, also those that came all the same: one range that components split number by
            number would cost each of them all the pieces.
        waived_held: How many of these are held.
        extended: Before this moment it is not given up for age or idleness, epoch ms; 0 for none.
        tail: See `Tail`; None after a restore or a removal.
        promoted: How many of the first held components have a row in the changelog.
        row_key: What the keys of these rows begin with; the engine's, made with the first row.
        row_head: What their values begin with; likewise.
        has_group_row: Whether the changelog says what commands changed; likewise.
        is_open: False from its close on.
        is_young: Whether a restore would read it from the input again; the engine's.
    """

    __slots__ = (
        "bytes",
        "declared_end",
        "deliver_at",
        "end",
        "expires_at",
        "extended",
        "free_at",
        "generation",
        "has_group_row",
        "held",
        "highest",
        "id",
        "is_open",
        "is_young",
        "last_at",
        "marked",
        "opened_at",
        "order_key",
        "promoted",
        "row_head",
        "row_key",
        "special",
        "stays",
        "tail",
        "waits",
        "waived",
        "waived_held",
    )

    def __init__(self, group_id: bytes, generation: int, opened_at: int) -> None:
        self.id = group_id
        self.generation = generation
        self.opened_at = self.last_at = opened_at
        self.end = UNKNOWN_END
        self.marked = False
        self.highest = 0
        self.held: dict[int, bytes] = {}
        self.bytes = 0
        self.stays = 0
        self.expires_at = 0
        self.deliver_at = 0
        self.order_key = b""
        self.waits = False
        self.free_at = 0
        self.special = False
        self.declared_end = 0
        self.waived: Ranges = ()
        self.waived_held = 0
        self.extended = 0
        self.tail: Tail | None = None
        self.promoted = 0
        self.row_key = self.row_head = b""
        self.has_group_row = False
        self.is_open = True
        self.is_young = False

    def __repr__(self) -> str:
        return f"Group({self.id!r}, generation={self.generation}, held={self.held_ranges()}, end={self.end if self.end_known else None})"

    def apply(self, change: Held | Amended | Removed | Closed) -> None:
        """Writes one change into the group."""
        if isinstance(change, Closed):
            self.is_open = False
            return
        if isinstance(change, Amended):
            self._amend(change)
            return
        if isinstance(change, Removed):
            self._remove(change)
            return
        seq = change.seq
        self.held[seq] = change.body
        self.bytes += len(change.body) + change.stays
        if change.stays:
            self.leave(change.stays)
        if change.at > self.last_at:
            self.last_at = change.at
        if seq > self.highest:
            self.highest = seq
        if change.end:
            self.end, self.marked, self.tail = seq, True, change.tail
        attributes = change.attributes
        if attributes is not None:
            self.special = True
            if attributes.count:
                self.end = attributes.count
            if attributes.expires_at:
                self.expires_at = min(self.expires_at or NEVER, attributes.expires_at)
            self.deliver_at = max(self.deliver_at, attributes.deliver_at)
        if self.waived:
            self.waived_held += self.is_waived(seq)

    def leave(self, stays: int) -> None:
        """A component is held without its value; so much stays in `D.components`."""
        self.special = True
        self.stays += stays

    def _amend(self, change: Amended) -> None:
        self.special = True
        self.declared_end, self.extended = change.declared_end, change.extended
        self.waived = change.waived
        self.waived_held = len(list(those_in(self.waived, self.held)))
        if change.declared_end:
            self.end = change.declared_end

    def _remove(self, change: Removed) -> None:
        self.special = True
        body = self.held.pop(change.seq)
        left = stays(body) if self.stays else 0
        self.stays -= left
        self.bytes -= len(body) + left
        self.highest = max(self.held)
        if self.is_waived(change.seq):  # it is missing now, and may be sent again
            self.waived, self.waived_held = without(self.waived, (change.seq,)), self.waived_held - 1
        self.tail = None
        self.end, self.marked, self.last_at = change.end, change.marked, change.last_at
        self.expires_at, self.deliver_at = change.expires_at, change.deliver_at

    def forget(self) -> None:
        """Lets go of the components once nobody will ask: a closed group may stay in line for its deadline."""
        self.held = {}
        self.tail = None

    @property
    def end_known(self) -> bool:
        return self.end != UNKNOWN_END

    @property
    def complete(self) -> bool:
        """Every number from 1 to the end is held or waived (W-15, W-203)."""
        count = len(self.held)
        return count == self.end or (bool(self.waived) and count + self.spared(self.waived, self.end) == self.end)

    def is_waived(self, seq: int) -> bool:
        """Whether a command said that the number is not needed."""
        return any(those_in(self.waived, (seq,)))

    def spared(self, waived: Ranges, end: int) -> int:
        """How many numbers up to an end are neither held nor needed, if these, of which no more are held, are waived."""
        return count_up_to(waived, end) - self.waived_held

    def closing(self) -> tuple[UnitOutcome, Reason]:
        """How a complete group closes: with numbers waived it is `partial`; the reason is what made the end known (W-203, W-204)."""
        if self.spared(self.waived, self.end):
            return UnitOutcome.PARTIAL, Reason.COMMAND
        if self.marked:
            return UnitOutcome.COMPLETE, Reason.END
        return UnitOutcome.COMPLETE, Reason.COMMAND if self.declared_end else Reason.COUNT

    def due_at(self, policy: DestinationPolicy) -> int:
        """The earliest clock value at which this group must be looked at, epoch ms; `NEVER` if none.

        A deadline is passed strictly after it, so it is due one millisecond later; `uow-deliver-at` is due when reached. Age and idle
        stop counting once every number is held, component expiry does not (W-77). What would be delivered waits until it is available, also
        where it is partial (W-08, W-207), and for its turn (W-210).
        """
        due = self.expires_at + 1 if self.expires_at else NEVER
        if self.waits and (self.complete or policy.expiration_policy is ExpirationPolicy.DELIVER_PARTIAL):
            return due
        if self.complete:
            return min(due, max(self.deliver_at, self.free_at))
        if policy.expiration_policy is ExpirationPolicy.DELIVER_PARTIAL and (until := self.give_up_at(policy)) != NEVER:
            return min(due, max(until, self.deliver_at))
        return min(due, self.give_up_at(policy))

    def deadline(self, policy: DestinationPolicy) -> int | None:
        """When the group is given up, or delivered where it only waits for `uow-deliver-at`, epoch ms; None: never."""
        due = self.due_at(policy)
        return None if due == NEVER else due if self.complete else due - 1

    def give_up_at(self, policy: DestinationPolicy) -> int:
        """When age or idleness gives the group up while a number is lacking, not before what `extend` said; `NEVER` if they do not count."""
        due = NEVER
        if policy.incomplete_expiration_ms != NEVER_MS:
            due = self.opened_at + policy.incomplete_expiration_ms + 1
        if policy.idle_expiration_ms != NEVER_MS:
            due = min(due, self.last_at + policy.idle_expiration_ms + 1)
        return max(due, self.extended + 1) if self.extended else due

    def give_up_reason(self, policy: DestinationPolicy) -> Reason:
        """Whether it is its age or its idleness that gives the group up."""
        age, idle = policy.incomplete_expiration_ms, policy.idle_expiration_ms
        by_age = age != NEVER_MS and (idle == NEVER_MS or self.opened_at + age <= self.last_at + idle)
        return Reason.AGE if by_age else Reason.IDLE

    def last_arrived(self) -> tuple[int, bytes | None] | None:
        """Number and component id of the component held last: what a finished unit had been waiting for (W-213)."""
        seq = next(reversed(self.held), None)
        return None if seq is None else (seq, component_id_of(self.held[seq]))

    def held_ranges(self) -> tuple[Range, ...]:
        """Numbers held, as ranges. Costs a sort, so it is asked for on close and by people only."""
        ranges: list[Range] = []
        first = last = 0
        for seq in sorted(self.held):
            if seq != last + 1 or not first:
                if first:
                    ranges.append(Range(first, last))
                first = seq
            last = seq
        if first:
            ranges.append(Range(first, last))
        return tuple(ranges)

    def missing(self) -> tuple[Range, ...]:
        """Numbers lacking, as ranges; the last one is open (`MAX_SEQ`) while the end is unknown (W-71)."""
        gaps: list[Range] = []
        after = 0
        for held in self.held_ranges():
            if held.first > after + 1:
                gaps.append(Range(after + 1, held.first - 1))
            after = held.last
        last = self.end if self.end_known else MAX_SEQ
        if after < last:
            gaps.append(Range(after + 1, last))
        return tuple(gaps)

    def in_order(self) -> list[bytes]:
        """Bodies in number order, compared as integers (W-10)."""
        held = self.held
        if len(held) == self.end:
            return list(map(held.__getitem__, range(1, self.end + 1)))
        return [held[seq] for seq in sorted(held)]
