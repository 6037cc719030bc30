"""Topics that the rules of a deployment send units to, for commands on topics.

Belongs here: reading the rules for their names. Does not belong here: expected settings (`uow.topics.catalogue`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from uow.config.loading import Settings
from uow.schemas.error_classes import ConfigError

if TYPE_CHECKING:
    from uow.processor.rules.rule_set import RuleSet


def configured_rules(settings: Settings) -> RuleSet:
    """The rules of the source.

    Raises:
        ConfigError: The rules cannot be read.
    """
    from uow.ops.rules import RuleDesk
    from uow.processor.rules.changes import RulesUnavailable

    desk = RuleDesk(settings)
    try:
        return desk.read()
    except RulesUnavailable as error:
        raise ConfigError("rules.source", desk.source().name, str(error)) from error


def targets_by_destination(settings: Settings) -> dict[str, Mapping[str, bool]]:
    """Target topics by destination, as `uow.topics.catalogue.expected` takes them; empty without routers.

    Raises:
        ConfigError: The rules cannot be read.
    """
    if not settings.routers:
        return {}
    from uow.processor.rules.targets import target_topics

    rules = configured_rules(settings)
    return {name: target_topics(rules, name, policy) for name, policy in settings.destinations.items()}
