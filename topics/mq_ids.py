"""Group ids on the way to IBM MQ, which has 24 bytes for them (B-125). For bridges; nothing here ever cuts an id.

Belongs here: the mapping. Does not belong here: the way back, where an id is the hexadecimal text of MQ's bytes (`uow.topics.headers`).
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

MQ_BYTES: Final = 24
"""Length of a `GroupId` of MQ."""
_HEX: Final = frozenset("0123456789abcdef")


def mq_group_id(group_id: str) -> bytes:
    """The `GroupId` of MQ for a group id: always 24 bytes, and others for another id (B-125).

    - The hexadecimal text of 24 bytes, in small letters, is an id that came from MQ (`accept_aliases = ["mq"]`): those bytes.
    - An id of at most 24 bytes: its UTF-8 bytes, and zeros behind them, as MQ pads them itself.
    - A longer one, and one that ends with a zero byte: the first 24 bytes of its SHA-256. The bridge puts the id itself into the message property `uow-id`.

    Args:
        group_id: 1 to 255 bytes of UTF-8.

    Raises:
        ValueError: It is no group id.
    """
    raw = group_id.encode()
    if not 1 <= len(raw) <= 255:
        raise ValueError(f"a group id has 1 to 255 bytes, not {len(raw)}")
    if len(group_id) == 2 * MQ_BYTES and _HEX.issuperset(group_id) and group_id.strip("0"):
        return bytes.fromhex(group_id)
    if len(raw) <= MQ_BYTES and not raw.endswith(b"\0"):
        return raw.ljust(MQ_BYTES, b"\0")
    return sha256(raw).digest()[:MQ_BYTES]
