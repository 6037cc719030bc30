"""Group ids in the 24 bytes of IBM MQ (B-125)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import uow
from uow.topics.headers import ID, Reading
from uow.topics.mq_ids import mq_group_id
from uow.topics.policies import AliasFamily


def test_ids_that_differ_behind_24_bytes_are_two_groups_b125() -> None:
    one, other = ("order-of-the-first-customer-" + each for each in ("01", "02"))
    assert one[:24] == other[:24]
    assert len({mq_group_id(one), mq_group_id(other)}) == 2


def test_a_short_id_stays_readable_b125() -> None:
    assert mq_group_id("order-7") == b"order-7" + bytes(17)
    assert mq_group_id("x" * 24) == b"x" * 24


@given(st.binary(min_size=24, max_size=24).filter(any))
def test_an_id_that_came_from_mq_goes_back_as_it_was_b125(raw: bytes) -> None:
    (came,) = Reading([AliasFamily.MQ]).properties([("mq-group-id", raw.hex().upper().encode())])[ID]
    assert came is not None
    assert mq_group_id(came.decode()) == raw


@given(st.text(min_size=1, max_size=63), st.text(min_size=1, max_size=63))
def test_two_ids_are_two_group_ids_of_mq_and_none_is_the_empty_one_b125(one: str, other: str) -> None:
    assert (mq_group_id(one) == mq_group_id(other)) == (one == other)
    assert len(mq_group_id(one)) == 24
    assert any(mq_group_id(one)), "MQGI_NONE: no group at all"
    assert len({mq_group_id(one), mq_group_id(f"{one}\0")}) == 2


@pytest.mark.parametrize("group_id", ["", "é" * 128])
def test_what_is_no_group_id_is_none_of_mq_either_b125(group_id: str) -> None:
    with pytest.raises(ValueError, match="1 to 255 bytes"):
        uow.mq_group_id(group_id)
