"""Values of `__transaction_state`, in both versions that brokers write, and bytes of any kind."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uow.ops.open_transactions import OpenTransaction, read_state

KEY = b"\0\0" + struct.pack(">h", 4) + b"mine"
TIMES = struct.pack(">qq", 2_000, 1_000)


def classic(status: int) -> bytes:
    places = struct.pack(">i", 1) + struct.pack(">h", 3) + b"top" + struct.pack(">iii", 2, 0, 7)
    return struct.pack(">hqhib", 0, 42, 3, 10_000, status) + places + TIMES


def flexible(status: int) -> bytes:
    places = b"\x02" + b"\x04top" + b"\x03" + struct.pack(">ii", 0, 7) + b"\0"
    tags = b"\x01" + b"\x00" + b"\x08" + struct.pack(">q", 41)
    return struct.pack(">hqhib", 1, 42, 3, 10_000, status) + places + TIMES + tags


@pytest.mark.parametrize("value", [classic, flexible])
@pytest.mark.parametrize("status", range(8))
def test_an_open_transaction_is_read_in_both_versions(value: object, status: int) -> None:
    assert callable(value)
    found = OpenTransaction("mine", 42, 1_000, frozenset({("top", 0), ("top", 7)}))
    assert read_state(KEY, value(status)) == (found if status in (1, 2, 3) else None)


def test_other_versions_are_passed_over() -> None:
    assert read_state(KEY, b"\0\2" + classic(1)[2:]) is None
    assert read_state(b"\0\1" + KEY[2:], classic(1)) is None


@given(st.binary(max_size=60), st.binary(max_size=200), st.sampled_from([b"", b"\0\0", b"\0\1"]))
def test_no_bytes_are_too_strange(key: bytes, value: bytes, version: bytes) -> None:
    found = read_state(b"\0\0" + key, version + value)
    assert found is None or isinstance(found, OpenTransaction)
