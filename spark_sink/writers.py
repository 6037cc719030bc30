"""Schemas that records of the output topics were written with: released versions by fingerprint, and a registry's by id.

Belongs here: finding a writer's schema. Does not belong here: decoding with it (`uow.spark_sink.decode`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from uow.schemas import framing
from uow.schemas.codec import foreign_writer
from uow.schemas.error_classes import DecodeError
from uow.schemas.registry import connect

UNIT: Final = "Unit"
OUTCOME: Final = "Outcome"
ANSWER: Final = "Answer"
WARNING: Final = "DeadlineWarning"
RECORDS: Final = (UNIT, OUTCOME, ANSWER, WARNING)
"""Names of the Avro records that the tables have rows of."""


class WriterSchema(NamedTuple):
    """The schema that a record was written with.

    Attributes:
        record: One of `RECORDS`.
        text: Its Avro definition, as JSON text.
    """

    record: str
    text: str


WriterOf = Callable[[int], WriterSchema | None]
"""The schema for a registry's id; None if the registry has no schema of ours with it."""


def released_writers() -> dict[bytes, WriterSchema]:
    """Single-object header (ten bytes) to schema, of every released version."""
    return {
        framing.SINGLE_OBJECT_MARK + fingerprint.to_bytes(8, "little"): WriterSchema(
            schema.name, framing.definition_text(*schema)
        )
        for fingerprint, schema in framing.known().items()
        if schema.name in RECORDS
    }


def writer_of(registry_url: str) -> WriterOf | None:
    """A function that finds a schema by a registry's id; None when no registry is set.

    The function returns None if the registry has no such id, or if the schema is none of `RECORDS`, and raises `UowError` if the registry does not
    answer: then the batch fails and is repeated, so that no record is considered unreadable for that reason.
    """
    if not registry_url:
        return None
    source = connect(registry_url)

    def find(schema_id: int) -> WriterSchema | None:
        try:
            text = source.schema(schema_id)
            record = foreign_writer(text).name
        except DecodeError:
            return None
        return WriterSchema(record, text) if record in RECORDS else None

    return find
