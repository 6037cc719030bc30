"""`uow sink` and `uow audit` as people call them: output, exit status, and a clean stop."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.spark.stage import DEADLINE_S, Stage, c, plain
from uow.cli.main import main
from uow.spark_sink.tables import Table

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def call(stage: Stage, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Calls a command on the stage's destination, in this process and its Spark session."""
    before = signal.getsignal(signal.SIGTERM)
    path = configured(tmp_path, stage)

    def run(name: str, *more: str) -> Any:
        return CliRunner().invoke(main, [name, "-c", str(path), "--tables", str(stage.tables.root), *more])

    yield run
    signal.signal(signal.SIGTERM, before)


def configured(tmp_path: Path, *stages: Stage) -> Path:
    path = tmp_path / "uow.toml"
    destinations = (
        f'[destinations."{stage.names.destination}"]\nhandling_policy = "single_message_delivery"\n' for stage in stages
    )
    application = f'[application]\nid = "tests"\nbootstrap_servers = "{stages[0].servers}"\n'
    path.write_text(application + "".join(destinations))
    return path


def test_sink_and_audit_print_sums_and_exit_1_on_a_difference(stage: Stage, call: Callable[..., Any]) -> None:
    """W-216, P-01."""
    assert call("audit").exit_code == 1, "there are no tables yet"
    stage.send([c("x", 1), c("x", 2, end=True), plain("a"), c("bad", 0)])
    stage.work()
    name = stage.names.destination
    result = call("sink", "--once", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {
        name: {"units": 1, "components": 2, "rejected": 1, "passed": 1, "unreadable": 0, "outcomes": 0, "answers": 0}
    }
    result = call("audit", "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)[name]
    assert (report["clean"], report["received"], report["differences"]) == (True, 4, {})
    assert report["records"]["delivered"] == {"expected": 2, "found": 2}
    stage.tamper(Table.COMPONENTS, lambda rows: rows.clear())
    page = stage.tables.root / "report.html"
    result = call("audit", "--html", str(page))
    assert result.exit_code == 1
    assert f"{name} <span" in page.read_text()
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
    child = spawn("uow", "sink", "-c", configured(tmp_path, stage), "--tables", stage.tables.root)
    deadline = time.monotonic() + 10 * DEADLINE_S
    while not any((stage.tables.checkpoint / "commits").glob("[0-9]*")):
        assert child.status is None, child.output
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert child.terminate(10 * DEADLINE_S) == 0, child.output
    assert {table: count for table, count in stage.tables.rows(stage.spark).items() if count} == {
        Table.UNITS: 1,
        Table.COMPONENTS: 1,
    }


def test_a_stream_that_fails_beside_another_ends_the_sink_with_its_name_and_cause(
    make_stage: Callable[..., Stage], tmp_path: Path
) -> None:
    """Retention took what one destination had not carried yet. What the other has carried stays, and is not carried twice."""
    broken, sound = make_stage(), make_stage()
    for stage in (broken, sound):
        stage.send([c("one", 1, end=True)])
        stage.work()
        stage.sink()
        stage.send([c("two", 1, end=True)])
        stage.work()
    broken.lose(broken.names.units)
    before, late = signal.getsignal(signal.SIGTERM), threading.Event()

    def end_what_should_have_ended() -> None:
        late.set()
        signal.raise_signal(signal.SIGTERM)

    timer = threading.Timer(3 * DEADLINE_S, end_what_should_have_ended)
    timer.start()
    try:
        path = configured(tmp_path, broken, sound)
        result = CliRunner().invoke(main, ["sink", "-c", str(path), "--tables", str(sound.tables.root)])
    finally:
        timer.cancel()
        signal.signal(signal.SIGTERM, before)
    assert not late.is_set(), "the other stream went on alone"
    assert result.exit_code == 1
    assert f"{broken.names.destination}: its stream failed: " in result.stderr
    assert "is out of range for partition" in result.stderr
    assert "Traceback" not in result.stderr
    assert sound.names.destination not in result.stderr
    sound.sink()
    assert sorted(row.id for row in sound.rows(Table.UNITS)) == ["one", "two"]
