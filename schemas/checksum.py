"""The checksum of values that are referred to: CRC-32C, as Kafka uses it (`Reference` in `definitions/component.avsc`).

Belongs here: that one function. Does not belong here: digests of units (`uow.schemas.digest`).
"""

from __future__ import annotations

import google_crc32c

from uow.schemas.records import ComponentRecord, Reference


def reference_to(value: bytes | None) -> Reference:
    """Length and CRC-32C of a value; a null value has the length -1."""
    return Reference(-1, 0) if value is None else Reference(len(value), google_crc32c.value(value))


def by_reference(component: ComponentRecord) -> ComponentRecord:
    """The component without key, value and headers, which are left at its source; the value may have been left there already."""
    return ComponentRecord(
        component.seq,
        component.end,
        component.component_id,
        None,
        None,
        (),
        component.timestamp,
        component.source,
        component.reference or reference_to(component.value),
    )
