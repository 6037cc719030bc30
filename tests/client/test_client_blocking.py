"""A partition that stands at a record: how long, and the text beside its committed offset (S-12, S-14)."""

from __future__ import annotations

import pytest

from uow.client.blocking import CAUSE_CHARS, RETRY_S, Block, blocked_again, read_block, write_block
from uow.client.deliveries import read_steps
from uow.client.ownership import Ownership


def test_waits_grow_with_each_failure_and_begin_anew_at_another_record() -> None:
    block, waits = None, []
    for _ in range(7):
        block = blocked_again(block, 5, "boom", True, 1_000, 50.0)
        waits.append(block.retry_at - 50.0)
    assert waits == [*RETRY_S, RETRY_S[-1], RETRY_S[-1]]
    assert block is not None
    assert (block.failures, block.since) == (7, 1_000)
    assert blocked_again(block, 6, "boom", True, 2_000, 50.0) == Block(6, 2_000, 1, True, "boom", 51.0)


@pytest.mark.parametrize("cause", ["", "boom", "a|b;c d%41\n\x00", "ü€😀" * 200])
def test_text_beside_an_offset_reads_back_and_fits_the_broker(cause: str) -> None:
    block = blocked_again(None, 17, cause, False, 1_000, 50.0)
    text = write_block(block)
    assert len(text) < 4_000
    assert read_block(text, 17) == Block(17, 1_000, 1, False, cause[:CAUSE_CHARS])
    assert read_block(text, 18) is None, "it was done since"


@pytest.mark.parametrize(
    "text", ["", "x", "b2;1;1;1;1;x", "b1;1;1;2;1;x", "b1;-1;1;1;1;x", "b1;1;1;1;1;a b", "b1;" + "9" * 20 + ";1;1;1;x"]
)
def test_any_other_text_is_no_block(text: str) -> None:
    assert read_block(text, 0) is None


def test_the_row_of_a_partition_carries_the_block_until_it_is_passed() -> None:
    ownership = Ownership(("d.units", 0), 5)
    ownership.deliveries.count(5)
    ownership.block = blocked_again(None, 5, "boom", True, 1_000, 50.0)
    row = ownership.row(5)
    steps, _, block = (row.metadata or "").partition("|")
    assert read_block(block, 5) is not None
    assert read_steps(row.metadata, 9) == read_steps(steps, 9) == ((5, 1),)
    assert ownership.row(6).metadata == ""
    ownership.mark_acknowledged(6)
    assert ownership.block is None
