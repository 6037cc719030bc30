"""A projector: it shows a film frame by frame in order, without ever having the whole film in memory.

python examples/large_unit/projector.py --films 3
"""

from __future__ import annotations

import argparse
import resource
import sys

import uow


def show(film: uow.StreamedUnit) -> int:
    """Shows a film and returns its size in bytes. Each frame is read when it is needed."""
    shown = 0
    for number, frame in enumerate(film.components, 1):
        value = frame.value or b""
        assert value.startswith(b"frame %d " % number)
        shown += len(value)
    return shown


def peak_bytes() -> int:
    """The peak memory of this process."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description="Show films, and the memory that this needs.")
    parser.add_argument("--bootstrap", default="localhost:9092")
    parser.add_argument("--films", type=int, default=3)
    args = parser.parse_args()
    with (
        uow.connect(args.bootstrap, client_id="projector", reconnect_policy="all") as connection,
        connection.stream("films", group="projector") as films,
    ):
        for _ in range(args.films):
            film = next(films)
            before = peak_bytes()
            shown = show(film)
            film.acknowledge()
            grown = (peak_bytes() - before) / 1e6
            print(f"{film.id}: {film.size} frames, {shown} bytes; memory grew by {grown:.1f} MB", flush=True)


if __name__ == "__main__":
    main()
