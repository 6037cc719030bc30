"""A partition that stands at a record: how long, and the text beside its committed offset (S-12, S-14)."""

from __future__ import annotations

import pytest

from uow.client.blocking import CAUSE_CHARS, RETRY_S, Block, blocked_again, read_block, write_block
from uow.client.deliveries import MAX_STEPS, Deliveries, read_steps
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


@pytest.mark.parametrize("cause", ["", "boom", "a|b;c d%41\n\x00", "ü" * CAUSE_CHARS, "\n" * 2 * CAUSE_CHARS])
def test_text_beside_an_offset_reads_back(cause: str) -> None:
    text = write_block(blocked_again(None, 17, cause, False, 1_000, 50.0))
    assert read_block(text, 17) == Block(17, 1_000, 1, False, cause[:CAUSE_CHARS])
    assert read_block(text, 18) is None, "it was done since"


@pytest.mark.parametrize("cause", ["\n" * CAUSE_CHARS, "€" * CAUSE_CHARS, "😀" * CAUSE_CHARS, "\ud800" * CAUSE_CHARS])
def test_the_longest_block_beside_the_most_deliveries_fits_the_broker(cause: str) -> None:
    far = 10**18
    steps = tuple((far + number, 999_999_999 - number) for number in range(MAX_STEPS))
    ownership = Ownership(
        ("d.units", 0), far, Deliveries(steps), block=blocked_again(None, far, cause, True, 10**13, 50.0)
    )
    text = ownership.row(far).metadata or ""
    assert len(text) <= 4_096, "offset.metadata.max.bytes: what is longer is refused, whenever it is tried"
    assert len(read_steps(text, 2 * far)) == MAX_STEPS
    block = read_block(text.partition("|")[2], far)
    assert block is not None
    assert block.cause[:150] == cause.replace("\ud800", "?")[:150]


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
