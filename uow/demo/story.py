"""The story, act by act.

1. A broker, two workers, the suppliers.
2. Jill's order: component 3, the last one, arrives first; nothing is invoiced before component 1 is there (W-128 to W-131).
3. Hundreds of customers at once among traffic of every kind; one worker is killed and comes back (W-132).
4. Orders that can never be complete expire; the liquidator's component comes too late.
5. Delta tables, and the audit.

Belongs here: the order of events. Does not belong here: processes (`uow.demo.environment`), verdicts (`uow.demo.story_report`).
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
from uow.config.loading import load
from uow.demo import story_report as reports
from uow.demo.bad_traffic import BadTraffic
from uow.demo.environment import (
    APPLICATION,
    DESTINATION,
    EXPIRATION_MS,
    MAX_COMPONENTS,
    PATIENCE_S,
    REPORT_READY,
    SETTINGS,
    TABLES_READY,
    WORKER_NAMES,
    DemoEnvironment,
    DemoProcess,
    wait_for,
)
from uow.demo.observer import Observations, Observer
from uow.demo.story_report import Check, StoryReport
from uow.terminal.screen import Screen, Step
from uow.topics import admin
from uow.topics.catalogue import (
    DEFAULT_PARTITIONS,
    DestinationTopics,
    TopicSpec,
    expected,
)

INVOICES = "invoices"
GOODS_TOPICS = ("gadget-planet", "widget-world", "desperate-housewares", "acme", INVOICES)
TOPICS = DestinationTopics(APPLICATION, DESTINATION)
ORDERS_A_SECOND = 30
KILL_AFTER = 0.35
"""Share of the customers that have ordered when a worker is killed."""
EXPIRY_PATIENCE_S = EXPIRATION_MS / 1000 + PATIENCE_S
SPARK_PATIENCE_S = 900.0


@dataclass(frozen=True, slots=True)
class Size:
    """The numbers of customers and records.

    Attributes:
        customers: Number of customers besides Jill.
        newsletters: Number of plain records among their orders.
        stranded: Number of orders for goods of a supplier that has gone out of business.
        twice: Desperate Housewares forwards every component twice whose number is a multiple of this.
    """

    customers: int
    newsletters: int
    stranded: int
    twice: int = 10

    @classmethod
    def of(cls, customers: int) -> Size:
        """Numbers in proportion to the customers."""
        return cls(customers, customers, max(2, customers // 25))


class Story:
    """One run of the story.

    Args:
        environment: Folder and processes.
        screen: The output.
        size: The numbers of customers and records.
        stack: Closes everything at the end.
    """

    def __init__(self, environment: DemoEnvironment, screen: Screen, size: Size, stack: ExitStack) -> None:
        self.environment = environment
        self.screen = screen
        self.size = size
        self._stack = stack
        self._begin = time.monotonic()
        self.workers: dict[str, DemoProcess] = {}
        self.killed_at = self.whole_at = 0
        self.audit: Any = None

    # -- 1: the stage ----------------------------------------------------------------------------------------------------

    def set_up(self) -> None:
        """Act 1."""
        self.screen.act("1  A broker, two workers, the suppliers")
        with self.screen.step("Apache Kafka starts") as step:
            self.environment.broker.start()
            step.text = f"Apache Kafka on {self.environment.bootstrap}"
        self.environment.write_config(
            SETTINGS.format(
                application=APPLICATION,
                destination=DESTINATION,
                bootstrap=self.environment.bootstrap,
                expiration_ms=EXPIRATION_MS,
                max_components=MAX_COMPONENTS,
            )
        )
        with self.screen.step("topics") as step:
            made = self._create_topics()
            step.text = f"{made} topics"
        with self.screen.step("workers start") as step:
            for worker_name in WORKER_NAMES:
                self.workers[worker_name] = self.environment.start_worker(worker_name)
            suppliers = [
                self.environment.start_story("invoicing", "invoicing.py"),
                self._open("widget-world", DESTINATION),
                self._open("desperate-housewares", DESTINATION, "--twice", str(self.size.twice)),
            ]
            for worker_name, worker in self.workers.items():
                worker.wait_said(f"worker {worker_name} ready")
            step.text = f"workers {' and '.join(WORKER_NAMES)} ready"
        with self.screen.step("suppliers open") as step:
            for child in suppliers:
                child.wait_said("open")
            step.text = "two suppliers and invoicing are open; Gadget Planet is closed today"
        observer = Observer(self.environment.bootstrap, TOPICS, INVOICES, DEFAULT_PARTITIONS)
        self.observer = self._stack.enter_context(observer)
        self.connection = self._stack.enter_context(
            uow.connect(self.environment.bootstrap, client_id="demo", reconnect_policy="all")
        )
        self.bad_traffic = BadTraffic(self.environment.bootstrap, TOPICS.components, DEFAULT_PARTITIONS)

    def _create_topics(self) -> int:
        settings = load(self.environment.config, {})
        client = admin.admin_client(settings.bootstrap_servers, {})
        policy, replay_ms = settings.policy(DESTINATION), settings.worker("").replay_ms
        specs = expected(APPLICATION, DESTINATION, policy, DEFAULT_PARTITIONS, replay_ms=replay_ms)
        specs += [TopicSpec(name, DEFAULT_PARTITIONS, 1, {}) for name in GOODS_TOPICS]
        return len(admin.create_missing(client, specs).created)

    def _open(self, supplier: str, to: str, *options: str) -> DemoProcess:
        return self.environment.start_story(supplier, "supplier.py", supplier, "--to", to, *options)

    # -- 2: Jill ---------------------------------------------------------------------------------------------------------

    def jill_orders(self) -> None:
        """Act 2."""
        screen, observations = self.screen, self.observer.observations
        screen.act("2  Jill orders a flash drive, an MP3 player, a lava lamp and a book")
        checkout = self.environment.start_story("checkout-jill", "checkout.py", "--jill")
        with screen.step("Jill orders") as step:
            checkout.wait(PATIENCE_S)
            (placed,) = self._placed(checkout)
            self.jill = placed["order"]
            self.bad_traffic.plan.orders[self.jill] = Decimal(placed["total"])
            step.text = "one unit of three components, sent in one transaction"
        screen.table(
            ("", "", ""),
            [
                ("1", "flash drive, MP3 player", "to Gadget Planet, then Widget World, then Megazon"),
                ("2", "lava lamp", "to Desperate Housewares, then Megazon"),
                ("3", "book, with the end mark", "straight to Megazon"),
            ],
        )
        with screen.step("waiting for Megazon's components") as step:
            group = self._group_with("2-3")
            step.text = "3 came first, then 2; 1 is missing, so nothing is delivered"
        screen.command(f"uow groups {DESTINATION}")
        columns = ("id", "held", "missing", "end", "age")
        screen.table(columns, [[*(group[name] for name in columns[:-1]), f"{group['age_ms'] / 1000:.1f} s"]])
        self.checks = [
            Check(
                group["missing"] == "1" and not observations.units and not observations.invoices,
                "while component 1 was missing, Jill had no unit and no invoice",
            )
        ]
        screen.check(self.checks[0].good, f"invoices: {len(observations.invoices)}")
        with screen.step("Gadget Planet opens") as step:
            self._open("gadget-planet", "widget-world").wait_said("open")
            self._wait(lambda: self._invoices_of_jill(), "Jill's invoice")
            step.text = "Gadget Planet opens, 1 arrives, the unit is complete"
        (invoice,) = self._invoices_of_jill()
        screen.done(f"one invoice: {', '.join(line['item'] for line in invoice['lines'])}: {invoice['total']}")

    def _group_with(self, held: str) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            groups = self.environment.run_uow("groups", DESTINATION)["groups"]
            found = next((group for group in groups if group["id"] == self.jill), None)
            if found is not None and (found["held"] == held or time.monotonic() > deadline):
                return dict(found)
            wait_for(lambda: time.monotonic() < deadline, "Jill's components in `uow groups`", 0.1)

    def _invoices_of_jill(self) -> list[dict[str, Any]]:
        return [invoice for invoice in list(self.observer.observations.invoices) if invoice["order"] == self.jill]

    # -- 3: everybody ----------------------------------------------------------------------------------------------------

    def everybody_orders(self) -> None:
        """Act 3."""
        screen, size, bad_traffic = self.screen, self.size, self.bad_traffic
        screen.act(f"3  {size.customers} customers at once, and everything that can go wrong")
        with screen.step("orders that can never be complete") as step:
            bad_traffic.stranded(size.stranded, self.connection)
            bad_traffic.contradictory()
            bad_traffic.hopeless()
            step.text = (
                f"{len(bad_traffic.plan.stranded)} orders that can never be complete; components that contradict others"
            )
        checkout = self.environment.start_story(
            "checkout", "checkout.py", "--customers", str(size.customers), "--per-second", str(ORDERS_A_SECOND)
        )
        with self._counting("customers order, one worker is killed") as step:
            self._trickle(checkout, int(size.customers * KILL_AFTER))
            self._kill_and_restart()
            self._trickle(checkout, size.customers)
            checkout.wait(PATIENCE_S)
            step.text = f"{size.customers} orders among {bad_traffic.plan.plain} newsletters"
        screen.done(f"worker {WORKER_NAMES[0]} was killed (SIGKILL) in the middle, and started again")
        with screen.step("malformed components") as step:
            bad_traffic.malformed()
            bad_traffic.misrouted()
            bad_traffic.two_producers()
            bad_traffic.aborted(self.connection)
            step.text = (
                f"{bad_traffic.plan.refused.total()} components that must be refused; a checkout that is aborted"
            )
        for placed in self._placed(checkout):
            bad_traffic.plan.orders[placed["order"]] = Decimal(placed["total"])
        with self._counting("all orders are invoiced") as step:
            wanted = len(bad_traffic.plan.orders)
            self._wait(lambda: len(self.observer.observations.invoices) >= wanted, f"{wanted} invoices")
            step.text = f"{len(self.observer.observations.invoices)} orders complete and invoiced"

    def _trickle(self, checkout: DemoProcess, orders: int) -> None:
        """Sends newsletters between the orders, until this number of orders is placed."""
        plan, size = self.bad_traffic.plan, self.size
        while (placed := checkout.said.count("\n")) < orders and checkout.status is None:
            share = size.newsletters * placed // size.customers
            if share > plan.plain:
                self.bad_traffic.newsletters(share - plan.plain)
            self._note_return()
            time.sleep(0.02)
        if orders == size.customers:
            self.bad_traffic.newsletters(size.newsletters - plan.plain)

    def _kill_and_restart(self) -> None:
        worker_name = WORKER_NAMES[0]
        self.killed_at = time.time_ns() // 1_000_000
        self.workers[worker_name].kill()
        self.workers[worker_name] = self.environment.start_worker(worker_name)

    def _note_return(self) -> None:
        """Takes note of the time when the killed worker is ready again."""
        worker_name = WORKER_NAMES[0]
        if self.killed_at and not self.whole_at and f"worker {worker_name} ready" in self.workers[worker_name].said:
            self.whole_at = time.time_ns() // 1_000_000

    def _placed(self, checkout: DemoProcess) -> list[dict[str, Any]]:
        return [json.loads(line) for line in checkout.said.splitlines() if line.startswith("{")]

    @contextmanager
    def _counting(self, doing: str) -> Iterator[Step]:
        """A step that shows the number of units and invoices so far."""
        with self.screen.step(doing) as step:
            self._step: Step | None = step
            try:
                yield step
            finally:
                self._step = None

    def _wait(self, condition: Any, what: str, timeout: float = PATIENCE_S) -> None:
        """Waits for a condition; meanwhile shows the progress and checks that every process still runs."""

        def met() -> bool:
            observations = self.observer.observations
            self._note_return()
            if self.observer.failure is not None:
                raise self.observer.failure
            if (step := getattr(self, "_step", None)) is not None:
                step.progress(
                    f"{len(observations.units)} units, {len(observations.invoices)} invoices, {observations.rejected.total()} rejected"
                )
            return bool(condition())

        wait_for(met, f"{what}; the logs are in {self.environment.logs}", timeout)

    # -- 4: time passes --------------------------------------------------------------------------------------------------

    def time_passes(self) -> None:
        """Act 4."""
        screen, plan = self.screen, self.bad_traffic.plan
        screen.act("4  Time passes")
        with self._counting("orders that cannot be complete expire") as step:
            self.workers[WORKER_NAMES[0]].wait_said(f"worker {WORKER_NAMES[0]} ready")
            self._note_return()
            self._wait(
                lambda: plan.stranded.keys() <= self.observations.given_up.keys(), "expired orders", EXPIRY_PATIENCE_S
            )
            by_age = Counter(self.observations.reasons.values())["age"]
            step.text = (
                f"{by_age} orders expired after {EXPIRATION_MS / 1000:.0f} s; their components are in {TOPICS.errors}"
            )
        with self._counting("a component comes too late") as step:
            self.bad_traffic.late(self.connection)
            self._wait(lambda: ("UnitClosedError", "expired") in self.observations.rejected, "the late component")
            step.text = "a component that came afterwards was refused as late"
        self._wait(self._is_settled, "the result of every record")

    @property
    def observations(self) -> Observations:
        """Everything that the observer has read so far."""
        return self.observer.observations

    def _is_settled(self) -> bool:
        return self.observations.components == self.observations.accounted and len(self.observations.units) == len(
            self.observations.invoices
        )

    # -- 5: tables -------------------------------------------------------------------------------------------------------

    def start_spark(self) -> None:
        """Starts Spark early, since its start takes long, while the story waits for orders to expire."""
        environment = self.environment
        paths = (environment.config, environment.tables, self._settled, self._page, self._audited)
        arguments = [*map(str, paths)]
        self._spark = environment.start("spark", sys.executable, "-m", "uow.cli.demo_tables", *arguments)

    def tables(self) -> None:
        """Act 5."""
        screen, spark = self.screen, self._spark
        screen.act("5  Delta tables, and the audit")
        screen.command("uow sink --tables tables --once")
        with screen.step("Spark writes units into Delta tables") as step:
            self._settled.touch()
            spark.wait_said(TABLES_READY, SPARK_PATIENCE_S)
            step.text = "units, components, rejected and passed are Delta tables"
        screen.command("uow report -c uow.toml --tables tables --out report.html")
        with screen.step("Spark makes a page with plots") as step:
            spark.wait_said(REPORT_READY, SPARK_PATIENCE_S)
            step.text = f"a page about these units, for any browser: {self._page}"
        screen.command("uow audit --tables tables")
        with screen.step("Spark computes every unit again") as step:
            status = spark.wait(SPARK_PATIENCE_S)
            step.text = "every unit computed again from its components and compared"
        text = self._audited.read_text(encoding="utf-8")
        self.audit = json.loads(text)[DESTINATION] if text.strip() else None
        text = (
            "the audit found no difference"
            if status == 0
            else f"the audit found differences: see {self._audited} and {spark.log}"
        )
        self.checks.append(Check(status == 0 and self.audit is not None, text))
        if self.audit is not None:
            self.checks.append(reports.audit_agreement(self.observations, self.audit))

    @property
    def _settled(self) -> Path:
        return self.environment.folder / "settled"

    @property
    def _page(self) -> Path:
        return self.environment.folder / "report.html"

    @property
    def _audited(self) -> Path:
        return self.environment.folder / "audit.json"

    # -- the end ---------------------------------------------------------------------------------------------------------

    def report(self) -> StoryReport:
        """The report of the story."""
        observations, plan = self.observations, self.bad_traffic.plan
        return StoryReport(
            orders=len(plan.orders) + len(plan.stranded),
            invoices=len(observations.invoices),
            units=len(observations.units),
            records=reports.records_of(observations),
            rejected=reports.rejected_of(observations),
            given_up=dict(sorted(Counter(observations.reasons.values()).items())),
            latency=reports.latency_of(observations, self.killed_at, self.whole_at),
            jill=self._invoices_of_jill()[0],
            aborted=plan.aborted,
            audit=self.audit,
            tables=str(self.environment.tables) if self.audit is not None else None,
            page=str(self._page) if self._page.exists() else None,
            folder=str(self.environment.folder),
            seconds=round(time.monotonic() - self._begin, 1),
            checks=(*self.checks, *reports.agreement_checks(observations, plan)),
        )
