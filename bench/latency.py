"""Latency at a given rate: from the broker's append of a unit's last component until a `read_committed` consumer has the unit.

Three processes besides the broker: a producer that follows the clock, the worker, a reader. The append time is the broker's, in whole
milliseconds and rounded down, the reader's clock is the same machine's: a latency is at most 1 ms too long.

    python -m bench.latency send BOOTSTRAP TOPIC RECORDS RATE
    python -m bench.latency read BOOTSTRAP TOPIC UNITS
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import confluent_kafka as ck

from bench.drain import BenchBroker
from bench.programs import Program
from bench.workloads import (
    PARTITIONS,
    QUIET,
    WORKLOADS,
    Workload,
)
from uow.schemas import codec
from uow.schemas.records import Unit
from uow.topics.partitioner import partition_for

STEP_S = 0.005
WARM = 0.5
"""Share of the run that does not count: the broker compiles its code in the first seconds, and its clients wait for that."""
SILENCE_S = 20.0


def workload(records: int, seed: int = 1) -> Workload:
    """W5 with fewer groups open, so that units come all the time, and every group completes; another seed gives other groups."""
    return replace(WORKLOADS["w5"].of(records), open_groups=200, seed=seed)


def send(bootstrap: str, topic: str, load: Workload, rate: int) -> dict[str, float]:
    """Sends a few records every step, by the clock."""
    producer: Any = ck.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True}, logger=QUIET)
    producer.list_topics(topic, timeout=10)
    begin, sent = time.monotonic(), 0
    for record in load.records():
        while sent >= (time.monotonic() - begin) * rate:
            producer.poll(0)
            time.sleep(STEP_S)
        producer.produce(topic, record.value, record.id, partition_for(record.id, PARTITIONS), headers=record.headers)
        sent += 1
    producer.flush(60)
    seconds = time.monotonic() - begin
    return {"sent": sent, "per_s": sent / seconds}


def read(bootstrap: str, topic: str, units: int) -> None:
    """Notes when each unit is seen; looks into them afterwards. Prints latencies in the order in which units came."""
    properties: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": "bench-latency",
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
    }
    reader: Any = ck.Consumer(properties, logger=QUIET)
    reader.assign([ck.TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    seen: list[tuple[float, bytes]] = []
    print("reading", flush=True)
    last = time.monotonic()
    while len(seen) < units and time.monotonic() - last < SILENCE_S:
        message = reader.poll(0.2)
        if message is not None and message.error() is None:
            seen.append((time.time() * 1000, message.value()))
            last = time.monotonic()
        elif not seen:
            last = time.monotonic()
    reader.close()
    latencies = []
    for at, value in seen:
        unit = codec.decode(value)
        assert isinstance(unit, Unit)
        latencies.append(at - max(each.timestamp for each in unit.components))
    print(json.dumps({"units": len(seen), "latencies": latencies}), flush=True)


class Watched(NamedTuple):
    """A worker, a reader of its units, and the topic that it reads."""

    worker: Program
    reader: Program
    topic: str

    def latencies(self, units: int) -> list[float]:
        """In the order in which the units came, when all of them have."""
        seen = json.loads(self.reader.wait_end(60).splitlines()[-1])
        if seen["units"] != units:
            raise RuntimeError(f"{seen['units']} of {units} units were seen")
        return list(seen["latencies"])


@contextmanager
def watched(place: BenchBroker, units: int) -> Iterator[Watched]:
    """On topics of their own; the reader ends after so many units."""
    application = place.application()
    destination = f"{application}-latency"
    topics = place.create(application, destination)
    command = [sys.executable, "-m", "bench.latency", "read", place.bootstrap, topics.units, str(units)]
    with place.worker(application, destination) as worker:
        worker.wait_output("ready")
        with Program(place.folder / f"{application}-reader.log", *command) as reader:
            reader.wait_output("reading")
            yield Watched(worker, reader, topics.components)


def measure(place: BenchBroker, seconds: float, rate: int) -> dict[str, float]:
    """p50 and p99 in milliseconds."""
    records = int(seconds * rate)
    units = workload(records).units
    with watched(place, units) as it:
        command = [sys.executable, "-m", "bench.latency", "send", place.bootstrap, it.topic, str(records), str(rate)]
        with Program(it.reader.log.with_suffix(".sender"), *command) as sender:
            before = it.worker.usage()
            sent = json.loads(sender.wait_end(seconds * 3 + 60))
            after = it.worker.usage()
        seen = it.latencies(units)
    latencies = sorted(seen[int(WARM * units) :])
    return {
        "units": units,
        "per_s": sent["per_s"],
        "p50_ms": latencies[len(latencies) // 2],
        "p99_ms": latencies[int(len(latencies) * 0.99)],
        "max_ms": latencies[-1],
        "cpu_us": (after.cpu_s - before.cpu_s) / sent["sent"] * 1e6,
    }


def by_turns(places: Sequence[BenchBroker], turns: int, seconds: float, rate: int) -> list[list[list[float]]]:
    """Workers of all these places run at once, and one of them has something to do at a time, for some seconds.

    So each pair of turns meets the same machine, and no start of a process lies between them.

    Returns:
        For each place, the sorted latencies of each of its turns. One more, the first, is warming up and does not count.
    """
    records = int(seconds * rate)
    units = workload(records).units
    with ExitStack() as stack:
        all_watched = [stack.enter_context(watched(place, units * (turns + 1))) for place in places]
        for number in range(turns + 1):
            for place, each in list(zip(places, all_watched, strict=True))[:: 1 if number % 2 else -1]:
                send(place.bootstrap, each.topic, workload(records, seed=number), rate)
        seen = [each.latencies(units * (turns + 1)) for each in all_watched]
    return [[sorted(each[at : at + units]) for at in range(units, len(each), units)] for each in seen]


if __name__ == "__main__":
    what, bootstrap, topic, *numbers = sys.argv[1:]
    count, *rates = map(int, numbers)
    if what == "send":
        print(json.dumps(send(bootstrap, topic, workload(count), *rates)), flush=True)
    else:
        read(bootstrap, topic, count)
