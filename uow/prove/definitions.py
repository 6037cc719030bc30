"""The published Avro definitions, read with fastavro alone: what any consumer in any language has.

Belongs here: decoding by `schemas/definitions/*.avsc`. Does not belong here: the product's codec, which must agree and is not asked.
"""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
from fastavro.schema import fingerprint, to_parsing_canonical_form

FOLDER = Path(__file__).resolve().parents[2] / "schemas" / "definitions"


class Avro:
    """Single-object encoded records of one published definition.

    Args:
        name: Of the file.
    """

    def __init__(self, name: str) -> None:
        text = (FOLDER / f"{name}.avsc").read_text(encoding="utf-8")
        schema = json.loads(text, object_hook=_without_logical_types)
        self.name = name
        self.schema = fastavro.parse_schema(schema)
        self.header = b"\xc3\x01" + bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))

    def decode(self, data: bytes | None) -> Any:
        """A record, behind its header.

        Raises:
            ValueError: It is none of this definition.
        """
        if data is None or not data.startswith(self.header):
            raise ValueError(f"no {self.name} of a known version")
        return self.decode_bare(data[len(self.header) :])

    def decode_bare(self, data: bytes) -> Any:
        """A record without a header, as one stands inside another.

        Raises:
            ValueError: It is none of this definition.
        """
        stream = BytesIO(data)
        try:
            record = fastavro.schemaless_reader(stream, self.schema, None)
        except (EOFError, IndexError, TypeError) as error:
            raise ValueError(f"no {self.name}: {error}") from error
        if stream.read(1):
            raise ValueError("bytes follow the record")
        return record


def _without_logical_types(node: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in node.items() if name != "logicalType"}


SETTINGS_KEY = b"\x01\x00\x00\x00\x00\x00"
"""Key of the changelog row that says what the workers were told; it is about no component."""

UNIT, COMPONENT, OUTCOME, LEDGER, ROW = map(Avro, ("unit", "component", "outcome", "ledger", "changelog_component"))
