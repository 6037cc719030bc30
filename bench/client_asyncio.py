"""Cost of a record under asyncio: `uow.aio` against `confluent_kafka.aio` with the same properties, by turns in one process.

Three ways: `gathered`, a thousand sends awaited at once; `transacted`, records and one commit; `read`, one record after the other. The library's own producer takes no
headers when it sends this way, so it sends each record without our three.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from uuid import uuid4

from confluent_kafka import OFFSET_BEGINNING, TopicPartition
from confluent_kafka.aio import AIOConsumer, AIOProducer

from bench.drain import BenchBroker
from bench.workloads import PARTITIONS
from uow import aio
from uow.client.kafka_port import consumer_properties, plain_producer_properties, transactional_properties

WAYS: Final = ("gathered", "transacted", "read")
VALUE: Final = b"x" * 200
AT_ONCE: Final = 1000

Tick = Callable[[], None]
Run = Callable[[str, str, int, Tick], Awaitable[None]]


def measure(place: BenchBroker, records: int, way: str) -> Mapping[str, float]:
    """CPU microseconds a record of both, and their ratio."""
    destination = place.destination(f"asyncio-{uuid4().hex[:8]}")
    topic = place.create(place.application(), destination).components
    count = max(AT_ONCE, records // AT_ONCE * AT_ONCE)
    if way == "read":
        asyncio.run(_ours_gathered(place.bootstrap, destination, count, lambda: None))
        count = count // 2
    bare, ours = {
        "gathered": (_bare_gathered, _ours_gathered),
        "transacted": (_bare_transacted, _ours_transacted),
        "read": (_bare_read, _ours_read),
    }[way]
    bare_cpu_us = _cpu_us(bare, place.bootstrap, topic, count)
    cpu_us = _cpu_us(ours, place.bootstrap, destination, count)
    return {"cpu_us": cpu_us, "bare_cpu_us": bare_cpu_us, "cpu_ratio": cpu_us / bare_cpu_us}


def _cpu_us(run: Run, bootstrap: str, where: str, count: int) -> float:
    ticks: list[float] = []
    asyncio.run(run(bootstrap, where, count, lambda: ticks.append(time.process_time())))  # type: ignore[arg-type]
    return (ticks[1] - ticks[0]) / count * 1e6


async def _bare_gathered(bootstrap: str, topic: str, count: int, tick: Tick) -> None:
    async with AIOProducer(plain_producer_properties(bootstrap, "bench", {})) as producer:

        async def send(number: int) -> None:
            futures = [await producer.produce(topic, VALUE, b"a") for _ in range(number)]
            await producer.flush()
            await asyncio.gather(*futures)

        await send(1)
        tick()
        for _ in range(count // AT_ONCE):
            await send(AT_ONCE)
        tick()


async def _ours_gathered(bootstrap: str, destination: str, count: int, tick: Tick) -> None:
    async with aio.connect(bootstrap) as connection:
        await connection.send(destination, VALUE, id="a", seq=1)
        tick()
        for first in range(1, count + 1, AT_ONCE):
            numbers = range(first, first + AT_ONCE)
            await asyncio.gather(*[connection.send(destination, VALUE, id="a", seq=number) for number in numbers])
        tick()


async def _bare_transacted(bootstrap: str, topic: str, count: int, tick: Tick) -> None:
    properties = transactional_properties(bootstrap, "bench", f"bare-{uuid4()}", {})
    async with AIOProducer(properties) as producer:
        await producer.init_transactions(30)

        async def send(number: int) -> None:
            await producer.begin_transaction()
            futures = [await producer.produce(topic, VALUE, b"a") for _ in range(number)]
            await producer.commit_transaction(30)
            await asyncio.gather(*futures)

        await send(1)
        tick()
        await send(count)
        tick()


async def _ours_transacted(bootstrap: str, destination: str, count: int, tick: Tick) -> None:
    async with aio.connect(bootstrap) as connection, connection.session(transacted=True) as session:
        producer = session.producer(destination)
        await producer.send(VALUE, id="a", seq=1)
        await session.commit()
        tick()
        for number in range(1, count + 1):
            await producer.send(VALUE, id="a", seq=number)
        await session.commit()
        tick()


async def _bare_read(bootstrap: str, topic: str, count: int, tick: Tick) -> None:
    consumer: Any = AIOConsumer(consumer_properties(bootstrap, "bench", f"bench-{uuid4()}", {}))
    try:
        await consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
        await consumer.poll(30.0)
        tick()
        read = 0
        while read < count:
            message = await consumer.poll(1.0)
            read += message is not None and message.error() is None
        tick()
    finally:
        await consumer.close()


async def _ours_read(bootstrap: str, destination: str, count: int, tick: Tick) -> None:
    topic = f"{destination}.components"
    async with aio.connect(bootstrap) as connection, connection.messages(topic, None, start="earliest") as reader:
        await reader.receive()
        tick()
        for _ in range(count):
            await reader.receive()
        tick()
