"""Start and end offsets of the logs of topic partitions, asked for separately.

Belongs here: asking. Does not belong here: waiting for answers, and repeating questions (`log_ends`, `log_reader`).

A handle remembers who leads a partition, and since which epoch. When a broker begins anew the epoch is another one; the broker then refuses each
question with `FENCED_LEADER_EPOCH`, and librdkafka (2.16) goes on asking with the old one, for more than a minute. So after such a refusal the handle is made to
look first.

librdkafka's `query_watermark_offsets` asks for both sides and, when the broker refuses one of the two, may take what came for both (2.16):
a log whose leader has just moved looks empty. A restore would find no state there, and a first start begin at the end. Its `list_offsets` asks several leaders
at once, and where one of them does not answer in time returns -1001 for its partitions, without an error: that is an error here.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, cast

import confluent_kafka as ck
from confluent_kafka import IsolationLevel
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # left out of its `__all__`

from uow.processor.engine.ports import Tp
from uow.processor.kafka.bounded import in_thread
from uow.processor.kafka.clients import Clients

LOOK_S = 5.0
"""Longest that the handle looks for who leads now, after a refusal."""
OLD_LEADERS = frozenset(
    {
        ck.KafkaError.FENCED_LEADER_EPOCH,
        ck.KafkaError.UNKNOWN_LEADER_EPOCH,
        ck.KafkaError.NOT_LEADER_FOR_PARTITION,
    }
)
"""Refusals of a question by what the handle remembers of leaders."""

_SIDE: Any = OffsetSpec
Answers = dict[Tp, "Future[Any]"]
"""The result's `offset` is the answer; or a `KafkaException`."""


class LogOffsets:
    """Asks brokers, by a handle that is made when it is needed first.

    Args:
        clients: Makes it.
    """

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._admin: Any = None
        self._refused: set[str] = set()
        self._looking: set[str] = set()

    def starts(self, tps: Sequence[Tp], timeout: float) -> Answers:
        """Offset of the first record that is left."""
        return self._ask(tps, _SIDE.earliest(), IsolationLevel.READ_UNCOMMITTED, timeout)

    def ends(self, tps: Sequence[Tp], timeout: float) -> Answers:
        """End offset as a `read_uncommitted` reader sees it (ER-06)."""
        return self._ask(tps, _SIDE.latest(), IsolationLevel.READ_UNCOMMITTED, timeout)

    def stable_ends(self, tps: Sequence[Tp], timeout: float) -> Answers:
        """End offset as a `read_committed` reader sees it: before the first open transaction."""
        return self._ask(tps, _SIDE.latest(), IsolationLevel.READ_COMMITTED, timeout)

    def newest(self, tps: Sequence[Tp], timeout: float) -> Answers:
        """Offset of the record with the latest time stamp; -1 where there is none, or where it is not replicated yet."""
        return self._ask(tps, _SIDE.max_timestamp(), IsolationLevel.READ_UNCOMMITTED, timeout)

    def replicas(self, topic: str, timeout: float) -> Future[dict[int, int]]:
        """Number of replicas by partition of a topic; or a `KafkaException`. In a thread of ours: the library waits for the answer."""
        answer: Future[dict[int, int]] = Future()
        handle = self._handle

        def ask() -> None:
            try:
                found = handle.list_topics(topic, timeout).topics[topic]
                if found.error is not None:
                    raise ck.KafkaException(found.error)
                answer.set_result({number: len(each.replicas) for number, each in found.partitions.items()})
            except Exception as failure:  # noqa: BLE001 - whatever it is, it is for who asked
                answer.set_exception(failure.with_traceback(None))  # whose frames would hold the answer, and it them

        in_thread(ask)
        return answer

    @property
    def _handle(self) -> Any:
        if self._admin is None:
            self._admin = self._clients.admin()
        return self._admin

    def _ask(self, tps: Sequence[Tp], side: Any, isolation: IsolationLevel, timeout: float) -> Answers:
        if not tps:
            return {}
        for topic in self._refused.intersection({tp.topic for tp in tps}):
            self._look(topic)
        wanted = {ck.TopicPartition(*tp): side for tp in tps}
        found = self._handle.list_offsets(wanted, isolation_level=isolation, request_timeout=timeout)
        answers: Answers = {Tp(asked.topic, asked.partition): Future() for asked in found}
        for asked, answer in found.items():
            told = answers[Tp(asked.topic, asked.partition)]
            answer.add_done_callback(partial(_tell, self._refused, asked.topic, told))
        return answers

    def _look(self, topic: str) -> None:
        """Looks for who leads now, in a thread of ours and once at a time: a question that is put meanwhile may be refused as well, and is put again."""
        if topic in self._looking:
            return
        self._looking.add(topic)
        self._refused.discard(topic)
        handle, looking = self._handle, self._looking

        def look() -> None:
            with suppress(Exception):  # the question will tell
                handle.list_topics(topic, LOOK_S)
            looking.discard(topic)

        in_thread(look)


def _tell(refused: set[str], topic: str, told: Future[Any], answer: Future[Any]) -> None:
    """In a thread of the library, where no handle may end: so this holds none."""
    try:
        offset_of(topic, answer)
        told.set_result(answer.result())
    except Exception as failure:  # noqa: BLE001 - whatever it is, it is for who asked
        if isinstance(failure, ck.KafkaException) and failure.args[0].code() in OLD_LEADERS:
            refused.add(topic)
        told.set_exception(failure.with_traceback(None))  # whose frames would hold the answer, and it them


def error_of(failure: Exception) -> ck.KafkaError:
    """The error of a question that failed, whatever it failed with."""
    if isinstance(failure, ck.KafkaException):
        return cast(ck.KafkaError, failure.args[0])
    return ck.KafkaError(ck.KafkaError._FAIL, str(failure) or type(failure).__name__)


def offset_of(topic: str, answer: Future[Any]) -> int:
    """The offset in an answer of `list_offsets`. Raises `KafkaException`, also where the leader did not answer."""
    offset = int(answer.result().offset)
    if offset == ck.OFFSET_INVALID:
        text = f"{topic}: the leader does not tell its offsets"
        raise ck.KafkaException(ck.KafkaError(ck.KafkaError._TIMED_OUT, text, retriable=True))
    return offset
