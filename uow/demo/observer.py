"""A `read_committed` consumer of all the story's topics, which shares no code with the worker.

Belongs here: the records it saw, and when. Does not belong here: judging them (`uow.demo.story_report`).
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition

from uow.client.kafka_port import raw_headers
from uow.schemas.codec import decode_as
from uow.schemas.error_classes import MisroutedComponentError
from uow.schemas.records import Unit
from uow.topics import headers as names
from uow.topics.catalogue import DestinationTopics

POLL_S = 0.1

_quiet = logging.getLogger("uow.demo.observer")
_quiet.addHandler(logging.NullHandler())
_quiet.propagate = False


@dataclass(frozen=True, slots=True)
class SeenUnit:
    """A unit that the observer read.

    Attributes:
        id: Group id.
        seqs: Numbers of its components, in their order.
        completed_at: Append time of the component that arrived last, epoch ms.
        seen_at: When the observer read it, epoch ms.
    """

    id: str
    seqs: tuple[int, ...]
    completed_at: int
    seen_at: int

    @property
    def latency_ms(self) -> int:
        """Time from the append of the last component until the unit was read."""
        return self.seen_at - self.completed_at


@dataclass(slots=True)
class Observations:
    """Everything that the observer read.

    Attributes:
        components: Number of records of `D.components`; `rerouted` is the number of those that were sent on to their partition.
        units: Units, in the order of reading.
        plain: Number of records that passed through to `D.units`.
        rejected: Number of records of `D.rejected` by class and case.
        given_up: Number of records of `D.errors` by group id.
        reasons: For each group that was given up, its `uow-error-case`.
        invoices: Invoices, in the order of reading.
        ids: Every group id seen anywhere.
    """

    components: int = 0
    rerouted: int = 0
    units: list[SeenUnit] = field(default_factory=list)
    plain: int = 0
    rejected: Counter[tuple[str, str]] = field(default_factory=Counter)
    given_up: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, str] = field(default_factory=dict)
    invoices: list[dict[str, Any]] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)

    @property
    def delivered(self) -> int:
        """Number of components in units."""
        return sum(len(unit.seqs) for unit in list(self.units))

    @property
    def accounted(self) -> int:
        """Number of records of `D.components` whose result is known (W-216)."""
        return self.delivered + self.given_up.total() + self.rejected.total() + self.plain + self.rerouted


class TopicWatch:
    """Reads topics in a thread of its own until it is closed; a context manager.

    Args:
        bootstrap: Address of the broker.
        read: Takes the records of each topic, with their headers by name.
        partitions: Number of partitions of each topic.

    Attributes:
        failure: The error that ended it, if one did.
    """

    def __init__(
        self, bootstrap: str, read: Mapping[str, Callable[[Message, dict[str, bytes]], None]], partitions: int
    ) -> None:
        self.failure: Exception | None = None
        self._read = read
        self._stop = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "demo-observer",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 100,
                "log_level": 0,
            },
            logger=_quiet,
        )
        self._consumer.assign(
            [TopicPartition(topic, number, OFFSET_BEGINNING) for topic in read for number in range(partitions)]
        )
        self._thread = threading.Thread(target=self._watch, name="observer", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer.close()

    def _watch(self) -> None:
        try:
            while not self._stop.is_set():
                message = self._consumer.poll(POLL_S)
                if message is not None and message.error() is None:
                    headers = {pair[0]: _bytes(pair[1]) for pair in raw_headers(message)}
                    self._read[str(message.topic())](message, headers)
        except Exception as failure:  # noqa: BLE001 - kept for the story, which asks for it in its own thread
            self.failure = failure


class Observer(TopicWatch):
    """Watches the topics of the Megazon story.

    Args:
        bootstrap: Address of the broker.
        topics: Topics of the destination.
        invoices: Topic of the invoices.
        partitions: Number of partitions of each topic.

    Attributes:
        observations: Everything it read; written by its thread only.
    """

    def __init__(self, bootstrap: str, topics: DestinationTopics, invoices: str, partitions: int) -> None:
        self.observations = Observations()
        read = {
            topics.components: self._on_component,
            topics.units: self._on_unit,
            topics.rejected: self._on_rejected,
            topics.errors: self._on_given_up,
            invoices: self._on_invoice,
        }
        super().__init__(bootstrap, {topic: self._noting_id(note) for topic, note in read.items()}, partitions)

    def _noting_id(
        self, note: Callable[[Message, dict[str, bytes]], None]
    ) -> Callable[[Message, dict[str, bytes]], None]:
        def read(message: Message, headers: dict[str, bytes]) -> None:
            if (raw := headers.get(names.ID)) is not None:
                self.observations.ids.add(raw.decode(errors="replace"))
            note(message, headers)

        return read

    def _on_component(self, message: Message, headers: dict[str, bytes]) -> None:
        self.observations.components += 1
        self.observations.rerouted += names.REROUTED in headers

    def _on_unit(self, message: Message, headers: dict[str, bytes]) -> None:
        if headers.get(names.KIND) != names.KIND_UNIT:
            self.observations.plain += 1
            return
        unit = decode_as(Unit, message.value() or b"")
        last = max(component.timestamp for component in unit.components)
        seqs = tuple(component.seq for component in unit.components)
        self.observations.units.append(SeenUnit(unit.id, seqs, last, time.time_ns() // 1_000_000))

    def _on_rejected(self, message: Message, headers: dict[str, bytes]) -> None:
        case = (headers[names.ERROR_CLASS].decode(), headers[names.ERROR_CASE].decode())
        self.observations.rejected[case] += 1
        # a record that already had the mark of having been sent on was not sent on by a worker
        self.observations.rerouted -= names.REROUTED in headers and case[0] == MisroutedComponentError.__name__

    def _on_given_up(self, message: Message, headers: dict[str, bytes]) -> None:
        group_id = headers[names.ID].decode()
        self.observations.reasons[group_id] = headers[names.ERROR_CASE].decode()
        self.observations.given_up[group_id] += 1

    def _on_invoice(self, message: Message, headers: dict[str, bytes]) -> None:
        self.observations.invoices.append(json.loads(message.value() or b"{}"))


def _bytes(value: bytes | None) -> bytes:
    return value or b""


def percentile(values: Sequence[int], share: float) -> int:
    """The value that `share` of the values do not exceed; 0 if there are none."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))] if ranked else 0
