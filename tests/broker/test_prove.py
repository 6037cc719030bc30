"""`uow prove` as people run it: a short proof on a cluster that is not its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kafka_broker import Kafka
from tests.processes import PATIENCE_S, Process
from uow.prove.faults import STEPS

SHORT = ("--rounds", "1", "--seed", "8", "--faults", "kill,step,stop,storm", "--per-round", "8", "--rate", "800")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_unit_is_lost_doubled_or_mixed_by_kills(
    broker: Kafka, admin: Any, spawn: Callable[..., Process], tmp_path: Path
) -> None:
    """W-125, W-126, W-216. The long version is `make drill`; the judge is `uow/prove/checker.py`."""
    folder = tmp_path / "proof"
    child = spawn("uow", "prove", *SHORT, "--bootstrap", broker.bootstrap, "--dir", folder)
    status = child.wait(240)
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert status == 0, child.output
    assert report["proved"]
    assert not report["anomalies"], report["texts"]
    assert {*report["faults"]} == {"kill", "stop", "storm", *(f"step:{step}" for step in STEPS)}
    assert report["kills"] == 6
    assert report["counts"]["units"] > 500
    assert report["counts"]["counted partitions"] == 4
    assert not any(each["anomalies"] for each in report["questions"])
    assert not any("prove-" in topic for topic in admin.list_topics(timeout=PATIENCE_S).topics)
    groups = {group.group_id for group in admin.list_consumer_groups().result().valid}
    assert not any(group.startswith("prove-") for group in groups)
    assert [*folder.glob("prove-*")] == [], "logs of a good round are not kept"


@pytest.mark.slow
@pytest.mark.drill
@pytest.mark.timeout(600)
def test_no_unit_is_lost_when_the_broker_fails_or_clocks_jump(spawn: Callable[..., Process], tmp_path: Path) -> None:
    """The broker is stopped, killed, frozen and out of disk, requests go astray; workers are restarted one by one, frozen, and have their clocks
    put forward or back."""
    faults = "freeze,clock,roll,broker-stop,broker-kill,broker-freeze,disk-full,frames"
    folder = tmp_path / "proof"
    options = ("--rounds", "1", "--seed", "5", "--faults", faults, "--per-round", "10", "--dir", folder)
    child = spawn("uow", "prove", *options)
    assert child.wait(500) == 0, child.output
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert {*faults.split(",")} <= {name.partition(":")[0] for name in report["faults"]}
    assert report["proved"]
