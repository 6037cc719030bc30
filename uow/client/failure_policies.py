"""Policies for units that expired or failed too often: those of the destination's workers, unless an argument says otherwise (W-86, W-87).

Theory of operation. Workers record their settings in each partition of `A-D-groups-changelog`, in one row; the newest row holds. A reader
without `application` finds `A` by the topic's name: the part before the longest destination that fits it. The row is read when the first unit is at
hand, since the worker that wrote the unit has recorded its settings before. Where the row cannot be read, no unit may be thrown away: units that
expired go to `D.errors`, and redeliveries have no limit.

Belongs here: finding and reading that row as a client. Does not belong here: writing it (`uow.processor.engine.settings_record`), and applying
it (`uow.client.dead_letters`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, KafkaException, TopicPartition

from uow.client.kafka_port import BLOCKING_S, ConsumerHandle, LogWatch
from uow.client.library_errors import read_error
from uow.errors import DestinationUnavailableError, ReconnectTimeoutError
from uow.processor.kafka.error_table import Meaning, meaning_of
from uow.schemas import codec
from uow.schemas.error_classes import ConfigError, DecodeError
from uow.schemas.records import SETTINGS_KEY, SettingsRow
from uow.topics.catalogue import DestinationTopics
from uow.topics.policies import (
    NO_LIMIT,
    DestinationPolicy,
    ExpirationPolicy,
    HandlingPolicy,
)

log = logging.getLogger(__name__)

ANSWER_S: Final = 30.0
"""Longest wait for the next record of a changelog."""
STEP_S: Final = 0.5
_CHANGELOG: Final = "-groups-changelog"
_COMPONENTS: Final = DestinationTopics("", "").components


class Policies(NamedTuple):
    """The policies of a reader.

    Attributes:
        expiration_policy: For units that expired before they were read.
        redelivery_limit: How many redeliveries may fail.
        forms_units: True if the destination forms units. Otherwise no record of `D.units` is a unit of its own, whatever its headers say (W-65).
    """

    expiration_policy: ExpirationPolicy
    redelivery_limit: int
    forms_units: bool = True


UNKNOWN: Final = Policies(ExpirationPolicy.REDIRECT, NO_LIMIT)
"""Where the recorded row cannot be read: these lose no unit."""


def asked(
    expiration_policy: ExpirationPolicy | str | None, redelivery_limit: int | None, recorded: RecordedPolicies
) -> Callable[[], Policies]:
    """Gives the policies of a reader: as its user says, and where that says nothing (None) as they are recorded.

    Raises:
        ConfigError: A policy that does not exist, or a limit below -1.
    """
    if redelivery_limit is not None and redelivery_limit < NO_LIMIT:
        raise ConfigError("redelivery_limit", redelivery_limit, "-1 (any number) or at least 0")
    try:
        policy = None if expiration_policy is None else ExpirationPolicy(expiration_policy)
    except ValueError:
        known = ", ".join(ExpirationPolicy)
        raise ConfigError("expiration_policy", expiration_policy, f"one of {known}") from None

    def ask() -> Policies:
        if policy is not None and redelivery_limit is not None:
            return Policies(policy, redelivery_limit)
        found = recorded.ask()
        return Policies(
            found.expiration_policy if policy is None else policy,
            found.redelivery_limit if redelivery_limit is None else redelivery_limit,
            found.forms_units,
        )

    return ask


class RecordedPolicies:
    """Asks the logs.

    Args:
        make: Makes a consumer that tells the end of a partition.
        application: `application.id` of the workers; empty where it is not known.
        destination: Whose settings are wanted.
        clock: Seconds, for waiting.
    """

    def __init__(
        self,
        make: Callable[[logging.Logger], ConsumerHandle],
        application: str,
        destination: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make, self._clock = make, clock
        self._application, self._destination = application, destination

    def ask(self) -> Policies:
        """The recorded policies, or with a warning `UNKNOWN`, which lose no unit.

        Raises:
            ReconnectTimeoutError: No broker answers.
        """
        handle = self._make(LogWatch().logger)
        try:
            return _policies_of(self._row(handle))
        except (DestinationUnavailableError, DecodeError, ValueError) as failure:
            log.warning(
                "the settings of destination %s are not known: %s. Units that expired go to %s.errors, and redeliveries have no limit; "
                "allow this client to read the topic, or give expiration_policy= and redelivery_limit=",
                self._destination,
                str(failure),  # not the error itself: whoever keeps log records would keep the reader
                self._destination,
            )
            return UNKNOWN
        finally:
            handle.close()

    def _row(self, handle: ConsumerHandle) -> SettingsRow:
        topic, partitions = self._changelog(handle)
        handle.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)])
        newest, value = -1, None
        left, deadline = set(range(partitions)), self._clock() + ANSWER_S
        while left:
            record = handle.poll(STEP_S)
            if record is None:
                if self._clock() >= deadline:
                    raise ReconnectTimeoutError(f"{topic} was not read: nothing came within {ANSWER_S:g} s")
                continue
            deadline = self._clock() + ANSWER_S
            error = record.error()
            if error is None:
                at = record.timestamp()[1]
                if record.key() == SETTINGS_KEY and record.value() is not None and at >= newest:
                    newest, value = at, record.value()
            elif meaning_of(error) is Meaning.END:
                left.discard(record.partition() or 0)
            elif (raised := read_error(error, topic)) is not None:
                raise DestinationUnavailableError(str(raised))
        if value is None:
            raise DestinationUnavailableError(f"{topic} has no row of settings")
        return codec.decode_as(SettingsRow, value)

    def _changelog(self, handle: ConsumerHandle) -> tuple[str, int]:
        """Topic and partition count."""
        try:
            found = handle.list_topics(None, BLOCKING_S).topics
        except KafkaException as failure:
            raise ReconnectTimeoutError(
                f"no broker answered within {BLOCKING_S:g} s: {failure.args[0].str()}"
            ) from failure
        there = {name: len(each.partitions) for name, each in found.items() if each.error is None and each.partitions}
        ours = DestinationTopics(self._application, self._destination).groups_changelog
        changelogs = [ours] if ours in there else changelogs_of(self._destination, there)
        if not changelogs:
            name = DestinationTopics(self._application or "*", self._destination).groups_changelog
            raise DestinationUnavailableError(f"there is no topic {name} that this client may see")
        if len(changelogs) > 1:
            raise DestinationUnavailableError(f"there are several: {', '.join(changelogs)}; give application=")
        return changelogs[0], there[changelogs[0]]


def changelogs_of(destination: str, topics: Iterable[str]) -> list[str]:
    """Those of these topics that may be the destination's `A-D-groups-changelog`: not those of another one whose longer name ends alike."""
    names = set(topics)
    longer = [name.removesuffix(_COMPONENTS) for name in names if name.endswith(f"-{destination}{_COMPONENTS}")]
    return sorted(
        name
        for name in names
        if name.endswith(f"-{destination}{_CHANGELOG}")
        and not any(name.endswith(f"-{each}{_CHANGELOG}") for each in longer)
    )


def _policies_of(row: SettingsRow) -> Policies:
    """Raises ValueError for what a newer version may have written."""
    said, default = dict(row.settings), DestinationPolicy()
    handling = HandlingPolicy(said.get("handling_policy", default.handling_policy))
    return Policies(
        ExpirationPolicy(said.get("expiration_policy", default.expiration_policy)),
        max(NO_LIMIT, int(said.get("redelivery_limit", default.redelivery_limit))),
        handling is HandlingPolicy.SINGLE_MESSAGE_DELIVERY,
    )
