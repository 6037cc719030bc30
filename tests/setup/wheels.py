"""Wheels and sdists built of a source tree, and virtual environments that have such a wheel and only what it needs.

The environment gets the locked packages by links into the one that runs the tests, so nothing is fetched.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import venv
from collections.abc import Mapping
from importlib import metadata
from itertools import chain
from pathlib import Path

from packaging.requirements import Requirement

from uow.jvm import jars

ROOT = Path(jars.__file__).resolve().parents[2]


def tracked_files() -> list[str]:
    """The files and links of the repository, as they are in the working tree."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.split("\0") if name and os.path.lexists(ROOT / name)]


def build(source: Path, *kinds: str, into: Path, **env: str) -> list[Path]:
    """Builds `wheel`, `sdist` or both of a source tree, with more variables; the files, by name."""
    wanted = [word for kind in kinds for word in ("-t", kind)]
    command = [sys.executable, "-m", "hatchling", "build", *wanted, "-d", into]
    subprocess.run(command, cwd=source, env={**os.environ, **env}, check=True)
    return sorted(into.iterdir())


def needed(*extras: str) -> dict[str, metadata.Distribution]:
    """The installed packages that the project needs with these extras, by `pyproject.toml` and their own metadata."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    wanted = [Requirement(text) for text in chain(project["dependencies"], *(optional[extra] for extra in extras))]
    found: dict[str, metadata.Distribution] = {}
    seen: set[tuple[str, str]] = set()

    def add(requirement: Requirement, extra: str) -> None:
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            todo.extend((requirement.name, each) for each in ("", *requirement.extras))

    todo: list[tuple[str, str]] = []
    for requirement in wanted:
        add(requirement, "")
    while todo:
        name, extra = todo.pop()
        if (name, extra) not in seen:
            seen.add((name, extra))
            found[name] = metadata.distribution(name)
            for text in found[name].requires or ():
                add(Requirement(text), extra)
    return found


class Environment:
    """A virtual environment in which only what the wheel needs is installed.

    Args:
        folder: Where it is made.
        extras: Of the wheel.
    """

    def __init__(self, folder: Path, wheel: Path, *extras: str) -> None:
        venv.EnvBuilder(symlinks=True).create(folder)
        self.folder, self.python = folder, folder / "bin" / "python"
        (packages,) = folder.glob("lib/python3*/site-packages")
        for distribution in needed(*extras).values():
            for part in {Path(file).parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
                if not (packages / part).exists():
                    (packages / part).symlink_to(Path(str(distribution.locate_file(part))).resolve())
        wanted = f"uow[{','.join(extras)}] @ {wheel.as_uri()}"
        pip = [sys.executable, "-m", "pip", "--python", self.python, "--isolated", "install", "--quiet", "--no-index"]
        subprocess.run([*pip, wanted], check=True)

    def env(self, **more: str) -> dict[str, str]:
        """Variables for its programs: nothing leads back to the checkout."""
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "UOW_", "VIRTUAL_"))
        }
        return kept | more

    def run(self, *command: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> str:
        """Runs Python with these arguments to its end; what it printed."""
        done = subprocess.run(
            [self.python, *command], cwd=cwd, env=env or self.env(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout
