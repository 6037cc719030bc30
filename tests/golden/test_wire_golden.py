"""Stored bytes of every released version stay readable, and what is written today is what the current version says.

A failure here means that the wire changed: raise the version (`wire_examples.py` says how), never edit a golden file.
"""

from __future__ import annotations

import json

import pytest

from tests.golden.wire_examples import EXAMPLES, FOLDER, UNIT_EXAMPLE, hex_lines, path, write_missing
from uow.schemas import codec, framing
from uow.schemas.component import decode_component, encode_component
from uow.schemas.formats import (
    FORMAT_VERSION,
    from_json,
    from_xml,
    to_json,
    to_xml,
)
from uow.schemas.records import ComponentRecord, changelog_key

RELEASED = [(name, version) for name, (_, current) in framing.DEFINITIONS.items() for version in range(1, current + 1)]
CURRENT = [(name, version) for name, (_, version) in framing.DEFINITIONS.items()]
BUMP = "the wire changed: raise the version, see tests/golden/wire_examples.py"


def golden(name: str, version: int) -> bytes:
    return bytes.fromhex(path(name, version, "hex").read_text())


@pytest.mark.parametrize(("name", "version"), RELEASED)
def test_bytes_of_every_released_version_are_read_as_before(name: str, version: int) -> None:
    assert codec.decode(golden(name, version)) == EXAMPLES[name, version]


@pytest.mark.parametrize(("name", "version"), CURRENT)
def test_what_is_written_today_is_the_golden_bytes_of_the_current_version(name: str, version: int) -> None:
    assert hex_lines(codec.frame(EXAMPLES[name, version])) == path(name, version, "hex").read_text(), BUMP


@pytest.mark.parametrize(("name", "version"), RELEASED)
def test_a_released_definition_never_changes(name: str, version: int) -> None:
    stored = json.loads(path(name, version, "avsc").read_text("utf-8"))
    assert framing.canonical_form(json.loads(framing.definition_text(name, version))) == framing.canonical_form(
        stored
    ), BUMP


def test_every_golden_file_belongs_to_a_released_version() -> None:
    expected = {path(*released, suffix).name for released in RELEASED for suffix in ("avsc", "hex")}
    formats = range(1, FORMAT_VERSION + 1)
    expected |= {f"unit-format-{version}.{suffix}" for version in formats for suffix in ("json", "xml")}
    expected |= {"run-1.json", "run-2.json"}  # test_run_golden.py
    found = {file.name for suffix in ("avsc", "hex", "json", "xml") for file in FOLDER.glob(f"*-[0-9]*.{suffix}")}
    assert found == expected
    assert write_missing() == []


def test_units_in_json_and_xml_are_those_of_the_current_format() -> None:
    """W-95."""
    document = (FOLDER / f"unit-format-{FORMAT_VERSION}.json").read_bytes()
    assert to_json(UNIT_EXAMPLE) == document, BUMP
    assert from_json(document) == UNIT_EXAMPLE
    document = (FOLDER / f"unit-format-{FORMAT_VERSION}.xml").read_bytes()
    assert to_xml(UNIT_EXAMPLE) == document, BUMP
    assert from_xml(document) == UNIT_EXAMPLE


def test_the_component_encoder_by_hand_writes_and_reads_the_golden_bytes() -> None:
    component = EXAMPLES["Component", 1]
    assert isinstance(component, ComponentRecord)
    body = framing.split(golden("Component", 1)).body
    assert encode_component(component) == body, BUMP
    assert decode_component(body) == component


def test_a_changelog_key_is_what_it_was() -> None:
    assert changelog_key("größer-1".encode(), 300).hex() == "016772c3b6c39f65722d31000000012c", BUMP
