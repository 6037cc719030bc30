"""Try the project on every other Python that it is tested with and that this machine has; `make test-pythons`, a part of `make ci`.

Each gets an environment of its own by the locks, `.venvs/3.12` and so on, which stays for the next run. In it run the tests that need neither
a broker nor Spark, two minutes of them, and the shorter story of the demo: a broker, a worker and a client, from end to end.

    python -m tools.pythons [3.12 ...]

Belongs here: finding the Pythons, and what is tried on each. Does not belong here: the environment (`tools/setup.py`, where `TESTED` lists the versions).
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tools.setup import ROOT, TESTED

TESTS = ("client", "config", "core", "engine", "mock", "schemas", "shell", "topics")
"""Folders of tests; those that start processes or read the repository's pages say nothing more about a Python."""
TIERS = "not broker and not spark and not docker and not drill and not clients"
Version = tuple[int, int]


def name_of(version: Version) -> str:
    """A version as people write it, `3.12`."""
    return "{}.{}".format(*version)


def installed_by_pyenv() -> Path:
    """The folder in which pyenv keeps its Pythons."""
    return Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv").expanduser() / "versions"


def candidates(version: Version) -> Iterator[Path]:
    """Programs that may be this Python: that of the path, then those of pyenv, the newest first."""
    program = f"python{name_of(version)}"
    if on_path := shutil.which(program):
        yield Path(on_path)
    folders = installed_by_pyenv().glob(f"{name_of(version)}.*")
    patch = {each: each.name.rpartition(".")[2] for each in folders}
    for each in sorted(patch, key=lambda each: int(patch[each]) if patch[each].isdigit() else -1, reverse=True):
        yield each / "bin" / program


def works(program: Path, version: Version) -> bool:
    """True if it is this Python and can make environments: pyenv's shims may lead nowhere, Debian has pip in a package of its own."""
    ask = f"import ensurepip, sys, venv; sys.exit(sys.version_info[:2] != {version})"
    try:
        return subprocess.run([program, "-c", ask], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def find(version: Version) -> Path | None:
    """The program of a Python on this machine; None without."""
    return next((each for each in candidates(version) if works(each, version)), None)


def attempt(version: Version, python: Path) -> str | None:
    """Set up, test and play the demo with one Python.

    Returns:
        The step that failed, None if all went well.
    """
    name = name_of(version)
    folder = f".venvs/{name}"
    inside = ROOT / folder / "bin"
    steps: dict[str, list[str | Path]] = {
        "set-up": [python, "-m", "tools.setup"],
        "tests": [
            inside / "python", "-m", "pytest", "-q", "-n", "4", "--no-loadscope-reorder", "-p", "no:cacheprovider", "--reruns", "0", "-m", TIERS,
            *(f"tests/{each}" for each in TESTS),
        ],
        "demo": [inside / "uow", "demo", "low-stock"],
    }  # fmt: skip
    for step, command in steps.items():
        print(f"pythons: {name}, {step}", flush=True)
        if subprocess.run(command, cwd=ROOT, env={**os.environ, "VENV": folder}, check=False).returncode:
            return step
    return None


def main() -> None:
    """Try all, and say at the end which were found and how they did."""
    this = sys.version_info[:2]
    asked = set(sys.argv[1:]) or {name_of(each) for each in TESTED if each != this}
    said, failed = [f"{name_of(this)} runs `make test`"], False
    for version in TESTED:
        name = name_of(version)
        if name not in asked:
            continue
        python = find(version)
        failed_step = attempt(version, python) if python else None
        failed |= failed_step is not None
        outcome = f"{failed_step} failed" if failed_step else "set up, tests and demo passed"
        said.append(f"{name} ({python}): {outcome}" if python else f"{name}: not found on this machine, so not tried")
    print("\n".join(f"pythons: {line}" for line in said))
    sys.exit(failed)


if __name__ == "__main__":
    main()
