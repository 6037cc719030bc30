"""Units by rule as documents for their receivers: XML around the components' own documents (B-53), and JSON with their origins (B-55).

Values come from outside. A router has looked at those bound for XML (B-54); a producer that skipped it may have sent anything, and a unit that
is complete must leave all the same: a value that is no XML document stands as text, or in base64, in an element of its own. Nothing is ever
fetched, and no entity is expanded: a document that declares any counts as none.

Belongs here: the two documents. Does not belong here: reading them back, and units of work (`formats`).
"""

from __future__ import annotations

import base64
import codecs
import re
from codecs import BOM_UTF8
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

from uow.schemas import formats
from uow.schemas.records import ComponentRecord, Unit

_DECLARED: Final = re.compile(rb"""\s*<\?xml[^>]*?\sencoding\s*=\s*["']([A-Za-z0-9._-]{1,40})["']""")
_ENCODINGS: Final = re.compile(
    r"ascii|utf-(?:7|16|32)(?:-[lb]e)?|iso8859-\d+|cp\d+|koi8-[rtu]|mac-\w+|gb2312|gbk|gb18030|big5\w*|euc[_-]\w+|shift_jis\w*|iso2022_\w+|tis-620|hz"
)
"""Python's names of the encodings of documents; of its others some take time by the square of the length (`punycode`), or are no encodings of texts."""
_HEAD: Final = b'<?xml version="1.0" encoding="UTF-8"?>\n'


class _NoDocument(Exception):
    """Not a document that can stand inside another one."""


def aggregation_xml(components: Iterable[ComponentRecord]) -> bytes:
    """The root elements of the components inside one element `Aggregation`, in this order. Never raises."""
    return b"%b<Aggregation>%b</Aggregation>" % (_HEAD, b"".join(element_of(each.value) for each in components))


def collection_xml(name: str, components: Iterable[tuple[str, ComponentRecord]]) -> bytes:
    """An element `Collection` with one `Component` for each component, in this order, with the name of its source (B-108). Never raises.

    The source is an attribute, since its name need not be one of an element.
    """
    inside = b"".join(
        b"<Component source=%b>%b</Component>" % (quoteattr(source).encode("utf-8", "replace"), element_of(each.value))
        for source, each in components
    )
    return b"%b<Collection name=%b>%b</Collection>" % (_HEAD, quoteattr(name).encode("utf-8", "replace"), inside)


def replies_xml(name: str, folders: Sequence[str], components: Iterable[ComponentRecord]) -> bytes:
    """An element `Replies` with one `Folder` for each reply, in the order of the requests, and a `Missing` for each that lacks (B-78, B-83). Never raises.

    Args:
        name: Of the manifest.
        folders: Of the requests, by number.
        components: The replies; the number of each is that of its request.
    """
    held = {each.seq: each for each in components}
    inside = b"".join(
        b"<Folder name=%b>%b</Folder>" % (_attribute(folder), element_of(held[number].value))
        if number in held
        else b"<Missing name=%b/>" % _attribute(folder)
        for number, folder in enumerate(folders, 1)
    )
    return b"%b<Replies name=%b>%b</Replies>" % (_HEAD, _attribute(name), inside)


def _attribute(text: str) -> bytes:
    """A text as an attribute's value in quotes; what XML does not know becomes a question mark."""
    return quoteattr(_NO_XML.sub("?", text)).encode("utf-8", "replace")


_NO_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def element_of(value: bytes | None) -> bytes:
    """The root element of an XML document as UTF-8, without declaration, document type and whatever stands around it.

    Of another value an element `Value`: with its text, or with `encoding="base64"`; of none an empty one.
    """
    if not value:
        return b"<Value/>"
    try:
        return _root(value)
    except (_NoDocument, expat.ExpatError, LookupError, ValueError):
        pass
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = "\0"
    if not text.replace("\n", "").replace("\t", "").isprintable():
        return b'<Value encoding="base64">%b</Value>' % base64.b64encode(value)
    return b"<Value>%b</Value>" % escape(text).encode()


def _root(value: bytes) -> bytes:
    value = value.removeprefix(BOM_UTF8)
    if value[:2] in (b"\xff\xfe", b"\xfe\xff"):
        value = value.decode("utf-16").encode()
    elif (declared := _DECLARED.match(value)) and declared[1].lower() not in (b"utf-8", b"utf8"):
        codec = codecs.lookup(declared[1].decode()).name
        if not _ENCODINGS.fullmatch(codec):
            raise _NoDocument
        value = value.decode(codec).encode()
    start, end = _span(value)
    return value[start:end]


def _span(value: bytes) -> tuple[int, int]:
    """Where the root element of a document begins and ends; it is read as UTF-8, whatever it declares."""
    parser: Any = expat.ParserCreate(encoding="utf-8")
    depth, start, last = 0, -1, -1

    def opened(name: str, attributes: object) -> None:
        nonlocal depth, start
        if depth == 0:
            start = parser.CurrentByteIndex
        depth += 1

    def closed(name: str) -> None:
        nonlocal depth, last
        depth -= 1
        if depth == 0:
            last = parser.CurrentByteIndex

    def refused(*_: object) -> None:
        raise _NoDocument

    parser.StartElementHandler, parser.EndElementHandler = opened, closed
    parser.EntityDeclHandler = parser.SkippedEntityHandler = parser.ExternalEntityRefHandler = refused
    parser.Parse(value, True)
    if start < 0 or last < 0:
        raise _NoDocument
    # of `<a/>` the parser tells where it ends, of `</a>` where it begins; nothing but white space is before the `>` of the latter
    return start, value.index(b">", last) + 1 if value.startswith(b"</", last) else last


def aggregate_json(
    unit: Unit,
    rule: str,
    origins: Iterable[dict[str, Any]],
    collection: str | None = None,
    further: Mapping[str, Any] | None = None,
) -> bytes:
    """A unit as `formats.to_json` writes it, with the name of its row; and in each component what is known of its origin.

    Args:
        unit: The unit.
        rule: Text of `uow-rule`.
        origins: Of each component, in order: `source_name`, `input` and `arrived_at`, or null.
        collection: Name of a collection, which also has `sources`: for each source the places of its components, from 1 (B-108).
        further: Further fields of the unit.
    """
    told = list(origins)
    more: dict[str, Any] = {"rule": rule, **(further or {})}
    if collection is not None:
        sources: dict[str, list[int]] = {}
        for place, origin in enumerate(told, 1):
            sources.setdefault(origin["source_name"] or "", []).append(place)
        more |= {"collection": collection, "sources": sources}
    return formats.to_json(unit, more=more, origins=told)
