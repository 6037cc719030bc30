"""Megazon's checkout: an order becomes up to three components of one unit, sent in one transaction.

    python examples/megazon/checkout.py --jill
    python examples/megazon/checkout.py --customers 300

Each component has its own way: gadgets over Gadget Planet and Widget World, housewares over Desperate Housewares, books
straight to Megazon. Prices are texts, so that they stay exact decimals. Prints one JSON line for each order.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal

import uow

# item, price, who packs it
CATALOGUE = (
    ("flash drive", "12.50", "gadget-planet"),
    ("phone charger", "19.95", "gadget-planet"),
    ("MP3 player", "49.90", "widget-world"),
    ("alarm clock", "22.40", "widget-world"),
    ("lava lamp", "24.95", "desperate-housewares"),
    ("tea cosy", "8.75", "desperate-housewares"),
    ("door mat", "15.10", "desperate-housewares"),
    ("book", "18.00", "megazon"),
    ("atlas", "39.00", "megazon"),
)

FIRST_HOP = {
    "gadget-planet": "gadget-planet",
    "widget-world": "gadget-planet",  # Gadget Planet hands on what Widget World packs
    "desperate-housewares": "desperate-housewares",
    "megazon": None,  # straight to the destination
}


@dataclass(frozen=True)
class Order:
    """A customer's order."""

    customer: str
    items: tuple[str, ...]
    goods: list[dict[str, str]] = field(init=False)

    def __post_init__(self) -> None:
        rows = [{"item": item, "price": price, "from": who} for item, price, who in CATALOGUE if item in self.items]
        object.__setattr__(self, "goods", rows)

    @property
    def total(self) -> Decimal:
        return sum((Decimal(row["price"]) for row in self.goods), Decimal())

    def parts(self) -> Iterator[tuple[str | None, list[dict[str, str]]]]:
        """Goods by first hop, in a fixed order: the books are the end of the unit."""
        for hop in ("gadget-planet", "desperate-housewares", None):
            rows = [row for row in self.goods if FIRST_HOP[row["from"]] == hop]
            if rows:
                yield hop, rows


JILL = Order("Jill", ("flash drive", "MP3 player", "lava lamp", "book"))


def place(connection: uow.Connection, order: Order) -> str:
    """Sends an order as one unit and returns its id."""
    with connection.unit("megazon") as unit:
        for hop, goods in order.parts():
            unit.send({"customer": order.customer, "goods": goods, "packed": []}, to=hop)
    return unit.id


def crowd(count: int, seed: int) -> Iterator[Order]:
    """Customers with random orders, the same ones for the same seed."""
    chance = random.Random(seed)
    names = [item for item, _, _ in CATALOGUE]
    for number in range(1, count + 1):
        yield Order(f"customer {number}", tuple(chance.sample(names, chance.randint(2, 6))))


def main() -> None:
    parser = argparse.ArgumentParser(description="Place orders at Megazon.")
    parser.add_argument("--bootstrap", default="localhost:9092")
    parser.add_argument("--jill", action="store_true", help="Jill's order: flash drive, MP3 player, lava lamp, book")
    parser.add_argument("--customers", type=int, default=0, help="how many more")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--per-second", type=float, default=40, help="orders a second, at most")
    args = parser.parse_args()
    orders = [JILL] if args.jill else []
    with uow.connect(args.bootstrap) as connection:
        begin = time.monotonic()
        for number, order in enumerate([*orders, *crowd(args.customers, args.seed)]):
            time.sleep(max(0.0, begin + number / args.per_second - time.monotonic()))
            placed = {"order": place(connection, order), "customer": order.customer, "goods": len(order.goods)}
            print(json.dumps({**placed, "total": str(order.total)}), flush=True)


if __name__ == "__main__":
    main()
