"""Giving up open groups before a worker stops (B-76): `expire` commands like those of an operator, so that the audit trail has them.

Belongs here: commands for groups that a worker holds, and what their answers come to. Does not belong here: when a worker stops, and which groups it
holds (`uow.processor.shell.worker`), nor what giving up means (`uow.processor.core.command`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import uuid4

from uow.config.loading import Settings
from uow.ops.group_commands import command_client
from uow.topics.commands import Command, Verb

if TYPE_CHECKING:  # the worker's packages are an extra; these commands need none of them
    from uow.processor.shell.worker import HeldGroup

ANSWER_TIMEOUT_S = 30.0
"""Longest wait for the next answer."""

log = logging.getLogger("uow.worker")


def give_up(settings: Settings, worker: str, groups: Sequence[HeldGroup]) -> None:
    """Gives up open groups of a worker that goes on meanwhile; logs those that cannot be, with the reason.

    Raises:
        NoAnswerError: Topics are missing, or Kafka does not answer.
        UnansweredError: Commands were not answered in time.
    """
    for destination in dict.fromkeys(each.destination for each in groups):
        own = [each for each in groups if each.destination == destination]
        commands = [
            Command(
                str(uuid4()).encode(),
                Verb.EXPIRE,
                each.id,
                "flush on stop",
                f"worker {worker}",
                generation=each.generation,
            )
            for each in own
        ]
        log.info("%s: giving up %d open groups", destination, len(own))
        with command_client(settings, destination, len(commands), ANSWER_TIMEOUT_S) as client:
            for answer, _ in client.ask(commands, ANSWER_TIMEOUT_S):
                if not answer.done:
                    log.warning("%s: %s stays open: %s", destination, answer.id, answer.text)
