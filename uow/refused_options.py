"""Options that `uow rejected` and `uow resubmit` share: which topic, and which records of it.

Belongs here: click decorators, and what they hand over. Does not belong here: reading and choosing (`uow.refused`).
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import click

from topics.admin import admin_client, partition_counts
from topics.catalogue import DestinationTopics
from uow.config import Settings
from uow.logs import NoAnswerError
from uow.options import Moment
from uow.refused import Choice


class Place(Enum):
    """Where records lie that a destination did not take."""

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
        name = topics.rejected if self is Place.REJECTED else topics.errors
        count = partition_counts(admin_client(settings.bootstrap_servers, settings.kafka)).get(name)
        if count is None:
            raise NoAnswerError(f"topic {name} does not exist; `uow topics create` makes it")
        return name, count


def _place(ctx: click.Context, param: click.Parameter, value: str) -> Place:
    return Place(value)


_OPTIONS = (
    click.option(
        "--from",
        "place",
        type=click.Choice([each.value for each in Place]),
        default=Place.REJECTED.value,
        show_default=True,
        callback=_place,
        help="Refused components, or those given up.",
    ),
    click.option("--class", "error", metavar="PATTERN", help="Error class: `Duplicate*`."),
    click.option("--case", metavar="PATTERN", help="Error case: `resend`."),
    click.option("--id", metavar="PATTERN", help="Group id: `order-*`."),
    click.option("--since", type=Moment(), metavar="MOMENT", help="Refused then or later: ISO 8601, or epoch ms."),
    click.option("--before", type=Moment(), metavar="MOMENT", help="Refused before then."),
)


def refused_options(command: Any) -> Any:
    """`--from` hands the command `place: Place`; the filters are for `chosen`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def chosen(filters: dict[str, Any], coordinates: tuple[str, ...] = ()) -> Choice:
    """The choice that the filters mean."""
    return Choice(coordinates, **filters)
