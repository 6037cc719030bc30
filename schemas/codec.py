"""Records to framed Avro and back, by fastavro, for whatever is not the worker's hot path.

Belongs here: encoding and decoding of every record of `schemas.records`, resolution of a writer's schema to today's,
and the promise that bad bytes end as `DecodeError`, quickly and in memory bounded by the input. Does not belong here:
frames (`schemas.framing`), the encoder by hand (`schemas.component`), asking a registry (`schemas.registry`), JSON and
XML (`schemas.formats`).

Logical types are dropped before fastavro sees a schema: a time is a plain number of milliseconds, and no number is out
of range for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cache, lru_cache, partial
from io import BytesIO
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import fastavro
from fastavro.read import SchemaResolutionError
from fastavro.schema import SchemaParseException, UnknownType

from schemas import framing
from schemas.errors import DecodeError
from schemas.framing import FrameKind, Framer, SingleObjectFramer
from schemas.records import (
    Answer,
    Attributes,
    ChangelogRow,
    ClosedGroup,
    Component,
    DecidedCommand,
    GroupRow,
    LastArrived,
    LedgerRecord,
    OffsetRange,
    Outcome,
    Range,
    Reason,
    Record,
    Reference,
    ReferenceRow,
    SettingsRow,
    Source,
    Unit,
    UnitOutcome,
)

Datum = dict[str, Any]
R = TypeVar("R", bound=Record)


class SchemaSource(Protocol):
    """Gives the schema that a registry's id stands for."""

    def schema(self, schema_id: int) -> str:
        """Avro definition as JSON text.

        Raises:
            DecodeError: The registry knows no such id.
            UowError: The registry does not answer; the caller may try again.
        """
        ...


def encode(record: Record) -> bytes:
    """A record's Avro body by today's definition, without framing."""
    kind = _KINDS_BY_TYPE[type(record)]
    out = BytesIO()
    fastavro.schemaless_writer(out, _current(kind.name), kind.to_datum(record))
    return out.getvalue()


def frame(record: Record, framer: Framer | None = None, topic: str = "") -> bytes:
    """A framed record; single-object encoding if no framer is given. `topic` matters to a registry only."""
    header = (framer or SingleObjectFramer()).header(name_of(record), topic)
    return header + encode(record)


def name_of(record: Record) -> str:
    """The name of a record's Avro definition (`ChangelogComponent` for a `ChangelogRow`)."""
    return _KINDS_BY_TYPE[type(record)].name


def decode(data: bytes, *, registry: SchemaSource | None = None) -> Record:
    """The record in framed bytes of either framing, by any released version or a schema that resolves to today's.

    Args:
        data: Framing and body.
        registry: Who knows the ids of Confluent framing; without one that framing cannot be read.

    Raises:
        DecodeError: Whatever else is wrong with the bytes. Case `framing`, `schema` or `body`; the bytes are kept.
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
    """Like `decode`, where only one kind of record can stand.

    Raises:
        DecodeError: Also for any other record of ours; case `schema`.
    """
    record = decode(data, registry=registry)
    if not isinstance(record, kind):
        raise DecodeError("schema", f"{name_of(record)} where {_KINDS_BY_TYPE[kind].name} is expected", data=data)
    return record


class Writer(NamedTuple):
    """A schema that something was written with: the record's name with us, and fastavro's form of the schema."""

    name: str
    schema: Any


_BROKEN_BODY: Final = (EOFError, LookupError, ValueError, TypeError, OverflowError, MemoryError)
"""What fastavro raises on bytes that are no record: it checks lengths against the data before it keeps anything."""


def _decode_body(body: bytes, writer: Writer) -> Record:
    """The record in a body, which must be used up."""
    reader = _current(writer.name)
    source = BytesIO(body)
    try:
        datum: Any = fastavro.schemaless_reader(source, writer.schema, None if writer.schema is reader else reader)
        record = _KINDS_BY_NAME[writer.name].from_datum(datum)
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


def _released_writer(fingerprint: int) -> Writer:
    schema = framing.known().get(fingerprint)
    if schema is None:
        raise DecodeError(
            "schema", f"fingerprint {fingerprint:016x} is none of ours: written by something newer, or not for uow"
        )
    return _released(schema.name, schema.version)


@cache
def _released(name: str, version: int) -> Writer:
    if version == framing.DEFINITIONS[name][1]:
        return Writer(name, _current(name))
    return foreign_writer(framing.definition_text(name, version))


@lru_cache(maxsize=256)
def foreign_writer(text: str) -> Writer:
    """A writer's schema from JSON text: of an older version, or from a registry.

    Raises:
        DecodeError: It is no Avro, it is no record of ours, or a few bytes of it could claim any amount of time or
            memory; case `schema`.
    """
    try:
        schema = without_logical_types(json.loads(text))
        check_bounded(schema)
        parsed: Any = fastavro.parse_schema(schema)
        name = parsed["name"]
    except (
        SchemaParseException,
        UnknownType,
        LookupError,
        ValueError,
        TypeError,
        AttributeError,
        RecursionError,
    ) as error:
        raise DecodeError("schema", f"the writer's schema cannot be used: {_line(error)}") from None
    short = name.rpartition(".")[2]
    if name != f"{framing.NAMESPACE}.{short}" or short not in _KINDS_BY_NAME:
        raise DecodeError("schema", f"{name[:80]} is no record of ours")
    return Writer(short, parsed)


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


def _symbol(value: str) -> str:
    return value.replace("-", "_")


def _reason(symbol: str) -> Reason:
    return Reason(symbol.replace("_", "-"))


def _component_datum(component: Component) -> Datum:
    source, reference = component.source, component.reference
    return {
        "seq": component.seq,
        "end": component.end,
        "component_id": component.component_id,
        "key": component.key,
        "value": component.value,
        "headers": [{"name": name, "value": value} for name, value in component.headers],
        "timestamp": component.timestamp,
        "source": {"topic": source.topic, "partition": source.partition, "offset": source.offset},
        "reference": None if reference is None else {"length": reference.length, "crc32c": reference.crc32c},
    }


def _component(datum: Datum) -> Component:
    source, reference = datum["source"], datum["reference"]
    return Component(
        seq=datum["seq"],
        end=datum["end"],
        component_id=datum["component_id"],
        key=datum["key"],
        value=datum["value"],
        headers=tuple([(header["name"], header["value"]) for header in datum["headers"]]),
        timestamp=datum["timestamp"],
        source=Source(source["topic"], source["partition"], source["offset"]),
        reference=None if reference is None else Reference(reference["length"], reference["crc32c"]),
    )


def _ranges_datum(ranges: tuple[Range, ...] | tuple[OffsetRange, ...]) -> list[Datum]:
    return [{"first": item.first, "last": item.last} for item in ranges]


def _ranges(data: list[Datum]) -> tuple[Range, ...]:
    return tuple([Range(item["first"], item["last"]) for item in data])


def _unit_datum(unit: Unit) -> Datum:
    return {
        "id": unit.id,
        "unit_id": unit.unit_id,
        "destination": unit.destination,
        "generation": unit.generation,
        "outcome": unit.outcome.value,
        "reason": _symbol(unit.reason.value),
        "opened_at": unit.opened_at,
        "closed_at": unit.closed_at,
        "expires_at": unit.expires_at,
        "count": unit.count,
        "bytes": unit.bytes,
        "missing": _ranges_datum(unit.missing),
        "components": [_component_datum(component) for component in unit.components],
    }


def _unit(datum: Datum) -> Unit:
    return Unit(
        id=datum["id"],
        unit_id=datum["unit_id"],
        destination=datum["destination"],
        generation=datum["generation"],
        outcome=UnitOutcome(datum["outcome"]),
        reason=_reason(datum["reason"]),
        opened_at=datum["opened_at"],
        closed_at=datum["closed_at"],
        expires_at=datum["expires_at"],
        count=datum["count"],
        bytes=datum["bytes"],
        missing=_ranges(datum["missing"]),
        components=tuple([_component(component) for component in datum["components"]]),
    )


def _outcome_datum(outcome: Outcome) -> Datum:
    return {
        "id": outcome.id,
        "unit_id": outcome.unit_id,
        "destination": outcome.destination,
        "generation": outcome.generation,
        "outcome": outcome.outcome.value,
        "reason": _symbol(outcome.reason.value),
        "opened_at": outcome.opened_at,
        "closed_at": outcome.closed_at,
        "count": outcome.count,
        "bytes": outcome.bytes,
        "missing": _ranges_datum(outcome.missing),
        "rule": outcome.rule,
        "command_id": outcome.command_id,
        "last_arrived": None if outcome.last_arrived is None else asdict(outcome.last_arrived),
    }


def _outcome(datum: Datum) -> Outcome:
    return Outcome(
        id=datum["id"],
        unit_id=datum["unit_id"],
        destination=datum["destination"],
        generation=datum["generation"],
        outcome=UnitOutcome(datum["outcome"]),
        reason=_reason(datum["reason"]),
        opened_at=datum["opened_at"],
        closed_at=datum["closed_at"],
        count=datum["count"],
        bytes=datum["bytes"],
        missing=_ranges(datum["missing"]),
        rule=datum["rule"],
        command_id=datum["command_id"],
        last_arrived=None if datum["last_arrived"] is None else LastArrived(**datum["last_arrived"]),
    )


def _answer_datum(answer: Answer) -> Datum:
    return {
        "command_id": answer.command_id,
        "verb": answer.verb,
        "id": answer.id,
        "destination": answer.destination,
        "done": answer.done,
        "text": answer.text,
        "why": answer.why,
        "by": answer.by,
        "at": answer.at,
    }


def _answer(datum: Datum) -> Answer:
    return Answer(
        command_id=datum["command_id"],
        verb=datum["verb"],
        id=datum["id"],
        destination=datum["destination"],
        done=datum["done"],
        text=datum["text"],
        why=datum["why"],
        by=datum["by"],
        at=datum["at"],
    )


def _changelog_row_datum(row: ChangelogRow) -> Datum:
    said = row.attributes
    return {
        "generation": row.generation,
        "opened_at": row.opened_at,
        "source_offset": row.source_offset,
        "end": row.end,
        "attributes": None
        if said is None
        else {"expires_at": said.expires_at, "deliver_at": said.deliver_at, "count": said.count},
        "payload": row.payload,
    }


def _changelog_row(datum: Datum, kind: type[ChangelogRow] = ChangelogRow) -> ChangelogRow:
    said = datum["attributes"]
    return kind(
        generation=datum["generation"],
        opened_at=datum["opened_at"],
        source_offset=datum["source_offset"],
        end=datum["end"],
        attributes=None if said is None else Attributes(said["expires_at"], said["deliver_at"], said["count"]),
        payload=datum["payload"],
    )


def _group_row_datum(row: GroupRow) -> Datum:
    return {
        "generation": row.generation,
        "opened_at": row.opened_at,
        "declared_end": row.declared_end,
        "waived": _ranges_datum(row.waived),
        "extended_deadline": row.extended_deadline,
        "rule_version": row.rule_version,
    }


def _group_row(datum: Datum) -> GroupRow:
    return GroupRow(
        generation=datum["generation"],
        opened_at=datum["opened_at"],
        declared_end=datum["declared_end"],
        waived=_ranges(datum["waived"]),
        extended_deadline=datum["extended_deadline"],
        rule_version=datum["rule_version"],
    )


def _settings_row_datum(row: SettingsRow) -> Datum:
    settings = [{"name": name, "value": value} for name, value in row.settings]
    return {"settings": settings}


def _settings_row(datum: Datum) -> SettingsRow:
    return SettingsRow(tuple([(each["name"], each["value"]) for each in datum["settings"]]))


def _closed_datum(closed: ClosedGroup) -> Datum:
    return {
        "id": closed.id,
        "generation": closed.generation,
        "outcome": closed.outcome.value,
        "reason": _symbol(closed.reason.value),
        "highest": closed.highest,
        "closed_before": closed.closed_before,
        "closed_at": closed.closed_at,
        "prints": closed.prints,
    }


def _closed(datum: Datum) -> ClosedGroup:
    return ClosedGroup(
        id=datum["id"],
        generation=datum["generation"],
        outcome=UnitOutcome(datum["outcome"]),
        reason=_reason(datum["reason"]),
        highest=datum["highest"],
        closed_before=datum["closed_before"],
        closed_at=datum["closed_at"],
        prints=datum["prints"] or b"",  # of an older version: a text, as Avro writes the default of bytes
    )


def _ledger_datum(ledger: LedgerRecord) -> Datum:
    return {
        "layout": ledger.layout,
        "from_offset": ledger.from_offset,
        "to_offset": ledger.to_offset,
        "floor": ledger.floor,
        "clock": ledger.clock,
        "reader": ledger.reader,
        "not_held": _ranges_datum(ledger.not_held),
        "closed": [_closed_datum(closed) for closed in ledger.closed],
        "commands": [{"id": command.id, "at": command.at} for command in ledger.commands],
    }


def _ledger(datum: Datum) -> LedgerRecord:
    return LedgerRecord(
        layout=datum["layout"],
        from_offset=datum["from_offset"],
        to_offset=datum["to_offset"],
        floor=datum["floor"],
        clock=datum["clock"],
        reader=datum["reader"],
        not_held=tuple([OffsetRange(item["first"], item["last"]) for item in datum["not_held"]]),
        closed=tuple([_closed(closed) for closed in datum["closed"]]),
        commands=tuple([DecidedCommand(command["id"], command["at"]) for command in datum["commands"]]),
    )


class _Kind(NamedTuple):
    name: str
    type: type[Record]
    to_datum: Callable[[Any], Datum]
    from_datum: Callable[[Datum], Record]


_KINDS = (
    _Kind("Component", Component, _component_datum, _component),
    _Kind("Unit", Unit, _unit_datum, _unit),
    _Kind("Outcome", Outcome, _outcome_datum, _outcome),
    _Kind("Answer", Answer, _answer_datum, _answer),
    _Kind("ChangelogComponent", ChangelogRow, _changelog_row_datum, _changelog_row),
    _Kind("ChangelogReference", ReferenceRow, _changelog_row_datum, partial(_changelog_row, kind=ReferenceRow)),
    _Kind("ChangelogGroup", GroupRow, _group_row_datum, _group_row),
    _Kind("ChangelogSettings", SettingsRow, _settings_row_datum, _settings_row),
    _Kind("Ledger", LedgerRecord, _ledger_datum, _ledger),
)
_KINDS_BY_TYPE: Final[Mapping[type[Any], _Kind]] = {kind.type: kind for kind in _KINDS}
_KINDS_BY_NAME: Final[Mapping[str, _Kind]] = {kind.name: kind for kind in _KINDS}
