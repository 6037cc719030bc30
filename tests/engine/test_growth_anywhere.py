"""Streams that are cut anywhere by a growth, with a tool that dies at any step, give what they give without one (W-82, W-107, B-38)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final

import pytest

from tests.core.rule_script import Table, r, row
from tests.core.script import T0, TOPICS, Sent, Told, c, context_of, policy_of, told, unit_of
from tests.shell.memory_kafka import Faults, ManualClock, MemoryKafka, MemoryLogReader, MemorySink, MemorySource
from uow.ops.repartition import restored
from uow.processor.engine.batch import Task
from uow.processor.engine.driver import Driver
from uow.processor.engine.driver_ports import Ports, Wanted
from uow.processor.engine.moved_groups import move
from uow.processor.engine.ports import Output, Poll, RawRecord, Tp
from uow.processor.engine.read_to_end import ReadToEnd
from uow.processor.engine.replayable import ReplayLimits
from uow.processor.engine.restore import hints, restore
from uow.topics.partitioner import partition_for
from uow.topics.policies import DestinationPolicy, ExpirationPolicy, Fingerprints, LatePolicy

IDS: Final = [f"g{number}" for number in range(8)]
NAMES: Final = [f"name-{number}" for number in range(4)]
STEPS: Final = ["begin", "produced", "offsets", "commit", "committed"]
GIVEN_UP: Final = [ExpirationPolicy.DELIVER_PARTIAL, ExpirationPolicy.REDIRECT, ExpirationPolicy.DISCARD]
LIMIT_MS: Final = 20_000
AFTER_ALL_MS: Final = 3_600_000

Event = tuple[int, Sent | Told, int | None]
"""Append time, the component or command, and a wrong partition to which it is sent, if it is."""


class Died(BaseException):
    """A process is killed."""


class ByTime(MemorySource):
    """Hands records out in the order of their append times. Brokers promise no order between topics: with a backlog in both a component may overtake
    a command, with a growth and without."""

    def read(self, limit: int, timeout: float) -> Poll | None:
        lying = [record for tp, at in self.position.items() for record in self.kafka.visible(tp, at)]
        records: dict[Tp, list[RawRecord]] = {}
        for record in sorted(lying, key=lambda each: each.timestamp()[1])[:limit]:
            tp = Tp(record.topic(), record.partition())
            if tp in self.paused:
                break
            records.setdefault(tp, []).append(record)
            self.position[tp] = record.offset() + 1
        return Poll(records, self.token()) if records else None


class Finish(ReadToEnd):
    """A worker after everything was sent: time passes, until no group is open."""

    def _tick(self) -> None:
        Driver._tick(self)
        self._clock.now += 1_000  # type: ignore[attr-defined]
        super()._tick()

    def _look(self, positions: Mapping[Tp, int]) -> None:
        if not any(self._partitions.tasks[tp].groups for tp in self._wanted):
            super()._look(positions)


class GrowingPlace:
    """A destination on brokers in memory; its workers, and the command, are drivers that read to the end."""

    def __init__(self, partitions: int, policy: DestinationPolicy, rnd: Random) -> None:
        self.kafka = MemoryKafka(ManualClock(T0), partitions)
        replay = rnd.choice([ReplayLimits(), ReplayLimits(5, 1 << 30, 1 << 30), ReplayLimits(1000, 1 << 30, 1 << 30)])
        rows = [row(name, complete_count=3, age_ms=LIMIT_MS) for name in NAMES]
        self.context = context_of(policy, partitions, replay=replay, rules=Table(*rows))
        self.polled = rnd.choice([1, 3, 100])

    @property
    def partitions(self) -> int:
        return self.context.partitions

    def add_partitions(self, partitions: int) -> None:
        """Topics grow; workers and command go on under the old count."""
        self.kafka.partitions = partitions
        self.kafka.brokers.settings = replace(self.kafka.brokers.settings, partitions=partitions)

    def send(self, events: Sequence[Event]) -> None:
        """By senders who know how many partitions there are, except for what goes to a wrong one."""
        for at, event, wrong in events:
            self.kafka.clock.now = max(self.kafka.clock.now, at)
            topic = TOPICS.components if isinstance(event, Sent) else TOPICS.commands
            for number in range(self.kafka.partitions if topic == TOPICS.commands else 0):
                # the time of each partition moves on: a command finds closed what is past its limit, wherever it lies
                self.kafka.append(TOPICS.components, None, b"plain", [], number, at - 1)
            partition = partition_for(event.key or b"", self.kafka.partitions) if wrong is None else wrong
            self.kafka.append(topic, event.key, event.value, event.headers, partition, at)

    def read(self, faults: Faults | None = None, kind: type[ReadToEnd] = ReadToEnd) -> ReadToEnd:
        """One life of a process. Raises what ends it."""
        context, reader = self.context, MemoryLogReader(self.kafka)

        def restored(tps: Sequence[Tp], wanted: Wanted) -> Mapping[Tp, Task]:
            return restore(reader, {TOPICS.components: context}, tps, wanted)

        sink = MemorySink(self.kafka, "A-tool", faults)
        ports = Ports(ByTime(self.kafka, "tool"), sink, self.kafka.clock, restored)
        wanted = [Tp(TOPICS.components, number) for number in range(context.partitions)]
        driver = kind(ports, {TOPICS.components: TOPICS.commands}, wanted, self.polled, 60_000)
        driver.run()
        if driver.error is not None:
            raise driver.error
        return driver

    def move(self, partitions: int, faults: Faults | None = None) -> None:
        """The last step of the command."""
        sink, reader = MemorySink(self.kafka, "A-tool", faults), MemoryLogReader(self.kafka)
        sink.open()
        member = self.kafka.join("tool", [TOPICS.components])
        try:
            tasks, rows = restored(reader, self.context)  # type: ignore[arg-type]
            plans, _ = move(replace(self.context, partitions=partitions), tasks, rows, {})
            sink.write(plans, (member.id, member.generation))
        finally:
            self.kafka.leave(member)

    def has_moved(self, partitions: int) -> bool:
        """What the next run of the command finds."""
        tps = [Tp(TOPICS.components, number) for number in range(partitions)]
        found = {hints(each).partitions for each in MemoryLogReader(self.kafka).committed(tps).values()} - {None}
        assert found == {partitions} or partitions not in found
        return found == {partitions}

    def grow(self, partitions: int, came_between: Sequence[Event], rnd: Random) -> None:
        """The whole command, killed now and then, and run again."""
        between = [*came_between]
        while not self.has_moved(partitions):
            has_grown = self.kafka.partitions == partitions
            faults = Faults()
            if rnd.random() < 0.7:
                faults.plan(rnd.choice(STEPS), Died())
            try:
                if not has_grown:
                    assert self.read(faults if rnd.random() < 0.5 else None).why_not == ""
                    some = rnd.randrange(len(between) + 1)
                    self.send(between[:some])  # during the rehearsal
                    between = between[some:]
                    assert self.read(faults if rnd.random() < 0.5 else None).why_not == ""
                    self.add_partitions(partitions)
                some = rnd.randrange(len(between) + 1)
                self.send(between[:some])  # by senders who know the new count
                between = between[some:]
                self.move(partitions, faults)
            except Died:
                continue
        self.send(between)
        self.context = replace(self.context, partitions=partitions)

    def finish(self) -> None:
        """Workers read what there is, and time passes."""
        assert self.read().why_not == ""
        self.kafka.clock.now += AFTER_ALL_MS
        assert self.read(kind=Finish).why_not == ""

    def told(self) -> Counter[Any]:
        """All that came out, without the places where things lay."""
        found: Counter[Any] = Counter()
        for topic in (TOPICS.units, TOPICS.rejected, TOPICS.errors):
            for record in self.kafka.topic(topic):
                said = dict(record.headers() or [])
                if record.value() == b"plain":
                    continue
                more: object = record.value()
                if topic == TOPICS.units:
                    unit = unit_of(Output(topic, 0, record.key(), record.value(), record.headers() or []))
                    more = tuple((each.seq, each.value, tuple(each.headers)) for each in unit.components)
                names = ("uow-id", "uow-generation", "uow-outcome", "uow-reason", "uow-missing", "uow-error-class")
                found[topic, record.key(), tuple(said.get(name) for name in names), more] += 1
        return found


def drawn(rnd: Random, partitions: int, misrouted: float = 0.0) -> list[Event]:
    """Components, some twice, and commands, over up to eight times the limit of a group; a share of the components is sent to a wrong partition."""
    events: list[Event] = []
    for number in range(rnd.randint(40, 160)):
        at = T0 + number * rnd.choice([1, 300, 1_000])
        at = max(at, events[-1][0] + 2) if events else at
        name = rnd.choice(IDS)
        draw = rnd.random()
        wrong = rnd.randrange(partitions) if rnd.random() < misrouted else None
        if draw < 0.12:
            verb, more = rnd.choice(
                [("cancel", {}), ("waive", {"seq": "2"}), ("release", {}), ("extend", {"until": 60})]
            )
            events.append((at, told(verb, name, command_id=f"c{number}", **more), None))  # type: ignore[arg-type]
            events.append((at + 1, c(4, False, name, f"{name}/4"), None))  # a later one decides that it waits no longer
        elif draw < 0.4:
            events.append((at, r(rnd.choice(NAMES), value=f"by rule {number}"), wrong))
        else:
            seq = rnd.randint(1, 4)
            more = {"component_id": f"{name}-{seq}"} if rnd.random() < 0.5 else {}
            events.append((at, c(seq, seq == 3, name, f"{name}/{seq}", **more), wrong))  # type: ignore[arg-type]
    return events


def played(seed: int) -> tuple[Counter[Any], Counter[Any]]:
    """What came out without a growth, and with one or two."""
    rnd = Random(seed)
    before, after, last = rnd.choice([(1, 2, 3), (2, 3, 7), (2, 5, 5), (4, 8, 8), (3, 4, 4)])
    late, kept = rnd.choice([*LatePolicy]), rnd.choice([*Fingerprints])
    given_up = ExpirationPolicy.DELIVER_PARTIAL if late is LatePolicy.AMEND else rnd.choice(GIVEN_UP)
    policy = policy_of(
        incomplete_expiration_ms=LIMIT_MS, late_policy=late, fingerprints=kept, expiration_policy=given_up
    )
    events = drawn(rnd, before)
    steady, grown = GrowingPlace(before, policy, Random(seed)), GrowingPlace(before, policy, Random(seed))
    cuts = sorted(rnd.randrange(len(events) + 1) for _ in range(4))
    steady.send(events)
    steady.finish()
    grown.send(events[: cuts[0]])
    grown.read()
    grown.send(events[cuts[0] : cuts[1]])
    grown.grow(after, events[cuts[1] : cuts[2]], rnd)
    grown.send(events[cuts[2] : cuts[3]])
    if last > after:
        grown.grow(last, [], rnd)
    grown.send(events[cuts[3] :])
    grown.finish()
    return steady.told(), grown.told()


def test_components_that_were_misrouted_are_neither_lost_nor_doubled_nor_refused_for_the_growth_w107_w110() -> None:
    """One that is sent on while everything is read must not lie unread when groups move: sent on twice it would be refused."""
    for seed in range(60):
        rnd = Random(seed)
        events = [each for each in drawn(rnd, 2, misrouted=0.4) if isinstance(each[1], Sent)]
        partial = ExpirationPolicy.DELIVER_PARTIAL
        place = GrowingPlace(2, policy_of(incomplete_expiration_ms=LIMIT_MS, expiration_policy=partial), rnd)
        some, others = sorted(rnd.randrange(len(events) + 1) for _ in range(2))
        place.send(events[:some])
        place.grow(5, events[some:others], rnd)
        place.send(events[others:])
        place.finish()
        found: Counter[Any] = Counter()
        for (topic, key, said, more), count in place.told().items():
            assert said[-1] != b"MisroutedComponentError"
            values = [value for _, value, _ in more] if topic == TOPICS.units else [more]
            found.update({(key, value): count for value in values})
        assert (seed, found) == (seed, Counter((event.key, event.value) for _, event, _ in events))


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_growth_anywhere_changes_nothing_for_what_came_in_time_w82_w107(first: int) -> None:
    for seed in range(first, first + 20):
        steady, grown = played(seed)
        assert (seed, grown - steady, steady - grown) == (seed, Counter(), Counter())
        assert steady
