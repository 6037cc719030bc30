"""Topics that rules send units to, beside `D.units`. Pure.

Belongs here: their names. Does not belong here: their settings (`uow.topics.catalogue`).
"""

from __future__ import annotations

from uow.processor.rules.rule_set import RuleSet
from uow.topics.policies import DestinationPolicy, Shape


def target_topics(rules: RuleSet, destination: str, policy: DestinationPolicy) -> dict[str, bool]:
    """Target topics of the rows for a destination; true where units go there as runs, on the partition number of their components (B-60)."""
    found: dict[str, bool] = {}
    for _, resolved in rules.row_versions():
        if resolved is not None and resolved.rule.destination == destination and resolved.row.target_topic:
            in_runs = (resolved.row.shape or policy.shape) is Shape.CONSECUTIVE
            found[resolved.row.target_topic] = found.get(resolved.row.target_topic, False) or in_runs
    return found
