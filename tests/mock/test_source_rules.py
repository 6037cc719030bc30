"""What the source promises about end offsets and seeks, with a consumer that answers by hand; and defects that these tests catch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

from tests.processes import wait_for
from uow.processor.engine.ports import EndQuestion, Tp
from uow.processor.kafka.clients import Clients
from uow.processor.kafka.log_offsets import LogOffsets
from uow.processor.kafka.replicated_ends import HELD_BACK_MS, ReplicatedEnds
from uow.processor.kafka.source import TAKEN_AT_ONCE, UNPACK_CPU_S, KafkaSource
from uow.processor.kafka.worker_clock import WorkerClock
from uow.processor.kafka.worker_settings import WorkerSettings
from uow.processor.sim.simulated_kafka import StoredRecord

INPUT = Tp("D.components", 0)


class ReadMessage(StoredRecord):
    """A record as librdkafka gives it, or an event."""

    def __init__(self, offset: int, code: int | None = None) -> None:
        super().__init__(INPUT, offset, b"k", b"v", [], 1_000)
        self._code = code

    def error(self) -> Any:
        return None if self._code is None else ck.KafkaError(self._code)


SIDES = {type(getattr(OffsetSpec, name)()): name for name in ("latest", "earliest", "max_timestamp")}


class Answering:
    """Stands in for the handles and for their maker. An answer takes 500 ms."""

    def __init__(self) -> None:
        self.now, self.start, self.end, self.newest = 10_000, 0, 3, 1
        self.copies, self.asked = 3, Counter[str]()
        self.waiting: list[ReadMessage] = []
        self.cpu_s, self.cpu_s_of_each, self.most_taken = 0.0, 0.0, 0

    def group_consumer(self, on_statistics: Any) -> Any:
        return self

    def admin(self) -> Any:
        return self

    def list_offsets(self, wanted: Any, **how: Any) -> Any:
        assert how["isolation_level"] is ck.IsolationLevel.READ_UNCOMMITTED
        self.now += 500
        answers = {}
        for tp, side in wanted.items():
            name = SIDES[type(side)]
            self.asked[name] += 1
            offset = {"latest": self.end, "earliest": self.start, "max_timestamp": self.newest}[name]
            answers[tp] = Future[Any]()
            answers[tp].set_result(SimpleNamespace(offset=offset))
        return answers

    def list_topics(self, topic: str, timeout: float) -> Any:
        self.asked["replicas"] += 1
        partition = SimpleNamespace(replicas=list(range(self.copies)))
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None, partitions={INPUT.partition: partition})})

    def poll(self, timeout: float) -> ReadMessage | None:
        return self.waiting.pop(0) if self.waiting else None

    def consume(self, count: int, timeout: float) -> list[ReadMessage]:
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        self.most_taken = max(self.most_taken, len(taken))
        self.cpu_s += len(taken) * self.cpu_s_of_each
        return taken

    def consumer_group_metadata(self) -> object:
        return object()

    def subscribe(self, *_: Any, **__: Any) -> None: ...
    def incremental_assign(self, _: Any) -> None: ...
    def seek(self, _: Any) -> None: ...
    def resume(self, _: Any) -> None: ...


class SourceBench:
    def __init__(self) -> None:
        self.kafka = Answering()
        clock = WorkerClock(lambda: self.kafka.now, lambda: self.kafka.now)
        self.source = KafkaSource(cast(Clients, self.kafka), WorkerSettings("A", "", "0"), clock)
        self.source.open([INPUT.topic], lambda tps: None, lambda tps: tps, lambda tps: tps)
        self.source.begin({INPUT: 0})

    def get(self, *messages: ReadMessage) -> list[int]:
        """Offsets of what comes of these."""
        self.kafka.waiting += messages
        poll = self.source.read(10, 0.0)
        return [] if poll is None else [record.offset() for record in poll.records.get(INPUT, [])]


def at_the_end(offset: int) -> ReadMessage:
    return ReadMessage(offset, ck.KafkaError._PARTITION_EOF)


def ask(bench: SourceBench) -> EndQuestion:
    """A question that is put."""
    question = bench.source.end(INPUT)
    bench.source.control(0.0)
    return question


def check_time_is_taken_before_the_question() -> None:
    """A record that arrives while the end offset is under way is not seen: the clock may not be later than the question (W-82)."""
    bench = SourceBench()
    before = bench.kafka.now
    question = ask(bench)
    assert (question.asked_at, question.answer()) == (before, 3)
    assert bench.kafka.now > before


def check_a_newest_record_that_is_told_is_below_the_end() -> None:
    """It is told if it is replicated, as then is all that came before. If that was between the two answers another end is asked for:
    of a batch brokers tell where it begins (decision 23)."""
    bench = SourceBench()
    bench.kafka.newest = 2
    assert ask(bench).answer() == 3
    bench.kafka.end = bench.kafka.newest = 100
    question = ask(bench)
    assert question.answer() is None
    bench.kafka.end = 150
    assert answers_of(bench, question)[-1] == 150


def check_an_end_below_what_is_held_back_is_none() -> None:
    """What is not replicated yet lies above the end offset that brokers tell; that the newest record is not told shows that there is something (decision 23)."""
    bench = SourceBench()
    bench.kafka.newest = -1
    question = ask(bench)
    assert answers_of(bench, question) == [None] * 5
    bench.kafka.newest = 2
    assert answers_of(bench, question)[-1] == 3
    bench.kafka.newest, bench.kafka.start = -1, 3  # retention has taken all
    assert answers_of(bench, ask(bench))[-1] == 3


def answers_of(bench: SourceBench, question: EndQuestion) -> list[int | None]:
    """As it is asked for again and again."""
    found = []
    for _ in range(5):
        found.append(question.answer())
        bench.source.control(0.0)
    return found


def check_an_answer_stays_as_it_is() -> None:
    """Another question, put later, moves no end away from somebody who waits for it."""
    bench = SourceBench()
    first = ask(bench)
    assert first.answer() == 3
    bench.kafka.end = 9
    assert (ask(bench).answer(), first.answer()) == (9, 3)


def check_one_replica_holds_nothing_back() -> None:
    """Nobody is waited for: once it is known how many replicas there are, which is asked once, the newest record is not asked for."""
    bench = SourceBench()
    bench.kafka.copies, bench.kafka.newest, bench.kafka.end = 1, -1, 0
    ask(bench)
    wait_for(lambda: bench.kafka.asked["replicas"] == 1)
    bench.kafka.asked.clear()
    bench.kafka.end = 3
    assert [ask(bench).answer() for _ in range(3)] == [3, 3, 3]
    assert bench.kafka.asked == {"latest": 3}


def check_an_end_is_asked_for_by_two_requests() -> None:
    """One for the end, one for the newest record."""
    bench = SourceBench()
    ask(bench)
    wait_for(lambda: bench.kafka.asked["replicas"] == 1)
    bench.kafka.asked.clear()
    assert [ask(bench).answer() for _ in range(3)] == [3, 3, 3]
    assert bench.kafka.asked == {"latest": 3, "max_timestamp": 3}


def check_an_end_is_not_doubted_for_ever() -> None:
    """A log in tiered storage of which nothing is left on the broker's disk has no newest record: its groups must end all the same.
    Nor may input that never stops, and is never replicated to the last record, keep them."""
    kafka = Answering()
    kafka.newest = -1
    ends = ReplicatedEnds(LogOffsets(cast(Clients, kafka)), lambda: kafka.now)
    began, told = kafka.now, None
    while told is None:
        assert kafka.now - began < 2 * HELD_BACK_MS
        kafka.end += 1  # what lies above now is another record
        told = ends.end(INPUT, began)
        ends.send()
    assert kafka.now - began >= HELD_BACK_MS


def check_what_was_fetched_before_a_seek_is_dropped() -> None:
    """What a rebalance left over must not come before what is read again (ER-05)."""
    bench = SourceBench()
    assert bench.get(ReadMessage(0), ReadMessage(1)) == [0, 1]
    bench.kafka.waiting.append(ReadMessage(2))
    bench.source.control(0.0)
    bench.source.seek({INPUT: 0})
    assert bench.get(ReadMessage(0)) == [0]


def check_an_end_that_was_reached_before_a_seek_is_forgotten() -> None:
    """After a seek nothing is known of the partition's end (W-82)."""
    bench = SourceBench()
    assert bench.get(ReadMessage(0), ReadMessage(1), at_the_end(3)) == [0, 1]
    assert bench.source.has_read(INPUT, 2, 3)
    assert bench.source.reached(INPUT, 2) == 3
    bench.source.seek({INPUT: 1})
    assert not bench.source.has_read(INPUT, 2, 3)
    assert bench.source.reached(INPUT, 1) == 1


def check_a_poll_of_heavy_records_ends_early() -> None:
    """The library unpacks headers when it hands records over: a few records are taken at a time, and no more once that took long (ER-19)."""
    bench = SourceBench()
    with patch("uow.processor.kafka.source.time.thread_time", lambda: bench.kafka.cpu_s):
        bench.kafka.waiting = [ReadMessage(offset) for offset in range(200)]
        assert len(bench.get()) == 10, "as many as asked for, where they are light"
        bench.kafka.cpu_s_of_each = UNPACK_CPU_S / 2
        poll = bench.source.read(150, 0.0)
        assert poll is not None
        assert len(poll.records[INPUT]) == 1 + TAKEN_AT_ONCE
    assert bench.kafka.most_taken == TAKEN_AT_ONCE
    following = 10 + 1 + TAKEN_AT_ONCE
    assert bench.get() == list(range(following, following + 10)), "the others come next"


CHECKS = [
    check_time_is_taken_before_the_question,
    check_a_newest_record_that_is_told_is_below_the_end,
    check_an_end_below_what_is_held_back_is_none,
    check_an_end_is_not_doubted_for_ever,
    check_an_answer_stays_as_it_is,
    check_an_end_is_asked_for_by_two_requests,
    check_one_replica_holds_nothing_back,
    check_what_was_fetched_before_a_seek_is_dropped,
    check_an_end_that_was_reached_before_a_seek_is_forgotten,
    check_a_poll_of_heavy_records_ends_early,
]


@pytest.mark.parametrize("check", CHECKS)
def test_what_the_source_promises_w82_er05(check: Callable[[], None]) -> None:
    check()


# -- the same with a defect


def time_of_an_end_offset_is_taken_after_its_answer() -> Any:
    original = KafkaSource.end

    def wrong(self: KafkaSource, tp: Tp) -> EndQuestion:
        question = original(self, tp)
        self.control(0.0)
        return EndQuestion(self._clock.at(tp), question.answer)

    return patch.object(KafkaSource, "end", wrong)


def high_watermark_is_taken_for_the_end() -> Any:
    return patch.object(ReplicatedEnds, "_replicas", lambda self, tp: 1)


def end_is_doubted_for_ever() -> Any:
    return patch("uow.processor.kafka.replicated_ends.HELD_BACK_MS", math.inf)


def seek_keeps_what_was_fetched() -> Any:
    return patch.object(KafkaSource, "_forget", lambda self, tp, position: self._reached.pop(tp, None))


def seek_keeps_the_end_that_was_reached() -> Any:
    original = KafkaSource._forget

    def wrong(self: KafkaSource, tp: Tp, position: int) -> None:
        reached = self._reached.get(tp, -1)
        original(self, tp, position)
        self._reached[tp] = reached

    return patch.object(KafkaSource, "_forget", wrong)


def poll_is_taken_at_once() -> Any:
    return patch("uow.processor.kafka.source.TAKEN_AT_ONCE", 5_000)


def poll_takes_all_however_long_it_takes() -> Any:
    return patch("uow.processor.kafka.source.UNPACK_CPU_S", math.inf)


@pytest.mark.parametrize(
    ("defect", "check"),
    [
        (time_of_an_end_offset_is_taken_after_its_answer, check_time_is_taken_before_the_question),
        (high_watermark_is_taken_for_the_end, check_an_end_below_what_is_held_back_is_none),
        (high_watermark_is_taken_for_the_end, check_a_newest_record_that_is_told_is_below_the_end),
        (end_is_doubted_for_ever, check_an_end_is_not_doubted_for_ever),
        (seek_keeps_what_was_fetched, check_what_was_fetched_before_a_seek_is_dropped),
        (seek_keeps_the_end_that_was_reached, check_an_end_that_was_reached_before_a_seek_is_forgotten),
        (poll_is_taken_at_once, check_a_poll_of_heavy_records_ends_early),
        (poll_takes_all_however_long_it_takes, check_a_poll_of_heavy_records_ends_early),
    ],
)
def test_planted_defect_of_the_source_is_caught(defect: Callable[[], Any], check: Callable[[], None]) -> None:
    with defect(), pytest.raises(AssertionError):
        check()
