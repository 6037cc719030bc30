"""A command that is faster than what was sent before it, or than all of its unit, on a real broker with a real worker (W-62, W-203)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.broker.worker_places import Destination
from tests.kafka_broker import Kafka
from tests.processes import PATIENCE_S, Process, wait_for
from uow import connect
from uow.client.connection import Connection
from uow.schemas import codec
from uow.schemas.records import Answer
from uow.topics.commands import Command, Verb


@pytest.fixture
def place(broker: Kafka, unique: str, tmp_path: Path, spawn: Callable[..., Process]) -> Destination:
    return Destination(broker.bootstrap, unique, tmp_path, spawn, partitions=2)


def cancel(connection: Connection, place: Destination, group_id: str) -> None:
    raw = group_id.encode()
    connection.command(place.name, Command(b"cancel " + raw, Verb.CANCEL, raw, "the test says so"))


def answers(place: Destination) -> dict[str, str]:
    """Text of the answer by id."""
    records = [each for each in place.read(f"{place.name}.outcomes") if ("uow-kind", b"answer") in each.headers()]
    told = [codec.decode_as(Answer, each.value()) for each in records]
    assert len({each.id for each in told}) == len(told)
    return {each.id: each.text for each in told}


def fates(place: Destination) -> list[tuple[bytes, bytes, bytes]]:
    """Id, number and fate of every component that was refused or given up."""
    records = [each for topic in ("rejected", "errors") for each in place.read(f"{place.name}.{topic}")]
    said = [dict(each.headers()) for each in records]
    return sorted((each["uow-id"], each["uow-seq"], each.get("uow-failure-reason", b"late")) for each in said)


def test_a_cancel_is_not_lost_whatever_lies_unread_w62_w203(place: Destination) -> None:
    place.create(worker={"poll_records": 500})
    crowd, held = place.fitting(0, 5_002), place.fitting(1, 2)
    behind, unseen = crowd.pop(), crowd.pop()
    in_hop, meanwhile = held
    hop = Producer({"bootstrap.servers": place.bootstrap, "transactional.id": f"{place.name}-hop"})
    hop.init_transactions(PATIENCE_S)
    with connect(place.bootstrap) as connection:
        # nobody reads yet: a crowd, a component behind it, its cancel, and one of an id that nobody knows
        place.send([(name, 1, True) for name in crowd] + [(behind, 1, False)])
        cancel(connection, place, behind)
        cancel(connection, place, unseen)
        # a component in a transaction that is open when its cancel comes
        hop.begin_transaction()
        headers = [("uow-id", in_hop.encode()), ("uow-seq", b"1")]
        hop.produce(place.components, b"x", in_hop.encode(), 1, headers=headers)
        assert not hop.flush(PATIENCE_S)
        cancel(connection, place, in_hop)
        worker = place.worker()
        wait_for(lambda: len(answers(place)) == 2, PATIENCE_S, lambda: str(answers(place)))
        assert answers(place)[behind].startswith("closes the group as cancelled: 1 component to the errors topic")
        assert answers(place)[unseen].startswith("closes the id as cancelled: nothing of it is held")
        hop.commit_transaction(PATIENCE_S)
        wait_for(lambda: in_hop in answers(place), PATIENCE_S, lambda: str(answers(place)))
        assert answers(place)[in_hop].startswith("closes the group as cancelled: 1 component to the errors topic")
        cancel(connection, place, meanwhile)
        wait_for(lambda: meanwhile in answers(place))
    # the next worker knows of a cancel before all components
    assert worker.child.terminate() == 0
    again = place.worker()
    late = [(behind, 2), *[(name, seq) for name in (unseen, meanwhile) for seq in (1, 2)]]
    place.send([*[(name, seq, seq == 2) for name, seq in late], ("whole", 1, True)])
    wait_for(lambda: place.delivered()[b"whole"])
    wait_for(lambda: len(fates(place)) == 7, PATIENCE_S, lambda: str(fates(place)))
    assert fates(place) == sorted(
        [
            (behind.encode(), b"1", b"cancelled"),
            (in_hop.encode(), b"1", b"cancelled"),
            *[(name.encode(), b"%d" % seq, b"late") for name, seq in late],
        ]
    )
    assert set(place.delivered()) == {name.encode() for name in [*crowd, "whole"]}
    assert again.child.terminate() == 0
