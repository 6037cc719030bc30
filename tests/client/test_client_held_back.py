"""A partition that is held back for one reason is not let go for another, and never stays so for none (R-47, S-12)."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import KafkaError
from fake_handles import FakeBroker, consumed, failure

import uow


def test_a_message_that_came_too_early_is_not_passed_while_its_partition_has_a_block_that_is_due_s12() -> None:
    """The record of the block was handled, and its acknowledgement not answered: the block is there until it is."""
    fake = FakeBroker()
    fake.topics = {"t": 1}
    soon = b"%d" % (time.time_ns() // 1_000_000 + 1_000)
    early = {number: [("uow-deliver-at", soon)] for number in (1, 4)}
    fake.records = [consumed(b"%d" % number, offset=number, headers=early.get(number)) for number in range(6)]
    seen: list[int] = []
    with fake.connect() as connection:
        reader = connection.messages("t", group="g")
        reader._consumption._clock = lambda: fake.now

        def handle(message: uow.Message) -> None:
            seen.append(message.offset)
            if seen == [0]:
                fake.now += 60
                raise ValueError("once")
            if seen == [0, 0]:
                fake.script["commit"] = [failure(KafkaError._TIMED_OUT)]
            if message.offset == 5 or len(seen) > 9:
                reader.stop()

        reader.run(handle)
    assert seen == [0, 0, 1, 2, 3, 4, 5]
    assert fake.committed["t", 0][0] == 6


def test_a_partition_that_went_while_it_was_blocked_is_read_on_after_a_silent_coordinator_s29() -> None:
    class Silent:
        """The coordinator is silent."""

        is_lost, complaint = True, "silent"

        def __init__(self, real: Any) -> None:
            self.real = real

        def __getattr__(self, name: str) -> Any:
            return getattr(self.real, name)

    fake = FakeBroker()
    fake.topics = {"t": 2}
    fake.records = [consumed(b"%d" % number, offset=number) for number in range(3)]
    with fake.connect() as connection:
        reader = connection.messages("t", group="g")
        consumption, consumer = reader._consumption, fake.consumers[0]
        first = reader.receive(0)
        assert first is not None
        consumption.block(first._ownership, 0, "why")
        for change in ("revoke", "assign"):
            consumer.moved(change, 0, topic="t")
        again = reader.receive(0)
        assert again is not None
        assert again.offset == 0
        coordinator = Silent(consumption._liveness)
        consumption._liveness = coordinator  # type: ignore[assignment]
        reader.receive(0)
        assert ("t", 0) in consumer.paused
        coordinator.is_lost = False
        reader.receive(0)
        assert consumer.paused == set()
