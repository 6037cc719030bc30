"""The story, act by act.

1. A broker, two workers, the suppliers.
2. Jill's order: component 3, the last one, arrives first; nothing is invoiced before component 1 is there (W-128 to W-131).
3. Hundreds of customers at once among traffic of every kind; one worker is killed and comes back (W-132).
4. Time passes for orders that can never be whole; the liquidator is late.
5. Delta tables, and the audit.

Belongs here: what happens when. Does not belong here: processes (`uow.demo.place`), verdicts (`uow.demo.report`).
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import uow
from topics import admin
from topics.catalogue import DEFAULT_PARTITIONS, DestinationTopics, TopicSpec, expected
from uow.config import load
from uow.demo import report as reports
from uow.demo.mischief import Mischief
from uow.demo.observer import Observer, Sights
from uow.demo.place import APPLICATION, CARRIED, DESTINATION, EXPIRATION_MS, PATIENCE_S, SLOTS, Child, Place, wait_for
from uow.demo.report import Check, Report
from uow.screen import Screen, Step

INVOICES = "invoices"
GOODS_TOPICS = ("gadget-planet", "widget-world", "desperate-housewares", "acme", INVOICES)
TOPICS = DestinationTopics(APPLICATION, DESTINATION)
ORDERS_A_SECOND = 30
KILL_AFTER = 0.35
"""Share of the customers who have ordered when a worker is killed."""
EXPIRY_PATIENCE_S = EXPIRATION_MS / 1000 + PATIENCE_S
SPARK_PATIENCE_S = 900.0


@dataclass(frozen=True, slots=True)
class Size:
    """How much of everything.

    Attributes:
        customers: How many beside Jill.
        newsletters: Plain records among their orders.
        stranded: Orders for goods of a supplier that is gone.
        twice: Each how-manyth component Desperate Housewares forwards twice.
    """

    customers: int
    newsletters: int
    stranded: int
    twice: int = 10

    @classmethod
    def of(cls, customers: int) -> Size:
        """Everything in proportion."""
        return cls(customers, customers, max(2, customers // 25))


class Play:
    """One performance.

    Args:
        place: Where it plays.
        screen: Who watches.
        size: How much of everything.
        stack: Takes what must be closed at the end.
    """

    def __init__(self, place: Place, screen: Screen, size: Size, stack: ExitStack) -> None:
        self.place = place
        self.screen = screen
        self.size = size
        self._stack = stack
        self._begin = time.monotonic()
        self.workers: dict[str, Child] = {}
        self.killed_at = self.whole_at = 0
        self.audit: Any = None

    # -- 1: the stage ----------------------------------------------------------------------------------------------------

    def set_up(self) -> None:
        """Act 1."""
        self.screen.act("1  A broker, two workers, the suppliers")
        with self.screen.step("Apache Kafka starts") as step:
            self.place.broker.start()
            step.text = f"Apache Kafka on {self.place.bootstrap}"
        self.place.write_config()
        with self.screen.step("topics") as step:
            made = self._create_topics()
            step.text = f"{made} topics"
        with self.screen.step("workers start") as step:
            for slot in SLOTS:
                self.workers[slot] = self.place.start_worker(slot)
            suppliers = [
                self.place.start_story("invoicing", "invoicing.py"),
                self._open("widget-world", DESTINATION),
                self._open("desperate-housewares", DESTINATION, "--twice", str(self.size.twice)),
            ]
            for slot, worker in self.workers.items():
                worker.wait_said(f"worker {slot} ready")
            step.text = f"workers {' and '.join(SLOTS)} ready"
        with self.screen.step("suppliers open") as step:
            for child in suppliers:
                child.wait_said("open")
            step.text = "two suppliers and invoicing are open; Gadget Planet is closed today"
        observer = Observer(self.place.bootstrap, TOPICS, INVOICES, DEFAULT_PARTITIONS)
        self.observer = self._stack.enter_context(observer)
        self.connection = self._stack.enter_context(uow.connect(self.place.bootstrap, client_id="demo"))
        self.mischief = Mischief(self.place.bootstrap, TOPICS.components, DEFAULT_PARTITIONS)

    def _create_topics(self) -> int:
        settings = load(self.place.config, {})
        client = admin.admin_client(settings.bootstrap_servers, {})
        policy, replay_ms = settings.policy(DESTINATION), settings.worker("").replay_ms
        specs = expected(APPLICATION, DESTINATION, policy, DEFAULT_PARTITIONS, replay_ms=replay_ms)
        specs += [TopicSpec(name, DEFAULT_PARTITIONS, 1, {}) for name in GOODS_TOPICS]
        return len(admin.create_missing(client, specs).created)

    def _open(self, supplier: str, to: str, *options: str) -> Child:
        return self.place.start_story(supplier, "supplier.py", supplier, "--to", to, *options)

    # -- 2: Jill ---------------------------------------------------------------------------------------------------------

    def jill_orders(self) -> None:
        """Act 2."""
        screen, sights = self.screen, self.observer.sights
        screen.act("2  Jill orders a flash drive, an MP3 player, a lava lamp and a book")
        checkout = self.place.start_story("checkout-jill", "checkout.py", "--jill")
        with screen.step("Jill orders") as step:
            checkout.wait(PATIENCE_S)
            (placed,) = self._placed(checkout)
            self.jill = placed["order"]
            self.mischief.plan.orders[self.jill] = Decimal(placed["total"])
            step.text = "one unit of three components, sent in one transaction"
        screen.table(
            ("", "", ""),
            [
                ("1", "flash drive, MP3 player", "to Gadget Planet, then Widget World, then Megazon"),
                ("2", "lava lamp", "to Desperate Housewares, then Megazon"),
                ("3", "book, with the end mark", "straight to Megazon"),
            ],
        )
        with screen.step("waiting for what Megazon holds") as step:
            group = self._group_with("2-3")
            step.text = "3 came first, then 2; 1 is missing, so nothing is delivered"
        screen.command(f"uow groups {DESTINATION}")
        columns = ("id", "held", "missing", "end", "age")
        screen.table(columns, [[*(group[name] for name in columns[:-1]), f"{group['age_ms'] / 1000:.1f} s"]])
        self.checks = [
            Check(
                group["missing"] == "1" and not sights.units and not sights.invoices,
                "while component 1 was missing, Jill had no unit and no invoice",
            )
        ]
        screen.check(self.checks[0].good, f"invoices: {len(sights.invoices)}")
        with screen.step("Gadget Planet opens") as step:
            self._open("gadget-planet", "widget-world").wait_said("open")
            self._wait(lambda: self._invoices_of_jill(), "Jill's invoice")
            step.text = "Gadget Planet opens, 1 arrives, the unit is whole"
        (invoice,) = self._invoices_of_jill()
        screen.done(f"one invoice: {', '.join(line['item'] for line in invoice['lines'])}: {invoice['total']}")

    def _group_with(self, held: str) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            groups = self.place.run_uow("groups", DESTINATION)
            found = next((group for group in groups if group["id"] == self.jill), None)
            if found is not None and (found["held"] == held or time.monotonic() > deadline):
                return dict(found)
            wait_for(lambda: time.monotonic() < deadline, "Jill's components in `uow groups`", 0.1)

    def _invoices_of_jill(self) -> list[dict[str, Any]]:
        return [invoice for invoice in list(self.observer.sights.invoices) if invoice["order"] == self.jill]

    # -- 3: everybody ----------------------------------------------------------------------------------------------------

    def everybody_orders(self) -> None:
        """Act 3."""
        screen, size, mischief = self.screen, self.size, self.mischief
        screen.act(f"3  {size.customers} customers at once, and everything that can go wrong")
        with screen.step("orders that can never be whole") as step:
            mischief.stranded(size.stranded, self.connection)
            mischief.contradictory()
            mischief.hopeless()
            step.text = f"{len(mischief.plan.stranded)} orders that can never be whole; components that contradict them"
        checkout = self.place.start_story(
            "checkout", "checkout.py", "--customers", str(size.customers), "--per-second", str(ORDERS_A_SECOND)
        )
        with self._counting("customers order, one worker is killed") as step:
            self._trickle(checkout, int(size.customers * KILL_AFTER))
            self._kill_and_restart()
            self._trickle(checkout, size.customers)
            checkout.wait(PATIENCE_S)
            step.text = f"{size.customers} orders among {mischief.plan.plain} newsletters"
        screen.done(f"worker {SLOTS[0]} was killed (SIGKILL) in the middle, and started again")
        with screen.step("malformed components") as step:
            mischief.malformed()
            mischief.misrouted()
            mischief.two_producers()
            mischief.aborted(self.connection)
            step.text = f"{mischief.plan.refused.total()} components that must be refused; a checkout that is aborted"
        for placed in self._placed(checkout):
            mischief.plan.orders[placed["order"]] = Decimal(placed["total"])
        with self._counting("all orders are invoiced") as step:
            wanted = len(mischief.plan.orders)
            self._wait(lambda: len(self.observer.sights.invoices) >= wanted, f"{wanted} invoices")
            step.text = f"{len(self.observer.sights.invoices)} orders whole and invoiced"

    def _trickle(self, checkout: Child, orders: int) -> None:
        """Newsletters between the orders, until so many are placed."""
        plan, size = self.mischief.plan, self.size
        while (placed := checkout.said.count("\n")) < orders and checkout.status is None:
            share = size.newsletters * placed // size.customers
            if share > plan.plain:
                self.mischief.newsletters(share - plan.plain)
            self._note_return()
            time.sleep(0.02)
        if orders == size.customers:
            self.mischief.newsletters(size.newsletters - plan.plain)

    def _kill_and_restart(self) -> None:
        slot = SLOTS[0]
        self.killed_at = time.time_ns() // 1_000_000
        self.workers[slot].kill()
        self.workers[slot] = self.place.start_worker(slot)

    def _note_return(self) -> None:
        """Notes when the killed worker is back."""
        slot = SLOTS[0]
        if self.killed_at and not self.whole_at and f"worker {slot} ready" in self.workers[slot].said:
            self.whole_at = time.time_ns() // 1_000_000

    def _placed(self, checkout: Child) -> list[dict[str, Any]]:
        return [json.loads(line) for line in checkout.said.splitlines() if line.startswith("{")]

    @contextmanager
    def _counting(self, doing: str) -> Iterator[Step]:
        """A step that tells how far the units are."""
        with self.screen.step(doing) as step:
            self._step: Step | None = step
            try:
                yield step
            finally:
                self._step = None

    def _wait(self, condition: Any, what: str, timeout: float = PATIENCE_S) -> None:
        """Waits while it tells how far things are, and that everybody still lives."""

        def met() -> bool:
            sights = self.observer.sights
            self._note_return()
            if self.observer.failure is not None:
                raise self.observer.failure
            if (step := getattr(self, "_step", None)) is not None:
                step.progress(
                    f"{len(sights.units)} units, {len(sights.invoices)} invoices, {sights.rejected.total()} rejected"
                )
            return bool(condition())

        wait_for(met, f"{what}; the logs are in {self.place.logs}", timeout)

    # -- 4: time passes --------------------------------------------------------------------------------------------------

    def time_passes(self) -> None:
        """Act 4."""
        screen, plan = self.screen, self.mischief.plan
        screen.act("4  Time passes")
        with self._counting("orders without a chance expire") as step:
            self.workers[SLOTS[0]].wait_said(f"worker {SLOTS[0]} ready")
            self._note_return()
            self._wait(lambda: plan.stranded.keys() <= self.sights.given_up.keys(), "expired orders", EXPIRY_PATIENCE_S)
            by_age = Counter(self.sights.reasons.values())["age"]
            step.text = (
                f"{by_age} orders expired after {EXPIRATION_MS / 1000:.0f} s; what was held is in {TOPICS.errors}"
            )
        with self._counting("a component comes too late") as step:
            self.mischief.late(self.connection)
            self._wait(lambda: ("UnitClosedError", "expired") in self.sights.rejected, "the late component")
            step.text = "a component that came after that was refused as late"
        self._wait(self._is_settled, "every record's fate")

    @property
    def sights(self) -> Sights:
        """What came by so far."""
        return self.observer.sights

    def _is_settled(self) -> bool:
        return self.sights.components == self.sights.accounted and len(self.sights.units) == len(self.sights.invoices)

    # -- 5: tables -------------------------------------------------------------------------------------------------------

    def start_spark(self) -> None:
        """Spark takes its time to start, so it does while time passes anyway."""
        arguments = [str(path) for path in (self.place.config, self.place.tables, self._settled, self._audited)]
        self._spark = self.place.start("spark", sys.executable, "-m", "uow.demo.tables", *arguments)

    def tables(self) -> None:
        """Act 5."""
        screen, spark = self.screen, self._spark
        screen.act("5  Delta tables, and the audit")
        screen.command("uow sink --tables tables --once")
        with screen.step("Spark carries units into Delta tables") as step:
            self._settled.touch()
            spark.wait_said(CARRIED, SPARK_PATIENCE_S)
            step.text = "units, components, rejected and passed are Delta tables"
        screen.command("uow audit --tables tables")
        with screen.step("Spark computes every unit again") as step:
            status = spark.wait(SPARK_PATIENCE_S)
            step.text = "every unit computed again from its components, and compared"
        text = self._audited.read_text(encoding="utf-8")
        self.audit = json.loads(text)[DESTINATION] if text.strip() else None
        told = "the audit is clean" if status == 0 else f"the audit is not clean: see {self._audited} and {spark.log}"
        self.checks.append(Check(status == 0 and self.audit is not None, told))
        if self.audit is not None:
            self.checks.append(reports.audit_agreement(self.sights, self.audit))

    @property
    def _settled(self) -> Path:
        return self.place.folder / "settled"

    @property
    def _audited(self) -> Path:
        return self.place.folder / "audit.json"

    # -- the end ---------------------------------------------------------------------------------------------------------

    def report(self) -> Report:
        """What came out."""
        sights, plan = self.sights, self.mischief.plan
        return Report(
            orders=len(plan.orders) + len(plan.stranded),
            invoices=len(sights.invoices),
            units=len(sights.units),
            records=reports.records_of(sights),
            rejected=reports.rejected_of(sights),
            given_up=dict(sorted(Counter(sights.reasons.values()).items())),
            latency=reports.latency_of(sights, self.killed_at, self.whole_at),
            jill=self._invoices_of_jill()[0],
            aborted=plan.aborted,
            audit=self.audit,
            tables=str(self.place.tables) if self.audit is not None else None,
            folder=str(self.place.folder),
            seconds=round(time.monotonic() - self._begin, 1),
            checks=(*self.checks, *reports.agreement(sights, plan)),
        )
