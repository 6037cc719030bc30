"""Ends of logs, asked for without waiting: what is under way is not asked again, a late answer counts, and one leader that hangs holds back nobody for long."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from itertools import count
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import confluent_kafka as ck
import pytest

from tests.processes import wait_for
from uow.processor.engine.ports import Tp
from uow.processor.kafka.clients import Clients
from uow.processor.kafka.log_ends import AGAIN_MS, ALONE_S, TOGETHER_S, LogEnds
from uow.processor.kafka.log_offsets import LogOffsets

TPS = [Tp("in", number) for number in range(4)]


class Leaders:
    """Leaders that answer when they are told to. As in the library, a request is answered as a whole."""

    def __init__(self) -> None:
        self.now = 0.0
        self.requests: list[tuple[tuple[Tp, ...], float, dict[Tp, Future[Any]]]] = []
        self.ends = LogEnds(self._question, self._tick)

    def _tick(self) -> float:
        self.now += 0.001
        return self.now

    def _question(self, tps: Sequence[Tp], timeout: float) -> dict[Tp, Future[Any]]:
        answers: dict[Tp, Future[Any]] = {tp: Future() for tp in tps}
        self.requests.append((tuple(tps), timeout, answers))
        return answers

    def ask(self, since: float, *tps: Tp) -> list[int | None]:
        answers = [self.ends.answer(tp, since) for tp in tps]
        self.ends.send()
        return [None if each is None else each.offset for each in answers]

    def answer(self, number: int, offset: int, hanging: Tp | None = None) -> None:
        for tp, answer in self.requests[number][2].items():
            answer.set_result(SimpleNamespace(offset=ck.OFFSET_INVALID if tp == hanging else offset))


def test_many_partitions_are_asked_by_one_request_and_none_twice() -> None:
    leaders = Leaders()
    for _ in range(3):
        leaders.now += 400
        assert leaders.ask(0, *TPS) == [None] * 4
    assert [(tps, timeout) for tps, timeout, _ in leaders.requests] == [(tuple(TPS), TOGETHER_S)]
    leaders.answer(0, 7)
    assert leaders.ask(0, *TPS) == [7] * 4
    assert len(leaders.requests) == 1


def test_an_answer_counts_as_of_its_question_however_late_it_comes() -> None:
    leaders = Leaders()
    leaders.now = 1_000
    assert leaders.ask(1_000, TPS[0]) == [None]
    leaders.now = 20_000
    leaders.answer(0, 7)
    assert leaders.ask(1_000, TPS[0]) == [7]
    assert leaders.ask(1_001, TPS[0]) == [None], "it tells nothing about what came after the question"
    leaders.answer(1, 9)
    assert leaders.ask(1_001, TPS[0]) == [9]


def test_a_leader_that_hangs_holds_back_the_others_once_and_is_asked_by_itself_then() -> None:
    leaders = Leaders()
    leaders.ask(0, *TPS)
    leaders.answer(0, 7, hanging=TPS[1])
    assert leaders.ask(0, *TPS) == [7, None, 7, 7]
    leaders.now = 2 * AGAIN_MS
    leaders.ask(AGAIN_MS, *TPS)
    assert [(tps, timeout) for tps, timeout, _ in leaders.requests[1:]] == [
        ((TPS[0], TPS[2], TPS[3]), TOGETHER_S),
        ((TPS[1],), ALONE_S),
    ]
    leaders.answer(1, 8)
    assert leaders.ask(AGAIN_MS, *TPS) == [8, None, 8, 8]
    leaders.answer(2, 5)
    assert leaders.ask(AGAIN_MS, *TPS) == [8, 5, 8, 8]
    leaders.now += 1
    leaders.ask(leaders.now, *TPS)
    assert leaders.requests[-1][0] == tuple(TPS), "once it answers it is asked with the others"


def test_a_question_that_fails_at_once_is_not_put_each_turn() -> None:
    leaders = Leaders()
    leaders.ask(0, TPS[0])
    for _ in range(10):
        leaders.now += AGAIN_MS / 10
        if not leaders.requests[-1][2][TPS[0]].done():
            leaders.requests[-1][2][TPS[0]].set_exception(
                ck.KafkaException(ck.KafkaError(ck.KafkaError.UNKNOWN_TOPIC_OR_PART))
            )
        leaders.ask(0, TPS[0])
    assert len(leaders.requests) <= 2
    failure = leaders.ends.failure(TPS[0])
    assert failure is None or failure.code() == ck.KafkaError.UNKNOWN_TOPIC_OR_PART


def test_a_question_answers_nobody_who_asks_in_the_same_moment_but_later() -> None:
    """Of a clock that tells whole milliseconds: what is appended between the two lies above the answer."""
    leaders = Leaders()
    ends = LogEnds(leaders._question, lambda: 7.0)
    ends.answer(TPS[0], 6.0)
    ends.send()
    leaders.answer(0, 5)
    assert ends.answer(TPS[0], 6.0) is not None
    assert ends.answer(TPS[0], 7.0) is None


@pytest.mark.parametrize("failure", [RuntimeError("odd"), ck.KafkaException(ck.KafkaError(ck.KafkaError._FAIL))])
def test_a_question_may_fail_with_anything(failure: Exception) -> None:
    leaders = Leaders()
    leaders.ask(0, TPS[0])
    leaders.requests[0][2][TPS[0]].set_exception(failure)
    assert leaders.ask(0, TPS[0]) == [None]
    leaders.now += AGAIN_MS + 1
    leaders.ask(0, TPS[0])
    leaders.answer(1, 5)
    assert leaders.ask(0, TPS[0]) == [5]


class MovedLeaders:
    """Leaders that are others now: each question is refused until the handle has looked, which takes until it is told to go on."""

    def __init__(self) -> None:
        self.looks, self.go_on, self.is_known = 0, Event(), False

    def admin(self) -> Any:
        return self

    def list_topics(self, topic: str, timeout: float) -> None:
        self.looks += 1
        self.go_on.wait(timeout)
        self.is_known = True

    def list_offsets(self, wanted: Any, **how: Any) -> Any:
        answers: dict[Any, Future[Any]] = {tp: Future() for tp in wanted}
        for answer in answers.values():
            if self.is_known:
                answer.set_result(SimpleNamespace(offset=5))
            else:
                answer.set_exception(ck.KafkaException(ck.KafkaError(ck.KafkaError.FENCED_LEADER_EPOCH)))
        return answers


def test_nobody_waits_until_the_handle_knows_who_leads_now() -> None:
    """Each partition that is asked by itself waited for 0.3 s, in the thread that reads."""
    kafka = MovedLeaders()
    offsets = LogOffsets(cast(Clients, kafka))
    for _ in range(5):
        for tp in TPS:
            assert offsets.ends([tp], ALONE_S)[tp].exception() is not None
    wait_for(lambda: kafka.looks > 0)
    assert kafka.looks == 1, "one at a time, whose answer nobody has waited for"
    kafka.go_on.set()
    wait_for(lambda: offsets.ends(TPS[:1], ALONE_S)[TPS[0]].exception() is None)


def test_questions_that_failed_leave_nothing_behind_with_the_collector_off() -> None:
    """A partition without a leader is asked several times a second, for hours."""

    class Refusing:
        def list_offsets(self, wanted: dict[Any, Any], **_: Any) -> dict[Any, Future[Any]]:
            answers: dict[Any, Future[Any]] = {tp: Future() for tp in wanted}
            for answer in answers.values():
                answer.set_exception(ck.KafkaException(ck.KafkaError(ck.KafkaError.LEADER_NOT_AVAILABLE)))
            return answers

    gone: list[weakref.ref[Future[Any]]] = []
    offsets = LogOffsets(cast(Clients, SimpleNamespace(admin=Refusing)))

    def question(tps: Sequence[Tp], timeout: float) -> dict[Tp, Future[Any]]:
        found = offsets.ends(tps, timeout)
        gone.extend(weakref.ref(each) for each in found.values())
        return found

    now = count(0.0, 1_000.0)
    ends = LogEnds(question, lambda: next(now))
    gc.disable()
    try:
        for _ in range(20):
            assert ends.answer(TPS[0], 1e9) is None
            ends.send()
        assert len(gone) > 5
        assert sum(each() is not None for each in gone) <= 1
    finally:
        gc.enable()
