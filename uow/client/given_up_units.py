"""Units that readers gave up, on their way back: `D.errors` has them whole (W-87), and `uow resubmit` sends their components once more (B-127).

They go as components, under a new id, since the old one is closed: what stands on `D.units` is formed by the destination's own worker, and by nobody else.
The id follows from the place in `D.errors`, so a unit that is sent again twice is refused as a duplicate the second time.

Belongs here: opening such a unit, and making the components. Does not belong here: sending them, and single refused records
(`uow.client.rejected_records`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final, NamedTuple
from uuid import NAMESPACE_URL, uuid5

from uow.client.decoding import unit_of_record
from uow.client.outgoing import Component
from uow.client.rejected_records import Correction, RefusedRecord, has_passed, way_back
from uow.schemas.codec import SchemaSource
from uow.schemas.error_classes import DecodeError
from uow.schemas.records import ComponentRecord, Source
from uow.topics.headers import (
    COMPONENT_ID,
    COUNT,
    DIGEST,
    END,
    ID,
    POS,
    RECYCLED,
    REROUTED,
    RESUBMITTED,
    SEQ,
    SOURCE,
    STAMPED,
    UNIT_ID,
    Reading,
)
from uow.topics.runs import Run, position_of, unit_of

_NEW: Final = STAMPED | {SEQ, END, COUNT, DIGEST, COMPONENT_ID, REROUTED, RECYCLED, RESUBMITTED}
"""Headers that belong to the unit as it was."""


class UnitAgain(NamedTuple):
    """A unit as it is sent again: its place in `D.errors`, its new id, and its components in order."""

    coordinates: str
    id: str
    components: tuple[Component, ...]


def by_unit(records: Iterable[RefusedRecord]) -> list[list[RefusedRecord]]:
    """Records in their order, those together that are one unit; a single component is alone."""

    def unit(record: RefusedRecord) -> tuple[object, ...]:
        if not record.is_unit:
            return (record.coordinates,)
        return record.topic, record.partition, record.header(UNIT_ID), record.header(SOURCE)

    return [[*several] for _, several in groupby(records, unit)]


def unit_again(
    records: Sequence[RefusedRecord],
    destination: str,
    correction: Correction,
    reading: Reading,
    registry: SchemaSource | None,
    now_ms: int,
) -> UnitAgain:
    """The unit of these records, as it goes back.

    Args:
        records: All records of one unit.
        destination: Name of the destination.
        correction: Changes to the headers of every component; `uow-id` is the new id.
        reading: How the destination reads headers.
        registry: For units in Confluent framing.
        now_ms: An expiry before this is left behind (W-80).

    Raises:
        DecodeError: It cannot be opened: it was too large to be kept whole, it is a document, or its values lie elsewhere.
        UowError: The registry does not answer.
    """
    coordinates = records[0].coordinates
    components = _components(records, destination, registry)
    if any(each.reference is not None for each in components):
        raise DecodeError("reference", "it refers to components, whose values are not in it")
    if not components:
        raise DecodeError("body", "its components cannot be told from its value")
    given = correction.headers.get(ID) or str(uuid5(NAMESPACE_URL, f"{destination}/{coordinates}")).encode()
    return UnitAgain(
        coordinates,
        given.decode(),
        tuple([_again(each, records[0], correction, reading, now_ms) for each in components]),
    )


def _components(
    records: Sequence[RefusedRecord], destination: str, registry: SchemaSource | None
) -> Sequence[ComponentRecord]:
    first = records[0]
    if position_of(first.headers) is None:
        return unit_of_record([*first.headers], first.value, destination, registry)[0].components
    run = Run(unit_of(first.headers, destination, first.at), first.offset)
    found = []
    for record in records:
        breach = run.breach(record.headers)
        if breach is not None:
            raise DecodeError(POS, breach)
        here = Source(record.topic, record.partition, record.offset)
        found.append(run.take(record.headers, record.key, record.value, record.at, here))
    if not run.is_whole:
        raise DecodeError(POS, f"{run.taken} of its {run.unit.count} records are chosen, or were kept")
    return found


def _again(
    component: ComponentRecord, record: RefusedRecord, correction: Correction, reading: Reading, now_ms: int
) -> Component:
    headers = [
        pair
        for pair in component.headers
        if reading.names.get(pair[0], pair[0]) not in _NEW and not has_passed(*pair, now_ms)
    ]
    changes = {name: value for name, value in correction.headers.items() if name != ID}
    headers = [pair for pair in headers if pair[0] not in changes]
    headers += [(name, value) for name, value in changes.items() if value is not None]
    identity = component.component_id or str(component.source)
    return Component(component.value, headers=way_back(headers, record), component_id=identity)
