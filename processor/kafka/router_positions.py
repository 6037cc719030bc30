"""How far the routers are, asked of the brokers: port `Upstream` of workers (aggregation, section 3, B-218).

A group must not be given up while a record for it lies unread in an input. So the ends of the inputs are noted, with the moment; once the routers'
committed positions have reached them, all that arrived before that moment is in the components, or refused. An end counts open
transactions and markers; routers commit positions past markers when they are at the end.

Belongs here: asking, in little time. Does not belong here: what follows for a group (`uow.processor.engine`).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import confluent_kafka as ck

from uow.processor.engine.ports import Tp
from uow.processor.kafka.clients import Clients
from uow.processor.kafka.log_offsets import Answers, LogOffsets
from uow.processor.kafka.outage import Outage

log = logging.getLogger("uow.router")

ANSWER_S: Final = 0.5
"""Longest wait for one answer: partitions with other work wait meanwhile."""
LOOK_MS: Final = 200
"""Between two looks at the same inputs."""
LOOKS_KEPT: Final = 50
TOPICS_S: Final = 30.0
"""How often the number of an input's partitions is asked for."""


class RouterPositions:
    """Port `Upstream`. For one thread.

    Args:
        clients: Of the routers: its consumers ask for the positions of their group.
        inputs_of: Returns the inputs whose records may come to a topic; empty: no router writes there.
        monotonic_ms: Milliseconds, from anywhere.
    """

    def __init__(
        self,
        clients: Clients,
        inputs_of: Callable[[str], Collection[str]],
        monotonic_ms: Callable[[], float] = lambda: time.monotonic() * 1000,
    ) -> None:
        self._clients, self._inputs_of, self._monotonic_ms = clients, inputs_of, monotonic_ms
        self._offsets = LogOffsets(clients)
        self._consumer: ck.Consumer | None = None
        self._partitions: dict[str, tuple[float, list[Tp]]] = {}
        self._looks: dict[str, deque[tuple[int, Mapping[Tp, int]]]] = {}
        self._looked: dict[str, float] = {}
        self._settled: dict[str, int] = {}
        self._outage = Outage()

    def settled(self, topic: str, now_ms: int) -> int:
        """Everything that arrived at the inputs before this moment is in the topic, or refused. Epoch ms; 0: nothing is known."""
        inputs = self._inputs_of(topic)
        if not inputs:
            return now_ms
        monotonic = self._monotonic_ms()
        if monotonic - self._looked.get(topic, -LOOK_MS) >= LOOK_MS:
            self._looked[topic] = monotonic
            try:
                self._look(topic, inputs, now_ms)
            except (ck.KafkaException, TimeoutError) as failure:
                if (line := self._outage.line(f"positions of the routers: {failure}")) is not None:
                    log.warning("%s", line)
        return self._settled.get(topic, 0)

    def _look(self, topic: str, inputs: Collection[str], now_ms: int) -> None:
        tps = [tp for name in sorted(inputs) for tp in self._of_topic(name)]
        looks = self._looks.setdefault(topic, deque(maxlen=LOOKS_KEPT))
        looks.append((now_ms, _awaited(self._offsets.ends(tps, ANSWER_S))))
        positions = self._positions(tps)
        while looks and all(positions[tp] >= end for tp, end in looks[0][1].items() if tp in positions):
            self._settled[topic] = max(looks.popleft()[0], self._settled.get(topic, 0))

    def _of_topic(self, name: str) -> list[Tp]:
        asked, tps = self._partitions.get(name, (0.0, []))
        if not tps or self._monotonic_ms() - asked > TOPICS_S * 1000:
            found = self._asker.list_topics(name, ANSWER_S).topics[name]
            if found.error is not None:
                raise ck.KafkaException(found.error)
            tps = [Tp(name, number) for number in found.partitions]
            self._partitions[name] = self._monotonic_ms(), tps
        return tps

    def _positions(self, tps: Sequence[Tp]) -> dict[Tp, int]:
        """Committed positions of the routers; the log's start where there is none, since they begin there."""
        rows = self._asker.committed([ck.TopicPartition(*tp) for tp in tps], ANSWER_S)
        for row in rows:
            if row.error is not None:
                raise ck.KafkaException(row.error)
        found = {Tp(row.topic, row.partition): row.offset for row in rows}
        new = [tp for tp, offset in found.items() if offset < 0]
        return found | _awaited(self._offsets.starts(new, ANSWER_S))

    @property
    def _asker(self) -> Any:
        if self._consumer is None:
            # not stable offsets: those of a transaction in flight count when it is committed, and nobody waits for it
            self._consumer = self._clients.log_consumer("read_uncommitted")
        return self._consumer

    def close(self) -> None:
        """Closes the consumer."""
        if self._consumer is not None:
            self._consumer.close()


def _awaited(answers: Answers) -> dict[Tp, int]:
    return {tp: int(answer.result(ANSWER_S).offset) for tp, answer in answers.items()}
