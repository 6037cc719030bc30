"""A run under way on one partition: a unit of shape `consecutive` as a reader meets it (W-12, W-14).

Belongs here: beginning, going on and breaking off. Does not belong here: what headers mean (`uow.topics.runs`), and what is done with the
components (`uow.client.reader`, `uow.client.streaming`).
"""

from __future__ import annotations

from uow.client.kafka_port import ConsumedRecord, Headers, coordinates
from uow.client.verdict import Verdict
from uow.schemas.error_classes import DecodeError
from uow.schemas.records import ComponentRecord, Source
from uow.topics.headers import POS, UNIT_ID
from uow.topics.runs import (
    Pairs,
    Run,
    position_of,
    unit_of,
)


class OpenRun(Run):
    """A run whose first record came.

    Args:
        record: The first one.
        headers: Its headers.
        destination: Whose unit it is.

    Attributes:
        headers: Those of the first record.
        timestamp: Its timestamp, epoch ms.
        components: Those collected so far; a unit that streams collects none.
        parts: The records of these, with their headers.
        verdict: The reason to give the unit up once it is whole; None if it is handed out.
    """

    def __init__(self, record: ConsumedRecord, headers: Headers, destination: str) -> None:
        self.headers, self.timestamp = headers, record.timestamp()[1]
        super().__init__(unit_of(headers, destination, self.timestamp), coordinates(record)[2])
        self.components: list[ComponentRecord] = []
        self.parts: list[tuple[ConsumedRecord, Headers]] = []
        self.verdict: Verdict | None = None

    def component(self, record: ConsumedRecord, headers: Headers) -> ComponentRecord:
        """The next component.

        Raises:
            DecodeError: The record is not the next one, or cannot be read.
        """
        breach = self.breach(headers)
        if breach is not None:
            raise DecodeError(POS, breach)
        return self.take(headers, record.key(), record.value(), record.timestamp()[1], Source(*coordinates(record)))


def is_left_over(headers: Pairs, broken: str) -> bool:
    """True if a record belongs to a run that was found broken: that was reported once, so the record is passed over."""
    position = position_of(headers)
    return position is not None and position[0] != 1 and (UNIT_ID, broken.encode()) in headers
