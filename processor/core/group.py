"""One open group: the numbers held, the end if known, and its deadlines. Its fields are assigned in this module alone.

Theory of operation. A group exists from its first held component to its close. It is *complete* when its end is known and every
number from 1 to the end is held once or waived (W-15): the numbers are distinct and none held lies above the end, so comparing counts is
enough and nothing ever scans the group. A group by rule is complete by the conditions of its row. `conditions` is the only place that asks. It is *ready* when the latest `uow-deliver-at` has been
reached (W-08) and no earlier group of its order key is open (W-210). Its next moment of interest is `due_at`: the earliest clock value at
which it must be looked at, be it to deliver it or to give it up.

A group changes by `apply` (what `decide` says), the steps of a restore, its place in line, and `hold_rows`, the fast path: it does to a great
many groups what `hold`, `mark_end` and `close` do to one, without a call for each component. The engine keeps what it needs of a group in `attachment`, which the core never reads.

Belongs here: the state of a group and what can be read off it. Does not belong here: what to do with an event (`decide`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple, Protocol, assert_never
from weakref import ReferenceType, ref

from uow.processor.core.changes import (
    Amended,
    Announced,
    Closed,
    Delivered,
    Erased,
    Held,
    HeldPiece,
    Removed,
    Tail,
    Waits,
    Warned,
)
from uow.processor.core.columns import Columns
from uow.processor.core.conditions import Holding, Standing, asked, count_of, is_complete
from uow.processor.core.gathered import NEVER, Called, Facts, Ruled
from uow.processor.core.plan_size import ENTRY_BYTES, LEDGER_SHARE
from uow.processor.core.ranges import (
    Ranges,
    as_ranges,
    count_up_to,
    those_in,
    without,
)
from uow.processor.core.segments import FIRST_SLOT, Segments
from uow.schemas.claim_check import external_bytes
from uow.schemas.component import component_id_of, decode_component
from uow.schemas.fingerprint import fingerprints, id_fingerprints
from uow.schemas.records import (
    MAX_SEQ,
    Range,
    Reason,
    UnitOutcome,
)
from uow.topics.catalogue import HELD_LIMIT_BYTES
from uow.topics.grouping import GroupPolicy
from uow.topics.policies import NEVER_MS, DestinationPolicy, ExpirationPolicy, Shape

UNKNOWN_END = MAX_SEQ + 1
"""Above every legal number, so that one comparison serves known and unknown ends."""
_PLAIN_FIELDS: Final = (
    *("id", "generation", "opened_at", "last_at", "end", "marked", "highest", "bytes", "external_bytes", "expires_at"),
    *("deliver_at", "order_key", "waits", "free_at", "special", "declared_end", "waived_held", "extended", "warned_at"),
)
"""Fields of an open group that are kept as they are, see `Group.as_data`."""


def exceeds_limits(
    count: int, total_bytes: int, component_bytes: int, policy: DestinationPolicy, *, gathers_replies: bool = False
) -> bool:
    """True if a group is too large with its last component (line 14). The fast path asks the same in line, of bodies within the last limit.

    Args:
        count: Components held.
        total_bytes: Bytes of all of them.
        component_bytes: Bytes of the last one.
        policy: Of the destination, with its limits.
        gathers_replies: The group is of a call: its unit is one record, whatever the shape of the others is.
    """
    is_run = policy.shape is Shape.CONSECUTIVE and not gathers_replies
    fits_no_record = is_run or total_bytes > HELD_LIMIT_BYTES
    return (
        count > policy.max_components
        or (fits_no_record and count > policy.sure_components)
        or total_bytes > policy.max_bytes
        or component_bytes > HELD_LIMIT_BYTES
    )


def missing_numbers(held: Iterable[int], end: int) -> tuple[Range, ...]:
    """Numbers lacking, as ranges, where these are held; the last range is open (`MAX_SEQ`) while the end is unknown (W-71)."""
    gaps: list[Range] = []
    after = 0
    for each in as_ranges(held):
        if each.first > after + 1:
            gaps.append(Range(after + 1, each.first - 1))
        after = each.last
    last = min(end, MAX_SEQ)
    if after < last:
        gaps.append(Range(after + 1, last))
    return tuple(gaps)


class Limit(NamedTuple):
    """A limit of an open group's time: from when it counts, the moment that must not be passed, epoch ms, and the reason for closing then."""

    since: int
    at: int
    reason: Reason


class Watcher(Protocol):
    """Whoever keeps answers about several groups (`Generations`)."""

    def changed(self, group: Group) -> None: ...
    def took(self, group: Group, component_id: bytes) -> None: ...
    def read_again(self, group: Group) -> None: ...


class Group:
    """The state of one open group.

    Attributes:
        id: UTF-8 bytes of the group id.
        generation: How many groups of this id the destination has opened, from 1.
        opened_at: Append time of the first component held, epoch ms.
        last_at: Append time of the last one held; asked of units of work alone.
        end: The highest number, by end mark or count; `UNKNOWN_END` until known.
        marked: True if an end mark is held; else the end, if known, came by `uow-count` or a command.
        highest: Highest number held.
        held: Number to Avro body, in order of arrival.
        bytes: Sum of the bodies' lengths, with all values: what `max_bytes` limits.
        external_bytes: How many of these bytes stay in `D.components` and are not held (W-117).
        expires_at: Earliest `uow-expires-at` of the components held, 0 for none (W-92).
        deliver_at: Latest `uow-deliver-at`, 0 for none.
        order_key: Its place in line is among groups of this key; empty for none (W-210).
        waits: True while an earlier group of its order key is open, so that it is not delivered yet.
        free_at: When the last earlier one closed, epoch ms.
        special: True if it has seen a component without its value, one with attributes, a command or a warning: only `decide` can judge it then, and
            the fast path leaves it alone.
        supersedes: `uow-unit-id` of the unit that its own corrects; empty for none (B-205).
        declared_end: The end that a command declared, 0 for none.
        waived: Numbers that a command said are not needed, also those that came all the same: one range that components split number by
            number would cost each of them all the pieces.
        waived_held: How many of these are held.
        extended: Before this moment it is not given up for age or idleness, epoch ms; 0 for none.
        warned_at: When it was told what it lacks, epoch ms; 0: it was not (B-202).
        ruled: What it has because it is a group by rule; None for a unit of work.
        segments: Pieces of components that are not whole yet (B-124); None if there are none.
        tail: See `Tail`; None after a restore or a removal.
        is_open: False from its close on.
        lists_plain: False where nobody needs to know one by one which plain components it holds: `Happened.held` leaves them out.
        attachment: The engine's, whatever it keeps of a group; the core neither reads it nor knows what it is.
    """

    __slots__ = (
        "_watcher",
        "attachment",
        "bytes",
        "declared_end",
        "deliver_at",
        "end",
        "expires_at",
        "extended",
        "external_bytes",
        "free_at",
        "generation",
        "held",
        "highest",
        "id",
        "is_open",
        "last_at",
        "lists_plain",
        "marked",
        "opened_at",
        "order_key",
        "ruled",
        "segments",
        "special",
        "supersedes",
        "tail",
        "waits",
        "waived",
        "waived_held",
        "warned_at",
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
        self.external_bytes = 0
        self.expires_at = 0
        self.deliver_at = 0
        self.order_key = b""
        self.waits = False
        self.free_at = 0
        self.special = False
        self.supersedes = b""
        self.declared_end = 0
        self.waived: Ranges = ()
        self.waived_held = 0
        self.extended = 0
        self.warned_at = 0
        self.ruled: Ruled | None = None
        self.segments: Segments | None = None
        self.tail: Tail | None = None
        self.is_open = True
        self.lists_plain = True
        self._watcher: ReferenceType[Watcher] | None = None
        self.attachment: Any = None

    def __repr__(self) -> str:
        return f"Group({self.id!r}, generation={self.generation}, held={self.held_ranges()}, end={self.end if self.end_known else None})"

    def apply(
        self, change: Held | HeldPiece | Amended | Warned | Removed | Erased | Waits | Announced | Closed
    ) -> None:
        """Writes one change into the group."""
        if self.ruled is not None:
            self.ruled.counting = None
        if (watcher := self.watcher) is not None:
            watcher.changed(self)
        match change:
            case Closed():
                self.close()
            case Waits():
                assert self.ruled is not None
                self.ruled.waits_since = change.at
            case Announced():
                self.announce(change.called)
            case Amended():
                self._amend(change)
            case Warned():
                self.special, self.warned_at = True, change.at
            case Removed():
                self._remove(change)
            case Erased():
                self._erase(change)
            case Held():
                self._hold(change)
            case HeldPiece():
                self.hold_piece(change.slot, change.body)
                self.last_at = max(self.last_at, change.at)
            case _:
                assert_never(change)

    def _hold(self, change: Held) -> None:
        seq = change.seq
        self.hold(seq, change.body, change.at)
        if self.segments is not None:
            self.segments.drop(seq)
            self.segments = self.segments if self.segments.bodies else None
        if change.end:
            self.mark_end(seq, change.tail)
        if change.external_bytes:
            self.leave(change.external_bytes)
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
        if self.ruled is not None and change.facts is not None:
            self.ruled.hold(change.facts)
            if change.facts.component_id is not None and (watcher := self.watcher) is not None:
                watcher.took(self, change.facts.component_id)

    def rule(self, policy: GroupPolicy, deadlines: tuple[int, ...] = ()) -> None:
        """It is a group of this row, from its opening on; in a restore of what it holds already. Raises `DecodeError` if that cannot be read.

        Args:
            policy: Of the row.
            deadlines: What its calendars named when it opened, epoch ms; if it is not known yet, they are asked.
        """
        self.special, self.ruled = True, Ruled(policy, deadlines or policy.deadlines(self.opened_at))
        if policy.assigns:
            self.end = count_of(policy.complete_when) or UNKNOWN_END
        if self.held:
            self.ruled.read_again(self.held.values())
            self.last_at = max(self.last_at, self.ruled.gathered.last_at)
        if (watcher := self.watcher) is not None:
            watcher.read_again(self)
            watcher.changed(self)

    def _read_again(self, ruled: Ruled) -> None:
        ruled.read_again(self.held.values())
        if (watcher := self.watcher) is not None:
            watcher.read_again(self)

    def announce(self, called: Called) -> None:
        """Takes the manifest of the replies that it holds, or is to hold: it ends with the last request."""
        assert self.ruled is not None
        self.ruled.called, self.end = called, called.requests

    def hold(self, seq: int, body: bytes, at: int) -> None:
        """Takes one component, of which nothing else is to be noted: its number is free and not above the end.

        Args:
            seq: Its number.
            body: Its Avro body.
            at: Its append time, epoch ms.
        """
        self.held[seq] = body
        self.bytes += len(body)
        if at > self.last_at:
            self.last_at = at
        if seq > self.highest:
            self.highest = seq

    def hold_piece(self, slot: int, body: bytes) -> None:
        """Takes a piece of a component, which fits to those that are held (`Segments.overlap`)."""
        if self.segments is None:
            self.segments = Segments()
        self.special = True
        self.segments.add(slot, body)

    def hold_routed(self, seq: int, body: bytes, at: int, arrival: int, value_bytes: int, component_id: bytes) -> None:
        """The same in a group by rule that looks at nothing else of it: its arrival, the length of its value, its component id."""
        self.held[seq] = body
        self.bytes += len(body)
        if at > self.last_at:
            self.last_at = at
        self.highest = seq
        assert self.ruled is not None
        self.ruled.hold_counted(arrival, value_bytes, component_id)

    def mark_end(self, end: int, tail: Tail | None) -> None:
        """The component just held has the end mark: none above it is held, and nothing else says another end. `tail`: see `Tail`."""
        self.end, self.marked, self.tail = end, True, tail

    def keep_tail(self, tail: Tail) -> None:
        """It closes with the component just held, of which this is to be told; nothing else is its end."""
        self.tail = tail

    def leave(self, external_bytes: int) -> None:
        """A component is held without its value; so much stays in `D.components`, and counts to the group's size."""
        self.special = True
        self.bytes += external_bytes
        self.external_bytes += external_bytes

    def close(self) -> None:
        """It is open no longer."""
        self.is_open = False

    def again(self, generation: int) -> Group:
        """An open group of this generation with the same components, which stands in no line (B-205)."""
        group = Group(self.id, generation, self.opened_at)
        for name in _PLAIN_FIELDS[2:]:
            setattr(group, name, getattr(self, name))
        group.line_up(b"", waits=False)
        group.held, group.waived = dict(self.held), self.waived
        return group

    def supersede(self, unit_id: bytes) -> None:
        """Sets `supersedes`."""
        self.supersedes = unit_id

    def leave_delivered(self) -> None:
        """Its unit, which was to correct another one, is not delivered: only the component that came late is its own."""
        if self.supersedes:
            self.supersedes = b""
            seq, body = next(reversed(self.held.items()))
            self.held, self.highest, self.bytes, self.waived_held = (
                {seq: body},
                seq,
                len(body),
                int(self.is_waived(seq)),
            )

    def list_plain(self, wanted: bool) -> None:
        """Sets `lists_plain`."""
        self.lists_plain = wanted

    @property
    def watcher(self) -> Watcher | None:
        """Is told of every change, where its key has several open groups; None else."""
        return None if self._watcher is None else self._watcher()

    def watch(self, watcher: Watcher) -> None:
        """Sets `watcher`. From now on no component is held by the short way of groups that count (`counted_groups`), which tells nobody.

        Whoever watches holds the group, and not the other way: in a circle both would stay in memory until the cyclic collector runs.
        """
        self._watcher = ref(watcher)
        if self.ruled is not None:
            self.ruled.counting = None

    def attach(self, attachment: object) -> None:
        """Sets `attachment`."""
        self.attachment = attachment

    # -- restore ----------------------------------------------------------------------------------------------------

    def as_data(self) -> dict[str, Any]:
        """The open group as numbers, bytes and lists: its fields by name, `held` as pairs of number (or slot of a piece) and body, `waived` as pairs of numbers.

        Of a group by rule also `rule`, the name of its row, which is empty otherwise, `waits_since`, and its manifest: who brought it, when, and the
        text, which is empty if there is none; and what its calendars named.
        """
        data = {name: getattr(self, name) for name in _PLAIN_FIELDS}
        rule, waits_since = ("", 0) if self.ruled is None else (self.ruled.policy.rule, self.ruled.waits_since)
        called = None if self.ruled is None else self.ruled.called
        manifest = (b"", 0, b"") if called is None else (called.command_id, called.at, called.text)
        data |= zip(("manifest_id", "manifest_at", "manifest"), manifest, strict=True)
        pieces = self.segments.bodies if self.segments is not None else {}
        lists = {
            "held": [*self.held.items(), *pieces.items()],
            "waived": [(each.first, each.last) for each in self.waived],
        }
        data["deadlines"] = [] if self.ruled is None else [*self.ruled.deadlines]
        return data | lists | {"rule": rule, "waits_since": waits_since}

    @classmethod
    def from_data(cls, data: Mapping[str, Any], row: GroupPolicy | None = None) -> Group:
        """The group that `as_data` was made of, by the policy of its row if it has one; its tail is read from the bytes when it closes.

        Raises:
            DecodeError: A component cannot be read by that row.
        """
        group = cls(data["id"], data["generation"], data["opened_at"])
        group.held = {seq: body for seq, body in data["held"] if seq < FIRST_SLOT}
        for slot, body in data["held"]:
            if slot >= FIRST_SLOT:
                group.hold_piece(slot, body)
        if row is not None:
            group.rule(row, tuple(data["deadlines"]))
            assert group.ruled is not None
            group.ruled.waits_since = data["waits_since"]
            if data["manifest"]:
                group.announce(Called.read(data["manifest_id"], data["manifest_at"], data["manifest"]))
        for name in _PLAIN_FIELDS:
            setattr(group, name, data[name])
        group.waived = tuple(Range(first, last) for first, last in data["waived"])
        return group

    def hold_all(self, held: dict[int, bytes], end: int) -> None:
        """Takes all its components at once, in order of arrival, into a group that is empty; the dictionary is the group's from now on.

        Args:
            held: Bodies by number; none of them has attributes or lacks its value.
            end: Number of the one with the end mark, `UNKNOWN_END` if there is none.
        """
        self.held = held
        self.bytes = sum(map(len, held.values()))
        self.highest = max(held, default=0)
        if end != UNKNOWN_END:
            self.end, self.marked = end, True

    def read_last_at(self) -> None:
        """Takes `last_at` from the components' own append times."""
        self.last_at = max([self.opened_at, *(decode_component(body).timestamp for body in self.bodies())])

    # -- its place in line (W-210) ----------------------------------------------------------------------------------

    def line_up(self, order_key: bytes, waits: bool) -> None:
        """It is in the line of this order key, behind others if it waits; of none with an empty key."""
        self.order_key, self.waits = order_key, waits

    def free(self, at: int) -> None:
        """It is first in line since this moment, epoch ms."""
        self.waits, self.free_at = False, at

    # -- commands ---------------------------------------------------------------------------------------------------

    def _amend(self, change: Amended) -> None:
        self.special = True
        self.declared_end, self.extended = change.declared_end, change.extended
        self.waived = change.waived
        self.waived_held = len(list(those_in(self.waived, self.held)))
        if change.declared_end:
            self.end = change.declared_end

    def _remove(self, change: Removed) -> None:
        self.special = True
        for seq in change.seqs:
            body = self.held.pop(seq)
            left = external_bytes(body) if self.external_bytes else 0
            self.external_bytes -= left
            self.bytes -= len(body) + left
            if self.is_waived(seq):  # it is missing now, and may be sent again
                self.waived, self.waived_held = without(self.waived, (seq,)), self.waived_held - 1
        self.highest = max(self.held, default=0)
        self.tail = None
        if self.ruled is not None:
            self._read_again(self.ruled)
        self.end, self.marked = change.end, change.marked
        last_at = change.last_at if self.ruled is None else self.ruled.gathered.last_at
        self.last_at = last_at or self.opened_at  # a group that gathers replies may hold none any more
        self.expires_at, self.deliver_at = change.expires_at, change.deliver_at

    def _erase(self, change: Erased) -> None:
        self.special = True
        self.bytes += len(change.body) - len(self.held[change.seq])
        self.held[change.seq] = change.body
        self.tail = None
        if self.ruled is not None:
            self._read_again(self.ruled)

    def forget(self) -> None:
        """Lets go of the components once nobody will ask: a closed group may stay in line for its deadline."""
        self.held = {}
        self.segments = None
        self.tail = None

    def bodies(self) -> list[bytes]:
        """Avro bodies of all records held: components, then pieces of those that are not whole yet; both in order of arrival."""
        pieces = self.segments.bodies.values() if self.segments is not None else ()
        return [*self.held.values(), *pieces]

    @property
    def record_count(self) -> int:
        """How many that are."""
        return len(self.held) + (len(self.segments.bodies) if self.segments is not None else 0)

    def bytes_in_pieces(self, without: int = 0) -> int:
        """Bytes of the pieces held, but for those of one number."""
        return 0 if self.segments is None else self.segments.bytes - self.segments.bytes_of(without)

    @property
    def has_unit(self) -> bool:
        """True unless all that it holds are pieces of components that are not whole yet."""
        return bool(self.held) or self.ruled is not None

    @property
    def end_known(self) -> bool:
        return self.end != UNKNOWN_END

    @property
    def complete(self) -> bool:
        """Every number from 1 to the end is held or waived (W-15, W-203); or, by rule, its row says so by what is held."""
        if self.ruled is not None:
            return asked(self.ruled.policy.complete_when, self.standing(), self.ruled.policy).at == 0
        return is_complete(len(self.held), self.spared(self.waived, self.end) if self.waived else 0, self.end)

    def policy(self, destination: DestinationPolicy) -> DestinationPolicy:
        """The settings that hold for this group: those of its row, else the destination's."""
        return destination if self.ruled is None else self.ruled.policy

    @property
    def assigns(self) -> bool:
        """True if it gives its components their numbers."""
        return self.ruled is not None and self.ruled.policy.assigns

    @property
    def is_uniform(self) -> bool:
        """True if no component can have an expiry, a priority or a delivery mode."""
        return not self.special or (self.ruled is not None and self.ruled.is_routed)

    def standing(self) -> Standing:
        """How a group by rule stands."""
        assert self.ruled is not None
        spared = self.spared(self.waived, self.end) if self.waived else 0
        ruled, weight = self.ruled, self.weight(self.waived)
        return Standing(
            len(self.held), spared, self.end, self.closing()[1], ruled.gathered, ruled.called, ruled.deadlines, weight
        )

    def standing_with(self, seq: int, end: int, reason: Reason, spared: int, facts: Facts) -> Standing:
        """The same with one component more; with the end and the spared numbers that the group has then."""
        assert self.ruled is not None
        ruled, weight = self.ruled, self.weight(self.waived, {seq})
        gathered = ruled.gathered.plus(facts)
        return Standing(len(self.held) + 1, spared, end, reason, gathered, ruled.called, ruled.deadlines, weight)

    def weight(self, waived: Ranges, joining: Collection[int] = ()) -> int:
        """Weight of the requests that are answered, by what is held and what joins, or need not be, if `waived` are waived; 0 without weights (B-209)."""
        weights = self.ruled.called.weights if self.ruled is not None and self.ruled.called is not None else ()
        answered = {*self.held, *joining, *those_in(waived, range(1, len(weights) + 1))} if weights else ()
        return sum(weights[number - 1] for number in answered)

    def unanswered(self) -> list[int]:
        """Numbers of the requests of its manifest without a reply."""
        called = self.ruled.called if self.ruled is not None else None
        return [] if called is None else [each for each in range(1, called.requests + 1) if each not in self.held]

    def is_waived(self, seq: int) -> bool:
        """True if a command said that the number is not needed."""
        return any(those_in(self.waived, (seq,)))

    def spared(self, waived: Ranges, end: int) -> int:
        """How many numbers up to an end are neither held nor needed, if `waived` are waived: those waived now, or more of which none is held."""
        return count_up_to(waived, end) - self.waived_held

    def closing(self) -> tuple[UnitOutcome, Reason]:
        """How a complete group closes: with numbers waived it is `partial`; the reason is what made the end known (W-203, W-204)."""
        if self.spared(self.waived, self.end):
            return UnitOutcome.PARTIAL, Reason.COMMAND
        if self.marked:
            return UnitOutcome.COMPLETE, Reason.END
        return UnitOutcome.COMPLETE, Reason.COMMAND if self.declared_end else Reason.COUNT

    def due_at(self, policy: DestinationPolicy) -> int:
        """The earliest clock value at which this group must be looked at, epoch ms; `NEVER` if none. `policy`: as of `closes_at`."""
        due = self.closes_at(policy)
        return due if not policy.warn_at_percent or self.warned_at else min(due, self.warns_at(policy))

    def warns_at(self, policy: DestinationPolicy) -> int:
        """When it is told what it lacks: once the share of its time is used up that `warn_at_percent` says; `NEVER` if nothing can be named (B-202).

        Each limit has a share of its own: so no component moves the moment to an earlier one.
        """
        if self.complete or (self.assigns and self.ruled is not None and not self.ruled.policy.sources):
            return NEVER
        share = policy.warn_at_percent
        moments = [since + (at - since) * share // 100 for since, at, _ in self.limits(policy)]
        return min(moments, default=NEVER)

    def limits(self, policy: DestinationPolicy) -> list[Limit]:
        """The limits of time of an open group that is not complete. `policy`: as of `closes_at`."""
        found = [Limit(self.opened_at, self.expires_at, Reason.COMPONENT_EXPIRED)] if self.expires_at else []
        if self.ruled is not None:
            first = min(self.asked(self.ruled.policy))
            if first.at < NEVER and not self.ruled.waits_since:
                since = self.standing().last_at if first.reason is Reason.IDLE else self.opened_at
                found.append(Limit(since, first.at - 1, first.reason))
            return found
        ends = [
            (self.opened_at, policy.incomplete_expiration_ms, Reason.AGE),
            (self.last_at, policy.idle_expiration_ms, Reason.IDLE),
        ]
        return found + [
            Limit(since, max(since + ms, self.extended), reason) for since, ms, reason in ends if ms != NEVER_MS
        ]

    def closes_at(self, policy: DestinationPolicy) -> int:
        """The earliest clock value at which this group is delivered, given up, or gets more time; `NEVER` if none.

        A deadline is passed strictly after it, so it is due one millisecond later; `uow-deliver-at` is due when reached. Age and idle
        stop counting once every number is held, component expiry does not (W-77). What would be delivered waits until it is available, also
        where it is partial (W-08, W-207), and for its turn (W-210).

        Args:
            policy: Of the destination; a group by rule has its own.
        """
        if self.ruled is not None:
            return self._due_by_rule(self.ruled.policy)
        due = self.expires_at + 1 if self.expires_at else NEVER
        if self.waits and (self.complete or policy.expiration_policy is ExpirationPolicy.DELIVER_PARTIAL):
            return due
        if self.complete:
            return min(due, max(self.deliver_at, self.free_at))
        if policy.expiration_policy is ExpirationPolicy.DELIVER_PARTIAL and (until := self.give_up_at(policy)) != NEVER:
            return min(due, max(until, self.deliver_at))
        return min(due, self.give_up_at(policy))

    def takes_until(self, source_name: str | None) -> int:
        """Before which arrival it takes a component of this source as one of several open groups of a key (B-99, B-207), epoch ms; `-NEVER`: it takes none."""
        if self.ruled is None:
            return -NEVER
        until = self.ruled.accepts_until(source_name)
        return until if until == -NEVER else min(until, self.closes_at(self.ruled.policy))

    def deadline(self, policy: DestinationPolicy) -> int | None:
        """When the group is given up, or delivered where it only waits for `uow-deliver-at`, epoch ms; None: never."""
        due = self.closes_at(policy)
        return None if due >= NEVER else due if self.complete else due - 1

    def _due_by_rule(self, policy: GroupPolicy) -> int:
        due = self.expires_at + 1 if self.expires_at else NEVER
        if self.ruled is not None and self.ruled.waits_since:
            return min(due, self.ruled.leaves_at(self.deliver_at))
        complete, give_up = self.asked(policy)
        if complete.at == 0 or complete.at < give_up.at:
            return min(due, max(complete.at, self.deliver_at))
        if policy.expiration_policy is ExpirationPolicy.DELIVER_PARTIAL and give_up.at < NEVER:
            return min(due, max(give_up.at, self.deliver_at))
        return min(due, give_up.at)

    def id_prints(self, joining: bytes | None = None) -> bytes:
        """Fingerprints of its components, which are kept once their unit is delivered, where the assembler numbers them (B-38). `joining`: id of one more."""
        if self.ruled is None or not self.ruled.policy.remembers_components:
            return b""
        return id_fingerprints(self.id, self.ruled.component_ids | ({joining} if joining is not None else set()))

    def complete_reason(self) -> Reason:
        """Why a group by rule that waits is complete: by a condition that holds, or because the next component did not fit (B-40)."""
        assert self.ruled is not None
        complete = self.asked(self.ruled.policy)[0]
        return Reason.BYTES if complete.at >= NEVER else complete.reason

    def asked(self, policy: GroupPolicy) -> tuple[Holding, Holding]:
        """From when a group by rule is complete, and from when it is given up, as it stands; the latter not before what `extend` said."""
        assert self.ruled is not None
        standing = self.standing()
        if self.ruled.awaits_manifest:
            give_up = Holding(self.ruled.held_until, Reason.MANIFEST)
        else:
            give_up = asked(policy.give_up_when, standing, policy)
        if self.extended and give_up.at < NEVER:
            give_up = give_up._replace(at=max(give_up.at, self.extended + 1))
        return asked(policy.complete_when, standing, policy), give_up

    def give_up_at(self, policy: DestinationPolicy) -> int:
        """When age or idleness gives the group up while a number is lacking, not before what `extend` said; `NEVER` if they do not count."""
        if self.ruled is not None:
            return self.asked(self.ruled.policy)[1].at
        due = NEVER
        if policy.incomplete_expiration_ms != NEVER_MS:
            due = self.opened_at + policy.incomplete_expiration_ms + 1
        if policy.idle_expiration_ms != NEVER_MS:
            due = min(due, self.last_at + policy.idle_expiration_ms + 1)
        return max(due, self.extended + 1) if self.extended else due

    def give_up_reason(self, policy: DestinationPolicy) -> Reason:
        """Age or idleness, by which of the two the group is given up first."""
        if self.ruled is not None:
            return self.asked(self.ruled.policy)[1].reason
        age, idle = policy.incomplete_expiration_ms, policy.idle_expiration_ms
        by_age = age != NEVER_MS and (idle == NEVER_MS or self.opened_at + age <= self.last_at + idle)
        return Reason.AGE if by_age else Reason.IDLE

    def last_arrived(self) -> tuple[int, bytes | None] | None:
        """Number and component id of the component held last: what a finished unit had been waiting for (W-213)."""
        seq = next(reversed(self.held), None)
        return None if seq is None else (seq, component_id_of(self.held[seq]))

    def held_ranges(self) -> tuple[Range, ...]:
        """Numbers held, as ranges. Costs a sort, so it is asked for on close and by people only."""
        return as_ranges(self.held)

    def missing(self) -> tuple[Range, ...]:
        """Numbers lacking, as ranges; the last one is open (`MAX_SEQ`) while the end is unknown (W-71)."""
        return missing_numbers(self.held, self.end)

    def in_order(self) -> list[bytes]:
        """Bodies in number order, compared as integers (W-10); of a group by rule in the order that its row asks for."""
        held = self.held
        if self.ruled is not None and (self.ruled.policy.by_source or self.ruled.policy.rank is not None):
            return self.ruled.in_order([held[seq] for seq in sorted(held)])
        if len(held) == self.highest:
            return list(map(held.__getitem__, range(1, self.highest + 1)))
        return [held[seq] for seq in sorted(held)]


class RowTarget(NamedTuple):
    """The part of a partition that `hold_rows` reads and writes.

    Attributes:
        groups: Open groups by id.
        closed_ids: Closed groups that are remembered, by id.
        max_components: Components that a group may have, whatever they weigh.
        max_bytes: Bytes that they may have.
        latest: An append time after this is not believed.
        is_printed: True if fingerprints of delivered units are kept.
        may_open: True if a plain component of an id without a group opens one.
        schedule: Puts the deadline of a new group in line, and returns the earliest of all; None where no group has one from its start.
        on_odd: Judges one row by the whole table. Takes its offset, its body, and the clock and `left_bytes` before it; returns the clock,
            the earliest deadline and `left_bytes` after it.
        note_held: Takes each component held, unless its group does not list them.
        note_closed: Takes each group closed, with what is remembered of it.
        note_order: Takes what is remembered.
        note_effect: Takes each unit delivered.
    """

    groups: dict[bytes, Group]
    closed_ids: dict[bytes, Closed]
    max_components: int
    max_bytes: int
    latest: int
    is_printed: bool
    may_open: Callable[[bytes], bool]
    schedule: Callable[[Group], int] | None
    on_odd: Callable[[int, bytes, int, int], tuple[int, int, int]]
    note_held: Callable[[tuple[Group, int, bool, int, None]], None]
    note_closed: Callable[[tuple[Group, Closed]], None]
    note_order: Callable[[Closed], None]
    note_effect: Callable[[tuple[Delivered, None, Group]], None]


class BulkResult(NamedTuple):
    """Result of `hold_rows`: the clock and `left_bytes` after it; components and bytes of the units that it delivered."""

    clock: int
    left_bytes: int
    delivered: int
    closed_bytes: int


def hold_rows(target: RowTarget, columns: Columns, clock: int, due: int, left_bytes: int) -> BulkResult:
    """Holds plain rows in offset order, and delivers the groups that are complete by them: `Group.hold`, `mark_end` and `close` in line.

    True at the top of the loop, of all rows before this one:

    - `clock` is the latest append time that is believed, and nothing is due by it, unless the plan is full.
    - Once the plan is full (`left_bytes` below 0) `due` is not above 0, so that every row that follows is odd; `on_odd` leaves it then.
    - A group that is not special is not complete: it would have been delivered with its last row. If its end is known it is held, and so the
      highest number: an end mark on another one is above the end, or below the highest.

    A row that is plain, and whose group is open and not special, or opens with it, is held if its number is free and not above the end, no limit
    is reached, no deadline has passed, and its end mark contradicts nothing: line 15. Every other row is odd. The tests of a row that meets a
    group are those of lines 10, 11 and 14, the clock, and line 12; of one that meets none lines 8 and 9, 14 and 6.

    Args:
        target: The partition.
        columns: The rows.
        clock: The partition's clock.
        due: A clock value before which no group needs to be looked at.
        left_bytes: Bytes that the plan has left.
    """
    groups, closed_ids, may_open, schedule, on_odd = (
        target.groups,
        target.closed_ids,
        target.may_open,
        target.schedule,
        target.on_odd,
    )
    max_components, max_bytes, latest, is_printed = (
        target.max_components,
        target.max_bytes,
        target.latest,
        target.is_printed,
    )
    note_held, note_closed, note_order, note_effect = (
        target.note_held,
        target.note_closed,
        target.note_order,
        target.note_effect,
    )
    tails = columns.tails
    unknown, complete, by_end = UNKNOWN_END, UnitOutcome.COMPLETE, Reason.END
    new = tuple.__new__  # a named tuple's own is a Python function
    delivered = closed_bytes = 0
    rows = zip(columns.ids, columns.seqs, columns.ends, columns.times, columns.offsets, columns.bodies, strict=True)
    for group_id, seq, end, at, offset, body in rows:
        before = clock
        if clock < at <= latest:
            clock = at
        group = groups.get(group_id)  # None, an odd row, is no key of it
        if group is not None:
            held = group.held
            total = group.bytes + len(body)
            if (
                seq in held
                or seq > group.end
                or total > max_bytes
                or len(held) >= max_components
                or clock >= due
                or group.special
                or (end and seq < group.highest)
            ):
                clock, due, left_bytes = on_odd(offset, body, before, left_bytes)
                due *= left_bytes >= 0
                continue
            group.bytes = total
            if at > group.last_at:
                group.last_at = at
        else:
            if (
                group_id is None
                or clock >= due
                or group_id in closed_ids
                or len(body) > max_bytes
                or not may_open(group_id)
            ):
                clock, due, left_bytes = on_odd(offset, body, before, left_bytes)
                due *= left_bytes >= 0
                continue
            group = groups[group_id] = Group(group_id, 1, at)
            held = group.held
            group.bytes = len(body)
            if schedule is not None:
                due = schedule(group)
        held[seq] = body
        if seq > group.highest:
            group.highest = seq
        if group.lists_plain:
            note_held((group, seq, end, offset, None))
        if end:
            group.end, group.marked, group.tail = seq, True, tails[offset]
        if group.end != unknown and is_complete(len(held), 0, group.end):
            # its end came by its mark, and it waits for neither a moment nor its turn: anything else would have made it special
            end_at = group.end
            prints = fingerprints(held) if is_printed else b""
            closed = new(Closed, (group_id, group.generation, complete, by_end, end_at, offset + 1, clock, prints))
            del groups[group_id]
            group.is_open = False
            closed_ids[group_id] = closed
            note_order(closed)
            note_closed((group, closed))
            note_effect((new(Delivered, (closed, None, 0)), None, group))
            delivered += end_at
            closed_bytes += group.bytes
            left_bytes -= group.bytes + LEDGER_SHARE * (ENTRY_BYTES + len(prints))
            due *= left_bytes >= 0
    return BulkResult(clock, left_bytes, delivered, closed_bytes)
