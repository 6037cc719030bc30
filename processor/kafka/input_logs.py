"""The partitions of inputs, and the positions of routers there, asked for without waiting.

Belongs here: these questions. Does not belong here: ends (`log_ends`), and what follows from the answers (`router_positions`).
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Final

import confluent_kafka as ck

from uow.processor.engine.ports import Tp
from uow.processor.kafka.clients import Clients
from uow.processor.kafka.log_offsets import LogOffsets

ANSWER_S: Final = 5.0


class KafkaInputLogs:
    """Port `InputLogs`.

    Args:
        clients: Of the routers.
        group: Their consumer group.
        offsets: Asks about topics.
    """

    def __init__(self, clients: Clients, group: str, offsets: LogOffsets) -> None:
        self._clients, self._group, self._offsets = clients, group, offsets
        self._admin: Any = None

    def partitions(self, name: str) -> Future[dict[int, int]]:
        """Their numbers, with the number of their replicas."""
        return self._offsets.replicas(name, ANSWER_S)

    def positions(self) -> Future[Mapping[Tp, int]]:
        """Not stable ones: those of a transaction in flight count when it is committed, and nobody waits for it."""
        if self._admin is None:
            self._admin = self._clients.admin()
        asked = [ck.ConsumerGroupTopicPartitions(self._group)]
        (answer,) = self._admin.list_consumer_group_offsets(asked, request_timeout=ANSWER_S).values()
        told: Future[Mapping[Tp, int]] = Future()
        answer.add_done_callback(lambda found: _tell(found, told))
        return told


def _tell(answer: Future[Any], told: Future[Mapping[Tp, int]]) -> None:
    """In a thread of the library, where no handle may end: so this holds none."""
    try:
        rows = answer.result().topic_partitions
        for row in rows:
            if row.error is not None:
                raise ck.KafkaException(row.error)
        told.set_result({Tp(row.topic, row.partition): row.offset for row in rows if row.offset >= 0})
    except Exception as failure:  # noqa: BLE001 - whatever it is, it is for who asked
        told.set_exception(failure.with_traceback(None))  # whose frames would hold the answer, and it them
