"""Options that `uow rejected` and `uow resubmit` share: which topic, and which records of it.

Belongs here: click decorators and the values they pass on. Does not belong here: reading and choosing (`uow.client.rejected_records`).
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import click

from uow.cli.options import TimeType
from uow.client.rejected_records import Choice
from uow.config.loading import Settings
from uow.ops.destination_logs import counts_with
from uow.topics.catalogue import DestinationTopics


class RejectedFrom(Enum):
    """The two topics of records that a destination did not deliver."""

    REJECTED = "rejected"
    ERRORS = "errors"

    def topic(self, settings: Settings, destination: str) -> tuple[str, int]:
        """Name and partition count.

        Raises:
            ConfigError: No such destination is configured.
            NoAnswerError: The topic does not exist.
        """
        settings.policy(destination)
        topics = DestinationTopics(settings.application_id, destination)
        name = topics.rejected if self is RejectedFrom.REJECTED else topics.errors
        return name, counts_with(settings, name)[name]


def _source(ctx: click.Context, param: click.Parameter, value: str) -> RejectedFrom:
    return RejectedFrom(value)


_OPTIONS = (
    click.option(
        "--from",
        "source",
        type=click.Choice([each.value for each in RejectedFrom]),
        default=RejectedFrom.REJECTED.value,
        show_default=True,
        callback=_source,
        help="Refused components, or components of groups that were given up.",
    ),
    click.option("--class", "error", metavar="PATTERN", help="Error class: `Duplicate*`."),
    click.option("--case", metavar="PATTERN", help="Error case: `resend`."),
    click.option("--id", metavar="PATTERN", help="Group id: `order-*`."),
    click.option(
        "--since", type=TimeType(), metavar="MOMENT", help="Refused at this moment or later: ISO 8601, or epoch ms."
    ),
    click.option("--before", type=TimeType(), metavar="MOMENT", help="Refused before this moment."),
)


def refused_options(command: Any) -> Any:
    """`--from` passes `source: RejectedFrom` to the command; the filters are for `chosen`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def chosen(filters: dict[str, Any], coordinates: tuple[str, ...] = ()) -> Choice:
    """The choice of records that the filters describe."""
    return Choice(coordinates, **filters)
