"""Units as JSON and XML lose nothing, and hostile documents end as DecodeError (W-95)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.schemas.wire_strategies import units
from uow.schemas.error_classes import DecodeError
from uow.schemas.formats import (
    from_json,
    from_xml,
    to_json,
    to_xml,
)
from uow.schemas.records import (
    ComponentRecord,
    Range,
    Reason,
    Reference,
    Source,
    Unit,
    UnitOutcome,
)

COMPONENT = ComponentRecord(
    1, True, "c-1", b"order-1", b"caf\xc3\xa9\n", (("a", b"\xff"), ("a", None), ("b", b"")), 5, Source("t", 0, 7)
)
UNIT = Unit(
    "order-1",
    "u",
    "megazon",
    1,
    UnitOutcome.PARTIAL,
    Reason.COMPONENT_EXPIRED,
    1,
    2,
    3,
    1,
    40,
    (Range(2, 9),),
    (COMPONENT,),
)
FORMATS = [(to_json, from_json, "json"), (to_xml, from_xml, "xml")]


@given(units)
def test_a_unit_survives_json(unit: Unit) -> None:
    assert from_json(to_json(unit)) == unit


@given(units)
def test_a_unit_survives_xml(unit: Unit) -> None:
    assert from_xml(to_xml(unit)) == unit


@pytest.mark.parametrize(("write", "read", "case"), FORMATS)
@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b" ",
        b" x ",
        b"\n",
        b"\r\n",
        b"\t",
        b"]]>",
        b"&amp;<>\"'",
        b"\x00",
        b"\xef\xbf\xbf",
        b"\xed\xa0\x80",
        "\u2028é".encode(),
    ],
    ids=repr,
)
def test_values_that_formats_like_to_change_survive(write: Any, read: Any, case: str, value: bytes | None) -> None:
    unit = replace(UNIT, components=(replace(COMPONENT, value=value, key=value, headers=(("h", value),)),))
    assert read(write(unit)) == unit


@pytest.mark.parametrize(("write", "read", "case"), FORMATS)
@pytest.mark.parametrize("text", ["", "\x00", "\r", "a\nb", "\ufffe", "😀", "<&>"])
def test_texts_that_formats_like_to_change_survive(write: Any, read: Any, case: str, text: str) -> None:
    odd = replace(
        COMPONENT, component_id=text, headers=((text, b"1"),), source=Source(text, 0, 0), reference=Reference(1, 2)
    )
    unit = replace(UNIT, id=text, components=(odd,))
    assert read(write(unit)) == unit


def test_json_has_the_published_shape() -> None:
    assert json.loads(to_json(UNIT)) == {
        "schema": "uow.Unit",
        "version": 1,
        "id": "order-1",
        "unit_id": "u",
        "destination": "megazon",
        "generation": 1,
        "outcome": "partial",
        "reason": "component-expired",
        "opened_at": 1,
        "closed_at": 2,
        "expires_at": 3,
        "count": 1,
        "bytes": 40,
        "missing": [[2, 9]],
        "components": [
            {
                "seq": 1,
                "end": True,
                "component_id": "c-1",
                "key": {"text": "order-1"},
                "value": {"text": "café\n"},
                "headers": [["a", {"base64": "/w=="}], ["a", None], ["b", {"text": ""}]],
                "timestamp": 5,
                "source": {"topic": "t", "partition": 0, "offset": 7},
                "reference": None,
            }
        ],
    }


def test_fields_that_a_newer_writer_added_are_passed_over() -> None:
    value = json.loads(to_json(UNIT))
    value["more"] = value["components"][0]["more"] = {"x": 1}
    assert from_json(json.dumps(value).encode()) == UNIT
    assert from_xml(to_xml(UNIT).replace(b"<count>", b"<more><x/></more><count>")) == UNIT


def changed(*path: Any, to: Any) -> bytes:
    value = json.loads(to_json(UNIT))
    at = value
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = to
    return json.dumps(value).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff",
        b"[]",
        b"null",
        b"{}",
        b"[" * 100_000,
        b"9" * 100_000,
        changed("version", to=2),
        changed("schema", to="other"),
        changed("id", to=7),
        changed("id", to="\ud800"),
        changed("generation", to=1.5),
        changed("generation", to=True),
        changed("count", to=float("nan")),
        changed("outcome", to="finished"),
        changed("missing", to=[[1]]),
        changed("components", to={}),
        changed("components", 0, "end", to="true"),
        changed("components", 0, "key", to={"hex": "00"}),
        changed("components", 0, "key", to={"base64": "é"}),
        changed("components", 0, "key", to={"base64": "!!!"}),
        changed("components", 0, "key", to={}),
        changed("components", 0, "headers", to=[["a"]]),
        changed("components", 0, "reference", to={"length": 1}),
    ],
    ids=lambda data: data[-60:],
)
def test_json_that_is_no_unit_is_refused(data: bytes) -> None:
    with pytest.raises(DecodeError) as caught:
        from_json(data)
    assert (caught.value.case, caught.value.data) == ("json", data)


XML = to_xml(replace(UNIT, components=(replace(COMPONENT, reference=Reference(1, 2)),)))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"<unit>",
        b"\xff",
        b"<other/>",
        b"<unit/>",
        b"<a>" * 50_000,
        XML.replace(b'version="1"', b'version="2"'),
        XML.replace(b'version="1"', b""),
        XML.replace(b"<count>1</count>", b""),
        XML.replace(b"<count>1</count>", b"<count>1</count><count>1</count>"),
        XML.replace(b"<count>1</count>", b"<count>1_0</count>"),
        XML.replace(b"<count>1</count>", "<count>\u0661</count>".encode()),
        XML.replace(b"<count>1</count>", b"<count>" + b"9" * 5000 + b"</count>"),
        XML.replace(b"<end>true</end>", b"<end>yes</end>"),
        XML.replace(b"<outcome>partial", b"<outcome>finished"),
        XML.replace(b'first="2"', b""),
        XML.replace(b'encoding="base64"', b'encoding="hex"'),
        XML.replace(b"/w==", b"/w="),
        XML.replace(b"<unit ", b'<!DOCTYPE unit SYSTEM "file:///etc/hosts"><unit '),
        XML.replace(b"<unit ", b'<!DOCTYPE unit [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><unit ').replace(
            b"megazon", b"&b;"
        ),
        XML.replace(b"megazon", b"&unknown;"),
    ],
    ids=lambda data: data[:120],
)
def test_xml_that_is_no_unit_is_refused(data: bytes) -> None:
    with pytest.raises(DecodeError) as caught:
        from_xml(data)
    assert (caught.value.case, caught.value.data) == ("xml", data)


def test_a_document_type_is_refused_by_name() -> None:
    with pytest.raises(DecodeError, match="document type"):
        from_xml(b"<!DOCTYPE unit>" + XML.partition(b"\n")[2])


@given(st.binary(max_size=100), st.integers(0, len(XML)), st.integers(0, 20))
def test_altered_documents_end_as_a_unit_or_as_a_decode_error(noise: bytes, at: int, gone: int) -> None:
    document = to_json(UNIT)
    for read, data in ((from_xml, XML), (from_json, document)):
        try:
            read(data[:at] + noise + data[at + gone :])
        except DecodeError:
            continue
