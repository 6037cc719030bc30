"""Two consumer groups forward from one topic: every component comes twice, and the worker takes one of each (W-61)."""

from __future__ import annotations

from collections import Counter

import uow
from tests.broker.client_places import Topics
from tests.broker.worker_places import Destination
from tests.processes import PATIENCE_S


def test_two_forwarding_groups_double_every_component_and_the_unit_has_one_of_each_w61(place: Destination) -> None:
    """W-31, W-44: the component id travels along, so the second copy is known as a resend."""
    place.create()
    place.worker()
    topics, stall = Topics(place.bootstrap), f"{place.name}-stall"
    topics.make(stall)
    with uow.connect(place.bootstrap) as connection:
        with connection.unit(place.name, id="a") as unit:
            for item in ("flash drive", "book", "lava lamp"):
                unit.send(item, to=stall)
        with (
            connection.messages(stall, group=f"{place.name}-one") as one,
            connection.messages(stall, group=f"{place.name}-two") as two,
        ):
            for reader in (one, two) * 3:
                message = reader.receive(PATIENCE_S)
                assert message is not None
                connection.forward(message, destination=place.name)
        with connection.units(place.name, group=f"{place.name}-reader") as units:
            delivered = units.receive(PATIENCE_S)
            assert delivered is not None
            assert [each.text() for each in delivered.components] == ["flash drive", "book", "lava lamp"]
            assert units.receive(1) is None
    refused = [dict(record.headers() or ()) for record in topics.read(f"{place.name}.rejected")]
    told = Counter((headers["uow-error-class"], headers["uow-error-case"]) for headers in refused)
    assert told == {
        (b"DuplicateSequenceNumberError", b"resend"): 2,
        (b"DuplicateSequenceNumberError", b"duplicate"): 1,  # the unit was delivered by then
    }
