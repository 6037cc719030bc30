"""The partitioner agrees with Java's (W-104, W-109)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uow.topics.partitioner import murmur2, partition_for

# From Kafka's own UtilsTest.testMurmur2.
JAVA = [
    (b"21", -973932308),
    (b"foobar", -790332482),
    (b"a-little-bit-long-string", -985981536),
    (b"a-little-bit-longer-string", -1486304829),
    (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    (b"abc", 479470107),
]


def signed(value: int) -> int:
    return value - 2**32 if value >= 2**31 else value


@pytest.mark.parametrize(("key", "hashed"), JAVA)
def test_murmur2_gives_javas_golden_vectors(key: bytes, hashed: int) -> None:
    """W-104."""
    assert signed(murmur2(key)) == hashed


@pytest.mark.parametrize(("key", "hashed"), JAVA)
def test_partition_is_the_positive_hash_modulo_the_count(key: bytes, hashed: int) -> None:
    """W-104: Java's toPositive clears the sign bit, it does not negate."""
    for count in (1, 3, 4, 12, 1000):
        assert partition_for(key, count) == (hashed & 0x7FFFFFFF) % count


def slow_murmur2(data: bytes) -> int:
    """Line by line after Java, with every int masked at once."""

    def i32(value: int) -> int:
        return value & 0xFFFFFFFF

    length, m, r = len(data), 0x5BD1E995, 24
    h = i32(0x9747B28C ^ length)
    for i in range(length // 4):
        at = i * 4
        k = data[at] + (data[at + 1] << 8) + (data[at + 2] << 16) + (data[at + 3] << 24)
        k = i32(k * m)
        k ^= k >> r
        k = i32(k * m)
        h = i32(h * m)
        h ^= k
    tail = length & ~3
    if length % 4 == 3:
        h ^= data[tail + 2] << 16
    if length % 4 >= 2:
        h ^= data[tail + 1] << 8
    if length % 4 >= 1:
        h ^= data[tail]
        h = i32(h * m)
    h ^= h >> 13
    h = i32(h * m)
    return h ^ (h >> 15)


@given(st.binary(max_size=300))
def test_murmur2_equals_a_slow_reference(data: bytes) -> None:
    """W-104."""
    assert murmur2(data) == slow_murmur2(data)


@given(st.binary(max_size=64), st.integers(1, 5000))
def test_partition_is_in_range(key: bytes, count: int) -> None:
    assert 0 <= partition_for(key, count) < count
