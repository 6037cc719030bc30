"""Whoever misses a package is told which, and a command that exists."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.setup.wheels import ROOT
from uow.extras import PACKAGES, advice, extra_of

OPTIONAL = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
FOR_USERS = sorted(OPTIONAL.keys() - {"dev"})


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package without the clone around it."""
    folder = tmp_path_factory.mktemp("installed")
    (folder / "uow").mkdir()
    for name in ("__init__.py", "extras.py"):
        shutil.copy(ROOT / "uow" / name, folder / "uow")
    return folder


def test_the_packages_are_those_that_the_project_declares() -> None:
    declared = {extra: {Requirement(text).name for text in OPTIONAL[extra]} for extra in FOR_USERS}
    assert {extra: {*packages} for extra, packages in PACKAGES.items()} == declared


@pytest.mark.parametrize("extra", FOR_USERS)
def test_each_package_is_known_by_a_module_that_it_installs(extra: str) -> None:
    missing = [each for each in PACKAGES[extra].values() if each not in sys.modules and find_spec(each) is None]
    assert missing == []
    assert {extra_of(f"{module}.more") for module in PACKAGES[extra].values()} <= {*FOR_USERS}


@pytest.mark.parametrize("extra", FOR_USERS)
def test_where_the_packages_are_missing_each_is_named_with_the_command_that_adds_it(
    installed: Path, extra: str
) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(installed)!r}); from uow.extras import advice; print(advice({extra!r}))"
    )
    # the Python that the environment was made with, without site-packages: from 3.14 on an environment knows its folder without them too
    nothing = [Path(sys._base_executable).resolve(), "-I", "-S", "-c", code]  # type: ignore[attr-defined]
    told = subprocess.run(nothing, capture_output=True, text=True, check=True).stdout
    names, command = re.fullmatch(
        r"(.*) (?:is|are) not installed .*`make install (.*)` in a checkout.*\n", told
    ).groups()  # type: ignore[union-attr]
    assert re.split(r", | and ", names) == [*PACKAGES[extra]]
    part, environment = command.split()
    assert part in {"PART=worker", "PART=sink"}
    assert environment == "VENV=/opt/uow"  # a new folder: the Python of the machine takes no packages of ours


def test_only_what_is_missing_is_named(installed: Path) -> None:
    code = f"import sys; sys.path.insert(0, {str(installed)!r}); sys.modules['lxml'] = None; from uow.extras import advice; print(advice('rules'))"
    told = subprocess.run([sys.executable, "-c", code], cwd=installed, capture_output=True, text=True, check=True)
    assert told.stdout.startswith("lxml is not installed (extra 'rules')")
    assert f"VENV={sys.prefix}`" in told.stdout


def test_in_a_checkout_there_is_one_command() -> None:
    assert advice("spark").endswith("run `make setup`")
