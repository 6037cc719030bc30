"""CPU per record of the router, against a bare loop that consumes, transforms and produces in transactions, by turns on one embedded broker.

`python -m bench.routing [RECORDS [ROUNDS]]`. The bare loop writes the same records, key and headers included, and checks nothing. Each side is a
process of its own; what is counted is its CPU from its first record to its last, all threads.
"""

from __future__ import annotations

import gc
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import confluent_kafka as ck

from uow.embedded.broker import EmbeddedBroker
from uow.processor.kafka.clients import Clients
from uow.processor.kafka.source import GRACE_S
from uow.processor.kafka.worker_settings import WorkerSettings
from uow.processor.shell.monitor import WorkerStatus
from uow.processor.shell.router_thread import follow_rules, kafka_router
from uow.topics import admin
from uow.topics.catalogue import DestinationTopics, expected, expected_of_routers
from uow.topics.policies import DestinationPolicy, HandlingPolicy
from uow.topics.routers import RouterSettings, RulesSettings

INPUT, DESTINATION, NAMES = "bench.events", "supply", 50
POLICY = DestinationPolicy(handling_policy=HandlingPolicy.SINGLE_MESSAGE_DELIVERY)
RULES = """
version = 1
author = "bench"
why = "to measure"
[[rule]]
rule_id = "low-stock"
destination = "supply"
default_group = "per_name"
row = [{ routing_name = "*", complete_count = 10 }]
"""


def settings(bootstrap: str, application: str, folder: str) -> WorkerSettings:
    return WorkerSettings(
        application,
        bootstrap,
        "0",
        destinations={DESTINATION: POLICY},
        rules=RulesSettings(f"{folder}/rules.toml"),
        routers={"stock": RouterSettings((INPUT,))},
    )


def preload(bootstrap: str, records: int) -> None:
    producer = ck.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 50})
    for number in range(records):
        headers = [("uow-destination", b"supplier-%d" % (number % NAMES))]
        value = b'{"event_id": %d, "product": "bolt", "level": 3, "threshold": 10, "quantity": 100}' % number
        while True:
            try:
                producer.produce(INPUT, value, b"%d" % number, headers=headers)  # type: ignore[arg-type]
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush(60)


def route(of: WorkerSettings, records: int) -> float:
    """CPU seconds of the router for all records."""
    status = WorkerStatus("0")
    begun: list[float] = []
    router = kafka_router(of, follow_rules(of), {})(
        status, lambda: begun.append(time.process_time()), lambda error: None
    )
    _quiet()
    router.start()
    while sum(router.status.counts.values()) < records and router.is_alive():
        time.sleep(0.02)
    begun.append(time.process_time())
    router.request_stop()
    router.join()
    return begun[1] - begun[0]


def bare(of: WorkerSettings, records: int) -> float:
    """CPU seconds of the bare loop."""
    clients, topics = Clients(of), DestinationTopics(of.application_id, DESTINATION)
    consumer: Any = clients.group_consumer()
    producer: Any = clients.producer(lambda line: None)
    producer.init_transactions(30)

    def assign(_: Any, partitions: list[ck.TopicPartition]) -> None:
        consumer.incremental_assign([ck.TopicPartition(each.topic, each.partition, 0) for each in partitions])

    consumer.subscribe([INPUT], on_assign=assign)
    _quiet()
    done, began, was_full = 0, 0.0, False
    while done < records:
        first = consumer.poll(0.2)
        if first is None or first.error() is not None:
            began = time.process_time()
            continue
        began = began or time.process_time()
        messages = [first, *consumer.consume(of.poll_records - 1, 0.1 if was_full else GRACE_S)]
        was_full = len(messages) >= of.poll_records
        token = consumer.consumer_group_metadata()
        producer.begin_transaction()
        positions = {}
        for message in messages:
            if message.error() is not None:
                continue
            done += 1
            partition, offset = message.partition(), message.offset()
            positions[partition] = offset + 1
            headers = message.headers()
            key = b"low-stock/" + headers[0][1]
            headers = [
                *headers,
                ("uow-id", key),
                ("uow-rule", b"low-stock/*@1"),
                ("uow-input", b"%s/%d/%d" % (INPUT.encode(), partition, offset)),
                ("uow-arrived-at", b"%d" % message.timestamp()[1]),
            ]
            producer.produce(topics.components, message.value(), key, -1, None, None, 0, headers)
        offsets = [ck.TopicPartition(INPUT, number, offset) for number, offset in positions.items()]
        producer.send_offsets_to_transaction(offsets, token, 10)
        producer.commit_transaction(10)
    spent = time.process_time() - began
    consumer.close()
    return spent


def _quiet() -> None:
    gc.collect()
    gc.freeze()
    gc.disable()


def main(records: int = 300_000, rounds: int = 3) -> None:
    with tempfile.TemporaryDirectory() as folder, EmbeddedBroker(Path(folder) / "broker") as broker:
        (Path(folder) / "rules.toml").write_text(RULES)
        client = admin.admin_client(broker.bootstrap, {})
        admin.create_missing(client, expected_of_routers("bench", [INPUT]))
        admin.create_missing(client, expected("bench", DESTINATION, POLICY))
        preload(broker.bootstrap, records)
        spent: dict[str, list[float]] = {"bare": [], "router": []}
        for number in range(rounds):
            for side in spent:
                application = f"bench-{side}-{number}"
                admin.create_missing(client, expected_of_routers(application, []))
                command = [
                    sys.executable,
                    "-m",
                    "bench.routing",
                    side,
                    broker.bootstrap,
                    application,
                    folder,
                    str(records),
                ]
                told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
                spent[side].append(float(told.split()[-1]) / records * 1e6)
        for side, values in spent.items():
            print(f"{side}: {statistics.median(values):.1f} us a record ({min(values):.1f} to {max(values):.1f})")
        ratios = [router / loop for loop, router in zip(spent["bare"], spent["router"], strict=True)]
        print(f"ratio: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    match sys.argv[1:]:
        case [("bare" | "router") as side, bootstrap, application, folder, count]:
            print((bare if side == "bare" else route)(settings(bootstrap, application, folder), int(count)))
        case numbers:
            main(*map(int, numbers))
