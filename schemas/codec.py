"""Encoding of records as framed Avro, and decoding, with fastavro, for everything outside the worker's hot path.

Belongs here: encoding and decoding of every record of `uow.schemas.records`, resolution of a writer's schema to today's,
and the promise that bad bytes end as `DecodeError`, quickly and in memory bounded by the input. Does not belong here:
frames (`uow.schemas.framing`), the encoder by hand (`uow.schemas.component`), asking a registry (`uow.schemas.registry`), JSON and
XML (`uow.schemas.formats`).

Logical types are dropped before fastavro sees a schema: a time is a plain number of milliseconds, and no number is out
of range for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from enum import StrEnum
from functools import cache, lru_cache
from hashlib import sha256
from io import BytesIO
from types import NoneType
from typing import Any, Final, NamedTuple, Protocol, TypeVar, get_args, get_origin, get_type_hints

import fastavro
from fastavro.read import SchemaResolutionError
from fastavro.schema import SchemaParseException, UnknownType

from uow.schemas import framing
from uow.schemas.error_classes import DecodeError
from uow.schemas.framing import FrameKind, Framer, SingleObjectFramer
from uow.schemas.records import (
    Answer,
    ChangelogRow,
    ComponentRecord,
    DeadlineWarning,
    GroupRow,
    LedgerRecord,
    Outcome,
    PieceRow,
    Record,
    ReferenceRow,
    SettingsRow,
    Unit,
)

Datum = dict[str, Any]
R = TypeVar("R", bound=Record)


BAD_SCHEMA: Final = (
    SchemaParseException,
    UnknownType,
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    RecursionError,
)
"""The errors of a definition that is not one: JSON of any form, or nested too deeply, raises each of them somewhere."""


class SchemaSource(Protocol):
    """Looks up the schema of a registry's id."""

    def schema(self, schema_id: int) -> str:
        """Avro definition as JSON text.

        Raises:
            DecodeError: The registry knows no such id.
            UowError: The registry does not answer; the caller may try again.
        """
        ...


def encode(record: Record) -> bytes:
    """A record's Avro body by today's definition, without framing."""
    out, kind = BytesIO(), type(record)
    fastavro.schemaless_writer(out, _current(_NAMES[kind]), _MAPPINGS[kind].out(record))
    return out.getvalue()


def container(record: Record) -> bytes:
    """An Avro object container file with this one record, by today's definition: the same bytes for the same record."""
    out, kind = BytesIO(), type(record)
    definition = json.loads(framing.definition_text(_NAMES[kind]))
    mark = sha256(encode(record)).digest()[:16]
    fastavro.writer(out, definition, [_MAPPINGS[kind].out(record)], codec="null", sync_marker=mark)
    return out.getvalue()


def frame(record: Record, framer: Framer | None = None, topic: str = "") -> bytes:
    """A framed record; single-object encoding if no framer is given. `topic` matters to a registry only."""
    header = (framer or SingleObjectFramer()).header(name_of(record), topic)
    return header + encode(record)


def name_of(record: Record) -> str:
    """The name of a record's Avro definition (`ChangelogComponent` for a `ChangelogRow`)."""
    return _NAMES[type(record)]


def decode(data: bytes, *, registry: SchemaSource | None = None) -> Record:
    """The record in framed bytes of either framing, by any released version or a schema that resolves to today's.

    Args:
        data: Framing and body.
        registry: Looks up the ids of Confluent framing; without it that framing cannot be read.

    Raises:
        DecodeError: The bytes are wrong. Case `framing`, `schema` or `body`; the bytes are kept.
        UowError: The registry does not answer.
    """
    taken = framing.split(data)
    try:
        if taken.kind is FrameKind.SINGLE_OBJECT:
            writer = _released_writer(taken.schema)
        elif registry is None:
            raise DecodeError(
                "framing",
                f"written with schema id {taken.schema} of a registry, and none is set ([schemas] registry_url)",
            )
        else:
            writer = foreign_writer(registry.schema(taken.schema))
        return _decode_body(taken.body, writer)
    except DecodeError as error:
        error.data = data
        raise


def decode_as(kind: type[R], data: bytes, *, registry: SchemaSource | None = None) -> R:
    """Like `decode`, for a place where only one kind of record is allowed.

    Raises:
        DecodeError: Also for any other record of the project; case `schema`.
    """
    record = decode(data, registry=registry)
    if not isinstance(record, kind):
        raise DecodeError("schema", f"{name_of(record)} where {_NAMES[kind]} is expected", data=data)
    return record


class AvroWriter(NamedTuple):
    """A writer's schema: the record's name in the project, and fastavro's form of the schema."""

    name: str
    schema: Any


_BROKEN_BODY: Final = (EOFError, LookupError, ValueError, TypeError, OverflowError, MemoryError)
"""Exceptions of fastavro for bytes that are not a record. It checks lengths against the data before it allocates memory."""


def _decode_body(body: bytes, writer: AvroWriter) -> Record:
    """The record in a body, which must be used up."""
    reader = _current(writer.name)
    source = BytesIO(body)
    try:
        datum: Any = fastavro.schemaless_reader(source, writer.schema, None if writer.schema is reader else reader)
        record: Record = _MAPPINGS[_TYPES[writer.name]].back(datum)
    except SchemaResolutionError as error:
        raise DecodeError("schema", f"does not resolve to our {writer.name}: {_line(error)}") from None
    except _BROKEN_BODY as error:
        raise DecodeError("body", f"no {writer.name}: {_line(error) or 'the bytes end too early'}") from None
    if left := len(body) - source.tell():
        raise DecodeError("body", f"{left} bytes follow the {writer.name}")
    return record


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


@cache
def _current(name: str) -> Any:
    return fastavro.parse_schema(without_logical_types(json.loads(framing.definition_text(name))))


def _released_writer(fingerprint: int) -> AvroWriter:
    schema = framing.known().get(fingerprint)
    if schema is None:
        raise DecodeError(
            "schema", f"fingerprint {fingerprint:016x} is none of ours: written by something newer, or not for uow"
        )
    return _released(schema.name, schema.version)


@cache
def _released(name: str, version: int) -> AvroWriter:
    if version == framing.DEFINITIONS[name][1]:
        return AvroWriter(name, _current(name))
    return foreign_writer(framing.definition_text(name, version))


@lru_cache(maxsize=256)
def foreign_writer(text: str) -> AvroWriter:
    """A writer's schema from JSON text: of an older version, or from a registry.

    Raises:
        DecodeError: It is not Avro, not a record of the project, or a few bytes of data could claim any amount of time or
            memory; case `schema`.
    """
    try:
        schema = without_logical_types(json.loads(text))
        check_bounded(schema)
        parsed: Any = fastavro.parse_schema(schema)
        name = parsed["name"]
    except BAD_SCHEMA as error:
        raise DecodeError("schema", f"the writer's schema cannot be used: {_line(error)}") from None
    short = name.rpartition(".")[2]
    if name != f"{framing.NAMESPACE}.{short}" or short not in _TYPES:
        raise DecodeError("schema", f"{name[:80]} is no record of ours")
    return AvroWriter(short, parsed)


def without_logical_types(schema: Any) -> Any:
    """A schema in which a time is a plain number."""
    if isinstance(schema, list):
        return [without_logical_types(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: value if key == "default" else without_logical_types(value)
        for key, value in schema.items()
        if key != "logicalType"
    }


def check_bounded(schema: Any) -> None:
    """Refuses a schema by which few bytes could ask for much: recursive, or with items of no bytes outside a union.

    Raises:
        ValueError: It is such a schema.
    """
    _check_bounded(schema, "", frozenset())


def _check_bounded(schema: Any, namespace: str, inside: frozenset[str]) -> None:
    if isinstance(schema, str):
        if schema == "null":
            raise ValueError("null outside a union")
        if schema in inside or f"{namespace}.{schema}" in inside:
            raise ValueError(f"{schema} is recursive")
        return
    if isinstance(schema, list):
        for branch in schema:
            if branch != "null":
                _check_bounded(branch, namespace, inside)
        return
    kind = schema["type"]
    if kind in ("record", "error"):
        _check_record_bounded(schema, namespace, inside)
    elif kind in ("array", "map"):
        _check_bounded(schema["items" if kind == "array" else "values"], namespace, inside)
    elif kind == "fixed":
        if not schema["size"] > 0:
            raise ValueError("a fixed of no bytes")
    elif kind != "enum":
        _check_bounded(kind, namespace, inside)


def _check_record_bounded(schema: Any, namespace: str, inside: frozenset[str]) -> None:
    if not schema["fields"]:
        raise ValueError("a record without fields")
    space = schema.get("namespace", namespace)
    name = schema["name"] if "." in schema["name"] or not space else f"{space}.{schema['name']}"
    for field in schema["fields"]:
        _check_bounded(field["type"], name.rpartition(".")[0], inside | {name})


# -- conversion between records and fastavro's data, derived from the fields of a record --------------------------------


def _same(value: Any) -> Any:
    return value


class _Mapping(NamedTuple):
    """Conversion of values of one type to fastavro's data, and back."""

    out: Callable[[Any], Any] = _same
    back: Callable[[Any], Any] = _same


def _mapping(kind: Any) -> _Mapping:
    """The mapping of a field's type: fields have their names in the definition, a default of bytes is a text there (Avro)."""
    arguments = get_args(kind)
    if get_origin(kind) is tuple:
        return _PAIRS if get_origin(arguments[0]) is tuple else _array(_mapping(arguments[0]))
    if NoneType in arguments:
        return _optional(_mapping(arguments[0]))
    if kind is bytes:
        return _Mapping(back=lambda raw: raw if isinstance(raw, bytes) else raw.encode("latin-1"))
    if issubclass(kind, StrEnum):
        symbols = {each: each.value.replace("-", "_") for each in kind}
        return _Mapping(symbols.__getitem__, {symbol: each for each, symbol in symbols.items()}.__getitem__)
    return _mapping_of(kind) if is_dataclass(kind) else _Mapping()


def _mapping_of(kind: Any) -> _Mapping:
    """The mapping of a record, or of a part of one. Fields that need no conversion, which are most, cost no call."""
    fields = [(name, *_mapping(hint)) for name, hint in get_type_hints(kind).items()]

    def out(record: Any) -> Datum:
        return {name: getattr(record, name) if to is _same else to(getattr(record, name)) for name, to, _ in fields}

    def back(datum: Datum) -> Any:
        return kind(*[datum[name] if of is _same else of(datum[name]) for name, _, of in fields])

    return _Mapping(out, back)


def _array(item: _Mapping) -> _Mapping:
    to, of = item
    return _Mapping(
        lambda items: [to(each) for each in items],
        lambda data: tuple([of(each) for each in data]),
    )


def _optional(kind: _Mapping) -> _Mapping:
    to, of = kind
    return _Mapping(
        to if to is _same else lambda value: None if value is None else to(value),
        of if of is _same else lambda datum: None if datum is None else of(datum),
    )


_PAIRS = _Mapping(
    lambda pairs: [{"name": name, "value": value} for name, value in pairs],
    lambda data: tuple([(each["name"], each["value"]) for each in data]),
)
"""Headers and settings: an array of records in the definition."""


_TYPES: Final[Mapping[str, type[Record]]] = {
    "Component": ComponentRecord,
    "Unit": Unit,
    "Outcome": Outcome,
    "Answer": Answer,
    "DeadlineWarning": DeadlineWarning,
    "ChangelogComponent": ChangelogRow,
    "ChangelogReference": ReferenceRow,
    "ChangelogPiece": PieceRow,
    "ChangelogGroup": GroupRow,
    "ChangelogSettings": SettingsRow,
    "Ledger": LedgerRecord,
}
_NAMES: Final[Mapping[type[Any], str]] = {kind: name for name, kind in _TYPES.items()}
_MAPPINGS: Final[Mapping[type[Any], _Mapping]] = {kind: _mapping_of(kind) for kind in _TYPES.values()}
