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
from typing import Any

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


def workload(records: int) -> Workload:
    """W5 with fewer groups open, so that units come all the time, and every group completes."""
    base = WORKLOADS["w5"].of(records)
    return Workload(base.name, base.components, base.size, 200, base.units, base.duplicates)


def send(bootstrap: str, topic: str, records: int, rate: int) -> None:
    """Sends a few records every step, by the clock."""
    producer: Any = ck.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True}, logger=QUIET)
    producer.list_topics(topic, timeout=10)
    begin, sent = time.monotonic(), 0
    for record in workload(records).records():
        while sent >= (time.monotonic() - begin) * rate:
            producer.poll(0)
            time.sleep(STEP_S)
        producer.produce(topic, record.value, record.id, partition_for(record.id, PARTITIONS), headers=record.headers)
        sent += 1
    producer.flush(60)
    seconds = time.monotonic() - begin
    print(json.dumps({"sent": sent, "per_s": sent / seconds}), flush=True)


def read(bootstrap: str, topic: str, units: int) -> None:
    """Notes when each unit is seen; looks into them afterwards."""
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
    for at, value in seen[int(WARM * len(seen)) :]:
        unit = codec.decode(value)
        assert isinstance(unit, Unit)
        latencies.append(at - max(each.timestamp for each in unit.components))
    print(json.dumps({"units": len(seen), "latencies": sorted(latencies)}), flush=True)


def measure(place: BenchBroker, seconds: float, rate: int) -> dict[str, float]:
    """p50 and p99 in milliseconds."""
    records = int(seconds * rate)
    load = workload(records)
    application = place.application()
    destination = f"{application}-latency"
    topics = place.create(application, destination)
    me = [sys.executable, "-m", "bench.latency"]
    folder = place.folder
    with place.worker(application, destination) as worker:
        worker.wait_output("ready")
        read_command = [*me, "read", place.bootstrap, topics.units, str(load.units)]
        send_command = [*me, "send", place.bootstrap, topics.components, str(records), str(rate)]
        with Program(folder / f"{application}-reader.log", *read_command) as reader:
            reader.wait_output("reading")
            with Program(folder / f"{application}-sender.log", *send_command) as sender:
                before = worker.usage()
                sent = json.loads(sender.wait_end(seconds * 3 + 60))
                after = worker.usage()
            seen = json.loads(reader.wait_end(seconds + 60).splitlines()[-1])
    if seen["units"] != load.units:
        raise RuntimeError(f"{seen['units']} of {load.units} units were seen")
    latencies = seen["latencies"]
    return {
        "units": seen["units"],
        "per_s": sent["per_s"],
        "p50_ms": latencies[len(latencies) // 2],
        "p99_ms": latencies[int(len(latencies) * 0.99)],
        "max_ms": latencies[-1],
        "cpu_us": (after.cpu_s - before.cpu_s) / sent["sent"] * 1e6,
    }


if __name__ == "__main__":
    what, bootstrap, topic, *numbers = sys.argv[1:]
    if what == "send":
        send(bootstrap, topic, *map(int, numbers))
    else:
        read(bootstrap, topic, *map(int, numbers))
