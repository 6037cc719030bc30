"""The reasons why a unit was not handed out, as values.

Belongs here: the reasons, and their texts for users. Does not belong here: deciding, and handling the unit (`uow.client.dead_letters`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from uow.schemas.error_classes import UowError


class Failure(StrEnum):
    """The reason why a unit was given up: `uow-failure-reason`."""

    EXPIRED = "expired"
    REDELIVERY_LIMIT = "redelivery-limit"
    FAILED = "failed"
    """It cannot be read."""


class Unreadable(StrEnum):
    """Treatment of a record that should be a unit and cannot be read."""

    REDIRECT = "redirect"
    """It goes to the errors topic."""
    LOG = "log"
    """It is passed over, and logged."""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A unit, or what should be one, that was not handed out.

    Attributes:
        topic: Where it lies; with `partition` and `offset` the coordinates of its first record.
        id: Its group id, if its header says one.
        failure: The reason.
        text: The reason, for people.
        moved_to: The errors topic, or None where it is passed over.
    """

    topic: str
    partition: int
    offset: int
    id: str | None
    failure: Failure
    text: str
    moved_to: str | None

    def __str__(self) -> str:
        fate = f"goes to {self.moved_to}" if self.moved_to is not None else "is passed over"
        whose = "" if self.id is None else f"unit {self.id!r} at "
        return f"{whose}{self.topic}/{self.partition}/{self.offset} {fate}: {self.text}"


class Verdict(NamedTuple):
    """The reason to give a unit up, with class, case and text as of any error."""

    failure: Failure
    error: type[UowError]
    case: str
    text: str
