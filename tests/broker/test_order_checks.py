"""`uow doctor` and strict order: each way of standing still is told apart, with its remedy (S-09, S-22, S-32)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from click.testing import CliRunner
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from strict_places import StrictPlace, numbers

import uow
from tests.broker.worker_places import Worker, alter_topic
from tests.kafka_broker import Kafka
from tests.processes import PATIENCE_S, Process, wait_for
from uow import errors
from uow.cli.main import main
from uow.ops import order_checks

LONG_AGO = int(time.time() * 1000) - 3_600_000


@pytest.fixture
def place(broker: Kafka, tmp_path: Path) -> StrictPlace:
    return StrictPlace(broker.bootstrap, f"doctor-{uuid4().hex[:8]}", tmp_path)


def said(place: StrictPlace) -> dict[str, str]:
    """Remedy by finding, of those that are not ok."""
    answer = CliRunner().invoke(main, ["doctor", "-c", place.file, "--json"])
    assert answer.exception is None or isinstance(answer.exception, SystemExit), answer.exception
    rows = [json.loads(line) for line in answer.output.splitlines() if line.startswith("{")]
    return {row["what"]: row["remedy"] for row in rows if row["verdict"] != "ok"} | {
        row["what"]: "ok" for row in rows if row["verdict"] == "ok"
    }


def open_transaction(place: StrictPlace, began_at: int) -> Producer:
    """A transaction of a program that is none of ours, with a time-out that outlasts the test."""
    foreign = Producer(
        {
            "bootstrap.servers": place.bootstrap,
            "transactional.id": f"foreign-{place.name}",
            "transaction.timeout.ms": 900_000,
        }
    )
    foreign.init_transactions(PATIENCE_S)
    foreign.begin_transaction()
    foreign.produce(place.units, b"x", b"k", 0, timestamp=began_at)
    foreign.flush(PATIENCE_S)
    return foreign


def test_an_open_transaction_a_failing_unit_and_an_empty_topic_are_told_apart(place: StrictPlace) -> None:
    place.create()
    with uow.connect(place.bootstrap) as connection:
        place.deliver(1)
        place.places.put(place.units, (b"u2", b"no unit", {"uow-kind": b"unit", "uow-id": b"u2"}))
        with connection.units(place.name, group="fails") as reader:
            assert [*numbers(reader, 1)] == [1]
            with pytest.raises(errors.OrderBlockedError):
                reader.receive(1)
        with connection.units(place.name, group="waits") as reader:
            assert [*numbers(reader, 1)] == [1]
            with pytest.raises(errors.OrderBlockedError):
                reader.receive(1)
            reader.seek(place.units, 0, 2, break_order="it is no unit")
        found = said(place)
        assert any(f"{place.units}/0: group fails is stopped at 1" in what for what in found), "\n".join(found)
        assert not any("group waits is" in what for what in found), "nothing is left to read"
        assert any("1 order gaps are recorded" in what and "it is no unit" in what for what in found)
        foreign = open_transaction(place, int(time.time() * 1000) - 5_000)
        found = said(place)
        assert any("group waits is blocked-transaction at 2" in what for what in found)
        assert not any("abort" in remedy for remedy in found.values()), "it is not too old yet"
        foreign.abort_transaction(PATIENCE_S)
        assert not any("blocked-transaction" in what for what in said(place))


def test_a_transaction_that_hangs_is_found_with_the_command_that_ends_it(
    place: StrictPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-09: of any destination, strict or not; by its id, and where that cannot be read, by Kafka's own tool."""

    def denied(settings: object) -> None:
        raise errors.AccessDeniedError("no right")

    place.create(is_strict=False)
    place.deliver(1)
    foreign = open_transaction(place, LONG_AGO)
    [(what, remedy)] = [each for each in said(place).items() if "a transaction has been open since" in each[0]]
    assert "is unknown" in what, "the coordinator knows one that is younger than the record"
    assert "--end-transaction" not in remedy
    with monkeypatch.context() as patched:
        patched.setattr(order_checks, "open_transactions", denied)
        [(what, remedy)] = [each for each in said(place).items() if "a transaction has been open since" in each[0]]
    assert "whose it is cannot be read: no right" in what
    assert f"abort --topic {place.units} --partition 0 --start-offset 1" in remedy
    foreign.abort_transaction(PATIENCE_S)
    assert not any("a transaction has been open" in what for what in said(place))


def test_topics_of_a_strict_destination_are_checked_and_strangers_named(place: StrictPlace) -> None:
    """S-22: a warning in profile `test`, wrong otherwise; retention that takes what is not read is an alarm."""
    place.create(strict_block_limit_ms=3_600_000)
    alter_topic(place.places.admin, place.units, retention_ms="1000000", unclean_leader_election_enable="true")
    found = said(place)
    for what in (
        "replication is 1, should be at least 3",
        "min.insync.replicas is 1, should be at least 2",
        "retention.ms is 1000000, should be",
        "unclean.leader.election.enable is true, should",
    ):
        assert any(f"{place.units}: {what}" in each for each in found), what
    checked = CliRunner().invoke(main, ["topics", "check", "-c", place.file]).output
    assert "min.insync.replicas is 1" in checked
    settings = place.file
    Path(settings).write_text(Path(settings).read_text().replace('profile = "test"', 'profile = "production"'))
    assert any("replication is 1, must be at least 3" in each for each in said(place))
    started = CliRunner().invoke(main, ["worker", "-c", settings])
    assert started.exit_code == 2
    assert f"topic {place.units}, replication = '1': must be at least 3" in started.output


def test_unread_records_that_retention_takes_and_groups_nobody_adopted_are_told(place: StrictPlace) -> None:
    place.create()
    with uow.connect(place.bootstrap) as connection:
        place.deliver(1)
        with connection.units(place.name, group="slow") as reader:
            assert [*numbers(reader, 1)] == [1]
    producer = Producer({"bootstrap.servers": place.bootstrap})
    producer.produce(place.units, b"x", b"k", 0, timestamp=int(time.time() * 1000) - 5 * 86_400_000)
    assert not producer.flush(PATIENCE_S)
    stranger = place.places.admin  # commits for a group that no client of ours has
    asked = ConsumerGroupTopicPartitions("stranger", [TopicPartition(place.units, 0, 1)])
    stranger.alter_consumer_group_offsets([asked])["stranger"].result(PATIENCE_S)
    place.settings(strict_priority=7)
    found = said(place)
    assert any("group slow has not read is 5.0 d" in what for what in found), "\n".join(found)
    assert any(f"the group stranger reads {place.units} and is no subscription" in what for what in found)
    assert any("strict_priority is 7 here, but 4 for clients" in what for what in found)
    for deleted in place.places.admin.delete_records([TopicPartition(place.units, 0, 2)]).values():
        deleted.result(PATIENCE_S)
    found = said(place)
    assert any("group slow has not read, from offset 1 on, are deleted" in what for what in found), "\n".join(found)
    assert any(f"the group stranger reads {place.units} and is no subscription" in what for what in found)


def test_worker_of_a_strict_destination_says_what_it_waits_for_and_delivers_in_order(
    place: StrictPlace, spawn: Callable[..., Process]
) -> None:
    """S-04, S-27, S-32: page and metrics; units in the order in which their last components came, each key for itself."""
    place.create(concurrency=8, sequential_failure_threshold=3)
    child = spawn("uow", "worker", "-c", place.file, "--name", "0")
    child.wait_output("worker 0 ready")
    worker = Worker(child, "0")
    assert child.output.count("OrderOverrideWarning") == 2
    label = f'{{destination="{place.name}"}}'
    assert worker.metric(f"uow_order_overrides_total{label}") == 2
    with uow.connect(place.bootstrap) as connection, connection.units(place.name, group="g") as reader:
        for number in range(1, 4):
            with connection.unit(place.name, f"u{number}") as unit:
                unit.send("a")
                unit.send("b")
        assert [*numbers(reader, 3)] == [1, 2, 3]
    foreign = Producer(
        {
            "bootstrap.servers": place.bootstrap,
            "transactional.id": f"foreign-{place.name}",
            "transaction.timeout.ms": 900_000,
        }
    )
    foreign.init_transactions(PATIENCE_S)
    foreign.begin_transaction()
    foreign.produce(place.components, b"x", b"k", 0)
    foreign.flush(PATIENCE_S)

    def order() -> dict[str, object]:
        view: dict[str, object] = worker.partitions()["0"]["order"]
        return view

    wait_for(lambda: order()["state"] == "blocked-transaction", what="the page tells")
    assert "a transaction that began at offset" in str(order()["cause"])
    state = f'{{destination="{place.name}",partition="0",state="blocked-transaction"}}'
    assert worker.metric(f"uow_order_state{state}") == 1
    foreign.abort_transaction(PATIENCE_S)
    wait_for(lambda: order()["state"] == "ok", what="it goes on")
    assert worker.metric(f"uow_order_state{state}") == 0
    assert child.terminate() == 0
