"""More partitions while groups are open, on a broker and with worker processes (W-107)."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka.admin import NewPartitions

from tests.broker.worker_places import Place
from tests.processes import wait_for
from uow.cli import main

pytestmark = pytest.mark.timeout(200)


def repartition(place: Place, *options: str) -> Result:
    return CliRunner().invoke(main, ["topics", "repartition", place.name, "-c", str(place.config), *options])


def test_open_groups_complete_after_four_partitions_became_eight_w107(place: Place, admin: Any) -> None:
    """The worker is killed, not drained, so some groups are in the input only; nothing but the command leads on from there."""
    place.create()
    worker = place.worker()
    ids = [f"g{number}" for number in range(60)]
    place.send([(name, seq, False) for name in ids for seq in (2, 1)])
    place.send([("whole", 1, True)])
    wait_for(lambda: place.committed() >= 121)
    refused = repartition(place, "--partitions", "8")
    assert (refused.exit_code, "1 workers of" in refused.output) == (1, True), refused.output
    worker.child.signal(signal.SIGKILL)
    place.send([(name, 3, False) for name in ids])  # unread where it lies when the count changes

    admin.create_partitions([NewPartitions(place.components, 8)])[place.components].result(20)
    idle = place.worker("1", wait=False)
    assert idle.child.wait(60) == 2
    assert (
        f"partitions = 8: must be 4, as when its groups were assembled: stop all workers and run `uow topics repartition {place.name}`"
        in (idle.child.output)
    )

    def is_done() -> bool:
        """A killed worker counts as living until its session is over."""
        nonlocal done
        done = repartition(place, "--json")
        return done.exit_code == 0

    done = refused
    wait_for(is_done, 60, lambda: done.output)
    report = json.loads(done.stdout)
    assert (report["before"], report["after"]) == (4, 8)
    assert report["moved"]["groups"] * 2 == report["moved"]["components"]
    assert 10 < report["moved"]["groups"] < 50
    assert "0 open groups" in repartition(place).output  # a second time moves nothing

    place.partitions = 8
    place.worker()
    place.send([(name, 4, True) for name in ids])
    place.wait_delivered(61)
    place.verify()
    assert {record.partition() for record in place.read(place.units)} > {0, 1, 2, 3}
