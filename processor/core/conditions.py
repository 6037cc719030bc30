"""Asking the conditions of a group: what makes it complete, and what gives it up. Nobody else asks. Pure.

A condition is asked for the moment from which it holds if nothing more arrives. So one question serves an arriving component (does it hold
now?) and the line of deadlines (when must the group be looked at?), and time and content mix freely in `any` and `all`.

Belongs here: the meaning of each condition. Does not belong here: what follows from it (`decide`), its text (`uow.processor.rules`).
"""

from __future__ import annotations

from typing import Final, NamedTuple, assert_never

from uow.processor.core.gathered import NEVER, Called, Gathered, all_satisfied_at
from uow.schemas.records import Reason
from uow.topics.conditions import (
    Age,
    AllOf,
    AnyOf,
    At,
    Behind,
    ByCommand,
    Bytes,
    ComponentDeadline,
    Condition,
    Count,
    EndFlagWithoutGaps,
    Idle,
    Manifest,
    Not,
    PerSource,
    Predicate,
    Timeout,
    Urgent,
    alternatives,
)
from uow.topics.grouping import GroupPolicy


def is_complete(count: int, spared: int, end: int) -> bool:
    """`end_flag_without_gaps`: True if a group has every number (W-15, W-203).

    Args:
        count: Components held; their numbers are distinct and not above the end.
        spared: Numbers up to the end that are not held and not needed.
        end: The highest number, or `UNKNOWN_END`: a group is never complete then, since it holds fewer components than that.
    """
    return count + spared == end


class Standing(NamedTuple):
    """How a group stands, with the component in hand or without it.

    Attributes:
        size: Components held.
        spared: Numbers up to the end that are neither held nor needed.
        end: The highest number, or `UNKNOWN_END`.
        end_reason: Reason of a group that is complete by its end.
        gathered: What its components brought.
        called: The manifest of the replies that it holds, if one has come.
        deadlines: The deadline that each calendar of its row named when it opened, epoch ms.
        weight: Of the requests of a manifest with weights that are answered, or need not be.
    """

    size: int
    spared: int
    end: int
    end_reason: Reason
    gathered: Gathered
    called: Called | None = None
    deadlines: tuple[int, ...] = ()
    weight: int = 0

    @property
    def first_at(self) -> int:
        """From when the age counts; the manifest counts like an arrival."""
        return self.gathered.first_at if self.called is None else min(self.gathered.first_at, self.called.at)

    @property
    def last_at(self) -> int:
        """The latest arrival, or the manifest."""
        return self.gathered.last_at if self.called is None else max(self.gathered.last_at, self.called.at)


class Holding(NamedTuple):
    """From when a condition holds if nothing more arrives.

    Attributes:
        at: A clock value, epoch ms; 0: it holds already; `NEVER`: not by time alone.
        reason: The reason that the group closes for then.
    """

    at: int
    reason: Reason


_NOT_YET: Final = Holding(NEVER, Reason.COMMAND)


def asked(condition: Condition, of: Standing, policy: GroupPolicy) -> Holding:
    """From when the condition holds. Limits are passed strictly after them, so one millisecond later."""
    gathered = of.gathered
    match condition:
        case EndFlagWithoutGaps():
            return Holding(0 if is_complete(of.size, of.spared, of.end) else NEVER, of.end_reason)
        case Count(n):
            return Holding(0 if of.size >= n else NEVER, Reason.COUNT)
        case Bytes(n):  # a group leaves before it passes them, so it is one component that is larger alone (B-40)
            return Holding(0 if gathered.value_bytes > n else NEVER, Reason.BYTES)
        case Predicate() | Urgent():
            return Holding(0 if _is_measured(condition.name, gathered, policy) else NEVER, Reason.PREDICATE)
        case Age() | Idle() | At() | Behind() | ComponentDeadline() | Timeout():
            return _by_time(condition, of, policy)
        case AnyOf(several):
            return min((asked(each, of, policy) for each in several), key=_at, default=_NOT_YET)
        case AllOf(several):  # of several moments the last one; of equal ones that which was asked last
            return max(enumerate([asked(each, of, policy) for each in several]), key=_later, default=(0, _NOT_YET))[1]
        case Not(one):
            found = asked(one, of, policy)
            return found._replace(at=0 if found.at > of.last_at else NEVER)
        case PerSource():
            return Holding(all_satisfied_at(policy.sources, gathered), Reason.SOURCES)
        case Manifest(k):
            return Holding(0 if _is_answered(k, of) else NEVER, Reason.MANIFEST)
        case ByCommand():
            return _NOT_YET
        case _:
            assert_never(condition)


def _is_answered(quorum: int | None, of: Standing) -> bool:
    """True if replies of this weight are held, or all of them; earlier releases took calls that weigh less than the quorum."""
    if of.called is None:
        return False
    whole = of.called.weight
    return (of.weight if of.called.weights else of.size + of.spared) >= min(quorum or whole, whole)


def _by_time(
    condition: Age | Idle | At | Behind | ComponentDeadline | Timeout, of: Standing, policy: GroupPolicy
) -> Holding:
    match condition:
        case Age(ms):
            return Holding(min(of.first_at + ms + 1, NEVER), Reason.AGE)
        case Idle(ms):
            return Holding(of.last_at + ms + 1, Reason.IDLE)
        case At(text):
            named = zip(policy.calendars, of.deadlines, strict=True)
            return Holding(next(at for (name, _), at in named if name == text) + 1, Reason.AGE)
        case Behind(percent):
            return Holding(_behind_at(percent, of, policy), Reason.IDLE)
        case ComponentDeadline():
            return Holding(min(of.gathered.limit_at + 1, NEVER), Reason.AGE)
        case Timeout(ms):
            since = of.first_at
            if of.called is not None and of.called.timeout_ms is not None:
                since, ms = of.called.at, of.called.timeout_ms
            return Holding(min(since + ms + 1, NEVER) if ms else NEVER, Reason.AGE)
        case _:
            assert_never(condition)


def _behind_at(percent: int, of: Standing, policy: GroupPolicy) -> int:
    """From when so few components are held that at their pace less than `percent` of the count would be there at the deadline.

    With n components since the first arrival f the pace at t is n / (t - f), and n * (deadline - f) / (t - f) would be there. Never after the deadline.
    """
    wanted = count_of(policy.complete_when)
    limits = [each for each in alternatives(policy.give_up_when) if isinstance(each, Age | At | ComponentDeadline)]
    due = min([asked(each, of, policy).at for each in limits], default=NEVER)
    if wanted is None or due >= NEVER:
        return NEVER
    since = of.gathered.arrived_at
    return min(due, since + max(0, due - 1 - since) * of.size * 100 // (wanted * percent) + 1)


def _is_measured(wanted: str, gathered: Gathered, policy: GroupPolicy) -> bool:
    several = zip(policy.measures, gathered.tallies, strict=False)
    return any(name == wanted and measure.holds(tallies) for (name, measure), tallies in several)


def _at(holding: Holding) -> int:
    return holding.at


def _later(place: tuple[int, Holding]) -> tuple[int, int]:
    return place[1].at, place[0]


def rolls_over(policy: GroupPolicy, gathered: Gathered, value_bytes: int) -> bool:
    """True if a component with so long a value must not join: the group closes before it, and the next one opens with it (B-40)."""
    limit = bytes_limit(policy.complete_when)
    return limit is not None and gathered.value_bytes + value_bytes > limit.n


def bytes_limit(condition: Condition) -> Bytes | None:
    """The `bytes` that closes a group by itself; the smallest, if there are several."""
    match condition:
        case Bytes():
            return condition
        case AnyOf(several):
            found = [limit for each in several if (limit := bytes_limit(each)) is not None]
            return min(found, key=_bytes, default=None)
        case _:
            return None


def _bytes(limit: Bytes) -> int:
    return limit.n


def count_of(condition: Condition) -> int | None:
    """The number of components that completes a group by itself; the smallest, if there are several: what a partial one lacked."""
    match condition:
        case Count(n):
            return n
        case AnyOf(several):
            return min([each for each in map(count_of, several) if each is not None], default=None)
        case _:
            return None
