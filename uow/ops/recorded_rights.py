"""Compares who may send which command here with what the workers go by.

Whoever decides old commands again by other keys would obey strangers, or drop what was obeyed, without a word.

Belongs here: that comparison. Does not belong here: judging a command (`uow.topics.command_keys`), the marks (`uow.processor.engine.settings_record`).
"""

from __future__ import annotations

from collections.abc import Iterable

from uow.processor.engine.ports import Tp
from uow.processor.engine.settings_record import rights_in, rights_of
from uow.processor.kafka.log_reader import KafkaLogReader
from uow.schemas.error_classes import ConfigError
from uow.topics.catalogue import DestinationTopics
from uow.topics.policies import DestinationPolicy

_RULE = (
    "the workers judge commands by other keys, or by another unsigned_commands or command_window_ms: "
    "give this program the `uow.toml` of the workers"
)


def rights_complaint(
    reader: KafkaLogReader, topics: DestinationTopics, partitions: Iterable[int], policy: DestinationPolicy
) -> ConfigError | None:
    """The complaint where the workers of these partitions go by other rights; None if they go by these. Waits for no open transaction."""
    found = reader.committed([Tp(topics.components, number) for number in partitions], "read_uncommitted")
    if {rights_in(each.metadata) for each in found.values()} <= {None, rights_of(policy)}:
        return None
    ours = ", ".join(each.name for each in policy.command_keys)
    return ConfigError(f"destinations.{topics.destination}.command_keys", ours, _RULE)


def require_rights_of_workers(
    reader: KafkaLogReader, topics: DestinationTopics, partitions: Iterable[int], policy: DestinationPolicy
) -> None:
    """Stops a program that decides old commands again.

    Raises:
        ConfigError: The workers go by other rights.
    """
    complaint = rights_complaint(reader, topics, partitions, policy)
    if complaint is not None:
        raise complaint
