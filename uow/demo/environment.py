"""The demo's folder, its configuration, and every process that it starts.

When the demo ends, killed or not, so does each process. Its output goes to a file in `logs/`.

Belongs here: starting, watching, ending. Does not belong here: the story (`uow.demo.story`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from uow.embedded import child_processes as children
from uow.embedded.broker import EmbeddedBroker
from uow.schemas.error_classes import ConfigError

_HERE = Path(__file__).resolve().parent
WORKER_NAMES = ("demo-0", "demo-1")
APPLICATION = DESTINATION = "megazon"
EXPIRATION_MS = 25_000
MAX_COMPONENTS = 20
PATIENCE_S = 60.0
LOOK_S = 0.05
TABLES_READY, REPORT_READY = "tables are up to date", "report is written"
"""The lines that `uow.cli.demo_tables` prints between its three commands."""

SETTINGS = """\
# Written by `uow demo`.
[application]
id = "{application}"
bootstrap_servers = "{bootstrap}"

[worker]
web = "127.0.0.1:0"                          # two workers on one machine: each finds a free port

[destinations.{destination}]
handling_policy = "single_message_delivery"
incomplete_expiration_ms = {expiration_ms}
expiration_policy = "redirect"               # components of expired groups go to {destination}.errors
max_components = {max_components}
outcomes = "all"
"""


class DemoFailed(Exception):
    """Something the story needs did not happen; the message says what, and which log to read."""


def wait_for(condition: Callable[[], object], what: str, timeout: float = PATIENCE_S) -> None:
    """Waits until a condition holds.

    Raises:
        DemoFailed: It did not hold in time.
    """
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise DemoFailed(f"did not happen within {timeout:.0f} s: {what}")
        time.sleep(LOOK_S)


class DemoProcess(children.ChildProcess):
    """A program that the demo started.

    Args:
        name: Its name in messages.
        command: The program and its arguments.
        log: File that its output is appended to.
        output: File for its standard output; None: `log`.
        env: Its complete environment.
    """

    def __init__(
        self, name: str, command: Sequence[str], log: Path, output: Path | None, env: Mapping[str, str]
    ) -> None:
        self.name = name
        if output is not None:  # by exec in the same process, so that signals and process id are right
            command = ["/bin/sh", "-c", 'out=$1; shift; exec "$@" >"$out"', "sh", str(output), *command]
        super().__init__(command, log, env)

    def wait_said(self, text: str, timeout: float = PATIENCE_S) -> None:
        """Waits until it has printed `text`.

        Raises:
            DemoFailed: It ended, or did not print it in time.
        """
        wait_for(lambda: text in self.said or self.status is not None, f"{text!r} in {self.log}", timeout)
        if text not in self.said:
            raise DemoFailed(f"{self.name} ended with status {self.status}; see {self.log}")

    def wait(self, timeout: float) -> int:
        """Waits for its end and returns the exit status.

        Raises:
            DemoFailed: It did not end in time.
        """
        wait_for(lambda: self.status is not None, f"the end of {self.name}; see {self.log}", timeout)
        assert self.status is not None
        return self.status


class DemoEnvironment:
    """The demo's folder and everything that runs in it; a context manager that ends all of it.

    Args:
        folder: The folder for everything; None creates a temporary one.
        example: Folder of the story's programs among the examples.

    Raises:
        ConfigError: The folder is not empty and not from an earlier demo, or the story's programs are missing.
    """

    def __init__(self, folder: Path | None, example: str = "megazon") -> None:
        places = (_HERE / example, _HERE.parents[1] / "examples" / example)  # in an installed package, else in a clone
        story = next((each for each in places if each.is_dir()), None)
        if story is None:
            raise ConfigError("demo", str(_HERE), "the story's programs are missing: install the package again")
        self.story = story
        self.is_temporary = folder is None
        self.folder = Path(tempfile.mkdtemp(prefix="uow-demo-")) if folder is None else folder.resolve()
        if self.folder.exists() and any(self.folder.iterdir()):
            raise ConfigError("--dir", str(self.folder), "must be empty, or must not exist yet")
        self.logs.mkdir(parents=True)
        self.broker = EmbeddedBroker(self.folder / "broker")
        self._children: list[DemoProcess] = []
        # the user's UOW_... variables are for the user's own cluster
        self._env = {name: value for name, value in os.environ.items() if not name.startswith("UOW_")}
        self._env |= {"PYTHONUNBUFFERED": "1", "PYTHONWARNINGS": "ignore"}

    @property
    def logs(self) -> Path:
        """Folder of the processes' output."""
        return self.folder / "logs"

    @property
    def tables(self) -> Path:
        """The Delta tables."""
        return self.folder / "tables"

    @property
    def config(self) -> Path:
        """The configuration of workers and commands."""
        return self.folder / "uow.toml"

    @property
    def bootstrap(self) -> str:
        """The broker's address."""
        return self.broker.bootstrap

    def write_config(self, text: str) -> None:
        """Writes `uow.toml`."""
        self.config.write_text(text, encoding="utf-8")

    def start(self, name: str, *command: str, output: Path | None = None) -> DemoProcess:
        """Starts a program; its output goes to `logs/<name>.log`."""
        child = DemoProcess(name, command, self.logs / f"{name}.log", output, self._env)
        self._children.append(child)
        return child

    def start_uow(self, name: str, *arguments: str, output: Path | None = None) -> DemoProcess:
        """Starts a `uow` command with the demo's configuration."""
        return self.start(name, sys.executable, "-m", "uow", *arguments, "-c", str(self.config), output=output)

    def start_story(self, name: str, program: str, *arguments: str) -> DemoProcess:
        """Starts a program of the example."""
        return self.start(name, sys.executable, str(self.story / program), *arguments, "--bootstrap", self.bootstrap)

    def start_worker(self, worker_name: str) -> DemoProcess:
        """Starts a worker."""
        return self.start_uow(worker_name, "worker", "--name", worker_name)

    def run_uow(self, *arguments: str) -> Any:
        """Runs a `uow` command to its end and returns the JSON that it printed.

        Raises:
            DemoFailed: It failed.
        """
        command = [sys.executable, "-m", "uow", *arguments, "--json", "-c", str(self.config)]
        done = subprocess.run(
            command, capture_output=True, text=True, env=self._env, timeout=PATIENCE_S, check=False, process_group=0
        )
        if done.returncode:
            raise DemoFailed(f"`uow {' '.join(arguments)}` failed: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def web_pages(self) -> list[str]:
        """Addresses of the workers' web pages, from their logs."""
        logs = [child.said for child in self._children if child.name in WORKER_NAMES and child.status is None]
        return [log.partition("pages on ")[2].split()[0] for log in logs if "pages on " in log]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends everything that still runs: first the programs, then the broker."""
        running = [child for child in self._children if child.status is None]
        for child in running:
            child.signal(signal.SIGTERM)
        deadline = time.monotonic() + 8
        for child in running:
            child.end(deadline - time.monotonic())
        if self.is_temporary and self.broker.is_running:
            self.broker.kill()  # it will not be started in this folder again
        else:
            self.broker.stop()
