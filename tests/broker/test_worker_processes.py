"""Worker processes on a real broker: start, stop, kill, take over."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.broker.worker_places import Destination, Worker
from tests.processes import PATIENCE_S, wait_for

SLOW = 90.0
SHORT = {"session_timeout_ms": 2000}
"""For workers whose death others wait for."""
pytestmark = pytest.mark.timeout(300)


def test_units_come_out_whole_and_a_stop_drains_and_exits_zero(place: Destination) -> None:
    """R-68: of the program as it is installed."""
    place.create()
    worker = place.worker(uow=Path(sys.executable).with_name("uow"))
    place.send_units(300)
    place.wait_delivered(300)
    place.send([("left-open", 1, False)])
    wait_for(lambda: place.committed() == 1501, SLOW)
    worker.check_counts()
    assert worker.child.terminate(90) == 0
    assert "worker 0 ready" in worker.child.output
    place.verify()


def test_killed_worker_loses_and_doubles_nothing_and_open_groups_survive(place: Destination) -> None:
    """W-124, ER-09, R-70: a worker of the same name goes on where the last transaction ended."""
    place.create(SHORT)
    place.send([("survivor", 1, False), ("survivor", 2, False)])
    place.send_units(2000)
    worker = place.worker(UOW_CRASH="produced:1:9")
    assert worker.child.wait(90) == 128 + signal.SIGKILL
    worker = place.worker()
    place.send([("survivor", 3, True)])
    place.wait_delivered(2001)
    worker.child.kill()
    worker = place.worker()
    place.send_units(50, seed=1)
    place.wait_delivered(2051)
    assert worker.child.terminate(90) == 0
    place.verify()


def test_a_worker_keeps_no_files_and_another_host_has_the_same_state_from_the_logs_alone_r70(
    place: Destination, tmp_path: Path
) -> None:
    """F22: each host has empty folders; what is open there, and what becomes of it, is the same."""
    place.create(SHORT)
    place.send((f"open-{number}", seq, False) for number in range(300) for seq in (1, 2))

    def state(worker: Worker) -> dict[str, tuple[float, ...]]:
        names = ("uow_open_groups", "uow_open_components", "uow_held_bytes", "uow_memory_bytes")
        labels = [f'{{destination="{place.name}",partition="{number}"}}' for number in range(place.partitions)]
        return {each: tuple(worker.metric(f"{name}{each}") for name in names) for each in labels}

    def host(name: str) -> Worker:
        folder = tmp_path / name
        folder.mkdir()
        command = (Path(sys.executable).with_name("uow"), "worker", "-c", place.config, "--name", "0")
        child = place.spawn(*command, env={"HOME": str(folder), "TMPDIR": str(folder)}, cwd=folder)
        place.workers.append(Worker(child, "0"))
        child.wait_output("worker 0 ready", 90)
        return place.workers[-1]

    lost = host("lost")
    wait_for(lambda: place.committed() >= 600, SLOW)
    before = state(lost)
    assert sum(numbers[0] for numbers in before.values()) == 300
    lost.child.kill()
    heir = host("heir")
    heir.wait_owns(place.partitions)
    wait_for(lambda: state(heir) == before, SLOW, lambda: f"{state(heir)} is {before}")
    place.send((f"open-{number}", 3, True) for number in range(300))
    place.wait_delivered(300)
    assert heir.child.terminate(90) == 0
    place.verify()
    assert [*(tmp_path / "lost").iterdir(), *(tmp_path / "heir").iterdir()] == []


def test_kill_at_each_commit_step_leaves_all_of_a_transaction_or_nothing(place: Destination) -> None:
    """ER-01: at each step, and while the commit is under way."""
    place.create({"poll_records": 200} | SHORT)
    crashes = ["begin:1:9", "produced:2:9", "offsets:1:9", "commit:2:9", "commit:1:9:3", "committed:1:9"]
    for number, crash in enumerate(crashes):
        place.send_units(100, seed=number)
        doomed = place.worker(wait=False, UOW_CRASH=crash)
        assert doomed.child.wait(90) == 128 + signal.SIGKILL, doomed.child.output
    heir = place.worker()
    place.wait_delivered(100 * len(crashes))
    assert heir.child.terminate(90) == 0
    place.verify()


def test_workers_share_partitions_and_take_over_from_one_that_leaves_and_one_that_is_killed(place: Destination) -> None:
    """ER-10, ER-15."""
    place.create({"poll_records": 500} | SHORT)
    one = place.worker("one")
    place.send_units(500)
    two = place.worker("two")
    two.wait_owns(2)
    place.send_units(500, seed=1)
    two.child.kill()
    place.send_units(500, seed=2)
    one.wait_owns(4)
    three = place.worker("three")
    three.wait_owns(2)
    place.send_units(500, seed=3)
    assert one.child.terminate(90) == 0
    place.wait_delivered(2000, SLOW)
    assert three.child.terminate(90) == 0
    place.verify()


def test_frozen_worker_wakes_up_as_a_zombie_and_doubles_nothing(place: Destination) -> None:
    """R-72, ER-16, W-126: frozen past its session, in a transaction with its positions in it; it is woken when its partitions are another's."""
    place.create({"poll_records": 200, "transaction_timeout_ms": 4000} | SHORT)
    place.send_units(1000)
    frozen = place.worker("frozen", UOW_CRASH=f"offsets:3:{signal.SIGSTOP.value}")
    heir = place.worker("heir", wait=False)
    heir.child.wait_output("worker heir ready", SLOW)
    heir.wait_owns(4, SLOW)
    frozen.child.signal(signal.SIGCONT)
    place.send_units(500, seed=1)
    place.wait_delivered(1500, SLOW)
    frozen.wait_owns(2, SLOW)
    place.verify()
    assert frozen.child.terminate(90) == 0
    assert heir.child.terminate(90) == 0


def test_same_worker_name_twice_ends_the_older_worker_with_status_one(place: Destination) -> None:
    """ER-13."""
    place.create()
    older = place.worker("same")
    newer = place.worker("same", wait=False)
    newer.child.wait_output("uow.worker")
    wait_for(lambda: _poke(place) or older.child.status is not None, SLOW, lambda: older.child.output[-2000:])
    assert older.child.wait(90) == 1
    assert "'same'" in older.child.output
    newer.child.wait_output("worker same ready", SLOW)
    wait_for(lambda: set(place.sent) == set(place.delivered()), SLOW)
    assert newer.child.terminate(90) == 0
    place.verify()


def _poke(place: Destination) -> None:
    """A transaction is what shows an older worker that it is fenced."""
    place.send([(f"poke-{len(place.sent)}-{number}", 1, True) for number in range(8)])


def test_missing_topics_end_the_worker_with_status_two_and_the_remedy(place: Destination) -> None:
    """W-81, R-69."""
    place.configure()
    worker = place.worker(wait=False)
    assert worker.child.wait(90) == 2
    assert "uow topics create" in worker.child.output


def test_expired_group_is_redirected_without_traffic(place: Destination) -> None:
    """W-71, W-80, W-83."""
    place.create(incomplete_expiration_ms=300, expiration_policy="redirect")
    worker = place.worker()
    place.send([("never", 1, False), ("never", 3, False)])
    errors = f"{place.name}.errors"
    wait_for(lambda: len(place.read(errors)) == 2, SLOW)
    headers = [dict(record.headers()) for record in place.read(errors)]
    assert [each["uow-failure-reason"] for each in headers] == [b"expired", b"expired"]
    assert {each["uow-missing"] for each in headers} == {b"2,4-"}
    assert worker.child.terminate(90) == 0


def test_last_component_that_came_before_the_deadline_during_downtime_makes_the_unit(place: Destination) -> None:
    """W-82."""
    place.create(SHORT, incomplete_expiration_ms=6000)
    worker = place.worker()
    place.send([("late-reader", 1, False)])
    wait_for(lambda: place.committed() == 1, SLOW)
    worker.child.kill()
    place.send([("late-reader", 2, True)])
    deadline = 6000 + place.read(place.components)[0].timestamp()[1]
    wait_for(lambda: time.time() * 1000 > deadline + 200)
    worker = place.worker()
    place.wait_delivered(1)
    assert worker.child.terminate(90) == 0
    place.verify()


def test_truncated_input_blocks_the_partition_and_names_the_gap(place: Destination, admin: Any) -> None:
    """W-120."""
    from confluent_kafka import TopicPartition

    place.create()
    place.is_damaged = True
    early, *lost = place.fitting(0, 6)
    worker = place.worker()
    place.send([(early, 1, True)])
    wait_for(lambda: place.committed() == 1, SLOW)
    assert worker.child.terminate(90) == 0
    place.send([(name, 1, True) for name in lost])
    for future in admin.delete_records([TopicPartition(place.components, 0, 4)]).values():
        future.result(PATIENCE_S)
    worker = place.worker()
    wait_for(lambda: worker.partitions()["0"]["blocked"], SLOW)
    assert "were deleted before they were read" in worker.partitions()["0"]["blocked"]
    (other,) = place.fitting(1, 1)
    place.send([(other, 1, True)])
    wait_for(lambda: other.encode() in place.delivered(), SLOW)
    assert worker.child.terminate(90) == 0


def test_second_signal_leaves_at_once(place: Destination) -> None:
    place.create()
    worker = place.worker()
    worker.child.signal(signal.SIGTERM)
    worker.child.signal(signal.SIGTERM)
    assert worker.child.wait(90) in (0, 128 + signal.SIGTERM)


def test_stop_while_no_broker_answers_is_heard(place: Destination) -> None:
    place.configure()
    place.config.write_text(place.config.read_text().replace(place.bootstrap, "127.0.0.1:1"))
    worker = place.worker(wait=False)
    worker.child.wait_output("no broker answers")
    assert worker.child.terminate(90) == 0


def test_worker_with_other_settings_exits_two_while_one_lives_and_records_them_when_alone(place: Destination) -> None:
    """W-68."""
    place.create(SHORT, expiration_policy="discard")
    one = place.worker("one")
    place.send_units(20)
    place.wait_delivered(20)
    place.configure(SHORT, expiration_policy="redirect")
    two = place.worker("two", wait=False)
    assert two.child.wait(90) == 2
    assert "expiration_policy = 'redirect': 'discard' is recorded, and 1 other worker" in two.child.output
    place.send_units(20, seed=1)
    place.wait_delivered(40)
    one.wait_owns(4)
    assert one.child.terminate(90) == 0
    two = place.worker("two")
    assert "expiration_policy was discard, and is redirect from now on" in two.child.output
    assert two.child.terminate(90) == 0
    place.verify()
