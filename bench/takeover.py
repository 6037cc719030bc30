"""Take-over: the time for which the partitions of a worker that leaves stand still, with components held in all of them.

Two workers share four partitions. One is stopped or killed; when it has ended, a unit of one component is sent to each partition.
The time is measured from the signal until a `read_committed` consumer has seen all of them.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

import confluent_kafka as ck

from bench.drain import BenchBroker
from bench.programs import Program
from bench.workloads import (
    PARTITIONS,
    QUIET,
    WORKLOADS,
    Record,
    produce,
)
from uow.topics.catalogue import DestinationTopics
from uow.topics.partitioner import partition_for

PATIENCE_S = 90.0
CASES: Mapping[str, str] = {"stopped": "", "killed": "", "killed in a transaction": "offsets:1:9"}
"""`UOW_CRASH` of the worker that ends: the last one has its transaction open, which only its time-out ends."""


def measure(place: BenchBroker, records: int, case: str) -> float:
    """Seconds until the other worker has delivered from every partition."""
    application = place.application()
    destination = f"{application}-takeover"
    topics = place.create(application, destination)
    produce(place.bootstrap, topics.components, WORKLOADS["held"].of(records))
    place.run_through(application, destination, kill=False)
    with ExitStack() as stack:
        heir = stack.enter_context(_worker(place, application, destination, "heir"))
        heir.wait_output("ready", PATIENCE_S)
        leaving = stack.enter_context(_worker(place, application, destination, "leaving", CASES[case]))
        leaving.wait_output("restored: ", PATIENCE_S)
        heir.wait_output("given away: ", PATIENCE_S)
        if case == "killed in a transaction":
            _send(place, topics, "trigger")
        began = time.perf_counter()
        if case == "killed":
            leaving.process.kill()
        elif case == "stopped":
            leaving.process.terminate()
        leaving.wait(lambda: not leaving.process.is_running(), "the worker ends", PATIENCE_S)
        probes = _send(place, topics, "probe")
        heir.wait(_seen(place, topics, probes, stack), f"the heir of one that was {case} delivers", PATIENCE_S)
        return time.perf_counter() - began


def _worker(place: BenchBroker, application: str, destination: str, name: str, crash: str = "") -> Program:
    command = [str(Path(sys.executable).with_name("uow")), "worker", "-c", str(place.config(application, destination))]
    environment = {**os.environ, "UOW_CRASH": crash}
    return Program(place.folder / f"{application}-{name}.log", *command, "--name", name, env=environment)


def _send(place: BenchBroker, topics: DestinationTopics, name: str) -> set[bytes]:
    """A unit of one component for each partition; their ids."""
    ids = [
        next(
            each
            for number in itertools.count()
            if partition_for(each := b"%s-%d" % (name.encode(), number), PARTITIONS) == partition
        )
        for partition in range(PARTITIONS)
    ]
    producer = ck.Producer({"bootstrap.servers": place.bootstrap}, logger=QUIET)
    for partition, each in enumerate(ids):
        headers = Record(each, 1, True, b"").headers
        producer.produce(topics.components, b"x", each, partition, headers=headers)  # type: ignore[arg-type]
    producer.flush(30)
    return set(ids)


def _seen(place: BenchBroker, topics: DestinationTopics, ids: set[bytes], stack: ExitStack) -> Callable[[], bool]:
    reader = place.consumer("bench-takeover", **{"isolation.level": "read_committed"})
    stack.callback(reader.close)
    reader.assign([ck.TopicPartition(topics.units, number, 0) for number in range(PARTITIONS)])
    waiting = set(ids)

    def seen() -> bool:
        for message in reader.consume(1000, 0.02):
            if message.error() is None:
                waiting.discard(message.key())
        return not waiting

    return seen
