"""A destination moves to another cluster with open groups, unread input, unread units and a consumer in the middle of them."""

from __future__ import annotations

import itertools
import json
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.broker.routed_places import RoutedPlace
from tests.broker.worker_places import Destination, decoded
from tests.conftest import QUIET
from tests.processes import PATIENCE_S, Process, wait_for
from uow.cli.main import main
from uow.embedded.broker import EmbeddedBroker
from uow.topics.catalogue import rules_topic
from uow.topics.partitioner import partition_for
from uow.topics.rules import ResolvedRow, Row, Rule

pytestmark = [pytest.mark.timeout(400), pytest.mark.broker]

EACH_STEP = ("begun", "fenced", "copying", "outputs", "consumers", "copying", "input", "state")
"""In this order: the second `copying` is that of the input."""
SOME_STEPS = ("copying", "consumers", "input")

KILLED = """
import os, signal, sys
from pathlib import Path
from uow.config.loading import load
from uow.ops.migration import Migration

def on_step(step):
    if step == sys.argv[5]:
        os.kill(os.getpid(), signal.SIGKILL)

source, name, target, to = sys.argv[1:5]
Migration(load(Path(source)), name, load(Path(target)), to, on_step=on_step).run()
"""


@pytest.fixture
def other(tmp_path: Path, unique: str, spawn: Callable[..., Process]) -> Iterator[Destination]:
    """A destination of another name and application on a cluster of its own, without topics."""
    with elsewhere(f"new-{unique}", tmp_path, spawn) as made:
        made.configure(worker={"session_timeout_ms": 2000})
        yield made


@contextmanager
def elsewhere(name: str, tmp_path: Path, spawn: Callable[..., Process]) -> Iterator[Destination]:
    """A destination of this name on a cluster of its own."""
    with EmbeddedBroker(heap="384m") as broker:
        folder = tmp_path / "other"
        folder.mkdir()
        made = Destination(broker.bootstrap, name, folder, spawn, 2)
        yield made
        for worker in made.workers:
            worker.child.close()


def words(place: Destination, other: Destination) -> list[str]:
    return ["migrate", place.name, "--to", str(other.config), "--as", other.name, "-c", str(place.config)]


def migrate(place: Destination, other: Destination, *options: str) -> Result:
    return CliRunner().invoke(main, [*words(place, other), *options])


def killed_at(step: str, place: Destination, other: Destination, spawn: Callable[..., Process], folder: Path) -> None:
    """The command runs up to a step, and is killed there."""
    script = folder / "killed.py"
    script.write_text(KILLED)
    said = "are running: stop them first"  # a killed process counts as a member until its session is over
    while "are running: stop them first" in said:
        child = spawn("python", script, place.config, place.name, other.config, other.name, step)
        status, said = child.wait(), child.output
    assert status == 128 + signal.SIGKILL, (step, said)


def units_read(bootstrap: str, topic: str, group: str, most: int = 1 << 30) -> list[Any]:
    """Units that a plain consumer of a group gets from where it stands, up to the end or to `most`; it commits what it took."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        },
        logger=QUIET,
    )
    taken, waiting = [], set(consumer.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions)
    consumer.subscribe([topic])

    def is_done() -> bool:
        for record in consumer.consume(1, 0.2):
            if record.error() is not None:
                waiting.discard(record.partition())
            else:
                taken.append(record)
                consumer.commit(record, asynchronous=False)
        return not waiting or len(taken) >= most

    wait_for(is_done)
    consumer.close()
    return taken


def send_in_transaction(place: Destination, name: str, seq: int, *, commit: bool) -> None:
    producer = Producer(
        {"bootstrap.servers": place.bootstrap, "transactional.id": f"{place.name}-{name}"}, logger=QUIET
    )
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    headers: Any = [("uow-id", name.encode()), ("uow-seq", b"%d" % seq), ("uow-end", b"true")]
    producer.produce(place.components, b"of a transaction", name.encode(), headers=headers, partition=0)
    producer.flush(PATIENCE_S)
    if commit:
        producer.commit_transaction(PATIENCE_S)
    else:
        producer.abort_transaction(PATIENCE_S)


def written(bootstrap: str) -> dict[str, int]:
    """End offsets of every topic, in sum."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "ends"}, logger=QUIET)
    ends: dict[str, int] = {}

    def are_told() -> bool:
        for name, topic in consumer.list_topics(timeout=PATIENCE_S).topics.items():
            places = [TopicPartition(name, number) for number in topic.partitions]
            try:
                ends[name] = sum(consumer.get_watermark_offsets(place, PATIENCE_S)[1] for place in places)
            except KafkaException as error:  # a broker learns a little later that it leads a new topic
                if error.args[0].code() not in (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART):
                    raise
                return False
        return True

    wait_for(are_told)
    consumer.close()
    return ends


@pytest.mark.parametrize("steps", [SOME_STEPS, pytest.param(EACH_STEP, marks=pytest.mark.drill)], ids=["some", "each"])
def test_a_destination_moves_to_another_cluster_and_every_unit_comes_out_once(
    place: Destination, other: Destination, spawn: Callable[..., Process], tmp_path: Path, steps: tuple[str, ...]
) -> None:
    """The worker and the command itself are killed, not stopped; a consumer is in the middle of the units."""
    place.partitions = 2
    place.create(worker={"session_timeout_ms": 2000})
    place.is_damaged = True  # the account is made over both clusters, below
    worker = place.worker()
    whole = [f"whole-{number}" for number in range(20)]
    opened = [f"open-{number}" for number in range(30)]
    place.send([(name, seq, seq == 2) for name in whole for seq in (2, 1)])
    place.send([(name, seq, False) for name in opened for seq in (2, 1)])
    wait_for(lambda: place.committed() >= 100)
    running = migrate(place, other)
    assert (running.exit_code, "1 workers of" in running.output) == (1, True), running.output
    first = units_read(place.bootstrap, place.units, "billing", 7)
    worker.child.signal(signal.SIGKILL)
    place.send([(name, 3, True) for name in opened[:10]])  # unread when it moves
    send_in_transaction(place, "aborted", 1, commit=False)
    send_in_transaction(place, "committed", 1, commit=True)

    def dry() -> bool:
        nonlocal planned
        planned = migrate(place, other, "--dry-run", "--json")
        return planned.exit_code == 0

    before = written(place.bootstrap)
    planned = running
    wait_for(dry, PATIENCE_S, lambda: planned.output)
    plan = json.loads(planned.stdout)
    assert (plan["moved"], plan["consumers"]) == (
        {"groups": 30, "components": 60, "closed": 20},
        [{"group": "billing", "topic": other.units, "unread": 13}],
    )
    assert plan["copied"][other.components] == 11
    assert not any(other.name in name for name in written(other.bootstrap))
    ours = {name: end for name, end in written(place.bootstrap).items() if place.name in name}
    assert ours == {name: before[name] for name in ours}

    for step in steps:
        killed_at(step, place, other, spawn, tmp_path)
    if "state" not in steps:
        early = other.worker(wait=False).child
        assert early.wait() == 2
        assert f"groups are to come from {place.name} of A-{place.name} at {place.bootstrap}" in early.output
    done = migrate(place, other, "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert (report["copied"][other.components], report["left"]) == (11, {})

    assert "has the state, and workers may have begun there" in migrate(place, other, "--undo").output
    old = place.worker("1", wait=False)
    assert old.child.wait() == 2
    assert f"its groups have moved to {other.name} of A-{other.name} at {other.bootstrap}" in old.child.output
    other.worker("1")
    follower = spawn("uow", *words(place, other), "--follow", "--json")
    place.send([(opened[10], 3, True)])  # by a producer that nobody has told
    wait_for(lambda: opened[10].encode() in other.delivered())
    assert follower.terminate() == 0
    assert json.loads(follower.output)["copied"][other.components] == 12
    other.send([(name, 3, True) for name in opened[11:]])
    other.send([(whole[0], 1, False)])  # of a unit that was delivered on the old cluster
    wait_for(lambda: other.read(f"{other.name}.rejected"))
    (rejected,) = other.read(f"{other.name}.rejected")
    assert dict(rejected.headers())["uow-error-class"] == b"DuplicateSequenceNumberError"
    wait_for(lambda: len(other.read(other.units)) >= 13 + 31, PATIENCE_S, lambda: str(len(other.read(other.units))))

    second = units_read(other.bootstrap, other.units, "billing")
    got = Counter(record.key() for record in (*first, *second))
    assert got == Counter(name.encode() for name in (*whole, *opened, "committed"))
    for record in (*first, *second):
        unit = decoded(record.value())
        name = unit["id"]
        seqs = [each["seq"] for each in unit["components"]]
        assert seqs == ([1] if name == "committed" else [1, 2] if name in whole else [1, 2, 3])
        values = [each["value"] for each in unit["components"]]
        assert name == "committed" or values == [b"%s/%d/%s" % (name.encode(), seq, b"v" * 100) for seq in seqs]


def test_a_move_that_cannot_be_is_refused_by_name_and_one_that_began_can_be_taken_back(
    place: Destination, spawn: Callable[..., Process], tmp_path: Path, admin: Any
) -> None:
    """Here the target is another name on the same cluster, of the same application; in the end it moves there, with the partitions of its ids."""
    place.partitions = 2
    place.create(routing="path")
    place.is_damaged = True
    (tmp_path / "other").mkdir()
    other = Destination(place.bootstrap, f"new-{place.name}", tmp_path / "other", spawn, 2)
    other.configure(routing="path")
    other.config.write_text(other.config.read_text().replace(f"A-{other.name}", f"A-{place.name}"))
    place.configure(routing="path", shape="reference", max_components=7)
    refused = migrate(place, other)
    assert refused.exit_code == 2
    assert "units refer to offsets of D.components" in refused.output
    assert f"destinations.{other.name}.max_components" in refused.output
    place.configure(routing="path")
    assert "is the topic that the destination has now" in migrate(place, place).output
    rules, row = (
        rules_topic(f"A-{place.name}"),
        ResolvedRow(Rule("low-stock", 1, place.name), Row("low-stock", "UK", 1)),
    )
    admin.create_topics([NewTopic(rules, 1)])[rules].result(PATIENCE_S)
    producer = Producer({"bootstrap.servers": place.bootstrap}, logger=QUIET)
    producer.produce(rules, row.encode(), row.name.encode())
    assert producer.flush(PATIENCE_S) == 0
    refused = migrate(place, other)
    assert (refused.exit_code, "the rules say so" in refused.output) == (2, True), refused.output
    assert "each under another name" in " ".join(refused.output.split())
    admin.delete_topics([rules])[rules].result(PATIENCE_S)
    stranger = migrate(place, other, "--group", "nobody")
    assert (stranger.exit_code, "has no committed offset" in stranger.output) == (2, True), stranger.output

    killed_at("fenced", place, other, spawn, tmp_path)
    assert place.worker(wait=False).child.wait() == 2
    back = migrate(place, other, "--undo")
    assert back.exit_code == 0, back.output
    assert "has not moved" in migrate(place, other, "--undo").output
    worker = place.worker()
    home = partition_for(b"b", 2)
    place.send([("a", 1, True), ("b", 1, False)], partition=1 - home)
    place.wait_delivered(1)
    place.verify()

    assert worker.child.terminate() == 0
    done = migrate(place, other)
    assert (done.exit_code, "moved: 1 open groups with 1 components" in done.output) == (0, True), done.output
    other.worker()
    other.send([("b", 2, True)], partition=home)  # by a producer that knows of no map
    other.wait_delivered(1)
    (unit,) = other.read(other.units)
    assert unit.partition() == 1 - home
    assert [each["seq"] for each in decoded(unit.value())["components"]] == [1, 2]


def test_rules_move_with_open_groups_units_that_wait_and_unread_records_of_routers_inputs(
    place: Destination, spawn: Callable[..., Process], tmp_path: Path, admin: Any
) -> None:
    """The input has another name there; the worker and the command are killed; a target topic is missing on both clusters for a while."""
    place.partitions = 2
    short = {"session_timeout_ms": 2000}
    routed = RoutedPlace(place, {"events": 2})
    routed.put_rules(
        {name: {"target_topic": name.lower(), "complete_count": n} for name, n in (("UK", 3), ("Spain", 1))}
    )
    routed.create(short)
    spain = routed.topic("spain")
    admin.delete_topics([spain])[spain].result(PATIENCE_S)
    worker = place.worker()
    routed.send(
        [("events", "UK", b"<Test n='%d'/>" % number) for number in range(5)] + [("events", "Spain", b"<Test/>")]
    )
    worker.child.wait_output("spain does not exist")
    wait_for(lambda: routed.lag(worker) == 0 and len(place.read(routed.topic("uk"))) == 1)
    wait_for(lambda: place.committed() >= 6)
    worker.child.signal(signal.SIGKILL)
    routed.send([("events", "UK", b"<Test n='5'/>")])  # the router has not read it when it moves
    with elsewhere(place.name, tmp_path, spawn) as other:
        there = RoutedPlace(other, {"events": 2})
        there.rules = routed.rules
        there.configure(short)
        refused = migrate(place, other)
        assert (refused.exit_code, "each under another name" in " ".join(refused.output.split())) == (2, True)
        there = RoutedPlace(other, {"moved": 2})
        there.rules = routed.rules
        there.configure(short)
        killed_at("consumers", place, other, spawn, tmp_path)
        done = migrate(place, other, "--json")
        assert done.exit_code == 0, done.output
        report = json.loads(done.stdout)
        assert report["moved"] == {"groups": 1, "components": 2, "closed": 2}
        assert report["copied"][there.inputs["moved"]] == 1
        assert {"group": f"A-{place.name}-router", "topic": there.inputs["moved"], "unread": 1} in report["consumers"]
        heir = other.worker()
        wait_for(lambda: other.read(routed.topic("uk")))
        heir.child.wait_output("spain does not exist")
        target = AdminClient({"bootstrap.servers": other.bootstrap})
        target.create_topics([NewTopic(spain, 1)])[spain].result(PATIENCE_S)
        there.send([("moved", "UK", b"<Test n='%d'/>" % number) for number in (6, 7)])
        routed.send([("events", "UK", b"<Test n='8'/>")])  # by a producer that nobody has told
        assert migrate(place, other).exit_code == 0
        wait_for(lambda: len(other.read(routed.topic("uk"))) == 2 and len(other.read(spain)) == 1)
        units = [
            *place.read(routed.topic("uk")),
            *other.read(routed.topic("uk")),
        ]  # nobody read the first one: it stays
        assert [dict(unit.headers())["uow-generation"] for unit in units] == [b"1", b"2", b"3"]
        inside = [[int(each.get("n") or 0) for each in ET.fromstring(unit.value())] for unit in units]
        assert (sorted(itertools.chain(*inside)), {*map(len, inside)}) == ([*range(9)], {3})
        assert sorted(inside[2]) == [6, 7, 8]
        assert not other.read(f"{place.name}.rejected")
        assert heir.child.terminate() == 0
