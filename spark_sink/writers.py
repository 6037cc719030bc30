"""Schemas that units were written with: our released versions by fingerprint, and a registry's by id.

Belongs here: finding a writer's schema. Does not belong here: decoding with it (`spark_sink.decode`).
"""

from __future__ import annotations

from collections.abc import Callable

from schemas import framing
from schemas.codec import foreign_writer
from schemas.errors import DecodeError
from schemas.registry import connect

UNIT = "Unit"


def unit_schema() -> str:
    """Today's schema of a unit, which every writer's is resolved to."""
    return framing.definition_text(UNIT)


def unit_writers() -> dict[bytes, str]:
    """Single-object header (ten bytes) to schema text, of every released version of a unit."""
    return {
        framing.SINGLE_OBJECT_MARK + fingerprint.to_bytes(8, "little"): framing.definition_text(*schema)
        for fingerprint, schema in framing.known().items()
        if schema.name == UNIT
    }


def writer_of(registry_url: str) -> Callable[[int], str | None] | None:
    """Finds the schema of a unit by a registry's id; None when no registry is set.

    What it returns gives None where the registry knows no such id, or where the schema is no unit of ours, and raises `UowError` where
    the registry does not answer: then the batch fails and is run again, and nothing is taken for undecodable.
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
