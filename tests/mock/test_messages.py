"""What a `consume` brings, taken apart in bulk; on messages as librdkafka's binding makes them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from confluent_kafka import KafkaError

from uow.processor.kafka.consumed import apart, by_partition


class PlacedMessage(SimpleNamespace):
    """A consumed message, as far as its place and its error go."""

    def topic(self) -> str:
        return str(self.at[0])

    def partition(self) -> int:
        return int(self.at[1])

    def error(self) -> Any:
        return self.said


def message(topic: str, partition: int, said: KafkaError | None = None) -> PlacedMessage:
    return PlacedMessage(at=(topic, partition), said=said)


def test_events_are_told_from_records_and_each_keeps_its_order() -> None:
    end = KafkaError(KafkaError._PARTITION_EOF)
    one, two, three = message("a", 0), message("a", 0, end), message("a", 1)
    assert apart([one, two, three]) == ([one, three], [two])
    assert apart([one, three]) == ([one, three], ())
    assert apart([]) == ([], [])


def test_a_stretch_ends_where_partition_or_topic_changes() -> None:
    rows = [message("a", 0), message("a", 0), message("a", 1), message("b", 1), message("a", 0)]
    found = [(tuple(tp), len(stretch)) for tp, stretch in by_partition(rows)]
    assert found == [(("a", 0), 2), (("a", 1), 1), (("b", 1), 1), (("a", 0), 1)]
    assert not list(by_partition([]))
