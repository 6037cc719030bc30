"""Units of shape `consecutive` through a reader: checked, whole, and acknowledged at their ends (W-12, W-14, W-116)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from fake_handles import FakeBroker, consumed

import uow
from tests.core.script import Step, c, plain, story
from tests.fake_record import FakeRecord
from uow.processor.engine.ports import Output
from uow.topics.policies import Shape

UNITS = "D.units"


@pytest.fixture
def fake() -> FakeBroker:
    fake = FakeBroker()
    fake.topics = {UNITS: 2, "D.errors": 2}
    return fake


def written(*steps: Step, shape: Shape = Shape.CONSECUTIVE) -> list[Output]:
    return [output for output in story(*steps, shape=shape).outputs if output.topic == UNITS]


def on_topic(outputs: Sequence[Output], first: int = 0, partition: int = 0) -> list[FakeRecord]:
    return [
        consumed(output.value, key=output.key, headers=output.headers, topic=UNITS, partition=partition, offset=offset)
        for offset, output in enumerate(outputs, first)
    ]


def of(id: str, size: int = 3) -> list[Step]:
    return [c(number, id=id, end=number == size, user=[("mine", id)]) for number in range(1, size + 1)]


def reasons(fake: FakeBroker) -> list[tuple[bytes, bytes]]:
    """Place and reason of each record that was given up."""
    return [(sent.marks["uow-pos"], sent.marks["uow-error-text"].partition(b" of unit")[0]) for sent in fake.visible]


def ids(reader: uow.Reader[uow.ReceivedUnit], count: int) -> list[str]:
    return [unit.id for _ in range(count) if (unit := reader.receive(0)) is not None]


def test_a_run_is_one_unit_like_any_other_w116(fake: FakeBroker, connection: uow.Connection) -> None:
    fake.records = on_topic(written(*of("a"), plain(), *of("b", 1)))
    reader = connection.units("D", group="g")
    first, second = next(reader), next(reader)
    assert (first.id, first.outcome, first.reason, first.destination) == ("a", "complete", "end", "D")
    assert (first.offset, first.last_offset, first.delivery_count) == (0, 2, 1)
    assert [component.seq for component in first.components] == [1, 2, 3]
    assert [component.end for component in first.components] == [False, False, True]
    assert {component.header("mine") for component in first.components} == {"a"}
    assert first.components[0].text() == "value b'1'"
    assert second.id == "b"


def test_acknowledging_commits_behind_the_last_record_w14(fake: FakeBroker, connection: uow.Connection) -> None:
    fake.records = on_topic(written(*of("a"), *of("b")))
    reader = connection.units("D", group="g")
    next(reader).acknowledge()
    assert fake.committed[UNITS, 0][0] == 3
    next(reader).acknowledge()
    assert fake.committed[UNITS, 0][0] == 6


def test_a_reader_that_ends_inside_a_unit_leaves_all_of_it_to_the_next_one_w14(fake: FakeBroker) -> None:
    """It took two of three records, and the third was not visible yet."""
    fake.records = on_topic(written(*of("a"), *of("b")))
    waiting = fake.records.pop()
    with fake.connect() as connection, connection.units("D", group="g") as reader:
        next(reader).acknowledge()
        assert reader.receive(0) is None
    assert fake.committed[UNITS, 0][0] == 3
    fake.records.append(waiting)
    with fake.connect() as connection:
        unit = next(connection.units("D", group="g"))
        assert (unit.id, len(unit.components), unit.delivery_count) == ("b", 3, 1)


def test_rolled_back_runs_come_again_whole_with_a_higher_count_w52(
    fake: FakeBroker, connection: uow.Connection
) -> None:
    fake.records = on_topic(written(*of("a"), *of("b")))
    cut, fake.records = fake.records[4:], fake.records[:4]
    reader = connection.units("D", group="g")
    assert ids(reader, 2) == ["a"]  # and one record of b
    reader.roll_back()
    fake.records += cut
    again, other = next(reader), next(reader)
    assert (again.id, again.delivery_count, other.id, len(other.components)) == ("a", 2, "b", 3)


def test_runs_of_several_partitions_come_interleaved_and_stay_apart_w12(
    fake: FakeBroker, connection: uow.Connection
) -> None:
    one, other = on_topic(written(*of("a"))), on_topic(written(*of("b")), partition=1)
    fake.records = [record for pair in zip(one, other, strict=True) for record in pair]
    assert ids(connection.units("D", group="g"), 2) == ["a", "b"]


@pytest.mark.parametrize("foreign", [*written(plain("foreign")), *written(*of("other"), shape=Shape.ENVELOPE)])
def test_a_record_inside_a_run_is_told_and_read_for_what_it_is_w12(
    fake: FakeBroker, connection: uow.Connection, foreign: Output
) -> None:
    """A foreign writer got in: the unit is not handed out, what it left over is passed over, reading goes on."""
    run = written(*of("a"))
    fake.records = on_topic([*run[:1], foreign, *run[1:], *written(*of("b"))])
    reader = connection.units("D", group="g", include_plain=True)
    inside, last = next(reader), next(reader)
    (moved,) = fake.visible
    assert (moved.topic(), moved.marks["uow-pos"], moved.marks["uow-source"]) == ("D.errors", b"1/3", b"D.units/0/0")
    assert b"where place 2/3 of unit" in moved.marks["uow-error-text"]
    assert inside.offset == 1
    assert last.id == "b"
    last.acknowledge()
    assert fake.committed[UNITS, 0][0] == 7


def test_a_gap_in_a_run_is_told_once_w12(fake: FakeBroker, connection: uow.Connection) -> None:
    run = written(*of("a", 5))
    fake.records = on_topic([*run[:1], *run[2:], *written(*of("b"))])
    reader = connection.units("D", group="g")
    assert next(reader).id == "b"
    assert reasons(fake) == [(b"1/5", b"place 3/5 of it where place 2/5")]


def test_a_run_whose_beginning_is_gone_is_told_once_w12(fake: FakeBroker, connection: uow.Connection) -> None:
    fake.records = on_topic([*written(*of("a", 4))[2:], *written(*of("b"))])
    reader = connection.units("D", group="g")
    assert next(reader).id == "b"
    assert reasons(fake) == [(b"3/4", b"place 3/4 of it where place 1/4")]


def test_a_run_that_begins_again_is_read_then_w12(fake: FakeBroker, connection: uow.Connection) -> None:
    run = written(*of("a"))
    fake.records = on_topic([*run[:2], *run])
    reader = connection.units("D", group="g")
    assert next(reader).offset == 2
    assert reasons(fake) == [(each, b"place 1/3 of it where place 3/3") for each in (b"1/3", b"2/3")]


def test_a_run_that_cannot_be_read_is_told_with_its_coordinates_w12(
    fake: FakeBroker, connection: uow.Connection
) -> None:
    run = written(*of("a"))
    broken = run[1]._replace(headers=[pair if pair[0] != "uow-pos" else ("uow-pos", b"x") for pair in run[1].headers])
    fake.records = on_topic([run[0], broken, run[2], *written(*of("b"))])
    reader = connection.units("D", group="g")
    assert next(reader).id == "b"
    assert reasons(fake) == [(each, b"b'x' is no place in a unit") for each in (b"1/3", b"x")]
    assert [sent.marks["uow-source"] for sent in fake.visible] == [b"D.units/0/0", b"D.units/0/1"]
