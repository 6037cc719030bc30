"""The bytes in front of a record's Avro body, which name its schema. Standard library only.

Two framings are written and both are read everywhere (`docs/wire-format.md#framing`): Avro single-object encoding (`C3 01`, the
schema's CRC-64-AVRO fingerprint as 8 bytes little-endian, body), and Confluent's (`00`, schema id as 4 bytes
big-endian, body).

Belongs here: framing, the definitions on disk with their versions, parsing canonical form and fingerprint. Does not
belong here: bodies (`uow.schemas.codec`, `uow.schemas.component`), and asking a registry (`uow.schemas.registry`).

Nothing is read or computed on import; each answer is computed once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from uow.schemas.error_classes import DecodeError

SINGLE_OBJECT_MARK: Final = b"\xc3\x01"
CONFLUENT_MARK: Final = b"\x00"

NAMESPACE: Final = "uow"

DEFINITIONS: Final[Mapping[str, tuple[str, int]]] = MappingProxyType(
    {
        "Component": ("component", 1),
        "Unit": ("unit", 1),
        "Outcome": ("outcome", 3),
        "Answer": ("answer", 1),
        "DeadlineWarning": ("deadline_warning", 1),
        "ChangelogComponent": ("changelog_component", 1),
        "ChangelogReference": ("changelog_reference", 1),
        "ChangelogPiece": ("changelog_piece", 1),
        "ChangelogGroup": ("changelog_group", 6),
        "ChangelogSettings": ("changelog_settings", 1),
        "Ledger": ("ledger", 3),
    }
)
"""Record name to file stem and current version.

Before a definition changes, it is copied to `released/STEM-VERSION.avsc`, and the version goes up.
"""

_FOLDER = resources.files(__package__) / "definitions"  # also out of a wheel that is not unpacked


class FrameKind(Enum):
    """The two framings."""

    SINGLE_OBJECT = "single-object"
    CONFLUENT = "confluent"


class Frame(NamedTuple):
    """The parts of a framed record; `schema` is a fingerprint or a registry's id, depending on `kind`."""

    kind: FrameKind
    schema: int
    body: bytes


class SchemaVersion(NamedTuple):
    """A released schema: record name without namespace, and version from 1."""

    name: str
    version: int


@cache
def definition_text(name: str, version: int | None = None) -> str:
    """The Avro definition of a record as JSON text, by default of the current version.

    Raises:
        KeyError: There is no such record or version.
    """
    stem, current = DEFINITIONS[name]
    if version is None or version == current:
        return (_FOLDER / f"{stem}.avsc").read_text("utf-8")
    if not 1 <= version < current:
        raise KeyError(f"{name} has no version {version}")
    return (_FOLDER / "released" / f"{stem}-{version}.avsc").read_text("utf-8")


def canonical_form(schema: Any) -> str:
    """Avro's parsing canonical form of a definition without maps, fixed types and aliases.

    Raises:
        ValueError: The definition uses another type.
    """
    return _canonical(schema, "")


_PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})


def _canonical(schema: Any, namespace: str) -> str:
    if isinstance(schema, str):
        return f'"{schema}"' if schema in _PRIMITIVES else f'"{_full_name(schema, namespace)}"'
    if isinstance(schema, list):
        return f"[{','.join(_canonical(branch, namespace) for branch in schema)}]"
    kind = schema["type"]
    if kind in _PRIMITIVES:
        return f'"{kind}"'
    if kind == "array":
        return f'{{"type":"array","items":{_canonical(schema["items"], namespace)}}}'
    name = _full_name(schema["name"], schema.get("namespace", namespace))
    if kind == "enum":
        return f'{{"name":"{name}","type":"enum","symbols":{json.dumps(schema["symbols"], separators=(",", ":"))}}}'
    if kind != "record":
        raise ValueError(f"no definition of ours uses the type {kind!r}")
    inner = name.rpartition(".")[0]
    fields = (f'{{"name":"{field["name"]}","type":{_canonical(field["type"], inner)}}}' for field in schema["fields"])
    return f'{{"name":"{name}","type":"record","fields":[{",".join(fields)}]}}'


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


_EMPTY: Final = 0xC15D213AA4D7A795


@cache
def _table() -> tuple[int, ...]:
    rows = []
    for row in range(256):
        for _ in range(8):
            row = row >> 1 ^ (_EMPTY & -(row & 1))
        rows.append(row)
    return tuple(rows)


def crc64_avro(data: bytes) -> int:
    """CRC-64-AVRO (Rabin) fingerprint of a text, as an unsigned number."""
    table = _table()
    crc = _EMPTY
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc


@cache
def fingerprint(name: str, version: int | None = None) -> int:
    """CRC-64-AVRO of the parsing canonical form of a record's definition."""
    return crc64_avro(canonical_form(json.loads(definition_text(name, version))).encode())


@cache
def known() -> Mapping[int, SchemaVersion]:
    """Schema by fingerprint, of every released version: these can be read without a registry."""
    versions = (
        SchemaVersion(name, version) for name, (_, current) in DEFINITIONS.items() for version in range(1, current + 1)
    )
    return MappingProxyType({fingerprint(schema.name, schema.version): schema for schema in versions})


@cache
def single_object_header(name: str, version: int | None = None) -> bytes:
    """The 10 bytes in front of a body, by record name (`Unit`), by default of the current version."""
    return SINGLE_OBJECT_MARK + fingerprint(name, version).to_bytes(8, "little")


def confluent_header(schema_id: int) -> bytes:
    """The 5 bytes in front of a body whose schema has this id in a registry."""
    return CONFLUENT_MARK + schema_id.to_bytes(4, "big")


class Framer(Protocol):
    """Gives the bytes in front of a body."""

    def header(self, name: str, topic: str) -> bytes:
        """The bytes for a record, by name (`Unit`), and the topic that it is sent to."""
        ...


class SingleObjectFramer:
    """Avro single-object encoding: needs no registry, the same header for every topic."""

    def header(self, name: str, topic: str = "") -> bytes:
        return single_object_header(name)


def split(data: bytes) -> Frame:
    """Splits a framed record into its parts.

    Raises:
        DecodeError: It has neither framing; case `framing`.
    """
    if data[:2] == SINGLE_OBJECT_MARK and len(data) >= 10:
        return Frame(FrameKind.SINGLE_OBJECT, int.from_bytes(data[2:10], "little"), data[10:])
    if data[:1] == CONFLUENT_MARK and len(data) >= 5:
        return Frame(FrameKind.CONFLUENT, int.from_bytes(data[1:5], "big"), data[5:])
    raise DecodeError(
        "framing",
        f"neither Avro single-object encoding nor Confluent framing: {data[:10].hex(' ') or 'no bytes'}",
        data=data,
    )
