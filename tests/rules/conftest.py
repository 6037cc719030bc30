"""Transforms of a package that is installed for the tests alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rules.installed_transforms import install


@pytest.fixture(scope="session")
def transforms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder in which they are; processes find them by `PYTHONPATH`."""
    folder = tmp_path_factory.mktemp("transforms")
    install(folder)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))
