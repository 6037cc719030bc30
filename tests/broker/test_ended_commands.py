"""A command that waits ends at SIGTERM, with all blocks left. (The first process of a container hears it by that handler alone: the kernel has none for it.)"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.broker.client_places import Topics
from tests.processes import PATIENCE_S, Process, wait_for

pytestmark = pytest.mark.broker


def members(bootstrap: str, group: str) -> int:
    client = AdminClient({"bootstrap.servers": bootstrap})
    (answer,) = client.describe_consumer_groups([group]).values()
    try:
        return len(answer.result(PATIENCE_S).members)
    except KafkaException:  # its coordinator is being found
        return -1


def configured(folder: Path, bootstrap: str, name: str) -> Path:
    file = folder / "uow.toml"
    file.write_text(
        f'[application]\nid = "A"\nbootstrap_servers = "{bootstrap}"\n[destinations.{name}]\nhandling_policy = "pass_through"\n'
    )
    Topics(bootstrap).make(f"{name}.units", f"{name}.errors")
    return file


def test_a_reader_that_is_told_to_end_leaves_its_group_at_once(
    broker: Any, unique: str, tmp_path: Path, spawn: Callable[..., Process]
) -> None:
    file = configured(tmp_path, broker.bootstrap, unique)
    child = spawn("uow", "read", unique, "--group", unique, "-c", file)
    wait_for(lambda: members(broker.bootstrap, unique) == 1)
    assert child.terminate() == 128 + signal.SIGTERM, child.output
    assert "Traceback" not in child.output
    wait_for(lambda: members(broker.bootstrap, unique) == 0, 30)  # its session would last for 45 s
