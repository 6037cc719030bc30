"""`uow sink --master`: executors on other machines, played by a standalone cluster, are killed one after the other while units arrive."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.workloads import PARTITIONS
from tests.processes import wait_for
from tests.spark.standalone_cluster import StandaloneCluster
from tests.spark.test_sink_kills import Sender, of_tables, of_topics, planned
from uow.topics.admin import admin_client, create_missing
from uow.topics.catalogue import DestinationTopics, expected
from uow.topics.policies import DestinationPolicy, HandlingPolicy

UOW = str(Path(sys.executable).with_name("uow"))
ROUNDS = 3
STEP_S = 240.0

pytestmark = [pytest.mark.drill, pytest.mark.timeout(2400)]


def test_executors_and_machines_killed_one_after_the_other_lose_and_double_nothing_w127(
    broker: Any, tmp_path: Path, unique: str
) -> None:
    policy = DestinationPolicy(handling_policy=HandlingPolicy.SINGLE_MESSAGE_DELIVERY)
    create_missing(admin_client(broker.bootstrap, {}), expected("kills", unique, policy, PARTITIONS))
    config, tables, log = tmp_path / "uow.toml", tmp_path / "tables", tmp_path / "log"
    config.write_text(
        f'[application]\nid = "kills"\nbootstrap_servers = "{broker.bootstrap}"\n'
        f'[destinations."{unique}"]\nhandling_policy = "single_message_delivery"\n'
    )
    with StandaloneCluster(tmp_path / "cluster", 2) as cluster:
        command = [UOW, "sink", "-c", str(config), "--tables", str(tables), "--master", cluster.master]
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
    expected_rows, rows = of_topics(broker.bootstrap, unique), of_tables(tables / unique)
    for table, wanted in expected_rows.items():
        assert sum(wanted.values()) > ROUNDS, table
        assert rows[table] == wanted, table
