"""Encoding and decoding of every record, old and foreign writers, and hostile bytes (W-95)."""

from __future__ import annotations

import contextlib
import io
import json
import tracemalloc
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.schemas.wire_strategies import components, records, units
from uow.schemas import codec, framing
from uow.schemas.error_classes import DecodeError, UowError
from uow.schemas.records import (
    Answer,
    ComponentRecord,
    Record,
    Source,
    Unit,
)
from uow.schemas.registry import MemoryRegistry, RegistryFramer

ANSWER = Answer("c-1", "cancel", "order-1", "megazon", True, "cancelled 3 components", "asked for", None, 1)
COMPONENT = ComponentRecord(1, True, None, b"k", None, (("a", b"1"), ("a", None)), 5, Source("t", 0, 7))


def definition(name: str) -> Any:
    return json.loads(framing.definition_text(name))


def written_with(schema: Any, datum: Any) -> tuple[bytes, RegistryFramer]:
    """Bytes by a writer of its own schema, and a registry that knows it."""
    registry = RegistryFramer(MemoryRegistry())
    schema_id = registry.registry.register("t-value", json.dumps(schema))
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), datum)
    return framing.confluent_header(schema_id) + out.getvalue(), registry


@given(records)
def test_every_record_survives_both_framings(record: Record) -> None:
    """W-95: arbitrary bytes, null values, repeated headers."""
    assert codec.decode(codec.frame(record)) == record
    framer = RegistryFramer(MemoryRegistry())
    data = codec.frame(record, framer, "megazon.units")
    assert data[:1] == b"\x00"
    assert codec.decode(data, registry=framer) == record
    assert codec.decode(codec.frame(record), registry=framer) == record


def test_a_record_of_another_kind_than_expected_is_refused() -> None:
    assert codec.decode_as(Answer, codec.frame(ANSWER)) == ANSWER
    with pytest.raises(DecodeError, match="Answer where Unit is expected") as caught:
        codec.decode_as(Unit, codec.frame(ANSWER))
    assert (caught.value.case, caught.value.data) == ("schema", codec.frame(ANSWER))


# Evolution: fields are added with defaults only, every released version stays readable.


def test_an_older_released_version_is_read_by_its_fingerprint(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """A version step as it will happen: `by` is new in version 2, with a default."""
    old, new = definition("Answer"), definition("Answer")
    old["fields"] = [field for field in old["fields"] if field["name"] != "by"]
    new["fields"] = [{**field, "default": None} if field["name"] == "by" else field for field in new["fields"]]
    (tmp_path / "released").mkdir()
    (tmp_path / "released" / "answer-1.avsc").write_text(json.dumps(old))
    (tmp_path / "answer.avsc").write_text(json.dumps(new))
    caches = [
        framing.definition_text,
        framing.fingerprint,
        framing.known,
        framing.single_object_header,
        codec._current,
        codec._released,
    ]
    with monkeypatch.context() as patched:
        patched.setattr(framing, "_FOLDER", tmp_path)
        patched.setattr(framing, "DEFINITIONS", {"Answer": ("answer", 2)})
        for cached in caches:
            cached.cache_clear()
        datum = {
            name: getattr(ANSWER, name)
            for name in ("command_id", "verb", "id", "destination", "done", "text", "why", "at")
        }
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(old), datum)
        data = b"\xc3\x01" + framing.fingerprint("Answer", 1).to_bytes(8, "little") + out.getvalue()
        assert codec.decode(data) == ANSWER
        assert codec.decode(codec.frame(ANSWER)) == ANSWER
    for cached in caches:
        cached.cache_clear()


def test_a_field_that_a_newer_writer_added_is_passed_over() -> None:
    newer = definition("Answer")
    newer["fields"].append({"name": "elapsed", "type": {"type": "int", "logicalType": "time-millis"}})
    data, registry = written_with(newer, {name: getattr(ANSWER, name) for name in Answer.__slots__} | {"elapsed": 5})
    assert codec.decode(data, registry=registry) == ANSWER


def test_a_writer_that_lacks_a_field_without_default_is_refused() -> None:
    older = definition("Answer")
    del older["fields"][-1]
    data, registry = written_with(older, {name: getattr(ANSWER, name) for name in Answer.__slots__ if name != "at"})
    with pytest.raises(DecodeError, match="does not resolve") as caught:
        codec.decode(data, registry=registry)
    assert (caught.value.case, caught.value.data) == ("schema", data)


def test_a_reason_that_only_a_newer_version_knows_is_refused() -> None:
    newer = definition("Outcome")
    newer["fields"][5]["type"]["symbols"].append("weather")
    datum: dict[str, Any] = {field["name"]: 0 for field in newer["fields"]} | {
        "id": "",
        "unit_id": "",
        "destination": "",
        "outcome": "failed",
        "reason": "weather",
        "missing": [],
        "rule": None,
        "command_id": None,
        "last_arrived": None,
        "deadline_at": None,
        "per_source": [],
        "target": None,
        "supersedes": None,
    }
    data, registry = written_with(newer, datum)
    with pytest.raises(DecodeError):
        codec.decode(data, registry=registry)


# Hostile bytes: DecodeError, quickly, in memory bounded by the input.


def refused(data: bytes, **options: Any) -> DecodeError:
    with pytest.raises(DecodeError) as caught:
        codec.decode(data, **options)
    assert caught.value.data == data
    return caught.value


def record_or_refusal(data: bytes) -> None:
    """Any other exception fails the test."""
    with contextlib.suppress(DecodeError):
        codec.decode(data)


def test_an_unknown_fingerprint_is_refused() -> None:
    assert refused(b"\xc3\x01" + b"\x00" * 8 + b"body").case == "schema"


def test_confluent_framing_without_a_registry_is_refused_and_says_what_to_set() -> None:
    error = refused(framing.confluent_header(7) + b"body")
    assert error.case == "framing"
    assert "registry_url" in str(error)


def test_an_id_that_the_registry_does_not_know_is_refused() -> None:
    assert refused(framing.confluent_header(7) + b"body", registry=MemoryRegistry()).case == "schema"


def test_a_registry_that_does_not_answer_is_no_fault_of_the_bytes() -> None:
    class Silent:
        def schema(self, schema_id: int) -> str:
            raise UowError("no answer")

    with pytest.raises(UowError) as caught:
        codec.decode(framing.confluent_header(7) + b"body", registry=Silent())
    assert not isinstance(caught.value, DecodeError)


@given(st.sampled_from([*framing.DEFINITIONS]), st.binary(max_size=400))
def test_any_bytes_end_as_a_record_or_as_a_decode_error(name: str, body: bytes) -> None:
    record_or_refusal(framing.single_object_header(name) + body)


@given(records, st.data())
def test_no_prefix_of_a_record_is_a_record(record: Record, data: st.DataObject) -> None:
    framed = codec.frame(record)
    refused(framed[: data.draw(st.integers(0, len(framed) - 1))])


@given(records, st.binary(min_size=1, max_size=10))
def test_bytes_after_a_record_are_refused(record: Record, more: bytes) -> None:
    assert refused(codec.frame(record) + more).case == "body"


@given(units, st.data())
def test_a_unit_with_altered_bytes_ends_as_a_record_or_as_a_decode_error(unit: Unit, data: st.DataObject) -> None:
    framed = bytearray(codec.frame(unit))
    for _ in range(data.draw(st.integers(1, 4))):
        framed[data.draw(st.integers(0, len(framed) - 1))] = data.draw(st.integers(0, 255))
    record_or_refusal(bytes(framed))


def varint(number: int) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, "long", number)
    return out.getvalue()


HUGE = [10**9, 10**12, 2**31, 2**62, 2**63 - 1, -1, -(10**9), -(2**62)]


@pytest.mark.parametrize("claimed", HUGE)
def test_lengths_and_counts_that_claim_gigabytes_cost_nothing(claimed: int) -> None:
    """A string, a block of headers, a block of components: each claims far more than the bytes that follow."""
    head = framing.single_object_header("Component")
    component_start = b"\x02\x00" + b"\x00" * 3
    unit_start = codec.encode(codec.decode_as(Unit, framing.single_object_header("Unit") + _EMPTY_UNIT))[:-1]
    hostile = [
        framing.single_object_header("Unit") + varint(claimed) + b"abc",
        head + component_start[:2] + b"\x02" + varint(claimed) + b"abc",
        head + component_start + varint(claimed) + b"abc",
        framing.single_object_header("Unit") + unit_start + varint(claimed) + b"\x02\x00",
    ]
    tracemalloc.start()
    try:
        for data in hostile:
            refused(data)
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


_EMPTY_UNIT = b"\x00" * 13


def test_a_number_of_endless_bytes_is_refused() -> None:
    refused(framing.single_object_header("Unit") + b"\xff" * 10_000)


def linked_list() -> Any:
    schema = definition("Answer")
    schema["fields"].append({"name": "next", "type": ["null", "Answer"], "default": None})
    return schema


def with_field(kind: Any) -> Any:
    schema = definition("Answer")
    schema["fields"].append({"name": "more", "type": kind})
    return schema


NO_WRITER = [
    "",
    "{",
    "[" * 100_000,
    '"string"',
    '["null", "string"]',
    "7",
    "null",
    "{}",
    '{"type": "record", "name": "Answer"}',
    '{"type": "record", "name": "Answer", "namespace": "uow", "fields": [{"name": "x", "type": "nonsense"}]}',
    '{"type": "record", "name": "Answer", "fields": [{"name": "x", "type": "int"}]}',
    '{"type": "record", "name": "Other", "namespace": "uow", "fields": [{"name": "x", "type": "int"}]}',
    '{"type": "record", "name": "other.Answer", "fields": [{"name": "x", "type": "int"}]}',
    '{"type": "record", "name": "uow.Answer", "fields": [{"name": "x", "type": ["null", "uow.Answer"]}]}',
    linked_list(),
    with_field("null"),
    with_field({"type": "null"}),
    with_field({"type": "array", "items": "null"}),
    with_field({"type": "map", "values": {"type": "record", "name": "Nothing", "fields": []}}),
    with_field({"type": "fixed", "name": "Nothing", "size": 0}),
    with_field({"type": {"type": "array", "items": {"type": "array", "items": "null"}}}),
]


@pytest.mark.parametrize("schema", NO_WRITER, ids=lambda schema: str(schema)[:60])
def test_a_schema_by_which_few_bytes_claim_much_or_that_is_none_of_ours_is_refused(schema: Any) -> None:
    registry = MemoryRegistry()
    schema_id = registry.register("t-value", schema if isinstance(schema, str) else json.dumps(schema))
    error = refused(framing.confluent_header(schema_id) + b"\xff\xff\xff\xff\xff\x0f" * 4, registry=registry)
    assert error.case == "schema"


def test_the_definitions_themselves_are_bounded() -> None:
    for name in framing.DEFINITIONS:
        codec.check_bounded(definition(name))


def test_other_avro_types_that_a_writer_added_are_passed_over() -> None:
    schema = with_field({"type": "map", "values": {"type": "fixed", "name": "Two", "size": 2}})
    schema["fields"].append({"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A"]}})
    schema["fields"].append({"name": "plain", "type": {"type": "string"}})
    datum = {name: getattr(ANSWER, name) for name in Answer.__slots__} | {
        "more": {"a": b"ab"},
        "kind": "A",
        "plain": "",
    }
    data, registry = written_with(schema, datum)
    assert codec.decode(data, registry=registry) == ANSWER


@given(components)
def test_a_component_decodes_from_a_foreign_writer_that_is_equal_to_ours(component: ComponentRecord) -> None:
    registry = RegistryFramer("mock://codec")
    assert codec.decode_as(ComponentRecord, codec.frame(component, registry, "t"), registry=registry) == component


def test_an_array_of_plain_values_stays_one_though_no_record_has_it_yet() -> None:
    mapping = codec._mapping(tuple[str, ...])
    assert mapping.out(("a", "b")) == ["a", "b"]
    assert mapping.back(["a", "b"]) == ("a", "b")
