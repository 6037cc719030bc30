"""Topics that the rules of a deployment send units to, for commands on topics.

Belongs here: reading the rules for their names. Does not belong here: expected settings (`uow.topics.catalogue`).
"""

from __future__ import annotations

from collections.abc import Mapping

from uow.config.loading import Settings
from uow.schemas.error_classes import ConfigError


def targets_by_destination(settings: Settings) -> dict[str, Mapping[str, bool]]:
    """Target topics by destination, as `uow.topics.catalogue.expected` takes them; empty without routers.

    Raises:
        ConfigError: The rules cannot be read.
    """
    if not settings.routers:
        return {}
    from uow.ops.rules import RuleDesk
    from uow.processor.rules.changes import RulesUnavailable
    from uow.processor.rules.targets import target_topics

    desk = RuleDesk(settings)
    try:
        rules = desk.read()
    except RulesUnavailable as error:
        raise ConfigError("rules.source", desk.source().name, str(error)) from error
    return {name: target_topics(rules, name, policy) for name, policy in settings.destinations.items()}
