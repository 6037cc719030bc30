"""Streams of everything that the wire allows, from a seed: settings, rows of rules, components, pieces, commands of every verb, moments of the clock.

Few ids, small numbers and short times, so that each thing meets every state of a group. Ids are those that somebody will send one day: with NUL,
as long as an id may be, one that only fills another one up, one that names a group by rule. `test_everything_is_drawn` lists all that there is to draw.

Belongs here: drawing. Does not belong here: playing a stream (`ways`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from tests.core.script import TOPICS
from tests.fake_record import T0, UNREADABLE_HEADERS, FakeRecord
from tests.signed_commands import ForeignSigner
from uow.processor.engine.ports import Tp
from uow.topics.command_keys import CommandKey
from uow.topics.commands import Verb
from uow.topics.headers import ALIASES
from uow.topics.partitioner import partition_for
from uow.topics.policies import (
    AliasFamily,
    DestinationPolicy,
    DuplicatePolicy,
    ExpirationPolicy,
    FieldSource,
    Fingerprints,
    HandlingPolicy,
    LatePolicy,
    OutcomesPolicy,
    Oversize,
    Routing,
    Shape,
    ValueFormat,
    ViolationPolicy,
)
from uow.topics.routes import Route, RouteMatching
from uow.topics.rules import (
    AtMaxOpenGroups,
    AtWaitingLimit,
    BelowMin,
    Cardinality,
    DeliverOrder,
    LateJoin,
    Numbering,
    OnRuleChange,
    Parameter,
    Release,
    ResolvedRow,
    Row,
    Rule,
    Source,
    WaitFrom,
)
from uow.topics.selector import Selector

PARTITIONS = 2
COMPONENTS, COMMANDS = Tp(TOPICS.components, 0), Tp(TOPICS.commands, 0)


@dataclass(frozen=True, slots=True)
class Tick:
    """The partition is read to its end at this wall clock; at the routers all is there that arrived before `settled_ms`."""

    now_ms: int
    settled_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Latest:
    """From here on no append time after this is believed."""

    at_ms: int


Event = FakeRecord | Tick | Latest
"""A record is of `D.components` or of `D.commands`. Append times tell their order: a component comes before a command of the same moment."""


@dataclass(frozen=True, slots=True)
class Stream:
    """What is played.

    Attributes:
        policy: Of the destination.
        rows: Of its rules, all versions; each is known once somebody has asked for it.
        events: In order; offsets rise.
        record_limit_bytes: Largest record that can be written.
    """

    policy: DestinationPolicy
    rows: tuple[ResolvedRow, ...]
    events: tuple[Event, ...]
    record_limit_bytes: int


# -- ids ------------------------------------------------------------------------------------------------------------


def _here(name: bytes, partition: int = COMPONENTS.partition) -> bool:
    return partition_for(name, PARTITIONS) == partition


_SHORT = [b"a", b"b", b"shop/UK", b"call/trip/1", "é".encode(), b"a.1", b"\0", b"many/x", b"a\0" + b"1"]
_LONG = [b"x" * 255, b"\0" * 255, b"ab" + b"\0" * 253]
IDS = [
    each for name in _SHORT for each in (name, name + b"\0", name + b"\0\0", name + b"2", name + b"\0\1") if _here(each)
]
IDS += [each for each in _LONG if _here(each)]
TWINS = [[each, each + b"\0"] for each in IDS if each + b"\0" in IDS]
"""An id, and one that fills it up."""
ELSEWHERE = next(name for name in (b"e%d" % number for number in range(99)) if not _here(name))
"""Belongs to another partition."""

# -- settings -------------------------------------------------------------------------------------------------------

SIGNER = ForeignSigner("ops")
_LANES = (Route(Selector("uow-size > 1"), "large"), Route(Selector("user IS NOT NULL"), "marked"))
_KEYS = (CommandKey("ops", SIGNER.public, frozenset({"all"})), CommandKey("ops", SIGNER.public, frozenset({"waive"})))


def _mostly(usual: Any, *others: Any) -> list[Any]:
    """Choices of which one is as likely as all others together."""
    return [usual] * len(others) + [*others]


SETTINGS: dict[str, Sequence[Any]] = {
    "handling_policy": [HandlingPolicy.SINGLE_MESSAGE_DELIVERY] * 9 + [HandlingPolicy.PASS_THROUGH],
    "shape": _mostly(Shape.ENVELOPE, Shape.CONSECUTIVE, Shape.REFERENCE),
    "value_format": _mostly(ValueFormat.AVRO, ValueFormat.JSON, ValueFormat.XML),
    "incomplete_expiration_ms": [-1, -1, 40, 200],
    "idle_expiration_ms": [-1, -1, 30, 100],
    "expiration_policy": [*ExpirationPolicy],
    "warn_at_percent": [0, 0, 50],
    "duplicate_policy": [*DuplicatePolicy],
    "violation_policy": _mostly(ViolationPolicy.REJECT_COMPONENT, ViolationPolicy.FAIL_GROUP),
    "late_policy": [*LatePolicy],
    "amend_max_bytes": [16_777_216, 16_777_216, 3_000],
    "closed_retention_ms": [3_600_000, 3_600_000, 100, 20],
    "closed_max_groups": [1_000_000, 1_000_000, 3, 1],
    "max_components": [1_000_000, 1_000_000, 1_000_000, 4, 2],
    "max_run_components": [100_000, 3],
    "max_bytes": [67_108_864, 67_108_864, 67_108_864, 700, 250],
    "max_headers": [1_000, 1_000, 6],
    "max_header_name_bytes": [65_536, 65_536, 60],
    "oversize": [*Oversize],
    "routing": [Routing.HASH, Routing.HASH, Routing.HASH, Routing.PATH],
    "outcomes": [*OutcomesPolicy],
    "accept_aliases": [frozenset(), frozenset(), *(frozenset({each}) for each in AliasFamily), frozenset(AliasFamily)],
    "expiration_log_headers": [("user",), ()],
    "routes": [(), _LANES],
    "route_matching": [*RouteMatching],
    "field_source": _mostly(FieldSource.HEADERS, FieldSource.HEADERS, FieldSource.VALUE),
    "fingerprints": [*Fingerprints],
    "command_keys": _mostly((), _KEYS[:1], _KEYS[1:]),
    "unsigned_commands": [frozenset({"manifest"}), frozenset({"release"})],
    "command_window_ms": [300_000, 1_000],
}
"""Of each setting that the core or the engine's task looks at, what is drawn."""


def draw_policy(rnd: Random) -> DestinationPolicy:
    """The settings of a destination, as far as `uow config check` takes them together."""
    share = rnd.choice([0.1, 0.3, 0.6])
    drawn: dict[str, Any] = {name: rnd.choice(values) for name, values in SETTINGS.items() if rnd.random() < share}
    drawn.setdefault("handling_policy", HandlingPolicy.SINGLE_MESSAGE_DELIVERY)
    policy = DestinationPolicy(**drawn)
    if policy.may_refer or policy.routing is Routing.PATH:
        policy = replace(policy, late_policy=rnd.choice([LatePolicy.REJECT, LatePolicy.REOPEN]))
    return replace(policy, command_window_ms=min(policy.command_window_ms, policy.closed_retention_ms // 2))


# -- rows of rules --------------------------------------------------------------------------------------------------

_COMPLETE_WHEN = _mostly(
    None,
    "predicate(sum(quantity) >= 4)",
    "urgent(path('quantity') == 3)",
    "urgent(path('quantity') == 3, alone)",
    "all(count(2), bytes(40))",
    "not(count(2))",
    "bytes(30, strict)",
    "command",
    "any(per_source, count(4))",
    "end_flag_without_gaps",
)
_GIVE_UP_WHEN = _mostly(
    None, "at(00:00, UTC)", "any(behind(60), age(90))", "all(age(40), count(2))", "component_deadline", "idle(25)"
)

RULE_COLUMNS: dict[str, Sequence[Any]] = {
    "cardinality": _mostly(Cardinality.ONE, Cardinality.MANY),
    "sequence": _mostly(Numbering.ASSIGNED, Numbering.GIVEN),
    "order_by": _mostly("arrival", "source", "field:path:quantity", "field:header:user"),
    "deliver_order": _mostly(DeliverOrder.COMPLETION, DeliverOrder.FIRST_ARRIVAL),
    "release": _mostly(Release.AUTO, Release.HOLD_ALL, Release.HOLD_FIRST),
    "release_every_ms": _mostly(None, 50),
    "max_waiting": _mostly(None, 1, 2),
    "waiting_age_ms": _mostly(None, 60),
    "at_waiting_limit": [*AtWaitingLimit],
    "late_policy": _mostly(LatePolicy.REJECT, LatePolicy.REOPEN),
    "on_rule_change": [*OnRuleChange],
    "name_template": [None, None, "unit-*"],
    "max_open_groups": _mostly(None, 1, 2, 3),
    "at_max_open_groups": [*AtMaxOpenGroups],
}
ROW_COLUMNS: dict[str, Sequence[Any]] = {
    "target_topic": [None, None, "target"],
    "complete_count": [None, 1, 2, 3, 5],
    "complete_bytes": _mostly(None, 30, 90),
    "complete_when": _COMPLETE_WHEN,
    "give_up_when": _GIVE_UP_WHEN,
    "min_count": [1, 1, 2],
    "below_min": [*BelowMin],
    "age_ms": [None, 30, 100],
    "idle_ms": _mostly(None, 20),
    "age_from": _mostly("arrival", "event:path:at"),
    "on_give_up": [*ExpirationPolicy],
    "late_join": [*LateJoin],
    "shape": _mostly(None, *Shape),
    "value_format": _mostly(None, *ValueFormat),
}
SOURCE_COLUMNS: dict[str, Sequence[Any]] = {
    "quantity": [None, 1, 2],
    "wait_ms": [None, 25, 80],
    "wait_from": [*WaitFrom],
}
PARAMETERS: dict[str, Sequence[Any]] = {
    "reply_hold_ms": ["60000", "30", ""],
    "reply_topics": ["", "answers"],
    "notice_topics": ["", "cancelled"],
    "delivery_attempts": ["5", "1"],
}
CALLS = "call"
"""Id of the rule whose groups gather replies."""


def draw_rows(rnd: Random) -> tuple[ResolvedRow, ...]:
    """Some rules of one or two rows with up to three versions each, of which a later one changes a few columns."""
    found = []
    several = rnd.choice(
        [{}, {}, {"release": Release.HOLD_ALL}, {"cardinality": Cardinality.MANY}]
    )  # open groups of a key
    # half of them are complete so soon that there are several
    soon = {"complete_count": rnd.choice([1, 2]), "complete_when": None} if several and rnd.random() < 0.5 else {}
    for rule_id in rnd.sample(["shop", "many", CALLS], rnd.randint(1, 3)):
        rule = Rule(rule_id, 1, "D", **_some(rnd, RULE_COLUMNS, 8) | several)
        sources = tuple(
            Source(rule_id, name, 1, **_some(rnd, SOURCE_COLUMNS, 3)) for name in ("web", "in") if rnd.random() < 0.3
        )
        parameters = tuple(Parameter(name, 1, rnd.choice(values)) for name, values in PARAMETERS.items())
        for name in rnd.sample(["UK", "trip", "*"], rnd.randint(1, 2)):
            row = Row(rule_id, name, 1, **_some(rnd, ROW_COLUMNS, 6) | soon)
            for version in range(1, rnd.randint(1, 3) + 1):
                rule = replace(rule, version=version, **_some(rnd, RULE_COLUMNS, 1 if version > 1 else 0))
                row = replace(row, version=version, **_some(rnd, ROW_COLUMNS, 2 if version > 1 else 0))
                found.append(ResolvedRow(*_possible(rnd, rule, row), sources if rule_id != CALLS else (), parameters))
    return tuple(found)


def _some(rnd: Random, columns: dict[str, Sequence[Any]], most: int) -> dict[str, Any]:
    names = rnd.sample([*columns], rnd.randint(0, most))
    return {name: rnd.choice(columns[name]) for name in names}


def _possible(rnd: Random, rule: Rule, row: Row) -> tuple[Rule, Row]:
    """As close to it as `uow rules check` takes."""
    if rule.rule_id == CALLS:
        ways = ["manifest", "manifest(2)", "any(manifest, predicate(sum(quantity) >= 4))"]
        rule = replace(rule, group_key="request", sequence=Numbering.GIVEN, cardinality=Cardinality.ONE)
        rule = replace(rule, deliver_order=DeliverOrder.COMPLETION)
        age_from = rnd.choice(["arrival", "manifest"])
        shape = None if row.shape is Shape.CONSECUTIVE else row.shape
        row = replace(row, complete_when=rnd.choice(ways), age_ms=row.age_ms or 60, age_from=age_from, shape=shape)
    if rule.sequence is Numbering.GIVEN and "alone" in (row.complete_when or ""):
        row = replace(row, complete_when=None)
    if rule.deliver_order is DeliverOrder.FIRST_ARRIVAL:
        rule, row = replace(rule, release=Release.AUTO), replace(row, age_ms=row.age_ms or 50)
    if row.age_ms is None and (row.below_min is BelowMin.EXTEND or row.age_from != "arrival"):
        row = replace(row, age_ms=70)
    if "behind" in (row.give_up_when or "") and row.complete_count is None:
        row = replace(row, complete_count=4)
    if row.complete_count is not None and row.min_count > row.complete_count:
        row = replace(row, min_count=row.complete_count)
    if (row.complete_count, row.complete_bytes, row.complete_when, row.age_ms, row.idle_ms) == (None,) * 5:
        row = replace(row, complete_count=3)
    return rule, row


# -- components -----------------------------------------------------------------------------------------------------

SAID: dict[str, Sequence[bytes | None]] = {
    "uow-component-id": [b"m1", b"m2", "é".encode(), b"m\0", b"", None, b"\xff"],
    "uow-count": [b"1", b"2", b"3", b"5", b"many", b"\0\0\0\2", None],
    "uow-expires-at": [b"+20", b"+60", b"-5", b"soon", None],
    "uow-deliver-at": [b"+20", b"+60", b"-5", b"-", None],
    "uow-digest": [b"sha256:" + b"0" * 64, b"md5"],
    "uow-correlation-id": [b"q-1", b"q-2", b"\xff", None],
    "uow-priority": [b"0", b"9", b"11", None],
    "uow-type": [b"order", None],
    "uow-user-id": [b"jill", b"\0"],
    "uow-reply-to": [b"answers"],
    "uow-delivery-mode": [b"persistent", b"non_persistent", None],
    "uow-destination": [b"UK", None],
    "uow-source-name": [b"web", b"in", b"nobody", b""],
    "uoo-name": [b"order"],
    "uow-order-key": [b"line", b"other", b"line\0"],
    "uow-pipeline-version": [b"2"],
    "uow-barrier": [b"b"],
    "uow-hops": [b"1"],
    "uow-origin-ts": [b"1700000000000"],
    "uow-producer-id": [b"p"],
    "uow-inner-id": [b"i"],
    "uow-depth": [b"1", b"2", b"3", b"x"],
    "uow-parent-id": [b"p"],
    "uow-parent-seq": [b"1"],
    "uow-parent-end": [b"true"],
    "uow-parent-count": [b"2"],
    "uow-rerouted": [b"1", None],
    "uow-resubmitted": [b"D.components/0/1"],
    "uow-warning": [b"late"],
    "uow-recycled": [b"c1"],
    "uow-request-id": [b"call/trip/1.1"],
    "uow-collection": [b"c"],
    "uow-folders": [b"[]"],
    "uow-content-type": [b"application/xml"],
    "uow-erased": [b"1", None],
    "uow-kind": [b"unit", None],
    "uow-unit-id": [b"u"],
    "uow-generation": [b"2"],
    "uow-outcome": [b"complete"],
    "uow-reason": [b"end"],
    "uow-size": [b"1"],
    "uow-missing": [b"2-"],
    "uow-pos": [b"1/2"],
    "uow-supersedes": [b"u"],
    "uow-opened-at": [b"1"],
    "uow-closed-at": [b"1"],
    "uow-bytes": [b"1"],
    "uow-component-seq": [b"1"],
    "uow-component-end": [b"true"],
    "uow-component-at": [b"1"],
    "uow-component-key": [b"k"],
    "uow-own-uow-key": [b"k"],
    "uow-origin-size": [b"1"],
    "uow-origin-own-uow-key": [b"k"],
    "uow-origin-kind": [b"unit"],
    "uow-error-class": [b"UowError"],
    "uow-error-case": [b"late"],
    "uow-error-text": [b"t"],
    "uow-error-value": [b"v"],
    "uow-failure-reason": [b"expired"],
    "uow-source": [b"D.components/0/1"],
    "uow-unheard-of": [b"x"],
    "user": [b"u", None, b"\xff\0"],
}
"""Headers beside those of every component, and their values; one that begins with a sign is so many ms from the append time."""
_OFTEN = [
    "uow-component-id",
    "uow-count",
    "uow-expires-at",
    "uow-deliver-at",
    "uow-order-key",
    "uow-source-name",
    "user",
]
_FOREIGN: dict[str, Sequence[bytes | None]] = {
    "uow-id": [b"a", b"other", None],
    "uow-seq": [b"1", b"2", b"\0\0\0\2", None],
    "uow-end": [b"true", b"false", b"1"],
    "uow-segment-at": [b"0", b"2"],
    "mq-group-id": [b"\0" * 24, b"a" * 24, b"61"],
    "mq-msg-flags": [b"8", b"16"],
    "fragment.index": [b"0", b"1", b"2"],
    "sequenceSize": [b"0", b"3", b"\0\0\0\3"],
}
_ALIASES = {
    name: _FOREIGN.get(name) or _FOREIGN.get(meant) or SAID[meant]
    for family in ALIASES.values()
    for name, meant in family.items()
}
_VALUES = [
    b'{"quantity": 1}',
    b'{"quantity": 3, "at": 1700000000040}',
    b'{"quantity": 0.1}',
    b"x",
    b"y",
    b"",
    None,
    b"long" * 60,
]
_READABLE = [b'{"quantity": 1, "at": 1700000000010}', *_VALUES[1:2]]
"""By every condition and every path of a row."""
_KEYS_OF_RECORDS = [b"a", b"a", None, b"", b"key\0"]


def _keeps_several(row: ResolvedRow) -> bool:
    """True if several groups of a key may be open, or wait."""
    return row.rule.cardinality is Cardinality.MANY or row.rule.release is not Release.AUTO


class _Streams:
    """Draws the events of one stream."""

    def __init__(self, rnd: Random, policy: DestinationPolicy, rows: Sequence[ResolvedRow]) -> None:
        self.rnd, self.policy, self.rows = rnd, policy, rows
        self.ids = rnd.sample(IDS, 3)
        self.ids += [each for each in (self.ids[0] + b"\0",) if each in IDS] or [rnd.choice(IDS)]
        homes = self.ids
        if rnd.random() < (0.6 if any(map(_keeps_several, rows)) else 0.2):
            homes = rnd.choice(TWINS)
            self.ids = [*homes, rnd.choice(IDS)]
        if rnd.random() < 0.4:
            self.ids = [*self.ids, ELSEWHERE]
        names = dict.fromkeys((row.rule.rule_id, row.row.routing_name) for row in rows)
        self.homes = {name: homes[number % len(homes)] for number, name in enumerate(names)}
        usual = rnd.choice(rows).rule.rule_id if rows else None
        self.usual = [row for row in rows if row.rule.rule_id == usual]  # groups of others would have their ids
        self.at_home = rnd.choice([0.5, 0.8])
        self.strangers = [each for each in self.ids if each not in self.homes.values()] or self.ids
        self.sent: dict[bytes | None, int] = {}
        self.is_odd = rnd.choice([0.1, 0.4, 1.0])
        self.steps = rnd.choice([(0, 0, 0, 1), (0, 0, 1, 1, 2, 5), (0, 1, 2, 5, 20, 50)])
        self.pause = rnd.choice([3, 40, 120])
        self.at, self.after, self.has_leapt = T0, 0, False
        self.offset = rnd.choice([0, (1 << 10) - 40, (1 << 27) - 100 if policy.forms_units else 0])
        self.command_offset = rnd.choice([0, 5])
        self.inputs = 0

    def events(self, length: int) -> list[Event]:
        return [self._event() for _ in range(length)]

    def _event(self) -> Event:
        rnd, kind = self.rnd, self.rnd.random()
        self.at += rnd.choice(self.steps)
        if kind < 0.05:
            self.at += rnd.randrange(0, self.pause)
            self.after = self.at
            return Tick(self.at, rnd.choice([None, None, self.at, self.at - 15]))
        if kind < 0.055:
            return Latest(self.at + rnd.choice([0, 200]))
        if kind < 0.2 and not self.has_leapt:  # else no append time would tell its place among the components
            return self._command()
        return self._component()

    # -- components -------------------------------------------------------------------------------------------------

    def _component(self) -> FakeRecord:
        rnd = self.rnd
        self.at = max(self.at, self.after + 1)
        at = self.at
        if rnd.random() < 0.04:
            at = max(self.after + 1, at - rnd.choice([3, 30]))
        elif rnd.random() < 0.004:
            self.has_leapt, at = True, at + 10_000
        value = rnd.choice(_VALUES)
        headers = self._headers(at)
        if isinstance(headers, list) and rnd.random() < 0.6 * any(name == "uow-rule" for name, _ in headers):
            value = rnd.choice(_READABLE)
        if isinstance(headers, list) and rnd.random() < (
            0.5 if self.policy.field_source is FieldSource.VALUE else 0.02
        ):
            headers, value = self._as_fields(headers)
        if isinstance(headers, list) and rnd.random() < 0.15 * self.is_odd:
            headers, value = self._as_piece(headers)
        record = FakeRecord(self.offset, headers, value, rnd.choice(_KEYS_OF_RECORDS), at, COMPONENTS)
        self.offset += 1 if rnd.random() < 0.95 else rnd.randrange(2, 5)
        return record

    def _headers(self, at: int) -> Any:
        rnd, odd = self.rnd, self.rnd.random()
        odd /= self.is_odd
        if odd < 0.05:
            return rnd.choice([None, [], [("x", b"1")], [("uow-seq", b"1")], [("uow-id", b"a"), ("uow-kind", b"unit")]])
        if odd < 0.06:
            return UNREADABLE_HEADERS
        headers = self._routed(at) if self.rows and rnd.random() < 0.55 else self._plain()
        while rnd.random() < 0.25 * self.is_odd:
            name = rnd.choice([*SAID]) if rnd.random() < 0.5 else rnd.choice(_OFTEN)
            headers.append((name, self._moment(rnd.choice(SAID[name]), at)))
        if rnd.random() < (0.3 if self.policy.accept_aliases else 0.02) * self.is_odd:
            name = rnd.choice([*_ALIASES])
            headers.append((name, self._moment(rnd.choice(_ALIASES[name]), at)))
        if rnd.random() < 0.04 * self.is_odd:
            headers.append(rnd.choice(headers))
        if rnd.random() < 0.04 * self.is_odd:
            del headers[rnd.randrange(len(headers))]
        if rnd.random() < 0.1 * self.is_odd:
            rnd.shuffle(headers)
        return headers

    @staticmethod
    def _moment(value: bytes | None, at: int) -> bytes | None:
        return b"%d" % (at + int(value)) if value is not None and value[1:].isdigit() and value[:1] in b"+-" else value

    def _plain(self) -> list[tuple[str, bytes | None]]:
        rnd = self.rnd
        odd: list[bytes | None] = [b"", b"\xff\xfe", None]
        group_id = rnd.choice(self.strangers if rnd.random() < 0.85 else self.ids)
        if rnd.random() < 0.05 * self.is_odd:
            return [("uow-id", rnd.choice(odd)), ("uow-seq", b"1")]
        if rnd.random() < 0.7:
            return self._next(group_id)
        seqs = [b"1", b"1", b"2", b"2", b"3", b"3", b"4", b"7", b"2147483647", b"0", b"x", None]
        headers = [
            ("uow-id", group_id),
            ("uow-seq", rnd.choice(seqs if rnd.random() < 0.2 * self.is_odd else seqs[:6])),
        ]
        if rnd.random() < 0.25:
            ends = [b"true", b"true", b"TRUE", b"false", b"yes", None]
            headers.append(("uow-end", rnd.choice(ends if rnd.random() < 0.3 * self.is_odd else ends[:1])))
        return headers

    def _next(self, group_id: bytes) -> list[tuple[str, bytes | None]]:
        """The number that follows; some are the last of their unit."""
        seq = self.sent[group_id] = self.sent.get(group_id, 0) + 1
        headers: list[tuple[str, bytes | None]] = [("uow-id", group_id), ("uow-seq", b"%d" % seq)]
        if self.rnd.random() < 0.3:
            headers.append(("uow-end", b"true"))
            self.sent[group_id] = 0
        return headers

    def _routed(self, at: int) -> list[tuple[str, bytes | None]]:
        rnd = self.rnd
        row = rnd.choice(self.usual if rnd.random() < 0.8 else self.rows)
        self.inputs += 1
        number = self.inputs if rnd.random() < 0.88 else rnd.randrange(1, self.inputs + 1)
        name = row.name if rnd.random() < 0.97 else rnd.choice(["shop/UK@99", "none", "shop/none@1"])
        home = self.homes[row.rule.rule_id, row.row.routing_name]
        group_id = home if rnd.random() < self.at_home else rnd.choice(self.ids)
        headers: list[tuple[str, bytes | None]] = [("uow-id", group_id), ("uow-rule", name.encode())]
        if rnd.random() < 0.2:
            headers.append(("uow-origin-key", rnd.choice([b"own", b"\xff", b"", group_id])))
        headers.append(("uow-input", b"in/0/%d" % number))
        if rnd.random() < 0.7:
            headers.append(("uow-arrived-at", b"%d" % (at - rnd.choice([0, 0, 0, 1, 15, 60, -5]))))
        if row.sources and rnd.random() < 0.85:
            headers.append(("uow-source-name", rnd.choice(row.sources).source_name.encode()))
        if rnd.random() < 0.15 * self.is_odd:
            headers.append(("uow-delay-ms", rnd.choice([b"10", b"40", b"x"])))
        if row.rule.sequence is Numbering.GIVEN or rnd.random() < 0.1:
            headers.append(("uow-seq", rnd.choice([b"1", b"1", b"2", b"2", b"3", b"3", b"x"])))
            if rnd.random() < 0.3:
                headers.append(("uow-end", rnd.choice([b"true", b"false"])))
        return headers

    def _as_fields(self, headers: list[tuple[str, bytes | None]]) -> tuple[Any, bytes]:
        """The same marks as fields of a JSON value, without their headers."""
        fields = [
            pair for pair in headers if pair[0] in ("uow-id", "uow-seq", "uow-end") and (pair[1] or b"").isascii()
        ]
        said = {name: (raw or b"").decode() for name, raw in fields}
        return [pair for pair in headers if pair not in fields] or None, json.dumps(said).encode()

    def _as_piece(self, headers: list[tuple[str, bytes | None]]) -> tuple[Any, bytes]:
        """Its value is a piece of `abcdef`, or a wrong one (B-124)."""
        rnd = self.rnd
        at = rnd.choice([0, 0, 2, 2, 4, 4, 1])
        headers = [*headers, ("uow-segment-at", b"%d" % at if rnd.random() < 0.95 else rnd.choice([b"", b"x", None]))]
        if at == 4 or rnd.random() < 0.05:
            headers.append(("uow-segment-end", rnd.choice([b"true", b"true", b"true", b"no"])))
        return headers, b"abcdef"[at : at + 2]

    # -- commands ---------------------------------------------------------------------------------------------------

    def _command(self) -> FakeRecord:
        rnd, verb = self.rnd, self.rnd.choice([*Verb])
        headers: list[tuple[str, bytes | None]] = [
            ("uow-command", verb.encode() if rnd.random() < 0.98 else b"dance"),
            ("uow-command-id", b"c%d" % (self.command_offset if rnd.random() < 0.93 else rnd.randrange(40))),
            ("uow-why", b"drawn"),
        ]
        group_id, value = rnd.choice([*self.ids, *self.homes.values()]), None
        row = rnd.choice(self.rows).name if self.rows and rnd.random() < 0.97 else "shop/UK@98"
        if verb is Verb.RULE_CHANGE:
            headers.append(("uow-rule", row.encode()))
        elif verb is Verb.RELEASE and rnd.random() < 0.5:
            headers.append(("uow-rule", row.partition("/")[0].encode()))
        else:
            headers.append(("uow-id", group_id))
        if verb is Verb.MANIFEST:
            headers.append(("uow-rule", row.encode()))
            value = self._manifest()
        if verb in (Verb.DECLARE_END, Verb.WAIVE, Verb.REMOVE, Verb.ERASE):
            headers.append(("uow-seq", rnd.choice([b"1", b"1", b"2", b"3", b"1-2" if verb is Verb.WAIVE else b"2"])))
        if verb is Verb.EXTEND:
            headers.append(("uow-until", b"%d" % (self.at + rnd.choice([5, 50, 500]))))
        if verb in (Verb.RECYCLE, Verb.SET_ASIDE):
            headers.append(("uow-source", b"%s/0/%d" % (COMPONENTS.topic.encode(), rnd.randrange(0, self.offset + 1))))
        if rnd.random() < 0.15:
            headers.append(("uow-generation", rnd.choice([b"1", b"2"])))
        if rnd.random() < 0.1 and verb is not Verb.SET_ASIDE:
            headers.append(("uow-dry-run", rnd.choice([b"true", b"false", b"x"])))
        if self.policy.command_keys and rnd.random() < 0.8:
            signed_at = self.at - rnd.choice([0, 0, 0, 2_000])
            headers = SIGNER.sign("D", group_id, headers, signed_at, value)
        elif rnd.random() < 0.1:
            headers.append(("uow-user-id", b"jill"))
        self.after = self.at
        record = FakeRecord(self.command_offset, headers, value, group_id, self.at, COMMANDS)
        self.command_offset += 1
        return record

    def _manifest(self) -> bytes:
        rnd = self.rnd
        if rnd.random() < 0.05:
            return b"{"
        requests = [
            {"number": number, "folder": f"f{number}", "topic": "t"}
            | ({"weight": 2} if rnd.random() < 0.2 else {})
            | ({"notice_topic": "cancelled"} if rnd.random() < 0.3 else {})
            for number in range(1, rnd.randint(1, 3) + 1)
        ]
        told: dict[str, Any] = {"name": "trip", "requests": requests}
        if rnd.random() < 0.4:
            told["timeout_ms"] = rnd.choice([0, 40])
        if rnd.random() < 0.4:
            told["reply"] = {"topic": rnd.choice(["target", "answers"]), "correlation_id": "q", "headers": [["x", "1"]]}
        return json.dumps(told).encode()


def draw(seed: int) -> Stream:
    """The stream of a seed."""
    rnd = Random(seed)
    policy = draw_policy(rnd)
    rows = draw_rows(rnd) if rnd.random() < 0.7 and policy.forms_units and not policy.has_paths else ()
    events = _Streams(rnd, policy, rows).events(rnd.choice([15, 30, 60]))
    return Stream(policy, rows, tuple(events), rnd.choice([1 << 20, 1 << 20, 1_500]))
