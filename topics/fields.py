"""Fields of a JSON value that stand in for headers, for clients that have none (W-24). Pure.

Belongs here: finding them in any bytes at all. Does not belong here: what they mean (`topics.headers`).
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any, Final

_NO_SCALAR: Final = b"\xff"
"""Stands for an object or a list where a text or a number belongs: no UTF-8, no number and no mark, so it is refused as what it is."""


class _Object(list[tuple[str, Any]]):
    """A JSON object with its fields as they came, repeats included (W-23)."""


def fields_of(value: bytes | None, names: Collection[str]) -> list[tuple[str, bytes | None]]:
    """The fields of these names at the top of a JSON object, as header values would be; none of anything else.

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
