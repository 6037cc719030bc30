"""Three units at once from one event loop: `python examples/asyncio_producer.py`. A unit whose task is cancelled is not sent."""

import asyncio
import os

import uow.aio

ORDERS = ({"flash drive": 12.50, "book": 18.00}, {"lamp": 40.00}, {"desk": 210.00, "chair": 95.00, "mat": 12.00})


async def send(connection: uow.aio.Connection, order: dict[str, float]) -> str:
    async with connection.unit(os.environ.get("DESTINATION", "megazon")) as unit:
        for item, price in order.items():
            await unit.send({"item": item, "price": price})
    return unit.id


async def main() -> None:
    async with uow.aio.connect(os.environ.get("BOOTSTRAP", "localhost:9092")) as connection:
        print("sent", *await asyncio.gather(*[send(connection, order) for order in ORDERS]))


asyncio.run(main())
