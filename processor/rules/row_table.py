"""Rows of the rules of one destination as the assembler's table of policies: port `uow.topics.grouping.RuleTable`.

Belongs here: policies by the names of rows that are known. Does not belong here: where rows come from (`uow.processor.kafka.rule_log`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from uow.processor.rules.conditions import group_policy
from uow.processor.rules.paths import ExpressionError
from uow.topics.grouping import GroupPolicy
from uow.topics.policies import DestinationPolicy
from uow.topics.rules import ResolvedRow

log = logging.getLogger("uow.rules")


class RowTable:
    """Policies by the text of `uow-rule`.

    Args:
        rows: The rows; further ones may be added to them.
        destination: Name of the destination.
        policy: Its settings.
    """

    def __init__(self, rows: Mapping[str, ResolvedRow], destination: str, policy: DestinationPolicy) -> None:
        self._rows, self._destination, self._policy = rows, destination, policy
        self._policies: dict[str, GroupPolicy] = {}

    def policy(self, name: str) -> GroupPolicy | None:
        """The policy of the groups of a row; None if it is not there, or of another destination."""
        known = self._policies.get(name)
        if known is not None:
            return known
        row = self._rows.get(name)
        if row is None or row.rule.destination != self._destination:
            return None
        try:
            policy = self._policies[name] = group_policy(row, self._policy)
        except ExpressionError as error:
            log.warning("%s: %s", name, error)
            return None
        return policy

    def catch_up(self, meanwhile: Callable[[], object]) -> None:
        """Nothing further is to be read."""
