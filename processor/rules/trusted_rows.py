"""Rows of `A-rules` that are to be believed: those of a version that the worker itself read, from the source of the rules or from the mirror.

A component names its row, and `A-rules` tells what that row says. Whoever may write there could write a row before its version exists, or
another one under its name. So a row is compared with what is known otherwise:

| The row | It is |
| --- | --- |
| the source, as far as this worker read it, has a row of this name | the source's row, whatever `A-rules` says |
| it is of a version that the source has, a database with all versions, and that has no such row | not believed |
| the mirror (the last set of rules in `A-rules`) has a row of this name | the mirror's row, whatever else `A-rules` says |
| it is of a later version than source and mirror | not believed: there is no such version yet, since routers write the mirror before rows of its version |
| otherwise: an earlier version, which neither of them has any longer, or one whose rules fit no mirror | the row as it was written, if it would pass the check of a version |

Before a row of a later version is refused for good, the source is looked at once more (`await_versions`).

The last three lines rest on the right to write `A-rules`, which nobody but workers should have.

Belongs here: that choice. Does not belong here: reading `A-rules` (`uow.processor.kafka.rule_log`), policies (`row_table.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from uow.processor.rules.checks import complaints_about
from uow.processor.rules.mirror import LatestMirror, read_mirror
from uow.processor.rules.rule_set import RuleSet, RuleTables
from uow.topics.policies import DestinationPolicy
from uow.topics.rules import Change, ResolvedRow


class UntrustedRow(ValueError):
    """A row that is not to be believed; the message says why."""


@dataclass(slots=True)
class TrustedRows:
    """The rows of one application that are to be believed. For one thread.

    Args:
        source: Returns all that was read of the source so far.
        has_all_versions: True of a source that keeps them all: a database.
        mirror: The mirror, as far as `A-rules` was read.
        destinations: Policy by configured destination.
        application: `application.id`.
        look: Has the source looked at, and returns once that is done, or was not in time; calls its argument while it waits.
    """

    source: Callable[[], RuleTables]
    has_all_versions: bool
    mirror: LatestMirror
    destinations: Mapping[str, DestinationPolicy]
    application: str
    look: Callable[[Callable[[], object]], object] = lambda meanwhile: None
    _of_source: RuleTables = field(default_factory=RuleTables)
    _rows: Mapping[str, ResolvedRow] = field(default_factory=dict)
    _record: bytes | None = None
    _mirrored: Mapping[str, ResolvedRow] = field(default_factory=dict)
    _refused: dict[str, str] = field(default_factory=dict)
    _awaited: set[str] = field(default_factory=set)

    def trusted(self, name: str, row: ResolvedRow | None) -> ResolvedRow | None:
        """The row of this name that is to be believed; None if there is none of it anywhere.

        Args:
            name: Text of `uow-rule`.
            row: As `A-rules` has it; None if it has none.

        Raises:
            UntrustedRow: There is one in `A-rules` alone, which is not to be believed.
        """
        self._take()
        if name not in self._refused:
            try:
                return self._judged(name, row)
            except UntrustedRow as error:
                self._refused[name] = str(error)
        raise UntrustedRow(self._refused[name])

    def await_versions(self, names: Collection[str], meanwhile: Callable[[], object]) -> None:
        """Has the source looked at if one of these rows is of a later version than what is known; once for each state of source and mirror."""
        self._take()
        known = max(self._of_source.version, self.mirror.version)
        later = {name for name in names if _version_of(name) > known} - self._awaited
        if later:
            self.look(meanwhile)
            self._take()
            self._awaited |= later

    def _judged(self, name: str, row: ResolvedRow | None) -> ResolvedRow | None:
        version = self._of_source.version
        known = self._rows.get(name) or self._earlier_row(name)
        if known is not None:
            return known
        if row is not None and self.has_all_versions and row.version <= version:
            raise UntrustedRow("the source of the rules has no such row")
        if row is None or name in self._mirrored:
            return self._mirrored.get(name)
        latest = max(version, self.mirror.version)
        is_lost = self.mirror.is_spoilt and not self.mirror.version  # somebody wrote over it: nobody knows what it was
        if latest and row.version > latest and not is_lost:
            raise UntrustedRow(f"there is no version {row.version} of the rules yet")
        self._check(row)
        return row

    def _take(self) -> None:
        """Takes what source and mirror are now; what was refused before is judged again after a change."""
        tables, record = self.source(), self.mirror.record
        if tables is self._of_source and record is self._record:
            return
        self._refused.clear()
        self._awaited.clear()
        if tables is not self._of_source:
            self._of_source, self._rows = tables, _by_name(RuleSet(tables))
        if record is not self._record:
            data = self.mirror.data
            self._record = record
            self._mirrored = {} if data is None else _by_name(RuleSet(read_mirror(data)))

    def _earlier_row(self, name: str) -> ResolvedRow | None:
        """A row of an earlier version of the source, with no more made of that version than this row needs."""
        version, (rule_id, _, row) = _version_of(name), name.rpartition("@")[0].partition("/")
        if not self.has_all_versions or not 0 < version < self._of_source.version:
            return None
        return _by_name(RuleSet(self._of_source.until(version).only(rule_id, row))).get(name)

    def _check(self, row: ResolvedRow) -> None:
        """Raises `UntrustedRow` for a row that no version of rules could have."""
        alone = RuleTables((Change(row.version, "", "", 0),), (row.rule,), (row.row,), (), row.sources, row.parameters)
        complaints = complaints_about(RuleSet(alone), self.destinations, self.application)
        if complaints:
            raise UntrustedRow("; ".join(map(str, complaints))[:1_000])


def _by_name(rules: RuleSet) -> Mapping[str, ResolvedRow]:
    return {each.resolved.name: each.resolved for each in rules.row_versions() if each.resolved is not None}


def _version_of(name: str) -> int:
    """The version in the name of a row; 0 if it is no such name."""
    version = name.rpartition("@")[2]
    return int(version) if version.isdecimal() and len(version) < 20 else 0
