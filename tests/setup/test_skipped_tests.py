"""Skipped tests fail a run with `--no-skips`; a run without it says which tools are wanting (decision 112)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NO_JAVAC, NO_BROWSER = (
    "no javac on the path",
    "no Chromium or Chrome on the path; the page's text is tested without one",
)
NO_LIBRARY, NO_ENGINE = "kafkajs is not there", "no Docker engine answers"


def outcome(folder: Path, reasons: list[str], *options: str) -> subprocess.CompletedProcess[str]:
    """A run of a test that passes, and of tests that skip for these reasons."""
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    lines = ["import pytest", "def test_that_passes(): pass"]
    for number, reason in enumerate(reasons):
        lines += [f"def test_{number}(): pytest.skip({reason!r})"]
    (folder / "test_some.py").write_text("\n".join(lines))
    command = [sys.executable, "-m", "pytest", "-p", "tests.skipped_tests", *options, "test_some.py"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200, check=False
    )


@pytest.mark.parametrize("processes", [(), ("-n", "2")], ids=["one process", "two"])
def test_skipped_test_fails_the_run_and_is_named(tmp_path: Path, processes: tuple[str, ...]) -> None:
    run = outcome(tmp_path, [NO_JAVAC, NO_LIBRARY, NO_ENGINE], "--no-skips", *processes)
    assert run.returncode == pytest.ExitCode.TESTS_FAILED, run.stdout + run.stderr
    named = {line for line in run.stdout.splitlines() if line.startswith("SKIPPED test_some.py::")}
    assert named == {f"SKIPPED test_some.py::test_0: {NO_JAVAC}", f"SKIPPED test_some.py::test_1: {NO_LIBRARY}"}
    assert "1 passed, 3 skipped" in run.stdout.splitlines()[-1]


def test_run_passes_without_skips_but_those_of_what_ci_cannot_have(tmp_path: Path) -> None:
    run = outcome(tmp_path, [NO_ENGINE], "--no-skips")
    assert run.returncode == pytest.ExitCode.OK, run.stdout + run.stderr


def test_without_the_option_the_run_passes_and_says_in_a_line_which_tools_are_wanting(tmp_path: Path) -> None:
    run = outcome(tmp_path, [NO_JAVAC, NO_JAVAC, NO_BROWSER])
    assert run.returncode == pytest.ExitCode.OK, run.stdout + run.stderr
    [told] = [line for line in run.stdout.splitlines() if line.startswith("tests left out for want of a tool")]
    assert "Chromium or Chrome (1), javac (2)" in told
