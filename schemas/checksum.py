"""The checksum of values that stay where they are: CRC-32C, as Kafka has it (contract section 11, `Reference`).

Belongs here: that one function. Does not belong here: digests of units (`schemas.digest`).
"""

from __future__ import annotations

import google_crc32c

from schemas.records import Component, Reference


def reference_to(value: bytes | None) -> Reference:
    """Length and CRC-32C of a value; a null value has the length -1."""
    return Reference(-1, 0) if value is None else Reference(len(value), google_crc32c.value(value))


def by_reference(component: Component) -> Component:
    """The component without key, value and headers: they stay at its source, where its value may have stayed already."""
    return Component(
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
