"""What every test may ask for: a broker, a name of its own, topics, child processes."""

from __future__ import annotations

import gc
import json
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_timeout
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from tests.forked_worker import ForkedWorker
from tests.kafka_broker import Given, Kafka, docker_answers, origin, running_broker
from tests.processes import PATIENCE_S, Patience, Process, wait_for

pytest_plugins = ["tests.skipped_tests"]

# librdkafka writes to standard error by itself, reconnects after a broker's end included
QUIET = logging.getLogger("tests.librdkafka")
QUIET.addHandler(logging.NullHandler())
QUIET.propagate = False

# a run under nohup must not hand it on: a served broker outlives its parent then, on purpose
signal.signal(signal.SIGHUP, signal.SIG_DFL)
# nor must one in the background of a shell: the programs that a test ends by Ctrl-C would not hear it
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# else each process of a run, and each worker that a test starts, would compile everything again
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# neither an example nor its data takes too long because the machine is busy
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


SECOND_TRIES = Path(".flaky/tried-twice.jsonl")
"""Tests that failed and were tried again, by `make test RERUNS=1`."""
LOG_LINES = 60


def pytest_report_header() -> str:
    """Say which Kafka the run uses."""
    return f"kafka: {origin()}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say how many tests were tried again, print what they failed with, and keep it (decision 110)."""
    if hasattr(config, "workerinput"):
        return  # the run has one summary, and this is a process of it
    again: list[Any] = terminalreporter.getreports("rerun")
    for report in again:
        terminalreporter.write_sep("_", f"{report.nodeid}, tried again")
        terminalreporter.write_line(report.longreprtext)
    if again:
        keep_second_tries(again, config.rootpath)
    names = {
        report.nodeid for kind in ("passed", "failed", "error", "rerun") for report in terminalreporter.getreports(kind)
    }
    tried, off = (
        len({report.nodeid for report in again}),
        "" if config.getoption("reruns", 0) else " (second tries are off)",
    )
    line = f"flaky: {tried} of {len(names)} tests tried again{off}" + (f"; they are in {SECOND_TRIES}" if again else "")
    terminalreporter.write_sep("!" if again else "-", line, bold=bool(again), red=bool(again))


def keep_second_tries(reports: list[Any], root: Path) -> None:
    """One line for each: which test, when, of which revision, on how busy a machine, and what it failed with."""
    file = root / SECOND_TRIES
    file.parent.mkdir(exist_ok=True)
    asked = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False)
    run = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "revision": asked.stdout.strip(),
        "load": os.getloadavg(),
    }
    with file.open("a") as kept:
        for report in reports:
            kept.write(json.dumps({"test": report.nodeid, **run, "failure": report.longreprtext}) + "\n")


SPARK_SESSIONS = (
    {
        "test_audit.py",
        "test_hostile_records.py",
        "test_lineage.py",
        "test_session.py",
        "test_shapes_in_tables.py",
        "test_sink.py",
    },
    {
        "test_audit_state.py",
        "test_maintenance.py",
        "test_superseded.py",
    },
    {
        "test_file_sink.py",
        "test_outcomes.py",
        "test_payloads.py",
        "test_questions.py",
        "test_secured_kafka.py",
        "test_spark_commands.py",
        "test_units_by_rule.py",
    },
)
"""Files whose tests share a Spark session. One would do, but its tests, one after the other, take longer than all others beside them (decision 89)."""


LONG_S = {
    "test_planted_defects": 220,
    "test_demo": 210,
    "test_three_brokers": 205,
    "test_worker_processes": 205,
    "test_simulated_runs": 165,
    "test_through_a_worker": 145,
    "test_silent_brokers": 135,
    "test_memory_budget": 130,
    "test_router_on_broker": 130,
    "test_migration": 105,
    "test_bench_smoke": 90,
    "test_repartition": 90,
    "test_embedded_broker": 85,
    "test_frame_faults": 75,
    "test_operating_rules": 70,
    "test_repair_commands": 65,
    "test_shapes_on_broker": 60,
    "test_trust_on_broker": 60,
    "test_connections_survive": 55,
    "test_expiry": 55,
    "test_low_stock_demo": 55,
    "test_strict_order": 55,
    "test_client_forwarding": 50,
    "test_memory": 50,
    "test_path_routing": 50,
    "test_topic_commands": 50,
    "test_client_reading": 45,
    "test_client_sending": 45,
    "test_restore_asks_again": 45,
    "test_wheel": 45,
    "test_bad_input": 40,
    "test_client_poison": 40,
    "test_hostile": 40,
    "test_silent_broker": 40,
    "test_limits_under_attack": 40,
    "test_unwritable_targets": 40,
    "test_prove": 35,
    "test_sink_errors": 35,
    "test_checker": 30,
    "test_lost_offsets": 30,
    "test_megazon_example": 30,
    "test_replay_refused": 30,
    "test_whole_worker": 30,
    "test_fan_out_on_broker": 25,
    "test_guarantees": 25,
    "test_many_expire": 25,
    "test_nested_on_broker": 25,
    "test_order_checks": 25,
    "test_routed_worker": 25,
    "test_both_streams": 20,
    "test_cancel_notices": 20,
    "test_commands_restored": 20,
    "test_corrected_restored": 20,
    "test_cut_plans": 20,
    "test_decision_table": 20,
    "test_early_commands": 20,
    "test_long_restore": 20,
    "test_recovery": 20,
    "test_routes_on_broker": 20,
    "test_source_group": 20,
    "test_account": 15,
    "test_differential": 15,
    "test_error_table": 15,
    "test_installed": 15,
    "test_java_producer": 15,
    "test_path_log": 15,
    "test_prove_clients": 15,
    "test_restore_barrier": 15,
    "test_simulated_defects": 15,
}
"""About how many seconds the long files take, on two cores: their order counts. Taken from `--durations=0`; the others are short."""


class ByFile(LoadScopeScheduling):  # type: ignore[misc]
    """Shares tests out to processes file by file, and those of a Spark session to one: brokers, demos and JVMs start once.

    Not `--dist loadgroup`: pytest 9.2 keeps node ids from it, and it spreads every test (pytest-xdist issue 1386).
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        name = file.removeprefix("tests/spark/")
        return next((f"spark {number}" for number, files in enumerate(SPARK_SESSIONS) if name in files), file)


LOOK_S = 5.0
"""So often a test is asked whether it is over its limit."""
SHARED = pytest.StashKey[ExitStack]()
"""Ends the broker that the processes of a run share."""
BOOTSTRAP = pytest.StashKey[str]()
"""Its address."""


def pytest_configure_node(node: Any) -> None:
    """All processes of a run share a broker: each would start one, and make it compile the same code."""
    if SHARED not in node.config.stash:
        node.config.stash[SHARED] = ExitStack()
        node.config.stash[BOOTSTRAP] = node.config.stash[SHARED].enter_context(running_broker()).bootstrap
    node.workerinput["bootstrap"] = node.config.stash[BOOTSTRAP]


def pytest_unconfigure(config: pytest.Config) -> None:
    """The shared broker ends behind the processes."""
    config.stash.get(SHARED, ExitStack()).close()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    """Of a run in several processes."""
    return ByFile(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests by what they ask for, and put the files that take longest last.

    Several processes begin with those, so that they end at about the same time.
    """
    weights: dict[Path, tuple[int, ...]] = {}
    for item in items:
        asked = getattr(item, "fixturenames", [])
        for name in ("broker", "spark"):
            if name in asked:
                item.add_marker(name)
        if item.get_closest_marker("spark"):
            # py4j leaves sockets to its JVM to the garbage collector, whenever that comes
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))
        marked = [item.get_closest_marker(name) is not None for name in ("spark", "slow", "broker")]
        weight = (marked[0], LONG_S.get(item.path.stem, 0), *marked[1:])
        weights[item.path] = max(weight, weights.get(item.path, weight))
    items.sort(key=lambda item: weights[item.path], reverse=hasattr(config, "workerinput"))


def pytest_collection_finish() -> None:
    """Leave the tests themselves out of garbage collection: thousands of them would be looked at again and again."""
    gc.collect()
    gc.freeze()


def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool:
    """A test's limit is there to end what hangs; time in which the machine had no time for it does not count (decision 110)."""
    patience = Patience(settings.timeout)

    def look(*_: object) -> None:
        if patience.is_over:
            pytest_timeout.timeout_sigalrm(item, settings)
        signal.setitimer(signal.ITIMER_REAL, min(LOOK_S, settings.timeout))

    def cancel() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    item.cancel_timeout = cancel  # type: ignore[attr-defined]
    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, min(LOOK_S, settings.timeout))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """A test that failed shows the ends of its programs' logs: a later run deletes them."""
    report: Any = yield
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    if report.failed and folder is not None:
        for log in sorted(folder.glob("child-*.log")):
            lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
            report.sections.append((f"end of {log.name}", "\n".join(lines)))
    return report


def pytest_runtest_setup(item: pytest.Item) -> None:
    """The docker tier skips with a clear line where there is no engine."""
    if item.get_closest_marker("docker") and not docker_answers():
        pytest.skip("no Docker engine answers")


@pytest.fixture(scope="session")
def broker(request: pytest.FixtureRequest) -> Iterator[Kafka]:
    """The broker of this run: UOW_TEST_BOOTSTRAP if given, a container if UOW_TEST_BROKER=docker, else embedded.

    Shared by all tests of all processes, so a test uses names made from `unique` and stops or kills nothing: who wants to
    do that starts an `EmbeddedBroker` of its own.
    """
    shared = getattr(request.config, "workerinput", {}).get("bootstrap")
    with nullcontext(Given(shared)) if shared else running_broker() as running:
        yield running


@pytest.fixture(scope="session")
def admin(broker: Kafka) -> Any:
    """An AdminClient on the broker; it stays referenced, as its futures need."""
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": broker.bootstrap}, logger=QUIET)


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> str:
    """A name no other test has, fit for topics, groups and transactional ids; it tells the test's name."""
    readable = re.sub(r"[^a-zA-Z0-9]+", "-", request.node.name.removeprefix("test_")).strip("-")
    return f"{readable[:40]}-{uuid4().hex[:8]}"


@pytest.fixture
def topic_prefix(unique: str) -> str:
    """The same, under the name that says what for."""
    return unique


@pytest.fixture
def create_topic(admin: Any, unique: str) -> Iterator[Callable[..., str]]:
    """Makes topics named after the test: `create_topic("rejected", partitions=4, config={...})`; deleted afterwards."""
    from confluent_kafka.admin import NewTopic

    made: list[str] = []

    def create(suffix: str = "", partitions: int = 2, config: Mapping[str, str] | None = None) -> str:
        name = f"{unique}.{suffix}" if suffix else unique
        for future in admin.create_topics([NewTopic(name, partitions, 1, config=dict(config or {}))]).values():
            future.result(PATIENCE_S)
        wait_for(lambda: name in admin.list_topics(timeout=PATIENCE_S).topics)  # the broker hears of it a moment later
        made.append(name)
        return name

    yield create
    for future in admin.delete_topics(made).values() if made else ():
        future.result(PATIENCE_S)


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Starts programs that end with the test, or with pytest: `spawn("uow", "worker", "-c", path, env={...})`.

    A first word `uow` or `python` means the one of this environment. `uow worker` is forked (`tests.forked_worker`), unless `uow` is given by its path.
    """
    yield from _spawning(tmp_path)


@pytest.fixture(scope="module")
def spawn_shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Process]]:
    """The same for programs that end with the last test of the file."""
    yield from _spawning(tmp_path_factory.mktemp("shared"))


def _spawning(folder: Path) -> Iterator[Callable[..., Process]]:
    children: list[Process] = []

    def start(*command: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Process:
        first, *rest = map(str, command)
        log = folder / f"child-{len(children)}.log"
        if (first, *rest[:1]) == ("uow", "worker") and cwd is None:
            children.append(ForkedWorker(rest, log, env))
            return children[-1]
        if first in {"uow", "python"}:
            first = str(Path(sys.executable).with_name(first))
        children.append(Process([first, *rest], log, env, cwd))
        return children[-1]

    yield start
    for child in children:
        child.close()
