"""The meaning of commands, as a table: one row per verb (W-203). Pure, as `decide` is for components and the clock.

Every command is answered. It acts on an open group of its id; what cannot be done is said and changes nothing. `cancel` alone also acts on an
id of which nothing is known: it closes, so that components on their way are late when they come. A dry run is decided like any other, and
then dropped. `uow-until` and numbers are read in `uow.topics.commands`.

Belongs here: every rule about a command. Does not belong here: changing a group (`Group.apply`), remembering commands (`closed`), and
what an answer looks like on the wire (`uow.processor.engine.outputs`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from uow.processor.core.changes import (
    Amended,
    Announced,
    Change,
    Closed,
    Decision,
    Delivered,
    Erased,
    Opened,
    Removed,
    TakenOut,
    Undelivered,
)
from uow.processor.core.conditions import asked, count_of, is_complete
from uow.processor.core.decide import Situation, decide_released, delivered
from uow.processor.core.erasure import is_erased, without_payload
from uow.processor.core.gathered import NEVER, Called, Ruled
from uow.processor.core.group import UNKNOWN_END, Group, missing_numbers
from uow.processor.core.ranges import (
    Ranges,
    those_in,
    union,
    without,
)
from uow.schemas.component import decode_component, encode_component
from uow.schemas.error_classes import UowError
from uow.schemas.records import (
    ComponentRecord,
    Reason,
    UnitOutcome,
    bounded_ranges,
    ranges_text,
)
from uow.topics.commands import Command, Verb
from uow.topics.grouping import GroupPolicy
from uow.topics.headers import (
    ERASED,
    ID,
    SEQ,
    Marks,
    Reading,
)
from uow.topics.manifests import Manifest
from uow.topics.policies import (
    DestinationPolicy,
    ExpirationPolicy,
    HandlingPolicy,
    LatePolicy,
)

MAX_WAIVED_RANGES: Final = 1_000
"""Ranges of waived numbers that a group keeps at most: each later command writes them all once more, into one row (W-203)."""


class CommandVerdict(NamedTuple):
    """The decision about a command.

    Attributes:
        obeyed: True if it can be done.
        text: Its effect, or the reason why it cannot be done.
        decision: Changes and effects; empty where it cannot be done.
    """

    obeyed: bool
    text: str
    decision: Decision = Decision()


class Case(NamedTuple):
    """Everything a verb may look at.

    Attributes:
        command: The command.
        group: The open group of its id.
        at: Its append time, epoch ms.
        situation: The state that it meets.
    """

    command: Command
    group: Group
    at: int
    situation: Situation

    @property
    def policy(self) -> DestinationPolicy:
        """Of the destination, or of the group's row."""
        return self.group.policy(self.situation.policy)

    @property
    def now(self) -> int:
        """The command's moment."""
        return max(self.at, self.situation.clock)

    def close(self, outcome: UnitOutcome) -> Closed:
        """The group's close by this command."""
        return self.situation.close(outcome, Reason.COMMAND, self.now)


def _refused(why: str) -> CommandVerdict:
    return CommandVerdict(False, why)


def _counted(group: Group) -> str:
    return f"{len(group.held)} component{'s' * (len(group.held) != 1)}"


def _lacking(missing: Ranges) -> str:
    return f", missing {ranges_text(bounded_ranges(missing))}" if missing else ""


def _delivered(case: Case) -> CommandVerdict:
    group = case.group
    is_whole = group.complete if group.assigns else not group.missing()
    outcome = UnitOutcome.COMPLETE if is_whole else UnitOutcome.PARTIAL
    effect = delivered(case.close(outcome), group.held, case.policy, case.command)
    text = _differs(effect) or f"delivers {_counted(group)}, {outcome}{_lacking(group.missing())}"
    return CommandVerdict(True, text, Decision((effect.closed,), (effect,)))


def _differs(effect: Delivered | Undelivered) -> str:
    return "fails the group: its components do not agree with uow-digest" if isinstance(effect, Undelivered) else ""


def _given_up(case: Case, outcome: UnitOutcome, where: str) -> CommandVerdict:
    closed = case.close(outcome)
    text = f"closes the group as {outcome}: {_counted(case.group)} {where}{_lacking(case.group.missing())}"
    return CommandVerdict(True, text, Decision((closed,), (Undelivered(closed, UowError, case.command),)))


def _release(case: Case) -> CommandVerdict:
    """Deliver now what is held; not what is not available yet (W-08). A group by rule that is complete and waits is let go (B-106)."""
    if case.group.waits:
        return _refused(_NOT_ITS_TURN)
    if case.group.deliver_at > case.now:
        return _refused(
            f"a component is not available before {case.group.deliver_at} (uow-deliver-at): release it then"
        )
    if case.group.ruled is not None and case.group.ruled.waits_since:
        released = decide_released(case.situation, case.command)
        return CommandVerdict(True, f"delivers {_counted(case.group)}, which waited", released)
    return _delivered(case)


def _cancel(case: Case) -> CommandVerdict:
    """Close as `cancelled`; the components go to `D.errors` (W-62)."""
    return _given_up(case, UnitOutcome.CANCELLED, "to the errors topic")


def _fail(case: Case) -> CommandVerdict:
    """Close as `failed`: a router could not transform a record that was for it (B-26). One that is complete and waits lacks none."""
    if case.group.ruled is not None and case.group.ruled.waits_since:
        return _refused(_is_whole(case.group.ruled))
    return _given_up(case, UnitOutcome.FAILED, "to the errors topic")


_NOT_ITS_TURN: Final = "an earlier group of its order key is open and must be delivered first"

_NUMBERED_HERE: Final = (
    "its rule lets components be numbered as they arrive, so no number is awaited: release, expire or cancel the group"
)

_FATES: Final = {
    ExpirationPolicy.DISCARD: "discarded",
    ExpirationPolicy.LOG: "logged and discarded",
    ExpirationPolicy.REDIRECT: "to the errors topic",
    ExpirationPolicy.DELIVER_PARTIAL: "whole, so that there is no unit",
}


def _is_whole(ruled: Ruled) -> str:
    return f"the group is complete, and waits for {ruled.kept_by}"


def _expire(case: Case) -> CommandVerdict:
    """Close now, by `expiration_policy`."""
    if case.policy.expiration_policy is ExpirationPolicy.DELIVER_PARTIAL and case.group.has_unit:
        return _release(case)
    return _given_up(case, UnitOutcome.EXPIRED, _FATES[case.policy.expiration_policy])


def _extend(case: Case) -> CommandVerdict:
    """Move the age or idle deadline later; a component's own expiry never moves."""
    group, until = case.group, case.command.until
    if group.complete:
        return _refused("no number is missing, so neither age nor idleness counts any more")
    due, reason = group.give_up_at(case.policy), group.give_up_reason(case.policy)
    if due >= NEVER:
        return _refused(
            "the destination has neither incomplete_expiration_ms nor idle_expiration_ms: nothing to extend"
        )
    if until < due:
        return _refused(f"the {reason} deadline is {due - 1}; it only ever moves later")
    text = f"moves the {reason} deadline from {due - 1} to {until}"
    if group.expires_at and group.expires_at < until:
        text += f"; a component expires at {group.expires_at} all the same"
    return CommandVerdict(True, text, _amended(group, extended=until))


def _declare_end(case: Case) -> CommandVerdict:
    """Set the end; the group may be complete by it."""
    group, end = case.group, case.command.numbers[0].first
    if group.assigns:
        return _refused(_NUMBERED_HERE)
    if group.ruled is not None and group.ruled.policy.gathers_replies:
        return _refused("its manifest alone says how many replies there are; waive those that are not needed")
    if end < group.highest:
        return _refused(f"number {group.highest} is held: the end cannot be {end}")
    if group.marked and end != group.end:
        return _refused(f"the end component is held: the unit ends at {group.end}")
    if end == group.end:
        return _refused(f"the unit ends at {end} already")
    return _completed_by(case, f"the unit ends at {end}", _amended(group, declared_end=end), end, group.waived)


def _waive(case: Case) -> CommandVerdict:
    """Numbers that are missing are not needed."""
    group, numbers = case.group, case.command.numbers
    if group.assigns:
        return _refused(_NUMBERED_HERE)
    held = min(those_in(numbers, group.held), default=None)
    if held is not None:
        return _refused(f"number {held} is held: cancel the group, or leave it")
    if group.end_known and numbers[-1].last > group.end:
        return _refused(f"the unit ends at {group.end}")
    waived = union(group.waived, numbers)
    if waived == group.waived:
        return _refused("waived already")
    if len(waived) > MAX_WAIVED_RANGES:
        return _refused(f"{_too_many(waived)}: waive what lies between as well, or release or cancel the group")
    text = f"waives {ranges_text(numbers)}"
    return _completed_by(case, text, _amended(group, waived=waived), group.end, waived)


def _too_many(waived: Ranges) -> str:
    return f"the group would have {len(waived)} separate ranges of waived numbers, and at most {MAX_WAIVED_RANGES} are kept"


def _remove(case: Case) -> CommandVerdict:
    """Take one held component out; its number may be sent again (W-76). One that is complete and waits takes none any more, so it would leave without."""
    group, seq = case.group, case.command.numbers[0].first
    if seq not in group.held:
        return _refused(f"number {seq} is not held")
    if group.ruled is not None and group.ruled.waits_since:
        return _refused(f"{_is_whole(group.ruled)}; cancel it, or let it leave with all that it has")
    if len(group.held) == 1:
        return _refused(f"number {seq} is all that is held: cancel the group")
    waived = without(group.waived, (seq,))
    if len(waived) > MAX_WAIVED_RANGES:
        return _refused(f"{_too_many(waived)}: release or cancel the group")
    removed = _without(group, (seq,), Reading.of(case.policy))
    missing = missing_numbers(group.held.keys() - {seq}, removed.end)
    effect = TakenOut(group.held[seq], missing, case.command.why)
    return CommandVerdict(
        True, f"takes number {seq} out, to the errors topic{_lacking(missing)}", Decision((removed,), (effect,))
    )


def _erase(case: Case) -> CommandVerdict:
    """Remove the payload of one held component; its place in the unit stays (B-216)."""
    group, seq = case.group, case.command.numbers[0].first
    body = group.held.get(seq)
    if body is None:
        return _refused(f"number {seq} is not held")
    if is_erased(body):
        return _refused(f"number {seq} is erased already")
    if case.policy.refers:
        return _refused(
            "its units refer to the records in the topic of components, where the payload stays: remove the component"
        )
    if isinstance(case.policy, GroupPolicy) and case.policy.reads_values:
        return _refused("its rule reads values, so that none can be missing: remove the component")
    left = without_payload(decode_component(body), case.command.id, Reading.of(case.policy))
    erased = Erased(group.id, seq, encode_component(left))
    return CommandVerdict(True, f"erases the payload of number {seq}", Decision((erased,)))


def _without(group: Group, seqs: tuple[int, ...], reading: Reading) -> Removed:
    """The change that takes components out: end and deadlines follow from the others, which are read once, and from commands."""
    leaving = frozenset(seqs)
    ends = [group.declared_end] if group.declared_end else []
    is_counted = group.assigns  # by the group, and not by what senders say
    if group.ruled is not None and group.assigns and (count := count_of(group.ruled.policy.complete_when)) is not None:
        ends.append(count)
    elif group.ruled is not None and group.ruled.policy.gathers_replies:
        is_counted, ends = True, [group.end] if group.end_known else []
    expiries: list[int] = []
    deliver_at = last_at = 0
    marked = False
    for number, body in group.held.items():
        if number in leaving:
            continue
        component = decode_component(body)
        marked |= component.end
        ends += [number] if component.end else []
        marks = held_marks(group.id, component, reading)
        ends += [marks.total] if marks.total and not is_counted else []
        expiries += [marks.expires_at] if marks.expires_at else []
        deliver_at, last_at = max(deliver_at, marks.deliver_at), max(last_at, component.timestamp)
    end = max(ends, default=UNKNOWN_END)  # all that tell of the end tell the same (line 12)
    return Removed(group.id, seqs, end, marked, last_at, min(expiries, default=0), deliver_at)


def held_marks(group_id: bytes, component: ComponentRecord, reading: Reading) -> Marks:
    """The marks in the headers of a held component."""
    headers = [pair for pair in component.headers if pair[0] != ERASED]
    marks = reading.read(headers, component.value)
    if marks is None:  # they are in a value that stays in `D.components` (W-24, W-117)
        marks = reading.read([*headers, (ID, group_id), (SEQ, b"%d" % component.seq)])
    if not isinstance(marks, Marks):  # held while `accept_aliases` said more
        marks = Marks(group_id, component.seq, component.end)
    return marks


def _amended(group: Group, **said: object) -> Decision:
    now = {"declared_end": group.declared_end, "waived": group.waived, "extended": group.extended} | said
    return Decision((Amended(group.id, **now),))  # type: ignore[arg-type]


def _completed_by(case: Case, text: str, amended: Decision, end: int, waived: Ranges) -> CommandVerdict:
    """A group that is complete by what a command said is delivered, unless it waits for `uow-deliver-at`."""
    group = case.group
    spared = group.spared(waived, end)
    if not _is_complete(group, spared, end, waived):
        return CommandVerdict(True, text, amended)
    if group.waits:
        return CommandVerdict(True, f"{text}; complete, waits for its turn", amended)
    if group.deliver_at > case.now:
        return CommandVerdict(True, f"{text}; complete, waits until {group.deliver_at}", amended)
    outcome = UnitOutcome.PARTIAL if spared else UnitOutcome.COMPLETE
    closed = case.close(outcome)._replace(highest=group.highest if spared else end)
    effect = delivered(closed, group.held, case.policy, case.command)
    changes: tuple[Change, ...] = (*amended.changes, effect.closed)
    text = f"{text}; {_differs(effect) or f'delivers {_counted(group)}, {outcome}'}"
    return CommandVerdict(True, text, Decision(changes, (effect,)))


def _is_complete(group: Group, spared: int, end: int, waived: Ranges) -> bool:
    """True if the group would be complete with this end and these numbers waived, of which so many are spared."""
    if group.ruled is None:
        return is_complete(len(group.held), spared, end)
    standing = group.standing()._replace(spared=spared, end=end, end_reason=Reason.COMMAND, weight=group.weight(waived))
    return asked(group.ruled.policy.complete_when, standing, group.ruled.policy).at == 0


_OF_UNITS: Final = frozenset({Verb.RELEASE, Verb.DECLARE_END, Verb.WAIVE})
"""Verbs that may deliver a unit, for which a component must be there."""
VERBS: Final[Mapping[Verb, Callable[[Case], CommandVerdict]]] = {
    Verb.RELEASE: _release,
    Verb.CANCEL: _cancel,
    Verb.EXPIRE: _expire,
    Verb.EXTEND: _extend,
    Verb.DECLARE_END: _declare_end,
    Verb.WAIVE: _waive,
    Verb.REMOVE: _remove,
    Verb.ERASE: _erase,
    Verb.FAIL: _fail,
}
"""The table; a manifest, which may open a group, is decided by `decide_manifest`, and `rule-change`, which is of no group, by `Partition`."""


def decide_command(command: Command, at: int, now: Situation) -> CommandVerdict:
    """The decision about one command.

    Args:
        command: The command, not seen before.
        at: The command's moment, epoch ms: what it closes is closed, and remembered, from then on, however long the partition's clock stood
            still.
        now: The state that it meets; a command does not move the clock.
    """
    if command.generation and (now.group is None or now.group.generation != command.generation):
        return _refused(f"generation {command.generation} of this id is not open")
    if now.group is not None and not now.group.has_unit and command.verb in _OF_UNITS:
        return _refused("nothing but pieces of components is held: cancel or expire the group")
    if now.group is not None:
        return VERBS[command.verb](Case(command, now.group, at, now))
    if now.closed is not None:
        return _refused(f"the group is closed already: {now.closed.outcome}, reason {now.closed.reason}")
    if now.home is not None:
        return _refused(f"the id belongs to partition {now.home}: the key of a command is the group id")
    if command.verb is Verb.CANCEL and now.policy.handling_policy is HandlingPolicy.SINGLE_MESSAGE_DELIVERY:
        return _cancelled_unopened(command, max(at, now.clock), now)
    return _refused("no open group of this id")


def _cancelled_unopened(command: Command, at: int, now: Situation) -> CommandVerdict:
    """A cancel is not lost because it comes before the components: the id is remembered like that of any closed group (W-62)."""
    end = now.unopened(command.group_id, UnitOutcome.CANCELLED, Reason.COMMAND, at)
    late = "opens a new group (late_policy)" if now.policy.late_policy is LatePolicy.REOPEN else "is refused as late"
    text = f"closes the id as {end.outcome}: nothing of it is held; a component that comes after this {late}"
    return CommandVerdict(True, text, Decision((end,), (Undelivered(end, UowError, command),)))


def decide_manifest(command: Command, at: int, now: Situation) -> CommandVerdict:
    """The decision about a manifest: it opens the group of its replies, or adopts those that came before it (B-78, B-81).

    Afterwards `decide_announced` asks if the group is complete by it.

    Args:
        command: The command, not seen before, with its manifest.
        at: Its moment, epoch ms: the timeout of the call counts from then on.
        now: The state that it meets; its policy is that of the open group, else of the row that the command names.
    """
    manifest, row, group = command.manifest, now.row, now.group
    assert manifest is not None
    if why := _unfit(command, manifest, now):
        return _refused(why)
    assert row is not None
    called = Called.of(command.id, at, manifest, manifest.encode())
    text = f"awaits {called.requests} replies"
    if group is None:
        opened = Opened(command.group_id, now.newest + 1, at, policy=row)
        return CommandVerdict(True, text, Decision((opened, Announced(command.group_id, called))))
    strangers = tuple(sorted(seq for seq in group.held if seq > called.requests))
    text += f", {len(group.held) - len(strangers)} are held"
    if strangers:
        text += f"; {len(strangers)} that it does not list to the errors topic"
    removed = [_without(group, strangers, Reading.of(row))] if strangers else []
    effects = tuple([TakenOut(group.held[seq], (), command.why) for seq in strangers])
    return CommandVerdict(True, text, Decision((*removed, Announced(group.id, called)), effects))


def _unfit(command: Command, manifest: Manifest, now: Situation) -> str:
    """Why a manifest is not taken; empty: it is."""
    row, group = now.row, now.group
    if group is not None and (group.ruled is None or not command.rule.startswith(f"{group.ruled.policy.rule_id}/")):
        return "the open group of this id is of another rule"
    if row is None or not row.gathers_replies:
        return f"{command.rule} is no row with the condition manifest"
    if not command.group_id.startswith(f"{row.rule_id}/".encode()):
        return f"the id does not begin with the rule's, {row.rule_id}/"
    if group is not None and group.ruled is not None and group.ruled.called is not None:
        return "the group has its manifest already"
    if group is None and now.closed is not None:
        return f"the group is closed already: {now.closed.outcome}, reason {now.closed.reason}"
    if now.home is not None:
        return f"the id belongs to partition {now.home}: the key of a command is the group id"
    if why := _disallowed(manifest, row):
        return why
    most = row.max_open_groups
    is_full = now.open_groups >= most
    # whoever may send manifests and nothing else ends no group of another caller
    if group is None and (not now.has_room or (is_full and command.is_anonymous)):
        return f"rule {row.rule_id} has {now.open_groups} open groups here, and may have {most}"
    return ""


def _disallowed(manifest: Manifest, row: GroupPolicy) -> str:
    """Why a row does not allow such a manifest; empty: it does."""
    count, weight, topic = len(manifest.requests), manifest.weight, manifest.reply.topic
    if count > row.max_components:
        return f"{count} requests; a unit has {row.max_components} components at most"
    if row.weight not in (None, weight):
        return f"its requests weigh {weight} in all; the rule is for {row.weight}"
    if weight < row.quorum:
        return f"its requests weigh {weight} in all; the rule needs replies of {row.quorum}"
    if topic is not None and not row.may_reply_to(topic):
        return f"reply topic {topic!r} is neither that of the row nor among the rules' reply_topics"
    for number, request in enumerate(manifest.requests, 1):
        if request.notice_topic not in (None, *row.notice_topics):
            return f"notice topic {request.notice_topic!r} of request {number} is not among the rules' notice_topics"
    return ""
