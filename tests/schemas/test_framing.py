"""Frames, definitions and fingerprints (`docs/wire-format.md#framing`)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import avro.schema
import fastavro
import pytest
from fastavro.schema import fingerprint as fast_fingerprint
from fastavro.schema import to_parsing_canonical_form
from hypothesis import given
from hypothesis import strategies as st

from tests.processes import stretched
from uow.schemas import framing
from uow.schemas.codec import without_logical_types
from uow.schemas.error_classes import DecodeError
from uow.schemas.framing import Frame, FrameKind, SchemaVersion
from uow.schemas.records import Reason, UnitOutcome

NAMES = [*framing.DEFINITIONS]


@pytest.mark.parametrize("name", NAMES)
def test_canonical_form_and_fingerprint_agree_with_fastavro_and_avro(name: str) -> None:
    text = framing.definition_text(name)
    canonical = to_parsing_canonical_form(fastavro.parse_schema(json.loads(text)))
    assert framing.canonical_form(json.loads(text)) == canonical
    assert framing.single_object_header(name) == b"\xc3\x01" + bytes.fromhex(fast_fingerprint(canonical, "CRC-64-AVRO"))
    # The official package leaves {"type": "long"} of a logical type where the specification says "long".
    official = avro.schema.parse(json.dumps(without_logical_types(json.loads(text)))).fingerprint("CRC-64-AVRO")
    assert framing.single_object_header(name) == b"\xc3\x01" + official


@pytest.mark.parametrize(
    ("text", "crc"),
    [('"null"', 7195948357588979594), ('"int"', 8247732601305521295), ('"string"', -8142146995180207161)],
)
def test_the_fingerprint_has_the_values_of_avros_own_test_suite(text: str, crc: int) -> None:
    assert framing.crc64_avro(text.encode()) == crc % 2**64


@given(st.binary(max_size=100))
def test_the_fingerprint_of_any_bytes_agrees_with_its_definition(data: bytes) -> None:
    crc = 0xC15D213AA4D7A795
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xC15D213AA4D7A795 if crc & 1 else 0)
    assert framing.crc64_avro(data) == crc


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "record", "name": "a.b.C", "fields": [{"name": "f", "type": {"type": "string"}}]},
        {"type": "record", "name": "C", "fields": [{"name": "f", "type": "double", "default": 1.0}]},
        {
            "type": "record",
            "name": "C",
            "namespace": "n",
            "fields": [
                {"name": "f", "type": {"type": "enum", "name": "E", "namespace": "m", "symbols": ["A", "B"]}},
                {"name": "g", "type": ["null", "m.E"]},
                {"name": "h", "type": {"type": "record", "name": "D", "fields": [{"name": "i", "type": "int"}]}},
                {"name": "j", "type": {"type": "array", "items": "D"}},
            ],
        },
    ],
)
def test_names_get_their_namespace_in_the_canonical_form(schema: Any) -> None:
    assert framing.canonical_form(schema) == to_parsing_canonical_form(fastavro.parse_schema(schema))


def test_a_type_that_our_definitions_do_not_use_is_refused() -> None:
    with pytest.raises(ValueError, match="fixed"):
        framing.canonical_form({"type": "fixed", "name": "F", "size": 4})


def test_every_released_version_is_known_by_its_fingerprint() -> None:
    assert {*framing.known().values()} == {
        SchemaVersion(name, version)
        for name, (_, current) in framing.DEFINITIONS.items()
        for version in range(1, current + 1)
    }
    for name in NAMES:
        assert framing.known()[framing.fingerprint(name)] == (name, framing.DEFINITIONS[name][1])


def test_an_older_version_is_read_from_the_released_definitions(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (tmp_path / "released").mkdir()
    (tmp_path / "thing.avsc").write_text('"current"')
    (tmp_path / "released" / "thing-1.avsc").write_text('"old"')
    monkeypatch.setattr(framing, "_FOLDER", tmp_path)
    monkeypatch.setattr(framing, "DEFINITIONS", {"Thing": ("thing", 2)})
    assert framing.definition_text("Thing") == framing.definition_text("Thing", 2) == '"current"'
    assert framing.definition_text("Thing", 1) == '"old"'
    for version in (0, 3):
        with pytest.raises(KeyError):
            framing.definition_text("Thing", version)
    framing.definition_text.cache_clear()


def test_the_enumerations_have_the_order_of_the_definitions() -> None:
    fields = {field["name"]: field["type"] for field in json.loads(framing.definition_text("Unit"))["fields"]}
    assert fields["outcome"]["symbols"] == [*UnitOutcome]
    assert fields["reason"]["symbols"] == [reason.replace("-", "_") for reason in Reason]


def test_a_unit_holds_components_by_their_own_definition() -> None:
    component = json.loads(framing.definition_text("Component"))
    fields = {field["name"]: field["type"] for field in json.loads(framing.definition_text("Unit"))["fields"]}
    assert fields["components"]["items"]["fields"] == component["fields"]


@given(st.binary(max_size=40), st.integers(0, 2**32 - 1))
def test_split_takes_apart_what_the_headers_put_before_a_body(body: bytes, schema_id: int) -> None:
    assert framing.split(framing.confluent_header(schema_id) + body) == Frame(FrameKind.CONFLUENT, schema_id, body)
    framer: framing.Framer = framing.SingleObjectFramer()
    single = Frame(FrameKind.SINGLE_OBJECT, framing.fingerprint("Unit"), body)
    assert framing.split(framer.header("Unit", "m.units") + body) == single


@pytest.mark.parametrize(
    "data", [b"", b"\xc3", b"\xc3\x01", b"\xc3\x01" + b"x" * 7, b"\x00abc", b"{}", b"\xc3\x02" + b"x" * 20]
)
def test_other_bytes_have_no_frame(data: bytes) -> None:
    with pytest.raises(DecodeError) as caught:
        framing.split(data)
    assert (caught.value.case, caught.value.data) == ("framing", data)


def test_importing_the_frames_brings_in_neither_an_avro_package_nor_a_file() -> None:
    script = (
        "import sys, uow.schemas.framing as f; "
        "assert not {'fastavro', 'avro', 'confluent_kafka', 'urllib.request'} & {*sys.modules}; "
        "assert f.definition_text.cache_info().currsize == 0 and f.known.cache_info().currsize == 0"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=stretched(60))


def test_the_page_about_the_wire_format_names_the_fingerprints_that_are_written() -> None:
    page = (Path(__file__).parents[2] / "docs" / "wire-format.md").read_text("utf-8")
    for name, (_, version) in framing.DEFINITIONS.items():
        assert f"| `uow.{name}` | {version} | `{framing.single_object_header(name).hex(' ')}` |" in page
