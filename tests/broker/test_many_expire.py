"""More groups expire at once than one record of the ledger could tell of, on a real broker with a real worker (W-83, W-125)."""

from __future__ import annotations

import threading
import time

import pytest

from tests.broker.worker_places import Destination
from tests.processes import wait_for
from uow.processor.engine.rows import read_ledger
from uow.topics.catalogue import RECORD_LIMIT_BYTES

GROUPS = 45_000
"""Their ids of 250 bytes alone are more than a record of the ledger's topic may have."""
LIMIT_MS = 8_000
"""Long enough to send them, so that all are open when the first one expires."""


@pytest.mark.timeout(240)
def test_what_expires_at_once_is_closed_in_parts_and_what_comes_meanwhile_is_delivered(place: Destination) -> None:
    """What comes is later than all these deadlines, so none of it is taken before the last part, by the clock of its partition (W-82)."""
    place.partitions = 1
    place.create(incomplete_expiration_ms=LIMIT_MS, expiration_policy="discard", outcomes="none")
    place.send(((f"{number:0250}", 1, False) for number in range(GROUPS)), value=b"")
    due = place.read(place.components)[-1].timestamp()[1] + LIMIT_MS
    wait_for(lambda: time.time() * 1000 > due)
    sent, is_over = 0, threading.Event()

    def send() -> None:
        """Whatever the worker does; its page answers only between two parts."""
        nonlocal sent
        while not is_over.wait(0.02):
            sent += 1
            place.send_units(1, size=2, prefix=f"meanwhile-{sent}-")

    sender = threading.Thread(target=send)
    sender.start()
    try:
        worker = place.worker()
        wait_for(
            lambda: all(view["open_groups"] < 10 for view in worker.partitions().values()),
            120,
            lambda: str(worker.partitions()),
        )
    finally:
        is_over.set()
        sender.join()
    place.wait_delivered(sent)
    assert worker.child.terminate() == 0
    ledgers = [record.value() for record in place.read(f"A-{place.name}-{place.name}-closed-changelog")]
    assert max(map(len, ledgers)) < RECORD_LIMIT_BYTES
    expired = [
        (record.clock, record.to_offset, sum(one.outcome == "expired" for one in closed))
        for record, closed in map(read_ledger, ledgers)
    ]
    assert sum(count for _, _, count in expired) == GROUPS
    parts = [to for _, to, count in expired if count]
    assert len(parts) > 5
