"""`compose.yaml` as it stands, on a Docker engine: built, started, used from this machine, killed, stopped, removed.

One stack for all tests here, under a project name and on ports of its own. A first build takes minutes.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient

from tests.broker.worker_places import Destination
from tests.kafka_broker import docker_answers
from tests.processes import Process, free_port, wait_for
from uow.cli.main import main

ROOT = Path(__file__).parents[2]
SETTINGS = ROOT / "examples" / "uow.toml"
BUILD_S, START_S = 1800.0, 300.0

QUIET = logging.getLogger("tests.librdkafka")

pytestmark = [pytest.mark.docker, pytest.mark.timeout(3000)]


class Stack:
    """The services of `compose.yaml`."""

    def __init__(self) -> None:
        kafka, a, b = (free_port() for _ in range(3))
        self.project = f"uow-test-{uuid4().hex[:8]}"
        self.bootstrap = f"localhost:{kafka}"
        self.pages = {"worker-a": f"http://127.0.0.1:{a}", "worker-b": f"http://127.0.0.1:{b}"}
        ports = {"KAFKA_PORT": kafka, "WORKER_A_PORT": a, "WORKER_B_PORT": b}
        self.env = {**os.environ, **{name: str(port) for name, port in ports.items()}}

    def compose(
        self, *arguments: str, check: bool = True, timeout: float = START_S
    ) -> subprocess.CompletedProcess[str]:
        command = ["docker", "compose", "--progress", "plain", "-p", self.project, *arguments]
        done = subprocess.run(
            command, cwd=ROOT, env=self.env, capture_output=True, text=True, check=False, timeout=timeout
        )
        assert not check or done.returncode == 0, f"{command}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done

    def states(self) -> dict[str, dict[str, Any]]:
        """What `docker compose ps` says, by service."""
        lines = self.compose("ps", "--all", "--format", "json").stdout.splitlines()
        return {row["Service"]: row for row in map(json.loads, lines)}

    def logs(self, service: str) -> str:
        return self.compose("logs", "--no-log-prefix", service, check=False).stdout

    def owned(self, worker: str) -> set[str]:
        """Partitions a worker owns; none while it does not answer."""
        try:
            with urllib.request.urlopen(f"{self.pages[worker]}/groups/", timeout=5) as answer:
                return {*json.load(answer)["destinations"].get("megazon", ())}
        except OSError:
            return set()

    def wait_shared(self) -> None:
        """Both workers own two partitions each."""
        owned = lambda: [self.owned(each) for each in self.pages]  # noqa: E731
        wait_for(lambda: [len(each) for each in owned()] == [2, 2], START_S, lambda: f"{owned()} {self.states()}")

    def process(self, service: str) -> int:
        """Process id of a service on this machine."""
        container = self.states()[service]["ID"]
        told = subprocess.run(
            ["docker", "inspect", "-f", "{{.State.Pid}}", container], capture_output=True, text=True, check=True
        )
        return int(told.stdout)

    def uow(self, *arguments: str) -> str:
        """A command on this machine, with the settings that `compose.yaml` uses."""
        env = {"UOW_APPLICATION__BOOTSTRAP_SERVERS": self.bootstrap}
        result = CliRunner().invoke(main, [*arguments, "-c", str(SETTINGS)], env=env, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    if shutil.which("docker") is None or not docker_answers():
        pytest.skip("no Docker engine answers")
    stack = Stack()
    if stack.compose("version", check=False).returncode:
        pytest.skip("docker has no compose")
    stack.compose("build", "worker-a", timeout=BUILD_S)
    stack.compose("build", "sink", timeout=BUILD_S)
    try:
        stack.compose("up", "--detach", "--no-build", timeout=START_S)
        yield stack
    finally:
        stack.compose("down", "--volumes", "--remove-orphans", "--timeout", "20", check=False)


@pytest.fixture(scope="module")
def place(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Destination:
    """The destination, seen by a client that shares no code with the worker."""

    def spawn(*command: str | Path, **more: Any) -> Process:
        raise AssertionError("the workers here are containers")

    return Destination(stack.bootstrap, "megazon", tmp_path_factory.mktemp("place"), spawn)


def test_broker_is_healthy_topics_are_made_and_both_workers_share_the_partitions(stack: Stack) -> None:
    stack.wait_shared()
    states = stack.states()
    assert states["broker"]["Health"] == "healthy"
    assert states["topics"]["ExitCode"] == 0
    assert "8 created" in stack.logs("topics")
    assert stack.owned("worker-a") | stack.owned("worker-b") == {"0", "1", "2", "3"}
    wait_for(lambda: {stack.states()[each]["Health"] for each in stack.pages} == {"healthy"}, START_S, "health")


def test_unit_sent_from_this_machine_is_read_and_an_open_group_is_listed(
    stack: Stack, place: Destination, tmp_path: Path
) -> None:
    parts = [tmp_path / name for name in ("book", "flash drive")]
    for part in parts:
        part.write_text(part.name)
    sent = stack.uow("send", "megazon", *map(str, parts)).strip()
    place.sent[sent.encode()] |= {1: b"book", 2: b"flash drive"}
    place.ends[sent.encode()] = 2
    (unit,) = map(json.loads, stack.uow("read", "megazon", "--count", "1", "--json").splitlines())
    assert (unit["id"], unit["outcome"], unit["count"]) == (sent, "complete", 2)
    place.send([("left-open", 1, False), ("left-open", 3, True)])
    wait_for(lambda: len(json.loads(stack.uow("groups", "megazon", "--json"))["groups"]) == 1, 60, "the open group")
    (group,) = json.loads(stack.uow("groups", "megazon", "--json"))["groups"]
    assert (group["id"], group["missing"], group["end"]) == ("left-open", "2", 3)


@pytest.mark.parametrize("how", ["compose kill", "its process alone"])
def test_worker_killed_under_load_comes_back_and_nothing_is_lost_or_doubled(
    stack: Stack, place: Destination, how: str
) -> None:
    """W-124. What `docker compose kill` ended stays down until it is started; a process that died is started again."""
    before = len(place.delivered())
    load = threading.Thread(target=lambda: [place.send_units(100, seed=each, prefix=how[0]) for each in range(10)])
    load.start()
    wait_for(lambda: len(place.delivered()) > before, 60, "the first units")
    if how == "compose kill":
        stack.compose("kill", "--signal", "KILL", "worker-a")
        stack.compose("start", "worker-a")
    else:
        try:
            os.kill(stack.process("worker-a"), signal.SIGKILL)
        except (PermissionError, ProcessLookupError):
            load.join()
            pytest.skip("processes of the engine are not within reach of this user")
    load.join()
    place.wait_delivered(before + 1000, START_S)
    stack.wait_shared()
    place.verify()


def test_worker_asked_to_end_from_inside_is_started_again(stack: Stack) -> None:
    stack.compose("exec", "-T", "worker-b", "sh", "-c", "kill -TERM 1")
    wait_for(lambda: stack.logs("worker-b").count("worker b ready") >= 2, START_S, lambda: stack.logs("worker-b"))
    stack.wait_shared()


@pytest.mark.parametrize("service", ["worker-a", "sink"])
def test_images_run_as_nobody_in_particular_and_can_write_to_nothing_of_theirs(stack: Stack, service: str) -> None:
    assert stack.compose("exec", "-T", service, "id", "-u").stdout.strip() == "10001"
    tried = stack.compose("exec", "-T", service, "touch", "/home/uow/x", "/opt/uow/x", check=False)
    assert tried.returncode != 0
    status = stack.compose("exec", "-T", service, "cat", "/proc/1/status").stdout
    assert "NoNewPrivs:\t1" in status
    assert "CapEff:\t0000000000000000" in status


def test_sink_has_every_unit_and_the_audit_finds_no_difference(stack: Stack, place: Destination) -> None:
    made = "ls /tables/_checkpoints/megazon/commits"
    wait_for(
        lambda: "0" in stack.compose("exec", "-T", "sink", "sh", "-c", made, check=False).stdout, START_S, "a batch"
    )
    stack.compose("stop", "--timeout", "200", "sink")
    assert stack.states()["sink"]["ExitCode"] == 0, stack.logs("sink")
    inside = ("run", "--rm", "--no-deps", "-T", "sink")
    shared = ("-c", "/etc/uow/uow.toml", "--tables", "/tables", "--json")
    rows = json.loads(stack.compose(*inside, "sink", "--once", *shared, timeout=600).stdout)
    assert rows["megazon"]["units"] == len(place.ends) - 1  # one is open
    audit = json.loads(stack.compose(*inside, "audit", *shared, timeout=600).stdout)
    assert audit["megazon"]["clean"]


def test_open_group_survives_down_and_up(stack: Stack, place: Destination) -> None:
    def is_listed() -> bool:
        return "over-night" in {group["id"] for group in json.loads(stack.uow("groups", "megazon", "--json"))["groups"]}

    place.send([("over-night", 1, False), ("over-night", 3, True)])
    wait_for(is_listed, 60, "the open group")
    stack.compose("down")
    assert stack.states() == {}
    stack.compose("up", "--detach", "--no-build")
    stack.wait_shared()
    place.send([("over-night", 2, False)])
    wait_for(lambda: b"over-night" in place.delivered(), 60, "the unit that was open before")
    place.verify()


def test_destination_begun_anew_as_operations_md_says_goes_on(stack: Stack, place: Destination) -> None:
    """What is left after lost input. Open groups are forgotten."""
    admin = AdminClient({"bootstrap.servers": stack.bootstrap}, logger=QUIET)
    state = {"megazon-megazon-groups-changelog", "megazon-megazon-closed-changelog"}
    stack.compose("stop", *stack.pages)
    for future in admin.delete_topics([*state]).values():
        future.result(30)
    wait_for(lambda: not state & {*admin.list_topics(timeout=10).topics}, 60, "the topics' end")
    assert "2 created, 6 existed already" in stack.compose("run", "--rm", "-T", "topics").stdout
    stack.compose("start", *stack.pages)
    stack.wait_shared()
    place.send_units(20, prefix="anew")
    wait_for(lambda: b"anew0-0" in place.delivered(), 60, "a unit after it")
    place.wait_delivered(len(place.ends) - 1, 60)  # one was left open
    place.verify()


def test_stop_is_clean_and_nothing_is_left(stack: Stack) -> None:
    stack.compose("stop", "--timeout", "200", timeout=2 * START_S)
    ended = {service: row["ExitCode"] for service, row in stack.states().items() if service != "broker"}
    assert ended == {"topics": 0, "worker-a": 0, "worker-b": 0, "sink": 0}, stack.logs("sink")
    stack.compose("down", "--volumes", timeout=120)
    left = subprocess.run(
        ["docker", "volume", "ls", "-q", "--filter", f"label=com.docker.compose.project={stack.project}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert left.stdout == ""
