"""Units component by component: checked as they come, one partition at a time, in memory that does not grow with the unit (W-116)."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from itertools import islice
from random import Random

import pytest
from fake_handles import FakeBroker
from test_client_runs import UNITS, of, on_topic, written

import uow
from tests.core.script import plain
from uow import errors
from uow.topics.policies import Shape


@pytest.fixture
def fake() -> FakeBroker:
    fake = FakeBroker()
    fake.topics = {UNITS: 2, "D.errors": 2}
    return fake


@pytest.fixture
def reader(fake: FakeBroker) -> Iterator[uow.Reader[uow.StreamedUnit]]:
    with fake.connect() as connection:
        yield connection.stream("D", group="g")


def test_components_come_as_they_are_asked_for_w116(fake: FakeBroker, reader: uow.StreamReader) -> None:
    fake.records = on_topic(written(*of("a"), plain()))
    unit = next(reader)
    assert (unit.id, unit.size, unit.delivery_count, unit.missing) == ("a", 3, 1, ())
    taken = next(unit.components)
    assert (taken.seq, taken.header("mine")) == (1, "a")
    assert fake.consumers[0].positions[UNITS, 0] == 1
    assert [component.seq for component in unit.components] == [2, 3]
    unit.acknowledge()
    assert fake.committed[UNITS, 0][0] == 3
    assert reader.receive(0) is None


def test_an_envelope_streams_as_well_w208(fake: FakeBroker, reader: uow.StreamReader) -> None:
    fake.records = on_topic([*written(*of("a"), shape=Shape.ENVELOPE), *written(*of("b"))])
    units = []
    for _ in range(2):
        unit = next(reader)
        units.append((unit.id, [component.value for component in unit.components]))
        unit.acknowledge()
    values = [b"value b'%d'" % number for number in (1, 2, 3)]
    assert units == [("a", values), ("b", values)]
    assert fake.committed[UNITS, 0][0] == 4


def test_what_was_not_asked_for_is_read_over_before_the_next_unit_and_before_acknowledging_w14(
    fake: FakeBroker, reader: uow.StreamReader
) -> None:
    fake.records = on_topic(written(*of("a"), *of("b"), *of("c")))
    next(reader)
    second = next(reader)
    assert second.id == "b"
    second.acknowledge()
    assert fake.committed[UNITS, 0][0] == 6
    assert next(reader).id == "c"


def test_other_partitions_wait_after_one_record_each_and_lose_nothing_w116(
    fake: FakeBroker, reader: uow.StreamReader
) -> None:
    one, other = on_topic(written(*of("a"))), on_topic(written(*of("b"), *of("c")), partition=1)
    fake.records = [one[0], *other, *one[1:]]
    unit = next(reader)
    assert [component.seq for component in unit.components] == [1, 2, 3]
    assert fake.consumers[0].positions[UNITS, 1] == 1
    assert fake.consumers[0].paused == {(UNITS, 1)}
    for name in ("b", "c"):
        unit = next(reader)
        assert (unit.id, [component.seq for component in unit.components]) == (name, [1, 2, 3])
    assert fake.consumers[0].paused == set()


@pytest.mark.parametrize("seed", range(40))
def test_whatever_the_order_in_which_partitions_are_fetched_every_unit_streams_whole_w14_w116(seed: int) -> None:
    """Also where some units are left before their end, and one partition goes and comes back."""
    rnd = Random(seed)
    fake = FakeBroker()
    partitions = rnd.randint(2, 6)
    fake.topics = {UNITS: partitions, "D.errors": partitions}
    logs = [
        deque(
            on_topic(
                [each for n in range(rnd.randint(1, 6)) for each in written(*of(f"{p}-{n}", rnd.randint(1, 5)))],
                partition=p,
            )
        )
        for p in range(partitions)
    ]
    sent = Counter(record.key() for log in logs for record in log)
    while waiting := [log for log in logs if log]:
        log = rnd.choice(waiting)
        fake.records += [log.popleft() for _ in range(min(len(log), rnd.randint(1, 9)))]
    seen = Counter[str]()
    with fake.connect() as connection:
        reader = connection.stream("D", group="g")
        while (unit := reader.receive(0)) is not None:
            taken = [component.seq for component in islice(unit.components, rnd.choice([0, 1, 2, 99]))]
            assert taken == [*range(1, len(taken) + 1)]
            unit.acknowledge()
            seen[unit.id] += 1
    assert fake.visible == []
    assert seen == dict.fromkeys((key.decode() for key in sent if key), 1)


def test_a_partition_that_was_held_back_when_it_went_is_read_when_it_comes_back_w14(
    fake: FakeBroker, reader: uow.StreamReader
) -> None:
    """Librdkafka keeps in mind what was paused, over any number of assignments."""
    one, other = on_topic(written(*of("a"))), on_topic(written(*of("b")), partition=1)
    fake.records = [one[0], *other, *one[1:]]
    components = next(reader).components
    assert [next(components).seq, next(components).seq] == [1, 2]
    assert fake.consumers[0].paused == {(UNITS, 1)}
    for change in ("revoke", "assign"):
        fake.consumers[0].moved(change, 1, topic=UNITS)
    assert [component.seq for component in components] == [3]
    assert next(reader).id == "b"


def test_a_partition_that_went_and_came_back_while_a_unit_streams_is_read_in_order_behind_a_third_w14(
    fake: FakeBroker,
) -> None:
    """What was kept of it before it went must not let it go on beside what is kept of it now."""
    fake.topics = {UNITS: 3, "D.errors": 3}
    one, two, three = (on_topic(written(*of(name, 4)), partition=number) for number, name in enumerate("abc"))
    fake.records = [one[0], two[0], three[0], one[1], *two[1:], *one[2:], *three[1:]]
    with fake.connect() as connection:
        reader = connection.stream("D", group="g")
        components = next(reader).components
        assert [next(components).seq, next(components).seq] == [1, 2]
        for change in ("revoke", "assign"):
            fake.consumers[0].moved(change, 1, topic=UNITS)
        assert [component.seq for component in components] == [3, 4]
        seen = {}
        while (unit := reader.receive(0)) is not None:
            seen[unit.id] = [component.seq for component in unit.components]
            unit.acknowledge()
    assert seen == {"b": [1, 2, 3, 4], "c": [1, 2, 3, 4]}
    assert fake.visible == []


@pytest.mark.parametrize("taken", [0, 1, 2])
def test_a_unit_whose_handler_failed_in_the_middle_comes_again_whole_w14_s12(fake: FakeBroker, taken: int) -> None:
    fake.topics = {UNITS: 1, "D.errors": 1}
    fake.records = on_topic(written(*of("a"), *of("b")))
    seen: list[tuple[str, list[int]]] = []
    with fake.connect() as connection:
        reader = connection.stream("D", group="g")
        reader._consumption._clock = lambda: fake.now

        def handle(unit: uow.StreamedUnit) -> None:
            seqs = [component.seq for component in islice(unit.components, 99 if seen else taken)]
            seen.append((unit.id, seqs))
            if len(seen) == 1:
                fake.now += 60
                raise ValueError("once")
            if unit.id == "b":
                reader.stop()

        reader.run(handle)
    assert seen == [("a", [1, 2, 3][:taken]), ("a", [1, 2, 3]), ("b", [1, 2, 3])]
    assert fake.visible == []


def test_a_partition_whose_record_is_tried_again_stays_held_back_while_another_unit_streams_w116_s12(
    fake: FakeBroker,
) -> None:
    """It was let go on at every look until its record was acknowledged, so that its records piled up out of order."""
    one, two = (on_topic(written(*of(name, 6), *of(name * 2, 6)), partition=p) for p, name in enumerate("ab"))
    fake.records = [two[0], one[0], *(each for pair in zip(one[1:], two[1:], strict=True) for each in pair)]
    seen: list[str] = []
    with fake.connect() as connection:
        reader = connection.stream("D", group="g")
        reader._consumption._clock = lambda: fake.now

        def handle(unit: uow.StreamedUnit) -> None:
            seen.append(unit.id)
            if seen == ["b"]:
                raise ValueError("once")
            if unit.id == "a":
                fake.now += 60
            assert [component.seq for component in unit.components] == [1, 2, 3, 4, 5, 6]
            assert len(reader._stream.kept) <= 1
            if len(seen) == 5:
                reader.stop()

        reader.run(handle)
    assert sorted(seen) == ["a", "aa", "b", "b", "bb"]
    assert fake.visible == []


def test_a_kept_record_that_comes_again_is_handed_out_once(fake: FakeBroker, reader: uow.StreamReader) -> None:
    one, other = on_topic(written(*of("a"))), on_topic(written(*of("b")), partition=1)
    fake.records = [one[0], *other, *one[1:]]
    first = next(reader)
    assert len([*first.components]) == 3
    first.acknowledge()
    reader.roll_back()
    unit = next(reader)
    assert (unit.id, unit.offset, [component.seq for component in unit.components]) == ("b", 0, [1, 2, 3])
    assert reader.receive(0) is None


def test_a_broken_run_ends_its_components_and_cannot_be_acknowledged_w12(
    fake: FakeBroker, reader: uow.StreamReader
) -> None:
    run = written(*of("a", 4))
    fake.records = on_topic([*run[:2], *run[3:], *written(*of("b"))])
    unit = next(reader)
    with pytest.raises(errors.DecodeError, match="place 4/4 of it where place 3/4") as caught:
        list(unit.components)
    assert caught.value.offset == 2
    with pytest.raises(errors.DecodeError, match="place 4/4 of it where place 3/4"):
        unit.acknowledge()
    following = next(reader)
    assert following.id == "b"
    following.acknowledge()
    assert fake.committed[UNITS, 0][0] == 6


def test_a_broken_rest_that_nobody_asked_for_is_given_up_with_the_next_unit_w12(
    fake: FakeBroker, reader: uow.StreamReader
) -> None:
    run = written(*of("a"))
    fake.records = on_topic([*run[:1], *run[2:], *written(*of("b"))])
    next(reader)
    assert next(reader).id == "b"
    (moved,) = fake.visible
    assert b"place 3/3 of it where place 2/3" in moved.marks["uow-error-text"]


def test_a_unit_whose_partition_leaves_in_the_middle_ends_as_lost_w14(
    fake: FakeBroker, reader: uow.StreamReader
) -> None:
    fake.records = on_topic(written(*of("a")))
    unit = next(reader)
    next(unit.components)
    fake.consumers[0].moved("lost", 0, topic=UNITS)
    with pytest.raises(errors.LostServerError, match=r"D\.units/0/0 comes again"):
        list(unit.components)


@pytest.mark.parametrize("tells_end", [True, False])
def test_a_rest_that_does_not_come_is_not_waited_for_without_end(fake: FakeBroker, tells_end: bool) -> None:
    """Where the broker says that there is none the unit is broken; else a broker is away, and the unit comes again."""
    fake.records = on_topic(written(*of("a"))[:2])
    with fake.connect() as connection:
        reader = connection.stream("D", group="g")
        reader._stream._clock = lambda: fake.now
        fake.consumers[0].properties["enable.partition.eof"] = tells_end
        unit = next(reader)
        if tells_end:
            with pytest.raises(errors.DecodeError, match="the partition ends behind place 2/3"):
                list(unit.components)
            assert fake.visible[0].marks["uow-pos"] == b"1/3"
            fake.records += on_topic(written(*of("b")), first=2)
            assert next(reader).id == "b"
        else:
            with pytest.raises(errors.ReconnectTimeoutError, match="did not come within 30 s"):
                list(unit.components)
            assert next(reader).delivery_count == 2


def test_an_abandoned_stream_lets_its_successor_in(fake: FakeBroker) -> None:
    fake.records = on_topic(written(*of("a")))
    with fake.connect() as connection:
        unit = next(connection.stream("D", group="g"))
        next(unit.components)
        connection.stream("D", group="g")
        assert [consumer.closed for consumer in fake.readers_of(UNITS)] == [True, False]
