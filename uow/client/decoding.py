"""A unit's value as it lies in a topic, in whichever format and framing.

Belongs here: telling them apart. Does not belong here: what becomes of the unit (`uow.client.reader`, `uow.client.received`).
"""

from __future__ import annotations

from uow.schemas.codec import SchemaSource, decode_as
from uow.schemas.error_classes import DecodeError
from uow.schemas.formats import from_json, from_xml
from uow.schemas.records import Unit


def decode_unit(value: bytes | None, registry: SchemaSource | None = None) -> Unit:
    """A unit's value in any format and framing, which the first byte tells (W-95).

    Raises:
        DecodeError: It is none, or broken.
        UowError: The registry does not answer.
    """
    if value is None:
        raise DecodeError("body", "a unit without a value")
    if value[:1] == b"{":
        return from_json(value)
    if value[:1] == b"<":
        return from_xml(value)
    return decode_as(Unit, value, registry=registry)
