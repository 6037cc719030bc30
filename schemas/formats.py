"""Units as JSON and as XML (`value_format`), without loss: bytes, nulls, header order and repeats survive (W-95).

Bytes are written as text where that is safe, else in base64: in JSON `{"text": "..."}` or `{"base64": "..."}`, in XML
an element with its text, or with `encoding="base64"`. Null is `null`, or an absent element. `docs/wire-format.md`
shows both shapes.

Belongs here: the two formats, written and read. Does not belong here: Avro (`uow.schemas.codec`). The input may be
hostile: everything that is not a unit raises `DecodeError`; XML document types, and so entities, are refused.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from types import MappingProxyType
from typing import Any, Final, NoReturn, TypeVar
from xml.etree import ElementTree as ET

from uow.schemas.error_classes import DecodeError
from uow.schemas.records import (
    ComponentRecord,
    Header,
    Range,
    Reason,
    Reference,
    Source,
    Unit,
    UnitOutcome,
)

FORMAT_VERSION: Final = 1
"""Version of both formats; it is part of each value.

Fields may be added without a new version, and readers ignore unknown ones.
"""

T = TypeVar("T")


def _clean(text: str) -> bool:
    """True if JSON, XML and people leave a text unchanged: it is printable, with line ends and tabs only in between."""
    return text.isprintable() or text.replace("\n", "").replace("\t", "").isprintable()


def _text_or_none(data: bytes) -> str | None:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return text if _clean(text) else None


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _from_base64(text: str) -> bytes:
    return base64.b64decode(text.encode("ascii"), validate=True)


_BROKEN: Final = (LookupError, ValueError, TypeError, AttributeError, RecursionError, binascii.Error)


def _read(what: str, data: bytes, read: Callable[[], T]) -> T:
    try:
        return read()
    except DecodeError as error:
        error.data = data
        raise
    except _BROKEN as error:
        raise DecodeError(
            what, f"no unit: {type(error).__name__} {' '.join(str(error).split())[:200]}", data=data
        ) from None


# JSON


def to_json(
    unit: Unit,
    is_json: Callable[[ComponentRecord], bool] = lambda component: False,
    more: Mapping[str, Any] = MappingProxyType({}),
    origins: Sequence[Mapping[str, Any]] = (),
) -> bytes:
    """A unit as one JSON object, UTF-8.

    Args:
        unit: The unit.
        more: Further fields of the unit.
        origins: Further fields of each component, in order.
        is_json: True for a component whose value is JSON by declaration. If it is indeed, it is embedded unchanged, byte for byte, as
            `{"json": ...}`. That is for people and files: `from_json` does not read it, since a parser does not give back the same bytes.
    """
    fields = {
        "schema": "uow.Unit",
        "version": FORMAT_VERSION,
        "id": unit.id,
        "unit_id": unit.unit_id,
        "destination": unit.destination,
        "generation": unit.generation,
        "outcome": unit.outcome.value,
        "reason": unit.reason.value,
        "opened_at": unit.opened_at,
        "closed_at": unit.closed_at,
        "expires_at": unit.expires_at,
        "count": unit.count,
        "bytes": unit.bytes,
        "missing": [[item.first, item.last] for item in unit.missing],
        **more,
    }
    told = zip(unit.components, origins, strict=True) if origins else zip(unit.components, repeat({}), strict=False)
    components = ",".join([_component_json(component, is_json(component), origin) for component, origin in told])
    return f'{_dump(fields)[:-1]},"components":[{components}]}}'.encode()


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _component_json(component: ComponentRecord, is_json: bool, origin: Mapping[str, Any]) -> str:
    source, reference = component.source, component.reference
    before = {
        "seq": component.seq,
        "end": component.end,
        "component_id": component.component_id,
        "key": _bytes_json(component.key),
    }
    embedded = _json_text(component.value) if is_json and component.value is not None else None
    value = _dump(_bytes_json(component.value)) if embedded is None else f'{{"json":{embedded}}}'
    after = {
        "headers": [[name, _bytes_json(value)] for name, value in component.headers],
        "timestamp": component.timestamp,
        "source": {"topic": source.topic, "partition": source.partition, "offset": source.offset},
        "reference": None if reference is None else {"length": reference.length, "crc32c": reference.crc32c},
        **origin,
    }
    return f'{_dump(before)[:-1]},"value":{value},{_dump(after)[1:]}'


def _json_text(data: bytes) -> str | None:
    """The text of a JSON value; None if it is none that every parser would read."""
    try:
        text = data.decode()
        _dump(
            json.loads(text, parse_constant=_no_number)
        ).encode()  # raises on a lone surrogate, which strict parsers refuse
    except (ValueError, RecursionError):
        return None
    return text


def _bytes_json(data: bytes | None) -> dict[str, str] | None:
    if data is None:
        return None
    text = _text_or_none(data)
    return {"base64": _base64(data)} if text is None else {"text": text}


def from_json(data: bytes) -> Unit:
    """The unit that `to_json` wrote.

    Raises:
        DecodeError: It is not a unit; case `json`.
    """
    return _read("json", data, lambda: _unit_of_json(json.loads(data, parse_constant=_no_number)))


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


def _expect(kind: type[T], value: Any) -> T:
    if type(value) is not kind:
        raise TypeError(f"{type(value).__name__} where {kind.__name__} is expected")
    return value


def _or_none(read: Callable[[Any], T], value: Any) -> T | None:
    return None if value is None else read(value)


def _int(value: Any) -> int:
    return _expect(int, value)


def _str(value: Any) -> str:
    text = _expect(str, value)
    text.encode()  # raises on a lone surrogate
    return text


def _unit_of_json(value: Any) -> Unit:
    fields = _expect(dict, value)
    _check_version(fields["schema"], fields["version"])
    return Unit(
        id=_str(fields["id"]),
        unit_id=_str(fields["unit_id"]),
        destination=_str(fields["destination"]),
        generation=_int(fields["generation"]),
        outcome=UnitOutcome(_str(fields["outcome"])),
        reason=Reason(_str(fields["reason"])),
        opened_at=_int(fields["opened_at"]),
        closed_at=_int(fields["closed_at"]),
        expires_at=_or_none(_int, fields["expires_at"]),
        count=_int(fields["count"]),
        bytes=_int(fields["bytes"]),
        missing=tuple(Range(_int(first), _int(last)) for first, last in _expect(list, fields["missing"])),
        components=tuple(map(_component_of_json, _expect(list, fields["components"]))),
    )


def _check_version(schema: Any, version: Any) -> None:
    if schema != "uow.Unit" or version != FORMAT_VERSION:
        raise ValueError(
            f"schema {str(schema)[:40]} version {str(version)[:40]}, not uow.Unit version {FORMAT_VERSION}"
        )


def _component_of_json(value: Any) -> ComponentRecord:
    fields = _expect(dict, value)
    source = _expect(dict, fields["source"])
    return ComponentRecord(
        seq=_int(fields["seq"]),
        end=_expect(bool, fields["end"]),
        component_id=_or_none(_str, fields["component_id"]),
        key=_or_none(_bytes_of_json, fields["key"]),
        value=_or_none(_bytes_of_json, fields["value"]),
        headers=tuple((_str(name), _or_none(_bytes_of_json, held)) for name, held in _expect(list, fields["headers"])),
        timestamp=_int(fields["timestamp"]),
        source=Source(_str(source["topic"]), _int(source["partition"]), _int(source["offset"])),
        reference=_or_none(lambda said: Reference(_int(said["length"]), _int(said["crc32c"])), fields["reference"]),
    )


def _bytes_of_json(value: Any) -> bytes:
    ((kind, text),) = _expect(dict, value).items()
    if kind == "text":
        return _str(text).encode()
    if kind == "base64":
        return _from_base64(_str(text))
    raise ValueError(f"bytes are written as text or base64, not as {kind[:40]!r}")


# XML


def to_xml(unit: Unit) -> bytes:
    """A unit as one XML document, UTF-8 with declaration, no document type."""
    root = ET.Element("unit", {"schema": "uow.Unit", "version": str(FORMAT_VERSION)})
    for name in ("id", "unit_id", "destination"):
        _add_text(root, name, getattr(unit, name))
    for name in ("generation", "outcome", "reason", "opened_at", "closed_at", "expires_at", "count", "bytes"):
        _add_plain(root, name, getattr(unit, name))
    missing = ET.SubElement(root, "missing")
    for item in unit.missing:
        ET.SubElement(missing, "range", {"first": str(item.first), "last": str(item.last)})
    components = ET.SubElement(root, "components")
    for component in unit.components:
        _add_component(components, component)
    body: bytes = ET.tostring(root, "utf-8", xml_declaration=False)
    return b"<?xml version='1.0' encoding='UTF-8'?>\n" + body


def _add_component(parent: ET.Element, component: ComponentRecord) -> None:
    element = ET.SubElement(parent, "component")
    _add_plain(element, "seq", component.seq)
    _add_plain(element, "end", "true" if component.end else "false")
    _add_text(element, "component_id", component.component_id)
    _add_bytes(element, "key", component.key)
    _add_bytes(element, "value", component.value)
    headers = ET.SubElement(element, "headers")
    for name, value in component.headers:
        header = ET.SubElement(headers, "header")
        _add_text(header, "name", name)
        _add_bytes(header, "value", value)
    _add_plain(element, "timestamp", component.timestamp)
    source = ET.SubElement(element, "source")
    _add_text(source, "topic", component.source.topic)
    _add_plain(source, "partition", component.source.partition)
    _add_plain(source, "offset", component.source.offset)
    if component.reference is not None:
        reference = ET.SubElement(element, "reference")
        _add_plain(reference, "length", component.reference.length)
        _add_plain(reference, "crc32c", component.reference.crc32c)


def _add_plain(parent: ET.Element, name: str, value: object) -> None:
    if value is not None:
        ET.SubElement(parent, name).text = str(value)


def _add_text(parent: ET.Element, name: str, text: str | None) -> None:
    _add_bytes(parent, name, None if text is None else text.encode())


def _add_bytes(parent: ET.Element, name: str, data: bytes | None) -> None:
    if data is None:
        return
    element = ET.SubElement(parent, name)
    element.text = _text_or_none(data)
    if element.text is None:
        element.set("encoding", "base64")
        element.text = _base64(data)


class _Tree(ET.TreeBuilder):
    """Builds an element tree and refuses document types, so that no entity can be declared."""

    def doctype(self, name: str, pubid: str | None, system: str | None) -> NoReturn:
        raise DecodeError("xml", f"a document type ({name[:40]}) is refused")


def from_xml(data: bytes) -> Unit:
    """The unit that `to_xml` wrote.

    Raises:
        DecodeError: It is not a unit, or it has a document type; case `xml`.
    """
    return _read("xml", data, lambda: _unit_of_xml(_parse(data)))


def _parse(data: bytes) -> ET.Element:
    try:
        return ET.fromstring(data, ET.XMLParser(target=_Tree()))
    except ET.ParseError as error:
        raise DecodeError("xml", f"no XML: {error}") from None


def _child(parent: ET.Element, name: str) -> ET.Element:
    found = parent.findall(name)
    if len(found) != 1:
        raise ValueError(f"{len(found)} elements {name} in {parent.tag[:40]}")
    return found[0]


def _plain(parent: ET.Element, name: str) -> str:
    return _child(parent, name).text or ""


def _number(text: str) -> int:
    if not text.removeprefix("-").isdecimal() or not text.isascii():
        raise ValueError(f"{text[:40]!r} is no number")
    return int(text)


def _xml_int(parent: ET.Element, name: str) -> int:
    return _number(_plain(parent, name))


def _xml_bytes(parent: ET.Element, name: str) -> bytes:
    element = _child(parent, name)
    text = element.text or ""
    encoding = element.get("encoding", "text")
    if encoding not in ("text", "base64"):
        raise ValueError(f"bytes are written as text or base64, not as {encoding[:40]!r}")
    return _from_base64(text) if encoding == "base64" else text.encode()


def _xml_text(parent: ET.Element, name: str) -> str:
    return _xml_bytes(parent, name).decode()


def _optional(read: Callable[[ET.Element, str], T], parent: ET.Element, name: str) -> T | None:
    return None if parent.find(name) is None else read(parent, name)


def _unit_of_xml(root: ET.Element) -> Unit:
    if root.tag != "unit":
        raise ValueError(f"the document is a {root.tag[:40]}")
    _check_version(root.get("schema"), _number(root.get("version", "")))
    return Unit(
        id=_xml_text(root, "id"),
        unit_id=_xml_text(root, "unit_id"),
        destination=_xml_text(root, "destination"),
        generation=_xml_int(root, "generation"),
        outcome=UnitOutcome(_plain(root, "outcome")),
        reason=Reason(_plain(root, "reason")),
        opened_at=_xml_int(root, "opened_at"),
        closed_at=_xml_int(root, "closed_at"),
        expires_at=_optional(_xml_int, root, "expires_at"),
        count=_xml_int(root, "count"),
        bytes=_xml_int(root, "bytes"),
        missing=tuple(
            Range(_number(item.attrib["first"]), _number(item.attrib["last"]))
            for item in _child(root, "missing").findall("range")
        ),
        components=tuple(map(_component_of_xml, _child(root, "components").findall("component"))),
    )


def _component_of_xml(element: ET.Element) -> ComponentRecord:
    source, reference = _child(element, "source"), element.find("reference")
    end = _plain(element, "end")
    if end not in ("true", "false"):
        raise ValueError(f"end is neither true nor false: {end[:40]!r}")
    return ComponentRecord(
        seq=_xml_int(element, "seq"),
        end=end == "true",
        component_id=_optional(_xml_text, element, "component_id"),
        key=_optional(_xml_bytes, element, "key"),
        value=_optional(_xml_bytes, element, "value"),
        headers=tuple(map(_header_of_xml, _child(element, "headers").findall("header"))),
        timestamp=_xml_int(element, "timestamp"),
        source=Source(_xml_text(source, "topic"), _xml_int(source, "partition"), _xml_int(source, "offset")),
        reference=None
        if reference is None
        else Reference(_xml_int(reference, "length"), _xml_int(reference, "crc32c")),
    )


def _header_of_xml(element: ET.Element) -> Header:
    return _xml_text(element, "name"), _optional(_xml_bytes, element, "value")
