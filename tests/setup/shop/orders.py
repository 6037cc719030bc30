"""An application that has modules named like folders of this project: `python orders.py send` and `python orders.py read`."""

import sys

import processor
import schemas
import topics
import uow


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


if __name__ == "__main__":
    {"send": send, "read": read}[sys.argv[1]]()
