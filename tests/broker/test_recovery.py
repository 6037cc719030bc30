"""Internal topics that are not as a worker left them: never silent loss, and the other partitions go on (ER-06, ER-20; F23, F25)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.broker.worker_places import Destination, add_partitions
from tests.processes import PATIENCE_S, Process, wait_for

SLOW = 90.0
pytestmark = pytest.mark.timeout(200)


@pytest.fixture
def place(broker: Any, unique: str, tmp_path: Path, spawn: Callable[..., Process]) -> Destination:
    return Destination(broker.bootstrap, unique, tmp_path, spawn)


def test_changelog_that_was_deleted_blocks_the_partitions_that_had_open_groups(place: Destination, admin: Any) -> None:
    """F23: open groups that are gone are told of; a partition that held nothing goes on."""
    place.create()
    (lost,), (first, second) = place.fitting(0, 1), place.fitting(1, 2)
    worker = place.worker()
    place.send([(lost, 1, False), (first, 1, True)])
    wait_for(lambda: place.committed() == 2, SLOW)
    assert worker.child.terminate(SLOW) == 0
    changelog = f"A-{place.name}-{place.name}-groups-changelog"
    for future in admin.delete_topics([changelog]).values():
        future.result(PATIENCE_S)
    wait_for(lambda: changelog not in admin.list_topics(timeout=PATIENCE_S).topics)
    place.create()
    worker = place.worker()
    wait_for(lambda: worker.partitions()["0"]["blocked"], SLOW)
    blocked = worker.partitions()["0"]["blocked"]
    assert "the groups' changelog has 0 components, 1 were committed" in blocked
    assert "begin anew" in blocked
    place.send([(second, 1, True)])
    wait_for(lambda: second.encode() in place.delivered(), SLOW)
    worker.child.kill()


def test_partitions_added_to_the_input_alone_end_the_worker_with_status_two(place: Destination, admin: Any) -> None:
    """F25, W-88: ids would belong elsewhere."""
    place.create()
    add_partitions(admin, place.components, 6)
    worker = place.worker(wait=False)
    assert worker.child.wait(SLOW) == 2
    assert "all topics of a destination have the partition count of" in worker.child.output


def test_transaction_of_a_dead_worker_keeps_no_other_partition_waiting(place: Destination) -> None:
    """ER-10: who restores the partition must wait until that transaction has ended; nobody else."""
    place.create()
    ledger = f"A-{place.name}-{place.name}-closed-changelog"
    orphan = Producer({"bootstrap.servers": place.bootstrap, "transactional.id": place.name})
    orphan.init_transactions(SLOW)
    orphan.begin_transaction()
    orphan.produce(ledger, b"never", partition=0)
    orphan.flush(SLOW)
    (waits,), (goes_on,) = place.fitting(0, 1), place.fitting(1, 1)
    place.send([(waits, 1, True), (goes_on, 1, True)])
    worker = place.worker(wait=False)
    wait_for(lambda: place.delivered().keys() == {goes_on.encode()}, SLOW)
    assert worker.partitions().keys() == {"1", "2", "3"}
    assert "worker 0 ready" not in worker.child.output, "not before all that it owns is restored"
    orphan.abort_transaction(SLOW)
    wait_for(lambda: place.delivered().keys() == {goes_on.encode(), waits.encode()}, SLOW)
    worker.child.wait_output("worker 0 ready", SLOW)
    assert worker.child.terminate(SLOW) == 0
