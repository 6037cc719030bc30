"""Units streamed from several partitions with more data than one fetch holds (W-12, W-14, W-116)."""

from __future__ import annotations

import uow
from tests.broker.worker_places import Destination
from tests.processes import PATIENCE_S, wait_for


def test_every_healthy_unit_of_consecutive_records_streams_whole_from_many_partitions_w14_w116(
    place: Destination,
) -> None:
    """A client that holds partitions back while a unit streams reads each of them on where it stood."""
    units, size = 240, 60
    place.create(shape="consecutive")
    worker = place.worker()
    sent = [f"unit-{number}" for number in range(units)]
    place.send([(name, seq, seq == size) for name in sent for seq in range(1, size + 1)], value=b"v" * 1000)
    wait_for(lambda: place.committed() >= units * size, PATIENCE_S)
    assert worker.child.terminate() == 0
    seen: dict[str, list[bytes]] = {}
    with uow.connect(place.bootstrap) as connection:
        reader = connection.stream(place.name, group="slow readers")
        while len(seen) < units:
            unit = reader.receive(PATIENCE_S)
            assert unit is not None, f"{len(seen)} of {units} came"
            assert unit.id not in seen
            seen[unit.id] = [component.value or b"" for component in unit.components]
            unit.acknowledge()
    assert sorted(seen) == sorted(sent)
    assert all(
        values == [b"%s/%d/%s" % (name.encode(), seq, b"v" * 1000) for seq in range(1, size + 1)]
        for name, values in seen.items()
    )
    assert place.read(f"{place.name}.errors") == []
