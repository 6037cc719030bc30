"""One component as a sender makes it: value, key, headers, identity, and the three marks on the way out.

Belongs here: turning what users give into bytes and headers, and the checks that one sender can make at once (W-20, W-23, W-25 to
W-27, W-33); the reading of headers is the worker's own (`uow.topics.headers`), so both sides judge alike. Does not belong here: sending.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from random import Random
from typing import Any, Final, NoReturn

from uow.client.kafka_port import HeaderPair, Headers
from uow.schemas.error_classes import (
    BadSequenceNumberError,
    BadUnitIdError,
    DecodeError,
    UnitConflictError,
)
from uow.topics.headers import (
    ALIASES,
    COMPONENT_ID,
    END,
    ID,
    MAX_ID_BYTES,
    MAX_SEQ,
    ORDER_KEY,
    ORDER_NAME,
    SEGMENT_AT,
    SEGMENT_END,
    SEQ,
    Marks,
    Reading,
    Refusal,
)
from uow.topics.policies import AliasFamily

HeaderValue = str | bytes | int | None
HeaderPairs = Mapping[str, HeaderValue] | Iterable[tuple[str, HeaderValue]] | None
"""Headers as users give them: a mapping, or pairs where order or repeats matter. Text becomes UTF-8, numbers decimal text."""
Value = Any
"""A value as users give it: dict or list (becomes JSON), str (UTF-8), bytes-like (as it is), None (stays null)."""

HASHED: Final = -1
"""Partition of a record that goes where the hash of its key says."""
_READING = Reading()
_ORDER_NAMES: Final = frozenset(
    {name for family in ALIASES.values() for name in family if family[name] == ORDER_NAME} | {ORDER_NAME}
)
"""Every spelling of the name of a unit of order."""


_random: Final = Random()
"""Nobody else's, so that no seed of an application repeats identities."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_random.seed)
_VERSION_4: Final = 0x4000_8000_0000_0000_0000
_BELOW: Final = ~0xF000_C000_0000_0000_0000


def random_uuid() -> str:
    """A UUID4 as text. Made for each record: `uuid.uuid4` costs as much as all else that is done for one."""
    text = (_random.getrandbits(128) & _BELOW | _VERSION_4).to_bytes(16).hex()  # sooner than as a number in base 16
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def value_bytes(value: Value) -> bytes | None:
    """The bytes of a value.

    Raises:
        TypeError: None of the kinds above, or no JSON.
        ValueError: It has a number that JSON has not: infinite, or none.
    """
    match value:
        case None:
            return None
        case bytes():
            return value
        case str():
            return value.encode()
        case dict() | list():
            return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        case bytearray() | memoryview():
            return bytes(value)
    raise TypeError(f"a value is a dict, list, str, bytes or None, not {type(value).__name__}")


def header_pairs(headers: HeaderPairs) -> Headers:
    """Headers as raw pairs, in order.

    Raises:
        TypeError: A value is neither text, bytes, a number nor None.
    """
    if headers is None:
        return []
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return [(name, _header_bytes(name, value)) for name, value in pairs]


def _header_bytes(name: str, value: HeaderValue) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if type(value) is int:  # no bool: True is no number here
        return b"%d" % value
    raise TypeError(f"header {name}: a value is text, bytes, a number or None, not {type(value).__name__}")


_MS_OF_1973: Final = 10**11
"""As seconds the year 5138: a smaller number is no time in ms that anybody means."""


def moment_ms(moment: int | datetime) -> int:
    """Epoch milliseconds of a moment given as such, or as a datetime that knows its time zone.

    Raises:
        ValueError: The datetime has no time zone, or the number is one of seconds.
    """
    if isinstance(moment, int):
        if 0 < moment < _MS_OF_1973:
            raise ValueError(f"{moment} in milliseconds is before 1973: give {moment * 1000}, or a datetime")
        return moment
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} has no time zone")
    return round(moment.timestamp() * 1000)


@dataclass(frozen=True, slots=True)
class Component:
    """One component whose identity is fixed when it is made, so that sending it again is recognised as a resend (W-31, R-04).

    Attributes:
        value: dict or list (becomes JSON), str, bytes or None.
        key: Kafka key at an intermediate topic; at a destination the key is the group id.
        headers: Headers of the application.
        component_id: Made once, survives forwarding.
    """

    value: Value
    key: str | bytes | None = None
    headers: HeaderPairs = None
    component_id: str = field(default_factory=random_uuid)


@dataclass(frozen=True, slots=True)
class BareValue(Component):
    """A value that was given without an identity of its own: nobody can repeat it as the same one."""


def as_component(value: Value | Component) -> Component:
    """A value as the component that it makes."""
    return value if isinstance(value, Component) else BareValue(value)


@dataclass(slots=True)
class OutgoingRecord:
    """A record that is ready to be produced."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    partition: int = HASHED


def component_headers(
    id: str,
    seq: int | None,
    component_id: str,
    common: Sequence[HeaderPair] = (),
    own: Sequence[HeaderPair] = (),
) -> Headers:
    """Headers of one component without the end mark: `uow-id`, `uow-seq`, `uow-component-id`, the unit's common ones, its own.

    Own headers replace common ones of the same name.

    Raises:
        UnitConflictError: `uoo-name` beside the id (W-33).
        BadUnitIdError: The id is empty or too long, or given again among the headers.
        BadSequenceNumberError: Number missing (a), below 1 (b), above the range (malformed), or given again among the headers.
        DecodeError: `uow-expires-at`, `uow-deliver-at`, `uow-priority` or `uow-digest` is unreadable; case = the header (W-23).
    """
    raw_id = id.encode()
    if not own and not common and type(seq) is int and 1 <= seq <= MAX_SEQ and 1 <= len(raw_id) <= MAX_ID_BYTES:
        return [(ID, raw_id), (SEQ, b"%d" % seq), (COMPONENT_ID, component_id.encode())]  # as they must be
    names = {name for name, _ in own}
    _refuse_marks(names, raw_id)
    headers: Headers = [(ID, raw_id)]
    if seq is not None:
        headers.append((SEQ, str(seq).encode()))
    if COMPONENT_ID not in names:
        headers.append((COMPONENT_ID, component_id.encode()))
    headers.extend(pair for pair in common if pair[0] not in names)
    headers.extend(own)
    check(headers)
    return headers


def cut(record: OutgoingRecord, most_bytes: int) -> Iterator[OutgoingRecord]:
    """The pieces of a component whose value is longer than that; each has its headers, and its place in the value (B-124)."""
    value = record.value or b""
    for at in range(0, len(value), most_bytes):
        place: Headers = [(SEGMENT_AT, b"%d" % at)]
        if at + most_bytes >= len(value):
            place.append((SEGMENT_END, b"true"))
        yield replace(record, value=value[at : at + most_bytes], headers=record.headers + place)


def order_key_of(headers: Headers) -> bytes:
    """A component's order key, empty for none (W-210)."""
    return next((value for name, value in headers if name == ORDER_KEY and value), b"")


def mark_end(headers: Headers) -> Headers:
    """The same headers with the end mark, beside the number."""
    return [*headers[:2], (END, b"true"), *headers[2:]]


def _refuse_marks(names: set[str], id: bytes) -> None:
    """The client sets id, number and end mark: given again among the headers they could contradict it, or end a unit by accident."""
    if ID in names:
        raise BadUnitIdError("give it as id=, not among the headers", case="repeated", id=id)
    if SEQ in names:
        raise BadSequenceNumberError(
            f"the client sets {SEQ}: do not give it among the headers", case="malformed", id=id
        )
    if END in names:
        raise BadSequenceNumberError(
            f"the client sets {END}: do not give it among the headers", case="malformed-end", id=id
        )


def check(headers: Headers) -> Marks | None:
    """Lines 1 to 5b of the decision table, before anything is sent.

    Returns:
        The marks of a component, None for a plain record.

    Raises:
        UowError: The class that a worker would write as `uow-error-class`.
    """
    marks = _READING.read(headers)
    if isinstance(marks, Refusal):
        refuse(marks)
    check_conflict(headers)
    return marks


def refuse(refusal: Refusal) -> NoReturn:
    """Raises a refusal as the error it names."""
    if refusal.error is DecodeError:
        raise DecodeError(refusal.case, refusal.detail, id=refusal.id)
    raise refusal.error(refusal.detail, case=refusal.case, id=refusal.id)


def check_conflict(headers: Headers, families: Iterable[AliasFamily] = ()) -> None:
    """W-33 alone, for records whose other marks are not ours to judge (W-36).

    Args:
        headers: Of the record.
        families: Whose spellings are read. WebLogic's always are: it alone has a name of its own for the order, and a destination may accept it.

    Raises:
        UnitConflictError: `uow-id` and `uoo-name` on one record, in whichever spelling.
    """
    if not any(name in _ORDER_NAMES and value is not None for name, value in headers):
        return
    said = Reading({*families, AliasFamily.WEBLOGIC}).properties(headers)
    if ID in said and ORDER_NAME in said:
        raise UnitConflictError
