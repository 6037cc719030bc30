"""A supplier: takes a component of an order, packs its goods, and sends the component on, exactly once.

    python examples/megazon/supplier.py gadget-planet --to widget-world
    python examples/megazon/supplier.py widget-world --to megazon
    python examples/megazon/supplier.py desperate-housewares --to megazon

It need not know about units: `forward` keeps the key and every header, and commits the sent messages together with the read
position. With `--twice 10` it sends each tenth component twice by mistake, which Megazon must notice.
"""

from __future__ import annotations

import argparse
import signal
import sys
from itertools import count
from types import FrameType
from typing import Any

import uow

DESTINATION = "megazon"
TOGETHER_MS = 50
"""Time in which forwarded messages share a transaction."""


def packed(supplier: str, value: dict[str, Any]) -> dict[str, Any]:
    """The component with a fulfilment line of this supplier."""
    mine = [row["item"] for row in value["goods"] if row["from"] == supplier]
    line = {"supplier": supplier, "items": mine}
    return {**value, "packed": [*value["packed"], line]}


def run(connection: uow.Connection, supplier: str, to: str, twice: int) -> None:
    """Works until it is stopped."""
    topic, destination = (None, to) if to == DESTINATION else (to, None)
    with connection.messages(supplier, group=supplier, commit_interval_ms=TOGETHER_MS) as inbox:
        print(f"{supplier} open", flush=True)
        for number, message in zip(count(1), inbox):
            value = packed(supplier, message.json())
            connection.forward(message, topic, destination=destination, value=value)
            if twice and number % twice == 0:
                connection.forward(message, topic, destination=destination, value=value)
                print(f"{supplier} forwarded {message.id} twice", flush=True)


def on_term(signum: int, frame: FrameType | None) -> None:
    sys.exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description="A supplier of Megazon.")
    parser.add_argument("name", help="the topic it reads, and its consumer group")
    parser.add_argument("--to", required=True, help=f"the next supplier, or {DESTINATION}")
    parser.add_argument("--twice", type=int, default=0, metavar="N", help="forward each Nth component twice")
    parser.add_argument("--bootstrap", default="localhost:9092")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, on_term)
    with uow.connect(args.bootstrap, client_id=args.name, reconnect_policy="all") as connection:
        try:
            run(connection, args.name, args.to, args.twice)
        except KeyboardInterrupt:
            pass


if __name__ == "__main__":
    main()
