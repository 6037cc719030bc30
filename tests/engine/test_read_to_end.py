"""Reading to the end: what makes it stop, and what it says of partitions that are left (W-82, W-107)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.core.script import T0, TOPICS, c, context_of, policy_of, told
from tests.shell.memory_kafka import Faults, ManualClock, MemoryKafka, MemoryLogReader, MemorySink, MemorySource
from tests.shell.whole_worker import Poisonable
from uow.processor.engine.batch import Task
from uow.processor.engine.driver_ports import Ports, Wanted
from uow.processor.engine.ports import Doubt, Poll, Tp
from uow.processor.engine.read_to_end import ReadToEnd
from uow.processor.engine.restore import restore
from uow.processor.engine.set_aside import SetAsideLimit
from uow.topics.partitioner import partition_for
from uow.topics.policies import ExpirationPolicy


class Hasty(ManualClock):
    """Each look at the monotonic clock takes a second."""

    def monotonic_ms(self) -> int:
        self.now += 1_000
        return self.now


class Reading:
    """Two partitions, and what lies there."""

    def __init__(self) -> None:
        self.kafka = MemoryKafka(Hasty(T0))
        self.faults = Faults()
        self.context = context_of(policy_of(), 2)

    def send(self, seq: int, end: bool, id: str, value: str = "v", partition: int = -1) -> None:
        sent = c(seq, end, id, value)
        self.kafka.append(TOPICS.components, sent.key, sent.value, sent.headers, partition)

    def read(
        self, source: type[MemorySource] = MemorySource, patience_ms: int = 30_000, restore_ms: int = 0
    ) -> ReadToEnd:
        reader = MemoryLogReader(self.kafka)

        def restored(tps: Sequence[Tp], wanted: Wanted) -> Mapping[Tp, Task]:
            self.kafka.clock.now += restore_ms
            tasks = restore(reader, {TOPICS.components: self.context}, tps, wanted)
            return {tp: Poisonable(task) for tp, task in tasks.items()}

        sink = MemorySink(self.kafka, "A-tool", self.faults)
        ports = Ports(source(self.kafka, "tool"), sink, self.kafka.clock, restored)
        wanted = [Tp(TOPICS.components, number) for number in range(2)]
        limit = SetAsideLimit(10)
        driver = ReadToEnd(ports, {TOPICS.components: TOPICS.commands}, wanted, 5, patience_ms, limit)
        driver.run()
        return driver

    def position(self, topic: str, partition: int) -> int | None:
        return self.kafka.committed[Tp(topic, partition)].offset


def id_of(partition: int) -> str:
    return next(f"g{number}" for number in range(99) if partition_for(b"g%d" % number, 2) == partition)


def test_everything_is_read_and_decided_and_no_group_is_closed_by_the_wall_clock() -> None:
    place = Reading()
    place.context = context_of(policy_of(incomplete_expiration_ms=1_000), 2)
    for number in range(40):
        place.send(1, False, f"g{number}")
    order = told("cancel", "g3")
    place.kafka.append(TOPICS.commands, order.key, order.value, order.headers)
    place.kafka.clock.now += 500
    driver = place.read()
    assert (driver.error, driver.why_not) == (None, "")
    assert len(place.kafka.topic(TOPICS.errors)) == 1
    components = [place.position(TOPICS.components, number) or 0 for number in range(2)]
    assert components == [place.kafka.bounds(Tp(TOPICS.components, number))[1] for number in range(2)]
    assert place.kafka.clock.now > T0 + 2_000


def test_record_that_blocks_is_named_with_its_cause_and_nothing_beyond_it_is_read() -> None:
    place = Reading()
    here, there = id_of(0), id_of(1)
    place.send(1, True, here)
    place.send(1, False, here + "x", "block", partition=0)
    place.send(2, True, here + "x", partition=0)
    place.send(1, True, there)
    driver = place.read()
    assert driver.error is None
    assert "D.components/0: cannot go on at 1" in driver.why_not
    assert "D.components/1" not in driver.why_not
    assert (place.position(TOPICS.components, 0), place.position(TOPICS.components, 1)) == (1, 1)


def test_record_at_which_the_code_fails_is_set_aside_as_by_a_worker() -> None:
    place = Reading()
    for value in ("v", "boom", "w"):
        place.send(1, True, id_of(0) if value == "v" else f"{value}{id_of(0)}", value, partition=0)
    place.context = context_of(policy_of(), 2, partition_for=lambda group_id, partitions: 0)
    driver = place.read()
    assert (driver.error, driver.why_not) == (None, "")
    assert [record.value() for record in place.kafka.topic(TOPICS.rejected)] == [b"boom"]
    assert len(place.kafka.topic(TOPICS.units)) == 2


def test_open_transaction_is_waited_for_and_named() -> None:
    place = Reading()
    sent = c(1, True, id_of(1))
    place.send(1, True, id_of(0))
    place.kafka.produce("sender", Tp(TOPICS.components, 1), sent.key, sent.value, sent.headers)
    driver = place.read()
    assert driver.why_not == "D.components/1 is not read beyond offset 0: a transaction may be open there"
    assert len(place.kafka.topic(TOPICS.units)) == 1


def test_who_sends_to_wrong_partitions_without_end_is_not_waited_for() -> None:
    """A component that is sent on would lie unread when it stops."""
    place = Reading()
    elsewhere = (f"g{number}" for number in range(100_000) if partition_for(b"g%d" % number, 2) == 1)

    class Misrouting(MemorySource):
        def read(self, limit: int, timeout: float) -> Poll | None:
            place.send(1, True, next(elsewhere), partition=0)
            return super().read(limit, timeout)

    driver = place.read(Misrouting)
    assert driver.why_not.startswith("components for other partitions keep coming")


def test_what_is_sent_on_between_two_partitions_is_read_as_well() -> None:
    place = Reading()
    for number in range(20):
        place.send(1, True, f"g{number}", partition=number % 2)
    driver = place.read()
    assert driver.why_not == ""
    assert len(place.kafka.topic(TOPICS.units)) == 20
    assert any(("uow-rerouted", b"1") in (record.headers() or []) for record in place.kafka.topic(TOPICS.components))


@pytest.mark.parametrize("step", ["begin", "produced", "offsets", "commit", "committed"])
def test_doubt_at_any_step_is_a_retry(step: str) -> None:
    place = Reading()
    for number in range(20):
        place.send(1, True, f"g{number}", partition=number % 2)
    place.faults.plan(step, Doubt("the connection broke"), Doubt("and again"))
    driver = place.read()
    assert (driver.error, driver.why_not) == (None, "")
    assert len(place.kafka.topic(TOPICS.units)) == 20


def test_the_time_of_a_restore_is_no_stall() -> None:
    place = Reading()
    for number in range(20):
        place.send(1, True, f"g{number}")
    place.faults.plan("commit", Doubt("the connection broke"), Doubt("and again"))
    driver = place.read(restore_ms=100_000)
    assert (driver.error, driver.why_not) == (None, "")
    assert len(place.kafka.topic(TOPICS.units)) == 20


class Live(MemorySource):
    """Senders go on, to the partition that can be read."""

    def read(self, limit: int, timeout: float) -> Poll | None:
        sent = c(1, True, f"live-{self.kafka.clock.now}")
        self.kafka.append(TOPICS.components, sent.key, sent.value, sent.headers, 1)
        return super().read(limit, timeout)


@pytest.mark.parametrize("stuck", ["a record that blocks", "an open transaction"])
def test_senders_that_go_on_elsewhere_are_no_progress(stuck: str) -> None:
    place = Reading()
    place.context = context_of(policy_of(), 2, partition_for=lambda group_id, partitions: group_id != b"stuck")
    sent = c(1, False, "stuck", "block")
    if stuck == "a record that blocks":
        place.kafka.append(TOPICS.components, sent.key, sent.value, sent.headers, 0)
    else:
        place.kafka.produce("sender", Tp(TOPICS.components, 0), sent.key, sent.value, sent.headers)
    assert "D.components/0" in place.read(Live).why_not


def test_a_command_that_closes_many_groups_is_progress_though_no_position_moves() -> None:
    place = Reading()
    policy = policy_of(incomplete_expiration_ms=1_000, expiration_policy=ExpirationPolicy.REDIRECT)
    small = context_of(policy, 2, partition_for=lambda group_id, partitions: 0)
    place.context = replace(small, plan_bytes=20_000)
    for number in range(60):
        place.send(1, False, f"g{number}", partition=0)
    place.kafka.clock.now += 100_000
    place.send(1, False, "later", partition=0)
    driver = place.read(patience_ms=10_000)
    assert (driver.error, driver.why_not) == (None, "")
    assert len(place.kafka.topic(TOPICS.errors)) == 60


def test_doubt_without_end_is_told() -> None:
    place = Reading()
    place.send(1, True, "g1")
    place.faults.plan("begin", *[Doubt("the connection broke")] * 10_000)
    driver = place.read(patience_ms=3_000)
    assert "the connection broke" in driver.why_not
    assert place.kafka.topic(TOPICS.units) == []


def test_partition_that_another_member_owns_is_named() -> None:
    place = Reading()
    place.send(1, True, "g1")

    class Joined(MemorySource):
        has_joined: Any = None

        def read(self, limit: int, timeout: float) -> Poll | None:
            self.has_joined = self.has_joined or self.kafka.join("another", [TOPICS.components])
            return None

    driver = place.read(Joined)
    assert "is not owned, or not restored: another worker may have joined" in driver.why_not
