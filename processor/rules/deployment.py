"""The one check of a version of rules: could every worker start with it now (B-15)?

`uow rules put`, a start, the mirror and running workers all ask `Deployment.complaints`, with the same facts: the rules, the destinations and
routers of the configuration, the transforms that are installed, and the partitions of topics. So no version is in force that a start would refuse.

A set that has faults all the same, because there is none without, stops only the routers that are concerned: `Deployment.held`.

Belongs here: putting the parts of that check together. Does not belong here: what a column may say (`checks.py`), which version is chosen
(`in_force.py`), asking brokers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from uow.processor.rules.checks import complaints_about
from uow.processor.rules.conditions import group_policy
from uow.processor.rules.routing import RouteTarget, RuleRouting
from uow.processor.rules.rule_set import RuleSet
from uow.processor.rules.targets import target_topics
from uow.processor.rules.transforms import installed
from uow.schemas.error_classes import Complaint, shown
from uow.topics.catalogue import DestinationTopics
from uow.topics.policies import DestinationPolicy
from uow.topics.record_size import RecordLimit
from uow.topics.routers import RouterSettings
from uow.topics.rules import Row

log = logging.getLogger("uow.rules")


@dataclass(frozen=True, slots=True)
class Deployment:
    """All that decides, beside the rules, if a worker can start with them.

    Attributes:
        application: `application.id`.
        destinations: The configured destinations by name.
        routers: The configured routers by name.
        partitions: Returns the number of partitions by topic; asked only where units go to a target as runs. Raises `RulesUnavailable`
            while no broker answers: then nothing is decided.
        transforms: Returns the transforms that are installed; None where that is not known.
    """

    application: str
    destinations: Mapping[str, DestinationPolicy]
    routers: Mapping[str, RouterSettings]
    partitions: Callable[[], Mapping[str, int]]
    transforms: Callable[[], Collection[str] | None] = installed

    def complaints(self, rules: RuleSet) -> list[Complaint]:
        """All that keeps a worker from starting with these rules; empty if nothing does.

        Raises:
            RulesUnavailable: It cannot be told now.
        """
        about_routers = [complaint for _, complaint in self._about_routers(rules)]
        return [*self._about_rules(rules), *about_routers, *self._about_targets(rules)]

    def held(self, rules: RuleSet) -> dict[str, str]:
        """The routers that cannot go on by these rules, with the reason; the others can.

        A router asks its rules in their order, so without one of them its records would go to the wrong rule: it holds its inputs. A fault of a
        target topic holds no router: its units wait (B-57).
        """
        found = {name: str(complaint) for name, complaint in self._about_routers(rules)}
        for rule in rules.rules:
            asking = [name for name, router in self.routers.items() if not router.rules or rule.rule_id in router.rules]
            complaints = self._about_rules(rules.only(rule.rule_id)) if asking else ()
            for name in asking if complaints else ():
                found.setdefault(name, f"rule {rule.rule_id}: {complaints[0]}")
        return found

    def _about_rules(self, rules: RuleSet) -> Sequence[Complaint]:
        """Of the texts themselves, and of what routers and assemblers make of them."""
        try:
            found = complaints_about(rules, self.destinations, self.application, self.transforms())
            if not found:
                self._try(rules)
        except Exception as error:  # the boundary to texts of others: their fault is a complaint, whatever it is
            log.warning("rules: version %d cannot be checked", rules.version, exc_info=True)
            why = f"cannot be made: {shown(error)}"
            return [Complaint("rules.version", rules.version, why)]
        return found

    def _try(self, rules: RuleSet) -> None:
        """Makes what a router and an assembler make of the rules. Raises what that raises."""
        for rule in rules.rules:
            policy = self.destinations[rule.destination]
            target = RouteTarget(DestinationTopics(self.application, rule.destination), policy, RecordLimit())
            RuleRouting(rule, rules, target)
        enabled, tried = {rule.rule_id: rule for rule in rules.rules}, set[Row]()
        for row, resolved in rules.row_versions():
            alike = replace(row, routing_name="", version=0, target_topic=None)
            if resolved is not None and row.rule_id in enabled and alike not in tried:
                tried.add(alike)
                group_policy(resolved, self.destinations[enabled[row.rule_id].destination])

    def _about_routers(self, rules: RuleSet) -> Iterator[tuple[str, Complaint]]:
        known = {rule.rule_id for rule in rules.rules}
        for name, router in self.routers.items():
            for rule_id in router.rules:
                if rule_id not in known:
                    yield name, Complaint(f"routers.{name}.rules", rule_id, "is no enabled rule")
            if not router.rules and not known:
                yield name, Complaint(f"routers.{name}.rules", [], "asks all rules, and none is enabled")

    def _about_targets(self, rules: RuleSet) -> Iterator[Complaint]:
        """Runs stay on the partition number of their components (B-60). A topic that is missing is no obstacle: it may be made later (B-57)."""
        in_runs = {
            name: sorted(topic for topic, runs in target_topics(rules, name, policy).items() if runs)
            for name, policy in self.destinations.items()
        }
        counts = self.partitions() if any(in_runs.values()) else {}
        for name, topics in in_runs.items():
            components = DestinationTopics(self.application, name).components
            for topic in topics:
                count, needed = counts.get(topic), counts.get(components)
                if None not in (count, needed) and count != needed:
                    why = f"must be {needed}, as of {components}: units may go there as runs, on the partition of their components"
                    yield Complaint(f"topic {topic}, partitions", count, why)


def missing_targets(rules: RuleSet, destinations: Mapping[str, DestinationPolicy], there: Collection[str]) -> list[str]:
    """Target topics of rules that do not exist."""
    wanted = {topic for name, policy in destinations.items() for topic in target_topics(rules, name, policy)}
    return sorted(wanted.difference(there))
