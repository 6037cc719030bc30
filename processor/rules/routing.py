"""A record of an input and the rules give a component, a refusal or a record that passes (aggregation, 6.3). Pure.

1. The rules are asked by priority; the first whose `accept` holds has the record (B-111). One that gathers replies leaves a reply to
   the rule that asked for it, wherever in the order that stands: each is asked whether its own request is where it looks.
2. Its transform changes the value (B-25); the routing name is looked for in what it made (B-20).
3. Routing name and arrival choose the row (B-21 to B-24); row and name make the group key, `<rule id>/<routing name>`.
4. The component is the record with the group key as its key, and the headers that say all this. Nobody else's headers of these names
   get past the router.

Everything that is wrong with a record concerns that record alone: it goes to `D.rejected`, and says why and where it came from. One that no rule
accepts goes to the first rule's `D.rejected`. So does one at which the code itself fails (`Fate.SET_ASIDE`); how many of them are taken is decided
elsewhere (`uow.processor.kafka.router`).

Belongs here: those decisions. Does not belong here: reading and writing records (`uow.processor.kafka.router`), choosing among versions of rows
(`uow.processor.rules.rule_set`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from uow.processor.rules.expressions import Expression
from uow.processor.rules.group_keys import JOINED_BY, GroupKey, is_inside, matching, on_no_key
from uow.processor.rules.paths import Place
from uow.processor.rules.record_view import RecordView
from uow.processor.rules.rule_set import RuleSet
from uow.processor.rules.transforms import RESERVED, InputRecord, transformed
from uow.processor.rules.xml_documents import xml_root
from uow.schemas.error_classes import (
    BadUnitIdError,
    DecodeError,
    InternalError,
    RoutingError,
    UnitTooLargeError,
    UowError,
)
from uow.schemas.faults import ENDS
from uow.schemas.framing import single_object_header
from uow.topics import headers as names
from uow.topics.catalogue import DestinationTopics
from uow.topics.command_keys import CommandSigner, signed_headers
from uow.topics.commands import Command, Verb, command_headers
from uow.topics.headers import ALIASES, Reading, Refusal
from uow.topics.manifests import RequestId
from uow.topics.policies import AliasFamily, DestinationPolicy, ValueFormat, ViolationPolicy
from uow.topics.record_size import RecordLimit
from uow.topics.routers import RouterSettings
from uow.topics.rules import DEFAULT_ROW, REQUEST, DefaultGroup, KeyCase, OnNoKey, ResolvedRow, Rule, Source

NAME_LIMIT_BYTES: Final = 128
"""Longest routing name (B-24)."""
APPEND_TIME: Final = 2
"""Kind of a timestamp: the broker's, of when it appended the record."""
CHOICES_KEPT: Final = 10_000
"""Routing names whose row is remembered between records; a sender who makes up more costs time, not memory."""

_UNUSABLE: Final = " "
"""No routing name: one is never blank."""
_FEW: Final = 100
"""So many headers, without their values, take a small part of the smallest limit."""

_SPARE_NAMES: Final = frozenset(alias for alias, name in ALIASES[AliasFamily.MQ].items() if name == names.DESTINATION)
"""Headers that give the routing name where `uow-destination` is not there, whatever aliases are accepted (B-20)."""
_ORIGIN_ERASED: Final = names.ORIGIN + names.ERASED.removeprefix("uow-")

Headers = list[tuple[str, bytes | None]]


class Fate(StrEnum):
    """The result for a record of an input."""

    ROUTED = "routed"
    REJECTED = "rejected"
    PASSED = "passed"
    SET_ASIDE = "set_aside"
    """Rejected since the code itself failed at it."""


class NoKey(StrEnum):
    """Why a record gives no routing name."""

    ABSENT = "absent"
    UNUSABLE = "unusable"
    UNREADABLE = "unreadable"


class Keyless(NamedTuple):
    """A record that gives no routing name.

    Attributes:
        cause: Kind of the cause.
        error: The same for people; the refusal, where such a record is refused.
    """

    cause: NoKey
    error: UowError


class Sent(NamedTuple):
    """A record to be written, to the partition of its key."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers


class Routed(NamedTuple):
    """The result for one record.

    Attributes:
        fate: Kind of it.
        rule_id: The rule that has it; empty if none has.
        sent: The record to write.
        row: The row that a component is stamped with.
        has_warning: Its routing name could not be used, or was given more than once.
        command: What is written with it: the command that fails its group, where the policy is so (B-26).
        fault: The exception that nobody foresaw, of a record that is set aside.
        keyless: Why it gives no routing name; None if it gives one, or nobody asked.
    """

    fate: Fate
    rule_id: str
    sent: Sent
    row: ResolvedRow | None = None
    has_warning: bool = False
    command: Sent | None = None
    fault: BaseException | None = None
    keyless: Keyless | None = None


class RawRecord(Protocol):
    """A consumed record: the methods of `confluent_kafka.Message` that are used."""

    def topic(self) -> str: ...
    def partition(self) -> int: ...
    def offset(self) -> int: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def timestamp(self) -> tuple[int, int]: ...


@dataclass(frozen=True, slots=True)
class RouteTarget:
    """A destination that rules lead to.

    Attributes:
        topics: Its topics.
        policy: Its settings.
        limit: Size of the records that `D.components` takes.
        partitions: How many `D.components` and `D.commands` have.
        answer_framing: Header of the values of answers in `D.outcomes`.
        signer: Signs the commands of routers; None: they are not signed.
    """

    topics: DestinationTopics
    policy: DestinationPolicy
    limit: RecordLimit
    partitions: int = 1
    answer_framing: bytes = single_object_header("Answer")
    signer: CommandSigner | None = None

    def command_headers(self, command: Command, key: bytes, now_ms: int) -> Headers:
        """The headers of a command with this key, signed as of now."""
        return signed_headers(self.signer, self.topics.destination, key, None, command_headers(command), now_ms)


@dataclass(slots=True, eq=False)
class Choice:
    """All that a routing name decides: key, headers beside those that a record has of its own, and the row."""

    key: bytes
    headers: Headers
    row: ResolvedRow
    is_xml: bool


class RuleRouting:
    """Routes the records of one rule. Not for two threads at once.

    Args:
        rule: The rule.
        rule_set: Has its rows.
        target: Its destination.

    Raises:
        ExpressionError: A text of the rule is none. Of one that was checked (`checks.py`) it never is.
    """

    def __init__(self, rule: Rule, rule_set: RuleSet, target: RouteTarget) -> None:
        self.rule, self._rule_set, self.target = rule, rule_set, target
        self._is_dated, self._group_key = rule_set.is_dated(rule), GroupKey(rule.group_key)
        self.accept = Expression(rule.accept) if rule.accept else None
        self._delay_item = Expression(rule.delay_item) if rule.delay_item else None
        kind, _, header = rule.group_key.partition(":")
        meant = Reading.of(target.policy).names
        self._name_headers: frozenset[str] = frozenset()
        if kind == "header" and " " not in header:
            self._name_headers = frozenset({header, *(alias for alias, name in meant.items() if name == header)})
        self._spare_headers = _SPARE_NAMES - self._name_headers if header == names.DESTINATION else frozenset()
        self._ids = frozenset(alias for alias, name in meant.items() if name == names.ID) - {names.ID}
        self._dropped = names.STAMPED | self._ids
        self._correlation_ids = frozenset(alias for alias, name in meant.items() if name == names.CORRELATION_ID)
        if self._group_key.is_request:  # the number is that of the request, whatever a service says
            numbering = (names.SEQ, names.END, names.COUNT)
            self._dropped |= {alias for alias, name in meant.items() if name in numbering}
        sources = rule_set.sources_of(rule)
        asked = {source.source_name: source for source in sources if source.correlation_path is not None}
        self._correlations = {name: _correlation(source) for name, source in asked.items()}
        self._correlation_texts = {name: _correlation_text(source) for name, source in asked.items()}
        decisive = self._correlation_ids if rule.group_key == REQUEST else self._name_headers
        is_constant = kind == "constant" and JOINED_BY not in rule.group_key
        nothing = BadUnitIdError(f"{rule.group_key}: finds nothing", case="no-correlation")
        self._without_key = Keyless(NoKey.ABSENT, nothing)
        self._key_is_inside, self._on_no_key = is_inside(rule, sources), on_no_key(rule, sources)
        self._is_key_certain = not self._correlations and (
            is_constant or (bool(decisive) and all(name.startswith(RESERVED) for name in decisive))
        )
        self.small_bytes = target.limit.limit_bytes // 8
        self._looks_inside = bool(self._correlations) or not self._name_headers or self._delay_item is not None
        self._choices: dict[str, Choice] = {}

    def route(self, record: RawRecord, headers: Headers, view: RecordView | None, now_ms: int) -> Routed:
        """The result for a record that this rule accepted; `view` is None if nobody has looked into it."""
        try:
            return self._routed(record, headers, view, now_ms)
        except UowError as error:
            fails = isinstance(error, RoutingError) and error.case == "transform"
            command = None
            if fails and self.target.policy.violation_policy is ViolationPolicy.FAIL_GROUP:
                command = self._failing(record, headers, now_ms)
                if command is None:
                    error = RoutingError(
                        f"{error.detail}; its group is not known without it, and goes on", case=error.case
                    )
            return refused(self.rule.rule_id, self.target, record, headers, error)._replace(command=command)

    def _failing(self, record: RawRecord, headers: Headers, now_ms: int) -> Sent | None:
        """The command that fails the group of a record whose transform failed; None where a transform has a say in the group, or the record has none.

        Its id is made of the record's place: routed once more, it is the same command.
        """
        if not self._is_key_certain:
            return None
        view, key = RecordView(record.key(), record.value(), headers), None
        kind, moment = record.timestamp()
        try:
            if self._group_key.is_request:
                request = self._request(headers, view)
                key = request.group_id if request is not None else None
            else:
                if self._spare_headers and not any(said in self._name_headers for said, _ in headers):
                    return None
                name, _ = self._routing_name(record, headers, view)
                if name is not None or self._on_no_key in (OnNoKey.DEFAULT, OnNoKey.UNNAMED):
                    key = self._choice(name, moment if kind == APPEND_TIME else now_ms).key
        except UowError:  # it would have been refused for this as well
            return None
        if key is None:
            return None
        why = f"a record of its input could not be transformed: {_place(record).decode()}"
        command = Command(b"fail:" + _place(record), Verb.FAIL, key, why)
        return Sent(self.target.topics.commands, key, None, self.target.command_headers(command, key, now_ms))

    def _routed(self, record: RawRecord, headers: Headers, view: RecordView | None, now_ms: int) -> Routed:
        rule, value, brought = self.rule, record.value(), headers
        kind, moment = record.timestamp()
        if rule.transform is not None:
            where = record.topic(), record.partition(), record.offset()
            value, headers = transformed(rule.transform, InputRecord(*where, record.key(), value, headers, moment))
            view = RecordView(record.key(), value, headers)
        elif view is None and self._looks_inside:
            view = RecordView(record.key(), value, headers)
        request = self._request(headers, view) if self._group_key.is_request else None
        name, warning = (request.name, "") if request is not None else self._routing_name(record, headers, view)
        _check_bounds(view)
        keyless = self._keyless(record, headers, view, warning) if name is None else None
        if keyless is not None:
            if self._on_no_key is OnNoKey.PASS_THROUGH:
                return self._passed(record, value, headers, warning)._replace(keyless=keyless)
            if self._refuses(keyless):
                return refused(rule.rule_id, self.target, record, brought, keyless.error)._replace(keyless=keyless)
        arrived = kind == APPEND_TIME
        choice = self._choice(name, moment if arrived else now_ms)
        if choice.is_xml:
            xml_root(value)
        key, stamps = choice.key, [*choice.headers, (names.INPUT, _place(record))]
        if request is not None:
            key = request.group_id
            stamps[0] = names.ID, key
            stamps.append((names.SEQ, b"%d" % request.number))
        if arrived:
            stamps.append((names.ARRIVED_AT, b"%d" % moment))
        stamps += kept_key(record.key(), key)
        if self._delay_item is not None:
            stamps += self._delay(choice, view)
            _check_bounds(view)
        if warning:
            stamps.append((names.WARNING, warning.encode()))
        if nested := _nested(brought, is_whole=value == record.value()):
            headers = [
                (_ORIGIN_ERASED if name == names.ERASED else name, said)
                for name, said in headers
                if name not in (names.INNER_ID, names.DEPTH)
            ]
        stamped = [*self._kept(headers), *stamps, *nested]
        sent = self._sent(key, value, stamped)
        return Routed(Fate.ROUTED, rule.rule_id, sent, choice.row, bool(warning), keyless=keyless)

    def _keyless(self, record: RawRecord, headers: Headers, view: RecordView | None, warning: str) -> Keyless:
        """Why a record gives no routing name."""
        if self._key_is_inside and view is not None and view.unread is not None:
            return Keyless(NoKey.UNREADABLE, view.unread)
        source = _source(record, headers) if self._correlations else ""
        if not warning and view is None and not self._correlations:
            return self._without_key  # by far the most of them
        place = self.rule.group_key
        if source in self._correlations:
            place = f"{self._correlation_texts[source]} of source {source}"
        elif view is not None:
            place = self._group_key.absent(view)
        cause, found = (NoKey.UNUSABLE, warning) if warning else (NoKey.ABSENT, "finds nothing")
        return Keyless(cause, BadUnitIdError(f"{place}: {found}", case="no-correlation"))

    def _refuses(self, keyless: Keyless) -> bool:
        """False if such a record goes to a group of such. One whose value cannot be read may well have a name: it is nobody's companion."""
        is_refused = self._on_no_key is OnNoKey.REJECT or self._group_key.is_request
        return is_refused or keyless.cause is NoKey.UNREADABLE

    # -- plain records, see `routed_records.py`

    @property
    def is_plain(self) -> bool:
        """True if the rule takes every record, and decides by a header alone."""
        return self.accept is None and self.rule.transform is None and not (self._looks_inside or self._is_dated)

    def plain_place(self, heads: Sequence[str]) -> int | None:
        """The index of the routing name among the headers; None where there is not just one, or where headers are dropped."""
        found = [index for index, name in enumerate(heads) if name in self._name_headers]
        return found[0] if len(found) == 1 and self._dropped.isdisjoint(heads) else None

    def plain_choice(self, raw: bytes | None) -> Choice | None:
        """The choice for a routing name that a record was routed by; None where the value is looked at as well, or nothing is to be kept."""
        choice = self._choices.get(_usable(raw or b"")[0] or _UNUSABLE)
        return None if choice is None or choice.is_xml else choice

    def _kept(self, headers: Headers) -> Headers:
        """The headers that a record brings along, without those that only a router writes. Another id of a group, or of a unit, stays as `uow-origin-...`."""
        if self._dropped.isdisjoint([name for name, _ in headers]):
            return headers
        kept: Headers = []
        for name, value in headers:
            if name == names.ID or name in self._ids:
                kept.append((names.ORIGIN + name.removeprefix("uow-"), value))
            elif name not in self._dropped:
                kept.append((name, value))
        return kept

    def _request(self, headers: Headers, view: RecordView | None) -> RequestId | None:
        """The request that a record replies to; None if it gives none (B-79, B-82). Raises `BadUnitIdError` for an id that is none of this rule's."""
        assert view is not None
        text = self._request_text(headers, view)
        if not text.strip():
            return None
        request = RequestId.parse(text)
        if request is None or request.rule_id != self.rule.rule_id:
            raise BadUnitIdError(f"{text[:300]!r} is no request of rule {self.rule.rule_id}", case="no-correlation")
        return request

    def has_asked(self, headers: Headers, view: RecordView) -> bool:
        """True of a record that names a request of this rule where the rule looks for it; a transform plays no part yet."""
        request = RequestId.parse(self._request_text(headers, view))
        return request is not None and request.rule_id == self.rule.rule_id

    def _request_text(self, headers: Headers, view: RecordView) -> str:
        correlations = [value for name, value in headers if name in self._correlation_ids]
        said = (correlations[-1] or b"").decode(errors="replace") if correlations else None
        return self._group_key.request_id(view, said) or ""

    # -- the routing name (B-20, B-24)

    def _routing_name(self, record: RawRecord, headers: Headers, view: RecordView | None) -> tuple[str | None, str]:
        """The name, None if there is none that can be used; and a warning, or nothing. A source may have a correlation of its own (B-96)."""
        correlation = self._correlations.get(_source(record, headers)) if self._correlations else None
        if correlation is not None or not self._name_headers:
            assert view is not None
            name = self._group_key.name(view) if correlation is None else correlation(view)
            return _usable(name.encode("utf-8", "surrogatepass")) if name is not None else (None, "")
        found = [value for name, value in headers if name in self._name_headers]
        if not found and self._spare_headers:
            found = [value for name, value in headers if name in self._spare_headers]
        if not found:
            return None, ""
        name, warning = _usable(found[-1] or b"")
        if len(found) > 1:
            warning = f"{warning}; " * bool(warning) + f"{len(found)} routing names, the last one counts"
        return name, warning

    def _choice(self, name: str | None, arrival_ms: int) -> Choice:
        known = self._choices.get(name or "")
        if known is not None:
            return known
        rule = self.rule
        row = self._rule_set.resolve(rule, DEFAULT_ROW if name is None else name, arrival_ms)
        if row is None:
            raise RoutingError(f"rule {rule.rule_id}, routing name {name!r}", case="no-rule")
        group = row.row.routing_name
        if name is None and self._on_no_key is OnNoKey.UNNAMED:
            group = ""
        elif name is not None and group == DEFAULT_ROW and rule.default_group is DefaultGroup.PER_NAME:
            group = name.casefold() if rule.key_case is KeyCase.CASEFOLD else name
        key = f"{rule.rule_id}/{group}".encode()
        is_xml = (row.row.value_format or self.target.policy.value_format) is ValueFormat.XML
        choice = Choice(key, [(names.ID, key), (names.RULE, row.name.encode())], row, is_xml)
        if not self._is_dated:
            if len(self._choices) >= CHOICES_KEPT:
                self._choices.clear()
            self._choices[name or ""] = choice
        return choice

    def _delay(self, choice: Choice, view: RecordView | None) -> Headers:
        assert self._delay_item is not None
        assert view is not None
        item = self._delay_item.text(view)
        delay = None if item is None else self._rule_set.delay_ms(self.rule, choice.row.row.routing_name, item)
        return [] if delay is None else [(names.DELAY_MS, b"%d" % delay)]

    def _passed(self, record: RawRecord, value: bytes | None, headers: Headers, warning: str) -> Routed:
        """To `D.components` without an id, where it passes through (line 2 of the decision table)."""
        stamped: Headers = [*self._kept(headers), (names.INPUT, _place(record))]
        sent = self._sent(record.key(), value, stamped)
        return Routed(Fate.PASSED, self.rule.rule_id, sent, has_warning=bool(warning))

    def _sent(self, key: bytes | None, value: bytes | None, stamped: Headers) -> Sent:
        """The record for `D.components`, with its own headers and the router's. Raises `UnitTooLargeError` if that takes none so large."""
        is_small = len(value or b"") + sum([len(name) + len(raw or b"") for name, raw in stamped]) < self.small_bytes
        if not (is_small and len(stamped) < _FEW) and not self.target.limit.fits(key, value, stamped):
            raise UnitTooLargeError("with the headers of its rule it fits no record of D.components", case="bytes")
        return Sent(self.target.topics.components, key, value, stamped)


class RecordRouting:
    """Routes records of the inputs of one router. Not for two threads at once.

    Args:
        rules: Its rules, in the order in which they are asked; at least one.
    """

    def __init__(self, rules: Sequence[RuleRouting]) -> None:
        self._rules = rules
        self._shares_replies = sum(each.rule.gathers_replies for each in rules) > 1

    @property
    def destinations(self) -> Sequence[str]:
        """Of the rules, in the order in which they are asked."""
        return [each.rule.destination for each in self._rules]

    @property
    def only_plain_rule(self) -> RuleRouting | None:
        """The rule that takes every record and looks into none; None if there is no such rule."""
        return self._rules[0] if self._rules[0].is_plain else None

    def route(self, record: RawRecord, headers: Headers | None, now_ms: int, is_readable: bool = True) -> Routed:
        """The result for a record, whatever it makes the code do: an exception that nobody foresaw is the record's own matter.

        Args:
            record: The record.
            headers: Its headers.
            now_ms: The wall clock, epoch ms: the arrival of a record of a topic that has no append times.
            is_readable: False if its headers cannot be read.
        """
        first = self._rules[0]
        headers = headers or []
        if not is_readable:
            return refused("", first.target, record, [], DecodeError("headers", "headers that cannot be read"))
        view: RecordView | None = None
        asked = first
        taker: RuleRouting | None = None
        try:
            for asked in self._rules:
                if taker is not None and not asked.rule.gathers_replies:
                    continue
                shares = self._shares_replies and asked.rule.gathers_replies
                if shares or asked.accept is not None:
                    view = view or RecordView(record.key(), record.value(), headers)
                accepts = view is None or asked.accept is None or asked.accept.boolean(view)
                is_its_own = accepts and (not shares or view is None or asked.has_asked(headers, view))
                if view is not None and view.refusal is not None:
                    return refused(asked.rule.rule_id, asked.target, record, headers, view.refusal)
                if is_its_own:
                    return asked.route(record, headers, view, now_ms)
                if accepts:
                    taker = taker or asked
            if taker is not None:  # a reply to nobody's request, which it refuses, or lets pass
                asked = taker
                return asked.route(record, headers, view, now_ms)
        except ENDS:
            raise
        except BaseException as error:  # noqa: BLE001 - the boundary around every record; a panic of Rust is no Exception
            return set_aside(asked, record, headers, error)
        why = (
            "no rule accepts it" if view is None or view.unread is None else f"no rule accepts it; {view.unread.detail}"
        )
        return refused("", first.target, record, headers, RoutingError(why, case="no-rule"))


def routings_of(
    rules: RuleSet, routers: Mapping[str, RouterSettings], targets: Mapping[str, RouteTarget]
) -> dict[str, RecordRouting]:
    """The routing of each input that has rules.

    Args:
        rules: The rules in force.
        routers: Settings of the routers by name.
        targets: The destinations by name; rules for others are left out.
    """
    found = {}
    for router in routers.values():
        asked = [rule for rule in rules.rules_for(router.rules) if rule.destination in targets]
        for topic in router.inputs if asked else ():
            found[topic] = RecordRouting([RuleRouting(rule, rules, targets[rule.destination]) for rule in asked])
    return found


def refused(rule_id: str, target: RouteTarget, record: RawRecord, headers: Headers, error: UowError) -> Routed:
    """The record for `D.rejected`: as it came, with the reasons. Of one that fits no record only the reasons, and where it lies."""
    where = _place(record)
    why: Headers = [
        (names.INPUT, where),
        (names.ERROR_CLASS, type(error).__name__.encode()),
        (names.ERROR_CASE, error.case.encode()),
        (names.ERROR_TEXT, error.text.encode("utf-8", "backslashreplace")),
        (names.SOURCE, where),
    ]
    kept = [(name, value) for name, value in headers if name == names.ID or name not in names.STAMPED]
    sent = Sent(target.topics.rejected, record.key(), record.value(), kept + why)
    if not _REJECTED_LIMIT.fits(sent.key, sent.value, sent.headers):
        sent = Sent(target.topics.rejected, None, None, why)
    return Routed(Fate.REJECTED, rule_id, sent)


def set_aside_by_command(target: RouteTarget, record: RawRecord, headers: Headers, why: UowError) -> Routed:
    """The same of a record that an operator sets aside, under no rule."""
    return refused("", target, record, headers, why)._replace(fate=Fate.SET_ASIDE)


def set_aside(rule: RuleRouting, record: RawRecord, headers: Headers, error: BaseException) -> Routed:
    """The same of a record at which the code failed, under the rule that was asked."""
    aside = refused(rule.rule.rule_id, rule.target, record, headers, InternalError.of(error))
    return aside._replace(fate=Fate.SET_ASIDE, fault=error)


_REJECTED_LIMIT: Final = RecordLimit()


def _correlation(source: Source) -> Callable[[RecordView], str | None]:
    """Finds the correlation text of a source's records: at its path, and there what `*` of its pattern stands for."""
    place = Place(source.correlation_path or "")
    return place.text if source.correlation_pattern is None else matching(place, source.correlation_pattern)


def _correlation_text(source: Source) -> str:
    pattern = f" pattern:{source.correlation_pattern}" if source.correlation_pattern is not None else ""
    return f"{source.correlation_path}{pattern}"


def _source(record: RawRecord, headers: Headers) -> str:
    """The source of a record of a collection: `uow-source-name`, else the input topic (B-92)."""
    said = [value for name, value in headers if name == names.SOURCE_NAME and value]
    return said[-1].decode(errors="replace") if said else record.topic()


def _place(record: RawRecord) -> bytes:
    return b"%s/%d/%d" % (record.topic().encode(), record.partition(), record.offset())


def kept_key(own: bytes | None, key: bytes) -> Headers:
    """The header that keeps the key of a record, which as a component has that of its group."""
    return [(names.ORIGIN_KEY, own)] if own is not None and own != key else []


def _nested(headers: Headers, *, is_whole: bool) -> Headers:
    """The headers that say that a component was a unit, and how deep it is now (B-109); none for any other record.

    Args:
        headers: Of the record of the input.
        is_whole: True if its value is that of the component as well.

    Raises:
        UowError: It is too deep, or what it says of its depth cannot be read.
    """
    if (names.KIND, names.KIND_UNIT) not in headers and (names.ORIGIN_KIND, names.KIND_UNIT) not in headers:
        return []
    said = dict(names.from_origin(headers))
    if names.ID not in said or names.SEQ in said:
        return []
    depth = names.depth_of(headers, 1)
    if isinstance(depth, Refusal):
        raise depth.error(detail=depth.detail, case=depth.case)
    inner: Headers = [(names.INNER_ID, said[names.ID])] if is_whole and names.POS not in said else []
    return [*inner, (names.DEPTH, b"%d" % depth)]


def _check_bounds(view: RecordView | None) -> None:
    """Raises `DecodeError` if the rule looked at more of a record than it may: what it found there counted as absent."""
    if view is not None and view.refusal is not None:
        raise view.refusal


def _usable(raw: bytes) -> tuple[str | None, str]:
    """A routing name, or None with the reason why it cannot be used."""
    if len(raw) > NAME_LIMIT_BYTES:
        return None, f"routing name of {len(raw)} bytes, {NAME_LIMIT_BYTES} are allowed"
    try:
        name = raw.decode()
    except UnicodeDecodeError:
        return None, "routing name that is no UTF-8"
    return (name, "") if name.strip() else (None, "routing name that is blank")
