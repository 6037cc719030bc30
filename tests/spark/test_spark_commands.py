"""`uow sink` and `uow audit` as people call them: output, exit status, and a clean stop."""

from __future__ import annotations

import json
import signal
import threading
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from tests.processes import free_port, wait_for
from tests.spark.stage import DEADLINE_S, Stage, c, plain
from uow.cli.main import main
from uow.cli.sink_command import progress_text
from uow.spark_sink.checkpoint import StreamCheckpoint
from uow.spark_sink.delta_sink import run
from uow.spark_sink.monitor import SinkMonitor, behind, watching
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


def test_sink_and_audit_print_sums_and_exit_1_on_a_difference(
    stage: Stage, call: Callable[..., Any], tmp_path: Path
) -> None:
    """W-216, P-01."""
    assert call("audit").exit_code == 1, "there are no tables yet"
    stage.send([c("x", 1), c("x", 2, end=True), plain("a"), c("bad", 0)])
    stage.work()
    name = stage.names.destination
    (tmp_path / "x.ddl").write_text("a STRING")
    files, payload = ("--files", str(tmp_path / "files")), ("--payload", f"{name}={tmp_path / 'x.ddl'}")
    assert call("sink", *payload[:1], "elsewhere=x.ddl").exit_code == 2
    result = call("sink", "--once", "--json", *files, *payload)
    assert result.exit_code == 0, result.output
    rows = {
        "units": 1,
        "components": 2,
        "rejected": 1,
        "passed": 1,
        "unreadable": 0,
        "outcomes": 0,
        "answers": 0,
        "warnings": 0,
    }
    assert json.loads(result.stdout) == {name: rows | {"files": 1, "payloads": 2}}
    [file] = (tmp_path / "files").glob("*/*/??/*.xml")
    file.unlink()
    again = CliRunner().invoke(main, ["sink", "again", "-c", str(tmp_path / "uow.toml"), *files, file.stem, "--json"])
    assert (json.loads(again.stdout), file.exists()) == ([str(file)], True)
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


PATIENT = """
from uow.cli.main import main
from uow.spark_sink import delta_sink
delta_sink.STOP_SECONDS = 600
main()
"""


def test_sigterm_ends_a_running_sink_after_its_batch_and_other_runs_go_on_from_there(
    stage: Stage, tmp_path: Path, spawn: Callable[..., Any]
) -> None:
    """The batch in hand is finished, the exit status is 0; runs with and without `--once` share the checkpoint. Metrics tell of it.

    It is the first one of a new JVM, which takes as long as the machine likes: the sink is told to wait for it that long.
    """
    stage.send([c(f"x{number}", 1, end=True) for number in range(300)])
    stage.work()
    port = free_port()
    at = "--tables", stage.tables.root, "--metrics-port", port
    child = spawn("python", "-c", PATIENT, "sink", "-c", configured(tmp_path, stage), *at)
    checkpoint = StreamCheckpoint(stage.tables.checkpoint)

    def planned() -> bool:
        assert child.status is None, child.output
        return checkpoint.planned >= 0

    wait_for(planned, what="no batch")
    metrics = scraped(port)
    assert child.terminate(10 * DEADLINE_S) == 0, child.output
    assert not checkpoint.is_new, "the batch was cut off"
    expected = {Table.UNITS: 300, Table.COMPONENTS: 300}
    assert {table: count for table, count in stage.tables.rows(stage.spark).items() if count} == expected
    assert {name: labels for name, labels, _ in metrics if name == "uow_sink_running"} == {
        "uow_sink_running": {"destination": stage.names.destination}
    }
    stage.send([c("y", 1, end=True), plain("a")])
    stage.work()
    watched_run(stage)
    assert stage.tables.rows(stage.spark)[Table.UNITS] == 301


def scraped(port: int) -> list[tuple[str, dict[str, str], float]]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=DEADLINE_S) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return [(sample.name, sample.labels, sample.value) for family in families for sample in family.samples]


def watched_run(stage: Stage) -> None:
    """A run with `--once` over a unit and a plain record: metrics count what was written, and how much is left."""
    monitor, told = SinkMonitor(), []
    monitor.on_change = lambda: told.append(progress_text(monitor.streams))
    with watching(stage.spark, monitor, "127.0.0.1", None):
        run(
            [stage.sinking()],
            once=True,
            stop=threading.Event(),
            progress=lambda name, written: monitor.wrote(name, *written),
        )
        name = stage.names.destination
        wait_for(lambda: not monitor.of(name).is_running)
    state = monitor.of(name)
    assert (state.records, state.batches, state.behind) == (2, 1, 0)
    assert state.batch_seconds > 0
    assert state.records_per_second > 0
    [unit] = [row for row in stage.rows(Table.UNITS) if row.id == "y"]
    assert state.last_closed_at == unit.closed_at.replace(tzinfo=UTC).timestamp()
    assert told[-1].startswith(f"{name}: 2 records, ")
    assert told[-1].endswith("/s, 0 behind")
    assert behind('{"t": {"0": 3, "1": 5}}', '{"t": {"0": 10, "1": 5}, "u": {"0": 1}}') == 8
    assert behind('{"t": {"0": 3}}', "None") is None


def test_a_stream_that_fails_beside_another_ends_the_sink_with_its_name_and_cause(
    make_stage: Callable[..., Stage], tmp_path: Path
) -> None:
    """One destination's checkpoint is damaged. What the other has carried stays, and is not carried twice."""
    broken, sound = make_stage(), make_stage()
    for stage in (broken, sound):
        stage.send([c("one", 1, end=True)])
        stage.work()
        stage.sink()
        stage.send([c("two", 1, end=True)])
        stage.work()
    (Path(str(broken.tables.checkpoint)) / "commits" / "1").mkdir()  # Spark cannot record the batch
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
    assert "Traceback" not in result.stderr
    assert sound.names.destination not in result.stderr
    sound.sink()
    assert sorted(row.id for row in sound.rows(Table.UNITS)) == ["one", "two"]
