"""A warehouse: each withdrawal that takes a product below its threshold gives an order event, for the product's supplier.

python examples/low_stock/warehouse.py --events 1000
python examples/low_stock/warehouse.py --events 3 --product tea

It knows nothing of units: an event is a plain record with the supplier in the header `uow-destination`. The router and the rules make units of them.
A correction of the stock (`--corrections`) is an event that asks for nothing, which is no order: the rules do not accept it.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from uuid import uuid4

from confluent_kafka import Producer

TOPIC = "stock.events"
PRODUCTS = {
    "cheese": "France",
    "wine": "France",
    "tea": "UK",
    "biscuits": "UK",
    "oranges": "Spain",
    "olives": "Spain",
    "chocolate": "Belgium",
    "watches": "Switzerland",
    "cable": "Taiwan",
    "pumps": "Germany",
}
"""Products and their suppliers. Four of the seven suppliers have no row of their own."""


@dataclass(slots=True)
class Shelf:
    """A product in the warehouse."""

    product: str
    supplier: str
    level: int
    threshold: int
    quantity: int

    def withdraw(self, count: int) -> dict[str, object] | None:
        """Takes some away; an order event if the level falls below the threshold by it, which equal is not."""
        was, self.level = self.level, self.level - count
        if not self.level < self.threshold <= was:
            return None
        return {
            "event_id": str(uuid4()),
            "product": self.product,
            "supplier": self.supplier,
            "level": self.level,
            "threshold": self.threshold,
            "quantity": self.quantity,
            "event_time": int(time.time() * 1000),
        }

    def refill(self) -> None:
        """The order has arrived."""
        self.level += self.quantity


def events(count: int, seed: int = 1, product: str | None = None) -> Iterator[dict[str, object]]:
    """So many order events of a busy warehouse, or of one product."""
    rng = random.Random(seed)
    shelves = [Shelf(name, supplier, 30, 10, 25) for name, supplier in PRODUCTS.items() if product in (None, name)]
    while count:
        shelf = rng.choice(shelves)
        event = shelf.withdraw(rng.randint(1, 4))
        if event is not None:
            shelf.refill()
            count -= 1
            yield event


def main() -> None:
    parser = argparse.ArgumentParser(description="Send order events of a warehouse.")
    parser.add_argument("--bootstrap", default="localhost:9092")
    parser.add_argument("--events", type=int, default=1000)
    parser.add_argument("--product", choices=PRODUCTS, help="only this one")
    parser.add_argument("--corrections", type=int, default=0, help="so many more, with quantity 0")
    parser.add_argument("--per-second", type=float, default=0, help="default: as fast as possible")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--topic", default=TOPIC)
    args = parser.parse_args()
    producer = Producer({"bootstrap.servers": args.bootstrap, "enable.idempotence": True, "linger.ms": 20})
    corrections = (event | {"quantity": 0} for event in events(args.corrections, args.seed + 1, args.product))
    for event in chain(events(args.events, args.seed, args.product), corrections):
        headers = [("uow-destination", str(event["supplier"]).encode())]
        producer.produce(args.topic, json.dumps(event).encode(), str(event["product"]).encode(), headers=headers)  # type: ignore[arg-type]
        producer.poll(1 / args.per_second if args.per_second else 0)
    left = producer.flush(60)
    if left:
        raise SystemExit(f"{left} events were not written")
    print(f"sent {args.events} events", flush=True)


if __name__ == "__main__":
    main()
