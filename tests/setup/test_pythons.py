"""The Pythons that the project is tested with: one list, which every page and file repeats, and how they are found on a machine."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

from tools import pythons
from tools.setup import ROOT, TESTED

NAMES = [pythons.name_of(version) for version in TESTED]
UNKNOWN = (3, 99)


def python(at: Path, program: str) -> Path:
    """A file that answers as Python 3.99 does."""
    at.mkdir(parents=True)
    (at / program).write_text("#!/bin/sh\nexit 0\n")
    (at / program).chmod(0o755)
    return at / program


@pytest.fixture(autouse=True)
def _nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))


def test_the_classifiers_name_the_tested_pythons() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [each.rpartition(" :: ")[2] for each in project["classifiers"] if "Python :: 3." in each]
    assert named == NAMES
    assert project["requires-python"] == f">={NAMES[0]}"


def test_make_looks_for_the_tested_pythons() -> None:
    (listed,) = re.findall(r"^PYTHONS = (.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert listed.split() == NAMES


def test_readme_names_the_tested_pythons() -> None:
    ranges = re.findall(r"Python (3\.\d+) (?:to|or|and) (3\.\d+)", (ROOT / "README.md").read_text())
    assert set(ranges) == {(NAMES[0], NAMES[-1])}


def test_a_python_of_pyenv_is_found_the_newest_first(tmp_path: Path) -> None:
    for release in ("3.99.2", "3.99.10", "3.9.1"):
        program = python(tmp_path / "pyenv" / "versions" / release / "bin", "python3.99")
    assert pythons.find(UNKNOWN) == program.parents[2] / "3.99.10" / "bin" / "python3.99"


def test_a_shim_that_leads_nowhere_is_passed_over(tmp_path: Path) -> None:
    python(tmp_path / "path", "python3.99").write_text("#!/bin/sh\nexit 127\n")
    assert pythons.find(UNKNOWN) is None
    real = python(tmp_path / "pyenv" / "versions" / "3.99.0" / "bin", "python3.99")
    assert pythons.find(UNKNOWN) == real


def test_a_python_is_taken_for_the_version_that_it_has() -> None:
    this = sys.version_info[:2]
    assert pythons.works(Path(sys.executable), this)
    assert not pythons.works(Path(sys.executable), UNKNOWN)


def test_a_python_that_is_missing_is_named_and_fails_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pythons, "TESTED", (UNKNOWN,))
    monkeypatch.setattr(sys, "argv", ["pythons"])
    with pytest.raises(SystemExit) as ended:
        pythons.main()
    assert not ended.value.code
    assert "3.99: not found on this machine, so not tried" in capsys.readouterr().out


def test_the_step_that_fails_is_named_and_the_others_are_left_out(tmp_path: Path) -> None:
    program = python(tmp_path / "path", "python3.99")
    program.write_text("#!/bin/sh\nexit 1\n")
    assert pythons.attempt(UNKNOWN, program) == "set-up"
