"""A restore that takes longer than `max.poll.interval.ms` (ER-17)."""

from __future__ import annotations

import sys

import pytest

from tests.broker.worker_places import Destination, Worker
from tests.drill import slow_restore
from tests.processes import wait_for

SLOW = 90.0
OPEN = 600
pytestmark = pytest.mark.timeout(200)


@pytest.fixture
def place(place: Destination) -> Destination:
    """A destination whose changelog has as many components as make a slow restore last longer than the shortest interval."""
    place.create({"replay_limit_records": 0})
    place.send((f"open-{number}", 1, False) for number in range(OPEN))
    worker = place.worker()
    wait_for(lambda: place.committed() == OPEN, SLOW)
    assert worker.child.terminate(SLOW) == 0
    return place


def slow_worker(place: Destination, *how: str) -> Worker:
    command = (sys.executable, slow_restore.__file__, *how, "-c", place.config, "--name", "slow")
    worker = Worker(place.spawn(*command, env={"UOW_KAFKA__MAX_POLL_INTERVAL_MS": "6000"}), "slow")
    place.workers.append(worker)
    return worker


def test_restore_longer_than_the_poll_interval_keeps_its_partitions_and_is_done_once(
    place: Destination,
) -> None:
    """ER-17."""
    worker = slow_worker(place)
    place.send((f"open-{number}", 2, True) for number in range(OPEN))
    place.wait_delivered(OPEN)
    assert "given away" not in worker.child.output
    assert worker.child.output.count("restored: ") == 1
    place.verify()


@pytest.mark.drill
def test_worker_that_does_not_serve_its_group_while_it_restores_loses_the_partitions_it_has_just_restored(
    place: Destination,
) -> None:
    """ER-17, the control: it begins again, for ever."""
    worker = slow_worker(place, "deaf")
    place.send((f"open-{number}", 2, True) for number in range(OPEN))
    wait_for(lambda: worker.child.output.count("given away: ") == 2, SLOW)
    assert worker.child.output.count("no poll for max.poll.interval.ms") == 2
    assert place.delivered() == {}
    worker.child.kill()
