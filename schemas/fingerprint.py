"""Fingerprints of a unit's components: what is remembered of their ids and values once the unit is delivered (W-40).

A component that comes after the delivery is told apart by them as before it: `resend`, `duplicate` or `conflict`. A fingerprint is the
CRC-32C of a value, 4 bytes little-endian, in number order; where a component has an id, as many of the ids follow, 0 for none.

Belongs here: making and comparing them. Does not belong here: what a case leads to (`processor.core.decide`), and the ledger's bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from struct import Struct

import google_crc32c

from schemas.component import component_id_of
from schemas.stayed import checksum_of

MOST = 1_000
"""Units of more components are remembered without fingerprints."""

_NULL = 0xFFFF_FFFF
"""Of a null value."""
_DIGEST_LENGTH = 64
"""Avro's length of 32 bytes."""

_crc = google_crc32c.value


@cache
def _numbers(count: int) -> Struct:
    return Struct(f"<{count}I")


def fingerprints(bodies: Mapping[int, bytes]) -> bytes:
    """Of a complete unit's components, by number from 1; empty for one of more than `MOST`."""
    count = len(bodies)
    if count > MOST:
        return b""
    in_order = [*map(bodies.__getitem__, range(1, count + 1))]
    values: list[int] = []
    ids: list[int] = []
    alike = _alike(in_order[:63], 2, values, ids) and _alike(in_order[63:], 3, values, ids)
    if not alike or len(ids) not in (0, count):
        values = [_NULL if each is None else each for each in map(checksum_of, in_order)]
        ids = [0 if each is None else _crc(each) for each in map(component_id_of, in_order)]
    if any(ids):
        values += ids
    return _numbers(len(values)).pack(*values)


def _alike(bodies: Sequence[bytes], at: int, values: list[int], ids: list[int]) -> bool:
    """Whether all have one key, ids of one length or none, and short values, as most units do; then theirs are added.

    A value as long as a digest may stand for another one (`schemas.stayed`).

    Args:
        bodies: Components whose number is encoded in `at - 1` bytes.
        at: Where what follows number and end mark begins.
        values: Of those before them.
        ids: The same; none where components have no id.
    """
    if not bodies:
        return True
    first = bodies[0]
    id_end = at + 2 + (first[at + 1] >> 1) if first[at] else at + 1
    value_at = id_end + 2 + (first[id_end + 1] >> 1)
    branch, key = first[at : min(id_end, at + 2)], first[id_end : value_at + 1]
    if branch[-1] > 127 or key[0] != 2 or key[1] > 127 or key[-1] != 2:
        return False
    for body in bodies:
        if not (body.startswith(branch, at) and body.startswith(key, id_end)):
            return False
        low = body[value_at + 1]
        if low == _DIGEST_LENGTH:
            return False
        if low < 128:
            start, length = value_at + 2, low >> 1
        else:
            start, length = value_at + 3, (low & 127 | body[value_at + 2] << 7) >> 1
            if body[value_at + 2] > 127:
                return False
        values.append(_crc(body[start : start + length]))
        if id_end > at + 1:
            ids.append(_crc(body[at + 2 : id_end]))
    return True


def _of(value: bytes | None) -> int:
    return _NULL if value is None else _crc(value)


def case_of(prints: bytes, count: int, number: int, component_id: bytes | None, value: bytes | None) -> str:
    """Case of `DuplicateSequenceNumberError` for a component that comes after the delivery (W-31).

    Args:
        prints: Of the unit; not empty.
        count: Its components.
        number: Of the component, one of the unit's.
        component_id: Of the component.
        value: Of the component.
    """
    known = _numbers(len(prints) // 4).unpack(prints)
    if component_id is not None and len(known) == 2 * count and known[count + number - 1] == _crc(component_id):
        return "resend"
    return "duplicate" if known[number - 1] == _of(value) else "conflict"
