"""XML from outside, which is untrusted: read with bounds, and nothing is fetched for it (B-54).

Accepted is a well-formed document of at most `LIMIT_BYTES`, not nested deeper than `DEPTH_LIMIT`, which needs no entity beside XML's own five. A
document type is accepted, since writers add one by habit; no DTD is ever loaded, and none that declares an entity is accepted: entities
are the way to a bomb and to files of this machine, and a document that is put inside another one loses its declarations.

Belongs here: that reading, for paths and for the router's check alike. Does not belong here: what is looked for, and making documents.
"""

from __future__ import annotations

from typing import Any, Final

from lxml import etree

from uow.schemas.error_classes import DecodeError

LIMIT_BYTES: Final = 4_194_304
"""Largest document: as a tree it takes some thirty times as much."""
DEPTH_LIMIT: Final = 250
"""Most elements inside each other: readers of the aggregate that it becomes a part of commonly stop at 256."""
_BOUNDED: Final = {
    "resolve_entities": False,
    "load_dtd": False,
    "dtd_validation": False,
    "no_network": True,
    "huge_tree": False,
    "remove_comments": True,
    "remove_pis": True,
}
_TEXT: Final = 200
_BEFORE: Final = b" \t\r\n\xef\xbb\xbf\xfe\xff\0"
"""Bytes before the first `<` of a document: blanks, and marks of its encoding."""
_HUGE: Final = "XML_PARSE_HUGE"
"""Named by the parser's complaint about a document that is beyond its own bounds."""


class NoXmlError(Exception):
    """A value is no XML document."""


def xml_root(value: bytes | None) -> Any:
    """The root of a document, an element of lxml, without comments and processing instructions.

    Raises:
        DecodeError: There is none, or it is not accepted. Case `xml`.
    """
    try:
        return read_xml(value)
    except NoXmlError as error:
        raise DecodeError("xml", str(error)) from None


def read_xml(value: bytes | None) -> Any:
    """The same, where it makes a difference if there is no document, or one that is not accepted.

    Raises:
        NoXmlError: There is none.
        DecodeError: It is not accepted. Case `xml`.
    """
    if not value:
        raise NoXmlError("no value, where an XML document is wanted")
    if not value.lstrip(_BEFORE).startswith(b"<"):
        raise NoXmlError("no XML: it does not begin with <")
    if len(value) > LIMIT_BYTES:
        raise DecodeError("xml", f"a document of {len(value)} bytes; {LIMIT_BYTES} are allowed")
    if b"<!ENTITY" in value:  # before the parser sees it; in other encodings it is found afterwards
        raise DecodeError("xml", "declares an entity")
    try:
        root = etree.fromstring(value, etree.XMLParser(**_BOUNDED))
    except (etree.XMLSyntaxError, ValueError) as error:
        text = f"no XML: {' '.join(str(error).split())[:_TEXT]}"
        if _HUGE in str(error):  # the parser's own bound
            raise DecodeError("xml", text) from None
        raise NoXmlError(text) from None
    declared = root.getroottree().docinfo.internalDTD
    if declared is not None and next(declared.iterentities(), None) is not None:
        raise DecodeError("xml", "declares an entity")
    if next(root.iter(etree.Entity), None) is not None:
        raise DecodeError("xml", "refers to an entity that it does not declare")
    if value.count(b"<") > DEPTH_LIMIT and _depth(root) > DEPTH_LIMIT:
        raise DecodeError("xml", f"more than {DEPTH_LIMIT} elements inside each other")
    return root


def _depth(root: Any) -> int:
    deepest = depth = 0
    for event, _ in etree.iterwalk(root, ("start", "end")):
        depth += 1 if event == "start" else -1
        deepest = max(deepest, depth)
    return deepest
