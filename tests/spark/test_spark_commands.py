"""`uow sink` and `uow audit` as people call them: output, exit status, and a clean stop."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from spark_sink.tables import Table
from tests.spark.stage import DEADLINE_S, Stage, c, plain
from uow.cli import main

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def call(stage: Stage, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Calls a command on the stage's destination, in this process and its Spark session."""
    before = signal.getsignal(signal.SIGTERM)
    path = configured(stage, tmp_path)

    def run(name: str, *more: str) -> Any:
        return CliRunner().invoke(main, [name, "-c", str(path), "--tables", str(stage.tables.root), *more])

    yield run
    signal.signal(signal.SIGTERM, before)


def configured(stage: Stage, tmp_path: Path) -> Path:
    path = tmp_path / "uow.toml"
    path.write_text(
        f'[application]\nid = "tests"\nbootstrap_servers = "{stage.servers}"\n'
        f'[destinations."{stage.names.destination}"]\nhandling_policy = "single_message_delivery"\n'
    )
    return path


def test_sink_and_audit_print_sums_and_exit_1_on_a_difference(stage: Stage, call: Callable[..., Any]) -> None:
    """W-216, contract section 7."""
    assert call("audit").exit_code == 1, "there are no tables yet"
    stage.send([c("x", 1), c("x", 2, end=True), plain("a"), c("bad", 0)])
    stage.work()
    name = stage.names.destination
    result = call("sink", "--once", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {name: {"units": 1, "components": 2, "rejected": 1, "passed": 1}}
    result = call("audit", "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)[name]
    assert (report["clean"], report["received"], report["differences"]) == (True, 4, {})
    assert report["records"]["delivered"] == {"expected": 2, "found": 2}
    stage.tamper(Table.COMPONENTS, lambda rows: rows.clear())
    result = call("audit")
    assert result.exit_code == 1
    assert "2 missing" in result.stdout
    assert f"{stage.names.components}/" in result.stdout


def test_an_unknown_destination_is_wrong_configuration(call: Callable[..., Any]) -> None:
    """Exit 2, before Spark is asked anything."""
    for name in ("sink", "audit"):
        result = call(name, "--destination", "nowhere")
        assert result.exit_code == 2
        assert "nowhere" in result.stderr


def test_sigterm_ends_a_running_sink_cleanly(stage: Stage, tmp_path: Path, spawn: Callable[..., Any]) -> None:
    """What was written stays; the exit status is 0."""
    stage.send([c("x", 1, end=True)])
    stage.work()
    child = spawn("uow", "sink", "-c", configured(stage, tmp_path), "--tables", stage.tables.root)
    deadline = time.monotonic() + 10 * DEADLINE_S
    while not any((stage.tables.checkpoint / "commits").glob("[0-9]*")):
        assert child.status is None, child.output
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert child.terminate(10 * DEADLINE_S) == 0, child.output
    assert stage.tables.rows(stage.spark) == {Table.UNITS: 1, Table.COMPONENTS: 1, Table.REJECTED: 0, Table.PASSED: 0}
