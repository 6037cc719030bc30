"""`uow rules rehearse` on inputs in Kafka: nothing is written, and both sets of rules are told (B-204); `uow rules refresh` (B-12)."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from tests.kafka_broker import Kafka
from tests.rules.low_stock import FIXTURE, NOON
from uow.cli.main import main
from uow.config.loading import load
from uow.ops.destination_rules import destination_rules
from uow.processor.kafka.rule_log import open_rule_log
from uow.processor.rules.mirror import mirrored
from uow.processor.rules.rule_file import read_rules
from uow.processor.rules.rule_set import RuleSet, RuleTables
from uow.topics.admin import admin_client, partition_counts
from uow.topics.rules import RULES_KEY, ResolvedRow, Row, Rule


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


def test_sink_and_audit_know_every_target_that_rules_ever_had_b11_b57(
    broker: Kafka, create_topic: Callable[..., str], unique: str, tmp_path: Path
) -> None:
    """Rows and targets come from `A-rules` and from the source; where that is away, from the mirror; topics that are not there are left out."""
    config = tmp_path / "uow.toml"
    config.write_text(f"""
[application]
id = "{unique}.shop"
bootstrap_servers = "{broker.bootstrap}"
[rules]
source = "{tmp_path / "rules.toml"}"
[destinations.supply]
handling_policy = "single_message_delivery"
[destinations.other]
handling_policy = "single_message_delivery"
""")
    settings = load(config)
    assert destination_rules(settings, ["supply"]) == {}
    names = {name: create_topic(name, partitions=2) for name in ("orders.uk", "orders.spain", "orders.gone")}
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    former = ResolvedRow(Rule("former", 1, "supply"), Row("former", "*", 1, target_topic=names["orders.gone"]))
    text = FIXTURE.read_text()
    for name, topic in names.items():
        text = text.replace(f'"{name}"', f'"{topic}"')
    rules = RuleSet(read_rules(text, NOON))
    other = replace(rules.tables.rules[0], rule_id="of-another", destination="other")
    mirror = RuleSet(rules.tables.with_rows_of(RuleTables(rules=(other,))))
    log_topic = create_topic("shop-rules", partitions=1)
    producer.produce(log_topic, former.encode(), former.name.encode())
    producer.produce(log_topic, mirrored(mirror), RULES_KEY)
    producer.flush()
    for _ in ("from the mirror", "from the source"):
        found = destination_rules(settings, ["supply"])["supply"]
        assert (found.targets, [*found.rows]) == (tuple(sorted(names.values())), [former.name])
        Path(settings.rules.source).write_text(text)
    assert found.others == frozenset()
    Path(settings.rules.source).unlink()
    found = destination_rules(settings, ["supply", "other"])["supply"]
    assert found.others == {"of-another"}


def test_records_in_which_rules_find_no_key_are_told_by_check_rehearse_and_doctor_b22(
    broker: Kafka, create_topic: Callable[..., str], unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    topic = create_topic("orders", partitions=2, config={"retention.ms": "-1"})
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    for number, value in enumerate([b'{"order": {"id": 1}}', b'{"order": 1}', b"no JSON", b'{"order": {"id": 2}}']):
        producer.produce(topic, value, partition=number % 2)
    producer.flush()
    Path("rules.toml").write_text("""
version = 1
author = "a test"
why = "by order"
[[rule]]
rule_id = "orders"
destination = "supply"
group_key = "path:order.id"
row = [{ routing_name = "*", complete_count = 2 }]
""")
    Path("uow.toml").write_text(f"""
[application]
id = "{unique}.shop"
bootstrap_servers = "{broker.bootstrap}"
[rules]
source = "rules.toml"
[routers.r]
inputs = ["{topic}"]
[destinations.supply]
handling_policy = "single_message_delivery"
""")
    for command in (["rules", "check"], ["rules", "rehearse", "rules.toml"], ["doctor"]):
        result = CliRunner().invoke(main, command)
        said = " ".join(result.stdout.split())
        assert "path:order.id: finds nothing" in said, result.output
        assert "the value is no JSON" in said
        assert result.exit_code == (0 if command[0] == "rules" else 1)
    told = json.loads(CliRunner().invoke(main, ["rules", "check", "--json"]).stdout)
    assert [(each["rule"], each["records"]) for each in told["without_key"]] == [("orders", 1), ("orders", 1)]
