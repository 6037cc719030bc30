"""More partitions while groups are open, on a broker and with worker processes (W-107)."""

from __future__ import annotations

import json
import signal
import time
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.broker.routed_places import RoutedPlace
from tests.broker.worker_places import Destination, add_partitions, alter_topic
from tests.processes import PATIENCE_S, wait_for
from uow.cli.main import main
from uow.processor.engine import moved_groups
from uow.topics.catalogue import RECORD_LIMIT_BYTES
from uow.topics.partitioner import partition_for

pytestmark = pytest.mark.timeout(200)


def repartition(place: Destination, *options: str) -> Result:
    return CliRunner().invoke(main, ["topics", "repartition", place.name, "-c", str(place.config), *options])


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
    assert report["moved"]["groups"] * 3 == report["moved"]["components"], "what lay unread was assembled before"
    assert report["assembled"] == {"records": len(ids), "left": {}}
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
    assert (report["assembled"]["records"], report["assembled"]["left"]) == (len(ids) + 1, {})
    time.sleep(max(0.0, opened + 17 - time.monotonic()))
    place.partitions = 5
    place.worker()
    wait_for(lambda: len(place.read(f"{place.name}.outcomes")) == len(ids) + 1)
    assert {dict(each.headers())["uow-outcome"] for each in place.read(place.units)} == {b"complete"}
    assert len(place.read(place.units)) == len(ids)
    assert place.read(f"{place.name}.rejected") == []


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
