"""When a worker takes its group's coordinator for lost (ER-18)."""

from __future__ import annotations

import math
from typing import Any

from uow.processor.kafka.coordinator_liveness import CoordinatorLiveness


class Wire:
    """A clock, and what librdkafka counts; its own clock began elsewhere."""

    def __init__(self) -> None:
        self.now = 100.0
        self.rx, self.heard, self.sent = 0, 100.0, {"Heartbeat": 0, "ApiVersion": 0}
        self.contact = CoordinatorLiveness(6_000, lambda: self.now)

    def answered(self) -> None:
        self.rx, self.heard = self.rx + 1, self.now

    def made(self) -> dict[str, Any]:
        idle = -1 if self.heard == math.inf else int((self.now - self.heard) * 1e6)
        coordinator = {"rx": self.rx, "rxidle": idle, "req": self.sent}
        return {"ts": int((self.now + 5000) * 1e6), "brokers": {"GroupCoordinator": coordinator}}

    def told(self) -> None:
        self.contact.on_statistics(self.made())


def test_before_the_first_assignment_nothing_can_be_lost() -> None:
    wire = Wire()
    wire.answered()
    wire.told()
    wire.now += 1000
    assert not wire.contact.is_lost
    assert wire.contact.complaint == "not a member of the consumer group yet"


def test_silence_for_the_session_less_a_margin_means_lost_and_an_answer_means_found() -> None:
    wire = Wire()
    wire.contact.renew()
    wire.now += 4.7
    wire.told()
    assert not wire.contact.is_lost
    wire.now += 0.2
    wire.told()
    assert wire.contact.is_lost
    wire.answered()
    wire.told()
    assert not wire.contact.is_lost


def test_answers_to_the_handshakes_of_new_connections_are_no_contact() -> None:
    wire = Wire()
    wire.contact.renew()
    for _ in range(10):
        wire.now += 1
        wire.sent["ApiVersion"] += 1
        wire.answered()
        wire.told()
    assert wire.contact.is_lost


def test_statistics_that_waited_for_us_count_from_when_they_were_made() -> None:
    wire = Wire()
    wire.contact.renew()
    wire.told()
    wire.answered()
    waited = wire.made()
    wire.now += 4.9
    wire.contact.on_statistics(waited)
    assert wire.contact.is_lost
    assert round(wire.contact.silent_s, 3) == 4.9


def test_statistics_without_a_coordinator_say_nothing() -> None:
    wire = Wire()
    wire.contact.renew()
    wire.contact.on_statistics({"ts": 1, "brokers": {}})
    assert wire.contact.silent_s == 0
