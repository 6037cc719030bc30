"""The decision table (`docs/decision-table.md`) as data: what one arriving component, or the clock, means for its group. Pure.

Lines 1 to 5b are read off the headers (`uow.topics.headers.Reading`), line 7 off the offset (`partition`); lines 6 and 8 to 14 are the rows
of `LINES` below, tried in this order, the first that answers decides (W-38); line 15 is `_hold`.

Belongs here: every rule about a group. Does not belong here: changing it (`Group.apply`), or anything that needs a broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import NamedTuple

from uow.processor.core.changes import (
    Amended,
    Change,
    Closed,
    Corrected,
    DeadlineWarning,
    Decision,
    Delivered,
    Dropped,
    Effect,
    Held,
    HeldPiece,
    Opened,
    Rejected,
    Rerouted,
    Tail,
    TakenOut,
    Undelivered,
    Waits,
    Warned,
)
from uow.processor.core.conditions import asked, bytes_limit, is_complete, rolls_over
from uow.processor.core.digest_check import agrees
from uow.processor.core.gathered import Facts, satisfied_at
from uow.processor.core.group import UNKNOWN_END, Group, exceeds_limits
from uow.processor.core.segments import FIRST_SLOT
from uow.schemas.claim_check import has_value
from uow.schemas.component import component_id_of, value_of
from uow.schemas.error_classes import (
    BadSequenceNumberError,
    ComponentExpiredError,
    DecodeError,
    DuplicateSequenceNumberError,
    MisroutedComponentError,
    OutOfSequenceRangeError,
    UnitClosedError,
    UnitConflictError,
    UnitTooLargeError,
    UowError,
)
from uow.schemas.fingerprint import case_of, fingerprints, id_count
from uow.schemas.records import Attributes, Reason, UnitOutcome
from uow.topics.commands import Command
from uow.topics.grouping import GroupPolicy
from uow.topics.headers import RULE, Marks, Refusal
from uow.topics.policies import (
    DestinationPolicy,
    DuplicatePolicy,
    ExpirationPolicy,
    LatePolicy,
    ViolationPolicy,
)
from uow.topics.rules import AtWaitingLimit, BelowMin, Release


class Arrival(NamedTuple):
    """A component in hand: its marks, its place, and its bytes.

    Attributes:
        marks: Its headers, as far as they concern a group.
        offset: Source offset.
        at: Append time, epoch ms.
        value: Its value, to tell a duplicate from a conflict.
        body: Its Avro body.
        tail: Of an end component, see `Tail`; None where it is large, and read from the body later.
        external_bytes: How much longer the body would be with its value, which stays in `D.components` (W-117).
        facts: What it brings to a group by rule; None for a component of a unit of work.
    """

    marks: Marks
    offset: int
    at: int
    value: bytes | None
    body: bytes
    tail: Tail | None
    external_bytes: int = 0
    facts: Facts | None = None


Place = tuple[int, bytes, int]
"""The place of a group among those of its rule, by the arrival of its first component; id and generation decide between equal ones."""


def place_of(group: Group) -> Place:
    """The place of a group (B-118)."""
    return group.opened_at, group.id, group.generation


class Situation(NamedTuple):
    """The state that an event meets: all that may be looked at to decide what it means.

    Attributes:
        group: The open group of its id, or None.
        closed: The last closed group of its id, as far as it is remembered, or None.
        home: The partition its id belongs to if that is another one, else None; asked only where no group is open.
        clock: The partition's clock, epoch ms; not before the append time of a component.
        before: Input position once the event is dealt with: whatever is held lies before it.
        policy: Of the destination, or of the row of the group, or of the component that would open one.
        waits: True if an earlier group of the order key is open (W-210).
        open_groups: Open groups of the component's rule on this partition.
        has_room: False if the rule has as many as it may, and too few of them give way to another one.
        newest: The highest generation among the open groups of the id.
        credits: True if a release was asked for when none of the rule's groups waited (B-105).
        first: Of a rule that delivers in order the place of the first open group, see `place_of`; None if none is open.
        lets_go_first: True if a group of the rule has its turn and is still here, because the plan is full (B-118).
        is_known: True if a unit of the id that waits, or that was delivered and is remembered, has a component of this id (B-38).
        kept: The components of the closed group, if its unit may still be corrected; asked only where no group is open (B-205).
    """

    group: Group | None
    closed: Closed | None
    home: int | None
    clock: int
    before: int
    policy: DestinationPolicy
    waits: bool = False
    open_groups: int = 0
    has_room: bool = True
    newest: int = 0
    credits: bool = False
    first: Place | None = None
    lets_go_first: bool = False
    is_known: bool = False
    kept: Group | None = None

    def is_behind(self, opened_at: int, group_id: bytes, generation: int) -> bool:
        """True if a group that opened then is not the first of its rule (B-118)."""
        return self.first is not None and self.first < (opened_at, group_id, generation)

    @property
    def row(self) -> GroupPolicy | None:
        """The policy, if it is that of a row."""
        return self.policy if isinstance(self.policy, GroupPolicy) else None

    @property
    def assigns(self) -> bool:
        """True if the assembler numbers the components."""
        return isinstance(self.policy, GroupPolicy) and self.policy.assigns

    @property
    def end(self) -> int:
        """The group's end, `UNKNOWN_END` until known."""
        return self.group.end if self.group is not None else UNKNOWN_END

    def close(self, outcome: UnitOutcome, reason: Reason, at: int) -> Closed:
        """The close of the open group at this moment."""
        assert self.group is not None
        group = self.group
        prints = group.id_prints() if outcome in DELIVERED else b""
        return Closed(group.id, group.generation, outcome, reason, group.highest, self.before, at, prints)

    def unopened(self, group_id: bytes, outcome: UnitOutcome, reason: Reason, at: int) -> Closed:
        """The close of an id of which nothing is held: its group, the next after the one that is remembered, never opens."""
        generation = self.closed.generation + 1 if self.closed is not None else 1
        return Closed(group_id, generation, outcome, reason, 0, self.before, at)


DELIVERED = frozenset({UnitOutcome.COMPLETE, UnitOutcome.PARTIAL})
"""How a group closes whose components become a unit."""
_NO_ATTRIBUTES = Attributes()
_SAME_BYTES = "the same bytes"
_DELIVERED_UNSEEN = (
    'the unit is delivered already, and the bytes were not compared: fingerprints = "always" keeps what that needs'
)
_VIOLATIONS = (
    UnitConflictError,
    BadSequenceNumberError,
    DuplicateSequenceNumberError,
    OutOfSequenceRangeError,
)
"""Classes of lines 1, 4, 5, 10, 11 and 12: what fails a group under `violation_policy = "fail_group"` (W-39)."""


def _refuse(error: type[UowError], case: str, detail: str, marks: Marks) -> Rejected:
    return Rejected(Refusal(error, case, detail, marks.id, marks.seq))


def _misrouted(arrival: Arrival, now: Situation) -> Effect | None:
    """Line 6. `home` is None on the right partition."""
    if now.home is None:
        return None
    if arrival.marks.rerouted:
        return _refuse(MisroutedComponentError, "", f"belongs to partition {now.home}", arrival.marks)
    return Rerouted(now.home)


def _closed_complete(arrival: Arrival, now: Situation) -> Effect | None:
    """Line 8: judged as before the delivery (W-40)."""
    if now.group is not None or now.closed is None or now.closed.outcome is not UnitOutcome.COMPLETE:
        return None
    if (
        now.row is not None and now.row.gathers_replies
    ):  # enough replies were there, not all: this one may not have been (B-86)
        return _late(now.closed, arrival.marks)
    if arrival.marks.seq > now.closed.highest:
        return _refuse(
            OutOfSequenceRangeError,
            "a",
            f"the unit ended at {now.closed.highest}",
            arrival.marks,
        )
    case, marks, detail = "duplicate", arrival.marks, _DELIVERED_UNSEEN
    if now.closed.prints and not id_count(now.closed.prints):
        case = case_of(now.closed.prints, now.closed.highest, marks.seq, marks.component_id, arrival.value)
        detail = (
            "the same bytes; the unit is delivered already" if case == "duplicate" else "the unit is delivered already"
        )
        if case != "conflict" and now.policy.duplicate_policy is DuplicatePolicy.DROP_IDENTICAL:
            return Dropped(case)
    return _refuse(DuplicateSequenceNumberError, case, detail, marks)


def _closed_otherwise(arrival: Arrival, now: Situation) -> Effect | None:
    """Line 9; `late_policy = "reopen"` lets a new group open instead (W-85), and under `amend` the unit may be corrected (`_corrected`)."""
    if now.group is not None or now.closed is None or now.policy.late_policy is LatePolicy.REOPEN:
        return None
    return _late(now.closed, arrival.marks)


def _late(closed: Closed, marks: Marks, why: str = "") -> Rejected:
    return _refuse(UnitClosedError, closed.outcome.value, f"reason {closed.reason.value}{why}", marks)


def _piece_held_already(arrival: Arrival, now: Situation) -> Effect | None:
    """Line 10 for a piece of a component (B-124): beside the whole one, or beside the other pieces. The same bytes once more are none too many."""
    marks, group, value = arrival.marks, now.group, arrival.value or b""
    assert marks.segment is not None
    if group is None:
        return None
    at, case, detail = marks.segment.at, "duplicate", _SAME_BYTES
    if marks.seq in group.held:
        body = group.held[marks.seq]
        if marks.component_id is not None and component_id_of(body) == marks.component_id:
            case, detail = "resend", ""
        elif (value_of(body) or b"")[at : at + len(value)] != value:
            case, detail = "conflict", "the component is whole, and has other bytes there"
    else:
        found = group.segments.overlap(marks.seq, marks.segment, value) if group.segments is not None else None
        if found is None or not (found.conflict or found.is_duplicate):
            return None
        if found.conflict:
            case, detail = "conflict", found.conflict
    if case != "conflict" and now.policy.duplicate_policy is DuplicatePolicy.DROP_IDENTICAL:
        return Dropped(case)
    return _refuse(DuplicateSequenceNumberError, case, detail, marks)


def _held_already(arrival: Arrival, now: Situation) -> Effect | None:
    """Line 10: the first stays; resend, duplicate and conflict are told apart (W-31, W-44)."""
    if now.group is None:
        return None
    body = now.group.held.get(arrival.marks.seq)
    if body is None:
        return None
    component_id = arrival.marks.component_id
    same_bytes = has_value(body, arrival.value)
    if component_id is not None and component_id_of(body) == component_id:
        case, detail = (
            "resend",
            "the bytes are equal" if same_bytes else "the bytes differ",
        )
    else:
        case, detail = ("duplicate", _SAME_BYTES) if same_bytes else ("conflict", "")
    if case != "conflict" and now.policy.duplicate_policy is DuplicatePolicy.DROP_IDENTICAL:
        return Dropped(case)
    return _refuse(DuplicateSequenceNumberError, case, detail, arrival.marks)


def _above_end(arrival: Arrival, now: Situation) -> Effect | None:
    """Line 11 (W-28, W-204)."""
    if arrival.marks.seq > now.end:
        return _refuse(OutOfSequenceRangeError, "a", f"the unit ends at {now.end}", arrival.marks)
    return None


def _wrong_end(arrival: Arrival, now: Situation) -> Effect | None:
    """Line 12: an end mark or a count below the highest number held, or other than the end already known (W-29, W-30, W-204)."""
    marks = arrival.marks
    highest = max(marks.seq, now.group.highest if now.group is not None else 0)
    known = now.end
    for said, end in (
        ("end mark", marks.seq if marks.end else None),
        ("count", marks.total),
    ):
        if end is None:
            continue
        if end < highest:
            return _refuse(
                OutOfSequenceRangeError,
                "b",
                f"{said} {end}, number {highest} is there",
                marks,
            )
        if known not in (UNKNOWN_END, end):
            return _refuse(
                OutOfSequenceRangeError,
                "b",
                f"{said} {end}, the unit ends at {known}",
                marks,
            )
        known = end  # a count must agree with the end mark of its own record, too
    return None


def _taken_already(arrival: Arrival, now: Situation) -> Effect | None:
    """Line 10 where the assembler gives the numbers: the same component id, or the same record of the router's input, once more (B-38, B-39)."""
    component_id = arrival.facts.component_id if arrival.facts is not None else None
    is_held = now.group is not None and now.group.ruled is not None and component_id in now.group.ruled.component_ids
    if not (is_held or now.is_known):
        return None
    if now.policy.duplicate_policy is DuplicatePolicy.DROP_IDENTICAL:
        return Dropped("resend")
    text = "held already" if is_held else "in another unit already"
    return _refuse(DuplicateSequenceNumberError, "resend", text, arrival.marks)


def _too_many_groups(arrival: Arrival, now: Situation) -> Effect | None:
    """A rule may have only so many open groups on a partition (B-37)."""
    row = now.row
    if now.group is not None or row is None or now.has_room:
        return None
    return _refuse(
        UnitTooLargeError, "groups", f"rule {row.rule_id} has {now.open_groups} open groups here", arrival.marks
    )


def _whole_already(arrival: Arrival, now: Situation) -> Effect | None:
    """A group that is complete and waits takes no more; where the assembler numbers, the next generation opens instead."""
    if now.group is None or now.group.ruled is None or not now.group.ruled.waits_since:
        return None
    why = f"the unit is complete, and waits for {now.group.ruled.kept_by}"
    return _refuse(OutOfSequenceRangeError, "a", why, arrival.marks)


def _larger_than_all(arrival: Arrival, now: Situation) -> Effect | None:
    """`bytes(n, strict)`: one that is larger than n alone (B-40)."""
    limit = bytes_limit(now.row.complete_when) if now.row is not None else None
    size = len(arrival.value or b"")
    if limit is None or not limit.strict or size <= limit.n:
        return None
    return _refuse(UnitTooLargeError, "bytes", f"a value of {size} bytes, where a group has {limit.n}", arrival.marks)


class Line(NamedTuple):
    """A line of the decision table."""

    number: str
    judge: Callable[[Arrival, Situation], Effect | None]


LINES: tuple[Line, ...] = (
    Line("6", _misrouted),
    Line("8", _closed_complete),
    Line("9", _closed_otherwise),
    Line("10", _held_already),
    Line("11", _above_end),
    Line("12", _wrong_end),
)
LATE_LINES: tuple[Line, ...] = tuple([line for line in LINES if line.number not in ("8", "9")])
"""Asked of a component that may correct a unit: of the components that the unit has (B-205)."""
PIECE_LINES: tuple[Line, ...] = (
    Line("6", _misrouted),
    Line("8", _closed_complete),
    Line("9", _closed_otherwise),
    Line("10", _piece_held_already),
    Line("11", _above_end),
)
"""Asked of a piece of a component; once it is whole, the table is asked of the component (B-124)."""
RULE_LINES: tuple[Line, ...] = (
    Line("", _whole_already),
    Line("", _too_many_groups),
    Line("", _larger_than_all),
)
"""Asked besides of a component of a group by rule."""
ASSIGNED_LINES: tuple[Line, ...] = (Line("6", _misrouted), Line("10", _taken_already), *RULE_LINES)
"""Where the assembler numbers the components, lines 8 and 9 open the next generation, and 11 and 12 do not apply (aggregation, 4.3)."""


def decide_arrival(arrival: Arrival, now: Situation) -> Decision:
    """Lines 6 to 15 for one component."""
    if now.kept is not None:
        return _corrected(arrival, now, now.kept)
    return decide_before(arrival, now, LINES) or _hold(arrival, now)


def _corrected(arrival: Arrival, now: Situation, kept: Group) -> Decision:
    """A late component makes the unit once more, at once; where no unit can be made, it is refused as late (B-205)."""
    marks, again = arrival.marks, now._replace(group=kept)
    assert now.closed is not None
    if refused := decide_before(arrival, now, LATE_LINES, again):
        return refused
    decision = _hold(arrival, again)
    effect = decision.effects[0] if decision.effects else None
    why = ""
    if isinstance(effect, Undelivered):
        why = f"; with this component the group would have failed: {effect.closed.reason.value}"
    elif max(kept.deliver_at, marks.deliver_at) > now.clock:
        why = "; its time of delivery is not reached"
    if why:
        return Decision((), (_late(now.closed, marks, why),))
    closed = again.close(UnitOutcome.PARTIAL, now.closed.reason, now.clock)
    if isinstance(effect, Delivered):
        closed = effect.closed
    generation = kept.generation + 1
    closed = closed._replace(generation=generation, highest=max(kept.highest, marks.seq))
    return Decision((Corrected(marks.id, generation), decision.changes[0], closed), (Delivered(closed),))


def decide_before(
    arrival: Arrival, now: Situation, lines: Iterable[Line], looked_at: Situation | None = None
) -> Decision | None:
    """The decision of the first of these lines that answers.

    Args:
        arrival: The component.
        now: The state that it meets, from which follows what a refusal means.
        lines: In their order.
        looked_at: The state that the lines see, if it is another.
    """
    for line in lines:
        effect = line.judge(arrival, looked_at or now)
        if isinstance(effect, Rejected):
            return decide_refusal(effect.refusal, now)
        if effect is not None:
            return Decision((), (effect,))
    return None


def decide_given(arrival: Arrival, now: Situation) -> Decision:
    """All lines for a component of a group by rule that its sender numbered."""
    return decide_before(arrival, now, (*LINES, *RULE_LINES)) or _hold(arrival, now)


def decide_assigned(arrival: Arrival, now: Situation) -> Decision:
    """The rest for a component that the assembler has numbered: lines 13 to 15."""
    return _hold(arrival, now)


def decide_rolled_over(arrival: Arrival, now: Situation, roll_over_bytes: int) -> Decision | None:
    """The close of the open group before this component, which does not fit into it any more and opens the next one (B-40, B-59).

    Args:
        arrival: The component; its group is complete by bytes then.
        now: The state that it meets.
        roll_over_bytes: Bytes that all components of a group may have, encoded, so that its unit fits a record.
    """
    group, row, facts = now.group, now.row, arrival.facts
    if group is None or group.ruled is None or row is None or facts is None or not row.assigns:
        return None
    passes = group.bytes + facts.value_bytes > roll_over_bytes
    if not passes and not rolls_over(row, group.ruled.gathered, facts.value_bytes):
        return None
    if must_wait(row, group.deliver_at, now, place_of(group)):
        return Decision((Waits(group.id, group.generation, max(now.clock, 1)),))
    effect = Delivered(now.close(UnitOutcome.COMPLETE, Reason.BYTES, now.clock))
    return Decision((effect.closed,), (effect,))


def decide_oldest(now: Situation) -> Decision:
    """A group that makes room for another one of its rule is given up (`at_max_open_groups = "close_oldest"`, B-37)."""
    assert now.group is not None
    assert now.row is not None
    effect = _given_up(Reason.LIMIT, now.row.expiration_policy, now.clock, now)
    return Decision((effect.closed,), (effect,))


def other_rule(marks: Marks, group: Group) -> Refusal | None:
    """The refusal of a component that is of another rule than the open group of its id, or of none (B-112)."""
    of = group.ruled.policy.rule_id if group.ruled is not None else ""
    says = marks.routed.rule.partition("/")[0] if marks.routed is not None else ""
    if of == says:
        return None
    told = [f"rule {each}" if each else "no rule" for each in (of, says)]
    return Refusal(
        DecodeError, RULE, f"the open group of this id is of {told[0]}, the component of {told[1]}", marks.id
    )


def decide_refusal(refusal: Refusal, now: Situation) -> Decision:
    """A refused component: the group lives on (W-35), or fails with it under `fail_group` (W-39), but never on a wrong partition.

    Nor does a group fail whose components the assembler numbers: no component of it can violate its numbers.
    """
    rejected, group, closed, policy = Rejected(refusal), now.group, now.closed, now.policy
    fails = (
        policy.violation_policy is ViolationPolicy.FAIL_GROUP
        and not (now.assigns or (group is not None and group.assigns))
        and refusal.error in _VIOLATIONS
        and refusal.id is not None
        and now.home is None
    )
    if not fails or (group is None and closed is not None and policy.late_policy is not LatePolicy.REOPEN):
        return Decision((), (rejected,))
    if group is None:
        if closed is not None and closed.outcome is UnitOutcome.COMPLETE:
            return Decision((), (rejected,))
        assert refusal.id is not None
        end = now.unopened(refusal.id, UnitOutcome.FAILED, Reason.CONFLICT, now.clock)
    else:
        end = now.close(UnitOutcome.FAILED, Reason.CONFLICT, now.clock)
    return Decision((end,), (rejected, Undelivered(end, refusal.error)))


def hold_piece(arrival: Arrival, now: Situation) -> Decision:
    """Line 14 for a piece that does not make its component whole: its bytes count as those of components do."""
    marks = arrival.marks
    group, opened = _group_of(arrival, now)
    slot = FIRST_SLOT if group.segments is None else group.segments.next_slot
    changes: list[Change] = [*opened, HeldPiece(marks.id, slot, arrival.at, arrival.offset, arrival.body)]
    size = len(arrival.body)
    if not exceeds_limits(len(group.held), group.bytes + group.bytes_in_pieces() + size, size, now.policy):
        return Decision(tuple(changes))
    closed = Closed(marks.id, group.generation, UnitOutcome.FAILED, Reason.LIMIT, group.highest, now.before, now.clock)
    return Decision((*changes, closed), (Undelivered(closed, UnitTooLargeError),))


def pieces_given_up(group: Group, closed: Closed) -> list[TakenOut]:
    """The pieces of components that are not whole when their group closes: whatever becomes of it, they go to `D.errors` (B-124)."""
    if group.segments is None:
        return []
    outcome = UnitOutcome.FAILED if closed.outcome in DELIVERED else closed.outcome
    missing = group.missing()
    bodies = group.segments.bodies.values()
    return [TakenOut(body, missing, "its component is not whole", outcome, closed.reason) for body in bodies]


def _group_of(arrival: Arrival, now: Situation) -> tuple[Group, tuple[Opened, ...]]:
    """The open group; or an empty one, and the change that opens it."""
    if now.group is not None:
        return now.group, ()
    marks = arrival.marks
    generation = max(now.newest, now.closed.generation if now.closed is not None else 0) + 1
    opened_at = arrival.at if arrival.facts is None else arrival.facts.arrival
    group = Group(marks.id, generation, opened_at)
    if now.row is not None:
        group.rule(now.row)
    return group, (Opened(marks.id, generation, opened_at, b"" if now.row else marks.order_key, now.row),)


def _hold(arrival: Arrival, now: Situation) -> Decision:
    """Lines 13 to 15."""
    marks, policy = arrival.marks, now.policy
    group, opened = _group_of(arrival, now)
    generation = group.generation
    changes: list[Change] = [*opened]
    is_special = marks.special or group.segments is not None  # so that a restore finds the group special, too
    attributes = Attributes(marks.expires_at, marks.deliver_at, marks.total or 0) if is_special else None
    if attributes == _NO_ATTRIBUTES and now.row is not None:
        attributes = None
    tail = arrival.tail if marks.end else None
    changes.append(
        Held(
            marks.id,
            marks.seq,
            marks.end,
            arrival.at,
            arrival.offset,
            arrival.body,
            attributes,
            tail,
            arrival.external_bytes,
            arrival.facts,
        )
    )

    end = marks.seq if marks.end else marks.total or group.end
    size = len(group.held) + 1
    size_bytes = len(arrival.body) + arrival.external_bytes

    def close(outcome: UnitOutcome, reason: Reason) -> Closed:
        return Closed(
            marks.id,
            generation,
            outcome,
            reason,
            max(group.highest, marks.seq),
            now.before,
            now.clock,
            group.id_prints(marks.component_id) if outcome in DELIVERED else b"",
        )

    spared = group.spared(group.waived, end) - group.is_waived(marks.seq) if group.waived else 0
    effect: Delivered | Undelivered | Waits | None = None
    if marks.expires_at and marks.expires_at < now.clock:  # line 13
        effect = Undelivered(close(UnitOutcome.EXPIRED, Reason.COMPONENT_EXPIRED), ComponentExpiredError)
    elif exceeds_limits(
        size,
        group.bytes + group.bytes_in_pieces(marks.seq) + size_bytes,
        size_bytes,
        policy,
        gathers_replies=now.row is not None and now.row.gathers_replies,
    ):
        # line 14
        effect = Undelivered(close(UnitOutcome.FAILED, Reason.LIMIT), UnitTooLargeError)
    elif arrival.facts is not None:  # line 15 by the conditions of a row
        effect = _completed_by_rule(arrival, now, group, close, end, spared)
    elif (  # line 15: complete and ready
        is_complete(size, spared, end) and max(group.deliver_at, marks.deliver_at) <= now.clock and not now.waits
    ):
        if spared:
            effect = Delivered(close(UnitOutcome.PARTIAL, Reason.COMMAND))
        else:
            by_count = Reason.COMMAND if group.declared_end else Reason.COUNT
            closed = close(UnitOutcome.COMPLETE, Reason.END if marks.end or group.marked else by_count)
            effect = delivered(closed, group.held | {marks.seq: arrival.body}, policy)
    if effect is None:
        return Decision(tuple(changes))
    if isinstance(effect, Waits):
        return Decision((*changes, effect))
    return Decision((*changes, effect.closed), (effect,))


def _completed_by_rule(
    arrival: Arrival,
    now: Situation,
    group: Group,
    close: Callable[[UnitOutcome, Reason], Closed],
    end: int,
    spared: int,
) -> Delivered | Undelivered | Waits | None:
    """The unit of a group by rule, if the component in hand makes it complete; it waits if something keeps it."""
    marks, row, facts = arrival.marks, now.row, arrival.facts
    assert row is not None
    assert facts is not None
    by_end = Reason.END if marks.end or group.marked else Reason.COMMAND if group.declared_end else Reason.COUNT
    found = asked(row.complete_when, group.standing_with(marks.seq, end, by_end, spared, facts), row)
    if found.at > 0:
        return None
    if must_wait(row, max(group.deliver_at, marks.deliver_at), now, place_of(group)):
        return Waits(marks.id, group.generation, max(now.clock, 1))
    if spared:
        return Delivered(close(UnitOutcome.PARTIAL, Reason.COMMAND))
    return delivered(close(UnitOutcome.COMPLETE, found.reason), group.held | {marks.seq: arrival.body}, row)


def delivered(
    closed: Closed, bodies: Mapping[int, bytes], policy: DestinationPolicy, command: Command | None = None
) -> Delivered | Undelivered:
    """The unit; or the failure of a group that is whole, but not what its producer sent (W-212)."""
    if isinstance(policy, GroupPolicy) and (policy.assigns or max(bodies, default=0) != len(bodies)):
        # no component has a digest of the others; nor would one be known by its number
        return Delivered(closed, command)
    if closed.outcome is UnitOutcome.COMPLETE and not agrees(bodies):
        return Undelivered(closed._replace(outcome=UnitOutcome.FAILED, reason=Reason.DIGEST), UowError, command)
    if closed.outcome is UnitOutcome.COMPLETE and policy.tells_duplicates_apart:
        closed = closed._replace(prints=fingerprints(bodies))
    return Delivered(closed, command)


def must_wait(row: GroupPolicy, deliver_at: int, now: Situation, place: Place) -> bool:
    """True if a complete group of this row and place may not leave now (W-08, B-104, B-105, B-118)."""
    if deliver_at > now.clock or row.release is Release.HOLD_ALL:
        return True
    if row.delivers_in_order and (now.lets_go_first or now.is_behind(*place)):
        return True
    return row.release is Release.HOLD_FIRST and not now.credits


def decide_announced(now: Situation) -> Decision:
    """The unit of a group whose manifest came when enough of its replies were held; it waits if something keeps it."""
    group = now.group
    assert group is not None
    assert group.ruled is not None
    row = group.ruled.policy
    complete, _ = group.asked(row)
    if complete.at > 0:
        return Decision()
    if must_wait(row, group.deliver_at, now, place_of(group)):
        return Decision((Waits(group.id, group.generation, max(now.clock, 1)),))
    outcome, by_end = group.closing()
    reason = by_end if outcome is UnitOutcome.PARTIAL else complete.reason
    effect = delivered(now.close(outcome, reason, now.clock), group.held, row)
    return Decision((effect.closed,), (effect,))


def decide_released(now: Situation, command: Command | None = None) -> Decision:
    """A group that waited is let go, complete as it was."""
    effect = _let_go(now, now.clock, command)
    return Decision((effect.closed,), (effect,))


def _let_go(now: Situation, at: int, command: Command | None = None) -> Delivered | Undelivered:
    """The unit of a group that waited; it is partial if it is complete without a number that was waived."""
    group = now.group
    assert group is not None
    assert group.ruled is not None
    outcome, reason = group.closing()
    if outcome is UnitOutcome.COMPLETE:
        reason = group.complete_reason()
    return delivered(now.close(outcome, reason, at), group.held, group.ruled.policy, command)


def decide_crowded_out(now: Situation) -> Decision:
    """A group that waits leaves because too many do (B-107)."""
    group = now.group
    assert group is not None
    assert group.ruled is not None
    if group.ruled.policy.at_waiting_limit is AtWaitingLimit.DELIVER:
        return decide_released(now)
    effect = Undelivered(now.close(UnitOutcome.FAILED, Reason.LIMIT, now.clock), UowError)
    return Decision((effect.closed,), (effect,))


def decide_due(now: Situation) -> Decision:
    """The decision about an open group when the clock has moved: deliver it, give it up, or nothing yet (W-08, W-70 to W-77, W-207)."""
    group = now.group
    assert group is not None
    policy = group.policy(now.policy)
    due = group.closes_at(policy)
    if due > now.clock:
        return _warning(group, policy, now) if group.due_at(policy) <= now.clock else Decision()
    effect: Delivered | Undelivered
    if group.expires_at and due == group.expires_at + 1:
        effect = Undelivered(now.close(UnitOutcome.EXPIRED, Reason.COMPONENT_EXPIRED, due), ComponentExpiredError)
    elif isinstance(policy, GroupPolicy):
        found = _due_by_rule(group, policy, due, now)
        if isinstance(found, Amended | Waits):
            return Decision((found,))
        effect = found._replace(decided_at=now.clock)
    elif group.complete:
        effect = delivered(now.close(*group.closing(), due), group.held, policy)
    else:
        effect = _given_up(group.give_up_reason(policy), policy.expiration_policy, due, now)
    return Decision((effect.closed,), (effect,))


def _warning(group: Group, policy: DestinationPolicy, now: Situation) -> Decision:
    """Tells the lack of an open group while there is time left for it (B-202)."""
    limit = min(group.limits(policy), key=_limit_at)
    sources: tuple[str, ...] = ()
    if (ruled := group.ruled) is not None:
        waited_for = (each for each in ruled.policy.sources if satisfied_at(each, ruled.gathered) > now.clock)
        sources = tuple([each.source_name for each in waited_for])
    missing = () if group.assigns else group.missing()
    told = DeadlineWarning(now.clock, limit.at, limit.reason, len(group.held), missing, sources)
    return Decision((Warned(group.id, now.clock),), (told,))


_limit_at = attrgetter("at")


def _given_up(reason: Reason, by: ExpirationPolicy, at: int, now: Situation) -> Delivered | Undelivered:
    assert now.group is not None
    if by is ExpirationPolicy.DELIVER_PARTIAL and now.group.has_unit:
        return Delivered(now.close(UnitOutcome.PARTIAL, reason, at))
    return Undelivered(now.close(UnitOutcome.EXPIRED, reason, at), UowError)


def _due_by_rule(
    group: Group, policy: GroupPolicy, due: int, now: Situation
) -> Delivered | Undelivered | Amended | Waits:
    """The same for a group by rule; with fewer than `min_count` it is no unit, or gets one more age (B-50)."""
    complete, give_up = group.asked(policy)
    assert group.ruled is not None
    by_change = (
        complete.at == 0 and not group.ruled.waits_since
    )  # nothing else makes a group whole while nothing arrives (B-13)
    due = due or now.clock
    if group.ruled.waits_since:
        most = None if policy.release is Release.AUTO else policy.waiting_age_ms  # its time alone limits that
        is_too_old = most is not None and due == group.ruled.waits_since + most + 1
        if is_too_old and policy.at_waiting_limit is AtWaitingLimit.REDIRECT:
            return Undelivered(now.close(UnitOutcome.FAILED, Reason.LIMIT, due), UowError)
        return _let_go(now, due)
    if complete.at == 0 or complete.at < give_up.at:
        if must_wait(policy, group.deliver_at, now, place_of(group)):
            return Waits(group.id, group.generation, max(due, 1))
        outcome, by_end = group.closing()
        reason = by_end if outcome is UnitOutcome.PARTIAL else Reason.COMMAND if by_change else complete.reason
        return delivered(now.close(outcome, reason, due), group.held, policy)
    if group.ruled.awaits_manifest:
        return _given_up(give_up.reason, ExpirationPolicy.REDIRECT, due, now)
    if len(group.held) >= policy.min_count or (group.ruled.called is not None and policy.min_count == 1):  # (B-84)
        return _given_up(give_up.reason, policy.expiration_policy, due, now)
    if policy.below_min is BelowMin.EXTEND and policy.age_ms is not None:
        ages = max(1, -(-(now.clock - give_up.at + 1) // policy.age_ms))  # as many as it takes, in one record
        return Amended(group.id, group.declared_end, group.waived, give_up.at - 1 + ages * policy.age_ms)
    return _given_up(give_up.reason, ExpirationPolicy.REDIRECT, due, now)
