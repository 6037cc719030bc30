"""No unit that is given up is lost or doubled, however acknowledgements, crashes, rebalances and refusals are interleaved (W-86, W-87, W-117).

A model of each partition says what must hold at every moment: whatever the committed position has passed was either acknowledged by its consumer
or lies in `D.errors`, once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from confluent_kafka import KafkaError
from fake_handles import FakeBroker, FakeConsumer, consumed, failure
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_client_readers import a_unit, record_of

import uow
from tests.fake_record import FakeRecord
from uow import errors

UNITS, ERRORS = "megazon.units", "megazon.errors"
PAST = 1_000
FRESH, OLD, POISON, PLAIN = "fresh", "old", "poison", "plain"
STALE = KafkaError.ILLEGAL_GENERATION

Step = tuple[str, int]


class MovingReaders:
    """A destination with what was written, and one consumer of it at a time."""

    def __init__(self, layout: Sequence[Sequence[str]], unreadable: str = "redirect") -> None:
        self.moved = (OLD, POISON) if unreadable == "redirect" else (OLD,)
        self.unreadable = unreadable
        self.fake = FakeBroker()
        self.fake.topics = {UNITS: len(layout), ERRORS: len(layout)}
        self.layout = layout
        for partition, kinds in enumerate(layout):
            self.fake.records += [self._record(kind, partition, offset) for offset, kind in enumerate(kinds)]
        self.acknowledged = [0] * len(layout)
        self.begin()

    @staticmethod
    def _record(kind: str, partition: int, offset: int) -> FakeRecord:
        name = f"{partition}/{offset}"
        unit = replace(a_unit(name), expires_at=PAST if kind == OLD else None)
        if kind == PLAIN:
            return consumed(b"plain", key=name.encode(), topic=UNITS, partition=partition, offset=offset)
        return record_of(unit, offset, b"poison" if kind == POISON else None, partition)

    def begin(self) -> None:
        self.connection = self.fake.connect()
        self.reader = self.connection.units(
            "megazon", group="g", expiration_policy="redirect", redelivery_limit=-1, unreadable=self.unreadable
        )
        self.consumer: FakeConsumer = self.fake.consumers[-1]
        self.held: list[uow.ReceivedUnit] = []

    def crash(self) -> None:
        """Nothing is settled, nothing is committed; what was open in a transaction is aborted."""
        self.consumer.closed = self.fake.kill(self.connection)
        self.begin()

    def receive(self) -> None:
        try:
            unit = self.reader.receive(0)
        except errors.UowError:
            return
        if unit is not None:
            assert unit.id == f"{unit.partition}/{unit.offset}"
            assert self.layout[unit.partition][unit.offset] == FRESH
            self.held.append(unit)

    def acknowledge(self, number: int) -> None:
        if not self.held:
            return
        unit = self.held[number % len(self.held)]
        try:
            unit.acknowledge()
        except errors.LostServerError:
            self.held.remove(unit)
        except errors.UowError:
            return
        else:
            self.acknowledged[unit.partition] = max(self.acknowledged[unit.partition], unit.offset + 1)

    def do(self, step: Step) -> None:
        verb, number = step
        partition = number % len(self.layout)
        match verb:
            case "receive":
                self.receive()
            case "acknowledge":
                self.acknowledge(number)
            case "crash":
                self.crash()
            case "close":
                self.connection.close()
                self.begin()
            case "roll back":
                self.reader.roll_back()
            case "revoke" | "lose":
                self.consumer.moved("revoke" if verb == "revoke" else "lost", partition, topic=UNITS)
                self.consumer.moved("assign", partition, topic=UNITS)
            case "stale":
                self.fake.script.setdefault("send_offsets", []).append(failure(STALE))
                self.fake.script.setdefault("commit", []).append(failure(STALE))
            case "abort":
                self.fake.script.setdefault("commit_transaction", []).append(failure(-1, abort=True))

    @property
    def in_errors(self) -> Counter[bytes | None]:
        return Counter(sent.key for sent in self.fake.visible if sent.topic() == ERRORS)

    def check(self) -> None:
        found = self.in_errors
        assert not [key for key, times in found.items() if times > 1]
        for partition, kinds in enumerate(self.layout):
            position = self.fake.committed.get((UNITS, partition), (0, ""))[0]
            for offset, kind in enumerate(kinds[:position]):
                key = f"{partition}/{offset}".encode()
                if kind in self.moved:
                    assert found[key] == 1, f"{key!r} was passed by the position {position}, and is not in {ERRORS}"
                elif kind == FRESH:
                    assert offset < self.acknowledged[partition], f"{key!r} was passed and never acknowledged"
            for offset in range(position, len(kinds)):
                assert not found[f"{partition}/{offset}".encode()], "in two places: moved, and still to come"

    def finish(self) -> None:
        """All is read and acknowledged."""
        self.fake.script.clear()
        self.crash()
        for _ in range(3 * sum(map(len, self.layout)) + 5):
            self.receive()
            self.acknowledge(-1)
        self.check()
        expected = {
            f"{partition}/{offset}".encode()
            for partition, kinds in enumerate(self.layout)
            for offset, kind in enumerate(kinds)
            if kind in self.moved
        }
        assert set(self.in_errors) == expected
        self.connection.close()


KINDS = st.sampled_from([FRESH, FRESH, OLD, POISON, PLAIN])
VERBS = ["receive"] * 6 + ["acknowledge"] * 4 + ["crash", "close", "roll back", "revoke", "lose", "stale", "abort"]
STEPS = st.lists(st.tuples(st.sampled_from(VERBS), st.integers(0, 7)), max_size=40)


@given(st.lists(st.lists(KINDS, max_size=9), min_size=1, max_size=3), STEPS, st.sampled_from(["redirect", "log"]))
@settings(max_examples=400, suppress_health_check=list(HealthCheck))
def test_nothing_that_is_given_up_is_lost_or_doubled_in_any_interleaving_w86_w87_w117(
    layout: list[list[str]], steps: list[Step], unreadable: str
) -> None:
    world = MovingReaders(layout, unreadable)
    for step in steps:
        world.do(step)
        world.check()
    world.finish()


def played(layout: Sequence[Sequence[str]], *verbs: Any) -> MovingReaders:
    world = MovingReaders(layout)
    for verb in verbs:
        world.do((verb, 0) if isinstance(verb, str) else verb)
        world.check()
    return world


TWO_HELD = ["receive"] * 3
"""One record each: fresh, old, fresh."""


def test_an_acknowledgement_deferred_by_a_rebalance_keeps_what_it_takes_along_w86() -> None:
    """The broker refuses the transaction; the partition leaves before it takes one."""
    world = played([[FRESH, OLD, FRESH]], *TWO_HELD, "stale", ("acknowledge", 1))
    assert not world.in_errors
    world.do(("revoke", 0))
    world.receive()
    world.check()
    assert world.in_errors == {b"0/1": 1}
    assert world.fake.committed[UNITS, 0][0] == 3
    world.connection.close()


def test_a_partition_that_leaves_before_the_broker_takes_anything_comes_again_whole_w86() -> None:
    world = played([[FRESH, OLD, FRESH]], *TWO_HELD)
    world.fake.script["send_offsets"] = [failure(STALE), failure(STALE)]
    world.do(("acknowledge", 1))
    world.do(("close", 0))
    world.check()
    assert not world.in_errors
    world.finish()


def test_what_a_roll_back_keeps_of_a_deferred_acknowledgement_is_moved_w86() -> None:
    world = played([[FRESH, OLD, FRESH]], *TWO_HELD, "stale", ("acknowledge", 1), "roll back", "receive")
    assert world.in_errors == {b"0/1": 1}
    world.connection.close()


def test_a_commit_that_was_not_answered_is_asked_for_before_anything_is_repeated_w86() -> None:
    """All of it is visible: acknowledging says so, and nothing is written twice."""
    world = played([[FRESH, OLD, FRESH]], *TWO_HELD)
    world.fake.lost_answers = 1
    world.acknowledge(1)
    assert world.acknowledged == [3]
    world.check()
    assert world.in_errors == {b"0/1": 1}
    world.connection.close()


def test_what_is_passed_over_moves_no_position_past_what_is_not_acknowledged() -> None:
    world = MovingReaders([[FRESH, POISON]], "log")
    for verb in ("receive", "receive", "receive", "close"):
        world.do((verb, 0))
        world.check()
    world.finish()
