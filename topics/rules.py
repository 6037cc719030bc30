"""Rules as values: the rows of the tables of `docs/specification/aggregation.md`, and a row as the assembler needs it. Pure.

A rule says which records it claims and how their groups behave; a row of it has target and limits for one routing name, row `*` for all
others. Nothing here is ever changed: each change is a further row with a higher version (B-19). What the texts mean - keys, expressions,
conditions - is `uow.processor.rules`; where they are stored is `uow.processor.rules.store`.

Belongs here: names, types and defaults of the settings, and `uow-rule`. Does not belong here: databases, files, expressions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeVar

from uow.schemas.error_classes import DecodeError
from uow.topics.columns import columns, typed
from uow.topics.policies import ExpirationPolicy, LatePolicy, Shape, ValueFormat

DEFAULT_ROW: Final = "*"
"""Routing name of the row that serves every name without a row of its own (B-22, B-23)."""
RULES_KEY: Final = b"rules"
"""Key of the record of `A-rules` that has all rules of the latest version, as a TOML file has them: they serve where the source is away (B-17)."""
REFRESH_KEY: Final = b"refresh"
"""Key of a record of `A-rules` that makes routers look at the source at once (B-12)."""
MIRROR_VERSION: Final = 1
"""Version of the text that `ResolvedRow.encode` writes (B-217)."""


class KeyCase(StrEnum):
    """How routing names are compared (B-20)."""

    EXACT = "exact"
    CASEFOLD = "casefold"


class DefaultGroup(StrEnum):
    """Grouping of all names that row `*` serves: each has a group of its own, or they share one (B-23)."""

    SHARED = "shared"
    PER_NAME = "per_name"


class OnNoKey(StrEnum):
    """Treatment of a record without routing name (B-22, B-97). `by_key`: `default` where the key is outside of the value, `reject` where it is inside."""

    BY_KEY = "by_key"
    DEFAULT = "default"
    REJECT = "reject"
    UNNAMED = "unnamed"
    PASS_THROUGH = "pass_through"


class Cardinality(StrEnum):
    """Open generations per key: one, or several that are asked oldest first (B-99)."""

    ONE = "one"
    MANY = "many"


class Numbering(StrEnum):
    """Who numbers the components: their senders, or the assembler in order of arrival (column `sequence`)."""

    GIVEN = "given"
    ASSIGNED = "assigned"


class DeliverOrder(StrEnum):
    """Order among the units of a rule on one partition (B-118)."""

    COMPLETION = "completion"
    FIRST_ARRIVAL = "first_arrival"


class Release(StrEnum):
    """When a complete group leaves: by itself, or by command (B-103 to B-107)."""

    AUTO = "auto"
    HOLD_ALL = "hold_all"
    HOLD_FIRST = "hold_first"


class AtWaitingLimit(StrEnum):
    """Treatment of what waits for a release past its limit (B-107)."""

    DELIVER = "deliver"
    REDIRECT = "redirect"


class OnRuleChange(StrEnum):
    """Answer of an open group to a new version: it keeps its own, or takes the highest seen (B-13)."""

    SNAPSHOT = "snapshot"
    LIVE = "live"


class AtMaxOpenGroups(StrEnum):
    """Treatment of one group too many (B-37)."""

    REJECT = "reject"
    CLOSE_OLDEST = "close_oldest"


class BelowMin(StrEnum):
    """Treatment of a group that has fewer than `min_count` at its deadline (B-50)."""

    REDIRECT = "redirect"
    EXTEND = "extend"


class LateJoin(StrEnum):
    """Treatment of a component that arrived after the deadline of a group that is still open (B-49)."""

    STRICT = "strict"
    LENIENT = "lenient"


class WaitFrom(StrEnum):
    """From when the wait of a source counts (B-95)."""

    SOURCE = "source"
    GROUP = "group"


@dataclass(frozen=True, slots=True)
class Change:
    """One version: who changed what, and why (table `uow_rule_change`). Times in epoch ms."""

    version: int
    author: str
    why: str
    changed_at_ms: int
    reverts_to: int | None = None


REQUEST: Final = "request"
"""The group key of a rule that gathers replies, or what stands before the place of the request's id."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A version of a rule (table `uow_rule`)."""

    rule_id: str
    version: int
    destination: str
    enabled: bool = True
    priority: int = 100
    accept: str | None = None
    transform: str | None = None
    group_key: str = "header:uow-destination"
    key_case: KeyCase = KeyCase.EXACT
    default_group: DefaultGroup = DefaultGroup.PER_NAME
    on_no_key: OnNoKey = OnNoKey.BY_KEY
    delay_item: str | None = None
    cardinality: Cardinality = Cardinality.ONE
    sequence: Numbering = Numbering.ASSIGNED
    order_by: str = "arrival"
    deliver_order: DeliverOrder = DeliverOrder.COMPLETION
    release: Release = Release.AUTO
    release_every_ms: int | None = None
    max_waiting: int | None = None
    waiting_age_ms: int | None = None
    at_waiting_limit: AtWaitingLimit = AtWaitingLimit.DELIVER
    late_policy: LatePolicy = LatePolicy.REJECT
    on_rule_change: OnRuleChange = OnRuleChange.SNAPSHOT
    name_template: str | None = None
    max_open_groups: int | None = None
    at_max_open_groups: AtMaxOpenGroups = AtMaxOpenGroups.REJECT

    @property
    def gathers_replies(self) -> bool:
        """True if its groups hold the replies to the requests of calls (B-77)."""
        return self.group_key == REQUEST or self.group_key.startswith(f"{REQUEST}:")


@dataclass(frozen=True, slots=True)
class Row:
    """A version of the row of one routing name (table `uow_rule_row`). Times and durations in ms, sizes in bytes."""

    rule_id: str
    routing_name: str
    version: int
    enabled: bool = True
    valid_from_ms: int | None = None
    valid_to_ms: int | None = None
    target_topic: str | None = None
    complete_count: int | None = None
    complete_bytes: int | None = None
    complete_when: str | None = None
    give_up_when: str | None = None
    min_count: int = 1
    below_min: BelowMin = BelowMin.REDIRECT
    age_ms: int | None = None
    idle_ms: int | None = None
    age_from: str = "arrival"
    on_give_up: ExpirationPolicy = ExpirationPolicy.DELIVER_PARTIAL
    late_join: LateJoin = LateJoin.STRICT
    shape: Shape | None = None
    value_format: ValueFormat | None = None


@dataclass(frozen=True, slots=True)
class Delay:
    """How long one item may wait, in ms; None removes its limit (table `uow_rule_delay`, B-05)."""

    rule_id: str
    routing_name: str
    item: str
    version: int
    delay_ms: int | None


@dataclass(frozen=True, slots=True)
class Source:
    """One source of a collection (table `uow_rule_source`, B-92 to B-96). A quantity of None or 0 is unlimited."""

    rule_id: str
    source_name: str
    version: int
    enabled: bool = True
    quantity: int | None = None
    wait_ms: int | None = None
    wait_from: WaitFrom = WaitFrom.SOURCE
    correlation_path: str | None = None
    correlation_pattern: str | None = None


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of all rules (table `uow_rule_parameter`)."""

    name: str
    version: int
    value: str


PARAMETERS: Final = {
    "reply_hold_ms": 60_000,
    "reply_topics": None,
    "notice_topics": None,
    "delivery_attempts": 5,
    "stranded_after_ms": None,
    "audit_every_ms": None,
}
"""Names of parameters, and their defaults; None is off. `reply_topics` and `notice_topics` are lists of topics with commas."""


@dataclass(frozen=True, slots=True)
class ResolvedRow:
    """A row with all that the assembler needs to know: the value of a record of `A-rules`, whose key is `name` (section 5).

    Attributes:
        rule: The version of the rule that was in force.
        row: The version of the row that was.
        sources: The enabled sources of the rule, by name.
        parameters: Parameters that differ from their defaults, by name.
    """

    rule: Rule
    row: Row
    sources: tuple[Source, ...] = ()
    parameters: tuple[Parameter, ...] = ()

    @property
    def version(self) -> int:
        """The highest version among its parts: two resolved rows of one name and version are equal."""
        others = (each.version for part in (self.sources, self.parameters) for each in part)
        return max(self.rule.version, self.row.version, *others)

    @property
    def name(self) -> str:
        """Text of `uow-rule`: `<rule id>/<row>@<version>`."""
        return f"{self.rule.rule_id}/{self.row.routing_name}@{self.version}"

    def parameter(self, name: str) -> str:
        """The text of a parameter; empty is off."""
        default = PARAMETERS[name]
        said = next((each.value for each in self.parameters if each.name == name), None)
        return said if said is not None else "" if default is None else str(default)

    @property
    def reply_topics(self) -> tuple[str, ...]:
        """Topics that a manifest may ask for beside the row's own (B-91). They are named one by one, so that workers can look if they are there (B-57)."""
        return self._topics("reply_topics")

    @property
    def notice_topics(self) -> tuple[str, ...]:
        """Topics that a manifest may name for its cancel notices (B-209)."""
        return self._topics("notice_topics")

    def _topics(self, parameter: str) -> tuple[str, ...]:
        return tuple([each.strip() for each in self.parameter(parameter).split(",") if each.strip()])

    @property
    def targets(self) -> tuple[str, ...]:
        """Topics that its units may go to beside `D.units`: its own, and those that a call may ask for."""
        own = (self.row.target_topic,) if self.row.target_topic else ()
        return own + self.reply_topics if self.rule.gathers_replies else own

    @property
    def written_topics(self) -> tuple[str, ...]:
        """All topics beside `D`'s own that its groups may write to: workers look if they can be written to (B-57)."""
        return self.targets + self.notice_topics if self.rule.gathers_replies else self.targets

    def encode(self) -> bytes:
        """JSON; the same bytes for the same row, whoever writes it."""
        return json.dumps({"v": MIRROR_VERSION, **asdict(self)}, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> ResolvedRow:
        """The row that `encode` was called of; fields that a later release added are left out, those that it did not know have their defaults.

        It is an input like any other: each column has the type that it must have, or it is no row.

        Raises:
            DecodeError: It is none. Case `uow-rule`.
        """
        try:
            told = json.loads(data)
            return cls(
                _made(Rule, told["rule"]),
                _made(Row, told["row"]),
                tuple(_made(Source, each) for each in told["sources"]),
                tuple(_made(Parameter, each) for each in told["parameters"]),
            )
        except (LookupError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise DecodeError("uow-rule", f"no row of a rule: {' '.join(str(error).split())[:200]}") from None


_T = TypeVar("_T")


def _made(kind: type[_T], told: Mapping[str, Any]) -> _T:
    """The value of a table's type, each column of which has its own type. Raises `ValueError` or `LookupError`."""
    given = {}
    for name, column in columns(kind).items():
        if name in told:
            try:
                given[name] = typed(column, told[name])
            except ValueError as error:
                raise ValueError(f"{kind.__name__}.{name} {error}") from None
        elif column.needed:
            raise LookupError(f"{kind.__name__}.{name} must be given")
    return kind(**given)


class RuleName(NamedTuple):
    """The parts of `uow-rule`."""

    rule_id: str
    routing_name: str
    version: int

    @classmethod
    def parse(cls, text: str) -> RuleName:
        """Reads `<rule id>/<row>@<version>`; a routing name may contain both signs, a rule id neither.

        Raises:
            DecodeError: It has another form. Case `uow-rule`.
        """
        rule_id, slash, rest = text.partition("/")
        row, at, version = rest.rpartition("@")
        if not (rule_id and slash and row and at and version.isascii() and version.isdigit()):
            raise DecodeError("uow-rule", f"not <rule id>/<row>@<version>: {text[:200]!r}")
        return cls(rule_id, row, int(version))
