"""The ports of a simulated worker: a producer with librdkafka's calls, and the ports `RecordSource`, `LogReader`, `PathLog` and `Contents`.

The producer is called by the production sink (`uow.processor.kafka.sink`), so that the worker's own commit code runs here. Each
request may be answered late, be repeated by the library with the first frame still under way, lose its answer, or time out; the library's
log says so in the words that the sink looks for.

Belongs here: one worker's view of the brokers. Does not belong here: the brokers (`simulated_kafka`), the worker (the engine).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from random import Random
from typing import Any, NamedTuple, NoReturn

import confluent_kafka as ck

from uow.processor.engine.ports import (
    Blocked,
    Committed,
    Doubt,
    EndQuestion,
    Headers,
    Meanwhile,
    Poll,
    RawRecord,
    Released,
    Stretch,
    Tp,
)
from uow.processor.kafka.worker_clock import WorkerClock
from uow.processor.sim.schedule import Actor
from uow.processor.sim.simulated_kafka import (
    EPOCH_MS,
    GROUP,
    TRANSACTIONS,
    Broker,
    BrokerRefusal,
    Member,
    Row,
    State,
)
from uow.schemas.records import ComponentRecord, Source
from uow.topics.partitioner import partition_for
from uow.topics.path_map import (
    NONCE_BYTES,
    PathMap,
    claim_key,
    claim_value,
)

PATIENCE_MS = 10_000
"""Time for which the library looks for a leader or a coordinator before a call times out."""

SAME_LINE_MS = 30_000
"""Time for which the library holds back a log line that it has written before about the same broker."""

FENCED_CODES = (ck.KafkaError.INVALID_PRODUCER_EPOCH, ck.KafkaError.PRODUCER_FENCED)
REQUEST_MS = (0, 0, 0, 5, 500)
"""Time that a question for an end is under way, and its answer."""
READ_CHUNK = 7
SERVE_MS = 300
HEARD_CHANCE = 0.1
"""Probability that a member hears of its group's decisions at one of its calls: heartbeats take their time."""


@dataclass(slots=True)
class Trouble:
    """The probability of each fault of a request; all zero once the run has become quiet.

    `silent`: share of the time-outs in which the call has less time than its request, so that the library logs nothing. `cut_early`: a connection breaks
    while a producer begins. `full`: the send buffer has no room. `unread`: a request of a restore is answered by a transient error.
    """

    delayed: float = 0.0
    answer_lost: float = 0.0
    timed_out: float = 0.0
    produce_lost: float = 0.0
    refused: float = 0.0
    silent: float = 0.0
    cut_early: float = 0.0
    full: float = 0.0
    unread: float = 0.0

    def stop(self) -> None:
        """No more faults."""
        for each in fields(self):
            setattr(self, each.name, 0.0)


@dataclass(slots=True)
class Process:
    """One life of a worker: its actor, the brokers it sees, its own clock, its dice.

    Attributes:
        aside: Random numbers for faults that were added later, so that seeds stay as they were.
        skew_ms: Error of its wall clock; it may be set at any moment.
        clock: The worker's own view of that clock.
        on_asked: Called when an end offset is asked for, with the partition and the time.
        on_read: Called whenever a stretch of a log was read for a restore.
        divisible: True if each plan in hand came from several records: a refusal leads to smaller polls, not to a blocked partition (F20).
    """

    actor: Actor
    broker: Broker
    rnd: Random
    aside: Random
    trouble: Trouble
    skew_ms: float = 0.0
    on_asked: Callable[[Tp, int], None] = field(default=lambda tp, asked_at: None)
    divisible: bool = False
    on_read: Callable[[], None] = field(default=lambda: None)
    clock: WorkerClock = field(init=False)

    def __post_init__(self) -> None:
        scheduler = self.broker.scheduler
        self.clock = WorkerClock(lambda: int(scheduler.now + self.skew_ms) + EPOCH_MS, lambda: int(scheduler.now))

    def say(self, text: str) -> None:
        """Adds a line to the script."""
        self.broker.scheduler.say(text)

    def happens(self, chance: float) -> bool:
        """True if a fault of that probability happens, by `aside`; draws nothing at probability 0."""
        return chance > 0 and self.aside.random() < chance


class Token(NamedTuple):
    """The group's metadata."""

    member: int
    generation: int


def _raise(code: int, *, fatal: bool = False, retriable: bool = False, abort: bool = False) -> NoReturn:
    raise ck.KafkaException(ck.KafkaError(code, None, fatal, retriable, abort))


class SimProducer:
    """`confluent_kafka.Producer`, as far as the sink uses it."""

    def __init__(self, process: Process, transactional_id: str, on_line: Callable[[str], None]) -> None:
        self._process, self._id, self._on_line = process, transactional_id, on_line
        self._broker = process.broker
        self._epoch = 0
        self._buffer: dict[Tp, list[Row]] = {}
        self._next: dict[Tp, int] = {}
        self._added: set[Tp] = set()
        self._open = self._committing = self._failed = self._fatal = False
        self._told: dict[str, float] = {}

    def init_transactions(self, timeout: float = -1) -> None:
        """Fences the previous producer of the id; waits for the end of its transaction."""
        actor, broker = self._process.actor, self._broker
        actor.wait()
        actor.wait(lambda: not broker.is_away(TRANSACTIONS), timeout * 1000)
        if broker.is_away(TRANSACTIONS):
            _raise(ck.KafkaError._TIMED_OUT, retriable=True)
        while (epoch := self._broker.init_producer(self._id)) is None:
            actor.wait(timeout_ms=20)
        while self._process.happens(self._process.trouble.cut_early):
            self._broken(TRANSACTIONS)
        self._epoch = epoch
        self._process.say(f"init_transactions: {self._id} epoch {epoch}")
        actor.wait()

    def begin_transaction(self) -> None:
        self._check()
        if self._open:
            _raise(ck.KafkaError._STATE)
        self._open, self._committing, self._failed = True, False, False

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int = -1,
        on_delivery: object = None,
        callback: object = None,
        timestamp: int = 0,
        headers: Headers | None = None,
    ) -> None:
        self._check()
        if self._process.happens(self._process.trouble.full):
            raise BufferError
        self._refuse()
        if partition < 0:
            partition = partition_for(key or b"", self._broker.settings.partitions)
        self._buffer.setdefault(Tp(topic, partition), []).append((key, value, headers or []))

    def poll(self, timeout: float = 0) -> int:
        return 0

    def purge(self) -> None:
        self._buffer.clear()

    def flush(self, timeout: float = -1) -> int:
        self._check()
        self._flush()
        return 0

    def send_offsets_to_transaction(self, offsets: Sequence[ck.TopicPartition], token: Any, timeout: float) -> None:
        """AddOffsetsToTxn and TxnOffsetCommit; sometimes records go before, sometimes after."""
        self._check()
        if self._process.rnd.random() < 0.5:
            self._flush()
        positions = {Tp(each.topic, each.partition): Committed(each.offset, each.metadata or "") for each in offsets}
        self._add([], offsets=True)
        self._request(
            "TxnOffsetCommit",
            lambda: self._broker.commit_offsets(self._id, self._epoch, token.member, token.generation, positions),
            GROUP,
        )

    def commit_transaction(self, timeout: float = -1) -> None:
        """Flushes, then EndTxn."""
        self._check()
        self._flush()
        self._refuse()
        if self._failed:
            _raise(ck.KafkaError._INCONSISTENT, abort=True)
        self._committing = True
        self._request("EndTxn(commit)", lambda: self._broker.end(self._id, self._epoch, State.COMMITTED), TRANSACTIONS)
        self._closed()

    def abort_transaction(self, timeout: float = -1) -> None:
        self._check()
        if self._committing:
            _raise(ck.KafkaError._CONFLICT, retriable=True)
        if not self._open:
            _raise(ck.KafkaError._STATE)
        self._buffer.clear()
        if self._added or self._failed:
            self._request("EndTxn(abort)", lambda: self._broker.end(self._id, self._epoch, State.ABORTED), TRANSACTIONS)
        self._closed()

    # -- requests

    def _refuse(self) -> None:
        """Refuses a record as too large: by the library, or at the commit by the broker."""
        if self._process.divisible and self._process.rnd.random() < self._process.trouble.refused:
            self._process.say("a record is refused: too large")
            self._failed = True
            _raise(ck.KafkaError.MSG_SIZE_TOO_LARGE, abort=True)

    def _check(self) -> None:
        if self._fatal:
            _raise(ck.KafkaError._FENCED, fatal=True)

    def _closed(self) -> None:
        self._open = self._committing = self._failed = False
        self._added.clear()

    def _add(self, tps: Sequence[Tp], *, offsets: bool = False) -> None:
        def ask() -> None:
            while not self._broker.add_partitions(self._id, self._epoch, tps, offsets=offsets):
                self._process.actor.wait(timeout_ms=20)

        self._process.actor.wait()
        self._find("AddPartitionsToTxn", TRANSACTIONS)
        self._answer(ask)
        self._added.update(tps)

    def _flush(self) -> None:
        """AddPartitionsToTxn, then one Produce for each partition."""
        process = self._process
        new = [tp for tp in self._buffer if tp not in self._added]
        if new:
            self._add(new)
        tps = list(self._buffer)
        process.rnd.shuffle(tps)
        for tp in tps:
            rows = self._buffer.pop(tp)
            sequence = self._next.get(tp, 0)

            def write(tp: Tp = tp, rows: list[Row] = rows, sequence: int = sequence) -> None:
                self._broker.produce(self._id, self._epoch, sequence, tp, rows)

            if process.rnd.random() < process.trouble.produce_lost:
                self._lost(tp, write)
                continue
            self._request(f"Produce {tp.topic}/{tp.partition}", write, tp)
            self._next[tp] = sequence + len(rows)

    def _lost(self, tp: Tp, write: Callable[[], None]) -> None:
        """A batch is given up: not delivered, as far as the library knows. Its sequence is used again."""
        name = f"Produce {tp.topic}/{tp.partition}"
        self._process.say(f"{name}: given up, delivery failed")
        self._on_line(f"REQTMOUT|{name}")
        self._failed = True
        if self._process.rnd.random() < 0.7:
            self._broker.late.append((name, write))

    def _find(self, name: str, place: Tp | str) -> None:
        """Waits until the leader or coordinator answers; the library looks for it meanwhile."""
        process, broker = self._process, self._broker
        process.actor.wait(lambda: not broker.is_away(place), PATIENCE_MS if broker.is_away(place) else 0.0)
        if broker.is_away(place):
            process.say(f"{name}: nobody answers")
            self._on_line(f"REQTMOUT|{name}")
            _raise(ck.KafkaError._TIMED_OUT, retriable=True)

    def _request(self, name: str, send: Callable[[], None], place: Tp | str) -> None:
        """One request with an answer, and what may happen to it."""
        process, trouble = self._process, self._process.trouble
        self._find(name, place)
        dice = process.rnd.random()
        if dice < trouble.timed_out:
            process.say(f"{name}: timed out")
            if not process.happens(trouble.silent):
                self._on_line(f"REQTMOUT|{name}")
            if process.rnd.random() < 0.5:
                self._answer(send)
            else:
                self._broker.late.append((name, send))
            _raise(ck.KafkaError._TIMED_OUT, retriable=True)
        dice -= trouble.timed_out
        if dice < trouble.delayed:
            process.say(f"{name}: connection cut, repeated; the first frame is still under way")
            if process.happens(0.3):
                self._on_line(f"REQTMOUT|{name}")
            else:
                self._broken(place)
            self._broker.late.append((name, send))
        elif dice < trouble.delayed + trouble.answer_lost:
            process.say(f"{name}: answer lost, repeated")
            self._on_line(f"REQTMOUT|{name}")
            self._answer(send)
        self._answer(send)
        process.actor.wait()

    def _broken(self, place: Tp | str) -> None:
        """A connection broke. The library's line about it is the same each time, and held back if it was written not long ago."""
        name = f"broker {1 if isinstance(place, str) else 1 + place.partition % 2}"
        now = self._broker.scheduler.now
        if now - self._told.get(name, -SAME_LINE_MS) >= SAME_LINE_MS:
            self._told[name] = now
            self._on_line(f"FAIL [{name}]: disconnected (after 7ms in state UP)")

    def _answer(self, send: Callable[[], None]) -> None:
        try:
            send()
        except BrokerRefusal as refusal:
            self._process.say(str(refusal))
            if refusal.code in FENCED_CODES:
                self._fatal = True
                _raise(ck.KafkaError._FENCED, fatal=True)
            self._failed = True
            _raise(refusal.code, abort=True)


class SimClients:
    """Stands in for `uow.processor.kafka.clients.Clients`: makes producers."""

    def __init__(self, process: Process, transactional_id: str) -> None:
        self._process, self._id = process, transactional_id

    def producer(self, on_line: Callable[[str], None]) -> SimProducer:
        return SimProducer(self._process, self._id, on_line)


class SimQuestion:
    """A question to a leader or coordinator, like a `Future`: it is looked at when it arrives there, and the answer is known later. While nobody is there it hangs.

    Args:
        process: Who asks.
        place: Who is asked.
        look: Returns the answer as of now.
    """

    def __init__(self, process: Process, place: Tp | str, look: Callable[[], Any]) -> None:
        self._broker, self._place, self._look = process.broker, place, look
        self._arrives = process.broker.scheduler.now + process.aside.choice(REQUEST_MS)
        self._known = self._arrives + process.aside.choice(REQUEST_MS)
        self._found: list[Any] = []

    def done(self) -> bool:
        """True once the answer is known."""
        now = self._broker.scheduler.now
        if not self._found and now >= self._arrives and not self._broker.is_away(self._place):
            self._found.append(self._look())
        return bool(self._found) and now >= self._known

    def result(self) -> Any:
        """The answer."""
        return self._found[0]


class SimSource:
    """Port `RecordSource`."""

    def __init__(self, process: Process) -> None:
        self.process, self.broker = process, process.broker
        self.position: dict[Tp, int] = {}
        self.paused: set[Tp] = set()
        self._assigned: set[Tp] = set()
        self._generation = 0
        self._member: Member | None = None

    def open(
        self,
        topics: Sequence[str],
        on_assign: Callable[[list[Tp]], None],
        on_revoke: Released,
        on_lost: Released,
    ) -> None:
        self._topics, self._on_assign, self._on_revoke, self._on_lost = tuple(topics), on_assign, on_revoke, on_lost
        self._member = self.broker.join(self.process.actor, topics)

    @property
    def _me(self) -> Member:
        assert self._member is not None
        return self._member

    def control(self, timeout: float) -> None:
        self.process.actor.wait(self._has_news if timeout else None, timeout * 1000)
        if self.process.rnd.random() < HEARD_CHANCE:
            self._serve()

    def _has_news(self) -> bool:
        me, broker = self._me, self.broker
        return not broker.is_away(GROUP) and (
            me.id not in broker.members
            or (broker.preparing_since is not None and not me.joined)
            or me.generation != self._generation
        )

    def _serve(self) -> None:
        broker, me = self.broker, self._me
        if broker.is_away(GROUP):
            return
        if me.id not in broker.members:
            self._let_go(self._assigned, self._on_lost)
            self._generation = 0
            self._member = broker.join(self.process.actor, self._topics)
            return
        if me.generation != self._generation:
            self._generation = me.generation
            gone, new = self._assigned - me.wanted, sorted(me.wanted - self._assigned)
            self._let_go(gone, self._on_revoke)
            me.owned -= gone
            self._assigned |= set(new)
            self._on_assign(new)
            if gone and me.id in broker.members:
                broker.rebalance()
        if broker.preparing_since is not None and me.id in broker.members and not me.joined:
            if broker.settings.eager:
                self._let_go(self._assigned, self._on_revoke)
                me.owned.clear()
            if me.id in broker.members:
                broker.rejoin(me)

    def _let_go(self, tps: set[Tp], released: Released) -> None:
        """A partition that is paused when it is revoked is still paused when it comes back, as in the library."""
        for tp in released(sorted(tps)) if tps else ():
            self.position.pop(tp, None)
        self._assigned = self._assigned - tps

    def begin(self, positions: Mapping[Tp, int]) -> None:
        self.position.update(positions)
        self.resume(list(positions))

    def read(self, limit: int, timeout: float) -> Poll | None:
        self.process.actor.wait(lambda: bool(self._pending()) or self._has_news(), timeout * 1000)
        dice = self.process.rnd.random()
        if dice < 0.2:
            self._serve()
        records: dict[Tp, list[RawRecord]] = {}
        pending = self._pending()
        self.process.rnd.shuffle(pending)
        for tp in pending:
            log = self.broker.log(tp)
            rows = log.visible(self.position[tp], log.end)
            some = rows[: self.process.rnd.randint(1, max(1, limit))]
            limit -= len(some)
            self.position[tp] = some[-1].offset() + 1 if len(some) < len(rows) else log.stable_end
            if some:
                records[tp] = list(some)
                self.process.clock.see(tp, some[-1].timestamp()[1])
            if limit <= 0:
                break
        if dice > 0.8:  # a rebalance while the records are in hand already
            self._serve()
            records = {tp: rows for tp, rows in records.items() if tp in self.position}
        return Poll(records, self.token()) if records else None

    def _pending(self) -> list[Tp]:
        broker = self.broker
        return [
            tp
            for tp, at in self.position.items()
            if tp not in self.paused and at < broker.log(tp).stable_end and not broker.is_away(tp)
        ]

    def token(self) -> Token:
        return Token(self._me.id, self._me.generation)

    def ask(self, tp: Tp) -> int:
        """Takes the time before an end offset is asked for, and reports it to the checks."""
        asked_at = self.process.clock.at(tp)
        self.process.on_asked(tp, asked_at)
        return asked_at

    def end(self, tp: Tp) -> EndQuestion:
        """The leader looks at its log when the request arrives, and the answer is known later; while it is away or hangs there is none."""
        asked_at = self.ask(tp)
        question = SimQuestion(self.process, tp, lambda: self.broker.log(tp).end)
        self.process.actor.wait()
        question.done()
        return EndQuestion(asked_at, lambda: question.result() if question.done() else None)

    def has_read(self, tp: Tp, position: int, end: int) -> bool:
        log = self.broker.log(tp)
        return log.stable_end >= end and not log.visible(position, end)

    def reached(self, tp: Tp, position: int) -> int:
        at = self.position.get(tp, position)
        return at if at > position and not self.broker.log(tp).visible(position, at) else position

    def seek(self, positions: Mapping[Tp, int]) -> None:
        self.position.update({tp: at for tp, at in positions.items() if tp in self.position})

    def pause(self, tps: Sequence[Tp]) -> None:
        self.paused.update(tps)

    def resume(self, tps: Sequence[Tp]) -> None:
        self.paused.difference_update(tps)

    def close(self) -> None:
        if self.process.actor.alive and self._member is not None:
            self._let_go(self._assigned, self._on_revoke)
            self.broker.leave(self._me)


class SimPathLog:
    """Port `PathLog`: each reader of a path map is behind, and reads in pieces."""

    def __init__(self, process: Process, tp: Tp, paths: PathMap) -> None:
        self.process, self.log, self.tp, self.paths = process, process.broker.log(tp), tp, paths
        self._next = 0

    def catch_up(self) -> None:
        if self.process.rnd.random() < 0.7:
            self._take(self._next + self.process.rnd.randrange(8))

    def read_all(self, meanwhile: Meanwhile) -> None:
        end = self.log.end
        while self._next < end:
            self._wait_for(end, self.process.rnd.choice([0, 50, 2_000]))
            meanwhile()

    def claim(self, wanted: Mapping[bytes, int]) -> None:
        process = self.process
        process.actor.wait()
        end = 0
        for group_id, partition in wanted.items():
            key = claim_key(group_id, process.rnd.randbytes(NONCE_BYTES))
            row: Row = (key, claim_value(partition), [])
            end = self.log.append(row, process.broker.now_ms(), now=process.broker.scheduler.now).offset() + 1
            process.say(f"claims {group_id!r} for {partition}")
        if process.rnd.random() < process.trouble.timed_out:
            raise Doubt("claims: timed out")
        self._wait_for(end, PATIENCE_MS)
        if self._next < end:
            raise Doubt("claims are not read back in time")

    def _wait_for(self, end: int, timeout_ms: float | None) -> None:
        actor, log, broker = self.process.actor, self.log, self.process.broker
        actor.wait(lambda: log.stable_end >= end and not broker.is_away(self.tp), timeout_ms)
        self._take(end)

    def _take(self, end: int) -> None:
        end = min(end, self.log.stable_end)
        for record in self.log.visible(self._next, end):
            self.paths.read(record.key(), record.value(), record.timestamp()[1])
        self._next = max(self._next, end)

    def close(self) -> None:
        """Nothing is open."""


class SimContents:
    """Port `Contents`."""

    def __init__(self, process: Process) -> None:
        self.process, self.broker = process, process.broker

    def read(self, components: Sequence[ComponentRecord]) -> Iterator[RawRecord]:
        for component in components:
            yield from self._read(component.source)

    def _read(self, source: Source) -> Iterator[RawRecord]:
        process, broker, tp = self.process, self.broker, Tp(source.topic, source.partition)
        process.actor.wait(lambda: not broker.is_away(tp), PATIENCE_MS if broker.is_away(tp) else 0.0)
        if broker.is_away(tp) or process.rnd.random() < process.trouble.timed_out:
            process.say(f"{source} cannot be read back")
            raise Doubt("a component cannot be read back in time")
        yield from broker.log(tp).visible(source.offset, source.offset + 1)

    def hidden(self, tp: Tp, offsets: Sequence[int]) -> Collection[int]:
        return ()  # in memory all headers are shown

    def close(self) -> None:
        """Nothing is open."""


PASSING = "the answer to a question was an error, which may pass"
"""The cause of a restore that failed by a transient error."""


class SimLogReader:
    """Port `LogReader`. One that insists asks again where the answer is an error that passes."""

    def __init__(self, process: Process, meanwhile: Meanwhile, *, insists: bool = False) -> None:
        self.process, self.broker, self._meanwhile, self._insists = process, process.broker, meanwhile, insists

    def _wait(self, until: Callable[[], bool]) -> None:
        """Waits as long as it takes; the group is served meanwhile."""
        self._meanwhile()
        if not self._insists and self.process.happens(self.process.trouble.unread):
            self.process.say("restore: the answer is an error")
            raise Blocked(PASSING)
        while not until():
            self.process.actor.wait(until, SERVE_MS)
            self._meanwhile()

    def committed(self, tps: Sequence[Tp]) -> Mapping[Tp, Committed]:
        if any(map(self.broker.has_pending_offsets, tps)):
            self.process.say("restore: waits for pending offsets")
        broker = self.broker
        self._wait(lambda: not broker.is_away(GROUP) and not any(map(broker.has_pending_offsets, tps)))
        return {tp: self.broker.committed.get(tp, Committed(None, "")) for tp in tps}

    def bounds(self, tps: Sequence[Tp]) -> Mapping[Tp, tuple[int, int]]:
        answers = {}
        for tp in tps:
            if self.process.rnd.random() < 0.3 or self.broker.is_away(tp):
                self._wait(lambda tp=tp: not self.broker.is_away(tp))  # type: ignore[misc]
            answers[tp] = (self.broker.log(tp).start, self.broker.log(tp).end)
        return answers

    def read(self, ranges: Mapping[Tp, tuple[int, int]]) -> Iterator[Stretch]:
        self.broker.readers.append(self.process.actor)
        try:
            for tp, (start, end) in ranges.items():
                yield from self._read(tp, start, end)
        finally:
            self.broker.readers.remove(self.process.actor)

    def _read(self, tp: Tp, start: int, end: int) -> Iterator[Stretch]:
        log = self.broker.log(tp)
        at = start
        while at < end:
            self._wait(lambda at=at: log.stable_end > at and not self.broker.is_away(tp))  # type: ignore[misc]
            stable = min(end, log.stable_end)
            rows = log.visible(at, stable)[:READ_CHUNK]
            at = rows[-1].offset() + 1 if len(rows) == READ_CHUNK else stable
            if rows:
                yield tp, rows
            self.process.on_read()
