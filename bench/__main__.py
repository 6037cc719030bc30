"""`python -m bench [WHAT ...]`: everything on one embedded broker, in turn, several rounds, as medians with the range beside them."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import by_rule, client_asyncio, client_reads, client_sends, hot, latency, routing, takeover
from bench.drain import BenchBroker, Drain, scratch
from bench.restore_times import Restores
from bench.workloads import WORKLOADS, Workload, produce
from uow.embedded.broker import EmbeddedBroker, Tier

Numbers = Mapping[str, float]

FAUST_RECORDS = 60_000
DRAINED = ("w5", "w5-absent", "w100", "w10k", "w1")


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """Options of the command line."""

    what: Sequence[str]
    rounds: int
    records: int | None
    seconds: float
    rate: int


@dataclass(slots=True)
class Series:
    """One figure over the rounds."""

    values: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def as_dict(self) -> dict[str, float]:
        return {"median": self.median, "min": min(self.values), "max": max(self.values)}


@dataclass(slots=True)
class Results:
    """Series by run and figure: `results["w5 worker"]["cpu_us"]`."""

    series: dict[str, dict[str, Series]] = field(default_factory=dict)

    def add(self, run: str, numbers: Numbers) -> None:
        for name, value in numbers.items():
            self.series.setdefault(run, {}).setdefault(name, Series()).values.append(value)

    def as_dict(self) -> dict[str, dict[str, dict[str, float]]]:
        return {run: {name: one.as_dict() for name, one in each.items()} for run, each in self.series.items()}


Say = Callable[[str], None]


def drains(place: BenchBroker, asked: BenchOptions, results: Results, say: Say) -> None:
    """Comparison loops and worker by turns; ratios are between neighbours, so that both met the same machine."""
    for name in (each for each in DRAINED if each in asked.what):
        workload = WORKLOADS[name] if asked.records is None else WORKLOADS[name].of(asked.records)
        say(f"{name}: preloading")
        place.preload(workload)
        for number in range(asked.rounds):
            bare = _drain(place, "bare", name, workload.units)
            worker = _drain(place, "worker", name, workload.units)
            ratios = {"ratio": worker.cpu_us / bare.cpu_us}
            if name == "w5":
                ratios |= _prices(place, asked, results, worker.cpu_us)
            results.add(f"{name} bare", bare.as_dict())
            results.add(f"{name} worker", worker.as_dict() | ratios)
            say(f"{name} round {number + 1}: bare {bare.cpu_us:.2f} µs, worker {worker.cpu_us:.2f} µs a component")


def _prices(place: BenchBroker, asked: BenchOptions, results: Results, cpu_us: float) -> dict[str, float]:
    """The worker's CPU to that of workers that promise less; and beside them the one that writes every survivor at once."""
    units = _preloaded_w5(place, asked).units
    forgetful = _drain(place, "forgetful", "w5", units)
    changelog = _drain(place, "changelog", "w5", units)
    results.add("w5 keeps nothing", forgetful.as_dict())
    untransacted = _drain(place, "untransacted", "w5", units)
    results.add("w5 no replay", changelog.as_dict() | {"price": changelog.cpu_us / forgetful.cpu_us})
    results.add("w5 no transactions", untransacted.as_dict())
    return {"price": cpu_us / forgetful.cpu_us, "transactions": cpu_us / untransacted.cpu_us}


def _preloaded_w5(place: BenchBroker, asked: BenchOptions) -> Workload:
    workload = WORKLOADS["w5"] if asked.records is None else WORKLOADS["w5"].of(asked.records)
    if "w5" not in place.preloaded:
        place.preload(workload)
    return workload


def _drain(place: BenchBroker, kind: str, name: str, units: int) -> Drain:
    done = place.drain(kind, place.destination(name))
    if done.units != units:
        raise RuntimeError(f"{kind} made {done.units} units of {name}, not {units}")
    return done


def plain_faust(place: BenchBroker, asked: BenchOptions, results: Results, say: Say) -> None:
    """On few records, as it is slow; the worker by turns on all of W5."""
    workload = _preloaded_w5(place, asked)
    topics = place.create(place.application(), place.destination("faust"))
    produce(place.bootstrap, topics.components, workload.of(min(FAUST_RECORDS, workload.units * workload.components)))
    for number in range(asked.rounds):
        plain = place.drain("plain_faust", place.destination("faust"))
        worker = _drain(place, "worker", "w5", workload.units)
        results.add("w5 plain faust", plain.as_dict() | {"ratio": plain.cpu_us / worker.cpu_us})
        say(f"w5 round {number + 1}: plain Faust {plain.cpu_us:.1f} µs, worker {worker.cpu_us:.2f} µs a component")


def restores(place: BenchBroker, asked: BenchOptions, results: Results, say: Say) -> None:
    say("restore: filling changelogs")
    each = Restores(place, asked.records or 100_000)
    for number in range(asked.rounds):
        for case in each.CASES:
            done = each.measure(case)
            results.add(f"restore {case}", done)
            say(f"restore {case} round {number + 1}: {done['per_s']:,.0f} held components/s")


def latencies(place: BenchBroker, asked: BenchOptions, results: Results, say: Say) -> None:
    for number in range(asked.rounds):
        done = latency.measure(place, asked.seconds, asked.rate)
        results.add(f"latency at {asked.rate}/s", done)
        say(f"latency round {number + 1}: p50 {done['p50_ms']:.1f} ms, p99 {done['p99_ms']:.1f} ms")


def takeovers(place: BenchBroker, asked: BenchOptions, results: Results, say: Say) -> None:
    for number, case in itertools.product(range(asked.rounds), takeover.CASES):
        seconds = takeover.measure(place, asked.records or 100_000, case)
        results.add(f"takeover, {case}", {"takeover_s": seconds})
        say(f"takeover round {number + 1}, {case}: {seconds:.1f} s")


def sends(place: BenchBroker, asked: BenchOptions, results: Results, say: Say) -> None:
    for number, way in itertools.product(range(asked.rounds), client_sends.WAYS):
        done = client_sends.measure(place, asked.records or 40_000, way)
        results.add(f"client sends, {way}", done)
        say(f"client sends round {number + 1}, {way}: {done['us']:.1f} µs, bare {done['bare_us']:.1f} µs a record")


def asyncio_client(place: BenchBroker, asked: BenchOptions, results: Results, say: Say) -> None:
    for number, way in itertools.product(range(asked.rounds), client_asyncio.WAYS):
        done = client_asyncio.measure(place, asked.records or 40_000, way)
        results.add(f"asyncio, {way}", done)
        say(f"asyncio round {number + 1}, {way}: {done['cpu_us']:.1f} µs CPU, {done['cpu_ratio']:.2f} x the library's")


def reads(place: BenchBroker, asked: BenchOptions, results: Results, say: Say) -> None:
    for number in range(asked.rounds):
        done = client_reads.measure(place, asked.records or 40_000)
        results.add("strict reader", done)
        say(f"strict reader round {number + 1}: {done['cpu_us']:.1f} µs CPU, {done['cpu_ratio']:.2f} x a plain one")


def hot_path(asked: BenchOptions, results: Results, say: Say) -> None:
    for name in DRAINED:
        done = hot.measure(min(asked.records or 50_000, 50_000), 2 + 2 * asked.rounds, name)
        results.add(f"hot {name}", done)
        say(f"hot {name}: {done['process']:.2f} µs a component, {done['ratio']:.2f} x a dictionary loop")


def groups_by_rule(asked: BenchOptions, results: Results, say: Say) -> None:
    for name, measure, most in (("count10", by_rule.count_ten, 100_000), ("ages", by_rule.ages, 100_000)):
        if name in asked.what:
            done = measure(min(asked.records or most, most), 1 + asked.rounds)
            results.add(TITLES[name], done)
            say(f"{TITLES[name]}: {done['us']:.2f} µs a component, {done['ratio']:.2f} x")


TITLES = {"count10": "count(10), w5 as bare", "ages": "open groups with ages, without as bare"}


def routers(place: BenchBroker, asked: BenchOptions, results: Results, say: Say) -> None:
    each = routing.Routing(place, asked.records or 200_000)
    for number in range(asked.rounds):
        done = each.measure()
        results.add("router", done)
        say(f"router round {number + 1}: {done['us']:.2f} µs, bare {done['bare_us']:.2f} µs a record")


ON_BROKER: dict[str, Callable[[BenchBroker, BenchOptions, Results, Say], None]] = {
    "faust": plain_faust,
    "restore": restores,
    "latency": latencies,
    "takeover": takeovers,
    "client": sends,
    "asyncio": asyncio_client,
    "reads": reads,
    "router": routers,
}
IN_MEMORY = ("hot", "count10", "ages")
WHAT = (*IN_MEMORY, *DRAINED, *ON_BROKER)


def run(asked: BenchOptions, say: Say, heap: str = "1g", tier: Tier = Tier.FULL) -> Results:
    """Everything asked for, on one broker."""
    results = Results()
    if "hot" in asked.what:
        hot_path(asked, results, say)
    groups_by_rule(asked, results, say)
    if set(asked.what) <= set(IN_MEMORY):
        return results
    with (
        scratch() as folder,
        EmbeddedBroker(
            heap=heap,
            tier=tier,
            jvm_flags=[f"-Xms{heap}"],  # of one size, as Kafka's own start script has it
        ) as broker,
    ):
        place = BenchBroker(broker.bootstrap, Path(folder), broker.data)
        drains(place, asked, results, say)
        for name, measure in ON_BROKER.items():
            if name in asked.what:
                measure(place, asked, results, say)
    return results


Columns = Sequence[tuple[str, str, str]]
"""Key, title and format of each figure."""

COLUMNS: Columns = (
    ("cpu_us", "CPU µs/component", "{:.2f}"),
    ("process", "CPU µs/component", "{:.2f}"),
    ("us", "µs/record", "{:.1f}"),
    ("bare_us", "bare µs/record", "{:.1f}"),
    ("bare_cpu_us", "bare CPU µs/record", "{:.1f}"),
    ("ratio", "ratio", "{:.2f}"),
    ("cpu_ratio", "CPU ratio", "{:.2f}"),
    ("price", "to keeping nothing", "{:.2f}"),
    ("transactions", "to no transactions", "{:.2f}"),
    ("per_s", "per second", "{:,.0f}"),
    ("peak_mb", "peak MB", "{:.0f}"),
    ("internal", "internal bytes/input byte", "{:.3f}"),
    ("p50_ms", "p50 ms", "{:.1f}"),
    ("p99_ms", "p99 ms", "{:.1f}"),
    ("takeover_s", "takeover s", "{:.1f}"),
)


def table(results: Results, columns: Columns = COLUMNS) -> Table:
    """Median, and the range over the rounds."""
    shown = Table(title="median (least to most over the rounds)")
    shown.add_column("run")
    for title in dict.fromkeys(title for _, title, _ in columns):
        shown.add_column(title, justify="right")
    for run_name, series in results.series.items():
        shown.add_row(run_name, *_cells(series, columns))
    return shown


def _cells(series: Mapping[str, Series], columns: Columns) -> list[str]:
    cells = dict.fromkeys((title for _, title, _ in columns), "")
    for key, title, form in columns:
        if key in series:
            one = series[key]
            cells[title] = form.format(one.median)
            if len(one.values) > 1:
                cells[title] += f" ({form.format(min(one.values))} to {form.format(max(one.values))})"
    return list(cells.values())


def markdown(results: Results, columns: Columns = COLUMNS) -> str:
    """The same for a page."""
    titles = ["Run", *dict.fromkeys(title for _, title, _ in columns)]
    rows = [titles, ["---", *["---:"] * (len(titles) - 1)]]
    rows += [[run_name, *_cells(series, columns)] for run_name, series in results.series.items()]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("what", nargs="*", metavar="WHAT", help=f"{', '.join(WHAT)}; default: all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, help="about so many records a workload")
    parser.add_argument("--seconds", type=float, default=40.0, help="of a latency round")
    parser.add_argument("--rate", type=int, default=2_000, help="components a second in a latency round")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON instead of a table")
    form.add_argument("--markdown", action="store_true", help="print the table as docs/benchmarks.md has it")
    given = parser.parse_args(arguments)
    if unknown := set(given.what) - set(WHAT):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    asked = BenchOptions(given.what or WHAT, given.rounds, given.records, given.seconds, given.rate)
    console = Console(stderr=True)
    results = run(asked, lambda line: console.print(line, highlight=False))
    if given.json:
        document: dict[str, Any] = {
            "cores": os.cpu_count(),
            "python": sys.version.split()[0],
            "runs": results.as_dict(),
        }
        print(json.dumps(document, indent=2))
    elif given.markdown:
        print(markdown(results))
    else:
        Console(width=None if sys.stdout.isatty() else 160).print(table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
