"""Copies of records, and offsets of consumers in them, without a broker."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pytest

from tests.fake_record import UNREADABLE_HEADERS, FakeRecord
from uow.client.deliveries import write_steps
from uow.ops.consumer_groups import translated, wanted
from uow.ops.mirror import Copy, Place, Progress, copies, matched
from uow.ops.sole_member import MoveError
from uow.processor.engine.ports import Committed, Tp

THERE = Tp("D.units", 1)


class Hidden:
    """Port `Contents`: the records that say so have hidden headers."""

    def __init__(self, records: Sequence[FakeRecord]) -> None:
        self._hidden = {record.offset_ for record in records if record.is_hidden}

    def hidden(self, tp: Tp, offsets: Sequence[int]) -> Collection[int]:
        return self._hidden & set(offsets)

    def read(self, components: Any) -> Any:
        raise AssertionError(components)

    def close(self) -> None: ...


def copied(*offsets: int) -> list[Copy]:
    """Records with the contents 0, 1, 2 and so on, at these offsets."""
    return [Copy(offset, 5, (b"k", b"%d" % number, [])) for number, offset in enumerate(offsets)]


def test_a_copy_has_all_of_a_record_and_one_that_cannot_be_read_has_none() -> None:
    records = [
        FakeRecord(3, [("a", b"1"), ("a", None)], b"v", b"k", at=7),
        FakeRecord(5, None, None, None, at=8),
        FakeRecord(6, None, b"v", b"k", is_hidden=True),
        FakeRecord(9, UNREADABLE_HEADERS, b"v", b"k"),
    ]
    made = copies(THERE, records, Hidden(records))
    assert made[:2] == [Copy(3, 7, (b"k", b"v", [("a", b"1"), ("a", None)])), Copy(5, 8, (None, None, []))]
    assert [(each.offset, each.content) for each in made[2:]] == [(6, None), (9, None)]


def test_an_offset_lies_at_the_copy_of_the_first_record_that_is_not_before_it() -> None:
    """Markers and aborted records leave gaps, which are others on both sides."""
    found = matched(THERE, copied(10, 11, 14, 20), copied(0, 2, 3, 7), 9, [10, 11, 12, 14, 15, 20, 21, 99])
    assert found == {
        10: Place(0, 4),
        11: Place(2, 3),
        12: Place(3, 2),
        14: Place(3, 2),
        15: Place(7, 1),
        20: Place(7, 1),
        21: Place(9, 0),
        99: Place(9, 0),
    }
    assert matched(THERE, (), (), 4, [7]) == {7: Place(4, 0)}


@pytest.mark.parametrize(
    "written", [copied(0, 1), copied(0, 1, 2, 3), copied(0, 1, 2)[::-1]], ids=["less", "more", "other"]
)
def test_a_copy_that_differs_is_no_copy(written: list[Copy]) -> None:
    with pytest.raises(MoveError, match=r"D\.units/1 is not the copy"):
        matched(THERE, copied(4, 5, 6), written, 9, [5])


def test_counts_of_deliveries_go_along_with_a_position() -> None:
    committed = Committed(11, write_steps(((2, 9), (11, 3), (15, 1))))
    places = matched(THERE, copied(10, 11, 14, 20), copied(0, 2, 3, 7), 9, wanted(committed))
    assert translated(committed, places) == Committed(2, write_steps(((2, 3), (6, 1))))
    assert translated(Committed(14, "a text of its own"), matched(THERE, copied(14), copied(5), 6, [14])) == Committed(
        5, "a text of its own"
    )


def test_progress_is_read_as_it_was_written_and_anything_else_is_none() -> None:
    progress = Progress("topic-id", 12, 4, 2, 7, 1)
    assert Progress.of(Committed(12, progress.text)) == progress
    assert Progress.of(Committed(12, "")) is None
    assert Progress.of(Committed(None, progress.text)) is None
