"""`python -m bench.audit`: `uow sink --once` and `uow audit` of the same components, one after the other, each a process with a JVM of its own.

A worker has made the units before. The audit is one of everything, and has to find no difference.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from bench.__main__ import Results, Say, markdown, table
from bench.drain import BenchBroker, scratch
from bench.programs import Program
from bench.spark import RUN_S, GroupingBench, Tree
from uow.embedded.broker import EmbeddedBroker, Tier

UNITS = 100_000
"""Of five components each."""
COLUMNS = (
    ("whole_s", "s with start", "{:.1f}"),
    ("times", "x the sink's", "{:.2f}"),
    ("cpu_s", "CPU s", "{:.1f}"),
    ("peak_mb", "peak MB", "{:.0f}"),
)


def measure(log: Path, command: str, config: Path, *options: str) -> dict[str, float]:
    """Runs a command of `uow` to its end; raises if it fails, as an audit does that finds a difference."""
    uow, begun = str(Path(sys.executable).with_name("uow")), time.perf_counter()
    with Program(log, uow, command, "-c", str(config), "--tables", str(log.parent / "tables"), *options) as program:
        tree = Tree(program.process)
        program.wait(tree.has_ended, "ending", RUN_S, 0.1)
        whole_s, cpu_s = time.perf_counter() - begun, tree.look()
        program.wait_end(RUN_S)
    return {"whole_s": whole_s, "cpu_s": cpu_s, "peak_mb": tree.peak_bytes / 1e6}


def units_of_a_worker(place: BenchBroker, units: int) -> tuple[str, Path]:
    """A new destination with so many units, and the configuration of the worker that made them."""
    destination, application = GroupingBench(place, units).preload(), place.application()
    components = place.create(application, destination).components
    ends = place.ends(components)
    with place.committed(application, components) as committed, place.worker(application, destination) as worker:
        worker.wait_output("ready")  # before, a new broker may have no coordinator to ask
        worker.wait(lambda: committed() == ends, "the worker drains", RUN_S)
    return destination, place.config(application, destination)


def run(place: BenchBroker, units: int, rounds: int, say: Say) -> Results:
    """Sink and audit, each round of a destination of its own; the ratio is between neighbours."""
    results = Results()
    for number in range(rounds):
        say("preloading")
        destination, config = units_of_a_worker(place, units)
        folder = place.folder / destination
        folder.mkdir()
        sink = measure(folder / "sink", "sink", config, "--once")
        audit = measure(folder / "audit", "audit", config)
        results.add("sink", sink)
        results.add("audit", audit | {"times": audit["whole_s"] / sink["whole_s"]})
        say(f"round {number + 1}: sink {sink['whole_s']:.1f} s, audit {audit['whole_s']:.1f} s")
    return results


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.audit", description=__doc__)
    parser.add_argument("--units", type=int, default=UNITS)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--markdown", action="store_true", help="print the table as docs/benchmarks.md has it")
    given = parser.parse_args(arguments)
    say = partial(Console(stderr=True).print, highlight=False)
    with scratch() as folder, EmbeddedBroker(heap="1g", tier=Tier.FULL) as broker:
        results = run(BenchBroker(broker.bootstrap, Path(folder), broker.data), given.units, given.rounds, say)
    if given.markdown:
        print(markdown(results, COLUMNS))
    else:
        Console(width=160).print(table(results, COLUMNS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
