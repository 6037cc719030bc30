"""The decision table (`docs/decision-table.md`) as data: what one arriving component, or the clock, means for its group. Pure.

Lines 1 to 5b are read off the headers (`uow.topics.headers.Reading`), line 7 off the offset (`partition`); lines 6 and 8 to 14 are the rows
of `LINES` below, tried in this order, the first that answers decides (W-38); line 15 is `_hold`.

Belongs here: every rule about a group. Does not belong here: changing it (`Group.apply`), or anything that needs a broker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from uow.processor.core.changes import (
    Change,
    Closed,
    Decision,
    Delivered,
    Dropped,
    Effect,
    Held,
    Opened,
    Rejected,
    Rerouted,
    Tail,
    Undelivered,
)
from uow.processor.core.digest_check import agrees
from uow.processor.core.group import UNKNOWN_END, Group, exceeds_limits, is_complete
from uow.schemas.claim_check import has_value
from uow.schemas.component import component_id_of
from uow.schemas.error_classes import (
    BadSequenceNumberError,
    ComponentExpiredError,
    DuplicateSequenceNumberError,
    MisroutedComponentError,
    OutOfSequenceRangeError,
    UnitClosedError,
    UnitConflictError,
    UnitTooLargeError,
    UowError,
)
from uow.schemas.fingerprint import case_of, fingerprints
from uow.schemas.records import Attributes, Reason, UnitOutcome
from uow.topics.commands import Command
from uow.topics.headers import Marks, Refusal
from uow.topics.policies import (
    DestinationPolicy,
    DuplicatePolicy,
    ExpirationPolicy,
    LatePolicy,
    ViolationPolicy,
)


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
    """

    marks: Marks
    offset: int
    at: int
    value: bytes | None
    body: bytes
    tail: Tail | None
    external_bytes: int = 0


class Situation(NamedTuple):
    """The state that an event meets: all that may be looked at to decide what it means.

    Attributes:
        group: The open group of its id, or None.
        closed: The last closed group of its id, as far as it is remembered, or None.
        home: The partition its id belongs to if that is another one, else None; asked only where no group is open.
        clock: The partition's clock, epoch ms; not before the append time of a component.
        before: Input position once the event is dealt with: whatever is held lies before it.
        policy: Of the destination.
        waits: True if an earlier group of the order key is open (W-210).
    """

    group: Group | None
    closed: Closed | None
    home: int | None
    clock: int
    before: int
    policy: DestinationPolicy
    waits: bool = False

    @property
    def end(self) -> int:
        """The group's end, `UNKNOWN_END` until known."""
        return self.group.end if self.group is not None else UNKNOWN_END

    def close(self, outcome: UnitOutcome, reason: Reason, at: int) -> Closed:
        """The close of the open group at this moment."""
        assert self.group is not None
        group = self.group
        return Closed(group.id, group.generation, outcome, reason, group.highest, self.before, at)

    def unopened(self, group_id: bytes, outcome: UnitOutcome, reason: Reason, at: int) -> Closed:
        """The close of an id of which nothing is held: its group, the next after the one that is remembered, never opens."""
        generation = self.closed.generation + 1 if self.closed is not None else 1
        return Closed(group_id, generation, outcome, reason, 0, self.before, at)


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
    if arrival.marks.seq > now.closed.highest:
        return _refuse(
            OutOfSequenceRangeError,
            "a",
            f"the unit ended at {now.closed.highest}",
            arrival.marks,
        )
    case, marks = "duplicate", arrival.marks
    if now.closed.prints:
        case = case_of(now.closed.prints, now.closed.highest, marks.seq, marks.component_id, arrival.value)
        if case != "conflict" and now.policy.duplicate_policy is DuplicatePolicy.DROP_IDENTICAL:
            return Dropped(case)
    return _refuse(DuplicateSequenceNumberError, case, "the unit is delivered already", marks)


def _closed_otherwise(arrival: Arrival, now: Situation) -> Effect | None:
    """Line 9; `late_policy = "reopen"` lets a new group open instead (W-85)."""
    if now.group is not None or now.closed is None or now.policy.late_policy is LatePolicy.REOPEN:
        return None
    return _refuse(
        UnitClosedError,
        now.closed.outcome.value,
        f"reason {now.closed.reason.value}",
        arrival.marks,
    )


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
        case, detail = ("duplicate", "") if same_bytes else ("conflict", "")
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


def decide_arrival(arrival: Arrival, now: Situation) -> Decision:
    """Lines 6 to 15 for one component."""
    for line in LINES:
        effect = line.judge(arrival, now)
        if isinstance(effect, Rejected):
            return decide_refusal(effect.refusal, now)
        if effect is not None:
            return Decision((), (effect,))
    return _hold(arrival, now)


def decide_refusal(refusal: Refusal, now: Situation) -> Decision:
    """A refused component: the group lives on (W-35), or fails with it under `fail_group` (W-39), but never on a wrong partition."""
    rejected, group, closed, policy = Rejected(refusal), now.group, now.closed, now.policy
    fails = (
        policy.violation_policy is ViolationPolicy.FAIL_GROUP
        and refusal.error in _VIOLATIONS
        and refusal.id is not None
        and now.home is None
    )
    if not fails or (group is None and closed is not None and policy.late_policy is LatePolicy.REJECT):
        return Decision((), (rejected,))
    if group is None:
        if closed is not None and closed.outcome is UnitOutcome.COMPLETE:
            return Decision((), (rejected,))
        assert refusal.id is not None
        end = now.unopened(refusal.id, UnitOutcome.FAILED, Reason.CONFLICT, now.clock)
    else:
        end = now.close(UnitOutcome.FAILED, Reason.CONFLICT, now.clock)
    return Decision((end,), (rejected, Undelivered(end, refusal.error)))


def _hold(arrival: Arrival, now: Situation) -> Decision:
    """Lines 13 to 15."""
    marks, policy, group = arrival.marks, now.policy, now.group
    changes: list[Change] = []
    generation = group.generation if group is not None else 1
    if group is None:
        if now.closed is not None:
            generation = now.closed.generation + 1
        changes.append(Opened(marks.id, generation, arrival.at, marks.order_key))
        group = Group(marks.id, generation, arrival.at)
    attributes = Attributes(marks.expires_at, marks.deliver_at, marks.total or 0) if marks.special else None
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
        )

    spared = group.spared(group.waived, end) - group.is_waived(marks.seq) if group.waived else 0
    effect: Delivered | Undelivered | None = None
    if marks.expires_at and marks.expires_at < now.clock:  # line 13
        effect = Undelivered(close(UnitOutcome.EXPIRED, Reason.COMPONENT_EXPIRED), ComponentExpiredError)
    elif exceeds_limits(size, group.bytes + size_bytes, size_bytes, policy):  # line 14
        effect = Undelivered(close(UnitOutcome.FAILED, Reason.LIMIT), UnitTooLargeError)
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
    return Decision((*changes, effect.closed), (effect,))


def delivered(
    closed: Closed, bodies: Mapping[int, bytes], policy: DestinationPolicy, command: Command | None = None
) -> Delivered | Undelivered:
    """The unit; or the failure of a group that is whole, but not what its producer sent (W-212)."""
    if closed.outcome is UnitOutcome.COMPLETE and not agrees(bodies):
        return Undelivered(closed._replace(outcome=UnitOutcome.FAILED, reason=Reason.DIGEST), UowError, command)
    if closed.outcome is UnitOutcome.COMPLETE and policy.tells_duplicates_apart:
        closed = closed._replace(prints=fingerprints(bodies))
    return Delivered(closed, command)


def decide_due(now: Situation) -> Decision:
    """The decision about an open group when the clock has moved: deliver it, give it up, or nothing yet (W-08, W-70 to W-77, W-207)."""
    group, policy = now.group, now.policy
    assert group is not None
    due = group.due_at(policy)
    if due > now.clock:
        return Decision()
    effect: Delivered | Undelivered
    if group.expires_at and due == group.expires_at + 1:
        effect = Undelivered(now.close(UnitOutcome.EXPIRED, Reason.COMPONENT_EXPIRED, due), ComponentExpiredError)
    elif group.complete:
        effect = delivered(now.close(*group.closing(), due), group.held, policy)
    else:
        reason = group.give_up_reason(policy)
        if policy.expiration_policy is ExpirationPolicy.DELIVER_PARTIAL:
            effect = Delivered(now.close(UnitOutcome.PARTIAL, reason, due))
        else:
            effect = Undelivered(now.close(UnitOutcome.EXPIRED, reason, due), UowError)
    return Decision((effect.closed,), (effect,))
