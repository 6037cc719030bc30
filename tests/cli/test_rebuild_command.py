"""`uow rebuild --into` and `--to`: units go where nobody takes them for new ones, and none stands in two intervals (W-209)."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from uow.cli import rebuild_command
from uow.cli.main import main
from uow.ops.rebuild import RebuiltUnit
from uow.processor.engine.context import TaskContext
from uow.spark_sink.destination_rules import DestinationRules
from uow.topics.catalogue import DestinationTopics
from uow.topics.policies import DestinationPolicy

CONFIG = """
[application]
id = "shop"
[rules]
source = "rules.toml"
[routers.stock]
inputs = ["events"]
[destinations.orders]
handling_policy = "single_message_delivery"
[[destinations.orders.routes]]
when = "uow-priority >= 7"
to = "urgent"
[destinations.other]
handling_policy = "single_message_delivery"
"""
UNITS = [RebuiltUnit(b"%d" % at, b"id", b"complete", at) for at in (1_000, 2_000, 3_000)]
Written = list[tuple[str, list[int]]]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Written:
    """What the command writes, with all that it would ask a broker in place."""
    found: Written = []

    def write(settings: Any, topic: str, units: Iterable[RebuiltUnit]) -> None:
        found.append((topic, [each.at for each in units]))

    context = TaskContext("orders", DestinationTopics("shop", "orders"), DestinationPolicy(), 1, b"", b"")
    rules = {"orders": DestinationRules(targets=("ready",)), "other": DestinationRules(targets=("elsewhere",))}
    for name, stand_in in {
        "task_context": lambda *_: context,
        "destination_rules": lambda *_: rules,
        "counts_with": lambda *_: dict.fromkeys(["ready", "elsewhere", "orders.again"], 1),
        "log_reader": lambda *_: nullcontext(None),
        "require_rights_of_workers": lambda *_: None,
        "rebuilt": lambda *_: {each.unit_id: each for each in UNITS},
        "_write": write,
    }.items():
        monkeypatch.setattr(rebuild_command, name, stand_in)
    monkeypatch.chdir(tmp_path)
    Path("uow.toml").write_text(CONFIG)
    return found


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["rebuild", "orders", *arguments])


@pytest.mark.parametrize(
    ("topic", "whose"),
    [
        ("orders.units", "destination orders"),
        ("orders.components", "destination orders"),
        ("shop-orders-closed-changelog", "destination orders"),
        ("urgent", "destination orders"),
        ("ready", "destination orders"),
        ("other.components", "destination other"),
        ("elsewhere", "destination other"),
        ("events", "router stock"),
        ("shop-rules", "router stock"),
    ],
)
def test_units_go_to_no_topic_whose_readers_would_take_them_for_new_ones_w209(
    written: Written, topic: str, whose: str
) -> None:
    refused = run("--into", topic)
    assert refused.exit_code == 2, refused.output
    assert f"{topic} is a topic of {whose}" in refused.output
    assert written == []


def test_of_intervals_side_by_side_each_unit_is_in_one_w209(written: Written) -> None:
    bounds = ["1970-01-01T00:00:01Z", "1970-01-01T00:00:02Z", "1970-01-01T00:00:03Z", "1970-01-01T00:00:04Z"]
    for first, last in pairwise(bounds):
        done = run("--into", "orders.again", "--from", first, "--to", last)
        assert done.exit_code == 0, done.output
    assert written == [("orders.again", [1_000]), ("orders.again", [2_000]), ("orders.again", [3_000])]
    assert run("--into", "orders.again").exit_code == 0
    assert written[-1] == ("orders.again", [1_000, 2_000, 3_000]), "without an end all of them"


def test_a_topic_that_is_not_there_is_named_w209(written: Written) -> None:
    refused = run("--into", "orders.agian")
    assert (refused.exit_code, written) == (2, [])
    assert "topic orders.agian does not exist" in refused.output
