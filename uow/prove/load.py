"""A seeded load: units of all sizes from several producers, shuffled, mixed with every mistake that senders can make.

Belongs here: the records, and sending them to Kafka. Does not belong here: judging the results (`checker`). Imports nothing of the product.

| Share of units | What happens to it |
| --- | --- |
| most | complete, components in any order, from any producer |
| 3 % | one component is never sent |
| 9 % | a component comes twice: same bytes, other bytes, or as a resend (same component id) |
| 3 % | a number above the end, or a second end |
| 3 % | a component comes late, after the unit is complete |
| 2 % | a component goes to a wrong partition, once or with the mark of having been sent on |

Between them: plain records, records with malformed headers, and transactions that are aborted.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import confluent_kafka as ck

from uow.prove.ground_truth import GroundTruth, Headers, SentRecord

PRODUCERS = 3
FLUSH_S = 120.0
# without a logger librdkafka writes to standard error; brokers that go away are part of the proof
QUIET = logging.getLogger("uow.prove.load")
QUIET.addHandler(logging.NullHandler())
QUIET.propagate = False
SIZES = (1, 1, 2, 3, 5, 5, 5, 5, 8, 13, 21)
PADS = (0, 0, 20, 60, 200, 200, 1000)
DIGEST = b"sha256:" + b"0" * 63

BAD: tuple[tuple[str, str, Headers], ...] = (
    ("BadSequenceNumberError", "a", (("uow-id", b"bad-a"), ("uow-end", b"true"))),
    ("BadSequenceNumberError", "b", (("uow-id", b"bad-b"), ("uow-seq", b"0"))),
    ("BadSequenceNumberError", "b", (("uow-id", b"bad-b"), ("uow-seq", b"-3"), ("uow-end", b"false"))),
    ("BadSequenceNumberError", "malformed", (("uow-id", b"bad-m"), ("uow-seq", b"5.0"), ("uow-end", b"false"))),
    ("BadSequenceNumberError", "malformed", (("uow-id", b"bad-m"), ("uow-seq", b""), ("uow-end", b"false"))),
    ("BadSequenceNumberError", "malformed", (("uow-id", b"bad-m"), ("uow-seq", b"2147483648"))),
    ("BadSequenceNumberError", "malformed", (("uow-id", b"bad-m"), ("uow-seq", b"1"), ("uow-seq", b"2"))),
    ("BadSequenceNumberError", "malformed-end", (("uow-id", b"bad-e"), ("uow-seq", b"1"), ("uow-end", b"yes"))),
    ("BadSequenceNumberError", "malformed-count", (("uow-id", b"bad-c"), ("uow-seq", b"1"), ("uow-count", b"many"))),
    ("BadUnitIdError", "empty", (("uow-id", b""), ("uow-seq", b"1"), ("uow-end", b"true"))),
    ("BadUnitIdError", "undecodable", (("uow-id", b"\xff\xfe"), ("uow-seq", b"1"), ("uow-end", b"true"))),
    ("BadUnitIdError", "too-long", (("uow-id", b"x" * 256), ("uow-seq", b"1"))),
    ("BadUnitIdError", "repeated", (("uow-id", b"one"), ("uow-id", b"other"), ("uow-seq", b"1"))),
    ("UnitConflictError", "", (("uow-id", b"both"), ("uow-seq", b"1"), ("uoo-name", b"orders"))),
    ("DecodeError", "uow-expires-at", (("uow-id", b"bad-x"), ("uow-seq", b"1"), ("uow-expires-at", b"soon"))),
    ("DecodeError", "uow-deliver-at", (("uow-id", b"bad-x"), ("uow-seq", b"1"), ("uow-deliver-at", b"\x00"))),
    ("DecodeError", "uow-priority", (("uow-id", b"bad-x"), ("uow-seq", b"1"), ("uow-priority", b"10"))),
    ("DecodeError", "uow-digest", (("uow-id", b"bad-x"), ("uow-seq", b"1"), ("uow-digest", DIGEST))),
)

Step = list[SentRecord]
"""Records that are sent together: one record, or the records of one transaction, which is always aborted."""


def is_transaction(step: Step) -> bool:
    """True if these records will be aborted."""
    return not step[0].committed


class Script:
    """Makes the records of a load; the seed determines all of them, and the caller decides when to stop.

    Args:
        seed: Seed of all choices.
        partitions: Number of partitions of `D.components`, for records sent to an explicit one.
        window: Number of units open at a time.
    """

    def __init__(self, seed: int, partitions: int, window: int = 60) -> None:
        self.random = random.Random(seed)
        self.partitions, self.window = partitions, window
        self.name = f"{seed:x}"
        self.serial = 0
        self.units = 0
        self.whole: dict[bytes, int] = {}
        self.open: list[deque[SentRecord]] = []
        self.late: deque[tuple[int, SentRecord]] = deque()

    def steps(self, units: int | None = None) -> Iterator[Step]:
        """The records to send, step by step; after `units` units, or `finish`, the open units are completed."""
        while True:
            while len(self.open) < self.window and (units is None or self.units < units):
                self.open.append(deque(self._unit()))
            if not self.open and not self.late:
                return
            yield from self._between()
            if self.late and (not self.open or self.late[0][0] < self.serial):
                yield [self.late.popleft()[1]]
            elif self.open:
                yield [self._next()]

    def _next(self) -> SentRecord:
        """The next component of any open unit."""
        chosen = self.random.randrange(len(self.open))
        sent = self.open[chosen].popleft()
        if not self.open[chosen]:
            self.open[chosen] = self.open[-1]
            self.open.pop()
        return sent

    def finish(self) -> Iterator[Step]:
        """The rest of the open units."""
        return self.steps(self.units)

    def _value(self, what: str) -> bytes | None:
        """A value that no other record has; sometimes large."""
        self.serial += 1
        pad = 100_000 if self.random.random() < 0.001 else self.random.choice(PADS)
        return f"{self.name}-{self.serial}|{what}|".encode() + b"y" * pad

    def _between(self) -> Iterator[Step]:
        rng = self.random
        if rng.random() < 0.06:
            yield [self._plain()]
        if rng.random() < 0.03:
            kind, case, headers = rng.choice(BAD)
            key = rng.choice((None, b"bad", headers[0][1]))
            yield [SentRecord("bad", key, self._value("bad"), headers, refusal=(kind, case), partition=self._any())]
        if rng.random() < 0.01 and self.open:
            group = rng.choice(self.open)
            lost = [each._replace(value=self._value("aborted"), committed=False) for each in list(group)[:3]]
            yield [*lost, self._plain()._replace(committed=False)]

    def _any(self) -> int:
        return self.random.randrange(self.partitions)

    def _plain(self) -> SentRecord:
        headers: tuple[Headers, ...] = (
            (),
            (("note", None),),
            (("uow-seq", b"-7"), ("uow-end", b"banana")),
            (("uow-id", b"nested"), ("uow-kind", b"unit"), ("uow-unit-id", b"forged"), ("uow-pos", b"1/2")),
            (("twice", b"1"), ("twice", b"\xff")),
        )
        chosen = self.random.choice(headers)
        return SentRecord(
            "plain", self.random.choice((None, b"news")), self._value("plain"), chosen, partition=self._any()
        )

    def _unit(self) -> list[SentRecord]:
        rng = self.random
        self.units += 1
        odd = rng.random()
        name = f"{self.name}-{self.units}" + ("-é" if odd < 0.05 else "-" + "z" * 200 if odd < 0.08 else "")
        group_id, size = name.encode(), 200 if rng.random() < 0.002 else rng.choice(SIZES)
        style = rng.random()
        components = [self._component(group_id, number, size, style) for number in range(1, size + 1)]
        rng.shuffle(components)
        fate = rng.random()
        if fate < 0.03 and size > 1:
            components.pop()
        elif fate < 0.12:
            self._twice(components)
        elif fate < 0.15:
            self._wrong_end(components, group_id, size)
        else:
            self.whole[group_id] = size
        if fate > 0.97:
            number = rng.randrange(1, size + 2)
            if number >= size:  # if it comes early, the unit has another end, or none
                del self.whole[group_id]
            late = self._component(group_id, number, size + 5, 0.0)
            self.late.append((self.serial + rng.randrange(200, 2000), late))
        if 0.95 < fate < 0.97:
            at = rng.randrange(len(components))
            components[at] = components[at]._replace(partition=self._any())
        if 0.94 < fate < 0.95:
            extra = self._component(group_id, 1, size + 5, 0.0)
            headers = (*extra.headers, ("uow-rerouted", b"1"))
            del self.whole[
                group_id
            ]  # on the right partition the mark means nothing: the extra record is a duplicate, or the first one
            components.insert(0, extra._replace(headers=headers, partition=self._any()))
        return components

    def _component(self, group_id: bytes, number: int, size: int, style: float) -> SentRecord:
        """A component: most have the three headers only and the id as key; some have further headers, other spellings, or no key."""
        headers: Headers = (("uow-id", group_id), ("uow-seq", b"%d" % number))
        is_end = number == size
        if style < 0.7:
            headers += (("uow-end", b"true" if is_end else b"false"),)
        elif style < 0.8:
            headers = (("trace", b"\x00\xff"), *headers, *((("uow-end", b"TRUE"),) if is_end else ()), ("trace", None))
        elif style < 0.9:
            headers += (
                ("uow-component-id", b"%s/%d" % (group_id, number)),
                ("uow-end", b"true" if is_end else b"False"),
            )
        else:
            headers += (("uow-count", b"%d" % size),) if number == 1 or not is_end else (("uow-end", b"true"),)
        value = None if style > 0.995 and number == 1 else self._value("c")
        return SentRecord("component", group_id, value, headers)

    def _twice(self, components: list[SentRecord]) -> None:
        rng = self.random
        at = rng.randrange(len(components))
        chosen = components[at]
        way = rng.random()
        if way < 0.4:
            again = chosen
        elif way < 0.7:
            again = chosen._replace(value=self._value("conflict"))
        else:
            mark = ("uow-component-id", b"resent-%d" % self.serial)
            chosen = components[at] = chosen._replace(headers=(*chosen.headers, mark))
            again = chosen._replace(value=rng.choice((chosen.value, self._value("resent"))))
        components.insert(rng.randrange(at, len(components)) + 1, again)

    def _wrong_end(self, components: list[SentRecord], group_id: bytes, size: int) -> None:
        number = self.random.randrange(1, size + 4)
        extra = self._component(group_id, number, number if self.random.random() < 0.5 else size + 9, 0.0)
        components.insert(self.random.randrange(len(components) + 1), extra)


class Load(threading.Thread):
    """Sends a script until `finish` is called, then the rest of its open units. Brokers may stop and start meanwhile.

    Args:
        client: librdkafka properties, `bootstrap.servers` among them.
        topic: `D.components`.
        script: The records to send.
        rate: Records per second, roughly.
    """

    def __init__(self, client: Mapping[str, str], topic: str, script: Script, rate: int = 1500) -> None:
        super().__init__(name="prove-load", daemon=True)
        self.topic, self.script, self.rate = topic, script, rate
        self.sent: list[SentRecord] = []
        self.error: BaseException | None = None
        self._enough = threading.Event()
        self._failures: list[ck.KafkaError] = []
        common = {
            **client,
            "partitioner": "murmur2_random",
            "enable.idempotence": "true",
            "linger.ms": "5",
            "log_level": "2",
        }
        self._producers = [ck.Producer(common, logger=QUIET) for _ in range(PRODUCERS)]
        self._transactional_properties = common | {
            "transactional.id": f"{topic}-load",
            "transaction.timeout.ms": "30000",
            "retry.backoff.ms": "5",
        }
        self._transactional: ck.Producer | None = None

    def run(self) -> None:
        """The thread; `finish` reports its exception."""
        try:
            self._send_all(self.script.steps())
            self._send_all(self.script.finish(), to_the_end=True)
            for producer in self._producers:
                if producer.flush(FLUSH_S):
                    raise TimeoutError("the load's producers cannot deliver")
            if self._failures:
                raise RuntimeError(f"{len(self._failures)} records of the load failed: {self._failures[0]}")
        except BaseException as error:  # noqa: BLE001 - the thread's boundary
            self.error = error

    def finish(self) -> GroundTruth:
        """Stops after the open units, and returns everything that was sent.

        Raises:
            RuntimeError: The load could not send everything.
        """
        self._enough.set()
        self.join(2 * FLUSH_S)
        if self.error is not None or self.is_alive():
            raise RuntimeError(f"the load did not end: {self.error}") from self.error
        return GroundTruth(self.sent, dict(self.script.whole))

    def _send_all(self, steps: Iterator[Step], to_the_end: bool = False) -> None:
        started, sent = time.monotonic(), 0
        for step in steps:
            self._send(step)
            sent += len(step)
            if not sent % 64:
                for producer in self._producers:
                    producer.poll(0)
                ahead = sent / self.rate - (time.monotonic() - started)
                if ahead > 0 and not to_the_end:
                    self._enough.wait(ahead)
                elif ahead > 0:
                    time.sleep(min(ahead, 0.05))
            if self._enough.is_set() and not to_the_end:
                return

    def _send(self, step: Step) -> None:
        if is_transaction(step):
            self._abort(step)
        else:
            self._produce(self.script.random.choice(self._producers), step[0])

    def _abort(self, step: Step) -> None:
        """Sends a transaction and aborts it. A new producer aborts the open transaction of its predecessor."""
        try:
            if self._transactional is None:
                self._transactional = ck.Producer(self._transactional_properties, logger=QUIET)
                self._transactional.init_transactions(FLUSH_S)
            self._transactional.begin_transaction()
            for each in step:
                self._produce(self._transactional, each)
            self._transactional.flush(2)
            self._transactional.abort_transaction(10)
        except ck.KafkaException:
            self._transactional = None

    def _produce(self, producer: ck.Producer, sent: SentRecord) -> None:
        on_delivery = self._on_delivery if sent.committed else None
        produce: Any = producer.produce
        while True:
            try:
                produce(self.topic, sent.value, sent.key, sent.partition, on_delivery, None, 0, list(sent.headers))
                break
            except BufferError:
                producer.poll(0.1)
        self.sent.append(sent)

    def _on_delivery(self, error: ck.KafkaError | None, message: ck.Message) -> None:
        if error is not None:
            self._failures.append(error)
