"""`uow rules rehearse` on inputs in Kafka: nothing is written, and both sets of rules are told (B-204); `uow rules refresh` (B-12)."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from tests.kafka_broker import Kafka
from tests.rules.low_stock import FIXTURE, NOON
from uow.cli.main import main
from uow.config.loading import load
from uow.processor.kafka.rule_log import open_rule_log
from uow.topics.admin import admin_client, partition_counts


def test_recorded_inputs_are_played_under_both_sets_of_rules_and_nothing_is_written_b204(
    broker: Kafka,
    create_topic: Callable[..., str],
    unique: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    topic = create_topic("stock.events", partitions=2, config={"retention.ms": "-1"})
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    for number in range(20):
        place = {"partition": number % 2, "timestamp": NOON + 1_000 * number}
        producer.produce(topic, b"<Test/>", headers=[("uow-destination", b"France")], **place)
    producer.flush()
    settings = f"""
[application]
id = "{unique}.shop"
bootstrap_servers = "{broker.bootstrap}"
[rules]
source = "{FIXTURE}"
[routers.r]
inputs = ["{topic}"]
[destinations.supply]
handling_policy = "single_message_delivery"
"""
    Path("uow.toml").write_text(settings)
    Path("new.toml").write_text(FIXTURE.read_text().replace("complete_count = 10", "complete_count = 20", 1))
    result = CliRunner().invoke(main, ["rules", "rehearse", "new.toml", "--json"])
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    france = told["rows"]["low-stock/France"]
    assert (told["records"], told["rejected"]) == (20, [0, 0])
    assert [(france[rules]["units"], france[rules]["fill"]) for rules in ("in_force", "rehearsed")] == [
        (2, 10),
        (1, 20),
    ]
    assert [france[rules]["wait_p50_ms"] for rules in ("in_force", "rehearsed")] == [9_000, 19_000]
    assert {each for each in partition_counts(admin_client(broker.bootstrap, {})) if unique in each} == {topic}
    refused = CliRunner().invoke(main, ["rules", "rehearse", "new.toml", "--limit", "5"])
    assert (refused.exit_code, "more than 5 records" in refused.stderr) == (1, True)


def test_refresh_reaches_whoever_follows_the_rules_b12(
    broker: Kafka, create_topic: Callable[..., str], unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("uow.toml").write_text(f'[application]\nid = "{unique}.shop"\nbootstrap_servers = "{broker.bootstrap}"\n')
    missing = CliRunner().invoke(main, ["rules", "refresh"])
    assert (missing.exit_code, "uow topics create" in missing.stderr) == (1, True)
    create_topic("shop-rules", partitions=1)
    asked: list[None] = []
    with closing(open_rule_log(load(Path("uow.toml")).worker("test"), lambda: asked.append(None))) as log:
        log.catch_up(lambda: None)
        assert asked == []
        result = CliRunner().invoke(main, ["rules", "refresh"])
        assert result.exit_code == 0, result.stderr
        log.catch_up(lambda: None)
        assert asked == [None]
