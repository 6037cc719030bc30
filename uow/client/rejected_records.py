"""Records that were refused or given up: reading them, and making the ones that are sent again (W-80, W-202).

Belongs here: reading `D.rejected` and `D.errors`, choosing among what lies there, making the record that goes back. Does not belong here:
printing (`uow.cli`), refusing (`uow.processor.core`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from uow.client.kafka_port import Headers
from uow.client.outgoing import OutgoingRecord
from uow.processor.engine.ports import LogReader, Tp
from uow.topics.catalogue import DestinationTopics
from uow.topics.headers import (
    ERROR_CASE,
    ERROR_CLASS,
    ERROR_ONLY,
    ERROR_TEXT,
    ERROR_VALUE,
    EXPIRES_AT,
    FAILURE_REASON,
    HOPS,
    ID,
    KIND,
    REROUTED,
    RESUBMITTED,
    SEQ,
    SOURCE,
    decimal,
    only_units_carry,
)

ERRORS: Final = DestinationTopics("", "").errors
_LEFT_BEHIND: Final = ERROR_ONLY | {REROUTED}


@dataclass(frozen=True, slots=True)
class RefusedRecord:
    """A record of `D.rejected` or `D.errors`.

    Attributes:
        topic: Where it lies; with `partition` and `offset` its coordinates.
        at: Append time there, epoch ms.
        headers: Its own and those that say why, in order.
    """

    topic: str
    partition: int
    offset: int
    at: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    @property
    def coordinates(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"

    def header(self, name: str) -> str | None:
        """Text of the last header of that name: reasons stand behind what the record came with."""
        raw = next((value for each, value in reversed(self.headers) if each == name), None)
        return None if raw is None else raw.decode("utf-8", "backslashreplace")

    @property
    def original(self) -> Headers:
        """Its headers as it came, without those that are for refused records, units, or one journey only."""
        return [
            pair
            for pair in self.headers
            if not (pair[0] in _LEFT_BEHIND or pair[0].startswith("uow-error-") or only_units_carry(pair[0]))
        ]

    @property
    def is_unit(self) -> bool:
        """True for a unit that a reader gave up, or a part of one. Only `D.errors` has units (W-87); in `D.rejected` the header is what a sender wrote."""
        return self.topic.endswith(ERRORS) and self.header(KIND) == "unit"

    @property
    def can_go_back(self) -> bool:
        """False for a record of which only the reasons were kept since it fits no record of ours; a unit goes by its components."""
        return not self.is_unit and (bool(self.original) or self.value is not None)

    @property
    def lacks_value(self) -> bool:
        """True if it came with a value that could not be read back (W-117): it goes back with a new one only."""
        return self.header(ERROR_VALUE) is not None


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice among refused records; a field that is None does not matter.

    Attributes:
        coordinates: These and no others.
        error: Pattern of the error class.
        case: Pattern of the case.
        id: Pattern of the group id.
        since: Refused at this moment or later, epoch ms.
        before: Refused before this moment.
    """

    coordinates: Sequence[str] = ()
    error: str | None = None
    case: str | None = None
    id: str | None = None
    since: int | None = None
    before: int | None = None

    @property
    def is_everything(self) -> bool:
        return self == Choice()

    def takes(self, record: RefusedRecord) -> bool:
        """True if the record is chosen."""
        patterns = (ERROR_CLASS, self.error), (ERROR_CASE, self.case), (ID, self.id)
        return (
            (not self.coordinates or record.coordinates in self.coordinates)
            and all(pattern is None or fnmatchcase(record.header(name) or "", pattern) for name, pattern in patterns)
            and (self.since is None or record.at >= self.since)
            and (self.before is None or record.at < self.before)
        )


def refused(reader: LogReader, topic: str, partitions: int, choice: Choice) -> list[RefusedRecord]:
    """The chosen records of a topic as it is now, the oldest first. Records refused from now on are not among them."""
    tps = [Tp(topic, number) for number in range(partitions)]
    return sorted(
        (record for record in _records(reader, reader.bounds(tps)) if choice.takes(record)),
        key=lambda each: (each.at, each.partition, each.offset),
    )


def _records(reader: LogReader, ranges: Mapping[Tp, tuple[int, int]]) -> Iterator[RefusedRecord]:
    for tp, records in reader.read(ranges):
        for record in records:
            yield RefusedRecord(
                tp.topic,
                tp.partition,
                record.offset(),
                record.timestamp()[1],
                record.key(),
                record.value(),
                tuple(record.headers() or ()),
            )


@dataclass(frozen=True, slots=True)
class Correction:
    """Changes to a record that goes back.

    Attributes:
        headers: Headers to set in the place of those of the same name, or to take out where the value is None.
        value: The new value, if `with_value`.
    """

    headers: Mapping[str, bytes | None]
    value: bytes | None = None
    with_value: bool = False


def corrected(record: RefusedRecord, topic: str, correction: Correction, now_ms: int) -> OutgoingRecord:
    """The record as it goes back to `topic`, `D.components`.

    All of its own headers stay, but for an expiry that has passed (W-80); `uow-resubmitted` says where it lay, and that topic is one more
    hop (W-202). A component goes under its id as key, whatever key it came under (W-59).
    """
    set_anew = dict(correction.headers)
    headers: Headers = []
    for name, value in record.original:
        if name in set_anew:
            new = set_anew.pop(name)
            if new is not None:
                headers.append((name, new))
        elif name not in correction.headers and not has_passed(name, value, now_ms):
            headers.append((name, value))
    headers += [(name, value) for name, value in set_anew.items() if value is not None]
    headers = way_back(headers, record)
    key = next((value for name, value in headers if name == ID), record.key)
    return OutgoingRecord(topic, key, correction.value if correction.with_value else record.value, headers)


def way_back(headers: Headers, record: RefusedRecord) -> Headers:
    """Headers of what goes back, with the place where it lay, and that topic as one more hop."""
    hops = b",".join([value or b"" for name, value in headers if name == HOPS] + [record.topic.encode()])
    headers = [pair for pair in headers if pair[0] not in (HOPS, RESUBMITTED)]
    return [*headers, (HOPS, hops), (RESUBMITTED, record.coordinates.encode())]


def has_passed(name: str, value: bytes | None, now_ms: int) -> bool:
    """True for an expiry that has passed: it is left behind (W-80)."""
    moment = decimal(value or b"") if name in (EXPIRES_AT, "JMSExpiration") else None
    return moment is not None and 0 < moment < now_ms


COLUMNS: Final = {
    "class": ERROR_CLASS,
    "case": ERROR_CASE,
    "failure": FAILURE_REASON,
    "id": ID,
    "seq": SEQ,
    "source": SOURCE,
    "text": ERROR_TEXT,
}
"""Columns of a list of refused records, and the header of each."""
