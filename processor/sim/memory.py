"""Kafka in memory, as far as the engine's ports can see it: logs with offsets, transactions, a consumer group, fencing, faults on demand.

Belongs here: one `MemoryKafka` that any number of workers share, and the ports on it. Does not belong here: scheduling and randomness
(the simulator), Faust, librdkafka.

Held as in Kafka: a transaction's end takes an offset of its own (a marker) in every partition it touched; a `read_committed` reader
sees nothing at or above the first open transaction; a partition is given to its next owner only when the last one let it go; a member's
generation is what it learnt in its last `control`; the broker checks membership, not ownership.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from processor.engine.ports import (
    Blocked,
    Committed,
    Doubt,
    EndOffset,
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
from processor.engine.stayed import whole_outputs
from schemas.errors import FencedError
from schemas.records import Component
from topics.partitioner import partition_for

LOG_APPEND_TIME = 2

Assigned = Callable[[list[Tp]], None]


class State(Enum):
    """What became of an entry's transaction."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"
    MARKER = "marker"


class MemoryRecord:
    """One entry of a log, with the methods of `RawRecord`."""

    __slots__ = (
        "_headers",
        "_key",
        "_offset",
        "_timestamp",
        "_tp",
        "_value",
        "owner",
        "state",
    )

    def __init__(
        self,
        tp: Tp,
        offset: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        at_ms: int,
    ) -> None:
        self._tp, self._offset, self._key, self._value, self._headers = (
            tp,
            offset,
            key,
            value,
            headers,
        )
        self._timestamp = (LOG_APPEND_TIME, at_ms)
        self.state = State.COMMITTED
        self.owner = ""

    def topic(self) -> str:
        return self._tp.topic

    def partition(self) -> int:
        return self._tp.partition

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> Headers | None:
        return list(self._headers) or None

    def timestamp(self) -> tuple[int, int]:
        return self._timestamp


@dataclass(slots=True)
class ManualClock:
    """A wall clock that tests move by hand, and set. Epoch milliseconds.

    Attributes:
        now: The true time.
        shift: How far somebody has put the wall clock forward.
        lead: How far ahead of it an append time may be.
    """

    now: int = 1_000_000
    shift: int = 0
    lead: int = 60_000

    def now_ms(self) -> int:
        return self.now + self.shift

    def gone_by_ms(self) -> int:
        return self.now

    def latest_ms(self) -> int:
        return self.now_ms() + self.lead


@dataclass(eq=False, slots=True)
class Member:
    """One member of the consumer group, as the group sees it.

    Attributes:
        owned: What it holds until it lets go.
        generation: What it learnt in its last `control`.
        lost: The group has thrown it out; it does not know yet.
    """

    name: str
    owned: set[Tp] = field(default_factory=set)
    generation: int = 0
    lost: bool = False


class MemoryKafka:
    """The brokers. Thread-safe; give the same object to several workers, or to the next one after a crash.

    Args:
        clock: Append times are the true time.
        partitions: Of every topic.
    """

    def __init__(self, clock: ManualClock | None = None, partitions: int = 2) -> None:
        self.clock = clock or ManualClock()
        self.partitions = partitions
        self.lock = threading.Condition()
        self.logs: dict[Tp, list[MemoryRecord]] = defaultdict(list)
        self.log_start: dict[Tp, int] = defaultdict(int)
        self.committed: dict[Tp, Committed] = {}
        self.epochs: dict[str, int] = defaultdict(int)
        self.members: dict[int, Member] = {}
        self.generation = 0
        self.subscribed: tuple[str, ...] = ()
        self._next_member = 0

    # -- logs

    def append(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None = None,
        partition: int = -1,
        at_ms: int | None = None,
    ) -> MemoryRecord:
        """Appends one committed record, at the clock's time unless told otherwise; partition -1: by murmur2 of the key."""
        with self.lock:
            if partition < 0:
                partition = partition_for(key or b"", self.partitions)
            record = self._append(Tp(topic, partition), key, value, headers or [], at_ms)
            self.lock.notify_all()
            return record

    def _append(
        self,
        tp: Tp,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        at_ms: int | None = None,
    ) -> MemoryRecord:
        log = self.logs[tp]
        record = MemoryRecord(
            tp,
            len(log),
            key,
            value,
            headers,
            self.clock.now if at_ms is None else at_ms,
        )
        log.append(record)
        return record

    def stable_end(self, tp: Tp) -> int:
        """Last stable offset: the first one of an open transaction, else the end."""
        log = self.logs[tp]
        return next((record.offset() for record in log if record.state is State.OPEN), len(log))

    def visible(self, tp: Tp, start: int = 0, end: int | None = None) -> list[MemoryRecord]:
        """What a `read_committed` reader sees in [start, end)."""
        stop = self.stable_end(tp) if end is None else min(end, self.stable_end(tp))
        return [record for record in self.logs[tp][start:stop] if record.state is State.COMMITTED]

    def topic(self, name: str) -> list[MemoryRecord]:
        """What a `read_committed` reader sees of a topic, partition by partition."""
        with self.lock:
            return [record for partition in range(self.partitions) for record in self.visible(Tp(name, partition))]

    def compact(self, name: str) -> dict[tuple[int, bytes | None], bytes | None]:
        """The last visible value of each key of a topic, tombstones gone."""
        latest = {(record.partition(), record.key()): record.value() for record in self.topic(name)}
        return {key: value for key, value in latest.items() if value is not None}

    # -- transactions

    def init_transactions(self, transactional_id: str) -> int:
        """A new epoch; an orphan of the last one is aborted at once."""
        with self.lock:
            self.epochs[transactional_id] += 1
            self.end(transactional_id, State.ABORTED)
            return self.epochs[transactional_id]

    def check_epoch(self, transactional_id: str, epoch: int) -> None:
        """Raises `FencedError` when a newer producer has this id."""
        if self.epochs[transactional_id] != epoch:
            raise FencedError(f"transactional id {transactional_id!r} was taken over")

    def produce(
        self,
        transactional_id: str,
        tp: Tp,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
    ) -> None:
        """Appends inside the open transaction of that id."""
        record = self._append(tp, key, value, headers)
        record.state, record.owner = State.OPEN, transactional_id

    def end(self, transactional_id: str, outcome: State) -> None:
        """Commits or aborts: every touched partition gets a marker."""
        touched = {}
        for tp, log in self.logs.items():
            for record in reversed(log):
                if record.state is State.OPEN and record.owner == transactional_id:
                    record.state = outcome
                    touched[tp] = True
        for tp in touched:
            self._append(tp, None, None, []).state = State.MARKER
        self.lock.notify_all()

    # -- the consumer group

    def join(self, name: str, topics: Sequence[str]) -> int:
        """A new member; returns its id."""
        with self.lock:
            self._next_member += 1
            self.members[self._next_member] = Member(name)
            self.subscribed = tuple(sorted({*self.subscribed, *topics}))
            self.generation += 1
            return self._next_member

    def leave(self, member: int) -> None:
        """An orderly leave: what it owned is free at once."""
        with self.lock:
            if self.members.pop(member, None) is not None:
                self.generation += 1

    def expire(self, name: str) -> None:
        """The session of a silent member ends: its partitions are free, it learns of it in its next `control`."""
        with self.lock:
            for each in list(self.members.values()):
                if each.name == name and not each.lost:
                    each.lost = True
                    each.owned.clear()
                    self.generation += 1

    def target(self, member: int) -> set[Tp]:
        """What a member should own: partition p of every topic goes to the same member."""
        alive = sorted(key for key, each in self.members.items() if not each.lost)
        if member not in alive:
            return set()
        place = alive.index(member)
        return {Tp(topic, p) for topic in self.subscribed for p in range(self.partitions) if p % len(alive) == place}

    def is_owned(self, tp: Tp) -> bool:
        """Whether some live member still holds the partition."""
        return any(tp in each.owned for each in self.members.values() if not each.lost)


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
    """Port `Source`."""

    def __init__(self, kafka: MemoryKafka, name: str) -> None:
        self.kafka, self.name = kafka, name
        self.paused: set[Tp] = set()
        self.position: dict[Tp, int] = {}
        self.closed = False
        self._assigned: set[Tp] = set()
        self._member = 0

    def open(
        self,
        topics: Sequence[str],
        on_assign: Assigned,
        on_revoke: Released,
        on_lost: Released,
    ) -> None:
        self._topics, self._on_assign, self._on_revoke, self._on_lost = (
            tuple(topics),
            on_assign,
            on_revoke,
            on_lost,
        )
        self._member = self.kafka.join(self.name, topics)
        self._announced = False

    @property
    def _me(self) -> Member:
        return self.kafka.members[self._member]

    def control(self, timeout: float) -> None:
        with self.kafka.lock:
            if self._me.lost:
                lost = sorted(self._assigned)
                del self.kafka.members[self._member]
                self._member = self.kafka.join(self.name, self._topics)
                self._drop([*self.position, *self._assigned])
            else:
                lost = []
            wanted = self.kafka.target(self._member)
            revoked = sorted(self._me.owned - wanted)
        if lost:
            self._on_lost(lost)
        gone = self._on_revoke(revoked) if revoked else []
        with self.kafka.lock:
            self._me.owned.difference_update(revoked)
            self._drop(gone)
            self._me.generation = self.kafka.generation
            free = sorted(tp for tp in wanted - self._me.owned if not self.kafka.is_owned(tp))
            self._me.owned.update(free)
            self.kafka.lock.notify_all()
        if free or not self._announced:
            self._announced = True
            self._assigned.update(free)
            self._on_assign(free)
        if timeout:
            with self.kafka.lock:
                self.kafka.lock.wait(timeout)

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
                self.kafka.lock.wait(timeout if not self._moving() else 0.0)
            records: dict[Tp, list[RawRecord]] = {}
            trouble: dict[Tp, Blocked] = {}
            for tp in self._pending():
                at = self.position[tp]
                if at < self.kafka.log_start[tp]:
                    trouble[tp] = Blocked(
                        f"{tp.topic}/{tp.partition}: position {at} is below the log's start {self.kafka.log_start[tp]} (W-120)"
                    )
                    self.paused.add(tp)
                    continue
                rows = self.kafka.visible(tp, at)[:limit]
                limit -= len(rows)
                self.position[tp] = rows[-1].offset() + 1 if rows else self.kafka.stable_end(tp)
                if rows:
                    records[tp] = list(rows)
            return Poll(records, self.token(), trouble) if records or trouble else None

    def _pending(self) -> list[Tp]:
        return [tp for tp, at in self.position.items() if tp not in self.paused and at < self.kafka.stable_end(tp)]

    def _moving(self) -> bool:
        return self._me.lost or self._me.generation != self.kafka.generation

    def token(self) -> Any:
        return (self._member, self._me.generation)

    def end(self, tp: Tp) -> int | None:
        with self.kafka.lock:
            return len(self.kafka.logs[tp])

    def has_read(self, tp: Tp, position: int, end: int) -> bool:
        with self.kafka.lock:
            return self.kafka.stable_end(tp) >= end and not self.kafka.visible(tp, position, end)

    def drained(self, tp: Tp, position: int) -> EndOffset | None:
        with self.kafka.lock:
            asked_at, end = self.kafka.clock.now_ms(), len(self.kafka.logs[tp])
            nothing_left = not self.kafka.visible(tp, position) and self.kafka.stable_end(tp) == end
            return EndOffset(end, asked_at) if nothing_left else None

    def seek(self, positions: Mapping[Tp, int]) -> None:
        with self.kafka.lock:
            self.position.update({tp: at for tp, at in positions.items() if tp in self.position})

    def pause(self, tps: Sequence[Tp]) -> None:
        self.paused.update(tps)

    def resume(self, tps: Sequence[Tp]) -> None:
        self.paused.difference_update(tps)

    def close(self) -> None:
        if self._member and not self.closed:
            self._on_revoke(sorted(self._assigned))
            self.kafka.leave(self._member)
        self.closed = True


class MemorySink:
    """Port `Sink`. A crash is an exception of `faults` that is no `Doubt`: the transaction stays open, as an orphan."""

    def __init__(self, kafka: MemoryKafka, transactional_id: str, faults: Faults | None = None) -> None:
        self.kafka, self.transactional_id = kafka, transactional_id
        self.faults = faults or Faults()
        self.replaced = 0
        self.transactions = 0
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
            with kafka.lock:
                self._check_generation(token)
            step("offsets")
            step("commit")
            with kafka.lock:
                kafka.check_epoch(me, self._epoch)
                for plan in plans:
                    kafka.committed.update({tp: Committed(offset, text) for tp, offset, text in plan.positions()})
                kafka.end(me, State.COMMITTED)
        except Doubt:
            with kafka.lock:
                kafka.end(me, State.ABORTED)
            raise
        self.transactions += 1
        step("committed")

    def _produce(self, plans: Sequence[Plan]) -> None:
        for plan in plans:
            partition = plan.tp.partition
            for row, content in plan.changelog:
                self.kafka.produce(self.transactional_id, Tp(plan.changelog_topic, partition), row, content, [])
            if plan.ledger is not None:
                self.kafka.produce(
                    self.transactional_id,
                    Tp(plan.ledger_topic, partition),
                    None,
                    plan.ledger,
                    [],
                )
            for topic, where, key, value, headers in whole_outputs(plan, MemoryContents(self.kafka)):
                target = where if where >= 0 else partition_for(key or b"", self.kafka.partitions)
                self.kafka.produce(self.transactional_id, Tp(topic, target), key, value, headers)

    def _check_generation(self, token: Any) -> None:
        number, generation = token
        member = self.kafka.members.get(number)
        if member is None or member.lost:
            raise StaleGeneration("unknown member")
        if generation != self.kafka.generation:
            raise StaleGeneration("illegal generation")

    def replace(self, meanwhile: Meanwhile = lambda: None) -> None:
        self.kafka.check_epoch(self.transactional_id, self._epoch)
        self.replaced += 1
        self.open()

    def close(self) -> None: ...


class MemoryContents:
    """Port `Contents`."""

    def __init__(self, kafka: MemoryKafka) -> None:
        self.kafka = kafka

    def read(self, components: Sequence[Component]) -> Iterator[RawRecord]:
        with self.kafka.lock:
            for source in [each.source for each in components]:
                tp = Tp(source.topic, source.partition)
                if source.offset >= self.kafka.log_start[tp]:
                    yield from self.kafka.visible(tp, source.offset, source.offset + 1)

    def hidden(self, tp: Tp, offsets: Sequence[int]) -> Collection[int]:
        return ()  # in memory all headers are shown

    def close(self) -> None: ...


class MemoryLogReader:
    """Port `LogReader`."""

    def __init__(self, kafka: MemoryKafka) -> None:
        self.kafka = kafka

    def committed(self, tps: Sequence[Tp]) -> Mapping[Tp, Committed]:
        with self.kafka.lock:
            return {tp: self.kafka.committed.get(tp, Committed(None, "")) for tp in tps}

    def bounds(self, tps: Sequence[Tp]) -> Mapping[Tp, tuple[int, int]]:
        with self.kafka.lock:
            return {tp: (self.kafka.log_start[tp], len(self.kafka.logs[tp])) for tp in tps}

    def read(self, ranges: Mapping[Tp, tuple[int, int]]) -> Iterator[Stretch]:
        for tp, (start, end) in ranges.items():
            with self.kafka.lock:
                while self.kafka.stable_end(tp) < end:
                    if not self.kafka.lock.wait(5.0):
                        raise TimeoutError(f"an open transaction before {tp} {end} did not end")
                rows = self.kafka.visible(tp, start, end)
            if rows:
                yield tp, rows
