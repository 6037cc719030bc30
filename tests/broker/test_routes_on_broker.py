"""Routes with a worker and a broker: every unit in exactly one of the topics, through a kill (W-98 to W-101)."""

from __future__ import annotations

import pytest

import uow
from tests.broker.worker_places import Destination
from tests.processes import wait_for

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]


def test_worker_sends_each_unit_to_its_lane_and_a_killed_one_doubles_none_w101(place: Destination) -> None:
    """W-125: the unit leaves for its lane in the transaction that moves the position."""
    urgent = f"{place.name}.urgent"
    place.create(routes={urgent: "uow-priority >= 7"})
    first = place.worker("0")
    sent: dict[str, int] = {}

    def send(count: int) -> None:
        with uow.connect(place.bootstrap) as connection:
            for number in range(len(sent), len(sent) + count):
                sent[f"order-{number}"] = number % 10
                with connection.unit(place.name, f"order-{number}", priority=number % 10) as unit:
                    unit.send("one")
                    unit.send("two")

    def delivered() -> dict[str, list[str]]:
        return {topic: [record.key().decode() for record in place.read(topic)] for topic in (place.units, urgent)}

    def wait_whole() -> None:
        wait_for(lambda: sum(map(len, delivered().values())) >= len(sent), 90, lambda: f"{len(sent)} of {delivered()}")

    send(40)
    wait_whole()
    first.child.kill()
    send(40)
    place.worker("0")
    wait_whole()
    found = delivered()
    assert sorted(found[urgent]) == sorted(order for order, priority in sent.items() if priority >= 7)
    assert sorted(found[place.units]) == sorted(order for order, priority in sent.items() if priority < 7)
    assert {record.partition() for record in place.read(urgent)} <= set(range(place.partitions))
