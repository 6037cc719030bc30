"""The installed package: its commands, its entry points, and locks that match what it declares."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import entry_points
from itertools import chain
from pathlib import Path
from typing import Any

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
