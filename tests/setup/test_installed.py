"""The installed package: its commands, its entry points, and locks that match what it declares."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from itertools import chain
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

from jvm import jars

ROOT = Path(jars.__file__).parents[1]


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    loaded: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return loaded


def test_the_console_command_is_installed() -> None:
    (command,) = entry_points(group="console_scripts", name="uow")
    assert callable(command.load())


def test_faust_finds_the_transport_by_its_scheme() -> None:
    (transport,) = entry_points(group="faust.transports", name="uow")
    assert transport.value == "processor.shell.transport:Transport"


def test_every_declared_package_is_locked_by_hash_to_a_version_that_fits(project: dict[str, Any]) -> None:
    lock = (ROOT / "requirements" / "all.lock").read_text()
    locked = dict(re.findall(r"^([a-z0-9._-]+)==(\S+)", lock, re.MULTILINE))
    declared = [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]
    for requirement in map(Requirement, declared):
        assert requirement.specifier.contains(locked[requirement.name]), requirement
    entries = re.split(r"^(?=[a-z0-9])", lock, flags=re.MULTILINE)[1:]
    assert all("--hash=sha256:" in entry for entry in entries)


def test_the_jars_are_those_of_the_installed_spark(project: dict[str, Any]) -> None:
    pins = {
        Requirement(each).name: str(Requirement(each).specifier) for each in project["optional-dependencies"]["spark"]
    }
    assert pins["pyspark"] == f"=={jars.version('spark', 'spark-avro_2.13')}"
    assert pins["delta-spark"] == f"=={jars.version('spark', 'delta-spark_2.13')}"


@pytest.mark.parametrize("lock", ["requirements/all.lock", "requirements/build.lock", "jvm/jars.lock"])
def test_the_locks_name_no_place(lock: str) -> None:
    assert not re.search(r"https?://|--index-url|--find-links", (ROOT / lock).read_text())


def test_the_wheel_has_the_story_that_the_demo_plays(tmp_path: Path) -> None:
    """So that it runs where there is no clone."""
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path], cwd=ROOT, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with ZipFile(wheel) as packed:
        names = set(packed.namelist())
    programs = {path.name for path in (ROOT / "examples" / "megazon").iterdir() if path.is_file()}
    assert {f"uow/demo/megazon/{name}" for name in programs} <= names


def test_an_installed_package_advises_what_an_installed_package_has(tmp_path: Path) -> None:
    """A copy without the clone around it, and without what the extra brings."""
    shutil.copytree(ROOT / "jvm", tmp_path / "jvm", ignore=shutil.ignore_patterns("__pycache__"))
    hidden = "import sys; sys.modules['jgo'] = None; sys.modules['requests'] = None; import jvm.jars as jars; "

    def told(code: str) -> str:
        asked = [sys.executable, "-c", f"{hidden}{code}"]
        environment = {**os.environ, "PYTHONPATH": str(tmp_path), "UOW_JARS": str(tmp_path / "none")}
        done = subprocess.run(asked, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    assert "pip install 'uow[java]'`, then `python -m jvm.jars`" in told(
        "print(jars.JarsMissing(['x'], jars.folder()))"
    )
    assert "is not installed: `pip install 'uow[java]'`" in told("sys.exit(jars.main([]))")
