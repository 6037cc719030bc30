"""`python -m uow.processor.sim --seeds 0..9999`: runs of the simulator for as long as one likes; `--seed N -v` plays one and prints its script.

Exit status 0: nothing found. 1: a seed found something; its number, what, and the end of its script are printed. 2: wrong usage.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor

from uow.processor.sim.simulation import SimulationReport, play

TAIL = 40
REPORT_EVERY_S = 30.0


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m uow.processor.sim", description="Simulated clusters, decided by seeds."
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, help="one run")
    which.add_argument("--seeds", type=_range, help="FIRST..LAST")
    parser.add_argument("-v", "--verbose", action="store_true", help="the whole script of a run")
    parser.add_argument("-j", "--jobs", type=int, default=1, help="processes")
    given = parser.parse_args(arguments)
    if given.seed is not None:
        report = play(given.seed)
        _print_report(report, len(report.script) if given.verbose else TAIL if report.violation else 0)
        return 1 if report.violation else 0
    return _many(given.seeds, given.jobs)


def _range(text: str) -> range:
    first, dots, last = text.partition("..")
    if not dots or not first.isdigit() or not last.isdigit():
        raise argparse.ArgumentTypeError("FIRST..LAST, for example 0..9999")
    return range(int(first), int(last) + 1)


def _many(seeds: range, jobs: int) -> int:
    began = reported = time.monotonic()
    found, runs, commits, units, crashes, zombies = [], 0, 0, 0, 0, 0
    for report in _reports(seeds, jobs):
        runs += 1
        commits, units = commits + report.commits, units + report.units
        crashes, zombies = crashes + report.crashes, zombies + report.zombies
        if report.violation:
            found.append(report.seed)
            _print_report(report, TAIL)
        if time.monotonic() - reported > REPORT_EVERY_S:
            reported = time.monotonic()
            print(f"{runs} of {len(seeds)} runs, {len(found)} violations", flush=True)
    seconds = time.monotonic() - began
    print(
        f"{runs} runs in {seconds:.0f} s ({runs / max(seconds, 0.001):.0f} a second): {commits} commits, {units} units, {crashes} kills, "
        f"{zombies} zombies, {len(found)} violations{': seeds ' + ', '.join(map(str, found)) if found else ''}"
    )
    return 1 if found else 0


def _reports(seeds: range, jobs: int) -> Iterable[SimulationReport]:
    if jobs < 2:
        yield from map(play, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(play, seeds, chunksize=20)


def _print_report(report: SimulationReport, lines: int) -> None:
    if lines:
        print(*report.script[-lines:], sep="\n")
    verdict = f"VIOLATION: {report.violation}" if report.violation else "nothing found"
    print(
        f"seed {report.seed}: {verdict} ({report.steps} steps, {report.commits} commits, {report.units} units)",
        flush=True,
    )
    if report.violation:
        print(f"again: python -m uow.processor.sim --seed {report.seed} -v", flush=True)


if __name__ == "__main__":
    sys.exit(main())
