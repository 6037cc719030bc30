"""Data, settings and logs of an embedded broker have payloads: nobody but its user reads them, under the usual umask."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_private_files import open_to_others
from tests.processes import Process, wait_for
from uow.embedded.broker import EmbeddedBroker

pytestmark = pytest.mark.broker


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_an_embedded_broker_of_a_program_keeps_its_folder_to_itself(tmp_path: Path) -> None:
    folder = tmp_path / "broker"
    with EmbeddedBroker(folder, heap="384m"):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_data_and_logs_of_uow_broker_are_private(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    child = Process([sys.executable, "-m", "uow", "broker", "--dir", str(folder)], tmp_path / "said.log")
    try:
        child.wait_output("broker ready on")
        wait_for(lambda: len([*folder.rglob("*.log")]) >= 2)
    finally:
        child.terminate(60)
        child.end(1)
    assert open_to_others(folder) == []  # once no file comes and goes any more
