"""Finished units of a destination, from a seed, in bulk: the input of the Spark benchmark.

Belongs here: the content of the units, and a producer that preloads `D.units` with them. Does not belong here: measuring.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from bench.workloads import PARTITIONS, send
from uow.processor.core.changes import Closed
from uow.schemas.component import encode_component, sized, unit_body
from uow.schemas.framing import single_object_header
from uow.schemas.records import ComponentRecord, Reason, Source, UnitOutcome
from uow.topics import headers as names
from uow.topics.catalogue import DestinationTopics
from uow.topics.partitioner import partition_for

COMPONENTS = 5
VALUE_BYTES = 200
STARTED_MS = 1_760_000_000_000


class UnitRecord(NamedTuple):
    """A record of `D.units`."""

    key: bytes
    value: bytes
    headers: list[tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class FinishedUnits:
    """Units of `COMPONENTS` components with `VALUE_BYTES` random bytes each, as a worker writes them.

    Attributes:
        topics: Topics of the destination.
        units: Number of units.
    """

    topics: DestinationTopics
    units: int

    def records(self) -> Iterator[UnitRecord]:
        """The records in the order in which they are sent."""
        rnd = random.Random(f"units/{self.units}")
        noise = rnd.randbytes(VALUE_BYTES + 4096)
        framing, destination = single_object_header("Unit"), sized(self.topics.destination.encode())
        for number in range(self.units):
            group, unit = (str(uuid.UUID(int=rnd.getrandbits(128), version=4)).encode() for _ in range(2))
            at = STARTED_MS + number
            bodies = [
                self._component(group, number, seq, noise[rnd.randrange(4096) :], at) for seq in range(COMPONENTS)
            ]
            closed = Closed(group, 1, UnitOutcome.COMPLETE, Reason.END, COMPONENTS, 0, at + COMPONENTS)
            size = sum(map(len, bodies))
            value = unit_body(framing, group, unit, destination, closed, at, 0, size, (), bodies)
            yield UnitRecord(group, value, _headers(group, unit))

    def _component(self, group: bytes, number: int, seq: int, noise: bytes, at: int) -> bytes:
        is_last = seq == COMPONENTS - 1
        marks = [(names.ID, group), (names.SEQ, b"%d" % (seq + 1)), (names.END, b"true" if is_last else b"false")]
        source = Source(self.topics.components, partition_for(group, PARTITIONS), number * COMPONENTS + seq)
        value = noise[:VALUE_BYTES]
        return encode_component(ComponentRecord(seq + 1, is_last, None, group, value, tuple(marks), at + seq, source))


def _headers(group: bytes, unit: bytes) -> list[tuple[str, bytes]]:
    return [
        (names.ID, group),
        (names.KIND, names.KIND_UNIT),
        (names.UNIT_ID, unit),
        (names.GENERATION, b"1"),
        (names.OUTCOME, b"complete"),
        (names.REASON, b"end"),
        (names.SIZE, b"%d" % COMPONENTS),
    ]


def preload(bootstrap: str, made: FinishedUnits) -> None:
    """Fills `D.units`."""
    place = made.topics.units
    send(
        bootstrap,
        ((place, each.value, each.key, partition_for(each.key, PARTITIONS), each.headers) for each in made.records()),
    )
