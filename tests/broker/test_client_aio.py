"""The client for asyncio against a real broker: sending, forwarding and reading in one loop, with cancellation on the way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from client_places import Topics, headers_of

import uow
from tests.processes import PATIENCE_S
from uow import aio


@pytest.fixture
def places(broker: Any) -> Topics:
    return Topics(broker.bootstrap)


async def forward_ten(connection: aio.Connection, name: str) -> None:
    """Each wait for a message is cut short now and then; nothing is lost by that."""
    async with connection.messages(f"{name}-hop", f"{name}-forwarder") as reader:
        forwarded = 0
        while forwarded < 10:
            waiting = asyncio.ensure_future(reader.receive())
            await asyncio.sleep(0)
            if forwarded % 2:
                waiting.cancel()
                await asyncio.wait([waiting])
                waiting = asyncio.ensure_future(reader.receive())
            message = await waiting
            assert message is not None
            assert await connection.forward(message, destination=name) is uow.Forwarded.COMMITTED
            forwarded += 1


async def story(bootstrap: str, name: str) -> None:
    async with asyncio.timeout(PATIENCE_S), aio.connect(bootstrap, reconnect_policy="all") as connection:
        await asyncio.gather(
            forward_ten(connection, name),
            *[connection.send(name, b"x", id="a", seq=number, to=f"{name}-hop") for number in range(1, 11)],
        )
        async with connection.unit(name, "b") as unit:
            for _ in range(3):
                await unit.send(b"y")
        begun = asyncio.Event()

        async def send_in_vain() -> None:
            async with connection.unit(name, "c") as unit:
                await unit.send(b"z")
                await unit.send(b"z")
                begun.set()
                await asyncio.sleep(PATIENCE_S)

        task = asyncio.ensure_future(send_in_vain())
        await begun.wait()
        task.cancel()
        await asyncio.wait([task])
        async with connection.units(name, f"{name}-reader") as reader:
            unit_read = await reader.receive(PATIENCE_S)
            assert unit_read is not None
            assert [component.value for component in unit_read.components] == [b'{"n": 1}', None]
            await unit_read.acknowledge()


def test_units_are_sent_forwarded_and_read_in_one_loop_and_a_cancelled_one_is_not_seen(
    places: Topics, unique: str
) -> None:
    places.make(f"{unique}-hop", f"{unique}.components", f"{unique}.units", partitions=1)
    places.deliver(unique, "ready")
    asyncio.run(story(places.bootstrap, unique))
    found = places.read(f"{unique}.components")
    numbers = [(headers_of(each)["uow-id"], int(headers_of(each)["uow-seq"])) for each in found]
    assert sorted(numbers) == [(b"a", number) for number in range(1, 11)] + [(b"b", number) for number in range(1, 4)]
    assert places.committed(f"{unique}.units", f"{unique}-reader") == 1
