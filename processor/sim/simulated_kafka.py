"""The simulator's Kafka: logs, transactions with markers that arrive late, idempotence, fencing, and a consumer group.

Held as in Kafka, version 1 of the transaction protocol (what librdkafka speaks; notes in `docs/simulator.md`):

- The end of a transaction is decided at once and takes effect partition by partition, by markers that arrive later, each with an offset of
  its own; its offsets likewise. Until then readers stop at the last stable offset, and a request for stable committed offsets is not answered.
- The epoch changes with `init_transactions` and after a transaction time-out only. So a request that arrives late, of the same epoch,
  is taken for part of the *next* transaction. The worker must prevent that by fencing on doubt (ER-11).
- A produce request whose sequence was seen already is answered as a success and not written.
- The group checks membership and generation, not ownership.
- A leader or a coordinator may move: nothing is lost, but for a while its requests are not answered, and frames that were under way to the
  old one are refused there.

Belongs here: the brokers' answers to requests. Does not belong here: sending them (`simulated_ports`), faults (`simulation`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from random import Random
from typing import NamedTuple, Protocol

import confluent_kafka as ck

from uow.processor.engine.ports import Committed, Headers, Tp

TRANSACTIONS, GROUP = "transactions", "group"
"""The two coordinators, by the names under which they are away."""

EPOCH_MS = 1_700_000_000_000
"""Simulated time begins here."""

Row = tuple[bytes | None, bytes | None, Headers]
"""Key, value, headers."""


class Timeline(Protocol):
    """Simulated time in milliseconds, and the script of what happened; the simulator's scheduler is one."""

    @property
    def now(self) -> float: ...

    def say(self, text: str, who: str | None = None) -> None: ...


class GroupProcess(Protocol):
    """A process that may be a member of the group.

    Attributes:
        name: In the script.
        silent_since: When it was stopped or died, or None.
    """

    @property
    def name(self) -> str: ...

    @property
    def silent_since(self) -> float | None: ...


class BrokerRefusal(Exception):
    """A broker's error code."""

    def __init__(self, code: int) -> None:
        super().__init__(ck.KafkaError(code).name())
        self.code = code


LOG_APPEND_TIME = 2


class State(Enum):
    """The state of the transaction that an entry of a log belongs to."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"
    MARKER = "marker"


class StoredRecord:
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

    def leader_epoch(self) -> int | None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return self._timestamp


class Log:
    """One partition. Compaction leaves holes, so an offset is no index.

    Attributes:
        everything: All records ever written, by offset, for the checks.
    """

    def __init__(self, tp: Tp) -> None:
        self.tp = tp
        self.records: list[StoredRecord] = []
        self.everything: list[StoredRecord] = []
        self.end = 0
        self.start = 0
        self.committed_before_start = 0
        self.open: dict[str, int] = {}
        self.true_times: list[float] = []

    def append(self, row: Row, at: int, owner: str = "", now: float = 0.0) -> StoredRecord:
        """Appends one record; with an owner it is part of the owner's open transaction. `now`: simulated time, not that of the broker's clock."""
        self.true_times.append(now)
        record = StoredRecord(self.tp, self.end, *row, at)
        if owner:
            record.state, record.owner = State.OPEN, owner
            self.open.setdefault(owner, self.end)
        self.records.append(record)
        self.everything.append(record)
        self.end += 1
        return record

    def finish(self, owner: str, outcome: State, at: int) -> None:
        """A transaction's marker arrives."""
        first = self.open.pop(owner, None)
        if first is not None:
            for record in self._between(first, self.end):
                if record.state is State.OPEN and record.owner == owner:
                    record.state = outcome
        self.append((None, None, []), at).state = State.MARKER

    @property
    def stable_end(self) -> int:
        """Last stable offset."""
        return min(self.open.values(), default=self.end)

    def visible(self, start: int, end: int) -> list[StoredRecord]:
        """The records that a `read_committed` reader sees in [start, end)."""
        end = min(end, self.stable_end)
        return [each for each in self._between(start, end) if each.state is State.COMMITTED]

    def _between(self, start: int, end: int) -> list[StoredRecord]:
        first, behind = (bisect_left(self.records, offset, key=StoredRecord.offset) for offset in (start, end))
        return self.records[first:behind]

    def cut(self, start: int) -> None:
        """Retention: deletes the records below `start`, whole transactions only."""
        start = min(start, self.stable_end)
        if start > self.start:
            self.committed_before_start += len(self.visible(self.start, start))
            self.records = [each for each in self.records if each.offset() >= start]
            self.start = start

    def compact(self, *, bury: bool) -> None:
        """Leaves the last committed record of each key below the last stable offset; `bury`: tombstones go as well."""
        stable = self.stable_end
        last = {each.key(): each for each in self.records if each.state is State.COMMITTED and each.offset() < stable}
        self.records = [
            each
            for each in self.records
            if each.offset() >= stable
            or (each.state is State.COMMITTED and last[each.key()] is each and not (bury and each.value() is None))
        ]


class Phase(Enum):
    """The phases of a transaction."""

    EMPTY = auto()
    ONGOING = auto()
    ENDING = auto()


class WrittenRecord(NamedTuple):
    """A record of a transaction, and its partition."""

    tp: Tp
    record: StoredRecord


@dataclass(slots=True)
class SimulatedTransaction:
    """The coordinator's state of one transactional id."""

    id: str
    epoch: int = 0
    phase: Phase = Phase.EMPTY
    began: float = 0.0
    outcome: State = State.ABORTED
    partitions: set[Tp] = field(default_factory=set)
    takes_offsets: bool = False
    offsets: dict[Tp, Committed] = field(default_factory=dict)
    written: list[WrittenRecord] = field(default_factory=list)
    markers: int = 0


@dataclass(eq=False, slots=True)
class Member:
    """One member of the group. `owned`: partitions that it has not let go of; `wanted`: those that the last generation gives it."""

    id: int
    actor: GroupProcess
    topics: tuple[str, ...]
    owned: set[Tp] = field(default_factory=set)
    wanted: set[Tp] = field(default_factory=set)
    generation: int = 0
    joined: bool = True


@dataclass(slots=True)
class BrokerSettings:
    """The brokers' settings in one run."""

    partitions: int = 2
    eager: bool = False
    session_ms: float = 6_000
    rebalance_ms: float = 8_000
    transaction_ms: float = 10_000


class Broker:
    """All brokers.

    Args:
        scheduler: Has the time and the script.
        settings: Settings of the run.

    Attributes:
        markers: Ends of transactions under way to their partitions, each with its name; they arrive whenever the seed says so.
        late: Requests that were held up in the network, each with its name; they arrive much later.
        on_commit: Called with each transaction at the moment its commit is decided.
        skew_ms: Error of the brokers' clock.
        away: Time until which requests are not answered, by partition, or `TRANSACTIONS` or `GROUP` for a coordinator.
    """

    def __init__(self, scheduler: Timeline, settings: BrokerSettings) -> None:
        self.scheduler, self.settings = scheduler, settings
        self.logs: dict[Tp, Log] = {}
        self.committed: dict[Tp, Committed] = {}
        self.transactions: dict[str, SimulatedTransaction] = {}
        self.sequences: dict[tuple[str, Tp], tuple[int, int]] = {}
        self.markers: list[tuple[str, Callable[[], None]]] = []
        self.late: list[tuple[str, Callable[[], None]]] = []
        self.on_commit: Callable[[SimulatedTransaction], None] = lambda transaction: None
        self.skew_ms = 0.0
        self.members: dict[int, Member] = {}
        self.generation = 0
        self.preparing_since: float | None = None
        self.salt = 0
        self.away: dict[Tp | str, float] = {}
        self.readers: list[GroupProcess] = []
        self._next_member = 0

    def log(self, tp: Tp) -> Log:
        """The log of a partition, made at its first use."""
        found = self.logs.get(tp)
        if found is None:
            found = self.logs[tp] = Log(tp)
        return found

    def now_ms(self) -> int:
        """The brokers' clock."""
        return int(self.scheduler.now + self.skew_ms) + EPOCH_MS

    def deliver_marker(self, rnd: Random) -> None:
        """A marker arrives."""
        self.markers.pop(rnd.randrange(len(self.markers)))[1]()

    def deliver_late(self, rnd: Random) -> None:
        """A request that was held up arrives; its sender does not wait for the answer any more."""
        name, request = self.late.pop(rnd.randrange(len(self.late)))
        try:
            request()
            self.scheduler.say(f"late {name}: taken", "broker")
        except BrokerRefusal as refusal:
            self.scheduler.say(f"late {name}: {refusal}", "broker")

    # -- moves

    def move(self, what: Tp | str, for_ms: float) -> None:
        """A leader or a coordinator moves to another broker."""
        self.away[what] = self.scheduler.now + for_ms
        frames = {TRANSACTIONS: "EndTxn", GROUP: "TxnOffsetCommit"}
        refused = frames[what] if isinstance(what, str) and what in frames else f"Produce {what[0]}/{what[1]}"
        self.late = [(name, request) for name, request in self.late if not name.startswith(refused)]

    def is_away(self, *places: Tp | str) -> bool:
        """True if one of these partitions or coordinators does not answer."""
        return any(self.away.get(place, 0.0) > self.scheduler.now for place in places)

    # -- transactions

    def init_producer(self, id: str) -> int | None:
        """A new epoch; an open transaction is aborted first. None: not yet, ask again."""
        transaction = self.transactions.setdefault(id, SimulatedTransaction(id))
        if transaction.phase is Phase.ONGOING:
            transaction.epoch += 1
            self._decide(transaction, State.ABORTED)
        if transaction.phase is Phase.ENDING:
            return None
        transaction.epoch += 1
        return transaction.epoch

    def add_partitions(self, id: str, epoch: int, tps: Sequence[Tp], *, offsets: bool = False) -> bool:
        """Partitions or the offsets become part of the open transaction, or open one. False: not yet, ask again."""
        transaction = self._current(id, epoch)
        if transaction.phase is Phase.ENDING:
            return False
        if transaction.phase is Phase.EMPTY:
            transaction.phase, transaction.began = Phase.ONGOING, self.scheduler.now
        transaction.partitions.update(tps)
        transaction.takes_offsets |= offsets
        return True

    def produce(self, id: str, epoch: int, sequence: int, tp: Tp, rows: Sequence[Row]) -> None:
        """A batch of the open transaction."""
        transaction = self._current(id, epoch)
        if transaction.phase is not Phase.ONGOING or tp not in transaction.partitions:
            raise BrokerRefusal(ck.KafkaError.INVALID_TXN_STATE)
        known_epoch, expected = self.sequences.get((id, tp), (epoch, 0))
        if known_epoch != epoch:
            expected = 0
        if sequence < expected:
            return
        if sequence > expected:
            raise BrokerRefusal(ck.KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER)
        self.sequences[id, tp] = (epoch, sequence + len(rows))
        log = self.log(tp)
        for row in rows:
            transaction.written.append(WrittenRecord(tp, log.append(row, self.now_ms(), id, self.scheduler.now)))

    def commit_offsets(self, id: str, epoch: int, member: int, generation: int, offsets: dict[Tp, Committed]) -> None:
        """Positions become part of the open transaction, if the member is one of this generation."""
        transaction = self._current(id, epoch)
        if transaction.phase is not Phase.ONGOING or not transaction.takes_offsets:
            raise BrokerRefusal(ck.KafkaError.INVALID_TXN_STATE)
        if member not in self.members:
            raise BrokerRefusal(ck.KafkaError.UNKNOWN_MEMBER_ID)
        if generation != self.generation:
            raise BrokerRefusal(ck.KafkaError.ILLEGAL_GENERATION)
        transaction.offsets.update(offsets)

    def end(self, id: str, epoch: int, outcome: State) -> None:
        """Commits or aborts; asking twice for the same is no error."""
        transaction = self._current(id, epoch)
        if transaction.phase is Phase.ONGOING:
            self._decide(transaction, outcome)
        elif transaction.outcome is not outcome:
            raise BrokerRefusal(ck.KafkaError.INVALID_TXN_STATE)

    def expire_transactions(self) -> None:
        """The coordinator aborts transactions that are open too long, and fences their producers."""
        if self.is_away(TRANSACTIONS):
            return
        for transaction in self.transactions.values():
            if (
                transaction.phase is Phase.ONGOING
                and self.scheduler.now - transaction.began > self.settings.transaction_ms
            ):
                self.scheduler.say(f"transaction of {transaction.id} timed out", "broker")
                transaction.epoch += 1
                self._decide(transaction, State.ABORTED)

    def _current(self, id: str, epoch: int) -> SimulatedTransaction:
        transaction = self.transactions[id]
        if transaction.epoch != epoch:
            raise BrokerRefusal(ck.KafkaError.INVALID_PRODUCER_EPOCH)
        return transaction

    def _decide(self, transaction: SimulatedTransaction, outcome: State) -> None:
        transaction.phase, transaction.outcome = Phase.ENDING, outcome
        if outcome is State.COMMITTED:
            self.on_commit(transaction)
        for tp in sorted(transaction.partitions):
            self._send_marker(transaction, tp)
        if transaction.takes_offsets:
            self._send_marker(transaction, None)
        if not transaction.markers:
            self._finished(transaction)

    def _send_marker(self, transaction: SimulatedTransaction, tp: Tp | None) -> None:
        def arrive() -> None:
            if tp is not None:
                self.log(tp).finish(transaction.id, transaction.outcome, self.now_ms())
            else:
                if transaction.outcome is State.COMMITTED:
                    self.committed.update(transaction.offsets)
                transaction.offsets = {}
            transaction.markers -= 1
            if not transaction.markers:
                self._finished(transaction)

        transaction.markers += 1
        self.markers.append((f"marker of {transaction.id}", arrive))

    @staticmethod
    def _finished(transaction: SimulatedTransaction) -> None:
        transaction.phase = Phase.EMPTY
        transaction.partitions.clear()
        transaction.takes_offsets = False
        transaction.offsets, transaction.written = {}, []

    def is_writing(self) -> bool:
        """True if a transaction is open: a late request that arrives now may be taken for a part of it."""
        return any(transaction.phase is Phase.ONGOING for transaction in self.transactions.values())

    def has_pending_offsets(self, tp: Tp) -> bool:
        """True if the committed offset of a partition is not stable."""
        return any(tp in transaction.offsets for transaction in self.transactions.values())

    # -- the group

    def join(self, actor: GroupProcess, topics: Sequence[str]) -> Member:
        """A new member; the others must join again."""
        self._next_member += 1
        member = self.members[self._next_member] = Member(self._next_member, actor, tuple(topics))
        self.rebalance()
        member.joined = True
        self._complete()
        return member

    def rejoin(self, member: Member) -> None:
        """A member is ready for the next generation and keeps `member.owned`."""
        member.joined = True
        self._complete()

    def leave(self, member: Member) -> None:
        """An orderly leave: its partitions are free at once."""
        if self.members.pop(member.id, None) is not None:
            self.rebalance()
            self._complete()

    def rebalance(self) -> None:
        """Begins a rebalance: all members must join again."""
        if self.preparing_since is None:
            self.preparing_since = self.scheduler.now
            for member in self.members.values():
                member.joined = False

    def expire_members(self) -> None:
        """Removes members that are silent, or do not join in time; they learn of it later."""
        if self.is_away(GROUP):
            return
        now, settings = self.scheduler.now, self.settings
        for member in list(self.members.values()):
            since = member.actor.silent_since
            silent = since is not None and now - since > settings.session_ms
            late = (
                self.preparing_since is not None
                and not member.joined
                and now - self.preparing_since > settings.rebalance_ms
            )
            if silent or late:
                self.scheduler.say(f"member {member.id} ({member.actor.name}) thrown out", "broker")
                del self.members[member.id]
                self.rebalance()
        self._complete()

    def _complete(self) -> None:
        if self.preparing_since is None or not all(member.joined for member in self.members.values()):
            return
        self.preparing_since = None
        self.generation += 1
        readers: dict[str, list[int]] = {}
        for number in sorted(self.members):
            for topic in self.members[number].topics:
                readers.setdefault(topic, []).append(number)
        for number in sorted(self.members):
            member = self.members[number]
            target = {
                Tp(topic, p)
                for topic in member.topics
                for p in range(self.settings.partitions)
                if readers[topic][(p + self.salt) % len(readers[topic])] == number
            }
            others = {tp for other in self.members.values() if other is not member for tp in other.owned}
            member.wanted = target - others
            member.generation = self.generation
        for member in self.members.values():
            member.owned |= member.wanted
