"""The rights of a role for the configured destinations (`uow.topics.access`).

Belongs here: the names that the configuration gives to the rows. Does not belong here: the rows, and printing (`uow.cli.acl_command`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from uow.config.loading import Settings
from uow.ops.destination_rules import routers_to
from uow.ops.target_topics import configured_rules, targets_by_destination
from uow.schemas.error_classes import ConfigError
from uow.topics.access import Binding, Names, Only, Role, bindings, covers_workers, has_transactions
from uow.topics.catalogue import DestinationTopics
from uow.topics.policies import DestinationPolicy
from uow.topics.routes import unit_topics


@dataclass(frozen=True, slots=True)
class OwnNames:
    """The names that no configuration has, since applications choose them; those of `uow.topics.access.Names`."""

    group: str
    client: str
    reads: Sequence[str]
    writes: Sequence[str]


def rights(settings: Settings, roles: Iterable[Role], chosen: Sequence[str], own: OwnNames) -> dict[Binding, str]:
    """Each right that the roles need, once, with what it is for.

    Args:
        settings: The configuration.
        roles: The roles of one principal.
        chosen: Destinations; none: all that are configured.
        own: Names that applications choose.

    Raises:
        ConfigError: There is no such destination, its rules cannot be read, or ids of clients would be those of workers.
    """
    wanted = [*roles]
    if any(map(has_transactions, wanted)) and covers_workers(settings.application_id, own.client):
        rule = f"ids of workers, {settings.application_id}-worker-..., begin so too: give clients ids that begin otherwise, and name that with --client"
        raise ConfigError("--client", own.client, rule)
    targets = targets_by_destination(settings)
    found: dict[Binding, str] = {}
    for name in chosen or settings.destinations:
        inputs = _inputs(settings, name if chosen else "")
        names = _names(settings, name, settings.policy(name), sorted(targets.get(name, ())), inputs, own)
        for role in wanted:
            for binding, why in bindings(role, names):
                found.setdefault(binding, why)
    return found


def _inputs(settings: Settings, destination: str) -> list[str]:
    """Inputs of the routers with a rule for a destination; without one those of all, which may get their rules later."""
    if not settings.routers or not destination:
        return sorted({topic for router in settings.routers.values() for topic in router.inputs})
    by_rule = {rule.rule_id: rule.destination for rule in configured_rules(settings).tables.rules}
    return sorted(routers_to(destination, settings, by_rule)[0])


def _names(
    settings: Settings,
    destination: str,
    policy: DestinationPolicy,
    targets: Sequence[str],
    inputs: Sequence[str],
    own: OwnNames,
) -> Names:
    units = unit_topics(policy.routes, DestinationTopics(settings.application_id, destination).units)
    return Names(
        settings.application_id,
        destination,
        units,
        targets,
        inputs,
        frozenset(
            (
                Only.STRICT if policy.strict_order else Only.NOT_STRICT,
                Only.PATHS if policy.has_paths else Only.NO_PATHS,
                *((Only.RULES,) if settings.routers else ()),
                *((Only.REFERENCES,) if policy.refers else ()),
            )
        ),
        own.group,
        own.client,
        own.reads,
        own.writes,
        targets or units,
    )


def commands_text(destination: str, policy: DestinationPolicy) -> str:
    """Who may send commands, beside the rights of Kafka."""
    if not policy.command_keys:
        return f"commands need no signature: whoever may write to {destination}.commands may send each of them, under any name"
    names = ", ".join(dict.fromkeys(each.name for each in policy.command_keys))
    return f"commands need the signature of a key ({names}), but for {', '.join(sorted(policy.unsigned_commands)) or 'none'}"
