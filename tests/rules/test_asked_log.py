"""Commands about records at which inputs stand, read from `D.commands` by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import confluent_kafka as ck
import pytest

from tests.fake_record import FakeRecord
from uow.processor.engine.ports import Tp
from uow.processor.kafka.asked_log import AGAIN_S, KafkaAskedLog
from uow.topics.commands import Command, CommandReader, RecordPlace, Verb, command_headers
from uow.topics.partitioner import partition_for
from uow.topics.policies import DestinationPolicy

COMMANDS = "supply.commands"
READER = CommandReader("supply", DestinationPolicy())


class Commands:
    """`D.commands`, of which a consumer reads the partitions that it is assigned, from the start.

    Attributes:
        count: How many partitions it has.
        leaderless: Partitions without a leader.
        strange: Partitions for which there is an error instead of an offset.
        questions: How often brokers were asked something, each time for a round trip.
    """

    def __init__(self) -> None:
        self.count = 1
        self.leaderless, self.strange, self.questions = set[int](), set[int](), 0
        self.records: dict[int, list[FakeRecord]] = {}
        self.assigned: list[int] = []
        self._read: list[FakeRecord] = []

    def tell(self, place: RecordPlace) -> None:
        """What `uow set-aside` sends, to the partition that it has by now."""
        partition = partition_for(place.key, self.count)
        command = Command(f"{place}".encode(), Verb.SET_ASIDE, b"", "why", source=f"{place}")
        log = self.records.setdefault(partition, [])
        log.append(FakeRecord(len(log), command_headers(command), b"", tp=Tp(COMMANDS, partition)))

    def list_topics(self, topic: str, timeout: float) -> Any:
        self.questions += 1
        leaders = {number: SimpleNamespace(leader=-(number in self.leaderless)) for number in range(self.count)}
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions=leaders)})

    def get_watermark_offsets(self, tp: Any, timeout: float) -> tuple[int, int]:
        self._ask([tp])
        return 0, len(self.records.get(tp.partition, ()))

    def offsets_for_times(self, asked: list[Any], timeout: float) -> list[Any]:
        """As the library: one partition without a leader, and nothing is known of any."""
        self._ask(asked)
        errors = {each.partition: ck.KafkaError(ck.KafkaError._UNKNOWN_PARTITION) for each in asked}
        return [
            SimpleNamespace(
                topic=each.topic,
                partition=each.partition,
                offset=0 if self.records.get(each.partition) else -1,
                error=errors[each.partition] if each.partition in self.strange else None,
            )
            for each in asked
        ]

    def _ask(self, asked: list[Any]) -> None:
        self.questions += 1
        if any(each.partition in self.leaderless for each in asked):
            raise ck.KafkaException(ck.KafkaError(ck.KafkaError._TIMED_OUT))

    def assign(self, begins: list[Any]) -> None:
        self.assigned = [each.partition for each in begins]
        self._read = []

    def consume(self, count: int, timeout: float) -> list[FakeRecord]:
        all_of = [record for each in self.assigned for record in self.records.get(each, ())]
        new = [record for record in all_of if record not in self._read]
        self._read += new
        return new

    def close(self) -> None: ...


def moved(partitions: int) -> RecordPlace:
    """A record whose command is elsewhere once there are so many partitions."""
    places = (RecordPlace("events", number, 3) for number in range(100))
    return next(each for each in places if partition_for(each.key, partitions))


@pytest.mark.parametrize("is_told_before", [True, False])
def test_a_command_is_found_though_the_topic_has_grown_meanwhile(is_told_before: bool) -> None:
    """Also one from before: it stands where there were fewer partitions."""
    log, now = Commands(), [0.0]
    asked = KafkaAskedLog({"supply": (COMMANDS, READER)}, lambda: log, lambda: now[0])
    place = moved(4)
    assert asked.look({place: 0}) == {place: []}
    if is_told_before:
        log.tell(place)
    log.count = 4
    if not is_told_before:
        log.tell(place)
    now[0] += AGAIN_S
    (found,) = asked.look({place: 0})[place]
    assert (found.destination, found.partition) == ("supply", 0 if is_told_before else partition_for(place.key, 4))
    now[0] += AGAIN_S
    assert len(asked.look({place: 0})[place]) == 1, "told once"


@pytest.mark.parametrize("partitions", range(1, 7))
def test_a_command_from_before_the_topic_grew_is_found_by_a_router_that_starts_afterwards(partitions: int) -> None:
    log, place = Commands(), moved(7)
    log.count = partitions
    log.tell(place)
    log.count = 7
    (found,) = KafkaAskedLog({"supply": (COMMANDS, READER)}, lambda: log).look({place: 0})[place]
    assert found.partition == partition_for(place.key, partitions)


def elsewhere(log: Commands, place: RecordPlace) -> list[int]:
    """Partitions where a command about this record was when there were fewer."""
    now = partition_for(place.key, log.count)
    return sorted({partition_for(place.key, count) for count in range(1, log.count)} - {now})


def test_a_look_asks_brokers_little_however_many_partitions_and_destinations_there_are() -> None:
    """Inputs that are not blocked wait for each answer."""
    log, now, destinations = Commands(), [0.0], 10
    log.count, place = 256, moved(256)
    asked = KafkaAskedLog(
        {f"d{n}": (f"d{n}.commands", READER) for n in range(destinations)}, lambda: log, lambda: now[0]
    )
    assert asked.look({place: 0}) == {place: []}
    assert len(elsewhere(log, place)) > 50
    assert log.questions <= 2 * destinations + 2, "the partitions and the end of each topic, and all times at once"
    assert len(log.assigned) == destinations, "nothing of empty logs is read"
    before = log.questions
    now[0] += AGAIN_S
    asked.look({place: 0})
    assert log.questions == before + 1


def test_a_partition_without_a_leader_keeps_no_command_elsewhere_from_being_heard_and_is_read_once_it_has_one() -> None:
    log, now, place = Commands(), [0.0], moved(7)
    log.count = next(n for n in range(1, 7) if partition_for(place.key, n) != partition_for(place.key, 7))
    log.tell(place)
    log.count = 7
    other = next(each for each in (RecordPlace("events", n, 3) for n in range(100)) if partition_for(each.key, 7) == 6)
    log.tell(other)
    log.leaderless = {*range(6)}
    asked = KafkaAskedLog({"supply": (COMMANDS, READER)}, lambda: log, lambda: now[0])
    assert [len(each) for each in asked.look({place: 0, other: 0}).values()] == [0, 1]
    log.leaderless = set()
    now[0] += AGAIN_S
    assert [len(each) for each in asked.look({place: 0, other: 0}).values()] == [1, 1]


@pytest.mark.parametrize("trouble", ["strange", "all"])
def test_partitions_that_cannot_be_asked_are_left_out_and_asked_again(trouble: str) -> None:
    log, now, place = Commands(), [0.0], moved(7)
    log.count = 7
    log.tell(place)
    bad = elsewhere(log, place)
    real = log.offsets_for_times

    def failing(asked: list[Any], timeout: float) -> list[Any]:
        if any(each.partition in bad for each in asked):
            raise ck.KafkaException(ck.KafkaError(ck.KafkaError._TIMED_OUT))
        return real(asked, timeout)

    if trouble == "strange":
        log.strange = {*bad}
    else:
        log.offsets_for_times = failing  # type: ignore[method-assign]
    asked = KafkaAskedLog({"supply": (COMMANDS, READER)}, lambda: log, lambda: now[0])
    assert len(asked.look({place: 0})[place]) == 1
    log.strange, log.offsets_for_times = set(), real  # type: ignore[method-assign]
    log.records.setdefault(bad[-1], []).append(log.records[partition_for(place.key, 7)][0])
    now[0] += AGAIN_S
    assert len(asked.look({place: 0})[place]) == 2
