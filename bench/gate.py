"""The gate of CI: this tree by turns with an earlier one, the reference, on the same machine. `make gate`.

Figures of one machine say nothing about another, not even as ratios to the bare loop, so none are stored. The reference is the commit that last changed
`bench/reference.md`, and it runs here, beside this tree: the engine alone and workers that drain a topic, as CPU to the bare loop of the same round, and
latencies. A figure fails whose median over the rounds is beyond the limit in three measurements in a row.

Belongs here: where the reference comes from, the rounds, and the judgement. Does not belong here: how anything is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from bench import latency
from bench.drain import BenchBroker, scratch
from bench.workloads import WORKLOADS, Workload
from uow.embedded.broker import EmbeddedBroker

LIMIT = 1.15
IN_A_ROW = 3
ROOT = Path(__file__).resolve().parent.parent
REFERENCE = "bench/reference.md"
PRODUCT = ("processor", "schemas", "topics", "uow")
"""Folders whose code the measured programs run."""


HOT = """
import json, sys
from bench.hot import measure
print(json.dumps({name: measure(int(sys.argv[1]), 3, name)["ratio"] for name in ("w5", "w1")}))
"""


class CannotCompare(Exception):
    """There is no reference to compare with; the text says why, and what to do."""


class Turn(NamedTuple):
    """A figure of both trees in one round."""

    this: float
    reference: float

    @property
    def ratio(self) -> float:
        return self.this / self.reference


Turns = Mapping[str, Sequence[Turn]]
"""Of one measurement: the rounds of each figure."""


def times_reference(turns: Sequence[Turn]) -> float:
    """The median over the rounds."""
    return statistics.median(turn.ratio for turn in turns)


def is_beyond(turns: Sequence[Turn]) -> bool:
    """True if this tree is slower by more than the limit, at the median, and slower at all in every round but one.

    The second bounds false alarms on a machine as noisy as can be: of equal trees each is the slower one in half of the rounds.
    """
    return times_reference(turns) > LIMIT and sum(turn.ratio <= 1 for turn in turns) <= 1


def is_unclear(turns: Sequence[Turn]) -> bool:
    """True if some rounds are slower by the limit and some faster: a machine so noisy hides what the gate is to find."""
    inner = sorted(turn.ratio for turn in turns)[1:-1]
    return bool(inner) and inner[0] < 1 / LIMIT and inner[-1] > LIMIT


def _always(holds: Callable[[Sequence[Turn]], bool], measurements: Sequence[Turns]) -> set[str]:
    """Figures of which this holds in every one of the measurements."""
    return set.intersection(*({name for name, turns in each.items() if holds(turns)} for each in measurements))


def too_noisy(measurements: Sequence[Turns]) -> set[str]:
    """Figures that were unclear in every one of the measurements."""
    return _always(is_unclear, measurements)


def slower(measurements: Sequence[Turns]) -> set[str]:
    """Figures that were beyond the limit in every one of the measurements."""
    return _always(is_beyond, measurements)


def judge(parts: Collection[str], measure: Callable[[Collection[str]], Mapping[str, Turns]]) -> list[Turns]:
    """Measures until no figure has been beyond the limit each time, or unclear each time, or as often as it takes to fail.

    Args:
        parts: Parts of the bench; one is measured again if a figure of it was beyond the limit, or unclear, each time.
        measure: Gives a measurement of each part.

    Returns:
        The measurements. If they are `IN_A_ROW`, the `slower` figures of all of them have failed.
    """
    measurements: list[Turns] = []
    while parts and len(measurements) < IN_A_ROW:
        by_part = measure(parts)
        measurements.append({name: turns for each in by_part.values() for name, turns in each.items()})
        suspects = slower(measurements) | too_noisy(measurements)
        parts = [part for part, turns in by_part.items() if suspects & turns.keys()]
    return measurements


def _git(root: Path, *words: str) -> bytes:
    try:
        return subprocess.run(["git", "-C", str(root), *words], capture_output=True, check=True).stdout
    except FileNotFoundError:
        raise CannotCompare("The gate takes its reference from git: install git.") from None
    except subprocess.CalledProcessError as fault:
        said = fault.stderr.decode(errors="replace").strip()
        raise CannotCompare(f"The gate needs a git clone with its history, and git says: {said}") from None


def reference_commit(root: Path) -> str:
    """The commit that last changed `bench/reference.md`. In a shallow clone the first commit that is there seems to change every file."""
    commit = _git(root, "log", "-1", "--format=%H", "--", REFERENCE).decode().strip()
    shallow = root / _git(root, "rev-parse", "--git-path", "shallow").decode().strip()
    if shallow.exists() and commit in shallow.read_text().split():
        raise CannotCompare("The history of this clone ends before the gate's reference: run `git fetch --unshallow`.")
    if not commit:
        raise CannotCompare(f"No commit has {REFERENCE}, which names the gate's reference: commit it.")
    return commit


def differs(root: Path, commit: str) -> bool:
    """True if the product is another than at that commit; changes that are not committed count."""
    changed = _git(root, "diff", "--name-only", commit, "--", *PRODUCT)
    return bool(changed.strip())


def export(root: Path, commit: str, folder: Path) -> Path:
    """Puts the tree of a commit into a new folder."""
    folder.mkdir()
    archive = _git(root, "archive", "--format=tar", commit)
    try:
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
    except FileNotFoundError:
        raise CannotCompare("The gate unpacks its reference with tar: install tar.") from None
    return folder


def environment(tree: Path) -> dict[str, str]:
    """For programs that are to run the code of this tree: `PYTHONPATH` goes before what is installed."""
    return {**os.environ, "PYTHONPATH": str(tree)}


def hot_ratios(tree: Path, records: int = 20_000) -> dict[str, float]:
    """The engine of a tree alone, to a dictionary loop, by the tree's own `bench.hot`."""
    command = [sys.executable, "-c", HOT, str(records)]
    done = subprocess.run(command, cwd=tree, env=environment(tree), stdout=subprocess.PIPE, check=True)
    return {f"hot {name}, to a dictionary loop": ratio for name, ratio in json.loads(done.stdout).items()}


Played = Mapping[Path, Mapping[str, float]]
"""Of one round: the figures of each tree."""


def rounds(trees: tuple[Path, Path], count: int, play: Callable[[Sequence[Path]], Played]) -> Turns:
    """Plays rounds of this tree and the reference, in which each goes first by turns."""
    turns: dict[str, list[Turn]] = {}
    for number in range(count):
        played = play(trees[:: 1 if number % 2 else -1])
        this, reference = (played[tree] for tree in trees)
        for name, value in this.items():
            turns.setdefault(name, []).append(Turn(value, reference[name]))
    return turns


class Gate:
    """Both trees on one broker.

    Args:
        bootstrap: Where it is.
        folder: For logs.
        this: The tree that is judged.
        reference: The one it is compared with.
        say: Takes a line about what is done.
    """

    def __init__(self, bootstrap: str, folder: Path, this: Path, reference: Path, say: Callable[[str], None]) -> None:
        self.trees, self.say = (this, reference), say
        self.places = {tree: BenchBroker(bootstrap, folder, env=environment(tree)) for tree in self.trees}

    def measure(self, parts: Collection[str]) -> dict[str, Turns]:
        """One measurement of these parts."""
        measured = {}
        for part in parts:
            turns = measured[part] = PARTS[part](self)
            for name, each in turns.items():
                self.say(f"{name}: {times_reference(each):.2f} x the reference")
        return measured

    def hot(self) -> Turns:
        return rounds(self.trees, 8, lambda trees: {tree: hot_ratios(tree) for tree in trees})

    def w5(self) -> Turns:
        return rounds(self.trees, 6, lambda trees: self.drains(trees, WORKLOADS["w5"].of(150_000)))

    def w1(self) -> Turns:
        return rounds(self.trees, 6, lambda trees: self.drains(trees, WORKLOADS["w1"].of(75_000)))

    def drains(self, trees: Sequence[Path], workload: Workload) -> Played:
        """CPU of a worker to that of the bare loop, which drains between the two."""
        first, second = (self.places[tree] for tree in trees)
        home = self.places[self.trees[0]]
        destination = home.destination(workload.name)
        if workload.name not in home.preloaded:
            home.preload(workload)
        drains = [
            place.drain(kind, destination) for place, kind in ((first, "worker"), (home, "bare"), (second, "worker"))
        ]
        if wrong := {done.units for done in drains} - {workload.units}:
            raise RuntimeError(f"{wrong} units of {workload.name} were made, not {workload.units}")
        one, bare, other = (done.cpu_us for done in drains)
        name = f"{workload.name} worker, to the bare loop"
        return {trees[0]: {name: one / bare}, trees[1]: {name: other / bare}}

    def latency(self) -> Turns:
        """p50 and p99 of each turn, in milliseconds."""
        these, those = latency.by_turns(list(self.places.values()), turns=8, seconds=2, rate=2_000)
        return {
            f"latency, {name} in ms": [
                Turn(one[int(len(one) * share)], other[int(len(other) * share)])
                for one, other in zip(these, those, strict=True)
            ]
            for name, share in (("p50", 0.5), ("p99", 0.99))
        }


PARTS: Mapping[str, Callable[[Gate], Turns]] = {
    "hot": Gate.hot,
    "w5": Gate.w5,
    "w1": Gate.w1,
    "latency": Gate.latency,
}


def table(measurements: Sequence[Turns], failed: Collection[str]) -> Table:
    """Each measurement of each figure."""
    shown = Table(title=f"median (least to most over the rounds); above {LIMIT} {IN_A_ROW} times fails")
    for title in ("figure", "this tree", "reference", "x the reference", ""):
        shown.add_column(title, justify="right" if title else "left")
    for turns in measurements:
        for name, each in turns.items():
            ratios = [turn.ratio for turn in each]
            shown.add_row(
                name,
                f"{statistics.median(turn.this for turn in each):.2f}",
                f"{statistics.median(turn.reference for turn in each):.2f}",
                f"{times_reference(each):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
                _verdict(each, name in failed),
            )
    return shown


def _verdict(turns: Sequence[Turn], failed: bool) -> str:
    if failed:
        return "FAILED"
    return "slower" if is_beyond(turns) else "unclear: too noisy" if is_unclear(turns) else ""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gate", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; default: all")
    parser.add_argument("--reference", metavar="COMMIT", help=f"default: the last one that changed {REFERENCE}")
    given = parser.parse_args(arguments)
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        commit = given.reference or reference_commit(ROOT)
        if given.reference is None and not differs(ROOT, commit):
            console.print(f"gate: no difference to the reference, {commit[:12]}: nothing to compare")
            return 0
        with (
            scratch() as folder,
            EmbeddedBroker(heap="1g", jvm_flags=["-Xms1g"]) as broker,  # of one size, as for `make bench`
        ):
            reference = export(ROOT, commit, Path(folder, "reference"))
            gate = Gate(broker.bootstrap, Path(folder), ROOT, reference, console.print)
            console.print(f"gate: this tree by turns with the reference, {commit[:12]}")
            measurements = judge(given.parts or list(PARTS), gate.measure)
    except CannotCompare as why:
        console.print(f"gate: {why}")
        return 2
    failed = slower(measurements) if len(measurements) == IN_A_ROW else set()
    Console(width=None if sys.stdout.isatty() else 120).print(table(measurements, failed))
    if len(measurements) == IN_A_ROW and (unclear := too_noisy(measurements)):
        console.print(
            f"gate: NOT JUDGED, since the machine is too noisy for it: {'; '.join(sorted(unclear))}\n"
            "Run it again while nothing else runs: `make gate`."
        )
    if failed:
        console.print(
            f"gate: slower than the reference in {IN_A_ROW} measurements in a row: {'; '.join(sorted(failed))}\n"
            "If that is the price of something better, say so in bench/reference.md, and this tree is the reference."
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
