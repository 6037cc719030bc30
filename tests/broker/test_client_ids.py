"""Client ids on a real broker: static members, take-over, and the newer of two (R-24, R-39, R-54, R-55)."""

from __future__ import annotations

import pytest

import uow
from tests.broker.client_places import Topics
from tests.kafka_broker import Kafka
from tests.processes import PATIENCE_S
from uow import errors

PARTITIONS = 6
SHORT = {"session.timeout.ms": 3000, "heartbeat.interval.ms": 300}


def drained(reader: uow.MessageReader, count: int) -> set[bytes | None]:
    """The values of so many messages, each acknowledged."""
    values: set[bytes | None] = set()
    for _ in range(count):
        message = reader.receive(PATIENCE_S)
        assert message is not None
        message.acknowledge()
        values.add(message.value)
    return values


def test_the_newer_of_two_programs_takes_the_partitions_and_the_older_one_is_told_r24_r39_r54_r55(
    broker: Kafka, unique: str
) -> None:
    """Two connections stand for two programs: this process does not know that both addresses are one cluster."""
    places = Topics(broker.bootstrap)
    places.make(unique, partitions=PARTITIONS)
    elsewhere = f"{broker.bootstrap},127.0.0.1:1"

    def send(first: int) -> None:
        for number in range(first, first + PARTITIONS):
            places.put(unique, (None, str(number).encode(), {}), partition=number % PARTITIONS)

    send(0)
    with uow.connect(broker.bootstrap, client_id=unique, reconnect_policy="all") as older:
        reader = older.messages(unique, group=unique, kafka=SHORT)
        assert len(drained(reader, PARTITIONS)) == PARTITIONS
        with pytest.raises(errors.DuplicateClientIdError):
            uow.connect(broker.bootstrap, client_id=unique)
        with uow.connect(elsewhere, client_id=unique) as newer:
            send(10)
            successor = newer.messages(unique, group=unique, kafka=SHORT)
            assert drained(successor, PARTITIONS) == {str(number).encode() for number in range(10, 10 + PARTITIONS)}
            for _ in range(2):
                with pytest.raises(errors.FencedError):
                    reader.receive(PATIENCE_S)
            assert older.state is uow.ConnectionState.CONNECTED
    send(20)
    with uow.connect(broker.bootstrap) as stranger:  # waits for the session of the one that is closed
        nameless = stranger.messages(unique, group=unique, kafka=SHORT)
        assert drained(nameless, PARTITIONS) == {str(number).encode() for number in range(20, 20 + PARTITIONS)}
