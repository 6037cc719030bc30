"""A film scanner: each film is a unit, each frame a component, sent as it is scanned.

python examples/large_unit/scanner.py --frames 1000 --bytes 100000
"""

from __future__ import annotations

import argparse
import os

import uow


def scan(connection: uow.Connection, film: str, frames: int, size: int) -> None:
    """Sends the frames one by one with explicit numbers, since one transaction for the whole film would stay open too long."""
    for number in range(1, frames + 1):
        frame = b"frame %d " % number + os.urandom(size)
        connection.send("films", frame, id=film, seq=number, end=number == frames)
    print(f"sent {film}: {frames} frames of {size} bytes", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Send two small films and a large one between them.")
    parser.add_argument("--bootstrap", default="localhost:9092")
    parser.add_argument("--frames", type=int, default=1000)
    parser.add_argument("--bytes", type=int, default=100_000)
    args = parser.parse_args()
    with uow.connect(args.bootstrap, client_id="scanner", reconnect_policy="all") as connection:
        scan(connection, "trailer", 3, 1_000)
        scan(connection, "feature", args.frames, args.bytes)
        scan(connection, "credits", 3, 1_000)


if __name__ == "__main__":
    main()
