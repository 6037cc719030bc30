"""CPU per record of the router, against a bare loop that consumes, transforms and produces in transactions, by turns on one embedded broker.

Part of `make bench` (`python -m bench router`). The bare loop writes the same records, key and headers included, and checks nothing. Each side is a
process of its own; what is counted is its CPU from its first record to its last, all threads.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from typing import Any

import confluent_kafka as ck

from bench.drain import BenchBroker
from bench.workloads import send
from uow.processor.kafka.clients import Clients
from uow.processor.kafka.rule_topics import deployment
from uow.processor.kafka.source import GRACE_S
from uow.processor.kafka.worker_settings import WorkerSettings
from uow.processor.shell.monitor import WorkerStatus
from uow.processor.shell.router_thread import follow_rules, kafka_router
from uow.topics import admin
from uow.topics.catalogue import DestinationTopics, expected, expected_of_routers
from uow.topics.policies import DestinationPolicy, HandlingPolicy
from uow.topics.routers import RouterSettings, RulesSettings

DESTINATION, NAMES = "supply", 50
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


class Routing:
    """A preloaded input, and what routes it.

    Args:
        place: The broker.
        records: Number of records.
    """

    def __init__(self, place: BenchBroker, records: int) -> None:
        self._place, self._records = place, records
        self._input = place.destination("events")
        admin.create_missing(place.admin, expected_of_routers(place.application(), [self._input]))
        preload(place.bootstrap, self._input, records)
        (place.folder / "rules.toml").write_text(RULES)

    def measure(self) -> dict[str, float]:
        """CPU microseconds a record of the bare loop (`bare_us`) and of the router (`us`), one after the other, and the ratio."""
        bare, us = self._run("bare"), self._run("router")
        return {"bare_us": bare, "us": us, "ratio": us / bare}

    def _run(self, side: str) -> float:
        application = self._place.application()
        topics = expected_of_routers(application, []) + expected(application, DESTINATION, POLICY)
        admin.create_missing(self._place.admin, topics)
        given = [self._place.bootstrap, application, self._input, str(self._place.folder), str(self._records)]
        command = [sys.executable, "-m", "bench.routing", side, *given]
        told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        return float(told.split()[-1]) / self._records * 1e6


def settings(bootstrap: str, application: str, events: str, folder: str) -> WorkerSettings:
    return WorkerSettings(
        application,
        bootstrap,
        "0",
        destinations={DESTINATION: POLICY},
        rules=RulesSettings(f"{folder}/rules.toml"),
        routers={"stock": RouterSettings((events,))},
    )


def preload(bootstrap: str, events: str, records: int) -> None:
    """Fills the input."""
    value = b'{"event_id": %d, "product": "bolt", "level": 3, "threshold": 10, "quantity": 100}'
    rows = (
        (events, value % number, b"%d" % number, -1, [("uow-destination", b"supplier-%d" % (number % NAMES))])
        for number in range(records)
    )
    send(bootstrap, rows)


def route(of: WorkerSettings, records: int) -> float:
    """CPU seconds of the router for all records."""
    status = WorkerStatus("0")
    begun: list[float] = []
    judged = deployment(of)
    router = kafka_router(of, follow_rules(of, judged), judged, {}, {})(
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

    (events,) = of.routers["stock"].inputs
    consumer.subscribe([events], on_assign=assign)
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
                ("uow-input", b"%s/%d/%d" % (events.encode(), partition, offset)),
                ("uow-arrived-at", b"%d" % message.timestamp()[1]),
            ]
            producer.produce(topics.components, message.value(), key, -1, None, None, 0, headers)
        offsets = [ck.TopicPartition(events, number, offset) for number, offset in positions.items()]
        producer.send_offsets_to_transaction(offsets, token, 10)
        producer.commit_transaction(10)
    spent = time.process_time() - began
    consumer.close()
    return spent


def _quiet() -> None:
    gc.collect()
    gc.freeze()
    gc.disable()


if __name__ == "__main__":
    _, side, bootstrap, application, events, folder, count = sys.argv
    print((bare if side == "bare" else route)(settings(bootstrap, application, events, folder), int(count)))
