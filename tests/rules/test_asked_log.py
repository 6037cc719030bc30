"""Commands about records at which inputs stand, read from `D.commands` by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

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
    """`D.commands`, of which a consumer reads the partitions that it is assigned, from the start."""

    def __init__(self) -> None:
        self.count = 1
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
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions=range(self.count))})

    def get_watermark_offsets(self, tp: Any, timeout: float) -> tuple[int, int]:
        return 0, len(self.records.get(tp.partition, ()))

    def offsets_for_times(self, asked: list[Any], timeout: float) -> list[Any]:
        return [SimpleNamespace(topic=each.topic, partition=each.partition, offset=0, error=None) for each in asked]

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
