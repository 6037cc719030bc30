"""Records that are not orders, or not good ones, and the required result of each.

Every line of the decision table that people can see (`docs/decision-table.md`) is met at least once. The ids say what is wrong.

Belongs here: records and their required results. Does not belong here: the comparison with the actual results (`uow.demo.story_report`).
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from confluent_kafka import Producer

import uow
from uow.demo.environment import MAX_COMPONENTS
from uow.topics import headers as names
from uow.topics.partitioner import partition_for

Headers = list[tuple[str, str | bytes | None]]
Case = tuple[str, str]
"""Error class and case."""

GOODS = [{"item": "rubber duck", "price": "3.20", "from": "megazon"}]
HOSTILE_BYTES = 400_000

_quiet = logging.getLogger("uow.demo.bad_traffic")
_quiet.addHandler(logging.NullHandler())
_quiet.propagate = False


class CardDeclinedError(Exception):
    """The customer cannot pay, so the checkout ends with an exception."""


@dataclass(slots=True)
class TrafficPlan:
    """The required results of everything that was sent.

    Attributes:
        orders: Orders that must be invoiced: id to total.
        stranded: Ids of groups that can never be complete, with the reason for which each must be given up.
        refused: Number of components that must be refused, by class and case.
        plain: Number of newsletters.
        aborted: Id of the order that must leave no trace.
    """

    orders: dict[str, Decimal] = field(default_factory=dict)
    stranded: dict[str, str] = field(default_factory=dict)
    refused: Counter[Case] = field(default_factory=Counter)
    plain: int = 0
    aborted: str = ""


def value(count: int = 1) -> dict[str, Any]:
    """An order's component: `count` ducks."""
    return {"customer": "Mallory", "goods": GOODS * count, "packed": []}


def marks(group_id: str | bytes, seq: object = None, end: object = None, **more: object) -> Headers:
    """Headers, right or wrong; in the names of `more`, `_` stands for `-`, and `uow-` is put in front."""
    pairs = [(names.ID, group_id), (names.SEQ, seq), (names.END, end)]
    pairs += [(f"uow-{name.replace('_', '-')}", each) for name, each in more.items()]
    return [(name, each if isinstance(each, bytes) else str(each).encode()) for name, each in pairs if each is not None]


def malformed() -> Iterator[tuple[Case, Headers]]:
    """Components that every group must refuse, whatever its state: lines 1 to 5b of the decision table."""
    yield ("UnitConflictError", ""), [*marks("order-and-queue", 1), (names.ORDER_NAME, b"queue")]
    yield ("BadUnitIdError", "empty"), marks("", 1)
    yield ("BadUnitIdError", "undecodable"), marks(b"\xff\xfe", 1)
    yield ("BadUnitIdError", "repeated"), [*marks("two-ids", 1), (names.ID, b"another")]
    yield ("BadUnitIdError", "too-long"), marks("x" * 256, 1)
    yield ("BadSequenceNumberError", "a"), marks("no-number")
    yield ("BadSequenceNumberError", "b"), marks("number-zero", 0)
    yield ("BadSequenceNumberError", "b"), marks("number-below-zero", -1)
    yield ("BadSequenceNumberError", "malformed"), marks("number-in-words", "two")
    yield ("BadSequenceNumberError", "malformed"), marks("number-without-end", b"9" * HOSTILE_BYTES)
    yield ("BadSequenceNumberError", "malformed-end"), marks("end-perhaps", 1, "perhaps")
    yield ("BadSequenceNumberError", "malformed-count"), marks("count-many", 1, count="many")
    yield ("DecodeError", names.EXPIRES_AT), marks("expires-soon", 1, expires_at="soon")
    yield ("DecodeError", names.DELIVER_AT), marks("deliver-tomorrow", 1, deliver_at="tomorrow")
    yield ("DecodeError", names.PRIORITY), marks("priority-high", 1, priority="high")
    yield ("DecodeError", names.DIGEST), marks("digest-none", 1, digest="none")


class BadTraffic:
    """Sends the records, and collects the required results in `plan`.

    Args:
        bootstrap: Address of the broker.
        topic: `D.components`.
        partitions: Number of partitions of that topic.
    """

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.plan = TrafficPlan()
        self._bootstrap = bootstrap
        self._topic = topic
        self._partitions = partitions
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "partitioner": "murmur2_random", "log_level": 0}, logger=_quiet
        )

    def send(self, key: str | bytes, headers: Headers, body: Any, case: Case | None = None, home_is: int = 0) -> None:
        """Sends a record with any key; with `home_is` 1 it goes to the partition next to the right one."""
        raw = key.encode() if isinstance(key, str) else key
        partition = (partition_for(raw, self._partitions) + home_is) % self._partitions
        self._producer.produce(self._topic, json.dumps(body).encode(), raw, partition, headers=headers)
        if case is not None:
            self.plan.refused[case] += 1

    def flush(self) -> None:
        """Waits until the broker has all records, so that later ones are appended after them."""
        self._producer.flush(20)

    def newsletters(self, count: int) -> None:
        """Sends plain records among the components; they must pass through (W-121)."""
        for number in range(count):
            text = json.dumps({"newsletter": self.plan.plain + number, "text": "Lava lamps are back!"}).encode()
            self._producer.produce(self._topic, text, b"newsletter-%d" % (number % 7))
        self.plan.plain += count
        self.flush()

    def malformed(self) -> None:
        """Lines 1 to 5b of the decision table."""
        for case, headers in malformed():
            self.send("malformed", headers, value(), case)
        self.flush()

    def misrouted(self) -> None:
        """Line 6: a misrouted component is sent on once, and refused if it is misrouted again."""
        for seq, end in ((1, None), (2, "true")):
            self.send("wrong-partition", marks("wrong-partition", seq, end), value(), home_is=seq - 1)
        self.plan.orders["wrong-partition"] = Decimal("6.40")
        lost = [*marks("lost-twice", 1), (names.REROUTED, b"1")]
        self.send("lost-twice", lost, value(), ("MisroutedComponentError", ""), home_is=1)
        self.flush()

    def contradictory(self) -> None:
        """Lines 8 and 10 to 12: components that contradict those of their group."""
        self._group("after-the-end", (1, None), (2, "true"))
        self.plan.orders["after-the-end"] = Decimal("6.40")
        self.send("after-the-end", marks("after-the-end", 1), value(), ("DuplicateSequenceNumberError", "duplicate"))
        self.send("after-the-end", marks("after-the-end", 3), value(), ("OutOfSequenceRangeError", "a"))

        twice = marks("again-and-again", 1, component_id="c-1")
        self.send("again-and-again", twice, value())
        self.send("again-and-again", twice, value(), ("DuplicateSequenceNumberError", "resend"))
        self.send(
            "again-and-again", marks("again-and-again", 1), value(), ("DuplicateSequenceNumberError", "duplicate")
        )
        self.send(
            "again-and-again", marks("again-and-again", 1), value(2), ("DuplicateSequenceNumberError", "conflict")
        )

        self._group("above-the-end", (4, "true"))
        self.send("above-the-end", marks("above-the-end", 9), value(), ("OutOfSequenceRangeError", "a"))
        self._group("end-too-low", (5, None))
        self.send("end-too-low", marks("end-too-low", 2, "true"), value(), ("OutOfSequenceRangeError", "b"))
        for group_id in ("again-and-again", "above-the-end", "end-too-low"):
            self.plan.stranded[group_id] = "age"
        self.flush()

    def hopeless(self) -> None:
        """Lines 13 and 14: groups that must expire or fail at once."""
        self.send("stale", marks("stale", 1, expires_at=1), value())
        self.plan.stranded["stale"] = "component-expired"
        self._group("boundless", *((seq, None) for seq in range(1, MAX_COMPONENTS + 2)))
        self.plan.stranded["boundless"] = "limit"
        self.flush()

    def stranded(self, count: int, connection: uow.Connection) -> None:
        """Orders for goods of a supplier that went out of business: component 1 never arrives (W-132 i)."""
        for number in range(1, count + 1):
            with connection.unit("megazon", f"stranded-{number}") as unit:
                unit.send(value(), to="acme")
                unit.send(value())
                unit.send(value())
            self.plan.stranded[unit.id] = "age"

    def late(self, connection: uow.Connection) -> None:
        """Line 9: Acme's liquidator sends the missing component after its group has expired."""
        connection.send("megazon", value(), id="stranded-1", seq=1)
        self.plan.refused["UnitClosedError", "expired"] += 1

    def two_producers(self) -> None:
        """An order begun on the phone, whose battery runs out, and finished on the laptop (W-132 v)."""
        order = "phone-and-laptop"
        with uow.connect(self._bootstrap, client_id="phone") as phone:
            phone.send("megazon", value(), id=order, seq=1)
        with uow.connect(self._bootstrap, client_id="laptop") as laptop:
            laptop.send("megazon", value(2), id=order, seq=2, end=True)
        self.plan.orders[order] = Decimal("9.60")

    def aborted(self, connection: uow.Connection) -> None:
        """A checkout that ends with an exception sends nothing (W-132 iii)."""
        try:
            with connection.unit("megazon") as unit:
                self.plan.aborted = unit.id
                unit.send(value(), to="gadget-planet")
                unit.send(value())
                unit.send(value())
                raise CardDeclinedError
        except CardDeclinedError:
            pass

    def _group(self, group_id: str, *components: tuple[int, str | None]) -> None:
        for seq, end in components:
            self.send(group_id, marks(group_id, seq, end), value())
