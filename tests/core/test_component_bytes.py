"""Components by hand: whatever the bytes are, reading them gives a component or a `DecodeError`, and never reads past the end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.script import T0
from uow.processor.core.changes import Closed
from uow.processor.core.closed import ClosedMemory
from uow.processor.core.group import Group
from uow.processor.core.virtual_message import UnitMaker
from uow.schemas import component
from uow.schemas.component import (
    BLOCK_BITS,
    Cursor,
    block,
    decode_component,
    encode_component,
    long,
)
from uow.schemas.error_classes import DecodeError
from uow.schemas.records import (
    ComponentRecord,
    Range,
    Reason,
    Reference,
    Source,
    UnitOutcome,
)
from uow.topics.headers import Reading

ONE = ComponentRecord(1, True, "m", b"k", b"v", (("h", None), ("h", b"x")), T0, Source("t", 0, 7), Reference(1, 2))


@given(st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-1, 63, 64, 2**13, 2**20, 2**27, 2**41, 2**62]))
def test_every_number_of_64_bits_comes_back(number: int) -> None:
    cursor = Cursor(long(number))
    assert cursor.long() == number
    assert cursor.at == len(cursor.data)


@given(st.integers(0, 2**63 - 1) | st.sampled_from([0, 2**13 - 1, 2**13, 2**27 - 1, 2**27, 2**41]))
def test_a_number_is_the_same_from_its_block(number: int) -> None:
    beginnings, end = block(number)
    assert beginnings[number & (1 << BLOCK_BITS) - 1] + end == long(number)


@pytest.mark.parametrize("cut", range(len(encode_component(ONE))))
def test_component_cut_anywhere_is_a_decode_error(cut: int) -> None:
    with pytest.raises(DecodeError):
        decode_component(encode_component(ONE)[:cut])


@given(st.integers(0, len(encode_component(ONE)) - 1), st.integers(0, 255))
def test_component_with_one_byte_altered_is_read_or_refused(at: int, byte: int) -> None:
    body = bytearray(encode_component(ONE))
    body[at] = byte
    try:
        decode_component(bytes(body))
    except DecodeError:
        return


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"\xff" * 11, "more than ten bytes"),
        (b"\x02\x02", "neither 0 nor 1"),
        (b"\x02\x01\x04", "no branch 2"),
        (b"\x02\x01\x02\x02\xff", "no UTF-8"),
        (b"\x02\x01\x00\x00\x00\x01", "claims -1 items"),
        (b"\x02\x01\x00\x00\x00" + long(10**9), "claims 1000000000 items"),
        (b"\x02\x01\x00\x02" + long(10**9), "claims 1000000000 bytes"),
        (encode_component(ONE) + b"\x00", "1 bytes follow"),
    ],
)
def test_bytes_that_are_no_component_say_why(body: bytes, why: str) -> None:
    with pytest.raises(DecodeError, match=why):
        decode_component(body)


def test_times_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(component, "_MOMENTS", dict.fromkeys(range(-70_000, 0), b""))
    assert component.moment(T0) == long(T0) == component.moment(T0)
    assert len(component._MOMENTS) == 1


def test_group_that_holds_nothing_lacks_everything() -> None:
    group = Group(b"a", 1, T0)
    assert group.held_ranges() == ()
    assert group.missing() == (Range(1, 2_147_483_647),)
    assert UnitMaker("D", "D.components", 0, Reading()).tail(group).component_id is None


def test_correction_of_a_closed_group_keeps_its_place_and_meets_no_other_w115_w19() -> None:
    def closed(name: bytes, outcome: UnitOutcome = UnitOutcome.COMPLETE) -> Closed:
        return Closed(name, 1, outcome, Reason.END, 1, 1, T0)

    memory = ClosedMemory(10**9, 2)
    first, second = closed(b"a"), closed(b"b")
    memory.add(first)
    memory.add(second)
    memory.replace(first, failed := closed(b"a", UnitOutcome.FAILED))
    assert memory.get(b"a") is failed
    memory.add(closed(b"c"))
    memory.trim(T0)
    assert set(memory.by_id) == {b"b", b"c"}, "its place in line stayed the oldest"
    memory.replace(first, failed)
    assert memory.get(b"a") is None, "what is forgotten stays forgotten"
