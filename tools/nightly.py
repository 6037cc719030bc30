"""Run what `make ci` leaves out, as long as the night is: `make nightly`, and the page that tells of it.

Theory of operation. A step is an endless row of portions: blocks of seeds, files of drills, parts of the mutants, proofs with one seed after the
other. It goes on where the last run stopped, so that short runs come round in time. Steps share the time that is left by their weights. A
portion that is under way when its step's time is up is cut off: neither passed nor failed. The next run begins with it, unless it had all
of the step's time: then it is passed over. A failed step does not end the run.

Results: `docs/nightly.json`, the last entry of each step and of the whole. `docs/nightly.md` is made from it.

    python -m tools.nightly --hours 6 [STEP ...]

Exit status 0: nothing failed; a step that could not be run here is no failure, and is told. 1: a step failed. 2: wrong usage.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE = Path("docs") / "nightly.json", Path("docs") / "nightly.md"
SEEDS_IN_A_BLOCK = 100
FIRST_SEED = 1_000
"""The first of the simulator. `make ci` plays the first 500, and of the next 500 those with routers."""
MUTANT_PARTS = 24
PROOF_MINUTES = 3
FIRST_PROOF = 1
ENDING_S = 60
"""How long a portion that is cut off has to end what it started."""
TAIL = 40
PYTHON, UOW = sys.executable, str(Path(sys.executable).with_name("uow"))
PYTEST = [PYTHON, "-m", "pytest", "-q", "-m"]
CORES = str(os.cpu_count() or 1)
NEVER = "never"

Counts = Mapping[str, int]


class Portion(NamedTuple):
    """A part of a step.

    Attributes:
        name: Its name on the page.
        command: Its command.
        following: The place in the row of the portion behind it.
    """

    name: str
    command: list[str]
    following: int


class Step(NamedTuple):
    """A step of the nightly run.

    Attributes:
        what: Its description on the page.
        weight: Its share of the time, against those of the other steps.
        portions: The row of portions from a place on.
        counted: The result of a portion, from its exit status and what it printed.
        first: The place at which the very first run begins.
        obstacle: Why it cannot be run on this machine, else an empty text.
    """

    what: str
    weight: int
    portions: Callable[[int], Iterator[Portion]]
    counted: Callable[[int, str], Counts]
    first: int = 0
    obstacle: Callable[[], str] = str


# -- the rows of portions -------------------------------------------------------------------------------------------


def _blocks(place: int) -> Iterator[Portion]:
    """Of the simulator: a place is a seed."""
    for first in count(place, SEEDS_IN_A_BLOCK):
        following = first + SEEDS_IN_A_BLOCK
        seeds = f"{first}..{following - 1}"
        yield Portion(f"seeds {seeds}", [PYTHON, "-m", "uow.processor.sim", "--seeds", seeds, "-j", CORES], following)


def _drills(place: int) -> Iterator[Portion]:
    """Of the drills: a place is the number of a file; once round at most."""
    asking = [*PYTEST, "drill", "--collect-only"]
    asked = subprocess.run(asking, cwd=ROOT, capture_output=True, text=True, check=False)
    if asked.returncode:
        yield Portion("the list of drills", asking, place)  # it fails once more, and is told
    files = sorted({line.partition("::")[0] for line in asked.stdout.splitlines() if "::" in line})
    for number in range(place, place + len(files)):
        file = files[number % len(files)]
        yield Portion(file, [*PYTEST, "drill", file], (number + 1) % len(files))


def _docker(place: int) -> Iterator[Portion]:
    yield Portion("all of it", [*PYTEST, "docker"], place)


def _mutants(place: int) -> Iterator[Portion]:
    """Of the mutants: a place is a part; once round at most."""
    for number in range(place, place + MUTANT_PARTS):
        part = f"{number % MUTANT_PARTS + 1}/{MUTANT_PARTS}"
        command = [PYTHON, "-m", "tools.mutants", "--part", part, "-j", CORES]
        yield Portion(f"part {part}", command, (number + 1) % MUTANT_PARTS)


def _proofs(*options: str) -> Callable[[int], Iterator[Portion]]:
    """Of the proof: a place is a seed."""

    def portions(place: int) -> Iterator[Portion]:
        for seed in count(place):
            command = [UOW, "prove", "--minutes", str(PROOF_MINUTES), "--seed", str(seed), *options]
            yield Portion(f"seed {seed}", command, seed + 1)

    return portions


# -- what they came to ----------------------------------------------------------------------------------------------


def _number(pattern: str, printed: str) -> int:
    found = re.findall(pattern, printed)
    return int(found[-1]) if found else 0


def of_simulator(status: int, printed: str) -> Counts:
    """Runs, and those with a violation; a block that broke off is a failure."""
    runs, found = _number(r"(\d+) runs in ", printed), _number(r"(\d+) violations", printed)
    return {"passed": runs - found, "failed": found or int(status != 0)}


def of_pytest(status: int, printed: str) -> Counts:
    """Tests; a run of pytest that ends badly without a failed test is a failure."""
    last = printed.splitlines()[-1] if printed else ""
    counts = {word: _number(rf"(\d+) {word}", last) for word in ("passed", "failed", "skipped")}
    counts["failed"] += _number(r"(\d+) error", last)
    return counts | {"failed": counts["failed"] or int(status != 0)}


def of_mutants(status: int, printed: str) -> Counts:
    """Faults, and those that no test noticed: no failures, since most change nothing visible (docs/mutants.md)."""
    caught = sum(map(int, re.findall(r"(\d+) caught", printed)))
    survived = sum(map(int, re.findall(r"(\d+) survived", printed)))
    return {"passed": caught, "survived": survived, "failed": int(status not in (0, 1))}


def of_proof(status: int, _: str) -> Counts:
    """A proof, which is good or is not."""
    return {"passed": int(status == 0), "failed": int(status != 0)}


def _no_engine() -> str:
    from tests.kafka_broker import docker_answers

    return "" if docker_answers() else "no Docker engine answers"


STEPS: Mapping[str, Step] = {
    "docker": Step("the Docker tier: compose and testcontainers", 1, _docker, of_pytest, obstacle=_no_engine),
    "drills": Step("tests of minutes (`-m drill`), file by file", 8, _drills, of_pytest),
    "mutants": Step("small faults in the core, and a search for a test that notices each", 4, _mutants, of_mutants),
    "prove": Step("`uow prove`, each time with the next seed", 2, _proofs(), of_proof, FIRST_PROOF),
    "prove-client": Step("`uow prove --client`, likewise", 2, _proofs("--client"), of_proof, FIRST_PROOF),
    "sim": Step(f"the simulator from seed {FIRST_SEED:,} on", 3, _blocks, of_simulator, FIRST_SEED),
}
"""In the order in which they run."""


# -- running --------------------------------------------------------------------------------------------------------


def attempt(command: list[str], seconds: float, log: Path) -> int | None:
    """Runs a command, with its output in a file.

    Returns:
        Its exit status; None if it was cut off since its time was up.
    """
    with log.open("w") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            return process.wait(max(seconds, 0))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does: it ends its own workers and brokers then
            try:
                process.wait(ENDING_S)
            except subprocess.TimeoutExpired:
                pass
            return None
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()


def run(step: Step, place: int, seconds: float, folder: Path) -> dict[str, Any]:
    """Runs portions from a place on until the time is up; the step's entry in the results."""
    began = time.monotonic()
    counts, done, failed, cut_off = Counter[str](), list[str](), list[str](), ""
    for portion in step.portions(place):
        left = seconds - (time.monotonic() - began)
        if left <= 0:
            break
        log = folder / f"{re.sub('[^a-z0-9]+', '-', portion.name)}.log"
        status = attempt(portion.command, left, log)
        if status is None:
            cut_off = portion.name
            place = place if done else portion.following
            print(f"  {portion.name}: cut off, its time was up", flush=True)
            break
        place = portion.following
        done.append(portion.name)
        printed = log.read_text("utf-8", "replace").rstrip()
        found = step.counted(status, printed)
        counts.update(found)
        print(f"  {portion.name}: {told(found)}", flush=True)
        if found["failed"]:
            failed.append(portion.name)
            print(*printed.splitlines()[-TAIL:], f"  the whole of it is in {log}", sep="\n", flush=True)
    return {
        "done": done,
        "counts": dict(counts),
        "failed": failed,
        "cut_off": cut_off,
        "next": place,
        "minutes": round((time.monotonic() - began) / 60, 1),
    }


def told(counts: Counts) -> str:
    """Counts in words."""
    return ", ".join(f"{number:,} {word}" for word, number in counts.items() if number or word == "passed")


def night(names: Sequence[str], hours: float, folder: Path) -> bool:
    """Runs the steps, and writes results and page after each; True if nothing failed."""
    began, until = time.monotonic(), time.monotonic() + hours * 3600
    circumstances = {"date": time.strftime("%Y-%m-%d", time.gmtime()), "revision": _revision(), "cores": os.cpu_count()}
    results = read_results()
    last: dict[str, Any] = circumstances | {"hours": hours, "steps": [], "minutes": 0.0}
    last["left_out"] = {name: "not asked for" for name in STEPS if name not in names}
    results["last"] = last
    good = True
    for index, name in enumerate(names):
        step = STEPS[name]
        if reason := step.obstacle():
            print(f"{name}: left out, {reason}", flush=True)
            last["left_out"][name] = reason
            _write(results)
            continue
        weights = [STEPS[each].weight for each in names[index:]]
        seconds = (until - time.monotonic()) * weights[0] / sum(weights)
        print(f"{name}: {seconds / 60:.1f} minutes", flush=True)
        place = results["steps"].get(name, {}).get("next", step.first)
        entry = run(step, place, seconds, folder)
        results["steps"][name] = circumstances | entry
        last["steps"].append(name)
        last["minutes"] = round((time.monotonic() - began) / 60, 1)
        _write(results)
        print(f"{name}: {told(entry['counts']) or 'nothing came to its end'}", flush=True)
        good = good and not entry["failed"]
    return good


def _write(results: Mapping[str, Any]) -> None:
    (ROOT / RESULTS).write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    (ROOT / PAGE).write_text(page(), "utf-8")


def _revision() -> str:
    def git(*command: str) -> str:
        try:
            done = subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            sys.exit("nightly: the page tells of which commit it is: install git.")
        if done.returncode:
            sys.exit(f"nightly: the page tells of which commit it is, and git says: {done.stderr.strip()}")
        return done.stdout.strip()

    ours = [f":!{RESULTS}", f":!{PAGE}"]
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", *ours)
    return git("rev-parse", "--short", "HEAD") + (" with changes" if changed else "")


# -- docs/nightly.md ------------------------------------------------------------------------------------------------

HEAD = """\
# Nightly runs

<!-- Written by `make docs` from `docs/nightly.json`, which `make nightly` writes. Do not edit. -->

`make nightly` runs what `make ci` leaves out, for `HOURS` hours (6 if not given), or only `STEPS='sim drills'`. The steps share the time by their
weights. Each goes on where its last run stopped. What was under way when a step's time was up was cut off: it has neither passed nor
failed. Survivors are mutants that no test noticed; most change nothing visible ([mutants.md](mutants.md)). More:
[decision 112](decisions/0112-skipped-tests-fail-ci.md).

"""
COLUMNS = ("Step", "Last ran", "Revision", "Cores", "Minutes", "Ran", "Result", "Failed", "Cut off")


def read_results() -> dict[str, Any]:
    """The results file."""
    path = ROOT / RESULTS
    results: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.is_file() else {"last": None, "steps": {}}
    return results


def page() -> str:
    """The whole of `docs/nightly.md`."""
    results = read_results()
    rows = [COLUMNS, ("---",) * len(COLUMNS), *(_row(name, results["steps"].get(name)) for name in STEPS)]
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    steps = "".join(f"- `{name}`: {step.what}\n" for name, step in STEPS.items())
    return f"{HEAD}## Last run\n\n{_last(results['last'])}\n\n## Steps\n\n{steps}\n{table}"


def _last(last: Mapping[str, Any] | None) -> str:
    if last is None:
        return f"There was {NEVER} one."
    text = (
        f"{last['date']}, revision {last['revision']}, {last['cores']} cores: {last['minutes']} minutes, of {last['hours'] * 60:.1f} that it was "
        f"given. Steps: {', '.join(last['steps']) or 'none'}."
    )
    reasons = {
        reason: [name for name in last["left_out"] if last["left_out"][name] == reason]
        for reason in sorted({*last["left_out"].values()})
    }
    return text + "".join(f" Left out: {', '.join(names)} ({reason})." for reason, names in reasons.items())


def _row(name: str, entry: Mapping[str, Any] | None) -> tuple[str, ...]:
    if entry is None:
        return (f"`{name}`", NEVER, *("",) * (len(COLUMNS) - 2))
    done = entry["done"]
    ran = done[0] if len(done) == 1 else f"{len(done)}, from {done[0]} to {done[-1]}" if done else "nothing to its end"
    return (
        f"`{name}`",
        entry["date"],
        entry["revision"],
        str(entry["cores"]),
        str(entry["minutes"]),
        ran,
        told(entry["counts"]),
        ", ".join(entry["failed"]),
        entry["cut_off"],
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tools.nightly", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "steps", nargs="*", choices=[*STEPS, []], metavar="STEP", help=f"without one: {', '.join(STEPS)}"
    )
    parser.add_argument("--hours", type=float, default=6.0, help="how long the whole of it may take")
    asked = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts a background job with SIGINT ignored
    folder = Path(tempfile.mkdtemp(prefix="uow-nightly-"))
    good = night([name for name in STEPS if not asked.steps or name in asked.steps], asked.hours, folder)
    results = read_results()
    print(f"{PAGE}: {_last(results['last'])}")
    for name in results["last"]["steps"]:
        entry = results["steps"][name]
        verdict = "FAILED" if entry["failed"] else "good" if entry["done"] else "cut off"
        print(f"{name}: {verdict}: {told(entry['counts']) or 'nothing came to its end'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
