"""`python -m bench.spark`: the sink, a plain Kafka-to-Parquet query, and one that decodes units into a Delta table and does nothing else, drain the same
preloaded `D.units`, by turns.

Each is a process with a JVM of its own, started by the same function. Units per second count from the moment when its checkpoint has the first batch
planned to the end of the process, CPU over the whole process; the CPU from that moment on is beside it.

Then worker and sink together, and Spark alone (`bench.spark_grouping`), take the same preloaded `D.components`, by turns.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from uuid import uuid4

import psutil
import pyarrow.dataset as arrow
from rich.console import Console

from bench.__main__ import Results, Say, markdown, table
from bench.drain import BenchBroker, scratch
from bench.finished_units import FinishedUnits, preload
from bench.programs import Program
from bench.workloads import WORKLOADS, produce
from uow.embedded.broker import EmbeddedBroker, Tier

UNITS = 100_000
ROUNDS = 2
GROUPED_UNITS = 10_000
RUN_S = 900.0


@dataclass(frozen=True, slots=True)
class Load:
    """One run of one program.

    Attributes:
        per_s: Units per second, from the first planned batch to the end of the process.
        cpu_s: CPU seconds of the process tree in that time.
        whole_s: Seconds from the start of the process to its end.
        whole_cpu_s: CPU seconds of the process tree over that time.
        peak_mb: The largest sum of the peak resident memories of the tree.
    """

    per_s: float
    cpu_s: float
    whole_s: float
    whole_cpu_s: float
    peak_mb: float

    def compared_to(self, other: Load) -> dict[str, float]:
        """Ratios of speed and of CPU."""
        return {"speed": self.per_s / other.per_s, "whole_cpu": self.whole_cpu_s / other.whole_cpu_s}


class Tree:
    """CPU and memory of a process and its descendants, which may end before it."""

    def __init__(self, root: psutil.Process) -> None:
        self._root = root
        self._cpu: dict[int, float] = {}
        self._peak: dict[int, int] = {}

    def look(self) -> float:
        """CPU seconds of all processes that were ever seen."""
        try:
            seen = [self._root, *self._root.children(recursive=True)]
        except psutil.NoSuchProcess:
            seen = []
        for process in seen:
            try:
                times = process.cpu_times()
                self._cpu[process.pid] = times.user + times.system
                self._peak[process.pid] = max(self._peak.get(process.pid, 0), process.memory_info().rss)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return sum(self._cpu.values())

    def has_ended(self) -> bool:
        """Looks once more; true once the first process has ended."""
        self.look()
        return not self._root.is_running() or self._root.status() == psutil.STATUS_ZOMBIE

    @property
    def peak_bytes(self) -> int:
        """Sum of the processes' peaks."""
        return sum(self._peak.values())


def measure(log: Path, command: Sequence[str], planned: Path, units: int) -> Load:
    """Runs a program to its end.

    Args:
        log: File for its output.
        command: The program.
        planned: The file in its checkpoint that says that the first batch is planned.
        units: Number of units that it drains.
    """
    begun = time.perf_counter()
    with Program(log, *command) as program:
        tree = Tree(program.process)
        program.wait(planned.exists, "planning a first batch", RUN_S)
        first, before = time.perf_counter(), tree.look()
        program.wait(tree.has_ended, "draining", RUN_S, 0.1)
        last, after = time.perf_counter(), tree.look()
        program.wait_end(RUN_S)
    return Load(units / (last - first), after - before, last - begun, after, tree.peak_bytes / 1e6)


@dataclass(frozen=True, slots=True)
class SparkBench:
    """One preloaded destination and the programs that drain it."""

    place: BenchBroker
    units: int

    def preload(self) -> str:
        """Fills `D.units` of a new destination; its name."""
        destination = self.place.destination("spark")
        topics = self.place.create(self.place.application(), destination)
        preload(self.place.bootstrap, FinishedUnits(topics, self.units))
        return destination

    def plain(self, destination: str, folder: Path) -> Load:
        """The plain query; its rows are counted."""
        return self._query("bench.plain_query", destination, folder)

    def decoded(self, destination: str, folder: Path) -> Load:
        """The query that decodes units into a Delta table, and does nothing else; its rows are counted."""
        return self._query("bench.decoded_query", destination, folder)

    def tuned(self, destination: str, folder: Path) -> Load:
        """The same with the sink's properties of Spark, of Parquet and of the JVM."""
        return self._query("bench.decoded_query", destination, folder, "tuned")

    def _query(self, module: str, destination: str, folder: Path, *options: str) -> Load:
        command = [sys.executable, "-m", module, self.place.bootstrap, f"{destination}.units", str(folder), *options]
        done = measure(folder / "log", command, folder / "checkpoint" / "offsets" / "0", self.units)
        self.check(folder / "table")
        return done

    def sink(self, destination: str, folder: Path, *options: str) -> Load:
        """`uow sink --once`; its rows are counted."""
        config = self.place.config(self.place.application(), destination)
        uow = str(Path(sys.executable).with_name("uow"))
        command = [uow, "sink", "-c", str(config), "--tables", str(folder / "tables"), "--once", *options]
        planned = folder / "tables" / "_checkpoints" / destination / "offsets" / "0"
        done = measure(folder / "log", command, planned, self.units)
        self.check(folder / "tables" / destination / "units")
        return done

    def check(self, folder: Path) -> None:
        """Counts the rows in the Parquet files of a folder; raises `RuntimeError` if they are not as many as the units."""
        rows = arrow.dataset(list(map(str, folder.glob("*.parquet"))), format="parquet").count_rows()
        if rows != self.units:
            raise RuntimeError(f"{folder} has {rows} rows, not {self.units}")


@dataclass(frozen=True, slots=True)
class Grouped:
    """One run from components to a Delta table of units.

    Attributes:
        per_s: Units per second, from the start of the processes to their end.
        cpu_s: CPU seconds of the process trees over that time.
    """

    per_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class GroupingBench:
    """Components of a destination, preloaded without repetitions, and the two ways from them to a table."""

    place: BenchBroker
    units: int

    def preload(self) -> str:
        """Fills `D.components` of a new destination; its name, another one each time."""
        destination = self.place.destination(f"grouping-{uuid4().hex[:6]}")
        topics = self.place.create(self.place.application(), destination)
        produce(self.place.bootstrap, topics.components, replace(WORKLOADS["w5"], duplicates=0.0, units=self.units))
        return destination

    def worker_and_sink(self, destination: str, folder: Path) -> Grouped:
        """`uow worker` until everything is read, then `uow sink --once`."""
        application = self.place.application()
        topics = self.place.create(application, destination)
        ends = self.place.ends(topics.components)
        begun = time.perf_counter()
        with (
            self.place.committed(application, topics.components) as committed,
            self.place.worker(application, destination) as worker,
        ):
            worker.wait_output("ready")  # before, a new broker may have no coordinator to ask
            worker.wait(lambda: committed() == ends, "the worker drains", RUN_S)
            worked, cpu_s = time.perf_counter() - begun, worker.usage().cpu_s
        written = SparkBench(self.place, self.units).sink(destination, folder)
        return Grouped(self.units / (worked + written.whole_s), cpu_s + written.whole_cpu_s)

    def spark_alone(self, destination: str, folder: Path) -> Grouped:
        """`transformWithState`."""
        command = [sys.executable, "-m", "bench.spark_grouping", self.place.bootstrap]
        command += [f"{destination}.components", str(folder)]
        bench = SparkBench(self.place, self.units)
        done = measure(folder / "log", command, folder / "checkpoint" / "offsets" / "0", self.units)
        bench.check(folder / "table")
        return Grouped(self.units / done.whole_s, done.whole_cpu_s)


def run(place: BenchBroker, units: int, rounds: int, say: Say) -> Results:
    """Both programs by turns; ratios are between neighbours of a round."""
    results, bench = Results(), SparkBench(place, units)
    say("preloading")
    destination = bench.preload()
    for number in range(rounds):
        turns: dict[str, Callable[[str, Path], Load]] = {
            "plain query": bench.plain,
            "decoded query": bench.decoded,
            "decoded query, tuned": bench.tuned,
            "sink": bench.sink,
        }
        done: dict[str, Load] = {}
        for name in turns if number % 2 == 0 else reversed(turns):
            folder = place.folder / f"{name}-{number}"
            folder.mkdir()
            done[name] = turns[name](destination, folder)
            shutil.rmtree(folder)
        plain, by_hand = done["plain query"], done["decoded query"]
        for name, load in done.items():
            to_plain = {} if load is plain else load.compared_to(plain)
            to_query = (
                {f"{ratio}_by_hand": of for ratio, of in load.compared_to(by_hand).items()} if name == "sink" else {}
            )
            results.add(name, asdict(load) | to_plain | to_query)
        ratios = done["sink"].compared_to(by_hand)
        say(
            f"round {number + 1}: sink {done['sink'].per_s:,.0f} units/s: {ratios['speed']:.2f} x the rows per second "
            f"of the decoded query, {ratios['whole_cpu']:.2f} x its CPU"
        )
    return results


def run_grouping(place: BenchBroker, units: int, rounds: int, say: Say) -> Results:
    """Both ways from components to units by turns. Each round has a destination of its own, as the worker fills its `D.units`."""
    results, bench = Results(), GroupingBench(place, units)
    for number in range(rounds):
        destination = bench.preload()
        turns = {"worker + sink": bench.worker_and_sink, "transformWithState": bench.spark_alone}
        for name in turns if number % 2 == 0 else reversed(turns):
            folder = place.folder / f"{name}-{number}"
            folder.mkdir()
            done = turns[name](destination, folder)
            shutil.rmtree(folder)
            results.add(name, asdict(done))
            say(f"round {number + 1}: {name} {done.per_s:,.0f} units/s, {done.cpu_s:.1f} CPU s")
    return results


COLUMNS = (
    ("per_s", "units/s", "{:,.0f}"),
    ("speed", "x the rows/s", "{:.2f}"),
    ("whole_cpu_s", "CPU s", "{:.1f}"),
    ("whole_cpu", "x the CPU", "{:.2f}"),
    ("speed_by_hand", "x the rows/s of the decoded query", "{:.2f}"),
    ("whole_cpu_by_hand", "x its CPU", "{:.2f}"),
    ("cpu_s", "CPU s from the first batch on", "{:.1f}"),
    ("whole_s", "s with start", "{:.1f}"),
    ("peak_mb", "peak MB", "{:.0f}"),
)
GROUPED_COLUMNS = (("per_s", "units/s", "{:,.0f}"), ("cpu_s", "CPU s", "{:.1f}"))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=__doc__)
    parser.add_argument("--units", type=int, default=UNITS, help="units of the first comparison; 0 for none")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--grouped", type=int, default=GROUPED_UNITS, help="units of the second comparison; 0 for none")
    parser.add_argument("--markdown", action="store_true", help="print the table as docs/benchmarks.md has it")
    given = parser.parse_args(arguments)
    console = Console(stderr=True)
    with scratch() as folder, EmbeddedBroker(heap="1g", tier=Tier.FULL) as broker:
        place = BenchBroker(broker.bootstrap, Path(folder), broker.data)
        say = partial(console.print, highlight=False)
        found: list[tuple[Results, tuple[tuple[str, str, str], ...]]] = []
        if given.units:
            found.append((run(place, given.units, given.rounds, say), COLUMNS))
        if given.grouped:
            found.append((run_grouping(place, given.grouped, given.rounds, say), GROUPED_COLUMNS))
    for results, columns in found:
        if given.markdown:
            print(markdown(results, columns))
        else:
            Console(width=None if sys.stdout.isatty() else 160).print(table(results, columns))
    return 0


if __name__ == "__main__":
    sys.exit(main())
