"""Young groups lie in input and ledger alone: what the worker says when somebody took one of these away (ER-20)."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.broker.worker_places import Destination, alter_topic
from tests.processes import PATIENCE_S, wait_for
from uow.schemas.records import SETTINGS_KEY
from uow.topics.catalogue import DestinationTopics

SLOW = 90.0
pytestmark = pytest.mark.timeout(240)


def names(place: Destination) -> DestinationTopics:
    return DestinationTopics(f"A-{place.name}", place.name)


def reset_offset(place: Destination, partition: int, offset: int) -> None:
    """As an administrator would, once the broker has noticed that the group's member is dead."""
    consumer = Consumer({"bootstrap.servers": place.bootstrap, "group.id": f"A-{place.name}"})

    def is_done() -> bool:
        try:
            consumer.commit(offsets=[TopicPartition(place.components, partition, offset)], asynchronous=False)
        except KafkaException:
            return False
        return True

    wait_for(is_done, SLOW)
    consumer.close()


def delete_records(admin: Any, topic: str, partition: int, before: int) -> None:
    for future in admin.delete_records([TopicPartition(topic, partition, before)]).values():
        future.result(PATIENCE_S)


def test_each_loss_blocks_its_partition_with_a_remedy_and_the_others_go_on(place: Destination, admin: Any) -> None:
    """Ledger emptied, offset reset, input cut above the floor; the fourth partition has lost nothing."""
    place.create()
    place.is_damaged = True
    ids = [place.fitting(partition, 1)[0] for partition in range(4)]
    worker = place.worker()
    place.send((name, seq, False) for name in ids for seq in (1, 2))
    wait_for(lambda: place.committed() == 8, SLOW)
    worker.child.kill()
    rows = [record for record in place.read(names(place).groups_changelog) if record.key() != SETTINGS_KEY]
    assert not rows, "the groups are replayable"
    delete_records(admin, names(place).closed_changelog, 0, -1)
    reset_offset(place, 1, 1)
    delete_records(admin, place.components, 2, 1)
    place.send((name, 3, True) for name in ids)
    worker = place.worker()
    place.wait_delivered(1, SLOW)
    assert set(place.delivered()) == {ids[3].encode()}
    causes = {number: view["blocked"] for number, view in worker.partitions().items()}
    assert causes.pop("3") is None
    wanted = {
        "0": ("components from 0 on are to be read again", "put its records back"),
        "1": ("the ledger ends at 2, the committed offset is 1", "put the old offsets back"),
        "2": ("the input begins at 1, above the replay floor 0", "to begin anew, stop all workers"),
    }
    for number, (why, remedy) in wanted.items():
        assert why in causes[number]
        assert remedy in causes[number]
    assert worker.child.terminate(90) == 0
    reset_offset(place, 1, 2)
    healed = place.worker()
    place.wait_delivered(2, SLOW)
    assert set(place.delivered()) == {ids[1].encode(), ids[3].encode()}
    assert healed.child.terminate(90) == 0


@pytest.mark.parametrize("which", ["ledger", "input"])
def test_retention_shorter_than_a_replay_ends_the_worker_with_status_two_and_says_what_to_change(
    place: Destination, admin: Any, which: str
) -> None:
    """W-120; `uow topics check` reports the same."""
    place.create()
    topic = place.components if which == "input" else names(place).closed_changelog
    alter_topic(admin, topic, retention_ms="60000")
    worker = place.worker(wait=False)
    assert worker.child.wait(90) == 2
    checked = place.spawn("uow", "topics", "check", "-c", place.config)
    assert checked.wait(90) == 1
    for said in (worker.child.output, checked.output):
        assert topic in said
        assert "replay_limit_ms" in said
