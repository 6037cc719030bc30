"""Topics that are deleted and made again while they are read (F24)."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import confluent_kafka as ck
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient

from uow.processor.kafka.topic_ids import LOOK_S, TopicIds


class Brokers:
    """Answers with these ids; None: the topic is not there."""

    def __init__(self, **ids: str | None) -> None:
        self.ids, self.now, self.asked, self.is_silent = ids, 0.0, 0, False
        self.watch = TopicIds(lambda: cast(AdminClient, self), lambda: self.now)

    def describe_topics(self, topics: TopicCollection, request_timeout: float) -> dict[str, Future[Any]]:
        self.asked += 1
        return {name: self._answer(name) for name in topics.topic_names}

    def _answer(self, name: str) -> Future[Any]:
        answer: Future[Any] = Future()
        if self.is_silent:
            return answer
        if self.ids[name] is None:
            answer.set_exception(ck.KafkaException(ck.KafkaError(ck.KafkaError.UNKNOWN_TOPIC_OR_PART)))
        else:
            answer.set_result(SimpleNamespace(topic_id=self.ids[name]))
        return answer

    def look(self, after: float = LOOK_S) -> set[str]:
        """As a reader does, twice: it asks, and then takes the answer."""
        self.now += after
        for _ in range(2):
            self.watch.look([*self.ids])
        return self.watch.changed


def test_a_topic_with_another_id_was_made_again_f24() -> None:
    brokers = Brokers(one="a", two="b")
    assert brokers.look() == set()
    brokers.ids["two"] = None
    assert brokers.look() == set()
    brokers.ids["two"] = "c"
    assert brokers.look() == {"two"}
    brokers.ids["two"] = "b"
    assert brokers.look() == {"two"}, "and stays so"


def test_it_asks_now_and_then_and_waits_for_nothing() -> None:
    brokers = Brokers(one="a")
    for _ in range(10):
        brokers.look(LOOK_S / 10)
    assert brokers.asked == 1
    brokers.is_silent, brokers.ids["one"] = True, "b"
    assert brokers.look() == brokers.look() == set()
    brokers.is_silent = False
    assert brokers.look() == {"one"}
