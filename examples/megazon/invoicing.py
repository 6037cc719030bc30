"""Megazon's invoicing: one whole order in, one invoice out.

    python examples/megazon/invoicing.py

A unit arrives once it is whole, its components in order, whatever way and however late each of them came. The invoice goes to
the topic `invoices`; only then is the unit acknowledged. Should this program die in between, the unit comes again and so does
its invoice, under the same key: `unit_id` is the same for the same unit, so whoever reads invoices can tell.
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
    """One list of all goods, and what they cost together."""
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
    with uow.connect(args.bootstrap, client_id="invoicing") as connection:
        try:
            run(connection)
        except KeyboardInterrupt:
            pass


if __name__ == "__main__":
    main()
