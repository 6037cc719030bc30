"""Values of headers as other systems write them, in the words of ours (`docs/decisions/0119-what-real-systems-send.md`). Pure.

Belongs here: how each system writes a value, version by version. Does not belong here: the names of its headers, and what is read from them
(`uow.topics.headers`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Sequence
from typing import Final

Turn = Callable[[bytes], bytes | None]
"""A value of another system to ours; None: it says that there is none."""

JSON_TYPES: Final = "spring_json_header_types"
"""Spring Kafka's header that names the headers whose values are JSON: one of type `java.util.UUID` stands in quotes."""
LAST_IN_GROUP: Final = 0x10
SEGMENT: Final = 0x02
LAST_SEGMENT: Final = 0x04
"""Bits of `mq-msg-flags`."""
_NO_GROUP: Final = frozenset({bytes(24), b"0" * 48})
"""MQGI_NONE, which every message of MQ that is in no group has: as bytes, and in hexadecimal."""
_NO_JMS_GROUP: Final = b"ID:" + b"0" * 48
_MODES: Final = {b"1": b"non_persistent", b"2": b"persistent"}
_INTEGERS: Final = (4, 8)
"""Lengths of Java's Integer and Long, the highest byte first."""


def integer(raw: bytes) -> bytes:
    """An integer of 4 or 8 bytes as decimal text; any other value as it is.

    Four printable characters are a text, also with a line end. As an integer they would be above 150,000,000, which no number of a component is by chance.
    """
    if len(raw) in _INTEGERS and not (raw.isascii() and "".join(raw.decode().split()).isprintable()):
        return b"%d" % int.from_bytes(raw, signed=True)
    return raw


def is_binary(raw: bytes) -> bool:
    """True if a value is read as an integer of 4 or 8 bytes."""
    return integer(raw) is not raw


def from_0(raw: bytes) -> bytes:
    """The number of the part that a system which counts from 0 gives this index."""
    text = integer(raw)
    return b"%d" % (int(text) + 1) if text.isdigit() and len(text) < 12 else text


def flags_of(raw: bytes) -> int | None:
    """The bits of `mq-msg-flags`; None if it is no number."""
    text = integer(raw)
    return int(text) if text.isdigit() and len(text) < 12 else None


def _end_of(raw: bytes) -> bytes:
    flags = flags_of(raw)
    return raw if flags is None else b"true" if flags & LAST_IN_GROUP else b"false"


def _mq_id(raw: bytes) -> bytes | None:
    return None if raw in _NO_GROUP else raw.lower()


def _jms_id(raw: bytes) -> bytes | None:
    return None if raw == _NO_JMS_GROUP else raw


def _size(raw: bytes) -> bytes | None:
    text = integer(raw)
    return None if text == b"0" else text


def _mode(raw: bytes) -> bytes:
    text = integer(raw)
    return _MODES.get(text, text.lower())


TURNS: Final[dict[str, Turn]] = {
    "fragment.index": from_0,
    "mq-msg-flags": _end_of,
    "mq-group-id": _mq_id,
    "JMSXGroupID": _jms_id,
    "sequenceSize": _size,
    "JMSDeliveryMode": _mode,
}
"""By the name of the header, where it is not just an `integer` or a text."""


def _first_index(raw: bytes) -> bytes:
    return b"%d" % (int(raw) + 1) if raw.isdigit() and len(raw) < 12 else raw


def _first_end(raw: bytes) -> bytes:
    if not (raw.isdigit() and len(raw) < 12):
        return raw
    return b"true" if int(raw) & LAST_IN_GROUP else b"false"


def _first_mode(raw: bytes) -> bytes:
    return _MODES.get(raw, raw.lower())


FIRST_TURNS: Final[dict[str, Turn]] = {
    "fragment.index": _first_index,
    "mq-msg-flags": _first_end,
    "mq-group-id": bytes.lower,
    "JMSDeliveryMode": _first_mode,
}
"""Those of version 1 of the reading, for what was read so at first."""


def without_json(
    headers: Sequence[tuple[str, bytes | None]], names: Container[str]
) -> Sequence[tuple[str, bytes | None]]:
    """The headers of a record of Spring Kafka; those of these names that it says are JSON have texts in the place of JSON strings."""
    types = next((value for name, value in headers if name == JSON_TYPES), None)
    if types is None:
        return headers
    try:
        named = json.loads(types)
    except (ValueError, RecursionError):
        return headers
    if not isinstance(named, dict):
        return headers
    return [(name, _unquoted(value) if name in names and name in named else value) for name, value in headers]


def _unquoted(raw: bytes | None) -> bytes | None:
    if raw is None or raw[:1] != b'"':
        return raw
    try:
        text = json.loads(raw)
    except ValueError:
        return raw
    return text.encode(errors="surrogatepass") if isinstance(text, str) else raw
