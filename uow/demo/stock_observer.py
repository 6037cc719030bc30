"""A `read_committed` consumer of all topics of the low-stock story, which shares no code with router or worker.

Belongs here: the records it saw, by coordinates of the input. Does not belong here: judging them (`uow.demo.stock_report`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from confluent_kafka import Message

from uow.demo.observer import TopicWatch


@dataclass(frozen=True, slots=True)
class SeenStockUnit:
    """A unit of orders on the topic of a supplier.

    Attributes:
        unit_id: Its id.
        topic: Where it lies.
        row: Routing name of the row that it was made by.
        version: Version of that row.
        outcome: `complete` or `partial`.
        reason: The reason why it closed.
        waited_ms: From the arrival of its first order until it closed.
        inputs: Coordinates of its records in `stock.events`.
        suppliers: Of its orders.
    """

    unit_id: str
    topic: str
    row: str
    version: int
    outcome: str
    reason: str
    waited_ms: int
    inputs: tuple[str, ...]
    suppliers: frozenset[str]


@dataclass(slots=True)
class StockObservations:
    """Everything that the observer read.

    Attributes:
        events: Supplier of each event, by its coordinates in `stock.events`.
        units: Units, in the order of reading.
        rejected: Error class and case of each refused record, by its coordinates.
        given_up: Coordinates of records in the errors topic.
    """

    events: dict[str, str] = field(default_factory=dict)
    units: list[SeenStockUnit] = field(default_factory=list)
    rejected: dict[str, str] = field(default_factory=dict)
    given_up: Counter[str] = field(default_factory=Counter)

    @property
    def places(self) -> Counter[str]:
        """How often each event is anywhere."""
        delivered = Counter(place for unit in list(self.units) for place in unit.inputs)
        return delivered + Counter(list(self.rejected)) + self.given_up


class StockObserver(TopicWatch):
    """Watches the topics of the low-stock story.

    Args:
        bootstrap: Address of the broker.
        events: The router's input.
        destination: Name of the destination.
        targets: The suppliers' topics.
        partitions: Number of partitions of each topic.

    Attributes:
        observations: Everything it read; written by its thread only.
    """

    def __init__(
        self, bootstrap: str, events: str, destination: str, targets: Collection[str], partitions: int
    ) -> None:
        self.observations = StockObservations()
        read = {
            events: self._on_event,
            f"{destination}.rejected": self._on_rejected,
            f"{destination}.errors": self._on_given_up,
            **dict.fromkeys(targets, self._on_unit),
        }
        super().__init__(bootstrap, read, partitions)

    def _on_event(self, message: Message, headers: dict[str, bytes]) -> None:
        place = f"{message.topic()}/{message.partition()}/{message.offset()}"
        self.observations.events[place] = headers["uow-destination"].decode()

    def _on_unit(self, message: Message, headers: dict[str, bytes]) -> None:
        told = json.loads(message.value() or b"{}")
        row, _, version = told["rule"].partition("/")[2].rpartition("@")
        components = told["components"]
        orders = [json.loads(each["value"]["text"]) for each in components]
        unit = SeenStockUnit(
            told["unit_id"],
            str(message.topic()),
            row,
            int(version),
            told["outcome"],
            told["reason"],
            told["closed_at"] - min(each["arrived_at"] for each in components),
            tuple(each["input"] for each in components),
            frozenset(order["supplier"] for order in orders),
        )
        self.observations.units.append(unit)

    def _on_rejected(self, message: Message, headers: dict[str, bytes]) -> None:
        case = f"{headers['uow-error-class'].decode()} {headers['uow-error-case'].decode()}".strip()
        self.observations.rejected[headers["uow-input"].decode()] = case

    def _on_given_up(self, message: Message, headers: dict[str, bytes]) -> None:
        self.observations.given_up[headers["uow-input"].decode()] += 1
