"""Payloads as typed columns: the type of a destination's table `payloads`, and the expressions from bytes to it.

A declaration is an Avro definition, of which a file or a schema registry may have several versions, or Spark's DDL for JSON. The type of the table is
the union of the fields of all versions that were met, each field null where a version has none. A version with a field of another type
is incompatible: its payloads stay null, with the reason. So does a value that is not what it claims.

Belongs here: declarations, merging types, expressions. Does not belong here: reading units and writing the table (`uow.spark_sink.payload_sink`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import fastavro
from fastavro.schema import to_parsing_canonical_form
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StructField,
    StructType,
)

from uow.schemas import framing
from uow.schemas.codec import BAD_SCHEMA, check_bounded
from uow.schemas.error_classes import ConfigError, DecodeError

SETTING: Final = "--payload"
MOST_FIELDS: Final = 2_000
"""Fields of the table's type, at all depths: whoever may register schemas can make it grow."""
MOST_VERSIONS: Final = 100
"""Versions that are decoded in one batch: whoever may send can name any schema id."""

BARE: Final = "bare"
KIND: Final = """
CASE WHEN length(value) >= 10 AND startswith(value, X'C301') THEN 'single-object:' || hex(substring(value, 3, 8))
     WHEN length(value) >= 5 AND startswith(value, X'00') AND {is_framed} THEN 'registry:' || conv(hex(substring(value, 2, 4)), 16, 10)
     ELSE 'bare' END
"""
"""The version that an Avro value says it was written by. Without a registry a value that begins with a zero byte is bare."""

_MARK: Final = b"uow-mark"


class IncompatibleError(Exception):
    """A version that does not fit; the text says why."""


# -- types ---------------------------------------------------------------------------------------------------------------

_WIDER: Final = ((IntegerType(), LongType()), (IntegerType(), DoubleType()), (FloatType(), DoubleType()))


def merged(old: DataType, new: DataType, at: str = "") -> DataType:
    """The union of two types. Everything in it may be null.

    A number may become a wider one of the old type; the old type itself never changes, since rows have it.

    Raises:
        IncompatibleError: A field has another type; it names the field.
    """
    if isinstance(old, StructType) and isinstance(new, StructType):
        fields = {field.name: field for field in nullable(old)}
        spelt = {name.lower(): name for name in fields}
        for field in nullable(new):
            if spelt.setdefault(field.name.lower(), field.name) != field.name:
                raise IncompatibleError(f"field {at}{field.name} differs from another one in letter case only")
            known = fields.get(field.name)
            kind = field.dataType if known is None else merged(known.dataType, field.dataType, f"{at}{field.name}.")
            fields[field.name] = StructField(field.name, kind)
        return StructType([*fields.values()])
    if isinstance(old, ArrayType) and isinstance(new, ArrayType):
        return ArrayType(merged(old.elementType, new.elementType, at))
    if isinstance(old, MapType) and isinstance(new, MapType) and old.keyType == new.keyType:
        return MapType(old.keyType, merged(old.valueType, new.valueType, at))
    if old == new or (new, old) in _WIDER:
        return old
    raise IncompatibleError(f"field {at.rstrip('.')} is {new.simpleString()}, and {old.simpleString()} in the table")


def nullable(kind: Any) -> Any:
    """A type in which everything may be null."""
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, nullable(field.dataType)) for field in kind])
    if isinstance(kind, ArrayType):
        return ArrayType(nullable(kind.elementType))
    return MapType(kind.keyType, nullable(kind.valueType)) if isinstance(kind, MapType) else kind


def fields_of(kind: DataType) -> int:
    """Number of fields, at all depths."""
    if isinstance(kind, StructType):
        return sum(1 + fields_of(field.dataType) for field in kind)
    if isinstance(kind, ArrayType):
        return fields_of(kind.elementType)
    return fields_of(kind.valueType) if isinstance(kind, MapType) else 0


def projected(value: Column, have: DataType, want: DataType) -> Column:
    """A value of one type as another one, which `merged` made of it."""
    if isinstance(have, StructType) and isinstance(want, StructType):
        there = {field.name: field.dataType for field in have}
        parts = [
            projected(value[field.name], there[field.name], field.dataType).alias(field.name)
            if field.name in there
            else sql.lit(None).cast(field.dataType).alias(field.name)
            for field in want
        ]
        return sql.when(value.isNotNull(), sql.struct(*parts))
    if isinstance(have, ArrayType) and isinstance(want, ArrayType):
        inner, outer = have.elementType, want.elementType
        return sql.transform(value, lambda each: projected(each, inner, outer))
    if isinstance(have, MapType) and isinstance(want, MapType):
        given, wanted = have.valueType, want.valueType
        return sql.transform_values(value, lambda _, each: projected(each, given, wanted))
    return value if have == want else value.cast(want)


# -- declarations --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Version:
    """A way to decode a value.

    Attributes:
        kind: Its type.
        decoded: The value as that type, and true if it is none, from the bytes.
        name: The name of what it should be.
    """

    kind: StructType
    decoded: Callable[[Column], tuple[Column, Column]]
    name: str


@dataclass(frozen=True, slots=True)
class Declaration:
    """The payload of a destination, as declared in files.

    Attributes:
        avro: Avro definitions as JSON text, the latest last; empty for JSON.
        json_ddl: Columns of JSON as Spark's DDL; empty for Avro.
    """

    avro: tuple[str, ...] = ()
    json_ddl: str = ""

    @classmethod
    def of(cls, files: Iterable[Path]) -> Declaration:
        """The declaration in files: versions of an Avro definition (`.avsc`), or one with columns of JSON (`.ddl`).

        Raises:
            ConfigError: They cannot be read, or used.
        """
        files = [*files]
        try:
            texts = [path.read_text("utf-8") for path in files]
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(SETTING, ", ".join(map(str, files)), str(error)) from None
        endings = {path.suffix for path in files}
        if endings == {".ddl"} and len(files) == 1:
            return cls(json_ddl=texts[0].strip())
        if endings != {".avsc"}:
            raise ConfigError(SETTING, ", ".join(map(str, files)), "needs versions of one .avsc file, or one .ddl file")
        try:
            names = {avro_name(text) for text in texts}
        except DecodeError as error:
            raise ConfigError(SETTING, ", ".join(map(str, files)), error.detail) from None
        if len(names) > 1:
            raise ConfigError(SETTING, ", ".join(map(str, files)), f"has several records: {', '.join(sorted(names))}")
        return cls(avro=tuple(texts))

    def fingerprints(self) -> dict[str, str]:
        """Kind of value (`KIND`) to definition, for single-object encoding and for bare bodies."""
        found = {BARE: self.avro[-1]}
        for text in self.avro:
            crc = framing.crc64_avro(to_parsing_canonical_form(json.loads(text)).encode())
            found[f"single-object:{crc.to_bytes(8, 'little').hex().upper()}"] = text
        return found


def avro_name(text: str) -> str:
    """The full name of an Avro record.

    Raises:
        DecodeError: The definition is none of a record, or a few bytes could claim much by it; case `schema`.
    """
    try:
        schema = json.loads(text)
        check_bounded(schema)
        parsed: Any = fastavro.parse_schema(schema)
        if parsed["type"] != "record":
            raise ValueError(f"a {parsed['type']} where a record is expected")
        return str(parsed["name"])
    except BAD_SCHEMA as error:
        raise DecodeError("schema", f"the definition cannot be used: {' '.join(str(error).split())[:200]}") from None


def avro_version(spark: SparkSession, kind: str, text: str, name: str) -> Version:
    """Values of a kind, written by a definition.

    The definition is wrapped into a record with a mark behind it, and the mark's bytes are added to each value: malformed bytes give a struct of nulls,
    which a value without required fields might be as well, and bytes that are left over nobody notices. The mark is there exactly if neither is so.

    Raises:
        IncompatibleError: It is not a definition of the record `name`, or Spark cannot read it.
    """
    try:
        found = avro_name(text)
    except DecodeError as error:
        raise IncompatibleError(error.detail) from None
    if found != name:
        raise IncompatibleError(f"its definition is one of {found[:200]}, not of {name}")
    mark = {"type": "fixed", "name": "UowMark", "size": len(_MARK)}
    fields = [{"name": "value", "type": json.loads(text)}, {"name": "mark", "type": mark}]
    wrapped = json.dumps({"type": "record", "name": "UowMarked", "fields": fields})

    def read(value: Column) -> Column:
        body = sql.substring(value, 1 + _FRAME_BYTES[kind.partition(":")[0]], 2**31 - 1)
        return from_avro(sql.concat(body, sql.lit(_MARK)), wrapped, {"mode": "PERMISSIVE"})

    try:
        whole: Any = spark.range(0).select(read(sql.lit(b"")).alias("it")).schema["it"].dataType
    except (PySparkException, Py4JJavaError) as error:
        raise IncompatibleError(f"Spark cannot read its definition: {str(error).splitlines()[0][:200]}") from None

    def decoded(value: Column) -> tuple[Column, Column]:
        it = read(value)
        return it["value"], ~it["mark"].eqNullSafe(sql.lit(_MARK))

    return Version(nullable(whole["value"].dataType), decoded, name)


_FRAME_BYTES: Final = {"single-object": 10, "registry": 5, BARE: 0}
_CORRUPT: Final = "_corrupt"


def json_version(ddl: str) -> Version:
    """Values in JSON.

    Raises:
        ConfigError: It is not DDL of columns.
    """
    try:
        kind = DataType.fromDDL(ddl)
        if not isinstance(kind, StructType) or not kind.fields or _CORRUPT in kind.names:
            raise ValueError(f"columns are needed, none of them named {_CORRUPT}")
        whole = StructType([*kind.fields, StructField(_CORRUPT, DataType.fromDDL("STRING"))])
    except (PySparkException, Py4JJavaError, ValueError) as error:
        raise ConfigError(
            SETTING, ddl[:200], f"no columns in Spark's DDL: {str(error).splitlines()[0][:200]}"
        ) from None

    def decoded(value: Column) -> tuple[Column, Column]:
        text = sql.when(sql.is_valid_utf8(value.cast("string")), value.cast("string"))
        it = sql.from_json(text, whole, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT})
        return it, it.isNull() | it[_CORRUPT].isNotNull()

    return Version(nullable(kind), decoded, "JSON of the declared columns")


def typed(value: Column, found: dict[str, Version | str], kind: DataType, unknown: Column) -> Column:
    """A struct of `payload` and `reason` for a value; both are null for a value that is null.

    Args:
        value: The bytes.
        found: By kind of value, in the column `kind`: how to decode it, or the reason why it cannot be.
        kind: Type of the table's payloads, which has those of all versions.
        unknown: The reason for any other kind.
    """
    empty = sql.lit(None).cast(kind)
    chosen = sql.struct(empty.alias("payload"), unknown.alias("reason"))
    for name, version in found.items():
        if isinstance(version, str):
            made = sql.struct(empty.alias("payload"), sql.lit(version).alias("reason"))
        else:
            payload, is_bad = version.decoded(value)
            made = sql.struct(
                sql.when(~is_bad, projected(payload, version.kind, kind)).alias("payload"),
                sql.when(is_bad, sql.lit(f"the value is no {version.name}")).alias("reason"),
            )
        chosen = sql.when(sql.col("kind") == name, made).otherwise(chosen)
    return sql.when(value.isNotNull(), chosen)
