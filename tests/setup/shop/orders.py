"""An application that has modules named like folders of this project: `python orders.py send` and `python orders.py read`."""

import sys

import processor
import schemas
import topics
import uow.aio


def send() -> None:
    """Sends one order as one unit."""
    with uow.connect(topics.BOOTSTRAP) as connection, connection.unit(topics.DESTINATION) as unit:
        for line in schemas.ORDER:
            unit.send(line)
    print("sent", unit.id)


def read() -> None:
    """Reads one order."""
    with uow.connect(topics.BOOTSTRAP) as connection:
        unit = next(connection.units(topics.DESTINATION, group=f"{topics.DESTINATION}-invoicing"))
        total = processor.total(component.json()["price"] for component in unit.components)
        unit.acknowledge()
    print("read", unit.id, len(unit.components), total)


async def pass_on(topic: str) -> int:
    """Forwards what comes, in an event loop."""
    async with uow.aio.connect(topics.BOOTSTRAP) as connection:
        async with connection.unit(topics.DESTINATION, priority=7) as unit:
            await unit.send(b"x")
        async for message in connection.messages(topic, "hop", commit_interval_ms=100):
            forwarded = await connection.forward(message, destination=topics.DESTINATION)
            if forwarded is uow.Forwarded.COMMITTED:
                await message.acknowledge()
        received = await connection.units(topics.DESTINATION, "group").receive(1.0)
        return 0 if received is None else len(received.components)


if __name__ == "__main__":
    {"send": send, "read": read}[sys.argv[1]]()
