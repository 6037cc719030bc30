"""Three encoders, one result: ours by hand, fastavro and the official `avro` package give the same bytes (W-95)."""

from __future__ import annotations

import io
import json
from functools import cache
from typing import Any

import avro.io
import avro.schema
import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.schemas.wire_strategies import components, longs, records, units
from uow.processor.core.changes import Closed
from uow.schemas import codec, component, framing
from uow.schemas.error_classes import DecodeError
from uow.schemas.records import ComponentRecord, Record, Unit


@cache
def official_schema(name: str) -> avro.schema.Schema:
    # Without logical types, as in uow.schemas.codec: else every time is a datetime, and most longs are none.
    return avro.schema.parse(json.dumps(codec.without_logical_types(json.loads(framing.definition_text(name)))))


@cache
def fast_schema(name: str) -> Any:
    return fastavro.parse_schema(codec.without_logical_types(json.loads(framing.definition_text(name))))


def fast_datum(name: str, body: bytes) -> Any:
    return fastavro.schemaless_reader(io.BytesIO(body), fast_schema(name), None)


def official_bytes(name: str, datum: Any) -> bytes:
    out = io.BytesIO()
    avro.io.DatumWriter(official_schema(name)).write(datum, avro.io.BinaryEncoder(out))
    return out.getvalue()


def official_datum(name: str, body: bytes) -> Any:
    schema = official_schema(name)
    return avro.io.DatumReader(schema, schema).read(avro.io.BinaryDecoder(io.BytesIO(body)))


@given(records)
def test_the_official_package_reads_and_writes_the_same_bytes_for_every_record(record: Record) -> None:
    name = codec.name_of(record)
    body = codec.encode(record)
    datum = official_datum(name, body)
    assert datum == fast_datum(name, body)
    assert official_bytes(name, datum) == body


@given(components)
def test_the_component_encoder_by_hand_gives_the_bytes_of_both_packages(held: ComponentRecord) -> None:
    body = component.encode_component(held)
    assert body == codec.encode(held)
    assert body == official_bytes("Component", official_datum("Component", body))


@given(components)
def test_the_component_decoder_by_hand_reads_what_fastavro_wrote(held: ComponentRecord) -> None:
    assert component.decode_component(codec.encode(held)) == held


@given(longs)
def test_a_long_by_hand_is_avros_zigzag_long(number: int) -> None:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, "long", number)
    assert component.long(number) == out.getvalue()


@given(units, st.integers(0, 2**63 - 1))
def test_a_unit_joined_from_encoded_components_is_the_unit_of_both_packages(unit: Unit, expires_at: int) -> None:
    bodies = [component.encode_component(held) for held in unit.components]
    body = component.unit_body(
        b"",
        unit.id.encode(),
        unit.unit_id.encode(),
        component.sized(unit.destination.encode()),
        Closed(b"", unit.generation, unit.outcome, unit.reason, 0, 0, unit.closed_at),
        unit.opened_at,
        expires_at,
        unit.bytes,
        unit.missing,
        bodies,
    )
    again = codec.decode(framing.single_object_header("Unit") + body)
    assert isinstance(again, Unit)
    assert again.expires_at == (expires_at or None)
    assert again.count == len(again.components)
    assert again.components == unit.components
    assert codec.encode(again) == body
    assert official_bytes("Unit", official_datum("Unit", body)) == body


@given(st.binary(max_size=200))
def test_hostile_bytes_are_refused_by_the_decoder_by_hand(data: bytes) -> None:
    try:
        component.decode_component(data)
    except DecodeError:
        return


@given(components, st.data())
def test_no_prefix_of_a_component_is_a_component(held: ComponentRecord, data: st.DataObject) -> None:
    body = component.encode_component(held)
    cut = data.draw(st.integers(0, len(body) - 1))
    with pytest.raises(DecodeError):
        component.decode_component(body[:cut])


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"\xff" * 11, "more than ten bytes"),
        (b"\x02\x02", "neither 0 nor 1"),
        (b"\x02\x00\x04", "no branch 2"),
        (b"\x02\x00\x01", "no branch -1"),
        (b"\x02\x00\x02\x02\xff", "no UTF-8"),
        (b"\x02\x00\x02\x01", "claims -1 bytes"),
        (b"\x02\x00\x00\x00\x00\x80\x80\x80\x80\x10", "claims 2147483648 items"),
        (b"\x02\x00\x00\x00\x00\x01", "claims -1 items"),
        (b"\x02" + b"\x00" * 10 + b"\x00", "1 bytes follow"),
    ],
    ids=lambda told: told if isinstance(told, str) else "",
)
def test_the_decoder_by_hand_says_what_is_wrong(body: bytes, says: str) -> None:
    with pytest.raises(DecodeError, match=says):
        component.decode_component(body)
