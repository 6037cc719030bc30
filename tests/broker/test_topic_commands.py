"""Topics and the commands about them against a real broker: `uow topics`, `send`, `read`, `groups`, `show`."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

import uow
from tests.processes import PATIENCE_S
from uow.cli.main import main
from uow.processor.engine.context import TaskContext
from uow.processor.engine.ports import Tp
from uow.processor.engine.task import PartitionTask
from uow.schemas import formats
from uow.topics import admin
from uow.topics.catalogue import DestinationTopics, TopicSpec, expected
from uow.topics.partitioner import partition_for
from uow.topics.policies import DestinationPolicy, HandlingPolicy
from uow.topics.routes import Route
from uow.topics.selector import Selector

pytestmark = pytest.mark.broker

Run = Callable[..., Result]


@pytest.fixture
def destination() -> str:
    """A destination of this test alone."""
    return f"places-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def client(broker: Any) -> AdminClient:
    return admin.admin_client(broker.bootstrap, {})


@pytest.fixture
def run(broker: Any, destination: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run("groups", destination)`: a command under a configuration with this destination, which expires groups after an hour."""
    monkeypatch.chdir(tmp_path)
    policy = "handling_policy = 'single_message_delivery'\nincomplete_expiration_ms = 3600000"
    toml = f"[application]\nid = 'shop'\nbootstrap_servers = '{broker.bootstrap}'\n[destinations.{destination}]\n{policy}\n"
    Path("uow.toml").write_text(toml, encoding="utf-8")
    return lambda *arguments, **options: CliRunner().invoke(main, arguments, catch_exceptions=False, **options)


def make(client: AdminClient, name: str, partitions: int = 1, **config: str) -> None:
    settings = {key.replace("_", "."): value for key, value in config.items()}
    admin.create_missing(client, [TopicSpec(name, partitions, 1, {}, settings)])


# -- topics


def test_create_makes_every_topic_as_check_wants_it(run: Run, client: AdminClient, destination: str) -> None:
    missing = run("topics", "check", "--json")
    assert missing.exit_code == 1
    assert len(json.loads(missing.stdout)["deviations"]) == 8
    created = run("topics", "create", "--partitions", "3", "--json")
    assert created.exit_code == 0
    assert len(json.loads(created.stdout)["created"]) == 8
    assert (run("topics", "check").exit_code, run("topics", "create").exit_code) == (0, 0)
    counts = admin.partition_counts(client)
    names = [spec.name for spec in expected("shop", destination, DestinationPolicy())]
    assert {counts[name] for name in names} == {3}


def test_second_create_changes_nothing(run: Run, destination: str) -> None:
    run("topics", "create")
    again = json.loads(run("topics", "create", "--partitions", "9", "--json").stdout)
    assert (again["created"], len(again["existing"]), again["deviations"]) == ([], 8, [])


def test_create_follows_the_partition_count_of_the_input(run: Run, client: AdminClient, destination: str) -> None:
    """W-107."""
    make(
        client,
        f"{destination}.components",
        6,
        message_timestamp_type="LogAppendTime",
        compression_type="uncompressed",
    )
    assert run("topics", "create").exit_code == 0
    assert admin.partition_counts(client)[f"{destination}.errors"] == 6


def test_check_reports_every_deviation_and_alters_nothing(run: Run, client: AdminClient, destination: str) -> None:
    """W-70, W-88, W-120."""
    make(client, f"{destination}.components", 2, cleanup_policy="compact", retention_ms="60000")
    make(client, f"{destination}.errors", 3)
    assert run("topics", "create").exit_code == 1
    result = run("topics", "check", "--json")
    assert result.exit_code == 1
    found = {(row["topic"].removeprefix(destination), row["what"]) for row in json.loads(result.stdout)["deviations"]}
    assert found == {
        (".components", "cleanup.policy"),
        (".components", "compression.type"),
        (".components", "message.timestamp.type"),
        (".components", "retention.ms"),
        (".errors", "partitions"),
        (".errors", "max.message.bytes"),
    }
    assert f"{destination}.components: cleanup.policy is compact, must be delete" in run("topics", "check").stdout


def test_wrong_configuration_exits_2_before_kafka_is_asked(run: Run) -> None:
    assert run("topics", "check", "-c", "none.toml").exit_code == 2


# -- send


def components(bootstrap: str, destination: str) -> list[Any]:
    """What lies in `D.components`, by a plain consumer."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "plain", "enable.partition.eof": True})
    topic, found, ends = f"{destination}.components", [], 0
    partitions = consumer.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    while ends < len(partitions):
        record = consumer.poll(PATIENCE_S)
        assert record is not None
        if record.error() is None:
            found.append(record)
        else:
            ends += 1
    consumer.close()
    return found


def marks(record: Any) -> tuple[str, str, str]:
    headers = dict(record.headers())
    return tuple(headers.get(name, b"").decode() for name in ("uow-id", "uow-seq", "uow-end"))


def test_send_makes_a_component_of_each_file(run: Run, broker: Any, destination: str) -> None:
    run("topics", "create")
    Path("a.json").write_bytes(b'{"item": "book"}')
    Path("b.bin").write_bytes(b"\x00\xff")
    result = run("send", destination, "--id", "order-1", "a.json", "b.bin")
    assert (result.exit_code, result.stdout) == (0, "order-1\n")
    records = components(broker.bootstrap, destination)
    assert [record.value() for record in records] == [b'{"item": "book"}', b"\x00\xff"]
    assert [marks(record) for record in records] == [("order-1", "1", ""), ("order-1", "2", "true")]


def test_send_makes_a_component_of_each_line_of_standard_input(run: Run, broker: Any, destination: str) -> None:
    run("topics", "create")
    result = run("send", destination, "--lines", "--json", input=b"one\r\ntwo\n\nfour")
    sent = json.loads(result.stdout)
    assert sent["components"] == 4
    records = components(broker.bootstrap, destination)
    assert [record.value() for record in records] == [b"one", b"two", b"", b"four"]
    assert {marks(record)[0] for record in records} == {sent["id"]}


def test_send_of_nothing_sends_nothing_and_exits_1(run: Run, broker: Any, destination: str) -> None:
    run("topics", "create")
    assert run("send", destination, "--lines", input=b"").exit_code == 1
    assert components(broker.bootstrap, destination) == []


def test_send_to_a_destination_without_topics_exits_1(run: Run) -> None:
    result = run("send", "nowhere", input=b"x")
    assert result.exit_code == 1
    assert "nowhere.components" in result.stderr


# -- a worker's poll by hand: what the commands read


class ByHand:
    """Does what a worker does in one poll, without one: reads all components, writes changelogs and units."""

    def __init__(self, bootstrap: str, destination: str) -> None:
        self.bootstrap, self.topics = bootstrap, DestinationTopics("shop", destination)
        self.destination = destination

    def work(self, **settings: Any) -> None:
        policy = DestinationPolicy(
            HandlingPolicy.SINGLE_MESSAGE_DELIVERY, incomplete_expiration_ms=3_600_000, **settings
        )
        records = components(self.bootstrap, self.destination)
        from uow.schemas.framing import single_object_header

        header = single_object_header("Unit")
        context = TaskContext(self.destination, self.topics, policy, 4, header, single_object_header("Outcome"))
        producer = Producer({"bootstrap.servers": self.bootstrap, "transactional.id": self.destination})
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        for partition in range(4):
            mine = [record for record in records if record.partition() == partition]
            plan = PartitionTask(Tp(self.topics.components, partition), context).process(mine)
            for key, value in plan.changelog:
                producer.produce(plan.changelog_topic, value, key, partition)
            producer.produce(plan.ledger_topic, plan.ledger, None, partition)
            for output in plan.outputs:
                at = max(output.partition, 0)
                producer.produce(output.topic, output.value, output.key, at, headers=output.headers)
        producer.commit_transaction(PATIENCE_S)


@pytest.fixture
def worked(run: Run, broker: Any, destination: str) -> Run:
    """Two whole units and one with a gap (1, 2, 4, 7 of 7) went through a worker that is gone."""
    run("topics", "create")
    for unit_id in ("whole-1", "whole-2"):
        run("send", destination, "--id", unit_id, "--lines", input=f"{unit_id} one\n{unit_id} two".encode())
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2_random", "enable.idempotence": True}
    )
    for number in (1, 2, 4, 7):
        end = [("uow-end", b"true")] if number == 7 else []
        headers = [("uow-id", b"gap"), ("uow-seq", b"%d" % number), *end, ("uow-hops", b"gadget-planet")]
        producer.produce(f"{destination}.components", b"x", b"gap", headers=headers)
    assert producer.flush(PATIENCE_S) == 0
    ByHand(broker.bootstrap, destination).work()
    return run


def test_groups_gives_held_and_missing_ranges_when_no_worker_runs(worked: Run, destination: str) -> None:
    """W-201."""
    (group,) = json.loads(worked("groups", destination, "--json").stdout)["groups"]
    assert (group["id"], group["held"], group["missing"]) == ("gap", "1-2,4,7", "3,5-6")
    assert (group["end"], group["end_known"], group["partition"]) == (7, True, partition_for(b"gap", 4))
    assert group["deadline"] == group["opened_at"] + 3_600_000
    assert "gap\t" in worked("groups", destination).stdout


def test_totals_are_by_partition(worked: Run, destination: str) -> None:
    rows = json.loads(worked("groups", destination, "--totals", "--json").stdout)
    assert [row["partition"] for row in rows] == [0, 1, 2, 3]
    home = rows[partition_for(b"gap", 4)]
    assert (home["groups"], home["components"], home["behind"]) == (1, 4, 0)
    assert sum(row["groups"] for row in rows) == 1
    assert "partition\tposition\tbehind" in worked("groups", destination, "--totals").stdout


def test_show_gives_one_group_with_its_components(worked: Run, destination: str) -> None:
    """W-201."""
    shown = json.loads(worked("show", destination, "gap", "--json").stdout)
    assert shown["closed"] is None
    rows = shown["open"]["components"]
    assert [(row["seq"], row["end"], row["hops"]) for row in rows] == [
        (1, False, ["gadget-planet"]),
        (2, False, ["gadget-planet"]),
        (4, False, ["gadget-planet"]),
        (7, True, ["gadget-planet"]),
    ]
    assert "missing:        3,5-6" in worked("show", destination, "gap").stdout


def test_show_tells_how_a_group_closed(worked: Run, destination: str) -> None:
    """W-201."""
    result = worked("show", destination, "whole-1")
    assert result.exit_code == 0
    assert "closed: complete, reason end" in result.stdout
    closed = json.loads(worked("show", destination, "whole-1", "--json").stdout)["closed"]
    assert (closed["outcome"], closed["reason"], closed["highest"]) == ("complete", "end", 2)


def test_show_of_an_unknown_id_exits_1(worked: Run, destination: str) -> None:
    assert worked("show", destination, "nobody").exit_code == 1


def test_groups_of_a_destination_that_is_not_configured_exits_2(run: Run) -> None:
    assert run("groups", "elsewhere").exit_code == 2


def test_groups_of_a_destination_without_topics_exits_1(run: Run, destination: str) -> None:
    result = run("groups", destination)
    assert result.exit_code == 1
    assert "uow topics create" in result.stderr


# -- read


def test_read_prints_units_and_a_look_leaves_no_trace(worked: Run, destination: str) -> None:
    for _ in range(2):
        result = worked("read", destination, "--count", "2", "--json")
        units = [formats.from_json(line.encode()) for line in result.stdout.splitlines()]
        assert {unit.id for unit in units} == {"whole-1", "whole-2"}
        assert {component.value for unit in units for component in unit.components} == {
            b"whole-1 one",
            b"whole-1 two",
            b"whole-2 one",
            b"whole-2 two",
        }
    assert "whole-1  complete by end, 2 components" in worked("read", destination, "--count", "2").stdout


def test_read_with_a_group_acknowledges_what_it_printed(worked: Run, destination: str) -> None:
    """W-52."""
    group = f"{destination}-readers"
    first = worked("read", destination, "--group", group, "--count", "1", "--json")
    second = worked("read", destination, "--group", group, "--count", "1", "--json")
    ids = [formats.from_json(result.stdout.strip().encode()).id for result in (first, second)]
    assert sorted(ids) == ["whole-1", "whole-2"]


def test_read_that_finds_fewer_units_than_asked_for_exits_1(worked: Run, destination: str) -> None:
    result = worked("read", destination, "--count", "3", "--timeout", "1")
    assert result.exit_code == 1
    assert "whole-2" in result.stdout


def test_read_shows_the_components_of_an_inner_unit_below_it_w206(worked: Run, broker: Any, destination: str) -> None:
    with uow.connect(broker.bootstrap) as connection:
        inner = connection.units(destination, None, start="earliest").receive(PATIENCE_S)
        assert inner is not None
        with connection.unit(destination, "outer") as outer:
            outer.send("a note")
            outer.send(inner)
    ByHand(broker.bootstrap, destination).work()
    told = worked("read", destination).stdout
    assert f"    1  a note\n    2  unit {inner.id}\n         1  {inner.id} one\n" in told


def test_topic_of_a_route_is_made_checked_and_read_w98(run: Run, broker: Any, destination: str) -> None:
    """W-101: a lane for what is urgent."""
    lane, when = f"{destination}.urgent", "uow-priority >= 7"
    run("topics", "create")
    with Path("uow.toml").open("a") as toml:
        toml.write(f"[[destinations.{destination}.routes]]\nwhen = '{when}'\nto = '{lane}'\n")
    assert f"{lane}: topic is missing" in run("topics", "check").stdout
    run("topics", "create")
    assert admin.partition_counts(admin.admin_client(broker.bootstrap, {}))[lane] == 4
    assert run("topics", "check").exit_code == 0
    with uow.connect(broker.bootstrap) as connection:
        for unit_id, priority in (("slow", 1), ("fast", 9)):
            with connection.unit(destination, unit_id, priority=priority) as unit:
                unit.send(b"one")
                unit.send(b"two")
    ByHand(broker.bootstrap, destination).work(routes=(Route(Selector(when), lane),))
    found = run("read", destination, "--topic", lane, "--count", "1", "--json")
    assert formats.from_json(found.stdout.encode()).id == "fast"
    assert formats.from_json(run("read", destination, "--json").stdout.encode()).id == "slow"


# -- doctor


def findings(result: Result) -> list[dict[str, str]]:
    return [json.loads(line) for line in result.output.splitlines()]


def test_doctor_names_what_is_missing_and_what_to_do_and_then_that_all_is_well(run: Run, destination: str) -> None:
    ill = run("doctor", "--json")
    wrong = [each for each in findings(ill) if each["verdict"] == "wrong"]
    assert ill.exit_code == 1
    assert {each["remedy"] for each in wrong} == {"create it with `uow topics create`"}, ill.output
    assert any(each["what"].startswith(f"{destination}.components: topic is missing") for each in wrong)

    run("topics", "create", "--partitions", "1")
    well = run("doctor")
    assert well.exit_code == 0, well.output
    assert f"ok    {destination}: 8 topics are right" in well.output
    assert f"ok    {destination}: commands need no signature" in well.output
    assert f"ok    {destination}: 1 partitions can be restored, 0 groups are open" in well.output
    assert "-> start one with `uow worker`" in well.output


def test_doctor_sees_input_and_commands_that_wait_and_state_that_does_not_agree(
    run: Run, broker: Any, destination: str
) -> None:
    run("topics", "create", "--partitions", "1")
    topics = DestinationTopics("shop", destination)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    for topic in (topics.components, topics.commands, topics.commands):
        producer.produce(topic, b"v", b"k")
    producer.produce(topics.groups_changelog, b"v", b"k")
    assert not producer.flush(PATIENCE_S)
    said = findings(run("doctor", "--json"))
    (wrong,) = [each for each in said if each["verdict"] == "wrong"]
    assert "has no committed offset, but its changelog holds 1 components" in wrong["what"]
    producer.produce(topics.groups_changelog, None, b"k")
    assert not producer.flush(PATIENCE_S)
    texts = [each["what"] for each in findings(run("doctor", "--json")) if each["verdict"] == "look"]
    assert f"{destination}: up to 1 records wait to be read" in texts
    assert f"{destination}: up to 2 commands wait for their answer" in texts


def test_doctor_without_a_broker_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("uow.ops.doctor.ANSWER_S", 0.5)
    Path("uow.toml").write_text("[application]\nbootstrap_servers = '127.0.0.1:1'\n", encoding="utf-8")
    result = CliRunner().invoke(main, ["doctor"], catch_exceptions=False)
    assert result.exit_code == 1
    assert "wrong no destination is configured" in result.output
    assert "wrong no broker answers at 127.0.0.1:1" in result.output
