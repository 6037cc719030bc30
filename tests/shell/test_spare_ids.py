"""Spare transactional ids, while a transaction is decided whose marker one of its partitions does not take (decision 102)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import confluent_kafka as ck
import pytest

from uow.processor.kafka.transactional_producer import STUCK_S, TransactionalProducer

STUCK, REFUSED = ck.KafkaError.CONCURRENT_TRANSACTIONS, ck.KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


class Handle:
    """Of an id; asks as long as it takes, like the library."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.cluster, self.number = cluster, number

    def init_transactions(self, timeout: float) -> None:
        code = self.cluster.answers.get(self.number)
        self.cluster.now += timeout
        if code is not None:
            raise ck.KafkaException(ck.KafkaError(code, None, False, code == STUCK))
        self.cluster.owners[self.number] = self

    def begin_transaction(self) -> None:
        assert self.cluster.owners[self.number] is self, "fenced"
        self.cluster.began.append(self.number)

    def poll(self, timeout: float) -> int:
        return 0

    def purge(self) -> None: ...


class Cluster:
    """Answers by the number of an id: 0 is the first one; without an answer it is initialised."""

    def __init__(self) -> None:
        self.answers: dict[int, int] = {}
        self.owners: dict[int, Handle] = {}
        self.began: list[int] = []
        self.now = 0.0

    def producer(self, spares: int = 2) -> TransactionalProducer[Any]:
        def make(on_line: object, number: int) -> Handle:
            return Handle(self, number)

        makers: list[Callable[[Any], Any]] = [partial(make, number=number) for number in range(spares + 1)]
        return TransactionalProducer(makers[0], 10.0, monotonic=lambda: self.now, spares=makers[1:])


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def tries(limit: int) -> Callable[[Any], None]:
    """Patience that ends."""
    failures = iter(range(limit))

    def patience(failure: Any) -> None:
        if next(failures, None) is None:
            raise TimeoutError

    return patience


def test_a_stuck_id_is_waited_for_a_moment_then_a_spare_one_is_used_until_it_is_free_b57(cluster: Cluster) -> None:
    cluster.answers = {0: STUCK, 1: STUCK}
    producer = cluster.producer()
    producer.open(tries(99))
    assert 2 * STUCK_S <= cluster.now < 2 * STUCK_S + 2
    producer.begin(tries(0))
    cluster.answers = {1: STUCK}
    producer.begin(tries(0))
    producer.begin(tries(0))
    assert cluster.began == [2, 0, 0]


def test_a_new_handle_while_the_first_id_is_stuck_begins_with_the_spare_one_that_was_in_use(cluster: Cluster) -> None:
    cluster.answers = {0: STUCK}
    producer = cluster.producer()
    producer.open(tries(99))
    producer.suspect("a connection broke")
    producer.begin(tries(0))
    assert cluster.began == [1]


def test_while_all_ids_are_stuck_each_is_asked_in_turn_and_the_first_that_is_free_is_used(cluster: Cluster) -> None:
    cluster.answers = {0: STUCK, 1: STUCK}
    producer = cluster.producer(spares=1)
    with pytest.raises(TimeoutError):
        producer.open(tries(30))
    cluster.answers = {1: STUCK}
    producer.begin(tries(30))
    producer.begin(tries(0))
    assert cluster.began == [0, 0]


def test_an_id_without_spares_is_waited_for(cluster: Cluster) -> None:
    cluster.answers = {0: STUCK}
    with pytest.raises(TimeoutError):
        cluster.producer(spares=0).open(tries(30))


def test_a_spare_id_that_may_not_be_used_ends_nobody(cluster: Cluster) -> None:
    cluster.answers = {0: STUCK, 1: REFUSED}
    producer = cluster.producer()
    with pytest.raises(TimeoutError):
        producer.open(tries(30))
    cluster.answers = {}
    producer.begin(tries(0))
    assert cluster.began == [0]
