"""The producer hears of refusals, on a real broker with a real worker (W-37)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.broker.worker_places import Destination
from tests.kafka_broker import Kafka
from tests.processes import PATIENCE_S, Process, wait_for
from uow import Rejection, connect


@pytest.fixture
def place(broker: Kafka, unique: str, tmp_path: Path, spawn: Callable[..., Process]) -> Destination:
    return Destination(broker.bootstrap, unique, tmp_path, spawn, partitions=2)


def test_of_two_blocks_under_one_id_the_second_one_learns_it_w37(place: Destination) -> None:
    """And not the first one, nor somebody who sends without a wish to hear; over a hop as well."""
    place.create()
    worker = place.worker()
    first: list[Rejection] = []
    second: list[Rejection] = []
    with (
        connect(place.bootstrap, on_rejected=first.append) as one,
        connect(place.bootstrap, on_rejected=second.append) as other,
        connect(place.bootstrap) as silent,
    ):
        for connection, item in (one, "book"), (other, "film"), (silent, "disc"):
            with connection.unit(place.name, id="order") as unit:
                unit.send({"item": item})
                unit.send({"item": item})
        wait_for(lambda: len(second) == 2, PATIENCE_S, lambda: str(second))
        assert {(each.error, each.case, each.id) for each in second} == {
            ("DuplicateSequenceNumberError", "duplicate", "order")
        }
        assert sorted(each.seq or "" for each in second) == ["1", "2"]
        assert {json.loads(each.record.value or b"")["item"] for each in second} == {"film"}
        lain = {each.topic() + f"/{each.partition()}/{each.offset()}": each for each in place.read(place.components)}
        assert all(
            dict(lain[each.source].headers())["uow-component-id"].decode() == each.component_id for each in second
        )

        hop = f"{place.name}.errors"  # any topic that is there
        with other.unit(place.name, id="forwarded") as unit:
            unit.send("x", to=hop, headers={"uow-count": "1"})
        with silent.messages(hop, group=place.name) as inbox:
            message = inbox.receive(PATIENCE_S)
            assert message is not None
            silent.forward(message, destination=place.name, headers={"uow-seq": "2"}, reassign=True)
        wait_for(lambda: len(second) == 3, PATIENCE_S, lambda: str(second))
        assert (second[2].error, second[2].id) == ("OutOfSequenceRangeError", "forwarded")
    assert first == []
    assert worker.child.terminate() == 0
