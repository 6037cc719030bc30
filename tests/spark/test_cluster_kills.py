"""`uow sink --master`: executors on other machines, played by a standalone cluster, are killed one after the other while units arrive."""

from __future__ import annotations

import random
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.processes import wait_for
from tests.spark.standalone_cluster import StandaloneCluster
from tests.spark.test_sink_kills import Sender, check_tables, destination
from uow.topics.catalogue import DestinationTopics

ROUNDS = 3
STEP_S = 240.0

pytestmark = [pytest.mark.drill, pytest.mark.timeout(2400)]


def planned(tables: Path, destination: str) -> int:
    """Number of batches planned so far."""
    offsets = tables / "_checkpoints" / destination / "offsets"
    return max((int(path.name) + 1 for path in offsets.glob("[0-9]*")), default=0)


def test_executors_and_machines_killed_one_after_the_other_lose_and_double_nothing_w127(
    broker: Any, tmp_path: Path, unique: str
) -> None:
    tables, log = tmp_path / "tables", tmp_path / "log"
    plain = destination(broker.bootstrap, unique, tmp_path)
    with StandaloneCluster(tmp_path / "cluster", 2) as cluster:
        command = [*plain, "--master", cluster.master]
        command += ["--conf", "spark.executor.memory=512m", "--conf", "spark.sql.shuffle.partitions=4"]
        with log.open("wb") as out, Sender(broker.bootstrap, DestinationTopics("kills", unique)):
            sink = subprocess.Popen(command, stdout=out, stderr=out)

            def wait_batches(count: int) -> None:
                target = planned(tables, unique) + count

                def there() -> bool:
                    assert sink.poll() is None, log.read_text()[-3000:]
                    return planned(tables, unique) >= target

                wait_for(there, STEP_S, lambda: log.read_text()[-3000:])

            try:
                wait_batches(2)
                assert all(map(cluster.executors, cluster.workers)), "both have an executor"
                rnd = random.Random(3)
                for number in range(ROUNDS):
                    for worker in cluster.workers[-2:]:
                        [executor, *_] = cluster.executors(worker)
                        executor.send_signal(signal.SIGKILL)
                        wait_batches(rnd.randrange(1, 3))
                        wait_for(lambda w=worker: cluster.executors(w), STEP_S)  # type: ignore[misc]
                    if number == 0:
                        cluster.kill(cluster.workers[0])
                        wait_batches(1)
                        cluster.add_worker()
                        wait_batches(1)
                        cluster.kill(cluster.workers[1])
                        wait_batches(1)
                        cluster.add_worker()
                        wait_for(lambda: all(map(cluster.executors, cluster.workers[-2:])), STEP_S)
                sink.terminate()
                assert sink.wait(STEP_S) == 0, log.read_text()[-3000:]
            finally:
                sink.kill()
                sink.wait()
        last = subprocess.run([*command, "--once"], capture_output=True, text=True, check=False)
        assert last.returncode == 0, last.stderr[-3000:]
    check_tables(broker.bootstrap, unique, tables, ROUNDS)
