"""The partition of a key by murmur2, as in Java's default partitioner (W-104, W-109).

Belongs here: the hash and the rule. Does not belong here: who sends a record on (`uow.processor.engine`), or the
producers' own setting (`partitioner=murmur2_random`, which gives the same numbers).
"""

from __future__ import annotations

from struct import unpack_from

_MASK = 0xFFFFFFFF
_M = 0x5BD1E995
_SEED = 0x9747B28C


def murmur2(data: bytes) -> int:
    """Kafka's 32-bit murmur2 of `data`, unsigned.

    Java shows the same bits as a signed number: `murmur2(b"21") == -973932308 % 2**32`.

    Args:
        data: The serialised key.

    Returns:
        0 to 4294967295.
    """
    mask, m = _MASK, _M
    length = len(data)
    h = _SEED ^ length
    words = length >> 2
    # Multiplication and exclusive or carry nothing from high bits to low ones, so one mask a word is enough.
    for k in unpack_from(f"<{words}I", data):
        k = k * m & mask
        h = (h * m ^ (k ^ k >> 24) * m) & mask
    if length & 3:
        h = (h ^ int.from_bytes(data[words << 2 :], "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


def partition_for(key: bytes, count: int) -> int:
    """The partition of `key` among `count` partitions (W-104).

    Args:
        key: Raw key bytes; for a component the UTF-8 bytes of the group id (W-109).
        count: Partitions of the topic, at least 1.

    Returns:
        0 to count - 1: what Java's default partitioner and librdkafka's `murmur2_random` choose for a key that is not
        null.
    """
    return (murmur2(key) & 0x7FFFFFFF) % count
