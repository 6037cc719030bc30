"""A unit of two components in ten lines: `python examples/producer.py`. The second one, the last, gets the end mark."""

import os

import uow

with uow.connect(os.environ.get("BOOTSTRAP", "localhost:9092")) as connection:
    with connection.unit(os.environ.get("DESTINATION", "megazon")) as unit:
        unit.send({"item": "flash drive", "price": 12.50})
        unit.send({"item": "book", "price": 18.00})
    print("sent", unit.id)
