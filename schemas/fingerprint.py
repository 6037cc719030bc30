"""Fingerprints of a unit's components: short checksums of their ids and values, remembered after the unit's delivery (W-40, B-38).

With them a component that comes after the delivery is classified as before it: `resend`, `duplicate` or `conflict`. A fingerprint is the
CRC-32C of a value, 4 bytes little-endian, in number order; if any component has an id, as many fingerprints of ids follow, 0 for none.

Where the assembler gave the numbers a copy is known by its id alone, and in whichever unit of its key it was: a zero byte, which no other fingerprints
begin a multiple of 4 with, and 8 bytes of BLAKE2b of group id and component id for each component, little-endian and ascending.

Belongs here: making and comparing them. Does not belong here: the treatment of each case (`uow.processor.core.decide`), and the ledger's bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from hashlib import blake2b
from struct import Struct

import google_crc32c

from uow.schemas.claim_check import checksum_of
from uow.schemas.component import component_id_of, sized

MOST = 1_000
"""Units with more components are remembered without fingerprints."""

_OF_IDS = b"\0"
_ID_BYTES = 8
_NULL = 0xFFFF_FFFF
"""Of a null value."""
_DIGEST_LENGTH = 64
"""Avro's length of 32 bytes."""

_crc = google_crc32c.value


@cache
def _numbers(count: int) -> Struct:
    return Struct(f"<{count}I")


def fingerprints(bodies: Mapping[int, bytes]) -> bytes:
    """Fingerprints of a complete unit's components, given by number from 1; empty if there are more than `MOST`."""
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


def id_fingerprint(group_id: bytes, component_id: bytes) -> int:
    """The fingerprint of a component of a group that the assembler numbers."""
    digest = blake2b(sized(group_id) + component_id, digest_size=_ID_BYTES, usedforsecurity=False)
    return int.from_bytes(digest.digest(), "little")


def id_fingerprints(group_id: bytes, component_ids: Collection[bytes]) -> bytes:
    """Fingerprints of all components of such a group, by their ids; empty if there are none, or more than `MOST`."""
    if not 0 < len(component_ids) <= MOST:
        return b""
    return _OF_IDS + b"".join(
        each.to_bytes(_ID_BYTES, "little") for each in sorted(id_fingerprint(group_id, each) for each in component_ids)
    )


def id_count(prints: bytes) -> int:
    """How many components are known by their ids alone; 0 where fingerprints are those of values, too."""
    return len(prints) // _ID_BYTES if len(prints) % 4 == 1 else 0


def ids_in(prints: bytes) -> tuple[int, ...]:
    """The same as a tuple of `id_fingerprint`."""
    count = id_count(prints)
    found: tuple[int, ...] = Struct(f"<{count}Q").unpack_from(prints, 1) if count else ()
    return found


def _alike(bodies: Sequence[bytes], at: int, values: list[int], ids: list[int]) -> bool:
    """Adds the fingerprints of components that all have one key, ids of one length or none, and short values, as in most units.

    A value as long as a digest may be the digest of an external value (`uow.schemas.claim_check`).

    Args:
        bodies: Components whose number is encoded in `at - 1` bytes.
        at: Position after number and end mark.
        values: Fingerprints of the values of earlier components; new ones are appended.
        ids: The same of their ids; empty if components have no id.

    Returns:
        True if the components are alike; otherwise nothing was added.
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
        prints: Fingerprints of the unit; not empty.
        count: Number of its components.
        number: Sequence number of the component, one of the unit's.
        component_id: Id of the component.
        value: Value of the component.
    """
    known = _numbers(len(prints) // 4).unpack(prints)
    if component_id is not None and len(known) == 2 * count and known[count + number - 1] == _crc(component_id):
        return "resend"
    return "duplicate" if known[number - 1] == _of(value) else "conflict"
