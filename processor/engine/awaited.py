"""The wait of an open group, in words: "why is this group not out yet?" (B-201), and what its deadline comes from.

Belongs here: the sentences, and how many components each source lacks. Does not belong here: when a group is complete
(`uow.processor.core.conditions`), and printing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, assert_never

from uow.processor.core.conditions import asked
from uow.processor.core.gathered import NEVER, Ruled, satisfied_at
from uow.processor.core.group import Group
from uow.schemas.records import MAX_SEQ, Reason, ranges_text
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
from uow.topics.manifests import RequestEntry, read_manifest
from uow.topics.policies import DestinationPolicy
from uow.topics.rules import Release

MOST_REPLIES: Final = 20
"""Missing replies that are named; the rest is counted."""


class SourceState(NamedTuple):
    """A source of a collection.

    Attributes:
        name: Its name.
        held: Components that it gave.
        quantity: Components that it is to give; None: as many as come until its wait is over.
        is_satisfied: True if the collection waits for it no longer, as of the moment that was asked about.
    """

    name: str
    held: int
    quantity: int | None
    is_satisfied: bool


def sources(group: Group, now_ms: int) -> tuple[SourceState, ...]:
    """The sources of a collection at a moment, by name; none for any other group."""
    ruled = group.ruled
    if ruled is None:
        return ()
    return tuple(
        SourceState(
            each.source_name,
            ruled.gathered.source(each.source_name).components,
            each.quantity or None,
            satisfied_at(each, ruled.gathered) <= now_ms,
        )
        for each in ruled.policy.sources
    )


def awaited(group: Group, now_ms: int) -> str:
    """The components, source or event that an open group waits for; its own limit of time besides."""
    if group.waits:
        return "an earlier group of its order key"
    ruled = group.ruled
    if ruled is not None and ruled.waits_since:
        return _release(group, ruled)
    if group.complete:
        return "its uow-deliver-at"
    if ruled is None:
        return _numbers(group)
    return _text(ruled.policy.complete_when, group, ruled, now_ms) or "its limit of time"


def _numbers(group: Group) -> str:
    lacking = group.missing()
    if group.segments is not None:
        in_part = ", ".join(map(str, group.segments.numbers()[:MOST_REPLIES]))
        return f"numbers {ranges_text(lacking)}; in part there: {in_part}"
    if len(lacking) == 1 and lacking[0].last == MAX_SEQ:
        return "its end"
    return f"numbers {ranges_text(lacking)}"


def _release(group: Group, ruled: Ruled) -> str:
    policy = ruled.policy
    if policy.release is Release.AUTO:
        return ruled.kept_by
    by_clock = ruled.leaves_at(group.deliver_at) < NEVER
    return f"a release of rule {policy.rule_id}{', or its time' * by_clock}"


def _text(condition: Condition, group: Group, ruled: Ruled, now_ms: int) -> str:
    """The part of a condition that does not hold yet; empty for limits of time."""
    match condition:
        case AnyOf(several):
            return " or ".join(_parts(several, group, ruled, now_ms))
        case AllOf(several):
            return " and ".join(_parts(several, group, ruled, now_ms))
        case Count(n):
            return _counted(max(0, n - len(group.held)), "more component")
        case Bytes(n):
            return f"{n} bytes of values, {ruled.gathered.value_bytes} are held"
        case PerSource():
            return ", ".join(_source(each) for each in sources(group, now_ms) if not each.is_satisfied)
        case EndFlagWithoutGaps():
            return _numbers(group)
        case Predicate() | Urgent():
            return condition.name
        case Manifest(k):
            return _replies(k, group, ruled)
        case ByCommand():
            return "a command"
        case Not():
            return "a condition that must not hold"
        case Age() | Idle() | At() | Behind() | ComponentDeadline() | Timeout():
            return ""
        case _:
            assert_never(condition)


def deadline_by(group: Group, policy: DestinationPolicy) -> str:
    """The setting, condition or header that the deadline of an open group comes from; empty if it has none."""
    due, ruled = group.closes_at(policy), group.ruled
    if due >= NEVER:
        return ""
    if group.expires_at and due == group.expires_at + 1:
        return "uow-expires-at"
    if ruled is not None and ruled.waits_since and ruled.policy.release is not Release.AUTO:
        return "release_every_ms or waiting_age_ms"
    if group.complete:
        return "uow-deliver-at"
    if group.extended and due == group.extended + 1:
        return "a command"
    if ruled is None:
        return "incomplete_expiration_ms" if group.give_up_reason(policy) is Reason.AGE else "idle_expiration_ms"
    if ruled.awaits_manifest:
        return "reply_hold_ms"
    standing = group.standing()
    of = ruled.policy
    return _name(min(alternatives(of.give_up_when), key=lambda each: asked(each, standing, of).at))


def _name(limit: Condition) -> str:
    match limit:
        case Age(ms):
            return f"age({ms})"
        case Idle(ms):
            return f"idle({ms})"
        case At(text):
            return f"at({text})"
        case Behind(percent):
            return f"behind({percent})"
        case ComponentDeadline():
            return "uow-delay-ms"
        case Timeout():
            return "the timeout of its call"
        case _:
            return "give_up_when"


def _replies(quorum: int | None, group: Group, ruled: Ruled) -> str:
    if ruled.called is None:
        return "its manifest"
    requests, lacking = read_manifest(ruled.called.text).requests, group.unanswered()
    named = [f"{number} ({_request(requests[number - 1])})" for number in lacking[:MOST_REPLIES]]
    more = f" and {len(lacking) - MOST_REPLIES} more" * (len(lacking) > MOST_REPLIES)
    enough = f"; a weight of {quorum - group.weight(group.waived)} is enough" if quorum and ruled.called.weights else ""
    return f"replies to requests {', '.join(named)}{more}{enough}"


def _request(request: RequestEntry) -> str:
    return request.folder if request.weight == 1 else f"{request.folder}, weight {request.weight}"


def _parts(conditions: Sequence[Condition], group: Group, ruled: Ruled, now_ms: int) -> list[str]:
    return [text for each in conditions if (text := _text(each, group, ruled, now_ms))]


def _source(each: SourceState) -> str:
    if each.quantity is None:
        return f"the time of source {each.name}"
    return f"{_counted(each.quantity - each.held, 'component')} of source {each.name}"


def _counted(count: int, name: str) -> str:
    return f"{count} {name}{'s' * (count != 1)}"
