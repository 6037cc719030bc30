"""Schemas that units were written with: released versions by fingerprint, and a registry's by id.

Belongs here: finding a writer's schema. Does not belong here: decoding with it (`uow.spark_sink.decode`).
"""

from __future__ import annotations

from collections.abc import Callable

from uow.schemas import framing
from uow.schemas.codec import foreign_writer
from uow.schemas.error_classes import DecodeError
from uow.schemas.registry import connect

UNIT = "Unit"


def unit_schema() -> str:
    """The current schema of a unit, which every writer's schema is resolved to."""
    return framing.definition_text(UNIT)


def unit_writers() -> dict[bytes, str]:
    """Single-object header (ten bytes) to schema text, of every released version of a unit."""
    return {
        framing.SINGLE_OBJECT_MARK + fingerprint.to_bytes(8, "little"): framing.definition_text(*schema)
        for fingerprint, schema in framing.known().items()
        if schema.name == UNIT
    }


def writer_of(registry_url: str) -> Callable[[int], str | None] | None:
    """A function that finds the schema of a unit by a registry's id; None when no registry is set.

    The function returns None if the registry has no such id, or if the schema is not a unit's, and raises `UowError` if the registry does not
    answer: then the batch fails and is repeated, so that no unit is considered unreadable for that reason.
    """
    if not registry_url:
        return None
    source = connect(registry_url)

    def find(schema_id: int) -> str | None:
        try:
            text = source.schema(schema_id)
            return text if foreign_writer(text).name == UNIT else None
        except DecodeError:
            return None

    return find
