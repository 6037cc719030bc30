"""Ends of logs, asked for without waiting: what is under way is not asked again, a late answer counts, and one leader that hangs holds back nobody for long."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import confluent_kafka as ck

from uow.processor.engine.ports import Tp
from uow.processor.kafka.log_ends import AGAIN_MS, ALONE_S, TOGETHER_S, LogEnds

TPS = [Tp("in", number) for number in range(4)]


class Leaders:
    """Leaders that answer when they are told to. As in the library, a request is answered as a whole."""

    def __init__(self) -> None:
        self.now = 0.0
        self.requests: list[tuple[tuple[Tp, ...], float, dict[Tp, Future[Any]]]] = []
        self.ends = LogEnds(self._question, lambda: self.now)

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
    leaders.now = AGAIN_MS
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
