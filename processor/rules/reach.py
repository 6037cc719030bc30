"""Rules that no record ever comes to, since a rule that is asked before takes every record (B-111). Pure.

A rule that gathers replies leaves a reply to the rule that asked for it (`RecordRouting.route`), so neither of two is in the way of the other. A rule with
an `accept` may leave a record to the next, whatever its text is. So none is named that some record could come to.

Belongs here: that judgement. Does not belong here: which rule has a record (`uow.processor.rules.routing`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from uow.processor.rules.columns import label
from uow.processor.rules.rule_set import RuleSet
from uow.schemas.error_classes import Complaint
from uow.topics.routers import RouterSettings
from uow.topics.rules import Rule


def complaints_about_reach(rules: RuleSet, routers: Mapping[str, RouterSettings]) -> Iterator[Complaint]:
    """Rules that some router asks, and none ever reaches, where the latest version brings them or what is in their way."""
    reached = set[str]()
    behind: dict[str, tuple[Rule, Rule]] = {}
    for router in routers.values():
        for rule, before in _asked(rules.rules_for(router.rules)):
            if before is None:
                reached.add(rule.rule_id)
            else:
                behind[rule.rule_id] = rule, before
    for rule_id, (rule, before) in behind.items():
        if rule_id not in reached and rules.version in (rule.version, before.version):
            yield Complaint(
                f"{label(Rule, {'rule_id': rule_id})}.priority",
                rule.priority,
                f"no record comes to it: {before.rule_id} is asked before it, and takes every record. Say which ones in its accept, or ask it later",
            )


def _asked(rules: Sequence[Rule]) -> Iterator[tuple[Rule, Rule | None]]:
    """The rules of a router, each with the one before it that leaves it no record."""
    taker: Rule | None = None
    gathers = False
    for rule in rules:
        is_reached = taker is None or (gathers and rule.gathers_replies)
        yield rule, None if is_reached else taker
        gathers |= is_reached and rule.gathers_replies
        if taker is None and rule.accept is None:
            taker = rule
