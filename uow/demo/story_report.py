"""The report of the story: its results, and checks that the counts agree (W-216).

Belongs here: the report's data, its checks, its text and JSON. Does not belong here: the story (`uow.demo.story`), and the
audit, which is a command of its own (`uow audit`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from typing import Any

from uow.demo.bad_traffic import TrafficPlan
from uow.demo.observer import Observations, percentile
from uow.terminal.screen import Screen


@dataclass(frozen=True, slots=True)
class Latency:
    """Time from the append of a unit's last component until a `read_committed` consumer has the unit, in milliseconds.

    Attributes:
        p50, p99: Percentiles of the units that became complete while both workers ran.
        longest_across_kill: Maximum of the units on their way while one worker was dead.
    """

    p50: int
    p99: int
    longest_across_kill: int


@dataclass(frozen=True, slots=True)
class Check:
    """A condition that must hold, in words, and whether it does."""

    good: bool
    text: str


@dataclass(frozen=True, slots=True)
class StoryReport:
    """The whole report; `uow demo --json` prints `as_json`.

    Attributes:
        orders: Number of orders placed, without the aborted one.
        invoices: Invoices written.
        units: Units delivered.
        records: Numbers of records of `megazon.components`, by result.
        rejected: Refused components by class and case.
        given_up: Groups given up by reason.
        latency: Latency of the units.
        jill: Jill's invoice.
        aborted: Id of the order whose checkout was aborted.
        audit: The output of `uow audit --json`; None when there was no audit.
        tables: Folder of the Delta tables; None when there are none.
        page: The page of `uow report`; None when there is none.
        folder: The demo's folder.
        seconds: Duration of the demo.
        checks: All checks.
    """

    orders: int
    invoices: int
    units: int
    records: Mapping[str, int]
    rejected: Mapping[str, Mapping[str, int]]
    given_up: Mapping[str, int]
    latency: Latency
    jill: Mapping[str, Any]
    aborted: str
    audit: Any
    tables: str | None
    page: str | None
    folder: str
    seconds: float
    checks: tuple[Check, ...] = field(default=())

    @property
    def is_good(self) -> bool:
        """True if every check passed."""
        return all(check.good for check in self.checks)

    def as_json(self) -> dict[str, Any]:
        """The report as one JSON object."""
        return {"good": self.is_good, **asdict(self)}


def latency_of(observations: Observations, killed_at: int, whole_at: int) -> Latency:
    """Latency of the units; units on their way at any time between the two moments (epoch ms) are counted separately."""
    across: list[int] = []
    steady: list[int] = []
    for unit in observations.units:
        is_across = unit.completed_at <= whole_at and unit.seen_at >= killed_at
        (across if is_across else steady).append(unit.latency_ms)
    return Latency(percentile(steady, 0.5), percentile(steady, 0.99), max(across, default=0))


def rejected_of(observations: Observations) -> dict[str, dict[str, int]]:
    """Refused components by class and case, in alphabetical order."""
    found: dict[str, dict[str, int]] = {}
    for (name, case), count in sorted(observations.rejected.items()):
        found.setdefault(name, {})[case or "-"] = count
    return found


def records_of(observations: Observations) -> dict[str, int]:
    """Numbers of records of the components topic, by result."""
    return {
        "received": observations.components,
        "delivered": observations.delivered,
        "given up": observations.given_up.total(),
        "rejected": observations.rejected.total(),
        "passed through": observations.plain,
        "sent on": observations.rerouted,
    }


def agreement_checks(observations: Observations, plan: TrafficPlan) -> Iterator[Check]:
    """All checks that need only the topics."""
    invoiced = Counter(invoice["order"] for invoice in observations.invoices)
    units = Counter(unit.id for unit in observations.units)
    given_up = set(observations.given_up)
    ends = {*plan.orders, *plan.stranded}
    lost = [order for order in ends if order not in units and order not in given_up]
    mixed = [order for order in ends if order in units and order in given_up]
    yield Check(
        not lost and not mixed and {*units, *given_up} == ends,
        f"every order has one outcome: {len(plan.orders) + len(plan.stranded)} = {len(units)} delivered + {len(given_up)} given up",
    )
    yield Check(
        max(units.values(), default=0) == 1 and invoiced == units,
        f"each unit once, each with one invoice: {units.total()} units, {invoiced.total()} invoices",
    )
    gaps = [unit.id for unit in observations.units if unit.seqs != tuple(range(1, len(unit.seqs) + 1))]
    yield Check(not gaps, "each unit complete and in order, 1 to n")
    totals = {invoice["order"]: Decimal(invoice["total"]) for invoice in observations.invoices}
    wrong = [order for order, total in plan.orders.items() if order in totals and totals[order] != total]
    yield Check(
        not wrong, f"invoices ask for what was ordered: {sum(totals.values(), Decimal()):,} in {len(totals)} invoices"
    )
    yield Check(plan.aborted not in observations.ids, "the aborted checkout left no trace")
    missed = plan.refused - observations.rejected
    yield Check(
        not missed,
        f"each kind of refusal seen: {len(observations.rejected)} cases of {len({name for name, _ in observations.rejected})} classes"
        + (f"; missing {dict(missed)}" if missed else ""),
    )
    yield Check(observations.plain == plan.plain, f"newsletters passed through: {observations.plain} of {plan.plain}")
    yield Check(
        observations.components == observations.accounted,
        f"no record was lost: {observations.components} = {observations.delivered} delivered + {observations.given_up.total()} given up"
        f" + {observations.rejected.total()} rejected + {observations.plain} passed + {observations.rerouted} sent on",
    )


def audit_agreement(observations: Observations, audit: Mapping[str, Any]) -> Check:
    """The check that the audit counts the same as the observer."""
    expected = {fate: row["expected"] for fate, row in audit["records"].items()}
    seen = records_of(observations)
    refused = expected.get("rejected", 0) + expected.get("duplicate", 0)
    agrees = (audit["received"], refused) == (seen["received"], seen["rejected"])
    return Check(agrees, f"the audit counts the same: {audit['received']} records, {refused} of them rejected")


def show_invoice(screen: Screen, invoice: Mapping[str, Any]) -> None:
    """Prints an invoice."""
    screen.say()
    screen.say(f"    Megazon, invoice for {invoice['customer']}", "bold")
    rows = [(line["item"], line["price"]) for line in invoice["lines"]]
    rule = "-" * max(len(price) for _, price in [*rows, ("", invoice["total"])])
    screen.table(("", ""), [(f"  {item:<24}", price) for item, price in rows], right=(1,))
    screen.table(("", ""), [(f"  {'':<24}", rule), (f"  {'total':<24}", invoice["total"])], right=(1,))
    screen.say()


def audit_text(audit: Mapping[str, Any]) -> str:
    """The result of an audit in one line."""
    units = ", ".join(f"{count} {outcome}" for outcome, count in sorted(audit["units"].items()))
    differences = ", ".join(f"{count} {what}" for what, count in audit["differences"].items())
    return f"{audit['received']} records computed again: {units}; {differences or 'no difference'}"


def show(screen: Screen, report: StoryReport) -> None:
    """The report for people."""
    screen.act("Report")
    records = " + ".join(f"{count} {what}" for what, count in report.records.items() if what != "received" and count)
    latency = report.latency
    rows: list[tuple[str, object]] = [
        ("orders", f"{report.orders} placed, {report.invoices} invoiced, {sum(report.given_up.values())} given up"),
        ("given up", ", ".join(f"{count} {reason}" for reason, count in report.given_up.items())),
        ("records", f"{report.records['received']} in megazon.components"),
        ("", records),
        ("latency", f"p50 {latency.p50} ms, p99 {latency.p99} ms while both workers ran"),
        ("", f"at most {latency.longest_across_kill / 1000:.1f} s while one was dead"),
    ]
    if report.audit is not None:
        rows.append(("audit", audit_text(report.audit)))
    if report.tables is not None:
        rows.append(("tables", report.tables))
    if report.page is not None:
        rows.append(("page", report.page))
    screen.table(("", ""), rows)
    screen.say()
    screen.say("  rejected", "bold")
    refused = [
        (name if number == 0 else "", case, count)
        for name, cases in report.rejected.items()
        for number, (case, count) in enumerate(cases.items())
    ]
    screen.table(("class", "case", "records"), refused, right=(2,))
    show_invoice(screen, report.jill)
    for check in report.checks:
        screen.check(check.good, check.text)
