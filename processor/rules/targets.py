"""Topics that rules send units to, beside `D.units`. Pure.

Belongs here: their names. Does not belong here: their settings (`uow.topics.catalogue`).
"""

from __future__ import annotations

from dataclasses import replace

from uow.processor.rules.rule_set import RuleSet
from uow.topics.policies import DestinationPolicy
from uow.topics.rules import ResolvedRow


def target_topics(rules: RuleSet, destination: str, policy: DestinationPolicy) -> dict[str, bool]:
    """Target topics of the rows for a destination; true where units may go there as runs, on the partition number of their components (B-60)."""
    found: dict[str, bool] = {}
    for _, resolved in rules.row_versions():
        if resolved is not None and resolved.rule.destination == destination and resolved.row.target_topic:
            in_runs = _may_write_runs(resolved, policy)
            found[resolved.row.target_topic] = found.get(resolved.row.target_topic, False) or in_runs
    return found


def _may_write_runs(resolved: ResolvedRow, policy: DestinationPolicy) -> bool:
    """True if a unit of this row may be written as a run, by its shape or by `oversize`. The unit of a call never is."""
    own = replace(policy, shape=resolved.row.shape or policy.shape)
    return own.may_write_runs and not resolved.rule.gathers_replies
