"""Rows of the rules of one destination as the assembler's table of policies: port `uow.topics.grouping.RuleTable`.

Belongs here: policies by the names of rows that are known. Does not belong here: where rows come from (`uow.processor.kafka.rule_log`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from uow.processor.rules.conditions import group_policy
from uow.processor.rules.paths import ExpressionError
from uow.processor.rules.trusted_rows import TrustedRows, UntrustedRow
from uow.topics.grouping import GroupPolicy
from uow.topics.policies import DestinationPolicy
from uow.topics.rules import ResolvedRow

log = logging.getLogger("uow.rules")

MOST_TOLD: Final = 1_000
"""Rows that the log names because they are not believed."""


class RowTable:
    """Policies by the text of `uow-rule`.

    Args:
        rows: The rows as they were written; further ones may be added to them.
        destination: Name of the destination.
        policy: Its settings.
        trusted: Tells which rows are to be believed; None believes all.
    """

    def __init__(
        self,
        rows: Mapping[str, ResolvedRow],
        destination: str,
        policy: DestinationPolicy,
        trusted: TrustedRows | None = None,
    ) -> None:
        self._rows, self._destination, self._policy, self._trusted = rows, destination, policy, trusted
        self._policies: dict[str, GroupPolicy] = {}
        self._kept: dict[str, GroupPolicy] = {}
        self._missed: set[str] = set()
        self._told: set[tuple[str, str]] = set()

    def policy(self, name: str) -> GroupPolicy | None:
        """The policy of the groups of a row; None if it is not there, not to be believed, or of another destination."""
        known = self._policies.get(name)
        if known is not None:
            return known
        policy = self._believed(name)
        if policy is not None:
            self._policies[name] = policy
        elif self._trusted is not None and name in self._rows:
            self._missed.add(name)
        return policy

    def kept(self, name: str) -> GroupPolicy | None:
        """The same of a row that groups have already: it was believed when they took it, whoever knows it now."""
        found, row = self.policy(name) or self._kept.get(name), self._rows.get(name)
        if found is None and row is not None and (found := self._compiled(name, row)) is not None:
            self._kept[name] = found
        return found

    def _believed(self, name: str) -> GroupPolicy | None:
        row = self._rows.get(name)
        try:
            believed = row if self._trusted is None else self._trusted.trusted(name, row)
        except Exception as error:  # noqa: BLE001 - the boundary to what others wrote: it concerns this row alone
            self._tell(name, f"not believed: {error}", error)
            return None
        if believed is None:
            return None
        if row not in (None, believed):
            self._tell(
                name, "not the row of that name in A-rules, but the one that the rules themselves have is obeyed"
            )
        return self._compiled(name, believed)

    def _compiled(self, name: str, row: ResolvedRow) -> GroupPolicy | None:
        if row.rule.destination != self._destination:
            return None
        try:
            return group_policy(row, self._policy)
        except Exception as error:  # noqa: BLE001 - the same boundary
            self._tell(name, f"cannot be read: {error}", error)
            return None

    def _tell(self, name: str, what: str, error: Exception | None = None) -> None:
        """Says it once; of what nobody foresaw with the place in the code."""
        if (name, what) not in self._told and len(self._told) < MOST_TOLD:
            self._told.add((name, what))
            foreseen = error is None or isinstance(error, UntrustedRow | ExpressionError)
            log.warning("row %s: %s", name, what, exc_info=None if foreseen else error)

    def catch_up(self, meanwhile: Callable[[], object]) -> None:
        """Has the source looked at, if a row that was asked for since the last time may be of a version that is there by now.

        Args:
            meanwhile: Called while it waits.
        """
        if self._trusted is not None and self._missed:
            self._trusted.await_versions(self._missed, meanwhile)
            self._missed.clear()
