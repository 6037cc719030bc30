"""Cost of a record that an application sends through a client session, against bare `confluent_kafka` with the same properties and headers.

Two ways: `alone`, each record waited for; `transacted`, records without waiting and one commit. By turns in one process, since both are short.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final
from uuid import uuid4

import uow
from bench.drain import BenchBroker
from uow.client.kafka_port import Librdkafka, LogWatch, plain_producer_properties, transactional_properties

WAYS: Final = ("alone", "transacted")
ALONE: Final = 20
"""One in so many records is sent where each is waited for."""
VALUE: Final = b"x" * 200


def measure(place: BenchBroker, records: int, way: str) -> Mapping[str, float]:
    """Microseconds a record, wall and CPU, of both, and their ratio."""
    destination = place.destination(f"sends-{uuid4().hex[:8]}")
    topic = place.create(place.application(), destination).components
    count = records // ALONE if way == "alone" else records
    sends = {"alone": (_bare_alone, _session_alone), "transacted": (_bare_transacted, _session_transacted)}
    taken: list[tuple[float, float]] = []
    for send in sends[way]:
        send(place.bootstrap, destination, topic, max(1, count // 10), lambda: None)  # warm
        taken.append(_timed(partial(send, place.bootstrap, destination, topic, count), count))
    (bare_us, bare_cpu_us), (us, cpu_us) = taken
    return {"us": us, "bare_us": bare_us, "ratio": us / bare_us, "cpu_us": cpu_us, "cpu_ratio": cpu_us / bare_cpu_us}


def _timed(run: Callable[[Callable[[], None]], None], count: int) -> tuple[float, float]:
    """Wall and CPU between the two ticks of a run."""
    ticks: list[tuple[float, float]] = []
    run(lambda: ticks.append((time.perf_counter(), time.process_time())))
    (wall, cpu), (wall_after, cpu_after) = ticks
    return (wall_after - wall) / count * 1e6, (cpu_after - cpu) / count * 1e6


def _headers(number: int) -> list[tuple[str, Any]]:
    return [("uow-id", b"a"), ("uow-seq", b"%d" % number), ("uow-component-id", str(uuid4()).encode())]


def _bare_alone(bootstrap: str, destination: str, topic: str, count: int, tick: Callable[[], None]) -> None:
    producer: Any = Librdkafka().producer(plain_producer_properties(bootstrap, "bench", {}), LogWatch().logger)

    def send(number: int) -> None:
        done: list[Any] = []
        producer.produce(topic, VALUE, b"a", on_delivery=lambda *report: done.append(report), headers=_headers(number))
        while not done:
            producer.poll(0.01)

    send(1)
    tick()
    for number in range(1, count + 1):
        send(number)
    tick()


def _session_alone(bootstrap: str, destination: str, topic: str, count: int, tick: Callable[[], None]) -> None:
    with uow.connect(bootstrap) as connection, connection.session() as session:
        producer = session.producer(destination)
        producer.send(VALUE, id="a", seq=1)
        tick()
        for number in range(1, count + 1):
            producer.send(VALUE, id="a", seq=number)
        tick()


def _bare_transacted(bootstrap: str, destination: str, topic: str, count: int, tick: Callable[[], None]) -> None:
    properties = transactional_properties(bootstrap, "bench", f"bare-{uuid4()}", {})
    producer: Any = Librdkafka().producer(properties, LogWatch().logger)
    producer.init_transactions(30)
    producer.list_topics(topic, 10)
    failed: list[Any] = []

    def on_delivery(error: Any, message: Any) -> None:
        if error is not None:
            failed.append(error)

    def send(numbers: range) -> None:
        producer.begin_transaction()
        for number in numbers:
            while True:
                try:
                    producer.produce(topic, VALUE, b"a", on_delivery=on_delivery, headers=_headers(number))
                    break
                except BufferError:
                    producer.poll(0.02)
            producer.poll(0)
        producer.flush(30)
        producer.commit_transaction(30)

    send(range(1, 2))
    tick()
    send(range(1, count + 1))
    tick()
    assert not failed


def _session_transacted(bootstrap: str, destination: str, topic: str, count: int, tick: Callable[[], None]) -> None:
    with uow.connect(bootstrap) as connection, connection.session(transacted=True) as session:
        producer = session.producer(destination)
        producer.send(VALUE, id="a", seq=1)
        session.commit()
        tick()
        for number in range(1, count + 1):
            producer.send(VALUE, id="a", seq=number)
        session.commit()
        tick()
