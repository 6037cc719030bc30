"""Offsets and ledger that aged away with a long stop: nothing is delivered twice in silence, and the remedies work (ER-20, W-19)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_END, ConsumerGroupTopicPartitions, TopicPartition

import uow
from tests.broker.worker_places import Destination, Worker
from tests.processes import PATIENCE_S, Process, wait_for
from uow import errors

SLOW = 90.0
UNITS = 50
pytestmark = pytest.mark.timeout(200)


@pytest.fixture
def place(broker: Any, unique: str, tmp_path: Path, spawn: Callable[..., Process]) -> Destination:
    return Destination(broker.bootstrap, unique, tmp_path, spawn, partitions=1)


def lose_offsets(place: Destination, admin: Any) -> None:
    """What `offsets.retention.minutes` does to a group that nobody is in."""

    def is_deleted() -> bool:
        try:
            admin.delete_consumer_groups(["A-" + place.name])["A-" + place.name].result(PATIENCE_S)
        except Exception:  # noqa: BLE001 - the last member is not gone yet
            return False
        return True

    wait_for(is_deleted, SLOW)


def empty_ledger(place: Destination, admin: Any) -> None:
    """What retention does."""
    place.is_damaged = True
    whole = TopicPartition(f"A-{place.name}-{place.name}-closed-changelog", 0, OFFSET_END)
    for future in admin.delete_records([whole]).values():
        future.result(PATIENCE_S)


def put_back(place: Destination, admin: Any, offset: int) -> None:
    """As `kafka-consumer-groups.sh --reset-offsets` does."""
    group = ConsumerGroupTopicPartitions("A-" + place.name, [TopicPartition(place.components, 0, offset)])
    for future in admin.alter_consumer_group_offsets([group]).values():
        future.result(PATIENCE_S)


def make_again(place: Destination, admin: Any, *topics: str) -> None:
    """Deletes topics, and creates them as they were."""
    for future in admin.delete_topics([*topics]).values():
        future.result(PATIENCE_S)
    wait_for(lambda: not {*topics} & admin.list_topics(timeout=PATIENCE_S).topics.keys())
    place.create()


def cause(worker: Worker) -> str:
    """Why its partition is blocked."""
    wait_for(lambda: worker.partitions()["0"]["blocked"], SLOW)
    return str(worker.partitions()["0"]["blocked"])


def stopped_after(place: Destination, *ids: str) -> int:
    """A worker delivers units of one component and is stopped. The position."""
    worker = place.worker()
    place.send([(each, 1, True) for each in ids])
    wait_for(lambda: {each.encode() for each in ids} <= place.delivered().keys(), SLOW)
    assert worker.child.terminate(SLOW) == 0
    return place.committed()


def goes_on(place: Destination, one: str, delivered: int) -> None:
    """A worker delivers one more unit, and nothing again."""
    stopped_after(place, one)
    assert place.delivered().total() == delivered + 1


def test_lost_offsets_are_no_first_start_and_the_remedies_work(place: Destination, admin: Any) -> None:
    """ER-20: nothing is open, and all that is left of the offsets is a trace: the whole input would be delivered again."""
    place.create()
    position = stopped_after(place, *(f"u{number}" for number in range(UNITS)))

    lose_offsets(place, admin)
    worker = place.worker()
    assert f"no committed offset, but its ledger ends at {position}" in cause(worker)
    worker.child.terminate(SLOW)
    put_back(place, admin, position)
    goes_on(place, "first", UNITS)

    position = place.committed()
    lose_offsets(place, admin)
    empty_ledger(place, admin)
    worker = place.worker()
    assert "no committed offset, but workers have committed here before" in cause(worker)
    assert "make them again (`uow topics create`), and set the group's offsets" in cause(worker)
    worker.child.terminate(SLOW)
    logs = [f"A-{place.name}-{place.name}-{each}-changelog" for each in ("closed", "groups")]
    make_again(place, admin, *logs)
    put_back(place, admin, position)
    goes_on(place, "second", UNITS + 1)


def test_an_input_that_was_made_again_is_no_first_start_f24(place: Destination, admin: Any) -> None:
    """The broker forgets the offsets of a topic that is deleted; the ledger does not, and the new topic is longer than the former one."""
    place.create()
    position = stopped_after(place, *(f"u{number}" for number in range(UNITS)))
    place.is_damaged = True
    make_again(place, admin, place.components)
    place.send([(f"new-{number}", 1, True) for number in range(2 * UNITS)])
    worker = place.worker()
    assert f"no committed offset, but its ledger ends at {position}" in cause(worker)
    assert worker.child.terminate(SLOW) == 0


def test_an_input_that_is_made_again_while_it_is_read_stops_and_says_so_f24(place: Destination, admin: Any) -> None:
    """The library goes on in the new topic at the offset where it stood, 0 here, which is never out of range; nothing else would tell."""
    place.create()
    worker = place.worker()
    worker.wait_owns(1)
    place.is_damaged = True
    make_again(place, admin, place.components)

    def is_told() -> bool:
        place.send([(f"new-{len(place.sent)}", 1, True)])
        return bool(worker.partitions()["0"]["blocked"])

    wait_for(is_told, SLOW)
    assert "was deleted and made again while it was read" in cause(worker)
    assert worker.child.terminate(SLOW) == 0


def test_a_topic_that_is_made_again_while_a_client_reads_it_ends_the_reader_f24(place: Destination, admin: Any) -> None:
    place.create()
    place.is_damaged = True

    def is_told() -> bool:
        place.send([(f"new-{len(place.sent)}", 1, True)])
        try:
            message = reader.receive(1)
        except errors.DestinationChangedError:
            return True
        if message is not None:
            message.acknowledge()
        return False

    with uow.connect(place.bootstrap) as connection, connection.messages(place.components, group="g") as reader:
        assert reader.receive(5) is None
        make_again(place, admin, place.components)
        wait_for(is_told, SLOW)
        with pytest.raises(errors.DestinationChangedError, match="was deleted and made again while it was read"):
            reader.receive(1)


def test_ids_forgotten_with_the_ledger_are_told_of(
    place: Destination, admin: Any, spawn: Callable[..., Process]
) -> None:
    """W-19: a unit that is sent again is delivered again, and log, metric and doctor say that this may be."""
    place.create()
    stopped_after(place, "again")
    empty_ledger(place, admin)
    place.send([("again", 1, True)])
    doctor = spawn("uow", "doctor", "-c", place.config)
    doctor.wait(SLOW)
    assert "the oldest part of the ledger was deleted" in doctor.output
    worker = place.worker()
    worker.child.wait_output("a part of the ledger is gone", SLOW)
    wait_for(lambda: place.delivered()[b"again"] == 2, SLOW)
    assert "uow_closed_forgotten_until_seconds" in worker.metrics()
    until = [line for line in worker.metrics().splitlines() if line.startswith("uow_closed_forgotten_until_seconds{")]
    assert float(until[0].split()[-1]) > 0, until
    worker.child.terminate(SLOW)
