"""The contents of a group by rule as its conditions see them: all that they look at, as a value, and what one component adds to it. Pure.

Everything here follows from the components held and from the row of the rule, so a restore makes it again from their bytes (B-33).

Belongs here: the values, and reading them off a component. Does not belong here: asking conditions (`conditions`), and deciding (`decide`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Final, NamedTuple

from uow.schemas.component import decode_component
from uow.schemas.error_classes import DecodeError
from uow.schemas.records import ComponentRecord
from uow.topics.grouping import GroupPolicy, Headers, Tally
from uow.topics.headers import INPUT, SOURCE_NAME, Refusal, Routed, routed_of
from uow.topics.manifests import Manifest, read_manifest
from uow.topics.rules import Release, Source, WaitFrom

NEVER: Final = 1 << 62
"""Later than every clock."""


class Facts(NamedTuple):
    """The contribution of one component to its group. Moments in epoch ms.

    Attributes:
        arrival: When it arrived: at the router's input, else at `D.components`.
        counts_from: From when the age counts for it: its arrival, or its event time; `NEVER` where it counts from the manifest.
        limit_at: When its own limit passes; `NEVER` without one (B-05).
        value_bytes: Length of its value.
        component_id: Its id, else the coordinates of its input record, else None.
        numbers: For each predicate the numbers that it measures.
        source: Name of its source, where the rule has sources (B-92).
    """

    arrival: int
    counts_from: int
    limit_at: int
    value_bytes: int
    component_id: bytes | None
    numbers: tuple[tuple[Decimal, ...], ...] = ()
    source: str | None = None


def facts_of(
    policy: GroupPolicy,
    routed: Routed,
    component_id: bytes | None,
    at: int,
    headers: Headers,
    value: bytes | None,
) -> Facts | Refusal:
    """The facts of a component that came with these headers and this value at the append time `at`; or why it is refused (B-41).

    An arrival after the append time cannot be, and is not believed.
    """
    arrival = min(routed.arrived_at, at) if routed.arrived_at is not None else at
    counts_from = NEVER if policy.age_from_manifest else arrival
    if policy.event_time is not None:
        moment = policy.event_time(headers, value)
        if isinstance(moment, str):
            return Refusal(DecodeError, "event-time", moment)
        counts_from = moment
    numbers = []
    for _, measure in policy.measures:
        measured = measure.measure(headers, value)
        if isinstance(measured, str):
            return Refusal(DecodeError, "predicate", measured)
        numbers.append(measured)
    source = None
    if policy.sources:
        source = source_of(headers)
        if all(each.source_name != source for each in policy.sources):
            return Refusal(DecodeError, SOURCE_NAME, f"{source!r} is no source of rule {policy.rule_id}")
    limit_at = NEVER if routed.delay_ms is None else arrival + routed.delay_ms
    return Facts(arrival, counts_from, limit_at, len(value or b""), component_id, tuple(numbers), source)


def facts_in(policy: GroupPolicy, component: ComponentRecord) -> Facts:
    """The same of a component that is held.

    Raises:
        DecodeError: It cannot be read now, though it could before.
    """
    routed = routed_of(component.headers)
    component_id = None if component.component_id is None else component.component_id.encode()
    facts = (
        facts_of(policy, routed, component_id, component.timestamp, component.headers, component.value)
        if isinstance(routed, Routed)
        else routed
    )
    if isinstance(facts, Refusal):
        raise DecodeError(facts.case, f"of a component that is held: {facts.detail}")
    return facts


def source_of(headers: Headers) -> str:
    """The source of a component: `uow-source-name`, else the topic of its input record, else nothing (B-92)."""
    said = dict(headers)
    name = said.get(SOURCE_NAME)
    if name:
        return name.decode("utf-8", "backslashreplace")
    return (said.get(INPUT) or b"").partition(b"/")[0].decode("utf-8", "backslashreplace")


class SourceTally(NamedTuple):
    """A source of a collection: its name, how many components it gave, and the arrival of the first, epoch ms."""

    name: str
    components: int
    first_at: int


class Gathered(NamedTuple):
    """The sum of the facts of the components held. Moments in epoch ms.

    Attributes:
        first_at: The earliest moment from which the age counts.
        arrived_at: The earliest arrival.
        last_at: The latest arrival.
        limit_at: The earliest moment at which a component's own limit passes.
        value_bytes: Bytes of the values.
        tallies: For each predicate its running figures.
        sources: Of each source that gave components: its name, how many, and the arrival of the first.
    """

    first_at: int = NEVER
    last_at: int = 0
    limit_at: int = NEVER
    value_bytes: int = 0
    tallies: tuple[tuple[Tally, ...], ...] = ()
    sources: tuple[SourceTally, ...] = ()
    arrived_at: int = NEVER

    def plus(self, facts: Facts) -> Gathered:
        """With one component more."""
        tallies: tuple[tuple[Tally, ...], ...] = ()
        if facts.numbers:
            before = self.tallies or tuple([() for _ in facts.numbers])
            tallies = tuple([_plus(some, numbers) for some, numbers in zip(before, facts.numbers, strict=True)])
        return Gathered(
            min(self.first_at, facts.counts_from),
            max(self.last_at, facts.arrival),
            min(self.limit_at, facts.limit_at),
            self.value_bytes + facts.value_bytes,
            tallies,
            self._sources_plus(facts.source, facts.arrival) if facts.source is not None else self.sources,
            min(self.arrived_at, facts.arrival),
        )

    def _sources_plus(self, name: str, arrival: int) -> tuple[SourceTally, ...]:
        before = self.source(name)
        others = [each for each in self.sources if each.name != name]
        return tuple(sorted((*others, SourceTally(name, before.components + 1, min(before.first_at, arrival)))))

    def source(self, name: str) -> SourceTally:
        """The contribution of a source so far."""
        for each in self.sources:
            if each.name == name:
                return each
        return SourceTally(name, 0, NEVER)


def _plus(tallies: tuple[Tally, ...], numbers: tuple[Decimal, ...]) -> tuple[Tally, ...]:
    if not tallies:
        return tuple(map(Tally.of, numbers))
    return tuple([tally.plus(number) for tally, number in zip(tallies, numbers, strict=True)])


NOTHING: Final = Gathered()


class Counting(NamedTuple):
    """How the groups of a row count, see `counted_groups`.

    Attributes:
        policy: That of the row.
        most: Number of components at which they are full, where nothing else completes them; 0 where more is asked.
        wait_ms: How long after its first component a group is given up; `NEVER` if it is not.
        most_bytes: Of components: as long as there are no more, a group is within every limit.
        remembers: True if components are known once their unit is delivered (B-38).
    """

    policy: GroupPolicy
    most: int
    wait_ms: int
    most_bytes: int
    remembers: bool


def satisfied_at(source: Source, gathered: Gathered) -> int:
    """From when a source has what its collection needs of it: its quantity, or its wait is over (B-93 to B-95); `NEVER` by nothing so far."""
    given = gathered.source(source.source_name)
    if source.quantity and given.components >= source.quantity:
        return 0
    since = gathered.first_at if source.wait_from is WaitFrom.GROUP else given.first_at
    if source.wait_ms is None or since == NEVER:
        return NEVER
    return since + source.wait_ms + 1


WEIGHT_BYTES: Final = 36
"""Memory of the weight of a request: a number, and its place."""


class Called(NamedTuple):
    """The manifest of the fan-out whose replies a group holds (B-78).

    Attributes:
        command_id: Id of the command that brought it: the identity of a unit without a reply (B-36).
        at: The moment of the command, epoch ms.
        timeout_ms: The timeout of the call; 0: for ever; None: as the row says.
        requests: How many there are; their numbers begin with 1.
        text: All of it, as it came (`uow.topics.manifests`).
        weights: Of the requests, by number; empty: each weighs 1.
        has_notices: True if a request has a topic for its cancel notice (B-209).
    """

    command_id: bytes
    at: int
    timeout_ms: int | None
    requests: int
    text: bytes
    weights: tuple[int, ...] = ()
    has_notices: bool = False

    @classmethod
    def of(cls, command_id: bytes, at: int, manifest: Manifest, text: bytes) -> Called:
        """The same of a manifest and its text."""
        weights = tuple([each.weight for each in manifest.requests])
        return cls(
            command_id,
            at,
            manifest.timeout_ms,
            len(weights),
            text,
            () if max(weights) == 1 else weights,
            any(each.notice_topic is not None for each in manifest.requests),
        )

    @classmethod
    def read(cls, command_id: bytes, at: int, text: bytes) -> Called:
        """One that a group kept. Raises `DecodeError` if that cannot be read."""
        return cls.of(command_id, at, read_manifest(text), text)

    @property
    def weight(self) -> int:
        """Of all requests."""
        return sum(self.weights) if self.weights else self.requests

    @property
    def memory_bytes(self) -> int:
        """About what it takes."""
        return len(self.text) + WEIGHT_BYTES * len(self.weights)


class Ruled:
    """The part of a group that only groups by rule have.

    Attributes:
        policy: That of the row which opened it; it holds until the group closes (`on_rule_change = "snapshot"`).
        component_ids: Ids of the components held (line 10).
        scheduled: The deadline that stands in line for it, or an earlier one.
        waits_since: Since when it is complete and not allowed to leave, epoch ms; 0: it is not.
        called: The manifest of the replies that it holds; None before it comes, and in groups of other rules.
        is_behind: True while it waits for a group of its rule that arrived before it, or that has its turn (B-118).
        has_turn: True if its row says that it has its turn: it leaves first of its rule, and before whatever else comes, since the plan was full.
        is_routed: True if every component held is a routed row (`routed_rows`): none has a header that a unit takes from all of them.
        counting: How it counts, while a routed row may be held without a look at anything but what every such row changes; None: not known.
        deadlines: The deadline that each calendar of its row named when it opened, epoch ms (B-206).
    """

    __slots__ = (
        *("_first_at", "_gathered", "_last_at", "_value_bytes"),
        *("called", "component_ids", "counting", "deadlines", "has_turn", "is_behind", "is_routed", "policy"),
        *("scheduled", "waits_since"),
    )

    def __init__(self, policy: GroupPolicy, deadlines: tuple[int, ...]) -> None:
        self.policy = policy
        self.deadlines = deadlines
        self.counting: Counting | None = None
        self.is_routed = True
        self._gathered = NOTHING
        self._first_at, self._last_at, self._value_bytes = NEVER, 0, 0
        self.component_ids: set[bytes] = set()
        self.scheduled = NEVER
        self.waits_since = 0
        self.called: Called | None = None
        self.is_behind = self.has_turn = False

    @property
    def awaits_manifest(self) -> bool:
        """True if it holds replies whose manifest has not come."""
        return self.policy.gathers_replies and self.called is None

    @property
    def held_until(self) -> int:
        """When such a group is given up (B-81)."""
        hold_ms = self.policy.reply_hold_ms
        return NEVER if hold_ms is None else self.gathered.arrived_at + hold_ms + 1

    @property
    def state(self) -> tuple[object, ...]:
        """All of it that a restart must give back, as values."""
        parts = self.policy.rule, self.gathered, frozenset(self.component_ids), self.waits_since, self.called
        return *parts, self.deadlines, self.has_turn

    @property
    def kept_by(self) -> str:
        """The event, in words, that a group which is complete and waits is waiting for."""
        if self.is_behind:
            return "an earlier group of its rule"
        return "its uow-deliver-at" if self.policy.release is Release.AUTO else "its release"

    def accepts_until(self, source_name: str | None) -> int:
        """Before which arrival one of several open groups of a key takes a component of this source, unless it is due: it does not wait, and the source is not satisfied (B-99)."""
        if self.waits_since:
            return -NEVER
        if source_name is None:
            return NEVER
        source = next((each for each in self.policy.sources if each.source_name == source_name), None)
        return -NEVER if source is None else satisfied_at(source, self.gathered)

    def leaves_at(self, deliver_at: int) -> int:
        """When a group that waits may leave by the clock, or must (B-106, B-107); `NEVER`: a command lets it go. `deliver_at` is that of its components."""
        policy, since = self.policy, self.waits_since
        if policy.delivers_in_order:
            return NEVER if self.is_behind else max(deliver_at, since)
        if policy.release is Release.AUTO:
            return deliver_at
        until = NEVER
        if policy.release_every_ms is not None:
            until = -(-since // policy.release_every_ms) * policy.release_every_ms
        if policy.waiting_age_ms is not None:
            until = min(until, since + policy.waiting_age_ms + 1)
        return max(until, deliver_at)

    @property
    def gathered(self) -> Gathered:
        """The sum of the facts of the components held: all that its conditions look at."""
        if self._first_at != NEVER:
            gathered, first_at = self._gathered, self._first_at
            self._gathered = gathered._replace(
                first_at=min(gathered.first_at, first_at),
                last_at=max(gathered.last_at, self._last_at),
                value_bytes=gathered.value_bytes + self._value_bytes,
                arrived_at=min(gathered.arrived_at, first_at),
            )
            self._first_at, self._last_at, self._value_bytes = NEVER, 0, 0
        return self._gathered

    def hold(self, facts: Facts) -> None:
        """Takes the facts of a component that is held now."""
        self._gathered, self.is_routed = self.gathered.plus(facts), False
        if facts.component_id is not None:
            self.component_ids.add(facts.component_id)

    def hold_counted(self, arrival: int, value_bytes: int, component_id: bytes) -> None:
        """The same of a component that has no limit, number or source of its own; summed up once somebody asks."""
        if arrival < self._first_at:
            self._first_at = arrival
        if arrival > self._last_at:
            self._last_at = arrival
        self._value_bytes += value_bytes
        self.component_ids.add(component_id)

    def in_order(self, bodies: Sequence[bytes]) -> list[bytes]:
        """The bodies in the order of `order_by`; equal ones keep theirs."""
        policy = self.policy
        components = [decode_component(body) for body in bodies]
        if policy.by_source:
            keys = [source_of(each.headers) for each in components]
        else:
            assert policy.rank is not None
            keys = [policy.rank(each.headers, each.value) for each in components]
        return [bodies[at] for at in sorted(range(len(bodies)), key=keys.__getitem__)]

    def read_again(self, bodies: Iterable[bytes]) -> None:
        """Takes the facts of these components, in order of arrival, and nothing else. Raises `DecodeError`."""
        self._gathered, self.component_ids = NOTHING, set()
        self._first_at, self._last_at, self._value_bytes = NEVER, 0, 0
        for body in bodies:
            self.hold(facts_in(self.policy, decode_component(body)))


def all_satisfied_at(sources: Sequence[Source], gathered: Gathered) -> int:
    """From when all of them have; `NEVER` also of none."""
    return max([satisfied_at(each, gathered) for each in sources], default=NEVER)
