"""`make nightly`: portions of each step in turn, bounded in time, and a page that is true about what ran (decision 112)."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.processes import PATIENCE_S, wait_for
from tools import nightly
from tools.nightly import Portion, Step

CUT_OFF = None
SIMULATOR = (
    "a script\n3200 runs in 96 s (33 a second): 9 commits, 8 units, 7 kills, 6 zombies, 2 violations: seeds 4, 5"
)
MUTANTS = "decide.py:9 judge: 1 -> 2\ndecide: 20 faults, 19 caught, 1 survived\ngroup: 7 faults, 7 caught, 0 survived"


def row_of(names: str) -> Callable[[int], Iterator[Portion]]:
    """Portions named by single letters."""
    return lambda place: iter([Portion(name, [name], number + 1) for number, name in enumerate(names)][place:])


@pytest.fixture
def attempted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Has the portions end with these statuses, by their names; the list of those that were tried."""

    def plant(**statuses: int | None) -> list[str]:
        tried: list[str] = []

        def attempt(command: list[str], seconds: float, log: Path) -> int | None:
            tried.append(command[0])
            log.write_text("1 failed in 1s" if statuses.get(command[0], 0) else "2 passed, 1 skipped in 1s")
            return statuses.get(command[0], 0)

        monkeypatch.setattr(nightly, "attempt", attempt)
        return tried

    return plant


def test_step_goes_on_after_a_portion_that_failed(attempted: Callable[..., list[str]], tmp_path: Path) -> None:
    tried = attempted(b=1)
    entry = nightly.run(Step("", 1, row_of("abc"), nightly.of_pytest), 0, PATIENCE_S, tmp_path)
    assert tried == ["a", "b", "c"]
    assert (entry["done"], entry["failed"], entry["next"]) == (["a", "b", "c"], ["b"], 3)
    assert entry["counts"] == {"passed": 4, "failed": 1, "skipped": 2}


def test_next_run_begins_with_the_portion_that_was_cut_off(attempted: Callable[..., list[str]], tmp_path: Path) -> None:
    attempted(b=CUT_OFF)
    entry = nightly.run(Step("", 1, row_of("abc"), nightly.of_pytest), 0, PATIENCE_S, tmp_path)
    assert (entry["done"], entry["failed"], entry["cut_off"], entry["next"]) == (["a"], [], "b", 1)


def test_portion_that_takes_all_the_time_of_its_step_is_passed_over(
    attempted: Callable[..., list[str]], tmp_path: Path
) -> None:
    attempted(b=CUT_OFF)
    entry = nightly.run(Step("", 1, row_of("abc"), nightly.of_pytest), 1, PATIENCE_S, tmp_path)
    assert (entry["done"], entry["cut_off"], entry["next"]) == ([], "b", 2)


def test_step_without_time_runs_nothing(attempted: Callable[..., list[str]], tmp_path: Path) -> None:
    tried = attempted()
    entry = nightly.run(Step("", 1, row_of("abc"), nightly.of_pytest), 1, 0, tmp_path)
    assert (tried, entry["done"], entry["next"]) == ([], [], 1)


def test_command_whose_time_is_up_ends_with_all_that_it_started(tmp_path: Path) -> None:
    log = tmp_path / "log"
    deaf = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(900)"
    code = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', '{deaf}', '{tmp_path}']); time.sleep(900)"
    assert nightly.attempt([sys.executable, "-c", code], 1, log) is None
    wait_for(lambda: not [each for each in psutil.process_iter() if str(tmp_path) in _words(each)])


def _words(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def test_command_that_ends_in_time_tells_its_status(tmp_path: Path) -> None:
    assert (
        nightly.attempt([sys.executable, "-c", "print('said'); raise SystemExit(3)"], PATIENCE_S, tmp_path / "log") == 3
    )
    assert (tmp_path / "log").read_text() == "said\n"


@pytest.mark.parametrize(
    ("counted", "status", "printed", "expected"),
    [
        (nightly.of_simulator, 1, SIMULATOR, {"passed": 3198, "failed": 2}),
        (nightly.of_simulator, 1, "Traceback", {"passed": 0, "failed": 1}),
        (nightly.of_pytest, 0, "3 passed, 1 skipped, 9 deselected in 4s", {"passed": 3, "failed": 0, "skipped": 1}),
        (nightly.of_pytest, 1, "1 failed, 3 passed, 2 errors in 4s", {"passed": 3, "failed": 3, "skipped": 0}),
        (nightly.of_pytest, 4, "ERROR: file or directory not found", {"passed": 0, "failed": 1, "skipped": 0}),
        (nightly.of_mutants, 1, MUTANTS, {"passed": 26, "survived": 1, "failed": 0}),
        (nightly.of_mutants, 2, "the tests do not pass without any fault", {"passed": 0, "survived": 0, "failed": 1}),
        (nightly.of_proof, 0, "", {"passed": 1, "failed": 0}),
        (nightly.of_proof, 1, "", {"passed": 0, "failed": 1}),
    ],
)
def test_results_are_read_from_what_a_portion_printed(
    counted: Callable[[int, str], nightly.Counts], status: int, printed: str, expected: nightly.Counts
) -> None:
    assert counted(status, printed) == expected


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A repository of its own with three steps, of which one cannot be run here."""
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr(nightly, "ROOT", tmp_path)
    monkeypatch.setattr(nightly, "_revision", lambda: "abc1234")
    steps = {name: Step(f"step {name}", 1, row_of(name), nightly.of_pytest) for name in "fg"}
    steps["e"] = steps["f"]._replace(obstacle=lambda: "no engine")
    monkeypatch.setattr(nightly, "STEPS", steps)
    return tmp_path


def test_run_goes_on_after_a_failed_step_and_fails_in_the_end(
    steps: Path, attempted: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    tried = attempted(f=1)
    assert nightly.main(["--hours", "1"]) == 1
    assert tried == ["f", "g"]
    assert "f: FAILED: 0 passed, 1 failed" in capsys.readouterr().out


def test_page_tells_each_steps_last_run_and_never_of_the_others(
    steps: Path, attempted: Callable[..., list[str]]
) -> None:
    assert nightly.page().count("| never |") == 3
    attempted()
    assert nightly.main(["--hours", "1", "g", "e"]) == 0
    page = (steps / "docs" / "nightly.md").read_text()
    assert page == nightly.page()
    assert re.search(r"\| `g` \| \d{4}-\d\d-\d\d \| abc1234 \|", page)
    assert "| `f` | never |" in page
    assert "Left out: e (no engine). Left out: f (not asked for)." in page
    assert nightly.main(["--hours", "1", "f"]) == 0
    assert {*json.loads((steps / "docs" / "nightly.json").read_text())["steps"]} == {"f", "g"}


def test_rows_of_seeds_move_on_without_gaps() -> None:
    blocks = nightly.STEPS["sim"].portions(nightly.FIRST_SEED)
    first, second = next(blocks), next(blocks)
    assert f"{nightly.FIRST_SEED}..{first.following - 1}" in first.command
    assert f"{first.following}..{second.following - 1}" in second.command
    assert [*nightly.STEPS["mutants"].portions(3)][-1].following == 3, "once round"
