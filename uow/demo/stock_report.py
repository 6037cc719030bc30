"""The report of the low-stock story: the map of suppliers, and checks that every event is in one place (aggregation, B-08, L1).

Belongs here: the report's data, its checks, its text and JSON. Does not belong here: the story (`uow.demo.stock_story`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from uow.demo.stock_observer import SeenStockUnit, StockObservations
from uow.demo.story_report import Check
from uow.terminal.screen import Screen


@dataclass(frozen=True, slots=True)
class Limits:
    """A row of the rules: most orders of a unit, longest wait, and where it goes."""

    orders: int
    age_ms: int
    topic: str


@dataclass(frozen=True, slots=True)
class StockReport:
    """The whole report; `uow demo low-stock --json` prints `as_json`.

    Attributes:
        events: Records of `stock.events`.
        delivered: Events in units.
        rejected: Refused events by class and case.
        suppliers: For each supplier: events, units, and units by reason, by the row that he has.
        files: Files by topic; None without Spark.
        folder: The demo's folder.
        seconds: Duration of the demo.
        checks: All checks.
    """

    events: int
    delivered: int
    rejected: Mapping[str, int]
    suppliers: Sequence[Mapping[str, Any]]
    files: Mapping[str, int] | None
    folder: str
    seconds: float
    checks: tuple[Check, ...]

    @property
    def is_good(self) -> bool:
        """True if every check passed."""
        return all(check.good for check in self.checks)

    def as_json(self) -> dict[str, Any]:
        """The report as one JSON object."""
        return {"good": self.is_good, **asdict(self)}


def conservation_checks(seen: StockObservations, limits: Mapping[tuple[str, int], Limits]) -> Iterator[Check]:
    """Checks of the topics alone.

    Args:
        seen: The topics.
        limits: Rows by routing name and version.
    """
    places = seen.places
    lost = [place for place in seen.events if place not in places]
    strange = [place for place in places if place not in seen.events]
    twice = [place for place, count in places.items() if count > 1]
    delivered = sum(len(unit.inputs) for unit in seen.units)
    yield Check(
        not lost and not strange,
        f"every event is in one place: {len(seen.events)} = {delivered} delivered + {len(seen.rejected)} refused"
        + (f"; {len(lost)} lost, {len(strange)} from nowhere" if lost or strange else ""),
    )
    yield Check(not twice and _is_unique(seen.units), "no event came twice, and no unit")
    over = [unit for unit in seen.units if len(unit.inputs) > limits[unit.row, unit.version].orders]
    yield Check(not over, f"no unit holds more than its row allowed: {len(seen.units)} units")
    late = [unit for unit in seen.units if unit.waited_ms > limits[unit.row, unit.version].age_ms + 1]
    yield Check(not late, "no order waited longer than its row allowed")
    mixed = [unit for unit in seen.units if unit.row != "*" and unit.suppliers != {unit.row}]
    yield Check(not mixed, "no supplier has another one's orders")


def _is_unique(units: Sequence[SeenStockUnit]) -> bool:
    return len({unit.unit_id for unit in units}) == len(units)


def map_of_suppliers(seen: StockObservations, limits: Mapping[tuple[str, int], Limits]) -> list[dict[str, Any]]:
    """For each row: its suppliers, their events, and its units."""
    named = {row for row, _ in limits}
    found = []
    for row in sorted(named, key=lambda name: (name == "*", name)):
        suppliers = sorted(
            {
                each
                for each in seen.events.values()
                if (each in named and each == row) or (row == "*" and each not in named)
            }
        )
        units = [unit for unit in seen.units if unit.row == row]
        found.append(
            {
                "row": row,
                "suppliers": suppliers,
                "topic": limits[row, 1].topic,
                "events": sum(each in suppliers for each in seen.events.values()),
                "units": len(units),
                "by": dict(sorted(Counter(unit.reason for unit in units).items())),
            }
        )
    return found


def show_map(screen: Screen, rows: Sequence[Mapping[str, Any]]) -> None:
    """Prints the map of suppliers."""
    columns = ("suppliers", "topic", "events", "units", "by count", "by age", "by command")
    lines = [
        (
            ", ".join(each["suppliers"]),
            each["topic"],
            each["events"],
            each["units"],
            *(each["by"].get(reason, 0) for reason in ("count", "age", "command")),
        )
        for each in rows
    ]
    screen.table(columns, lines, right=(2, 3, 4, 5, 6))


def show(screen: Screen, report: StockReport) -> None:
    """The report for people."""
    screen.act("Report")
    refused = ", ".join(f"{count} {case}" for case, count in report.rejected.items())
    rows: list[tuple[str, object]] = [("events", f"{report.events} in stock.events"), ("refused", refused)]
    if report.files is not None:
        rows.append(("files", ", ".join(f"{count} of {topic}" for topic, count in report.files.items())))
    rows.append(("time", f"{report.seconds:.0f} s"))
    screen.table(("", ""), rows)
    screen.say()
    show_map(screen, report.suppliers)
    screen.say()
    for check in report.checks:
        screen.check(check.good, check.text)
