"""The parts of the report: which question is answered by which numbers, in which words.

Belongs here: titles, sentences, the choice of plots and columns. Does not belong here: queries (`uow.spark_sink.summary`) and HTML (`uow.report.page`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from uow.processor.engine.group_view import OpenGroup
from uow.report import charts
from uow.report.charts import OTHERS_TEXT, moment, shown
from uow.report.page import Headline, Section, html_page
from uow.schemas.records import ranges_text
from uow.spark_sink.summary import (
    MAX_ROWS,
    MEDIAN,
    NINETY,
    NINETY_NINE,
    OTHERS,
    QUANTILES,
    Counted,
    Durations,
    Latecomer,
    Summary,
)
from uow.terminal.printing import span_text

Open = Mapping[str, Sequence[OpenGroup]]
"""Open groups by destination, the oldest first."""

NONE: Final = "(none)"
"""The text for a class, id or name that a record does not have."""


def report_page(summary: Summary, now_ms: int, open_groups: Open | None = None) -> str:
    """The whole page as HTML.

    Args:
        summary: Numbers from the tables.
        now_ms: The present moment, epoch ms.
        open_groups: Open groups, as the broker has them now; None: it was not asked.
    """
    names = [each.destination for each in summary.totals]
    title = f"Units of work: {', '.join(map(shown, names[:5]))}" + (
        f" and {len(names) - 5} more" if len(names) > 5 else ""
    )
    sections = [
        _durations(summary),
        _paces(summary),
        _volume(summary),
        _late(summary.late_numbers, "Which component comes last?", "number", len(names) > 1),
        _late(summary.late_producers, "Whom do units wait for?", "producer", len(names) > 1),
        _refusals(summary),
        _missing(summary),
        _open(open_groups, now_ms),
        _latest(summary),
        _totals(summary),
        *([_unreadable(summary)] if summary.unreadable else []),
    ]
    return html_page(title, _lines(summary, now_ms), _headlines(summary, now_ms, open_groups), sections)


def _lines(summary: Summary, now_ms: int) -> list[str]:
    asked = [
        f"{word} {_when(bound)}"
        for word, bound in (("since", summary.since), ("until", summary.until))
        if bound is not None
    ]
    written = (
        "No unit is in the tables."
        if summary.first is None or summary.last is None
        else f"Units written from {_when(summary.first)} to {_when(summary.last)}."
    )
    range_text = f" Asked for: {', '.join(asked)}." if asked else ""
    return [f"{written}{range_text} Made {_when(now_ms)}. All times are UTC."]


def _when(ms: int) -> str:
    return moment(ms)[:19]


def _headlines(summary: Summary, now_ms: int, open_groups: Open | None) -> list[Headline]:
    totals = summary.totals
    units, complete = sum(each.units for each in totals), sum(each.complete for each in totals)
    refused, incomplete = sum(each.refused for each in totals), sum(each.incomplete for each in totals)
    again, unreadable = sum(each.emitted_again for each in totals), sum(each.unreadable for each in totals)
    times = summary.durations[0].ms if summary.durations else None
    components = sum(each.components for each in totals)
    found = [
        Headline(
            f"{units:,}", "units", f"{components:,} components" + (f", {complete:,} whole" if complete < units else "")
        ),
        Headline(span_text(times[MEDIAN]) if times else "-", "half are complete within"),
        Headline(span_text(times[NINETY_NINE]) if times else "-", "99 of 100 within"),
        Headline(f"{incomplete:,}", "groups not whole", "expired, cancelled, failed, partial"),
        Headline(f"{refused:,}", "components refused"),
        Headline(f"{again:,}", "emitted again", "records that a later one supersedes"),
        Headline(f"{unreadable:,}", "unreadable records"),
    ]
    if open_groups is not None:
        groups = [group for each in open_groups.values() for group in each]
        age = span_text(now_ms - min(group.opened_at for group in groups)) if groups else "-"
        found.append(Headline(age, "oldest open group", f"{len(groups):,} open"))
    return found


def _durations(summary: Summary) -> Section:
    title, durations = "How long does a unit take?", summary.durations
    if not durations:
        return Section(title, "No complete unit is in the tables.")
    lines: dict[str | None, list[tuple[int, float]]] = {
        each.destination: [*zip(each.ms, QUANTILES, strict=True)]
        for each in (durations if len(durations) > 2 else durations[:1])
    }
    slowest = max(durations, key=lambda each: each.ms[-1])
    lead = f"From the first component to the last: half within {_ms(durations[0], MEDIAN)}, 90 of 100 within {_ms(durations[0], NINETY)}, the slowest {_ms(slowest, -1)}."
    columns = ("destination", "units", "median", "90 %", "99 %", "slowest")
    rows: list[list[str | int | None]] = [
        [each.destination or "all", each.units, *(_ms(each, at) for at in (MEDIAN, NINETY, NINETY_NINE, -1))]
        for each in durations
    ]
    return Section(title, lead, charts.shares(lines), columns, rows)


def _ms(durations: Durations, at: int) -> str:
    return span_text(durations.ms[at])


def _paces(summary: Summary) -> Section:
    title, paces = "Does it get slower?", summary.paces
    if not paces:
        return Section(title, "No complete unit is in the tables.")
    lines = {
        "median": [each.median for each in paces],
        "90 of 100": [each.ninety for each in paces],
        "99 of 100": [each.ninety_nine for each in paces],
    }
    worst = max(paces, key=lambda each: each.ninety_nine)
    lead = f"Completion times by the moment of delivery, {span_text(summary.interval_ms)} each; the slowest 99 of 100 were those from {_when(worst.start)} on: {span_text(worst.ninety_nine)}."
    rows = [(_when(each.start), *map(span_text, (each.median, each.ninety, each.ninety_nine))) for each in paces]
    return Section(title, lead, charts.lines_over_time([each.start for each in paces], lines), ("from", *lines), rows)


def _volume(summary: Summary) -> Section:
    title, intervals = "How much is delivered, where and when?", summary.intervals
    if not intervals:
        return Section(title, "No unit is in the tables.")
    starts = sorted({each.start for each in intervals})
    by: dict[str | None, dict[int, int]] = defaultdict(dict)
    for each in intervals:
        by[each.destination][each.start] = each.units
    names = sorted(by, key=lambda name: (name is OTHERS, -sum(by[name].values())))
    parts = {name: [by[name].get(start) for start in starts] for name in names}
    most = max(starts, key=lambda start: sum(counts.get(start, 0) for counts in by.values()))
    lead = f"Units in each {span_text(summary.interval_ms)}; most of them from {_when(most)} on."
    rows = [(_when(each.start), _name(each.destination), each.units, each.components, each.bytes) for each in intervals]
    plot = charts.columns_over_time(starts, summary.interval_ms, parts, "units")
    return Section(title, lead, plot, ("from", "destination", "units", "components", "bytes"), rows)


def _late(rows: Sequence[Latecomer], title: str, kind: str, several: bool) -> Section:
    """The last components by number or producer; `several` destinations name theirs."""
    if not rows:
        return Section(title, "No unit of two or more components is in the tables.")
    names = [_latecomer(each, several) for each in rows]
    texts = [
        f"{name}: last of {each.units:,} units; the others waited {span_text(each.waited_ms)} in all"
        + ("" if each.median_ms is None else f", {span_text(each.median_ms)} in the median")
        for name, each in zip(names, rows, strict=True)
    ]
    first = rows[0]
    worst = "others" if first.destination is OTHERS else names[0]
    lead = f"Time that units waited for their last component alone, by its {kind}. Longest: {worst}, {span_text(first.waited_ms)} over {first.units:,} units."
    columns = ("destination", kind, "last of units", "waited in all", "median wait")
    table = [
        (
            _name(each.destination),
            each.name or ("" if each.destination is OTHERS else NONE),
            each.units,
            span_text(each.waited_ms),
            "" if each.median_ms is None else span_text(each.median_ms),
        )
        for each in rows
    ]
    size, unit = _unit(max(each.waited_ms for each in rows))
    return Section(
        title,
        lead,
        charts.bars(names, [each.waited_ms / size for each in rows], f"{unit} waited", texts),
        columns,
        table,
    )


def _latecomer(each: Latecomer, several: bool) -> str:
    if each.destination is OTHERS:
        return OTHERS_TEXT
    name = shown(each.name or NONE)
    return f"{name} of {shown(each.destination)}" if several else name


def _unit(longest_ms: int) -> tuple[int, str]:
    """The unit of an axis that reaches to a time: its milliseconds, and its name."""
    sizes = (
        (3 * 86_400_000, 86_400_000, "days"),
        (3 * 3_600_000, 3_600_000, "hours"),
        (180_000, 60_000, "minutes"),
        (3_000, 1_000, "seconds"),
    )
    return next(((size, name) for least, size, name in sizes if longest_ms >= least), (1, "milliseconds"))


def _refusals(summary: Summary) -> Section:
    return _counts(
        summary.refusals,
        "Which components are refused, and whose are they?",
        "No component was refused.",
        "By error class and producer; most: {name}, {count} of {all}.",
        ("class", "producer", "records"),
    )


def _missing(summary: Summary) -> Section:
    return _counts(
        summary.missing,
        "What was missing where a group did not become whole?",
        "Every group became whole, or is still open.",
        "By missing numbers (5- is all from 5 on) and outcome; most: {name}, {count} of {all} groups.",
        ("missing", "outcome", "groups"),
    )


def _unreadable(summary: Summary) -> Section:
    return _counts(
        summary.unreadable,
        "Which records could not be read?",
        "",
        "By reason and destination; most: {name}, {count} of {all}.",
        ("reason", "destination", "records"),
    )


def _counts(counts: Sequence[Counted], title: str, nothing: str, lead: str, columns: tuple[str, str, str]) -> Section:
    """Bars by name, with a part for each second name."""
    if not counts:
        return Section(title, nothing)
    by: dict[str | None, dict[str | None, int]] = defaultdict(dict)
    of: dict[str | None, int] = defaultdict(int)
    for each in counts:
        by[each.by][each.name] = each.count
        of[each.name] += each.count
    names = sorted(of, key=lambda name: (name is OTHERS, -of[name]))
    parts = sorted(by, key=lambda part: (part is OTHERS, -sum(by[part].values())))
    values = {None if part is OTHERS else part or NONE: [by[part].get(name) for name in names] for part in parts}
    most = max(names, key=lambda name: of[name])
    text = lead.format(name=_name(most), count=f"{of[most]:,}", all=f"{sum(of.values()):,}")
    rows = [(_name(each.name), _name(each.by), each.count) for each in counts]
    return Section(title, text, charts.stacked_bars([*map(_name, names)], values, columns[2]), columns, rows)


def _name(name: str | None) -> str:
    return OTHERS_TEXT if name is OTHERS else shown(name or NONE)


def _open(open_groups: Open | None, now_ms: int) -> Section:
    title = "Which open groups are the oldest?"
    if open_groups is None:
        return Section(
            title,
            "The tables cannot tell: open groups are in the workers' state. Name the configuration (-c) and the broker is asked for them.",
        )
    groups = sorted(
        ((group, name) for name, each in open_groups.items() for group in each[:MAX_ROWS]),
        key=lambda pair: pair[0].opened_at,
    )[:MAX_ROWS]
    if not groups:
        return Section(title, "No group is open.")
    ages = [max(now_ms - group.opened_at, 0) for group, _ in groups]
    size, unit = _unit(max(ages))
    names = [group.id for group, _ in groups]
    notes = [
        f"{shown(group.id)} of {shown(name)}: open for {span_text(age)}, missing {ranges_text(group.missing)}"
        for (group, name), age in zip(groups, ages, strict=True)
    ]
    total = sum(map(len, open_groups.values()))
    lead = f"{total:,} groups are open; the oldest for {span_text(ages[0])}. Held by the workers as of {_when(now_ms)}."
    rows = [
        (
            group.id,
            name,
            span_text(age),
            ranges_text(group.held),
            ranges_text(group.missing),
            "never" if group.deadline is None else _when(group.deadline),
        )
        for (group, name), age in zip(groups, ages, strict=True)
    ]
    plot = charts.bars(names, [age / size for age in ages], f"{unit} open", notes)
    return Section(title, lead, plot, ("id", "destination", "age", "held", "missing", "expires"), rows)


def _latest(summary: Summary) -> Section:
    title, groups = "Which groups failed to become whole last?", summary.latest_incomplete
    if not groups:
        return Section(title, "None did.")
    rows = [
        (
            each.id or NONE,
            each.destination,
            " ".join(filter(None, (each.outcome, each.reason))),
            each.held,
            each.missing,
            None if each.written_at is None else _when(each.written_at),
        )
        for each in groups
    ]
    return Section(
        title, f"The latest {len(rows)}.", None, ("id", "destination", "outcome", "held", "missing", "closed"), rows
    )


def _totals(summary: Summary) -> Section:
    columns = ("destination", "units", "components", "bytes", "refused", "not whole", "again", "unreadable")
    most = summary.totals[:MAX_ROWS]
    rows = [
        (
            each.destination,
            each.units,
            each.components,
            each.bytes,
            each.refused,
            each.incomplete,
            each.emitted_again,
            each.unreadable,
        )
        for each in most
    ]
    lead = (
        f"{len(rows)} of {len(summary.totals)}, those with the most units."
        if len(most) < len(summary.totals)
        else "In the tables."
    )
    return Section("How much is there of each destination?", lead, None, columns, rows)
