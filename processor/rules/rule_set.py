"""All versions of all rules that were read, and what they say of a record: rules by priority, rows, delays. Pure; never changed once made.

**Which row applies** (section 5): among the rows of a rule and a routing name that are valid at the arrival, the one of the highest version; if
that is disabled or there is none, row `*`, chosen the same way. A row whose time is planned may leave an older one in force before or after
it. The older one is then taken with the rule, sources and parameters as they were before the newer row came: so the text of `uow-rule` says
exactly which row it is, although several versions of a row are in force side by side.

Belongs here: choosing. Does not belong here: reading them (`store.py`, `rule_file.py`), checking them (`checks.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Protocol, TypeVar

from uow.topics.rules import (
    DEFAULT_ROW,
    PARAMETERS,
    Change,
    Delay,
    KeyCase,
    Parameter,
    ResolvedRow,
    Row,
    Rule,
    Source,
)

Content = Mapping[tuple[str, ...], tuple[Any, ...]]
"""All that is in force: table and key give the values, with 0 for their versions; several for a row, the latest first, where it is planned."""


@dataclass(frozen=True, slots=True)
class RuleTables:
    """The rows of the tables of section 5, of any versions, in any order."""

    changes: tuple[Change, ...] = ()
    rules: tuple[Rule, ...] = ()
    rows: tuple[Row, ...] = ()
    delays: tuple[Delay, ...] = ()
    sources: tuple[Source, ...] = ()
    parameters: tuple[Parameter, ...] = ()

    @property
    def version(self) -> int:
        """The highest one; 0 if there is none."""
        return max((each.version for each in self.changes), default=0)

    def with_rows_of(self, other: RuleTables) -> RuleTables:
        """The rows of both."""
        return RuleTables(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))

    def until(self, version: int) -> RuleTables:
        """Without what is newer than a version."""
        return RuleTables(
            *(tuple(row for row in getattr(self, each.name) if row.version <= version) for each in fields(self))
        )

    def only(self, rule_id: str, routing_name: str | None = None) -> RuleTables:
        """As if a rule were the only one, and, if it is given, a routing name in any case; parameters are of all rules."""
        of_rule = {
            name: tuple(each for each in getattr(self, name) if each.rule_id == rule_id)
            for name in ("rules", "rows", "delays", "sources")
        }
        if routing_name is not None:
            folded = routing_name.casefold()
            of_rule["rows"] = tuple(each for each in of_rule["rows"] if each.routing_name.casefold() == folded)
        return replace(self, **of_rule)


class RowVersion(NamedTuple):
    """A version of a row that is in force at some time, and what it resolves to; None if it is disabled."""

    row: Row
    resolved: ResolvedRow | None

    def holds(self, arrival_ms: int) -> bool:
        """True at this moment, epoch ms."""
        start, end = self.row.valid_from_ms, self.row.valid_to_ms
        return (start is None or start <= arrival_ms) and (end is None or arrival_ms < end)


class RuleSet:
    """The rules as of their latest version.

    Attributes:
        tables: What it was made of.
        version: The latest version; 0 if there is none.
        rules: The enabled rules, in the order in which they are asked: by priority, then by id.
    """

    def __init__(self, tables: RuleTables) -> None:
        self.tables = tables
        self.version = tables.version
        self._history = _by(tables.rules, lambda rule: rule.rule_id)
        latest = {rule_id: rules[0] for rule_id, rules in self._history.items()}
        self.rules = tuple(
            sorted((rule for rule in latest.values() if rule.enabled), key=lambda rule: (rule.priority, rule.rule_id))
        )
        self._folded = {rule.rule_id for rule in latest.values() if rule.key_case is KeyCase.CASEFOLD}
        self._sources = _by(tables.sources, lambda source: source.rule_id)
        self._delays = _latest(tables.delays, lambda delay: (delay.rule_id, delay.routing_name, delay.item))
        self._parameters = _latest(tables.parameters, lambda each: each.name)
        known = [row for row in tables.rows if row.rule_id in self._history]
        self._rows = {
            key: self._versions(rows)
            for key, rows in _by(known, lambda row: self._key(row.rule_id, row.routing_name)).items()
        }
        self._dated = {
            key[0] for key, versions in self._rows.items() if any(not _is_unbounded(each.row) for each in versions)
        }

    # -- asking

    def rules_for(self, rule_ids: Collection[str]) -> tuple[Rule, ...]:
        """The enabled rules among these, all if none is named, in the order in which they are asked (B-111)."""
        return tuple(rule for rule in self.rules if not rule_ids or rule.rule_id in rule_ids)

    def resolve(self, rule: Rule, routing_name: str, arrival_ms: int) -> ResolvedRow | None:
        """The row for a routing name at a moment, row `*` where it has none of its own; None if there is no such row either (B-21 to B-23)."""
        for key in (self._key(rule.rule_id, routing_name), (rule.rule_id, DEFAULT_ROW)):
            found = next((each for each in self._rows.get(key, ()) if each.holds(arrival_ms)), None)
            if found is not None and found.resolved is not None:
                return found.resolved
        return None

    def delay_ms(self, rule: Rule, routing_name: str, item: str) -> int | None:
        """How long an item may wait (B-05); None without limit.

        Args:
            rule: The rule.
            routing_name: That of the row, `*` for the default row.
            item: The text of `delay_item`.
        """
        found = self._delays.get((rule.rule_id, routing_name, item))
        return None if found is None else found.delay_ms

    def is_dated(self, rule: Rule) -> bool:
        """True if a row of the rule has a planned start or end: then the arrival decides."""
        return rule.rule_id in self._dated

    def is_folded(self, rule: Rule) -> bool:
        """True if names that differ in case alone are one (B-20)."""
        return rule.rule_id in self._folded

    def delays(self) -> Iterable[Delay]:
        """The limits by item, in their latest versions."""
        return self._delays.values()

    def row_versions(self) -> Iterator[RowVersion]:
        """Every version of a row that is in force at some time, by rule and name, the latest first."""
        for _, versions in sorted(self._rows.items()):
            yield from versions

    def parameter(self, name: str) -> int | None:
        """The value of a parameter in force, or its default; None: off."""
        found = self._parameters.get(name)
        text = default_parameter(name) if found is None else found.value
        return int(text) if text else None

    def sources_of(self, rule: Rule) -> tuple[Source, ...]:
        """The enabled sources of a rule, by name."""
        latest = _latest(self._sources.get(rule.rule_id, ()), lambda each: each.source_name)
        return tuple(each for _, each in sorted(latest.items()) if each.enabled)

    def as_of(self, version: int) -> RuleSet:
        """The rules as they were at a version."""
        return RuleSet(self.tables.until(version))

    def only(self, rule_id: str) -> RuleSet:
        """The rules as if this were the only one; parameters are of all rules."""
        return RuleSet(self.tables.only(rule_id))

    def content(self, *, with_disabled: bool = False) -> Content:
        """All that is in force, without versions: two sets of equal content treat every record alike (B-214).

        Args:
            with_disabled: Also disabled rules, and what is kept of them.
        """
        found: dict[tuple[str, ...], tuple[Any, ...]] = {}
        rules = [versions[0] for versions in self._history.values()] if with_disabled else self.rules
        ids = {rule.rule_id for rule in rules}
        for rule in rules:
            found["rule", rule.rule_id] = (_bare(rule),)
            for source in self.sources_of(rule):
                found["source", rule.rule_id, source.source_name] = (_bare(source),)
        for versions in self._rows.values():
            latest = versions[0].row
            if latest.rule_id in ids and (len(versions) > 1 or latest.enabled):
                found["row", latest.rule_id, latest.routing_name] = tuple(_bare(each.row) for each in versions)
        for delay in self._delays.values():
            if delay.rule_id in ids and delay.delay_ms is not None:
                found["delay", delay.rule_id, delay.routing_name, delay.item] = (_bare(delay),)
        for name, each in self._parameters.items():
            if each.value != default_parameter(name):
                found["parameter", name] = (_bare(each),)
        return dict(sorted(found.items()))

    # -- making

    def _key(self, rule_id: str, routing_name: str) -> tuple[str, str]:
        return rule_id, routing_name.casefold() if rule_id in self._folded else routing_name

    def _versions(self, rows: Sequence[Row]) -> tuple[RowVersion, ...]:
        """From the latest version of a row down to the first that holds at all times."""
        found: list[RowVersion] = []
        until = self.version
        for row in rows:
            found.append(RowVersion(row, self._resolved(row, until) if row.enabled else None))
            until = row.version - 1
            if _is_unbounded(row):
                break
        return tuple(found)

    def _resolved(self, row: Row, version: int) -> ResolvedRow:
        """The row with rule, sources and parameters of a version. What was taken away counts for the version, like what was put there."""
        rules = self._history[row.rule_id]
        rule = next((each for each in rules if each.version <= version), rules[-1])
        sources = _latest(
            (each for each in self._sources.get(row.rule_id, ()) if each.version <= version),
            lambda each: each.source_name,
        )
        parameters = _latest(
            (each for each in self.tables.parameters if each.version <= version), lambda each: each.name
        )
        versions = [each.version for each in sources.values()] + [each.version for each in parameters.values()]
        return ResolvedRow(
            replace(rule, version=max(rule.version, *versions, 0)),
            row,
            tuple(each for _, each in sorted(sources.items()) if each.enabled),
            tuple(each for name, each in sorted(parameters.items()) if each.value != default_parameter(name)),
        )


class _Versioned(Protocol):
    @property
    def version(self) -> int: ...


V = TypeVar("V", bound=_Versioned)
K = TypeVar("K", bound=Hashable)


def _by(several: Iterable[V], key: Callable[[V], K]) -> dict[K, list[V]]:
    """Versions by key, the latest first."""
    found: dict[K, list[V]] = {}
    for each in sorted(several, key=lambda each: -each.version):
        found.setdefault(key(each), []).append(each)
    return found


def _latest(several: Iterable[V], key: Callable[[V], K]) -> dict[K, V]:
    return {name: versions[0] for name, versions in _by(several, key).items()}


def _is_unbounded(row: Row) -> bool:
    return row.valid_from_ms is None and row.valid_to_ms is None


def _bare(value: Any) -> Any:
    return replace(value, version=0)


def default_parameter(name: str) -> str:
    """A parameter's default as its text; empty is off."""
    default = PARAMETERS.get(name)
    return "" if default is None else str(default)
