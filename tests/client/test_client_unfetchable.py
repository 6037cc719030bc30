"""Batches that the library never hands over: a reader finds where it can go on, and loses nothing behind them."""

from __future__ import annotations

import pytest
from fake_handles import FakeBroker, consumed
from hypothesis import given
from hypothesis import strategies as st
from test_client_readers import ERRORS, UNITS, a_unit, record_of

import uow
from uow.client.unfetchable import Gap


@given(st.integers(0, 50), st.integers(1, 3000), st.integers(0, 50))
def test_the_end_of_a_gap_is_found_exactly_and_soon(first: int, length: int, behind: int) -> None:
    gap, tries = Gap(first, first + length + behind, "by script"), 0
    gap.learn(can_be_read=False)
    while not gap.is_known:
        gap.learn(can_be_read=not first <= gap.at < first + length)
        tries += 1
    assert gap.at == first + length
    assert tries <= 2 * length.bit_length() + 2


@pytest.fixture
def fake() -> FakeBroker:
    fake = FakeBroker()
    fake.topics = {UNITS: 1, ERRORS: 1, "next": 1}
    fake.records = [record_of(a_unit(f"u-{offset}"), offset) for offset in range(12)]
    return fake


@pytest.mark.parametrize("gap", [range(1), range(5), range(3, 4), range(3, 11)])
def test_a_reader_goes_on_behind_what_cannot_be_fetched(
    fake: FakeBroker, connection: uow.Connection, gap: range
) -> None:
    fake.unfetchable[UNITS, 0] = gap
    reader = connection.units("megazon", group="g")
    for offset in (each for each in range(12) if each not in gap):
        unit = next(reader)
        assert unit.offset == offset
        unit.acknowledge()
    (moved,) = fake.visible
    assert (moved.key, moved.value, moved.marks["uow-error-case"]) == (None, None, b"batch")
    assert moved.marks["uow-source"] == f"megazon.units/0/{gap.start}".encode()
    assert f"offsets {gap.start} to {gap.stop - 1} cannot be fetched".encode() in moved.marks["uow-error-text"]
    assert reader.given_up == {"failed": 1}


def test_a_leader_that_moves_makes_no_gap_longer(fake: FakeBroker, connection: uow.Connection) -> None:
    """The library then says that the partition begins at its end: all of it would be given up."""
    fake.unfetchable[UNITS, 0] = range(3, 5)
    reader = connection.units("megazon", group="g")
    for offset in range(3):
        assert next(reader).offset == offset
    fake.refused_starts = 2
    units = [reader.receive(0) for _ in range(30)]
    assert [unit.offset for unit in units if unit is not None] == list(range(5, 12))


def test_what_cannot_be_fetched_at_the_end_waits_for_what_comes_behind_it(
    fake: FakeBroker, connection: uow.Connection
) -> None:
    fake.unfetchable[UNITS, 0] = range(10, 12)
    reader = connection.units("megazon", group="g")
    for _ in range(10):
        next(reader).acknowledge()
    for _ in range(5):
        assert reader.receive(0) is None
    assert fake.committed[UNITS, 0][0] == 12
    fake.records.append(record_of(a_unit("late"), 12))
    assert next(reader).id == "late"


def test_a_hop_goes_on_as_well(fake: FakeBroker, connection: uow.Connection) -> None:
    fake.topics["t"] = 1
    fake.records = [consumed(b"%d" % offset, offset=offset) for offset in range(6)]
    fake.unfetchable["t", 0] = range(1, 4)
    reader = connection.messages("t", group="g")
    for offset in (0, 4, 5):
        connection.forward(next(reader), to="next")
        assert fake.committed["t", 0][0] == offset + 1
    assert [sent.value for sent in fake.visible] == [b"0", b"4", b"5"]
    assert reader.given_up == {"failed": 1}
