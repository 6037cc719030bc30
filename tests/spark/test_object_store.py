"""Tables and checkpoint in an object store: `--tables s3a://...`, against moto's S3 server (PyPI) in an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker.worker_places import Destination
from tests.processes import Process
from uow.jvm import jars

SERVER = "moto[s3,server]==5.2.5"
UOW = str(Path(sys.executable).with_name("uow"))

pytestmark = [pytest.mark.drill, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of an S3 server with the bucket `lake`, in memory; the jars for it are there."""
    jars.ensure(sets=jars.ON_REQUEST)  # `make setup` leaves them out
    home = Path(os.environ.get("UOW_MOTO", tmp_path_factory.mktemp("moto")))
    server = home / "bin" / "moto_server"
    if not server.exists():
        venv.create(home, with_pip=True)
        subprocess.run([home / "bin" / "python", "-m", "pip", "install", "-q", SERVER], check=True)
    # a file: it tells of every request, and would wait for ever on a pipe that nobody empties
    process = Process([str(server), "-p", "0"], tmp_path_factory.mktemp("store") / "log")
    try:
        url = process.wait_output("Running on").split()[-1]
        request = urllib.request.Request(f"{url}/lake", method="PUT")
        urllib.request.urlopen(request, timeout=30).close()
        yield url
    finally:
        process.close()


def test_tables_in_an_object_store_are_written_once_audited_maintained_and_asked(
    broker: Any, store: str, tmp_path: Path, unique: str, spawn: Callable[..., Any]
) -> None:
    destination = Destination(broker.bootstrap, unique, tmp_path, spawn)
    destination.create()
    options = {
        "endpoint": store,
        "endpoint.region": "us-east-1",
        "path.style.access": "true",
        "access.key": "test",
        "secret.key": "test",
    }
    at = ["--tables", f"s3a://lake/{unique}"]
    at += [word for name, value in options.items() for word in ("--conf", f"spark.hadoop.fs.s3a.{name}={value}")]
    config = ["-c", str(destination.config)]

    def uow(*words: str, status: int = 0) -> Any:
        done = subprocess.run([UOW, *words, *at], capture_output=True, text=True, check=False)
        assert done.returncode == status, done.stdout[-1000:] + done.stderr[-3000:]
        return json.loads(done.stdout) if "--json" in words else done.stderr

    worker = destination.worker()
    for number in range(2):
        destination.send_units(20, 3, seed=number)
        destination.wait_delivered(20 * (number + 1))
        rows = uow("sink", "--once", "--json", *config)[unique]
        assert (rows["units"], rows["components"]) == (20 * (number + 1), 60 * (number + 1))
    assert uow("sink", "--once", "--json", *config)[unique] == rows
    assert worker.child.terminate() == 0
    assert uow("audit", "--json", *config)[unique]["clean"]
    assert "--alone" in uow("sink", "maintain", status=2)
    assert uow("sink", "maintain", "--alone", "--json")[unique]["units"]["rows"] == 40
    assert uow("sql", "SELECT count(*) AS n FROM units", "--json") == [{"n": 40}]
