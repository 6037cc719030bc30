"""Topics for the client's broker tests, and a plain consumer that shares no code with the client."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.kafka_broker import committed_rows
from tests.processes import PATIENCE_S, wait_for
from uow.schemas import codec
from uow.schemas.records import (
    ComponentRecord,
    Reason,
    Source,
    Unit,
    UnitOutcome,
)
from uow.topics.headers import ID, KIND


class Topics:
    """Creates topics and reads them with a plain consumer, which shares no code with the client."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.admin = AdminClient({"bootstrap.servers": bootstrap})

    def make(self, *names: str, partitions: int = 4) -> None:
        for made in self.admin.create_topics([NewTopic(name, partitions) for name in names]).values():
            made.result(PATIENCE_S)
        # the controller has made them; the broker hears of it a moment later
        wait_for(lambda: not {*names} - self.admin.list_topics(timeout=PATIENCE_S).topics.keys())

    def put(
        self, topic: str, *records: tuple[bytes | None, bytes | None, dict[str, bytes]], partition: int = 0
    ) -> None:
        """Records of key, value and headers."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "enable.idempotence": True})
        for key, value, headers in records:
            producer.produce(topic, value, key, partition, headers=headers)  # type: ignore[arg-type]
        assert not producer.flush(PATIENCE_S)

    def deliver(self, destination: str, *ids: str, partition: int = 0) -> None:
        """Units as a worker would write them."""
        units = [a_unit(unit_id, [b'{"n": 1}', None], destination) for unit_id in ids]
        records = [(unit.id.encode(), codec.frame(unit), {KIND: b"unit", ID: unit.id.encode()}) for unit in units]
        self.put(f"{destination}.units", *records, partition=partition)

    def committed(self, topic: str, group: str, partition: int = 0) -> int:
        """Committed offset of a group; -1001 for none."""
        (row,) = committed_rows(self.bootstrap, group, [(topic, partition)])
        return row.offset

    def end(self, topic: str, partition: int = 0) -> int:
        """End offset of a partition."""
        reader = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "test"})
        end = reader.get_watermark_offsets(TopicPartition(topic, partition), timeout=PATIENCE_S)[1]
        reader.close()
        return end

    def read(self, topic: str, isolation: str = "read_committed") -> list[Message]:
        """Everything in a topic, up to the end offsets of now."""
        reader = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "test",
                "isolation.level": isolation,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        partitions = reader.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions
        reader.assign([TopicPartition(topic, number, 0) for number in partitions])
        found: list[Message] = []
        ends = 0
        while ends < len(partitions):
            record = reader.poll(PATIENCE_S)
            assert record is not None, "the end was not reached"
            if record.error() is not None:
                ends += 1
            else:
                found.append(record)
        reader.close()
        return found


def headers_of(record: Message) -> dict[str, bytes]:
    return dict(record.headers() or [])  # type: ignore[arg-type]


def a_unit(id: str, values: Sequence[bytes | None], destination: str = "megazon") -> Unit:
    """A complete unit as a worker would deliver it."""
    components = tuple(
        ComponentRecord(
            seq, seq == len(values), None, id.encode(), value, (), 1, Source(f"{destination}.components", 0, seq)
        )
        for seq, value in enumerate(values, 1)
    )
    size = sum(len(value or b"") for value in values)
    outcome, reason = UnitOutcome.COMPLETE, Reason.END
    return Unit(id, f"unit-{id}", destination, 1, outcome, reason, 1, 2, None, len(values), size, (), components)
