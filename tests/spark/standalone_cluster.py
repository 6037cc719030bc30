"""A standalone cluster of Spark on this machine: a master and workers as processes, with the scripts and jars inside pyspark."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import psutil
import pyspark

from tests.processes import wait_for
from uow.jvm import java

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
HOST = "127.0.0.1"


class StandaloneCluster:
    """A master, and workers with a core each."""

    def __init__(self, folder: Path, workers: int) -> None:
        with ExitStack() as sockets:
            ports = [sockets.enter_context(socket.create_server((HOST, 0))).getsockname()[1] for _ in range(2)]
        self.folder, self._port, self._page = folder, *ports
        self.master = f"spark://{HOST}:{self._port}"
        self._count = workers
        self.workers: list[subprocess.Popen[bytes]] = []
        self._master: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.folder.mkdir()
        at = ["--host", HOST, "--port", str(self._port), "--webui-port", str(self._page)]
        self._master = self._start("master.Master", *at)
        wait_for(lambda: self._alive() == 0, what=self._logs)
        for _ in range(self._count):
            self.add_worker()
        return self

    def add_worker(self) -> None:
        """One more worker; returns when the master knows it."""
        before, number = self._alive() or 0, len(self.workers)
        at = ["--host", HOST, "--webui-port", "0", "--cores", "1", "--memory", "1g"]
        self.workers.append(self._start("worker.Worker", *at, "-d", str(self.folder / f"work-{number}"), self.master))
        wait_for(lambda: (self._alive() or 0) > before, what=self._logs)

    def executors(self, worker: subprocess.Popen[bytes]) -> list[psutil.Process]:
        """The executors that a worker has started."""
        try:
            return psutil.Process(worker.pid).children()
        except psutil.NoSuchProcess:
            return []

    def kill(self, worker: subprocess.Popen[bytes]) -> None:
        """A machine that is gone: the worker and its executors."""
        for process in [*self.executors(worker), worker]:
            process.send_signal(signal.SIGKILL)
        worker.wait()

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            if worker.poll() is None:
                self.kill(worker)
        if self._master is not None:
            self._master.kill()
            self._master.wait()

    def _start(self, kind: str, *arguments: str) -> subprocess.Popen[bytes]:
        own = {"JAVA_HOME": str(java.spark_home()), "SPARK_LOCAL_IP": HOST, "SPARK_DAEMON_MEMORY": "256m"}
        with (self.folder / "log").open("ab") as log:
            command = [SPARK_CLASS, f"org.apache.spark.deploy.{kind}", *arguments]
            return subprocess.Popen(command, env={**os.environ, **own}, stdout=log, stderr=log)

    def _alive(self) -> int | None:
        """Number of workers that the master knows; None if it does not answer."""
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self._page}/json/", timeout=5) as answer:
                return int(json.load(answer)["aliveworkers"])
        except OSError:
            return None

    def _logs(self) -> str:
        return (self.folder / "log").read_text()[-3000:]
