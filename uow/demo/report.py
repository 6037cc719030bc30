"""What came out of the story, and whether the counts agree (W-216).

Belongs here: the report's data, its checks, its two looks. Does not belong here: the story (`uow.demo.play`), and the audit,
which is a command of its own (`uow audit`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from typing import Any

from uow.demo.mischief import Plan
from uow.demo.observer import Sights, percentile
from uow.screen import Screen


@dataclass(frozen=True, slots=True)
class Latency:
    """From the append of a unit's last component to a `read_committed` reader's having the unit, in milliseconds.

    Attributes:
        p50, p99: Of the units that were completed while both workers ran.
        longest_across_kill: Of those under way while one was dead.
    """

    p50: int
    p99: int
    longest_across_kill: int


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must agree."""

    good: bool
    text: str


@dataclass(frozen=True, slots=True)
class Report:
    """All of it; `as_json` is what `uow demo --json` prints.

    Attributes:
        orders: Orders placed, the aborted one not among them.
        invoices: Invoices written.
        units: Units delivered.
        records: Records of `megazon.components`, and what became of them.
        rejected: Refused components by class and case.
        given_up: Groups given up by reason.
        latency: Of the units.
        jill: Jill's invoice.
        aborted: Id of the order whose checkout was aborted.
        audit: What `uow audit --json` printed; None when there was no audit.
        tables: Folder of the Delta tables; None when there are none.
        folder: Everything the demo left behind.
        seconds: How long it all took.
        checks: What must agree.
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
    folder: str
    seconds: float
    checks: tuple[Check, ...] = field(default=())

    @property
    def is_good(self) -> bool:
        """Everything agrees."""
        return all(check.good for check in self.checks)

    def as_json(self) -> dict[str, Any]:
        """The report as one JSON object."""
        return {"good": self.is_good, **asdict(self)}


def latency_of(sights: Sights, killed_at: int, whole_at: int) -> Latency:
    """Latency of the units; those under way at any time between the two moments (epoch ms) count apart."""
    across: list[int] = []
    steady: list[int] = []
    for unit in sights.units:
        is_across = unit.completed_at <= whole_at and unit.seen_at >= killed_at
        (across if is_across else steady).append(unit.latency_ms)
    return Latency(percentile(steady, 0.5), percentile(steady, 0.99), max(across, default=0))


def rejected_of(sights: Sights) -> dict[str, dict[str, int]]:
    """Refused components by class and case, in alphabetical order."""
    found: dict[str, dict[str, int]] = {}
    for (name, case), count in sorted(sights.rejected.items()):
        found.setdefault(name, {})[case or "-"] = count
    return found


def records_of(sights: Sights) -> dict[str, int]:
    """Records of the components topic and what became of them."""
    return {
        "received": sights.components,
        "delivered": sights.delivered,
        "given up": sights.given_up.total(),
        "rejected": sights.rejected.total(),
        "passed through": sights.plain,
        "sent on": sights.rerouted,
    }


def agreement(sights: Sights, plan: Plan) -> Iterator[Check]:
    """Everything that must agree, from the topics alone."""
    invoiced = Counter(invoice["order"] for invoice in sights.invoices)
    units = Counter(unit.id for unit in sights.units)
    given_up = set(sights.given_up)
    ends = {*plan.orders, *plan.stranded}
    lost = [order for order in ends if order not in units and order not in given_up]
    mixed = [order for order in ends if order in units and order in given_up]
    yield Check(
        not lost and not mixed and {*units, *given_up} == ends,
        f"every order has one end: {len(plan.orders) + len(plan.stranded)} = {len(units)} delivered + {len(given_up)} given up",
    )
    yield Check(
        max(units.values(), default=0) == 1 and invoiced == units,
        f"each unit once, each with one invoice: {units.total()} units, {invoiced.total()} invoices",
    )
    gaps = [unit.id for unit in sights.units if unit.seqs != tuple(range(1, len(unit.seqs) + 1))]
    yield Check(not gaps, "each unit whole and in order, 1 to n")
    totals = {invoice["order"]: Decimal(invoice["total"]) for invoice in sights.invoices}
    wrong = [order for order, total in plan.orders.items() if order in totals and totals[order] != total]
    yield Check(
        not wrong, f"invoices ask for what was ordered: {sum(totals.values(), Decimal()):,} in {len(totals)} invoices"
    )
    yield Check(plan.aborted not in sights.ids, "the aborted checkout left no trace")
    missed = plan.refused - sights.rejected
    yield Check(
        not missed,
        f"each kind of refusal seen: {len(sights.rejected)} cases of {len({name for name, _ in sights.rejected})} classes"
        + (f"; missing {dict(missed)}" if missed else ""),
    )
    yield Check(sights.plain == plan.plain, f"newsletters through: {sights.plain} of {plan.plain}")
    yield Check(
        sights.components == sights.accounted,
        f"no record vanished: {sights.components} = {sights.delivered} delivered + {sights.given_up.total()} given up"
        f" + {sights.rejected.total()} rejected + {sights.plain} passed + {sights.rerouted} sent on",
    )


def audit_agreement(sights: Sights, audit: Mapping[str, Any]) -> Check:
    """What the audit computed again is what this reader saw."""
    expected = {fate: row["expected"] for fate, row in audit["records"].items()}
    seen = records_of(sights)
    refused = expected.get("rejected", 0) + expected.get("duplicate", 0)
    agrees = (audit["received"], refused) == (seen["received"], seen["rejected"])
    return Check(agrees, f"the audit counts the same: {audit['received']} records, {refused} of them rejected")


def show_invoice(screen: Screen, invoice: Mapping[str, Any]) -> None:
    """An invoice as people know them."""
    screen.say()
    screen.say(f"    Megazon, invoice for {invoice['customer']}", "bold")
    rows = [(line["item"], line["price"]) for line in invoice["lines"]]
    rule = "-" * max(len(price) for _, price in [*rows, ("", invoice["total"])])
    screen.table(("", ""), [(f"  {item:<24}", price) for item, price in rows], right=(1,))
    screen.table(("", ""), [(f"  {'':<24}", rule), (f"  {'total':<24}", invoice["total"])], right=(1,))
    screen.say()


def told_of(audit: Mapping[str, Any]) -> str:
    """An audit in a line."""
    units = ", ".join(f"{count} {outcome}" for outcome, count in sorted(audit["units"].items()))
    differences = ", ".join(f"{count} {what}" for what, count in audit["differences"].items())
    return f"{audit['received']} records computed again: {units}; {differences or 'no difference'}"


def show(screen: Screen, report: Report) -> None:
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
        rows.append(("audit", told_of(report.audit)))
    if report.tables is not None:
        rows.append(("tables", report.tables))
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
