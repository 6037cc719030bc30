"""The desk of a router: rules in force, and the log of rows, put together; and the same log as the assembler's table of rows.

Belongs here: which rules each input is routed by, which rows are to be written to `A-rules`, policies by name. Does not belong here: decisions about
a record (`uow.processor.rules.routing`), reading rules (`uow.processor.rules`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from uow.processor.core.columns import UnreadableRecord
from uow.processor.engine.ports import Meanwhile, Output, RawRecord
from uow.processor.kafka.rule_log import KafkaRuleLog
from uow.processor.rules.conditions import group_policy
from uow.processor.rules.mirror import mirrored
from uow.processor.rules.paths import ExpressionError
from uow.processor.rules.routing import RecordRouting, Routed, RouteTarget, RuleRouting
from uow.processor.rules.rule_set import RuleSet
from uow.schemas.error_classes import ConfigError
from uow.topics.catalogue import RULES_PARTITION
from uow.topics.grouping import GroupPolicy
from uow.topics.policies import DestinationPolicy
from uow.topics.record_size import RecordLimit
from uow.topics.routers import RouterSettings
from uow.topics.rules import RULES_KEY, Rule

log = logging.getLogger("uow.rules")


class RouterDesk:
    """Port `Desk` of a router.

    Args:
        in_force: Returns the rules that are in force now: the same object until there is another version.
        routers: Their settings by name.
        targets: Destinations by name.
        rule_log: The rows that are in `A-rules`.
        topic: `A-rules`.
        now_ms: The wall clock, epoch ms.

    Raises:
        ConfigError: An input has no rule at the start.
    """

    def __init__(
        self,
        in_force: Callable[[], RuleSet],
        routers: Mapping[str, RouterSettings],
        targets: Mapping[str, RouteTarget],
        rule_log: KafkaRuleLog,
        topic: str,
        now_ms: Callable[[], int],
    ) -> None:
        self._in_force, self._routers, self._targets = in_force, routers, targets
        self._log, self._topic, self._now_ms = rule_log, topic, now_ms
        self._now = now_ms()
        self._written: set[str] = set()
        self._rules = in_force()
        self._mirror = self._mirror_of(self._rules)
        self._mirrored: bytes | None = None
        self._routings = self._routings_of(self._rules)
        without = sorted(name for name, router in routers.items() if not {*router.inputs} <= self._routings.keys())
        if without:
            raise ConfigError(
                f"routers.{without[0]}.rules", list(routers[without[0]].rules), "no rule in force is among these"
            )

    def refresh(self) -> None:
        """Follows `A-rules`, and takes the rules that are in force now."""
        self._log.follow()
        self._now = self._now_ms()
        rules = self._in_force()
        if rules is not self._rules:
            self._rules, self._mirror = rules, self._mirror_of(rules)
            self._routings |= self._routings_of(rules)  # an input that would be without rules keeps those it had
            log.info("rules: version %d is in force", rules.version)

    def _routings_of(self, rules: RuleSet) -> dict[str, RecordRouting]:
        found = {}
        for router in self._routers.values():
            routings = [
                RuleRouting(rule, rules, self._targets[rule.destination])
                for rule in rules_of(router, rules)
                if rule.destination in self._targets
            ]
            if routings:
                found.update(dict.fromkeys(router.inputs, RecordRouting(routings)))
        return found

    def _mirror_of(self, rules: RuleSet) -> bytes | None:
        """All rules as a record; None if they do not fit into one."""
        data = mirrored(rules)
        if RecordLimit().fits_single(RULES_KEY, data, []):
            return data
        log.warning("rules: version %d is too large to be kept in %s: no start from there", rules.version, self._topic)
        return None

    def route(self, record: RawRecord, headers: Any) -> Routed:
        """The record that becomes of one."""
        routing = self._routings[record.topic()]
        return routing.route(record, headers, self._now, not isinstance(record, UnreadableRecord))

    def unwritten(self, routed: Iterable[Routed]) -> Sequence[Output]:
        """Rows of these that are not in `A-rules`, as far as it was read."""
        rows = {id(each.row): each.row for each in routed if each.row is not None}  # few rows for many records
        outputs = [
            Output(self._topic, RULES_PARTITION, name.encode(), row.encode(), [])
            for name, row in {row.name: row for row in rows.values()}.items()
            if name not in self._written and name not in self._log.rows
        ]
        if self._mirror is not None and self._mirror not in (self._log.mirror, self._mirrored):
            outputs.append(Output(self._topic, RULES_PARTITION, RULES_KEY, self._mirror, []))
        return outputs

    def written(self, outputs: Iterable[Output]) -> None:
        """These are committed."""
        for output in outputs:
            if output.topic == self._topic and output.key == RULES_KEY:
                self._mirrored = output.value
            elif output.topic == self._topic and output.key is not None:
                self._written.add(output.key.decode())


def rules_of(router: RouterSettings, rules: RuleSet) -> Sequence[Rule]:
    """The rules that a router asks, in their order."""
    return rules.rules_for(router.rules) if router.rules else rules.rules


class LoggedRules:
    """Port `RuleTable` of one destination: policies by the rows of `A-rules`.

    Args:
        rule_log: The rows.
        destination: Name of the destination.
        policy: Its settings.
    """

    def __init__(self, rule_log: KafkaRuleLog, destination: str, policy: DestinationPolicy) -> None:
        self._log, self._destination, self._policy = rule_log, destination, policy
        self._policies: dict[str, GroupPolicy] = {}

    def policy(self, name: str) -> GroupPolicy | None:
        """The policy of the groups of a row; None if it is not there, or of another destination."""
        known = self._policies.get(name)
        if known is not None:
            return known
        row = self._log.rows.get(name)
        if row is None or row.rule.destination != self._destination:
            return None
        try:
            policy = self._policies[name] = group_policy(row, self._policy)
        except ExpressionError as error:
            log.warning("%s: %s", name, error)
            return None
        return policy

    def catch_up(self, meanwhile: Meanwhile) -> None:
        """Reads to the end offset of now."""
        self._log.catch_up(meanwhile)
