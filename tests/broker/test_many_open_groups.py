"""Restores of very many open groups: time and memory in proportion, and a limit that is too small (R-73)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.drain import BenchBroker
from bench.restore_times import Restores
from tests.broker.worker_places import Destination
from tests.kafka_broker import Kafka
from tests.processes import PATIENCE_S, wait_for

MIB = 1 << 20
OPEN = 1_600
VALUE = b"v" * 80_000
"""Together more than a worker with the smallest limit restores: one and a half of it, and a poll."""
SIZES = (10_000, 100_000, 1_000_000)
SLACK = 1.5
"""What the time of a component may be of that among a tenth as many."""
ROUNDS = 3


def test_a_limit_that_is_too_small_is_named_with_one_that_does_and_with_that_the_worker_goes_on_r73(
    place: Destination,
) -> None:
    place.create()
    ids = [f"open-{number}" for number in range(OPEN)]
    place.send(((name, 1, False) for name in ids), VALUE)
    worker = place.worker()
    wait_for(lambda: place.committed() >= OPEN)
    assert worker.child.terminate(PATIENCE_S) == 0

    place.configure({"memory_limit_bytes": 16 * MIB})
    small = place.worker("small")
    said = small.child.wait_output("not restored: its groups' changelog has")
    assert "start another worker, or raise it to" in said

    def is_settled() -> bool:
        """Each partition is restored or refused."""
        views = small.partitions().values()
        return len(views) == place.partitions and all(view["blocked"] or "open_groups" in view for view in views)

    def refusals() -> list[str]:
        return re.findall(r"or raise it to ([\d,]+)", small.child.output)

    wait_for(is_settled, what=lambda: str(small.partitions()))
    before = len(refusals())
    wait_for(lambda: len(refusals()) > before)  # tried again by itself: now it counts what all others hold
    assert "Traceback" not in small.child.output
    enough = max(int(each.replace(",", "")) for each in refusals())
    assert small.child.terminate(PATIENCE_S) == 0
    assert not place.delivered()

    place.configure({"memory_limit_bytes": enough})
    place.worker("large")
    place.send((name, 2, True) for name in ids)
    place.wait_delivered(OPEN)
    place.verify()


@pytest.mark.drill
@pytest.mark.timeout(3600)
def test_time_and_memory_of_a_restore_grow_with_what_is_open_and_no_faster_r73(broker: Kafka, tmp_path: Path) -> None:
    """10,000, 100,000 and a million components: from the changelog, and from the input behind a worker that was killed."""
    place = BenchBroker(broker.bootstrap, tmp_path)
    cases = ("changelog", "input")
    found = {case: [] for case in cases}
    for size in SIZES:
        restores = Restores(place, size, cases)
        for case in cases:
            rounds = [restores.measure(case) for _ in range(ROUNDS)]
            assert {each["held"] for each in rounds} == {size}
            found[case].append({name: min(each[name] for each in rounds) for name in rounds[0]})
    for case, (few, more, most) in found.items():
        for name in ("cpu_us", "seconds"):
            each_s = [row[name] / (1 if name == "cpu_us" else row["held"]) for row in (few, more, most)]
            print(f"{case}: {name} of a component {each_s}")
            assert each_s[1] < SLACK * each_s[0]
            assert each_s[2] < SLACK * each_s[1]
        slopes = [(most[name] - more[name]) for name in ("peak_mb", "estimate_mb")]
        print(f"{case}: MB of 900,000 components: {slopes[0]:.0f}, estimated {slopes[1]:.0f}")
        assert slopes[0] < 2 * slopes[1]
