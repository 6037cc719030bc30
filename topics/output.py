"""A record that is to be written: the shape in which routing and the engine hand it over.

Belongs here: that value. Does not belong here: writing it (`uow.processor.kafka.sink`).
"""

from __future__ import annotations

from typing import NamedTuple


class Output(NamedTuple):
    """One record for the world. `partition` -1: by murmur2 of the key."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class CancelNotice(Output):
    """A cancel notice (B-209). Anybody may send a record with the headers of one, so they do not tell."""

    __slots__ = ()
