"""More partitions while groups are open, on a broker and with worker processes (W-107)."""

from __future__ import annotations

import itertools
import json
import signal
import sys
import threading
import time
from collections import Counter
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from tests.broker.raw_producer import produce_raw
from tests.broker.routed_places import RoutedPlace
from tests.broker.worker_places import Destination, add_partitions, alter_topic
from tests.processes import PATIENCE_S, wait_for
from uow.cli.main import main
from uow.ops import unread_input
from uow.processor.engine import moved_groups
from uow.processor.kafka.sink import KafkaSink
from uow.topics import admin as admin_module
from uow.topics.catalogue import RECORD_LIMIT_BYTES
from uow.topics.commands import Command, Verb, command_headers
from uow.topics.partitioner import partition_for

pytestmark = pytest.mark.timeout(200)


def repartition(place: Destination, *options: str) -> Result:
    return CliRunner().invoke(main, ["topics", "repartition", place.name, "-c", str(place.config), *options])


ODD_PLAIN = 4
"""Those of them that have no id pass."""


def send_odd(place: Destination) -> None:
    """Records that are no components, or bad ones, each to each partition."""
    producer = Producer({"bootstrap.servers": place.bootstrap})
    odd: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]] = [
        (None, None, []),
        (b"k", b"v", [("uow-id", None), ("uow-seq", None)]),
        (b"k", None, [("uow-id", b"twice"), ("uow-id", b"thrice"), ("uow-seq", b"x"), ("uow-seq", b"1")]),
        (None, b"v", [("uow-id", b"\xff"), ("uow-seq", b"1")]),
        (b"k", b"v", [("uow-id", b"far"), ("uow-seq", b"9" * 400)]),
        (b"k", b"v", [("uow-id", b"ruled"), ("uow-rule", b"no such/rule@1"), ("uow-input", b"?")]),
        (b"k", b"x" * 900_000, [("uow-id", b"y" * 60_000), ("uow-seq", b"1")]),
    ]
    for key, value, headers in odd:
        for partition in range(2):
            producer.produce(place.components, value, key, partition, headers=headers)
            producer.produce(f"{place.name}.commands", value, key, partition, headers=headers)
    assert not producer.flush(PATIENCE_S)


def told(place: Destination, ids: list[str], verb: str) -> None:
    """Commands, as a client writes them."""
    producer = Producer({"bootstrap.servers": place.bootstrap, "partitioner": "murmur2_random"})
    for name in ids:
        headers = command_headers(Command(b"c-" + name.encode(), Verb(verb), name.encode(), "why"))
        producer.produce(f"{place.name}.commands", None, name.encode(), headers=headers)
    assert not producer.flush(PATIENCE_S)


def die_at(patch: pytest.MonkeyPatch, step: str, nth: int) -> None:
    """The command dies after the step of this name, the nth time that it comes to it; before the transaction's end at `write`."""
    owner, name = {
        "grow": (admin_module, "grow"),
        "read": (unread_input, "assemble_unread"),
        "rehearse": (KafkaSink, "rehearse"),
        "write": (KafkaSink, "write"),
        "done": (KafkaSink, "write"),
    }[step]
    real, count = getattr(owner, name), itertools.count()

    def dies(*args: Any, **named: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            return real(*args, **named)  # of the reading
        if step == "write":
            raise Died
        answer = real(*args, **named)
        if next(count) == nth:
            raise Died
        return answer

    patch.setattr(owner, name, dies)


def test_open_groups_complete_after_four_partitions_became_eight_w107(place: Destination, admin: Any) -> None:
    """The worker is killed, not drained, so some groups are in the input only; nothing but the command leads on from there."""
    place.create()
    worker = place.worker()
    ids = [f"g{number}" for number in range(60)]
    place.send([(name, seq, False) for name in ids for seq in (2, 1)])
    place.send([("whole", 1, True)])
    wait_for(lambda: place.committed() >= 121)
    refused = repartition(place, "--partitions", "8")
    assert (refused.exit_code, "1 workers of" in refused.output) == (1, True), refused.output
    worker.child.signal(signal.SIGKILL)
    place.send([(name, 3, False) for name in ids])  # unread where it lies when the count changes

    add_partitions(admin, place.components, 8)
    idle = place.worker("1", wait=False)
    assert idle.child.wait(60) == 2
    assert (
        f"partitions = 8: must be 4, as when its groups were assembled: stop all workers and run `uow topics repartition {place.name}`"
        in (idle.child.output)
    )

    def is_done() -> bool:
        """A killed worker counts as living until its session is over."""
        nonlocal done
        done = repartition(place, "--json")
        return done.exit_code == 0

    done = refused
    wait_for(is_done, PATIENCE_S, lambda: done.output)
    report = json.loads(done.stdout)
    assert (report["before"], report["after"]) == (4, 8)
    assert report["moved"]["groups"] * 2 == report["moved"]["components"]
    assert (report["unread"], report["left"]) == (False, True), "topics had grown by hand: senders may know of it"
    assert 10 < report["moved"]["groups"] < 50
    assert "0 open groups" in repartition(place).output  # a second time moves nothing

    place.partitions = 8
    place.worker()
    place.send([(name, 4, True) for name in ids])
    place.wait_delivered(61)
    place.verify()
    assert {record.partition() for record in place.read(place.units)} > {0, 1, 2, 3}


def test_what_came_in_time_and_lies_unread_while_topics_grow_is_not_late_w82_w107(place: Destination) -> None:
    """The last components come before the deadline, to partitions that are not those of their ids any more when a worker reads on, after the deadline."""
    place.partitions = 2
    place.create({"session_timeout_ms": 2_000}, incomplete_expiration_ms=15_000, outcomes="all")
    worker = place.worker()
    ids = [f"g{number}" for number in range(40)]
    place.send([(name, 1, False) for name in ids])
    wait_for(lambda: place.committed() >= len(ids))
    opened = time.monotonic()
    assert worker.child.terminate() == 0
    place.send([(name, 2, True) for name in ids])
    place.send([("late", 1, False)])
    done = repartition(place, "--partitions", "5", "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["unread"] is True
    time.sleep(max(0.0, opened + 17 - time.monotonic()))
    place.partitions = 5
    place.worker()
    wait_for(lambda: len(place.read(f"{place.name}.outcomes")) == len(ids) + 1)
    assert {dict(each.headers())["uow-outcome"] for each in place.read(place.units)} == {b"complete"}
    assert len(place.read(place.units)) == len(ids)
    assert place.read(f"{place.name}.rejected") == []


class Died(BaseException):
    """The command is killed."""


def test_command_that_dies_after_any_step_is_run_again_and_no_record_ends_it_w82_w107(
    place: Destination, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies unread: last components, commands, and records that nobody can read."""
    place.partitions = 2
    place.create({"session_timeout_ms": 2_000}, outcomes="all")
    place.is_damaged = True  # headers whose names are no UTF-8 cannot be read for the account
    worker = place.worker()
    ids = [f"g{number}" for number in range(30)]
    place.send([(name, 1, False) for name in ids])
    wait_for(lambda: place.committed() >= len(ids))
    assert worker.child.terminate() == 0
    for partition in range(2):
        odd = [(b"uow-id", b"raw"), (b"uow-seq", b"1"), (b"\xff\xfe", b"x")]
        produce_raw(place.bootstrap, place.components, partition, b"raw-name", b"raw-value", odd)
        produce_raw(place.bootstrap, f"{place.name}.commands", partition, b"raw-name", b"raw-value", odd)
    told(place, ids[:10], "cancel")
    place.send([(name, 2, True) for name in ids[10:]])
    send_odd(place)

    for step, nth in (("grow", 0), ("read", 0), ("rehearse", 0), ("grow", 1), ("write", 0), ("done", 0)):
        with monkeypatch.context() as patch:
            die_at(patch, step, nth)
            with pytest.raises(Died):
                repartition(place, "--partitions", "5", "--json")
        if step == "read":
            place.send([(f"between-{number}", 1, True) for number in range(10)])
    done = repartition(place, "--partitions", "5", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["before"] == 5, "the move was committed by the run that died after it"

    place.partitions = 5
    place.worker()
    place.send([("last", 1, True)])
    wait_for(lambda: len(place.read(place.units)) >= 20 + 10 + 1 + ODD_PLAIN, PATIENCE_S, lambda: done.output)
    delivered = Counter(dict(each.headers() or []).get("uow-id") for each in place.read(place.units))
    assert {name for name in delivered if name is not None} == {
        *(name.encode() for name in ids[10:]),
        *(b"between-%d" % number for number in range(10)),
        b"last",
    }
    assert set(delivered.values()) - {ODD_PLAIN} == {1}
    given_up = [dict(each.headers())["uow-id"] for each in place.read(f"{place.name}.errors")]
    assert sorted(given_up) == sorted(name.encode() for name in ids[:10])
    refused = Counter(dict(each.headers())["uow-error-class"] for each in place.read(f"{place.name}.rejected"))
    assert b"MisroutedComponentError" not in refused


KILLED = """
import os, signal, sys
from uow.processor.kafka.transactional_producer import TransactionalProducer
setattr(TransactionalProducer, sys.argv[1], lambda *_: os.kill(os.getpid(), signal.SIGKILL))
from uow.cli.main import main
main(sys.argv[2:])
"""


def test_command_that_is_killed_in_a_transaction_is_run_again_w82_w107(place: Destination) -> None:
    """In the transaction of what lay unread, in that of the rehearsal, which is aborted, and in that of the move. Workers' own time would be too late for any of them."""
    place.partitions = 2
    place.create({"session_timeout_ms": 6_000}, incomplete_expiration_ms=200_000)
    worker = place.worker()
    ids = [f"g{number}" for number in range(30)]
    place.send([(name, 1, False) for name in ids])
    wait_for(lambda: place.committed() >= len(ids))
    assert worker.child.terminate() == 0
    place.send([(name, 2, name < "g2") for name in ids])
    arguments = ["topics", "repartition", place.name, "-c", str(place.config), "--partitions", "5"]
    runs: list[Result] = []
    for step in ("commit", "abort", "commit"):

        def is_killed(step: str = step) -> bool:
            """A member that was killed before counts as a worker until its session is over."""
            child = place.spawn(sys.executable, "-c", KILLED, step, *arguments)
            assert child.wait() in (128 + signal.SIGKILL, 1), child.output
            return child.status == 128 + signal.SIGKILL

        wait_for(is_killed, PATIENCE_S)

    def is_done() -> bool:
        runs.append(repartition(place, "--partitions", "5", "--json"))
        return runs[-1].exit_code == 0

    wait_for(is_done, PATIENCE_S, lambda: runs[-1].output)
    assert json.loads(runs[-1].stdout)["moved"]["groups"] > 0
    place.partitions = 5
    place.worker()
    place.send([(name, 3, True) for name in ids if name >= "g2"])
    wait_for(lambda: len(place.read(place.units)) == len(ids))
    assert place.read(f"{place.name}.rejected") == []


def test_what_cannot_be_read_keeps_topics_from_growing_unless_it_is_left_to_the_workers_w107(
    place: Destination, monkeypatch: pytest.MonkeyPatch, admin: Any
) -> None:
    """A transaction that nobody ends, in the input."""
    monkeypatch.setattr(unread_input, "PATIENCE_MS", 3_000)
    place.partitions = 2
    place.create({"session_timeout_ms": 2_000})
    worker = place.worker()
    place.send([("a", 1, False), ("b", 1, False)])
    wait_for(lambda: place.committed() >= 2)
    assert worker.child.terminate() == 0
    stuck = Producer({"bootstrap.servers": place.bootstrap, "transactional.id": f"{place.name}-stuck"})
    stuck.init_transactions(PATIENCE_S)
    stuck.begin_transaction()
    for partition in range(2):
        stuck.produce(place.components, b"x", b"b", partition, headers=[("uow-id", b"b"), ("uow-seq", b"2")])
    assert not stuck.flush(PATIENCE_S)
    place.send([("a", 2, True)])

    failed = repartition(place, "--partitions", "5")
    assert failed.exit_code == 1, failed.output
    assert "nothing has moved, and workers may be started as before" in failed.output
    assert "a transaction may be open there" in failed.output
    assert "--leave-unread" in failed.output
    assert len(admin.list_topics(place.components, timeout=PATIENCE_S).topics[place.components].partitions) == 2

    done = repartition(place, "--partitions", "5", "--leave-unread", "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert (report["unread"], report["left"]) == (False, True)
    stuck.abort_transaction(PATIENCE_S)
    place.partitions = 5
    place.worker()
    place.send([("b", 2, True)])
    wait_for(lambda: len(place.read(place.units)) == 2)


def test_what_lies_unread_by_rule_is_assembled_and_a_unit_without_its_topic_waits_b57_w107(
    place: Destination, admin: Any
) -> None:
    place.partitions = 2
    routed, names = RoutedPlace(place, {"events": 1}), [f"name-{number}" for number in range(12)]
    routed.put_rules({name: {"target_topic": "own", "complete_count": 3} for name in names})
    routed.create({"session_timeout_ms": 2000})
    worker = place.worker()
    routed.send([("events", name, b"<Test/>") for name in names * 2])
    wait_for(lambda: sum(each["counts"]["open"] for each in worker.partitions().values()) == 24)
    assert worker.child.terminate() == 0
    producer = Producer({"bootstrap.servers": place.bootstrap, "partitioner": "murmur2_random"})
    for number, name in enumerate(names):
        key = f"low-stock/{name}".encode()
        said = [
            ("uow-id", key),
            ("uow-rule", key + b"@1"),
            ("uow-input", b"%s/0/%d" % (routed.topic("events").encode(), 100 + number)),
        ]
        producer.produce(
            place.components, b"<Test/>", key, headers=said
        )  # as a router that stopped after the assembler
    key = f"low-stock/{names[0]}".encode()
    producer.produce(place.components, b"x", key, headers=[("uow-id", key), ("uow-rule", b"low-stock/nobody@7")])
    assert not producer.flush(PATIENCE_S)
    for gone in admin.delete_topics([routed.topic("own")]).values():
        gone.result(PATIENCE_S)
    done = repartition(place, "--partitions", "5", "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert (report["unread"], report["moved"]["groups"]) == (True, 0)
    for made in admin.create_topics([NewTopic(routed.topic("own"), 1, -1)]).values():
        made.result(PATIENCE_S)
    place.partitions = 5
    place.worker()
    wait_for(lambda: len(place.read(routed.topic("own"))) == len(names), PATIENCE_S, lambda: done.output)
    said = [dict(record.headers()) for record in place.read(routed.topic("own"))]
    assert {(each["uow-size"], each["uow-generation"]) for each in said} == {(b"3", b"1")}


def test_groups_by_rule_complete_after_two_partitions_became_five_w107(place: Destination) -> None:
    place.partitions = 2
    routed, names = RoutedPlace(place, {"events": 1}), [f"name-{number}" for number in range(12)]
    routed.put_rules({name: {"target_topic": "own", "complete_count": 3} for name in names})
    routed.create({"session_timeout_ms": 2000})
    worker = place.worker()
    routed.send([("events", name, b"<Test/>") for name in names * 2])
    wait_for(lambda: sum(each["counts"]["open"] for each in worker.partitions().values()) == 24)
    assert worker.child.terminate() == 0
    done = repartition(place, "--partitions", "5", "--json")
    assert done.exit_code == 0, done.output
    moved = json.loads(done.stdout)["moved"]
    assert 0 < moved["groups"] * 2 == moved["components"] < 24
    place.partitions = 5
    place.worker()
    routed.send([("events", name, b"<Test/>") for name in names])
    wait_for(lambda: len(place.read(routed.topic("own"))) == len(names))
    said = [dict(record.headers()) for record in place.read(routed.topic("own"))]
    assert {(each["uow-size"], each["uow-generation"]) for each in said} == {(b"3", b"1")}


def test_more_closed_ids_than_a_record_holds_move_and_a_rehearsal_that_fails_changes_nothing_w107(
    place: Destination, admin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids of 250 bytes: half of them, which is what moves, are more than the ledger's topic takes in one record.

    Topic and records are made a tenth as large as they are: assembling 80,000 units would say no more.
    """
    assert moved_groups.LEDGER_BYTES * 4 <= RECORD_LIMIT_BYTES
    limit = RECORD_LIMIT_BYTES // 10
    place.partitions = 1
    place.create(outcomes="none")
    worker = place.worker()
    ids = [f"{number:0250}" for number in range(12_000)]
    place.send(((name, 1, True) for name in ids), value=b"")
    place.send([("left-open", 1, False), ("left-over", 1, False)])
    wait_for(lambda: place.committed() >= len(ids) + 2)
    assert worker.child.terminate() == 0

    log = f"A-{place.name}-{place.name}-closed-changelog"
    alter_topic(admin, log, max_message_bytes=str(limit))
    failed = repartition(place, "--partitions", "2")
    assert (failed.exit_code, "nothing has moved, and workers may be started as before" in failed.output) == (1, True)
    counts = {name: len(topic.partitions) for name, topic in admin.list_topics(timeout=PATIENCE_S).topics.items()}
    assert (counts[place.components], counts[place.units], counts[log]) == (1, 1, 2)
    alter_topic(admin, log, max_message_bytes=str(RECORD_LIMIT_BYTES))
    before = place.worker()
    place.send([("left-open", 2, True)])
    wait_for(lambda: place.committed() >= len(ids) + 3)
    assert before.child.terminate() == 0

    alter_topic(admin, log, max_message_bytes=str(limit))
    monkeypatch.setattr(moved_groups, "LEDGER_BYTES", limit // 4)
    done = repartition(place, "--partitions", "2", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["moved"]["closed"] > 5_000
    alter_topic(admin, log, max_message_bytes=str(RECORD_LIMIT_BYTES))
    place.partitions = 2
    place.worker()
    late = next(name for name in ids if partition_for(name.encode(), 2) == 1)
    place.send([("left-over", 2, True), (late, 1, True)])
    wait_for(lambda: place.read(f"{place.name}.rejected"))
    (refused,) = place.read(f"{place.name}.rejected")
    assert dict(refused.headers())["uow-error-class"] == b"DuplicateSequenceNumberError"
    assert len(place.read(place.units)) == len(ids) + 2
