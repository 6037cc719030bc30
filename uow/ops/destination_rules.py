"""The rules of destinations as they are now, for jobs that read what workers made by them: the sink and the audit (B-11).

Rows come from `A-rules`, where every one is that a component was ever stamped with. Target topics are those of these rows, and of the rules in force:
in the configured store, or in the mirror of `A-rules` where that cannot be read.

The sink does with what every installation has; the source of the rules, and the audit of units by them, need the extra `rules`.

Belongs here: reading both, once. Does not belong here: what the jobs do with them (`uow.spark_sink`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from contextlib import closing
from typing import TYPE_CHECKING

from uow.config.loading import Settings
from uow.extras import advice, extra_of
from uow.processor.kafka.rule_log import open_rule_log
from uow.schemas.error_classes import ConfigError
from uow.spark_sink.destination_rules import DestinationRules
from uow.topics.admin import admin_client, partition_counts
from uow.topics.catalogue import DestinationTopics, rules_topic
from uow.topics.routes import unit_topics

if TYPE_CHECKING:
    from uow.processor.rules.rule_set import RuleSet

log = logging.getLogger(__name__)


def destination_rules(settings: Settings, destinations: Collection[str]) -> dict[str, DestinationRules]:
    """The rules of those destinations that have any.

    Args:
        settings: The configuration.
        destinations: Names of configured destinations.

    Raises:
        Doubt: `A-rules` was not read to its end in time.
        KafkaException: No broker answers.
    """
    topics = partition_counts(admin_client(settings.bootstrap_servers, settings.kafka))
    if rules_topic(settings.application_id) not in topics:
        return {}
    with closing(open_rule_log(settings.worker("rules"))) as rule_log:
        rule_log.catch_up(lambda: None)
    rows, present = rule_log.rows, rules_in_force(settings, rule_log.mirror)
    by_rule = {row.rule.rule_id: row.rule.destination for row in rows.values()}
    by_rule |= {rule.rule_id: rule.destination for rule in present.tables.rules}
    found = {}
    for name in {*destinations} & {*by_rule.values()}:
        own = {text: row for text, row in rows.items() if row.rule.destination == name}
        in_force = [each.resolved for each in present.row_versions() if each.resolved is not None]
        of_both = [*own.values(), *(row for row in in_force if row.rule.destination == name)]
        said = {topic for row in of_both for topic in row.targets}
        units = DestinationTopics(settings.application_id, name).units
        targets = sorted(said.difference(unit_topics(settings.policy(name).routes, units)))
        for topic in targets:
            if topic not in topics:
                log.warning("%s: target topic %s of its rules does not exist, so nothing is read from it", name, topic)
        others = frozenset(rule_id for rule_id, of in by_rule.items() if of != name)
        inputs, routed = routers_to(name, settings, by_rule)
        found[name] = DestinationRules(
            tuple(each for each in targets if each in topics),
            others,
            own,
            tuple(sorted(inputs & topics.keys())),
            tuple(sorted(routed & settings.destinations.keys())),
        )
    return found


def routers_to(name: str, settings: Settings, by_rule: Mapping[str, str]) -> tuple[set[str], set[str]]:
    """Inputs of the routers with a rule for this destination, and every destination that these routers have rules for."""
    inputs, routed = set[str](), set[str]()
    for router in settings.routers.values():
        there = {by_rule[rule_id] for rule_id in router.rules or by_rule if rule_id in by_rule}
        if name in there:
            inputs.update(router.inputs)
            routed |= there
    return inputs, routed


def rules_in_force(settings: Settings, mirror: bytes | None) -> RuleSet:
    """The rules in force: of the configured source, else of the mirror; none if neither can be read."""
    from uow.processor.rules.changes import RulesUnavailable
    from uow.processor.rules.columns import WrongRows
    from uow.processor.rules.mirror import read_mirror
    from uow.processor.rules.rule_set import RuleSet, RuleTables

    try:
        if settings.rules.source:
            from uow.ops.rules import RuleDesk

            desk = RuleDesk(settings)
            return desk.in_force(desk.read())
    except (RulesUnavailable, ConfigError) as error:
        log.warning("rules: the mirror serves, since they cannot be read: %s", error)
    except ModuleNotFoundError as error:
        log.warning(
            "rules: the mirror serves, since their source cannot be read: %s",
            advice(extra_of(error.name or "") or "rules"),
        )
    try:
        if mirror is not None:
            return RuleSet(read_mirror(mirror))
    except WrongRows as error:
        log.warning("rules: their mirror cannot be read: %s", error)
    return RuleSet(RuleTables())
