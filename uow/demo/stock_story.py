"""The low-stock story, act by act: orders of a warehouse become units by rule (`examples/low_stock`; aggregation, B-08, B-61 to B-65).

1. A broker, rules in a database, a worker with its router; the map of suppliers.
2. Ten orders for France: full. Three for the UK: its time is up. Twelve for Spain, and the worker is killed: the deadline stays.
3. Orders for seven suppliers; new rules take effect on the way. At the end of the day all open groups are flushed.
4. A file for each unit.

All times are a third of those of the example's rules, so that nobody has to wait a minute.

Belongs here: the order of events. Does not belong here: processes (`uow.demo.environment`), verdicts (`uow.demo.stock_report`).
"""

from __future__ import annotations

import re
import time
import tomllib
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

from uow.demo import stock_report as reports
from uow.demo.environment import PATIENCE_S, DemoEnvironment, DemoProcess, wait_for
from uow.demo.stock_observer import SeenStockUnit, StockObservations, StockObserver
from uow.demo.stock_report import Limits, StockReport
from uow.demo.story_report import Check
from uow.terminal.screen import Screen
from uow.topics.catalogue import DEFAULT_PARTITIONS

EVENTS, DESTINATION, RULE, WORKER = "stock.events", "supply", "low-stock", "demo-0"
TIMES = 3
"""Times of the example are divided by this."""
CORRECTIONS = 5
FRANCE_LATER = 4
"""Most orders of France in the second version of the rules."""
SPARK_PATIENCE_S = 900.0

SETTINGS = """\
# Written by `uow demo low-stock`.
[application]
id = "warehouse"
bootstrap_servers = "{bootstrap}"

[worker]
web = "127.0.0.1:0"

[rules]
source = "sqlite:///{rules}"

[routers.stock]
inputs = ["{events}"]
rules = ["{rule}"]

[destinations.{destination}]
handling_policy = "single_message_delivery"
outcomes = "all"
"""


class StockStory:
    """One run of the story.

    Args:
        environment: Folder and processes, of the example `low_stock`.
        screen: The output.
        events: Number of orders of the busy day.
        stack: Closes everything at the end.
    """

    def __init__(self, environment: DemoEnvironment, screen: Screen, events: int, stack: ExitStack) -> None:
        self.environment, self.screen, self.events, self._stack = environment, screen, events, stack
        self._begin = time.monotonic()
        self.checks: list[Check] = []
        self.limits: dict[tuple[str, int], Limits] = {}
        self.files: Counter[str] | None = None

    @property
    def seen(self) -> StockObservations:
        """Everything that the observer has read so far."""
        return self.observer.observations

    # -- 1: the stage

    def set_up(self) -> None:
        """Act 1."""
        screen, environment = self.screen, self.environment
        screen.act("1  A broker, rules in a database, and a worker with a router")
        with screen.step("Apache Kafka starts") as step:
            environment.broker.start()
            step.text = f"Apache Kafka on {environment.bootstrap}"
        environment.write_config(
            SETTINGS.format(
                bootstrap=environment.bootstrap,
                rules=environment.folder / "rules.db",
                events=EVENTS,
                rule=RULE,
                destination=DESTINATION,
            )
        )
        example = (environment.story / "rules.toml").read_text(encoding="utf-8")
        scaled = re.sub(r"((?:age|delay)_ms = )(\d+)", lambda found: f"{found[1]}{int(found[2]) // TIMES}", example)
        self._put(scaled)
        with screen.step("topics") as step:
            step.text = f"{len(environment.run_uow('topics', 'create')['created'])} topics"
        with screen.step("the worker starts") as step:
            self.worker = self._start_worker()
            step.text = f"worker {WORKER} ready; its router reads {EVENTS}"
        screen.say(f"Times are a third of those in {environment.story.name}/rules.toml.", "dim")
        rows = [(row, limits) for (row, version), limits in self.limits.items() if version == 1]
        screen.table(
            ("routing name", "a unit is full at", "or leaves after", "for topic"),
            [
                (
                    "* (all others)" if row == "*" else row,
                    f"{each.orders} orders",
                    f"{each.age_ms / 1000:.0f} s",
                    each.topic,
                )
                for row, each in rows
            ],
        )
        targets = sorted({each.topic for _, each in rows})
        self.observer = self._stack.enter_context(
            StockObserver(environment.bootstrap, EVENTS, DESTINATION, targets, DEFAULT_PARTITIONS)
        )

    def _put(self, text: str) -> None:
        """Makes a set of rules the next version."""
        told = tomllib.loads(text)
        path = self.environment.folder / f"rules-{told['version']}.toml"
        path.write_text(text, encoding="utf-8")
        self.screen.command(f"uow rules put {path.name}")
        with self.screen.step("rules") as step:
            self.environment.run_uow("rules", "put", str(path))
            step.text = f"version {told['version']}: {told['why']}"
        self.rules = text
        for row in told["rule"][0]["row"]:
            limits = Limits(row["complete_count"], row["age_ms"], row["target_topic"])
            self.limits[row["routing_name"], told["version"]] = limits

    def _start_worker(self) -> DemoProcess:
        worker = self.environment.start_worker(WORKER)
        begun = worker.said.count(f"worker {WORKER} ready")  # the log of the one before is in front
        wait_for(
            lambda: worker.said.count(f"worker {WORKER} ready") > begun or worker.status is not None,
            f"the worker's start; see {worker.log}",
        )
        return worker

    # -- 2: three suppliers

    def three_suppliers(self) -> None:
        """Act 2: by count, by time, and over a crash."""
        screen, limits = self.screen, {row: self.limits[row, 1] for row in ("France", "UK", "Spain")}
        screen.act("2  Three suppliers")
        with screen.step("ten orders for France") as step:
            self._order("cheese", limits["France"].orders)
            unit = self._unit_of("France")
            self._check(unit, "France", limits["France"].orders, "complete", "count")
            step.text = "France: ten orders, so one unit of ten leaves at once"
        with screen.step("three orders for the UK") as step:
            self._order("tea", 3)
            self._order("olives", 12)
            unit = self._unit_of("UK")
            self._check(unit, "UK", 3, "partial", "age")
            step.text = f"the UK: three of five, so they leave together after {unit.waited_ms / 1000:.0f} s"
        before = self._group("Spain")
        screen.done("Spain: twelve of twenty; and now the worker is killed")
        with screen.step("the worker is killed (SIGKILL)") as step:
            self.worker.kill()
            after = self._group("Spain")
            step.text = "killed (SIGKILL): the group lies in Kafka, with the same deadline"
        screen.command(f"uow groups {DESTINATION}")
        screen.table(("id", "held", "deadline"), [(after["id"], after["held"], _clock(after["deadline"]))])
        is_same = (
            (before["deadline"], before["count"]) == (after["deadline"], after["count"]) == (after["deadline"], 12)
        )
        self._note(is_same, "the crash moved no deadline, and lost no order")
        with screen.step("another worker starts") as step:
            self.worker = self._start_worker()
            step.text = f"worker {WORKER} is back"
        with screen.step("Spain's time runs") as step:
            unit = self._unit_of("Spain")
            self._check(unit, "Spain", 12, "partial", "age")
            step.text = f"Spain: the twelve leave {unit.waited_ms / 1000:.0f} s after the first one came"

    def _order(self, product: str, count: int) -> None:
        name = f"warehouse-{product}"
        options = ("--events", str(count), "--product", product)
        if self.environment.start_story(name, "warehouse.py", *options).wait(PATIENCE_S):
            wait_for(lambda: False, f"{name} failed", 0)

    def _unit_of(self, row: str) -> SeenStockUnit:
        """The first unit of a row."""
        found: list[SeenStockUnit] = []
        wanted = self.limits[row, 1].age_ms / 1000 + PATIENCE_S

        def is_there() -> bool:
            found.extend(unit for unit in list(self.seen.units) if unit.row == row)
            return bool(found)

        self._wait(is_there, f"a unit for {row}", wanted)
        return found[0]

    def _check(self, unit: SeenStockUnit, row: str, size: int, outcome: str, reason: str) -> None:
        limit = self.limits[row, 1].age_ms
        in_time = unit.waited_ms == limit + 1 if reason == "age" else unit.waited_ms <= limit
        is_good = (len(unit.inputs), unit.outcome, unit.reason) == (size, outcome, reason) and in_time
        self.checks.append(
            Check(
                is_good,
                f"{row}: {outcome} unit of {size} by {reason}, {unit.waited_ms / 1000:.1f} s after its first order",
            )
        )

    def _group(self, row: str) -> dict[str, Any]:
        """An open group, as `uow groups` shows it."""
        groups = self.environment.run_uow("groups", DESTINATION)["groups"]
        return next(
            (each for each in groups if each["id"] == f"{RULE}/{row}"),
            {"id": "", "count": 0, "deadline": None, "held": ""},
        )

    def _note(self, is_good: bool, text: str) -> None:
        self.checks.append(Check(is_good, text))

    # -- 3: a busy day

    def busy_day(self) -> None:
        """Act 3: all suppliers, rules that change, and a flush."""
        screen = self.screen
        screen.act(f"3  A busy day: {self.events} orders for seven suppliers")
        half = self.events // 2
        with screen.step("orders") as step:
            self._crowd("morning", half, 0)
            step.text = f"{half} orders in the morning"
        morning = self._small_units()
        self._put(_second(self.rules))
        screen.command("uow rules refresh")
        with screen.step("new rules take effect") as step:
            self.environment.start_uow("refresh", "rules", "refresh").wait(PATIENCE_S)
            self.worker.wait_said("rules: version 2 is in force")
            step.text = "in force, in the same worker"
        with screen.step("orders") as step:
            self._crowd("afternoon", self.events - half, CORRECTIONS)
            step.text = (
                f"{self.events - half} orders in the afternoon, and {CORRECTIONS} corrections, which are no orders"
            )
            self._wait(lambda: self._small_units() and len(self.seen.rejected) >= CORRECTIONS, "units by the new rules")
        self._note(
            not morning and all(len(unit.inputs) == FRANCE_LATER for unit in self._small_units()),
            f"the new rules hold without a restart: France gets units of {FRANCE_LATER}",
        )
        screen.command(f"uow expire {DESTINATION} --match '{RULE}/*' --why 'the day is over'")
        with screen.step("flush") as step:
            options = ("expire", DESTINATION, "--match", f"{RULE}/*", "--why", "the day is over")
            self.environment.start_uow("flush", *options).wait(
                PATIENCE_S
            )  # a group may be gone before its turn: then it tells so
            self._wait(lambda: len(self.seen.places) == len(self.seen.events), "the last units")
            flushed = sum(unit.reason == "command" for unit in self.seen.units)
            step.text = f"flushed: the last {flushed} units are not full, and leave"
        self._note(self.environment.run_uow("groups", DESTINATION)["groups"] == [], "after the flush nothing is open")

    def _crowd(self, name: str, events: int, corrections: int) -> None:
        options = ("--events", str(events), "--corrections", str(corrections), "--seed", str(len(name)))
        wanted = len(self.seen.events) + events + corrections
        self.environment.start_story(f"warehouse-{name}", "warehouse.py", *options).wait(PATIENCE_S)
        self._wait(lambda: len(self.seen.events) >= wanted, "the events")

    def _small_units(self) -> list[SeenStockUnit]:
        """Full units for France by the second version of the rules."""
        wanted = ("France", 2, "count")
        return [unit for unit in list(self.seen.units) if (unit.row, unit.version, unit.reason) == wanted]

    def _wait(self, condition: Callable[[], object], what: str, timeout: float = PATIENCE_S) -> None:
        """Waits for a condition; meanwhile checks that the observer still reads."""

        def met() -> bool:
            if self.observer.failure is not None:
                raise self.observer.failure
            return bool(condition())

        wait_for(met, f"{what}; the logs are in {self.environment.logs}", timeout)

    # -- 4: files

    def write_files(self) -> None:
        """Act 4."""
        screen, folder = self.screen, self.environment.folder / "files"
        screen.act("4  A file for each unit")
        screen.command("uow sink --files files --format json --once")
        with screen.step("Spark writes files") as step:
            options = ("sink", "--files", str(folder), "--format", "json", "--once")
            status = self.environment.start_uow("sink", *options).wait(SPARK_PATIENCE_S)
            self.files, wrong = listed(folder)
            step.text = f"{self.files.total()} files, with their digests in manifests: {folder}"
        units = Counter(unit.topic for unit in self.seen.units)
        self._note(
            status == 0 and not wrong and self.files == units,
            f"one file for each unit, and each as its digest says: {self.files.total()} of {units.total()}",
        )

    # -- the end

    def report(self) -> StockReport:
        """The report of the story."""
        seen = self.seen
        return StockReport(
            events=len(seen.events),
            delivered=sum(len(unit.inputs) for unit in seen.units),
            rejected=dict(Counter(seen.rejected.values())),
            suppliers=reports.map_of_suppliers(seen, self.limits),
            files=dict(self.files) if self.files is not None else None,
            folder=str(self.environment.folder),
            seconds=round(time.monotonic() - self._begin, 1),
            checks=(*self.checks, *reports.conservation_checks(seen, self.limits)),
        )


def _second(rules: str) -> str:
    """The second version of the rules: smaller units for France."""
    text = rules.replace("version = 1 ", "version = 2 ", 1).replace(
        'why = "first rules"', 'why = "smaller lorries for France"', 1
    )
    return re.sub(r'("orders.france", complete_count = )\d+', rf"\g<1>{FRANCE_LATER}", text)


def _clock(at_ms: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at_ms / 1000))


def listed(folder: Path) -> tuple[Counter[str], list[Path]]:
    """Number of listed files by topic, and those whose content is not that of their digest."""
    found, wrong = Counter[str](), []
    for manifest in sorted(folder.glob(f"{DESTINATION}/**/manifest/*.sha256")):
        row, topic = manifest.parents[1], manifest.relative_to(folder / DESTINATION).parts[0]
        for line in manifest.read_text(encoding="ascii").splitlines():
            digest, _, name = line.partition("  ")
            path = row / name
            found[topic] += 1
            if not path.is_file() or sha256(path.read_bytes()).hexdigest() != digest:
                wrong.append(path)
    return found, wrong
