"""Decoding with fastavro and the published Avro definitions alone, as any consumer in any language could.

Belongs here: decoding by `schemas/definitions/*.avsc`. Does not belong here: the product's codec, which is deliberately not used.
"""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
from fastavro.schema import fingerprint, to_parsing_canonical_form

FOLDER = Path(__file__).parents[1] / "schemas" / "definitions"


class Avro:
    """Single-object encoded records of one published definition.

    Args:
        name: Name of the definition's file.
    """

    def __init__(self, name: str) -> None:
        text = (FOLDER / f"{name}.avsc").read_text(encoding="utf-8")
        schema = json.loads(text, object_hook=_without_logical_types)
        self.name = name
        self.schema = fastavro.parse_schema(schema)
        self.header = b"\xc3\x01" + bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))

    def decode(self, data: bytes | None) -> Any:
        """Decodes a record that follows a single-object header.

        Raises:
            ValueError: It is none of this definition.
        """
        if data is None or not data.startswith(self.header):
            raise ValueError(f"not a {self.name} of a known version")
        return self.decode_bare(data[len(self.header) :])

    def decode_bare(self, data: bytes) -> Any:
        """Decodes a record without a header, such as one inside another record.

        Raises:
            ValueError: It is none of this definition.
        """
        stream = BytesIO(data)
        try:
            record = fastavro.schemaless_reader(stream, self.schema, None)
        except (EOFError, IndexError, TypeError) as error:
            raise ValueError(f"not a {self.name}: {error}") from error
        if stream.read(1):
            raise ValueError("bytes follow the record")
        return record


def _without_logical_types(node: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in node.items() if name != "logicalType"}


SETTINGS_KEY = b"\x01\x00\x00\x00\x00\x00"
"""Key of the changelog row with the workers' settings; it is not about a component."""

UNIT, COMPONENT, OUTCOME, LEDGER, ROW = map(Avro, ("unit", "component", "outcome", "ledger", "changelog_component"))
