"""Fields of a JSON value that stand in for headers, for clients that have none (W-24). Pure.

Belongs here: finding them in any bytes. Does not belong here: their meaning (`uow.topics.headers`).
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any, Final

_NO_SCALAR: Final = b"\xff"
"""Replaces an object or a list in a field that must be a text or a number. It is not UTF-8, so it is refused as any unreadable value."""


class _Object(list[tuple[str, Any]]):
    """A JSON object with its fields in their order, repeats included (W-23)."""


def fields_of(value: bytes | None, names: Collection[str]) -> list[tuple[str, bytes | None]]:
    """The fields with these names at the top level of a JSON object, as header values; empty if the value is not a JSON object.

    Texts and numbers are taken as they are written, true and false as words; null counts as absent.
    """
    try:
        text = (value or b"").decode()
        document = json.loads(text, object_pairs_hook=_Object, parse_int=str, parse_float=str, parse_constant=str)
    except (ValueError, RecursionError):
        return []
    if not isinstance(document, _Object):
        return []
    return [(name, _raw(item)) for name, item in document if name in names and item is not None]


def _raw(item: Any) -> bytes:
    match item:
        case bool():
            return b"true" if item else b"false"
        case str():
            return item.encode(errors="surrogatepass")
        case _:
            return _NO_SCALAR
