"""The simulator's brokers for workers with real threads: the Faust shell, and drivers that tests run by hand.

Belongs here: one `MemoryKafka` that any number of workers share, the engine's ports on it, and faults on demand. Does not belong here: what
brokers do with requests (`uow.processor.sim.simulated_kafka`).

What takes its time in the simulator happens at once here: the markers of a transaction arrive with its end.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import confluent_kafka as ck

from uow.processor.engine.external_values import whole_outputs
from uow.processor.engine.ports import (
    Blocked,
    Committed,
    Doubt,
    EndQuestion,
    Headers,
    Meanwhile,
    Plan,
    Poll,
    RawRecord,
    Released,
    StaleGeneration,
    Stretch,
    Tp,
)
from uow.processor.sim.simulated_kafka import (
    EPOCH_MS,
    Broker,
    BrokerRefusal,
    BrokerSettings,
    Log,
    Member,
    Phase,
    State,
    StoredRecord,
)
from uow.schemas.error_classes import FencedError
from uow.schemas.records import ComponentRecord
from uow.topics.partitioner import partition_for

Assigned = Callable[[list[Tp]], None]


@dataclass(slots=True)
class ManualClock:
    """A wall clock that tests move by hand, and set. Epoch milliseconds.

    Attributes:
        now: The true time.
        shift: Milliseconds by which the wall clock was put forward.
        lead: Milliseconds by which an append time may be ahead of it.
    """

    now: int = 1_000_000
    shift: int = 0
    lead: int = 60_000

    def now_ms(self) -> int:
        return self.now + self.shift

    def monotonic_ms(self) -> int:
        return self.now

    def latest_ms(self) -> int:
        return self.now_ms() + self.lead


class BrokerTime:
    """The brokers' time, by a clock that tests move; nobody reads a script."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock

    @property
    def now(self) -> float:
        return float(self._clock.now)

    def say(self, text: str, who: str | None = None) -> None: ...


@dataclass(eq=False, slots=True)
class GroupClient:
    """A process of the group, as the brokers know it."""

    name: str
    silent_since: float | None = None


class MemoryKafka:
    """The brokers. Thread-safe; give the same object to several workers, or to the next one after a crash.

    Args:
        clock: Its true time is the append time.
        partitions: Number of partitions of every topic.
    """

    def __init__(self, clock: ManualClock | None = None, partitions: int = 2) -> None:
        self.clock = clock or ManualClock()
        self.partitions = partitions
        self.lock = threading.Condition()
        settings = BrokerSettings(partitions, rebalance_ms=inf, transaction_ms=inf)
        self.brokers = Broker(BrokerTime(self.clock), settings)
        self.brokers.skew_ms = -EPOCH_MS  # append times are the clock's own
        self.committed, self.members = self.brokers.committed, self.brokers.members

    # -- logs

    def append(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None = None,
        partition: int = -1,
        at_ms: int | None = None,
    ) -> StoredRecord:
        """Appends one committed record, at the clock's time by default; partition -1: by murmur2 of the key."""
        with self.lock:
            at = self.clock.now if at_ms is None else at_ms
            record = self._log(self.place(topic, partition, key)).append((key, value, headers or []), at)
            self.lock.notify_all()
            return record

    def place(self, topic: str, partition: int, key: bytes | None) -> Tp:
        """The partition of a record; -1: by murmur2 of the key."""
        return Tp(topic, partition if partition >= 0 else partition_for(key or b"", self.partitions))

    def _log(self, tp: Tp) -> Log:
        return self.brokers.log(tp)

    def stable_end(self, tp: Tp) -> int:
        """Last stable offset: the first one of an open transaction, else the end."""
        return self._log(tp).stable_end

    def bounds(self, tp: Tp) -> tuple[int, int]:
        """The start and end offset of a log."""
        return self._log(tp).start, self._log(tp).end

    def visible(self, tp: Tp, start: int = 0, end: int | None = None) -> list[StoredRecord]:
        """The records in [start, end) for a `read_committed` reader."""
        log = self._log(tp)
        return log.visible(start, log.end if end is None else end)

    def topic(self, name: str) -> list[StoredRecord]:
        """The records of a topic for a `read_committed` reader, partition by partition."""
        with self.lock:
            return [record for partition in range(self.partitions) for record in self.visible(Tp(name, partition))]

    def compact(self, name: str) -> dict[tuple[int, bytes | None], bytes | None]:
        """The last visible value of each key of a topic, tombstones gone."""
        latest = {(record.partition(), record.key()): record.value() for record in self.topic(name)}
        return {key: value for key, value in latest.items() if value is not None}

    def cut(self, tp: Tp, start: int) -> None:
        """Retention takes what lies below `start`."""
        with self.lock:
            self._log(tp).cut(start)

    # -- transactions

    def epoch(self, transactional_id: str) -> int:
        """The epoch of its last producer; 0: there was none."""
        known = self.brokers.transactions.get(transactional_id)
        return 0 if known is None else known.epoch

    def init_transactions(self, transactional_id: str) -> int:
        """A new epoch; an orphan of the last one is aborted at once."""
        with self.lock:
            while (epoch := self.brokers.init_producer(transactional_id)) is None:
                self._deliver_markers()
            return epoch

    def check_epoch(self, transactional_id: str, epoch: int) -> None:
        """Raises `FencedError` when a newer producer has this id."""
        if self.epoch(transactional_id) != epoch:
            raise FencedError(f"transactional id {transactional_id!r} was taken over")

    def produce(self, transactional_id: str, tp: Tp, key: bytes | None, value: bytes | None, headers: Headers) -> None:
        """Appends inside the open transaction of that id; the first record opens one."""
        with self.lock:
            epoch = self.epoch(transactional_id) or self.init_transactions(transactional_id)
            self.brokers.add_partitions(transactional_id, epoch, [tp])
            known, sequence = self.brokers.sequences.get((transactional_id, tp), (epoch, 0))
            sequence = sequence if known == epoch else 0
            self.brokers.produce(transactional_id, epoch, sequence, tp, [(key, value, headers)])

    def take_offsets(self, transactional_id: str, token: tuple[int, int], offsets: dict[Tp, Committed]) -> None:
        """Positions become part of the open transaction.

        Raises:
            StaleGeneration: The token is not of this generation of the group.
        """
        with self.lock:
            epoch = self.epoch(transactional_id)
            self.brokers.add_partitions(transactional_id, epoch, [], offsets=True)
            try:
                self.brokers.commit_offsets(transactional_id, epoch, *token, offsets)
            except BrokerRefusal as refusal:
                if refusal.code not in (ck.KafkaError.UNKNOWN_MEMBER_ID, ck.KafkaError.ILLEGAL_GENERATION):
                    raise
                raise StaleGeneration(str(refusal)) from None

    def end(self, transactional_id: str, outcome: State) -> None:
        """Commits or aborts what is open; every touched partition gets a marker."""
        with self.lock:
            transaction = self.brokers.transactions[transactional_id]
            if transaction.phase is Phase.ONGOING:
                self.brokers.end(transactional_id, transaction.epoch, outcome)
                self._deliver_markers()

    def _deliver_markers(self) -> None:
        while self.brokers.markers:
            self.brokers.markers.pop(0)[1]()
        self.lock.notify_all()

    # -- the consumer group

    def join(self, name: str, topics: Sequence[str]) -> Member:
        """A new member."""
        with self.lock:
            member = self.brokers.join(GroupClient(name), topics)
            self.lock.notify_all()
            return member

    def leave(self, member: Member) -> None:
        """An orderly leave: its partitions are free at once."""
        with self.lock:
            self.brokers.leave(member)
            self.lock.notify_all()

    def expire(self, name: str) -> None:
        """The session of a silent member ends: its partitions are free, it learns of it in its next `control`."""
        with self.lock:
            for member in self.members.values():
                if isinstance(member.actor, GroupClient) and member.actor.name == name:
                    member.actor.silent_since = -inf
            self.brokers.expire_members()
            self.lock.notify_all()


class Faults:
    """Faults on demand, for one worker. `at[step]` is a list of exceptions, raised one per visit of that commit step."""

    def __init__(self) -> None:
        self.at: dict[str, list[BaseException]] = defaultdict(list)
        self.visited: list[str] = []

    def plan(self, step: str, *errors: BaseException) -> None:
        """At the next visits of `step`, raise these."""
        self.at[step] += errors

    def step(self, name: str) -> None:
        """Called by the sink at each commit step."""
        self.visited.append(name)
        if self.at[name]:
            raise self.at[name].pop(0)


class MemorySource:
    """Port `Source`. A member's generation is what it learnt in its last `control`."""

    def __init__(self, kafka: MemoryKafka, name: str) -> None:
        self.kafka, self.name = kafka, name
        self.paused: set[Tp] = set()
        self.position: dict[Tp, int] = {}
        self.closed = False
        self._assigned: set[Tp] = set()
        self._generation = 0
        self._announced = False
        self._me: Member | None = None

    def open(self, topics: Sequence[str], on_assign: Assigned, on_revoke: Released, on_lost: Released) -> None:
        self._topics, self._on_assign, self._on_revoke, self._on_lost = tuple(topics), on_assign, on_revoke, on_lost
        self._me = self.kafka.join(self.name, topics)

    @property
    def _member(self) -> Member:
        assert self._me is not None, "not opened"
        return self._me

    def control(self, timeout: float) -> None:
        while self._follow():
            pass
        if not self._announced:
            self._announced = True
            self._on_assign([])
        if timeout:
            with self.kafka.lock:
                self.kafka.lock.wait(timeout)

    def _follow(self) -> bool:
        """One step after the group, callbacks outside the lock; False: there is nothing new."""
        me, brokers = self._member, self.kafka.brokers
        with self.kafka.lock:
            if me.id not in brokers.members:
                gone, new = sorted(self._assigned), None
            elif me.generation != self._generation:
                self._generation = me.generation
                gone, new = sorted(self._assigned - me.wanted), sorted(me.wanted - self._assigned)
            elif brokers.preparing_since is not None and not me.joined:
                brokers.rejoin(me)
                self.kafka.lock.notify_all()
                return True
            else:
                return False
        if new is None:
            self._lost(gone)
        else:
            self._moved(gone, new)
        return True

    def _lost(self, gone: list[Tp]) -> None:
        self._drop([*self.position, *gone])
        if gone:
            self._on_lost(gone)
        self._generation = 0
        self._me = self.kafka.join(self.name, self._topics)

    def _moved(self, gone: list[Tp], new: list[Tp]) -> None:
        self._drop(self._on_revoke(gone) if gone else [])
        self._assigned = (self._assigned - {*gone}) | {*new}
        with self.kafka.lock:
            self._member.owned.difference_update(gone)
            if gone and self._member.id in self.kafka.members:
                self.kafka.brokers.rebalance()
            self.kafka.lock.notify_all()
        if new:
            self._announced = True
            self._on_assign(new)

    def _drop(self, tps: Iterable[Tp]) -> None:
        for tp in tps:
            self.position.pop(tp, None)
            self.paused.discard(tp)
            self._assigned.discard(tp)

    def begin(self, positions: Mapping[Tp, int]) -> None:
        self.position.update(positions)

    def read(self, limit: int, timeout: float) -> Poll | None:
        with self.kafka.lock:
            if not self._pending():
                self.kafka.lock.wait(timeout if not self._is_moving() else 0.0)
            records: dict[Tp, list[RawRecord]] = {}
            trouble: dict[Tp, Blocked] = {}
            for tp in self._pending():
                at, (start, _) = self.position[tp], self.kafka.bounds(tp)
                if at < start:
                    place = f"{tp.topic}/{tp.partition}"
                    trouble[tp] = Blocked(f"{place}: position {at} is below the log's start {start}")
                    self.paused.add(tp)
                    continue
                if not limit:
                    break
                rows = self.kafka.visible(tp, at)[:limit]
                limit -= len(rows)
                self.position[tp] = rows[-1].offset() + 1 if rows else self.kafka.stable_end(tp)
                if rows:
                    records[tp] = list(rows)
            return Poll(records, self.token(), trouble) if records or trouble else None

    def _pending(self) -> list[Tp]:
        return [tp for tp, at in self.position.items() if tp not in self.paused and at < self.kafka.stable_end(tp)]

    def _is_moving(self) -> bool:
        me, brokers = self._member, self.kafka.brokers
        is_asked = brokers.preparing_since is not None and not me.joined
        return me.id not in brokers.members or me.generation != self._generation or is_asked

    def token(self) -> Any:
        return self._member.id, self._generation

    def end(self, tp: Tp) -> EndQuestion:
        with self.kafka.lock:
            asked_at, end = self.kafka.clock.now_ms(), self.kafka.bounds(tp)[1]
        return EndQuestion(asked_at, lambda: end)

    def has_read(self, tp: Tp, position: int, end: int) -> bool:
        with self.kafka.lock:
            return self.kafka.stable_end(tp) >= end and not self.kafka.visible(tp, position, end)

    def reached(self, tp: Tp, position: int) -> int:
        with self.kafka.lock:
            at = self.position.get(tp, position)
            return at if at > position and not self.kafka.visible(tp, position, at) else position

    def seek(self, positions: Mapping[Tp, int]) -> None:
        with self.kafka.lock:
            self.position.update({tp: at for tp, at in positions.items() if tp in self.position})

    def pause(self, tps: Sequence[Tp]) -> None:
        self.paused.update(tps)

    def resume(self, tps: Sequence[Tp]) -> None:
        self.paused.difference_update(tps)

    def close(self) -> None:
        if self._me is not None and not self.closed:
            self._on_revoke(sorted(self._assigned))
            self.kafka.leave(self._me)
        self.closed = True


class MemorySink:
    """Port `Sink`. A crash is an exception of `faults` that is no `Doubt`: the transaction stays open, as an orphan."""

    def __init__(self, kafka: MemoryKafka, transactional_id: str, faults: Faults | None = None) -> None:
        self.kafka, self.transactional_id = kafka, transactional_id
        self.faults = faults or Faults()
        self._epoch = 0

    def open(self, meanwhile: Meanwhile = lambda: None) -> None:
        self._epoch = self.kafka.init_transactions(self.transactional_id)

    def write(self, plans: Sequence[Plan], token: Any) -> None:
        kafka, me, step = self.kafka, self.transactional_id, self.faults.step
        try:
            kafka.check_epoch(me, self._epoch)
            step("begin")
            with kafka.lock:
                self._produce(plans)
            step("produced")
            offsets = {tp: Committed(offset, text) for plan in plans for tp, offset, text in plan.positions()}
            kafka.take_offsets(me, token, offsets)
            step("offsets")
            step("commit")
            with kafka.lock:
                kafka.check_epoch(me, self._epoch)
                kafka.end(me, State.COMMITTED)
        except Doubt:
            kafka.end(me, State.ABORTED)
            raise
        step("committed")

    def _produce(self, plans: Sequence[Plan]) -> None:
        kafka, me = self.kafka, self.transactional_id
        for plan in plans:
            partition = plan.tp.partition
            for row, content in plan.changelog:
                kafka.produce(me, Tp(plan.changelog_topic, partition), row, content, [])
            if plan.ledger is not None:
                kafka.produce(me, Tp(plan.ledger_topic, partition), None, plan.ledger, [])
            for topic, where, key, value, headers in whole_outputs(plan, MemoryContents(kafka)):
                kafka.produce(me, kafka.place(topic, where, key), key, value, headers)

    def replace(self, meanwhile: Meanwhile = lambda: None) -> None:
        self.kafka.check_epoch(self.transactional_id, self._epoch)
        self.open()

    def close(self) -> None: ...


class MemoryContents:
    """Port `Contents`."""

    def __init__(self, kafka: MemoryKafka) -> None:
        self.kafka = kafka

    def read(self, components: Sequence[ComponentRecord]) -> Iterator[RawRecord]:
        with self.kafka.lock:
            for source in [each.source for each in components]:
                yield from self.kafka.visible(Tp(source.topic, source.partition), source.offset, source.offset + 1)

    def hidden(self, tp: Tp, offsets: Sequence[int]) -> Collection[int]:
        return ()  # in memory all headers are shown

    def close(self) -> None: ...


class MemoryLogReader:
    """Port `LogReader`."""

    def __init__(self, kafka: MemoryKafka) -> None:
        self.kafka = kafka

    def committed(self, tps: Sequence[Tp], isolation: str = "read_committed") -> Mapping[Tp, Committed]:
        with self.kafka.lock:
            return {tp: self.kafka.committed.get(tp, Committed(None, "")) for tp in tps}

    def bounds(self, tps: Sequence[Tp]) -> Mapping[Tp, tuple[int, int]]:
        with self.kafka.lock:
            return {tp: self.kafka.bounds(tp) for tp in tps}

    def stable_bounds(self, tps: Sequence[Tp]) -> Mapping[Tp, tuple[int, int]]:
        with self.kafka.lock:
            return {tp: (self.kafka.bounds(tp)[0], self.kafka.stable_end(tp)) for tp in tps}

    def read(self, ranges: Mapping[Tp, tuple[int, int]]) -> Iterator[Stretch]:
        for tp, (start, end) in ranges.items():
            with self.kafka.lock:
                while self.kafka.stable_end(tp) < end:
                    if not self.kafka.lock.wait(5.0):
                        raise TimeoutError(f"an open transaction before {tp} {end} did not end")
                rows = self.kafka.visible(tp, start, end)
            if rows:
                yield tp, rows
