"""Rows of `A-rules` that are to be believed: those of a version that the worker itself read, from the source of the rules or from the mirror.

A component names its row, and `A-rules` tells what that row says. Whoever may write there could write a row before its version exists, or
another one under its name. So a row is compared with what is known otherwise:

| The row | It is |
| --- | --- |
| the source, as far as this worker read it, has a row of this name | the source's row, whatever `A-rules` says |
| it is of a version that the source has, a database with all versions, and that has no such row | not believed |
| the mirror (the last set of rules in `A-rules`) has a row of this name | the mirror's row |
| it is of a later version than source and mirror | not believed: there is no such version yet |
| otherwise: an earlier version, which neither of them has any longer | the row as it was first written, if it would pass the check of a version |

The last three lines rest on the right to write `A-rules`, which nobody but workers should have.

Belongs here: that choice. Does not belong here: reading `A-rules` (`uow.processor.kafka.rule_log`), policies (`row_table.py`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from uow.processor.rules.checks import complaints_about
from uow.processor.rules.mirror import read_mirror
from uow.processor.rules.rule_set import RuleSet, RuleTables
from uow.topics.policies import DestinationPolicy
from uow.topics.rules import Change, ResolvedRow

_VERSIONS_KEPT: Final = 8
"""Versions of the source whose rows are kept by name."""


class UntrustedRow(ValueError):
    """A row that is not to be believed; the message says why."""


@dataclass(slots=True)
class TrustedRows:
    """The rows of one application that are to be believed. For one thread.

    Args:
        source: Returns all that was read of the source so far.
        has_all_versions: True of a source that keeps them all: a database.
        mirror: Returns the mirror; None if there is none.
        destinations: Policy by configured destination.
        application: `application.id`.
    """

    source: Callable[[], RuleTables]
    has_all_versions: bool
    mirror: Callable[[], bytes | None]
    destinations: Mapping[str, DestinationPolicy]
    application: str
    _of_source: RuleTables = field(default_factory=RuleTables)
    _by_version: OrderedDict[int, Mapping[str, ResolvedRow]] = field(default_factory=OrderedDict)
    _mirror: bytes | None = None
    _mirrored: Mapping[str, ResolvedRow] = field(default_factory=dict)
    _mirror_version: int = 0
    _refused: dict[str, str] = field(default_factory=dict)

    def trusted(self, row: ResolvedRow) -> ResolvedRow:
        """The row of this name that is to be believed.

        Args:
            row: As `A-rules` has it.

        Raises:
            UntrustedRow: There is none.
        """
        self._look()
        if row.name not in self._refused:
            try:
                return self._judged(row)
            except UntrustedRow as error:
                self._refused[row.name] = str(error)
        raise UntrustedRow(self._refused[row.name])

    def _judged(self, row: ResolvedRow) -> ResolvedRow:
        version = self._of_source.version
        known = self._source_rows(min(row.version, version) if self.has_all_versions else version)
        if row.name in known:
            return known[row.name]
        if self.has_all_versions and row.version <= version:
            raise UntrustedRow("the source of the rules has no such row")
        if row.name in self._mirrored:
            return self._mirrored[row.name]
        latest = max(version, self._mirror_version)
        if latest and row.version > latest:
            raise UntrustedRow(f"there is no version {row.version} of the rules yet")
        self._check(row)
        return row

    def _look(self) -> None:
        """Takes what source and mirror are now; what was refused before is judged again after a change."""
        tables, mirror = self.source(), self.mirror()
        if tables is self._of_source and mirror is self._mirror:
            return
        self._of_source = tables
        self._by_version.clear()
        self._refused.clear()
        if mirror is not self._mirror:
            rules = RuleSet(RuleTables() if mirror is None else read_mirror(mirror))
            self._mirror, self._mirrored, self._mirror_version = mirror, _by_name(rules), rules.version

    def _source_rows(self, version: int) -> Mapping[str, ResolvedRow]:
        """The rows of the source as of a version, by name."""
        if version not in self._by_version:
            self._by_version[version] = _by_name(RuleSet(self._of_source.until(version)))
            if len(self._by_version) > _VERSIONS_KEPT:
                self._by_version.popitem(last=False)
        return self._by_version[version]

    def _check(self, row: ResolvedRow) -> None:
        """Raises `UntrustedRow` for a row that no version of rules could have."""
        alone = RuleTables((Change(row.version, "", "", 0),), (row.rule,), (row.row,), (), row.sources, row.parameters)
        complaints = complaints_about(RuleSet(alone), self.destinations, self.application)
        if complaints:
            raise UntrustedRow("; ".join(map(str, complaints))[:1_000])


def _by_name(rules: RuleSet) -> Mapping[str, ResolvedRow]:
    return {each.resolved.name: each.resolved for each in rules.row_versions() if each.resolved is not None}
