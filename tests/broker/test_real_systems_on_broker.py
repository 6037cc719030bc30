"""The records of other systems that `docs/wire-format.md` shows, as bytes on a broker, under keys of their own and on any partition (W-17)."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Producer

from tests.broker.worker_places import Destination, decoded
from tests.foreign_records import samples
from tests.processes import PATIENCE_S, wait_for
from uow.topics.policies import AliasFamily

FROM_1 = frozenset({AliasFamily.NIFI_FROM_1})


@pytest.mark.parametrize("families", [frozenset(AliasFamily) - FROM_1, FROM_1], ids=["all others", "nifi_from_1"])
def test_units_of_other_systems_come_out_whole_and_what_is_in_no_group_passes_w17(
    place: Destination, families: frozenset[AliasFamily]
) -> None:
    sent = [sample for sample in samples() if sample.families <= families]
    assert sent
    place.create(accept_aliases=sorted(families))
    worker = place.worker()
    producer = Producer({"bootstrap.servers": place.bootstrap})
    produce: Any = producer.produce
    for sample in sent:
        for headers, value in sample.records:
            produce(place.components, value, None, headers=headers)
    assert not producer.flush(PATIENCE_S)
    others = sorted(value for sample in sent for value in sample.others)
    found: list[Any] = []

    def are_there() -> bool:
        found[:] = place.read(place.units)
        return len(found) >= len(sent) + len(others) or bool(place.read(f"{place.name}.rejected"))

    wait_for(are_there, PATIENCE_S, lambda: f"{len(found)} of {len(sent)}; {worker.child.output[-2000:]}")
    refused = [dict(record.headers())["uow-error-text"] for record in place.read(f"{place.name}.rejected")]
    assert refused == []
    units = [record for record in found if ("uow-kind", b"unit") in (record.headers() or [])]
    assert sorted(record.value() for record in found if record not in units) == others
    parts = [[part["value"] for part in decoded(record.value())["components"]] for record in units]
    assert sorted(parts) == sorted(sample.parts for sample in sent)
    assert {dict(record.headers())["uow-outcome"] for record in units} == {b"complete"}
