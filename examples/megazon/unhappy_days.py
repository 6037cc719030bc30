"""Megazon's five unhappy days, each with the required result.

    uow broker --port 9092
    uow topics create -c examples/megazon/uow.toml
    uow worker -c examples/megazon/uow.toml
    python examples/megazon/unhappy_days.py

1. Widget World is closed. Jill's order expires: the components that Megazon held are in megazon.errors, and she gets no invoice. The component
   that Widget World sends when it opens again comes too late.
2. Desperate Housewares forwards a component twice. One invoice.
3. The checkout ends with an exception. Nothing was sent.
4. Two hundred customers at once, among newsletters. One invoice each.
5. The order producer dies after its first component, outside a transaction; a second one completes the order. One invoice.

Prints a line of JSON for each day, and exits with 1 unless all of them had the required result.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from checkout import JILL, Order, crowd, place
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from invoicing import invoice
from supplier import packed

import uow

SUPPLIERS = {"gadget-planet": "widget-world", "widget-world": "megazon", "desperate-housewares": "megazon"}
PATIENCE_S = 90
HOUSEWARES = Order("Bree", ("lava lamp", "book"))
BOOKS = Order("Rory", ("book",))


class CardDeclinedError(Exception):
    """The customer cannot pay."""


class Megazon:
    """The suppliers and the invoicing, and the topics as seen from outside."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.closing = threading.Event()
        self.invoices: list[dict[str, Any]] = []
        self.forwarded_twice: set[str] = set()
        self.at_work: list[threading.Thread] = []
        self.open(self._invoice)

    def open(self, work: Callable[..., None], *arguments: str) -> None:
        """Starts a program in a thread."""
        self.at_work.append(threading.Thread(target=work, args=arguments))
        self.at_work[-1].start()

    def close(self) -> None:
        """Stops all programs."""
        self.closing.set()
        for thread in self.at_work:
            thread.join()

    def supply(self, name: str) -> None:
        """A supplier packs and forwards, exactly once, except for those that it forwards twice."""
        to = SUPPLIERS[name]
        where = {"destination": to} if to == "megazon" else {"to": to}
        with uow.connect(self.bootstrap) as connection, connection.messages(name, group=name) as inbox:
            while not self.closing.is_set():
                message = inbox.receive(0.2)
                if message is None:
                    continue
                for _ in range(2 if message.id in self.forwarded_twice else 1):
                    connection.forward(message, value=packed(name, message.json()), **where)

    def _invoice(self) -> None:
        with uow.connect(self.bootstrap) as connection, connection.units("megazon", group=f"{uuid4()}") as units:
            while not self.closing.is_set():
                unit = units.receive(0.2)
                if unit is not None:
                    self.invoices.append(invoice(unit))
                    unit.acknowledge()

    def invoices_of(self, order: str) -> int:
        return sum(each["order"] == order for each in list(self.invoices))

    def records(self, topic: str, order: str) -> list[dict[str, str]]:
        """Headers of all records of an order in a topic, sorted by number; a plain Kafka client reads the topic to its end."""
        own = {"bootstrap.servers": self.bootstrap, "group.id": "looking", "enable.auto.commit": False}
        consumer = Consumer({**own, "isolation.level": "read_committed", "enable.partition.eof": True})
        partitions = consumer.list_topics(topic, timeout=20).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
        found, ends = [], 0
        while ends < len(partitions):
            record = consumer.poll(20)
            assert record is not None, f"{topic} has no end"
            headers = {name: (value or b"").decode() for name, value in record.headers() or ()}
            ends += record.error() is not None
            if headers.get("uow-id") == order:
                found.append(headers)
        consumer.close()
        return sorted(found, key=lambda headers: int(headers["uow-seq"]))

    def wait(self, condition: Callable[[], object]) -> bool:
        """Waits for a condition. True if it holds in time."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.1)
        return bool(condition())


# Each day begins, lets the others begin (`yield`), and then checks its result.


def widget_world_is_closed(megazon: Megazon, connection: uow.Connection) -> Iterator[None]:
    order = place(connection, JILL)
    yield None
    assert megazon.wait(lambda: len(megazon.records("megazon.errors", order)) == 2), "2 and 3 are given up"
    given_up = megazon.records("megazon.errors", order)
    assert [headers["uow-seq"] for headers in given_up] == ["2", "3"]
    assert {(headers["uow-failure-reason"], headers["uow-missing"]) for headers in given_up} == {("expired", "1")}
    megazon.open(megazon.supply, "widget-world")
    assert megazon.wait(lambda: megazon.records("megazon.rejected", order)), "1 comes too late"
    assert megazon.records("megazon.rejected", order)[0]["uow-error-class"] == "UnitClosedError"
    assert megazon.invoices_of(order) == 0, "and there is no invoice"


def housewares_come_twice(megazon: Megazon, connection: uow.Connection) -> Iterator[None]:
    with connection.unit("megazon") as unit:
        megazon.forwarded_twice.add(unit.id)
        for hop, goods in HOUSEWARES.parts():
            unit.send({"customer": HOUSEWARES.customer, "goods": goods, "packed": []}, to=hop)
    yield None
    assert megazon.wait(lambda: megazon.records("megazon.rejected", unit.id)), "the second one is refused"
    assert megazon.records("megazon.rejected", unit.id)[0]["uow-error-class"] == "DuplicateSequenceNumberError"
    assert megazon.wait(lambda: megazon.invoices_of(unit.id) == 1), "one invoice"


def the_card_is_declined(megazon: Megazon, connection: uow.Connection) -> Iterator[None]:
    unit = connection.unit("megazon")
    try:
        with unit:
            for hop, goods in JILL.parts():
                unit.send({"customer": JILL.customer, "goods": goods, "packed": []}, to=hop)
            raise CardDeclinedError
    except CardDeclinedError:
        yield None
    for topic in ("gadget-planet", "desperate-housewares", "megazon.components", "megazon.units", "megazon.errors"):
        assert not megazon.records(topic, unit.id), f"nothing is in {topic}"


def everybody_orders(megazon: Megazon, connection: uow.Connection, customers: int) -> Iterator[None]:
    yield None  # after Widget World has opened again
    with ThreadPoolExecutor(4) as counters:
        placed = [counters.submit(place, connection, order) for order in crowd(customers, seed=11)]
        for number in range(customers):
            connection.send("megazon", {"newsletter": number}, key=f"reader-{number % 7}")
    orders = [each.result() for each in placed]
    assert megazon.wait(lambda: {each["order"] for each in list(megazon.invoices)}.issuperset(orders)), "all invoiced"
    assert {Counter(each["order"] for each in megazon.invoices)[order] for order in orders} == {1}, "one invoice each"


def the_producer_dies(megazon: Megazon, connection: uow.Connection) -> Iterator[None]:
    order, goods = str(uuid4()), [{"item": "book", "price": "18.00", "from": "megazon"}]
    value = {"customer": BOOKS.customer, "goods": goods, "packed": []}
    with uow.connect(megazon.bootstrap) as phone:
        phone.send("megazon", value, id=order, seq=1)
    with uow.connect(megazon.bootstrap) as laptop:
        laptop.send("megazon", value, id=order, seq=2, end=True)
    yield None
    assert megazon.wait(lambda: megazon.invoices_of(order) == 1), "one invoice"
    assert [line["item"] for each in megazon.invoices if each["order"] == order for line in each["lines"]] == [
        "book"
    ] * 2


@contextmanager
def open_megazon(bootstrap: str) -> Iterator[Megazon]:
    """Its topics, with every program running except Widget World."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    missing = SUPPLIERS.keys() - admin.list_topics(timeout=20).topics.keys()
    for made in admin.create_topics([NewTopic(name, 4, 1) for name in missing]).values() if missing else ():
        made.result(20)
    megazon = Megazon(bootstrap)
    try:
        for name in ("gadget-planet", "desperate-housewares"):
            megazon.open(megazon.supply, name)
        yield megazon
    finally:
        megazon.close()


def main() -> int:
    parser = argparse.ArgumentParser(description="Megazon's five unhappy days.")
    parser.add_argument("--bootstrap", default="localhost:9092")
    parser.add_argument("--customers", type=int, default=200)
    args = parser.parse_args()
    unhappy = 0
    with open_megazon(args.bootstrap) as megazon, uow.connect(args.bootstrap) as connection:
        days = {
            "Widget World is closed": widget_world_is_closed(megazon, connection),
            "housewares come twice": housewares_come_twice(megazon, connection),
            "the card is declined": the_card_is_declined(megazon, connection),
            "the order producer dies": the_producer_dies(megazon, connection),
            "everybody orders": everybody_orders(megazon, connection, args.customers),
        }
        for day in days.values():
            next(day)  # all days begin before any is checked, since some take long
        for name, day in days.items():
            try:
                next(day, None)
                print(json.dumps({"day": name, "as required": True}), flush=True)
            except AssertionError as failure:
                unhappy += 1
                print(json.dumps({"day": name, "as required": False, "but": str(failure)}), flush=True)
    return min(unhappy, 1)


if __name__ == "__main__":
    raise SystemExit(main())
