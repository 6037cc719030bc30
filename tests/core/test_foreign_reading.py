"""Units as programs read them that have nothing of ours: a library for the format, and the published definition (W-118, W-95)."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import avro.io
import avro.schema
import pytest

from tests.core.script import c, ms, story
from uow.topics.policies import ValueFormat

DEFINITION = Path(__file__).parents[2] / "schemas" / "definitions" / "unit.avsc"

Said = tuple[str, list[tuple[int, bool, bytes | None, list[tuple[str, bytes | None]], int, int]]]
"""Id of a unit; of its components number, end mark, value, headers, append time and source offset."""


def by_avro(value: bytes) -> Said:
    assert value.startswith(b"\xc3\x01")
    unit: Any = avro.io.DatumReader(avro.schema.parse(DEFINITION.read_text())).read(
        avro.io.BinaryDecoder(io.BytesIO(value[10:]))
    )
    return unit["id"], [
        (
            each["seq"],
            each["end"],
            each["value"],
            [(header["name"], header["value"]) for header in each["headers"]],
            round(each["timestamp"].timestamp() * 1000),
            each["source"]["offset"],
        )
        for each in unit["components"]
    ]


def by_json(value: bytes) -> Said:
    def raw(said: dict[str, str] | None) -> bytes | None:
        if said is None:
            return None
        return said["text"].encode() if "text" in said else base64.b64decode(said["base64"])

    unit = json.loads(value)
    return unit["id"], [
        (
            each["seq"],
            each["end"],
            raw(each["value"]),
            [(name, raw(said)) for name, said in each["headers"]],
            each["timestamp"],
            each["source"]["offset"],
        )
        for each in unit["components"]
    ]


def by_xml(value: bytes) -> Said:
    def raw(element: ET.Element | None) -> bytes | None:
        if element is None:
            return None
        text = element.text or ""
        return base64.b64decode(text) if element.get("encoding") == "base64" else text.encode()

    unit = ET.fromstring(value)  # our own bytes
    return unit.findtext("id", ""), [
        (
            int(each.findtext("seq", "")),
            each.findtext("end") == "true",
            raw(each.find("value")),
            [(header.findtext("name", ""), raw(header.find("value"))) for header in each.iterfind("headers/header")],
            int(each.findtext("timestamp", "")),
            int(each.findtext("source/offset", "")),
        )
        for each in unit.iterfind("components/component")
    ]


READERS: dict[ValueFormat, Callable[[bytes], Said]] = {
    ValueFormat.AVRO: by_avro,
    ValueFormat.JSON: by_json,
    ValueFormat.XML: by_xml,
}


@pytest.mark.parametrize("value_format", ValueFormat)
def test_unit_is_read_with_a_library_of_its_format_alone_w118(value_format: ValueFormat) -> None:
    """W-95: bytes as they were, null as null, headers in order with their repeats."""
    last = c(2, end=True, value=b"\x00\xff<&>", at=3, user=[("trace", b"\xff"), ("trace", None), ("trace", "x")])
    first = c(1, value='{"item": "gr\u00f6\u00dfer"}', at=5)
    (output,) = story(last, first, value_format=value_format).outputs
    assert output.value is not None
    unit_id, components = READERS[value_format](output.value)
    marks = [("uow-id", b"a"), ("uow-seq", b"1")]
    assert unit_id == "a"
    assert components == [
        (1, False, '{"item": "gr\u00f6\u00dfer"}'.encode(), marks, ms(5), 1),
        (
            2,
            True,
            b"\x00\xff<&>",
            [
                ("uow-id", b"a"),
                ("uow-seq", b"2"),
                ("uow-end", b"true"),
                ("trace", b"\xff"),
                ("trace", None),
                ("trace", b"x"),
            ],
            ms(3),
            0,
        ),
    ]
