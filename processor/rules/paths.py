"""Places in a record: `header:NAME`, `key` and `path:EXPR`, a JSON path or an XPath. Pure.

    header:uow-destination
    key
    path:product                        # of a JSON value: $.product
    path:$.lines[0]['supplier name']
    path:/order/customer/@id            # of an XML value
    path://*[local-name()='supplier']

A JSON path is one of RFC 9535 that names one place. An XPath has steps by name, `*`, one `//` at its start, and tests for a position, an
attribute, a child's text or the local name. So the cost of each is bounded by the size of the record (B-06).

Belongs here: reading their texts, finding the place. Does not belong here: expressions over several (`expressions.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from jsonpath import JSONPath, JSONPathEnvironment, JSONPathError
from lxml import etree

from uow.processor.rules.record_view import ABSENT, RecordView, decoded

MAX_CHARS: Final = 512
"""Longest text of an expression or a path: the width of its columns."""
FORMS: Final = "header:NAME, key or path:EXPR"

_JSON_PATHS: Final = JSONPathEnvironment(strict=True)
_STEP: Final = r"(?:[\w.-]+|\*)(?:\[(?:[0-9]{1,6}|(?:@?[\w.-]+|local-name\(\))='[^']*')\])*"
_XPATH: Final = re.compile(rf"//?{_STEP}(?:/{_STEP})*(?:/@[\w.-]+|/text\(\))?")
_KEY: Final = re.compile(r"\['((?:[^'\\]|\\.)*)'\]|\[(-?[0-9]+)\]")


class ExpressionError(ValueError):
    """A text that is no path, key or expression; the message says why."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a record. Two are equal when their texts are.

    Attributes:
        source: As it was written.

    Raises:
        ExpressionError: The text is none of its forms.
    """

    source: str
    _find: Callable[[RecordView], Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_find", _finder(self.source))

    def __reduce__(self) -> tuple[type[Place], tuple[str]]:
        return Place, (self.source,)

    def value(self, record: RecordView) -> Any:
        """A text, a part of a JSON document, or `ABSENT`."""
        return self._find(record)

    def text(self, record: RecordView) -> str | None:
        """The text there, a number as it is written; None if there is none, or no single value."""
        match self._find(record):
            case str(text):
                return str(text)
            case bool(truth):
                return "true" if truth else "false"
            case _:
                return None


def _finder(source: str) -> Callable[[RecordView], Any]:
    if len(source) > MAX_CHARS:
        raise ExpressionError(f"is longer than {MAX_CHARS} characters")
    kind, _, rest = source.partition(":")
    if source == "key":
        return lambda record: _or_absent(decoded(record.key))
    if kind == "header" and rest:
        return lambda record: _or_absent(record.header(rest))
    if kind == "path" and rest:
        return _in_xml(rest) if rest.startswith("/") else _in_json(rest)
    raise ExpressionError(f"must be {FORMS}, not {source[:100]!r}")


def _or_absent(text: str | None) -> Any:
    return ABSENT if text is None else text


def _in_json(path: str) -> Callable[[RecordView], Any]:
    try:
        query = _JSON_PATHS.compile(path if path.startswith("$") else f"$.{path}")
    except (JSONPathError, ValueError) as error:
        raise ExpressionError(f"{path[:100]!r} is no JSON path: {' '.join(str(error).split())[:100]}") from None
    if not isinstance(query, JSONPath) or not query.singular_query():
        raise ExpressionError(f"{path[:100]!r} may name several places; a JSON path here names one")
    return in_json(_keys(query))


def _keys(query: JSONPath) -> tuple[str | int, ...]:
    """Names and positions of a query for one place, from its normalized text (RFC 9535, 2.7)."""
    return tuple(
        int(position) if position else re.sub(r"\\(.)", r"\1", name) for name, position in _KEY.findall(str(query))
    )


def in_json(keys: tuple[str | int, ...]) -> Callable[[RecordView], Any]:
    """Finds the place that names and positions lead to, from the root of a JSON value."""

    def find(record: RecordView) -> Any:
        at = record.json
        for key in keys:
            try:
                at = at[key]
            except (LookupError, TypeError):
                return ABSENT
        return at

    return find


def _in_xml(path: str) -> Callable[[RecordView], Any]:
    if not _XPATH.fullmatch(path):
        raise ExpressionError(
            f"{path[:100]!r} is no XPath of the kind that is supported: steps by name, one // at the start, tests [1], [@a='x'], [b='x']"
        )
    try:
        query = etree.XPath(path, smart_strings=False)
        names_elements = isinstance(query(etree.Element("any")), list)
    except (etree.XPathError, ValueError) as error:
        raise ExpressionError(f"{path[:100]!r} is no XPath: {error}") from None
    if not names_elements:  # `/-a` is a number
        raise ExpressionError(f"{path[:100]!r} is no XPath of steps by name")

    def find(record: RecordView) -> Any:
        root = record.xml
        found: Any = [] if root is None else query(root)
        if not found:
            return ABSENT
        first = found[0]
        return (first if isinstance(first, str) else "".join(first.itertext())).strip()

    return find
