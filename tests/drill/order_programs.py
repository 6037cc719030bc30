"""Programs that are killed while they read or forward a strict destination: `python order_programs.py read|forward BOOTSTRAP D OUT`."""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

import uow
from uow import errors

SHORT = {"session.timeout.ms": 1500, "heartbeat.interval.ms": 300}
"""A reader that was killed is missed soon."""


def read(connection: uow.Connection, destination: str, out: str) -> None:
    """Writes the number of each record, or the id of each unit, to a file before it is acknowledged."""
    with Path(out).open("ab", buffering=0) as file:
        reader = connection.units(destination, group="reader", include_plain=True, kafka=SHORT)

        def handle(message: uow.Message | uow.ReceivedUnit) -> None:
            number = message.id.encode() if isinstance(message, uow.ReceivedUnit) else message.value or b""
            file.write(number + b"\n")
            time.sleep(random.random() / 500)

        reader.run(handle)


def forward(connection: uow.Connection, destination: str, out: str) -> None:
    """Sends each record on, after a moment that differs."""
    reader = connection.messages(f"{destination}.units", group="forwarder", kafka=SHORT)

    def handle(message: uow.Message) -> None:
        time.sleep(random.random() / 500)
        connection.forward(message, to=out)

    reader.run(handle)


if __name__ == "__main__":
    what, bootstrap, destination, out = sys.argv[1:]
    print("begins", os.getpid(), flush=True)
    while True:
        try:
            with uow.connect(bootstrap, client_id=f"{destination}-{what}") as connection:
                {"read": read, "forward": forward}[what](connection, destination, out)
        except (
            errors.StaleConnectionError,
            errors.TransactionRolledBackError,
            errors.CommitOutcomeUnknownError,
        ) as failure:
            print(type(failure).__name__, failure, flush=True)
        except errors.DestinationUnavailableError as failure:
            print(failure, flush=True)
            time.sleep(0.2)
