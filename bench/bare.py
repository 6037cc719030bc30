"""Comparison (a): consume, assemble, produce, with the worker's transactions and librdkafka settings, and no changelog.

The minimum that a program needs to look correct: units in a dictionary, joined values as output, positions in the transaction. It forgets
everything when it ends, checks nothing, and handles none of the faults that a worker handles. Run it as a process:
`python -m bench.bare BOOTSTRAP APPLICATION DESTINATION`.
"""

from __future__ import annotations

import gc
import signal
import sys
from types import FrameType
from typing import Any

import confluent_kafka as ck

from bench.workloads import PARTITIONS
from uow.processor.kafka.clients import Clients
from uow.processor.kafka.source import GRACE_S
from uow.processor.kafka.worker_settings import WorkerSettings
from uow.topics.catalogue import DestinationTopics
from uow.topics.partitioner import partition_for


class Assembly:
    """Groups by id, and where finished ones go."""

    def __init__(self, produce: Any, topic: str) -> None:
        self.produce, self.topic = produce, topic
        self.groups: dict[bytes, dict[int, Any]] = {}
        self.closed: set[bytes] = set()

    def take(self, messages: list[Any]) -> dict[int, int]:
        """Takes the messages of one poll; the next offset of each partition that had some."""
        groups, closed, produce, topic = self.groups, self.closed, self.produce, self.topic
        positions: dict[int, int] = {}
        for message in messages:
            if message.error() is not None:
                continue
            positions[message.partition()] = message.offset() + 1
            (_, group), (_, seq), *ends = message.headers()
            if group in closed:
                continue
            held = groups.get(group)
            if held is None:
                held = groups[group] = {}
            number = int(seq)
            if number in held:
                continue
            held[number] = message.value()
            if ends and ends[0][1] == b"true":
                held[0] = number
            if held.get(0) == len(held) - 1:
                del groups[group]
                closed.add(group)
                size = held.pop(0)
                value = b"".join([held[number] for number in range(1, size + 1)])
                headers = [("uow-id", group), ("uow-kind", b"unit"), ("uow-size", b"%d" % size)]
                produce(topic, value, group, partition_for(group, PARTITIONS), None, None, 0, headers)
        return positions


def main(bootstrap: str, application: str, destination: str) -> None:
    settings = WorkerSettings(application, bootstrap, "bare")
    topics = DestinationTopics(application, destination)
    clients = Clients(settings)
    consumer: Any = clients.group_consumer()
    producer: Any = clients.producer(lambda line: None)
    producer.init_transactions(30)
    stopping = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    def assign(_: Any, partitions: list[ck.TopicPartition]) -> None:
        consumer.incremental_assign([ck.TopicPartition(each.topic, each.partition, 0) for each in partitions])
        print("ready", flush=True)

    signal.signal(signal.SIGTERM, stop)
    consumer.subscribe([topics.components], on_assign=assign)
    assembly = Assembly(producer.produce, topics.units)
    limit, fill_s, was_full = settings.poll_records, settings.commit_interval_ms / 1000, False
    gc.collect()
    gc.freeze()
    gc.disable()
    while not stopping:
        first = consumer.poll(0.2)
        if first is None:
            continue
        messages = [first, *consumer.consume(limit - 1, fill_s if was_full else GRACE_S)]
        was_full = len(messages) >= limit
        token = consumer.consumer_group_metadata()
        producer.begin_transaction()
        positions = assembly.take(messages)
        offsets = [ck.TopicPartition(topics.components, number, offset) for number, offset in positions.items()]
        if offsets:
            producer.send_offsets_to_transaction(offsets, token, 10)
        producer.commit_transaction(10)
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
