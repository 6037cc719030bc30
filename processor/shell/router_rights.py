"""Compares the key of a worker with the commands that its routers write, when it starts: nobody repeats one that was refused.

Belongs here: that check. Does not belong here: judging commands (`uow.topics.command_keys`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Final

from uow.processor.kafka.router_desk import rules_of
from uow.processor.kafka.worker_settings import WorkerSettings
from uow.processor.rules.rule_set import RuleSet
from uow.schemas.error_classes import ConfigError
from uow.topics.command_keys import NEVER_ENDS, CommandRights, CommandSigner, signed_headers
from uow.topics.commands import Verb
from uow.topics.policies import DestinationPolicy, ViolationPolicy
from uow.topics.rules import OnRuleChange

log = logging.getLogger("uow.rules")

_OF_ROUTERS: Final = (Verb.FAIL, Verb.RULE_CHANGE)


def check_rights(settings: WorkerSettings, rules: RuleSet, now_ms: int) -> None:
    """Compares the key of this worker with those of its destinations, for the commands of routers.

    Args:
        settings: Settings of the worker.
        rules: The rules in force.
        now_ms: The wall clock, epoch ms.

    Raises:
        ConfigError: A command that routers write by these rules would be refused now.
    """
    signer = settings.command_signer()
    asked = [rule for router in settings.routers.values() for rule in rules_of(router, rules)]
    for name, policy in settings.destinations.items():
        own = [rule for rule in asked if rule.destination == name]
        needed = [Verb.FAIL] if own and policy.violation_policy is ViolationPolicy.FAIL_GROUP else []
        needed += [Verb.RULE_CHANGE] if any(rule.on_rule_change is OnRuleChange.LIVE for rule in own) else []
        if policy.command_keys:
            _check(name, policy, signer, needed, now_ms)


def _check(
    destination: str, policy: DestinationPolicy, signer: CommandSigner | None, needed: Collection[Verb], now_ms: int
) -> None:
    rights = CommandRights(destination, policy.command_keys, policy.unsigned_commands, policy.command_window_ms)
    at = max(now_ms, rights.since_ms)
    for verb in _OF_ROUTERS:
        found = rights.judge(verb, b"", None, signed_headers(signer, destination, b"", None, [], at), at)
        if found.refused:
            why = f"{destination} refuses the command {verb} of this router from {_moment(rights.since_ms)} on: {found.text}"
            if verb in needed and at == now_ms:
                raise ConfigError("application.command_key", "" if signer is None else signer.name, why)
            log.warning("rules: %s", why)
        elif (until := _until(policy, signer, verb, at)) < NEVER_ENDS:
            log.warning("rules: %s refuses the command %s of this router from %s on", destination, verb, _moment(until))


def _until(policy: DestinationPolicy, signer: CommandSigner | None, verb: Verb, at: int) -> int:
    """The end of the right to a command that there is at a moment, epoch ms."""
    if signer is None or verb in policy.unsigned_commands:
        return NEVER_ENDS
    own = [each for each in policy.command_keys if (each.name, each.public) == (signer.name, signer.public)]
    until = at
    for since_ms, until_ms in sorted((each.since_ms, each.until_ms) for each in own if each.may(verb)):
        until = max(until, until_ms) if since_ms <= until else until
    return until


def _moment(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
