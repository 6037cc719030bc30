"""How groups by rule behave: a destination's settings with those of one row in their place (aggregation, section 4). Pure.

A unit of work is the case without a row: its policy is the destination's own. A group by rule has the `GroupPolicy` of the row that opened it.

Belongs here: that value, the protocols of what a row brings along that is no value, and how a row becomes a policy. Does not belong here: the
texts of conditions and expressions (`uow.processor.rules`), and asking conditions (`uow.processor.core`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from decimal import Context, Decimal
from typing import Any, Final, NamedTuple, Protocol

from uow.topics.catalogue import HELD_LIMIT_BYTES
from uow.topics.conditions import (
    Age,
    AllOf,
    AnyOf,
    Bytes,
    ComponentDeadline,
    Condition,
    Count,
    EndFlagWithoutGaps,
    Idle,
    Manifest,
    Not,
    PerSource,
    Timeout,
)
from uow.topics.policies import DestinationPolicy, ValueFormat
from uow.topics.rules import (
    AtMaxOpenGroups,
    AtWaitingLimit,
    BelowMin,
    Cardinality,
    DeliverOrder,
    LateJoin,
    Numbering,
    OnRuleChange,
    Release,
    ResolvedRow,
    Source,
)

Headers = Sequence[tuple[str, bytes | None]]


NEVER_HOLDS = AnyOf(())
MAX_ATTEMPTS: Final = 100
"""Most that `delivery_attempts` may be."""
MAX_OPEN_GROUPS: Final = 100_000
"""Open groups of a rule on a partition where `max_open_groups` says nothing: some 150 MB, so that made-up names fill no memory (B-211)."""


_EXACT: Final = Context(prec=4_096)
"""Room for the sum of any amounts: they have three digits of exponent at most, and as many components as a group can have."""


class Tally(NamedTuple):
    """Running figures of one number over the components of a group (B-41).

    Attributes:
        components: How many.
        total: Their sum, exact, so in whichever order they came.
        least: The smallest.
        most: The largest.
    """

    components: int
    total: Decimal
    least: Decimal
    most: Decimal

    def plus(self, number: Decimal) -> Tally:
        """With one component more."""
        return Tally(
            self.components + 1, _EXACT.add(self.total, number), min(self.least, number), max(self.most, number)
        )

    @classmethod
    def of(cls, number: Decimal) -> Tally:
        """Of one component."""
        return cls(1, number, number, number)


class Measure(Protocol):
    """A predicate over running figures, compiled. Both methods are pure: a restore asks the first one again, of the same bytes."""

    def measure(self, headers: Headers, value: bytes | None) -> tuple[Decimal, ...] | str:
        """The numbers that the predicate looks at in one component, always as many; or why they cannot be read, which refuses that component."""
        ...

    def holds(self, tallies: Sequence[Tally]) -> bool:
        """True if the group is complete; one tally for each of the numbers, of one component at least."""
        ...


Moment = Callable[[Headers, bytes | None], int | str]
"""The event time in a component (`age_from = "event:PATH"`), epoch ms; or why it cannot be read, which refuses that component."""
Choice = Callable[[Headers, bytes | None], bool]
"""True of a component that is chosen by its content; of one that cannot be read it is not."""
Rank = Callable[[Headers, bytes | None], Any]
"""The sort key of a component in its unit (`order_by = "field:PATH"`): comparable with one another; equal ones keep their order of arrival."""


class Calendar(Protocol):
    """The deadline of a condition `at(...)`, compiled (B-206)."""

    def deadline(self, opened_at: int) -> int:
        """The deadline of a group that opened then, both epoch ms; not before it opened."""
        ...


@dataclass(frozen=True, slots=True)
class GroupPolicy(DestinationPolicy):
    """The settings of a destination for the groups of one row of a rule.

    `incomplete_expiration_ms` and `idle_expiration_ms` are not asked of it: all limits are in `give_up_when`.

    Attributes:
        rule: Name of the resolved row, the text of `uow-rule`.
        rule_id: Id of the rule.
        numbering: Who numbers the components.
        complete_when: When a group is complete; of several the first that holds names the reason.
        give_up_when: When it is given up by time.
        min_count: Components without which it is not delivered at its deadline.
        below_min: Treatment of a group that has fewer.
        age_ms: By how much `below_min = "extend"` moves the deadline.
        event_time: Gives the moment from which the age counts; None: the arrival.
        late_join: Whether a component that arrived after the deadline may join.
        target_topic: Where units go; None: `D.units`.
        measures: Compiled predicates, and what makes a component urgent, by the names of these conditions.
        calendars: Compiled calendars by their text.
        leaves_alone: True of a component that must not join an open group (B-207); None: each joins.
        rank: Order inside a unit; None: by number.
        by_source: True if components of a unit are in order of their sources' names.
        gathers_replies: True if its groups hold the replies to the requests of a manifest (B-77).
        quorum: Weight of the replies that are enough, the smallest if there are several; 0: all are needed (B-209).
        weight: What the weights of a manifest's requests must add up to; None: any sum.
        age_from_manifest: True if arrivals of replies do not count for the age.
        delivery_attempts: How often writing a unit is tried that cannot be encoded, until its group fails (B-89).
        reply_hold_ms: How long replies are held before their manifest comes; None: for ever (B-81).
        reply_topics: Topics that a manifest may ask for beside its own (B-91).
        notice_topics: Topics that a manifest may name for its cancel notices (B-209).
    """

    rule: str = ""
    rule_id: str = ""
    numbering: Numbering = Numbering.ASSIGNED
    complete_when: Condition = NEVER_HOLDS
    give_up_when: Condition = NEVER_HOLDS
    min_count: int = 1
    below_min: BelowMin = BelowMin.REDIRECT
    age_ms: int | None = None
    event_time: Moment | None = None
    late_join: LateJoin = LateJoin.STRICT
    target_topic: str | None = None
    measures: tuple[tuple[str, Measure], ...] = ()
    calendars: tuple[tuple[str, Calendar], ...] = ()
    leaves_alone: Choice | None = None
    rank: Rank | None = None
    by_source: bool = False
    cardinality: Cardinality = Cardinality.ONE
    sources: tuple[Source, ...] = ()
    release: Release = Release.AUTO
    release_every_ms: int | None = None
    max_waiting: int | None = None
    waiting_age_ms: int | None = None
    at_waiting_limit: AtWaitingLimit = AtWaitingLimit.DELIVER
    deliver_order: DeliverOrder = DeliverOrder.COMPLETION
    on_rule_change: OnRuleChange = OnRuleChange.SNAPSHOT
    max_open_groups: int = MAX_OPEN_GROUPS
    at_max_open_groups: AtMaxOpenGroups = AtMaxOpenGroups.REJECT
    name_template: str | None = None
    gathers_replies: bool = False
    quorum: int = 0
    weight: int | None = None
    age_from_manifest: bool = False
    delivery_attempts: int = 5
    reply_hold_ms: int | None = None
    reply_topics: tuple[str, ...] = ()
    notice_topics: tuple[str, ...] = ()

    def may_reply_to(self, topic: str) -> bool:
        """True if a manifest may ask for this topic: the row's own, or one that the rules name."""
        return topic == self.target_topic or topic in self.reply_topics

    def deadlines(self, opened_at: int) -> tuple[int, ...]:
        """The deadline that each calendar names for a group that opened then, epoch ms."""
        return tuple([calendar.deadline(opened_at) for _, calendar in self.calendars])

    @property
    def reads_values(self) -> bool:
        """True if a condition, an order or the document of its units needs the value of every component."""
        is_read = self.measures or self.event_time is not None or self.rank is not None
        return bool(is_read) or self.value_format is ValueFormat.XML

    @property
    def remembers_components(self) -> bool:
        """True if a component is known once its unit is delivered, by its id (B-38). Where senders number them, its number tells."""
        return self.assigns and self.tells_duplicates_apart

    @property
    def row_key(self) -> str:
        """Rule and routing name, without the version."""
        return self.rule.rpartition("@")[0]

    @property
    def version(self) -> int:
        """The version of the row."""
        return int(self.rule.rpartition("@")[2])

    @property
    def delivers_in_order(self) -> bool:
        """True if a complete group waits for open ones of its rule that arrived before it (B-118)."""
        return self.deliver_order is DeliverOrder.FIRST_ARRIVAL

    @property
    def assigns(self) -> bool:
        """True if the assembler numbers the components."""
        return self.numbering is Numbering.ASSIGNED


def policy_of(
    row: ResolvedRow,
    destination: DestinationPolicy,
    complete_when: Condition | None = None,
    give_up_when: Condition | None = None,
    measures: Sequence[tuple[str, Measure]] = (),
    event_time: Moment | None = None,
    rank: Rank | None = None,
    calendars: Sequence[tuple[str, Calendar]] = (),
    leaves_alone: Choice | None = None,
) -> GroupPolicy:
    """The policy of the groups of a row. Columns and further conditions are joined by `any`, columns first (section 4.2).

    Args:
        row: The row, with its rule.
        destination: The settings of the rule's destination.
        complete_when: The column of this name, read; None if it is empty.
        give_up_when: The same.
        measures: The predicates in them, and what makes a component urgent, by their names, compiled.
        event_time: `age_from`, compiled, where it names an event time.
        rank: `order_by`, compiled, where it names a field.
        calendars: The calendars in the conditions by their text, compiled.
        leaves_alone: The `urgent(..., alone)` among them, compiled.
    """
    rule, own = row.rule, row.row
    complete: list[Condition] = []
    if own.complete_count is not None:
        complete.append(Count(own.complete_count))
    if own.complete_bytes is not None:
        complete.append(Bytes(own.complete_bytes))
    if complete_when is not None:
        complete.append(complete_when)
    elif row.sources:
        complete.append(PerSource())
    if rule.sequence is Numbering.GIVEN and not complete:
        complete.append(EndFlagWithoutGaps())
    manifests = [part for part in parts_of(_one(complete)) if isinstance(part, Manifest)]
    give_up: list[Condition] = []
    if manifests:
        give_up.append(Timeout(own.age_ms))
    elif own.age_ms is not None:
        give_up.append(Age(own.age_ms))
    if own.idle_ms is not None:
        give_up.append(Idle(own.idle_ms))
    if give_up_when is not None:
        give_up.append(give_up_when)
    give_up.append(ComponentDeadline())
    settings = {each.name: getattr(destination, each.name) for each in fields(DestinationPolicy)} | {
        "shape": own.shape or destination.shape,
        "value_format": own.value_format or destination.value_format,
        "expiration_policy": own.on_give_up,
        "late_policy": rule.late_policy,
    }
    policy = GroupPolicy(
        **settings,
        rule=row.name,
        rule_id=rule.rule_id,
        numbering=rule.sequence,
        complete_when=_one(complete),
        give_up_when=_one(give_up),
        min_count=own.min_count,
        below_min=own.below_min,
        age_ms=own.age_ms,
        event_time=event_time,
        late_join=own.late_join,
        target_topic=own.target_topic,
        measures=tuple(measures),
        calendars=tuple(calendars),
        leaves_alone=leaves_alone,
        rank=rank,
        by_source=rule.order_by == "source",
        cardinality=rule.cardinality,
        sources=row.sources,
        release=rule.release,
        release_every_ms=rule.release_every_ms,
        max_waiting=rule.max_waiting,
        waiting_age_ms=rule.waiting_age_ms,
        at_waiting_limit=rule.at_waiting_limit,
        deliver_order=rule.deliver_order,
        on_rule_change=rule.on_rule_change,
        max_open_groups=rule.max_open_groups or MAX_OPEN_GROUPS,
        at_max_open_groups=rule.at_max_open_groups,
        name_template=rule.name_template,
        gathers_replies=bool(manifests),
        quorum=min((each.k or 0 for each in manifests), default=0),
        weight=next((each.n for each in manifests if each.n is not None), None),
        age_from_manifest=own.age_from == "manifest",
        delivery_attempts=min(MAX_ATTEMPTS, max(1, int(row.parameter("delivery_attempts") or 1))),
        reply_hold_ms=int(row.parameter("reply_hold_ms")) if row.parameter("reply_hold_ms") else None,
        reply_topics=row.reply_topics,
        notice_topics=row.notice_topics,
    )
    return replace(policy, max_bytes=min(policy.max_bytes, HELD_LIMIT_BYTES)) if policy.fits_one_record else policy


def _one(conditions: Sequence[Condition]) -> Condition:
    return conditions[0] if len(conditions) == 1 else AnyOf(tuple(conditions))


def parts_of(condition: Condition) -> Sequence[Condition]:
    """The conditions that a condition is made of; itself, if it is a simple one."""
    match condition:
        case AnyOf(several) | AllOf(several):
            return [part for each in several for part in parts_of(each)]
        case Not(one):
            return parts_of(one)
        case _:
            return [condition]


class RuleTable(Protocol):
    """Rows of the rules of one destination by their names, as far as `A-rules` was read, with the destination's settings (section 5).

    A name once known never changes its meaning.
    """

    def policy(self, name: str) -> GroupPolicy | None:
        """The policy of this `uow-rule`; None if what was read has no such row that is to be believed, or the row is of another destination's rule."""
        ...

    def kept(self, name: str) -> GroupPolicy | None:
        """The same of a row that open groups have already, and that was believed when they took it."""
        ...

    def catch_up(self, meanwhile: Callable[[], object]) -> None:
        """Reads `A-rules` to its end offset of now.

        Args:
            meanwhile: To be called at least every few seconds while it waits; what it raises is passed on.

        Raises:
            Doubt: No broker answered in time (`uow.processor.engine.ports.Doubt`).
        """
        ...


class NoRules:
    """The table of a destination without rules."""

    def policy(self, name: str) -> GroupPolicy | None:
        """None."""
        return None

    kept = policy

    def catch_up(self, meanwhile: Callable[[], object]) -> None:
        """Nothing is there to be read."""
