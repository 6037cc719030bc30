"""Results of long runs: `docs/measurements.csv`, one row for each, and the tables that `make docs` makes from it; README's costs.

    python -m tools.measured REPORT.json REVISION [REMARK]       adds the row of a `uow prove`

Belongs here: the rows, and the promise that each kind of run is evidence for. Does not belong here: measuring.
"""

from __future__ import annotations

import csv
import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from uow.prove.faults import KILLS, FaultKind

MEASUREMENTS = Path("docs") / "measurements.csv"
ROOT = Path(__file__).resolve().parent.parent
ALL = "all"

Row = Mapping[str, str]

PROMISES: Mapping[str, Sequence[str]] = {
    "1. Whole or nothing": ("prove", "sim"),
    "2. Once": ("prove", "sim", "late ends"),
    "3. In order": ("prove", "sim"),
    "4. Nothing vanishes": ("prove", "sim"),
    "5. Deadlines are absolute": ("prove", "sim"),
    "6. Bad input is data": ("prove", "sim"),
}
"""Kinds of run that check each promise: by the checks of `uow.prove.proof_report`, and those of `docs/simulator.md`."""

RUN_COLUMNS = {
    "date": "Date",
    "revision": "Revision",
    "seed": "Seed",
    "workers": "Workers",
    "faults": "Faults",
    "rounds": "Rounds",
    "minutes": "Minutes",
    "kills": "kill -9",
    "at_a_step": "of them at a named step",
    "others": "Others",
    "records": "Records",
    "units": "Units",
    "rejected": "Rejected",
    "expired": "Groups expired",
    "anomalies": "Anomalies",
    "remark": "",
}


COUNTS = ("records", "units", "rejected", "expired")

GUARANTEES, PROVE = Path("docs") / "guarantees.md", Path("docs") / "prove.md"
README, BENCHMARKS = Path("README.md"), Path("docs") / "benchmarks.md"
BEGIN = "<!-- Written by `make docs` from `{}`. Do not edit. -->\n\n"
END = "\n<!-- End of what is written. -->"


def guarantees_page() -> str:
    """The page with the present figures of the promises."""
    return _filled(GUARANTEES, MEASUREMENTS, promises_table(rows()))


def prove_page() -> str:
    """The page with all present runs."""
    return _filled(PROVE, MEASUREMENTS, runs_table(rows()))


def readme() -> str:
    """README with the present costs."""
    return _filled(README, BENCHMARKS, costs((ROOT / BENCHMARKS).read_text(encoding="utf-8")))


def costs(benchmarks: str) -> str:
    """README's paragraph about costs, from the results that the page of the benchmarks has.

    Those are the rows `w5 worker` and `w5 plain faust` of the first table that has them, and the sentence that begins with "Latency at 2,000 a second".
    """

    def figures(pattern: str) -> tuple[str, ...]:
        found = re.search(pattern, benchmarks, re.MULTILINE | re.DOTALL)
        if found is None:
            raise ValueError(f"{BENCHMARKS} has no {pattern}")
        return found.groups()

    spread = r"([\d.]+) \(([\d.]+) to ([\d.]+)\)"
    worker, _, _, bare, least, most = figures(rf"^\| w5 worker \| {spread} \| {spread} \|")
    (faust,) = figures(r"^\| w5 plain faust \| [^|]*\| ([\d.]+) ")
    p50, p99 = figures(r"^Latency at 2,000 a second, .*?: p50 ([\d.]+) ms .*?p99 ([\d.]+) ms")
    return (
        f"A worker takes {float(worker):.0f} µs of CPU for a component (units of five, 200 bytes each): {float(bare):.1f} times ({float(least):.1f} to "
        f"{float(most):.1f}) as much as a bare\nloop over the Kafka client with the same transactions and no state, and {float(faust):.0f} times less than plain Faust with tables. At 2,000 "
        f"components a second\na unit is visible {float(p50):.0f} ms after its last component, 99 of 100 within {float(p99):.0f}. Measured by `make bench` on a quiet machine with two "
        "cores:\n[all figures](docs/benchmarks.md).\n"
    )


def _filled(page: Path, source: Path, text: str) -> str:
    begin = BEGIN.format(source)
    before, _, rest = (ROOT / page).read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(END)
    return before + begin + text + END + after


def rows() -> list[Row]:
    """All measured runs, the oldest first."""
    with (ROOT / MEASUREMENTS).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def runs_table(measured: Sequence[Row]) -> str:
    """All runs of `uow prove`."""
    lines = [_line(RUN_COLUMNS.values()), _line("---" for _ in RUN_COLUMNS)]
    lines += [_line(_shown(row, name) for name in RUN_COLUMNS) for row in measured if row["verb"] == "prove"]
    return "\n".join(lines) + "\n"


def promises_table(measured: Sequence[Row]) -> str:
    """For each promise the totals of all runs that check it."""
    lines = [
        "| Promise | Rounds on a broker | kill -9 of a worker | other faults | records | simulated runs | late ends | anomalies |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for promise, verbs in PROMISES.items():
        mine = [row for row in measured if row["verb"] in verbs]
        proofs = [row for row in mine if row["verb"] == "prove"]
        figures = [
            _sum(proofs, "rounds"),
            _sum(proofs, "kills"),
            sum(int(each.split()[0]) for row in proofs for each in row["others"].split(", ") if each),
            _sum(proofs, "records"),
            _sum([row for row in mine if row["verb"] == "sim"], "rounds"),
            _sum([row for row in mine if row["verb"] == "late ends"], "rounds"),
            _sum(mine, "anomalies"),
        ]
        lines.append(_line([promise, *(f"{figure:,}" for figure in figures)]))
    return "\n".join(lines) + "\n"


def row_of(report: Mapping[str, Any], revision: str, remark: str = "") -> dict[str, str]:
    """The row of a proof, from its `report.json`."""
    kinds = {name.partition(":")[0] for name in report["faults"]}
    others: dict[str, int] = {}
    for name, count in report["faults"].items():
        kind = name.partition(":")[0]
        if kind not in KILLS:
            others[kind] = others.get(kind, 0) + count
    counts = report["counts"]
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "revision": revision,
        "verb": "prove",
        "seed": str(report["seed"]),
        "workers": str(report["workers"]),
        "faults": ALL if kinds == {*FaultKind} else ", ".join(kind for kind in FaultKind if kind in kinds),
        "rounds": str(len(report["rounds"])),
        "minutes": f"{report['seconds'] / 60:.0f}",
        "kills": str(report["kills"]),
        "at_a_step": str(sum(count for name, count in report["faults"].items() if name.startswith(FaultKind.STEP))),
        "others": ", ".join(f"{count} {kind}" for kind, count in sorted(others.items())),
        **{name: str(counts.get(name, 0)) for name in COUNTS},
        "anomalies": str(sum(report["anomalies"].values())),
        "remark": remark or report["failure"],
    }


def _sum(measured: Sequence[Row], name: str) -> int:
    return sum(int(row[name] or 0) for row in measured)


def _shown(row: Row, name: str) -> str:
    return f"{int(row[name]):,}" if name in COUNTS else row[name]


def _line(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"


def main(report: str, revision: str, remark: str = "") -> None:
    """Adds a row."""
    row = row_of(json.loads(Path(report).read_text(encoding="utf-8")), revision, remark)
    with (ROOT / MEASUREMENTS).open("a", encoding="utf-8", newline="") as file:
        csv.DictWriter(file, row, lineterminator="\n").writerow(row)


if __name__ == "__main__":
    main(*sys.argv[1:])
