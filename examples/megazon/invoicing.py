"""Megazon's invoicing: it writes one invoice for each complete order.

    python examples/megazon/invoicing.py

A unit arrives when it is complete, with its components in order, however late and on whatever way each of them came. The invoice
goes to the topic `invoices`; only then is the unit acknowledged. If this program dies in between, the unit is read again and its
invoice written again, with the same key: `unit_id` is the same for the same unit, so a reader of invoices can recognise it.
"""

from __future__ import annotations

import argparse
import signal
import sys
from decimal import Decimal
from types import FrameType
from typing import Any

import uow


def invoice(unit: uow.ReceivedUnit) -> dict[str, Any]:
    """The invoice: one list of all goods, with their total."""
    components = [component.json() for component in unit.components]
    lines = [{"item": row["item"], "price": row["price"]} for component in components for row in component["goods"]]
    total = sum((Decimal(line["price"]) for line in lines), Decimal())
    packed = [line for component in components for line in component["packed"]]
    return {
        "order": unit.id,
        "customer": components[0]["customer"],
        "lines": lines,
        "total": str(total),
        "packed": packed,
    }


def run(connection: uow.Connection) -> None:
    """Works until it is stopped."""
    with connection.units("megazon", group="invoicing") as units:
        print("invoicing open", flush=True)
        for unit in units:
            connection.send("megazon", invoice(unit), to="invoices", key=unit.unit_id)
            unit.acknowledge()


def on_term(signum: int, frame: FrameType | None) -> None:
    sys.exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write an invoice for each whole order.")
    parser.add_argument("--bootstrap", default="localhost:9092")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, on_term)
    with uow.connect(args.bootstrap, client_id="invoicing", reconnect_policy="all") as connection:
        try:
            run(connection)
        except KeyboardInterrupt:
            pass


if __name__ == "__main__":
    main()
