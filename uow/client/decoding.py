"""A unit's value as it lies in a topic, in whichever format and framing.

Belongs here: telling them apart. Does not belong here: what becomes of the unit (`uow.client.reader`, `uow.client.received`).
"""

from __future__ import annotations

from uow.schemas.codec import SchemaSource, decode_as
from uow.schemas.error_classes import DecodeError
from uow.schemas.formats import from_json, from_xml
from uow.schemas.records import Unit
from uow.topics.runs import Pairs, document_unit, is_document


def unit_of_record(
    headers: Pairs, value: bytes | None, destination: str, registry: SchemaSource | None = None
) -> tuple[Unit, bytes | None]:
    """The unit of a record that is one as a whole; and the document that its value is, without components, or None (B-53).

    Args:
        headers: Of the record.
        value: Its value.
        destination: Whose units they are.
        registry: For Confluent framing.

    Raises:
        DecodeError: It is none, or broken.
        UowError: The registry does not answer.
    """
    if is_document(headers, value):
        return document_unit(headers, destination), value
    return decode_unit(value, registry), None


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
