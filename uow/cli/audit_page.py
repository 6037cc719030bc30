"""The reports of an audit as one HTML file, which needs nothing else: no script, no other file.

Belongs here: the page. Does not belong here: its numbers (`uow.spark_sink.audit`).
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Final

from uow.terminal.printing import moment_text, printable

if TYPE_CHECKING:
    from uow.spark_sink.audit import AuditReport

_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #1c2733; background: #fff }
h1 { font-size: 1.5rem } h2 { font-size: 1.2rem; margin-top: 2.5rem }
table { border-collapse: collapse; margin: 1rem 0; width: 100% } caption { text-align: left; font-weight: 600; padding-bottom: .3rem }
th, td { text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid #d5dce3; vertical-align: top; overflow-wrap: anywhere }
th { font-weight: 600 } td.number, th.number { text-align: right; font-variant-numeric: tabular-nums }
.verdict { display: inline-block; padding: .1rem .7rem; border-radius: 1rem; color: #fff; font-size: .9rem }
.clean { background: #1a7f37 } .wrong { background: #b42318 }
"""


def page(reports: Sequence[AuditReport], made_at: str) -> str:
    """The HTML document.

    Args:
        reports: One for each destination.
        made_at: Time of the audit, as text.
    """
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Audit</title><style>{_STYLE}</style></head>\n<body>\n'
        f"<h1>Audit of {_text(made_at)}</h1>\n{''.join(map(_section, reports))}</body></html>\n"
    )


_SHOWN: Final = 20
"""Records that a report names."""


def range_text(report: AuditReport) -> str:
    """The range of an audit in words, for people."""
    until = ", ".join(f"{partition}: {offset}" for partition, offset in report.until.items())
    if report.since is None or report.earlier is None:
        return f"range: everything up to the offsets {until}"
    since = ", ".join(f"{partition}: {offset}" for partition, offset in report.since.items())
    return (
        f"range: since the audit of {moment_text(report.earlier)}, from the offsets {since} to {until}, and groups that were open then; "
        "rows that were judged before were not looked at again"
    )


def routed_text(report: AuditReport) -> str:
    """The routers' inputs in words, for people."""
    said = ", ".join(f"{count} records of {topic}" for topic, count in report.routed.items())
    return f"routers' inputs: {said}; each should be a component, have passed, or have been refused, once"


def set_aside_text(report: AuditReport) -> str:
    """The records that were set aside, with the units that lack them."""
    found = [f"{place} of {group_id}" if group_id else place for place, group_id in report.set_aside.items()]
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    records = "1 record was set aside, and is" if len(found) == 1 else f"{len(found)} records were set aside, and are"
    return f"{records} in no unit: {', '.join(found[:_SHOWN])}{more}"


def _section(report: AuditReport) -> str:
    kind, verdict = ("clean", "no difference") if report.is_clean else ("wrong", "differences found")
    units = ", ".join(f"{count} {outcome}" for outcome, count in sorted(report.units.items())) or "none"
    notes = [f"{report.received} records received, each with one fate. Units: {units}.", f"{range_text(report)}."]
    if report.routed:
        notes.append(f"{routed_text(report)}.")
    if report.note:
        notes.append(f"{report.note}.")
    if report.set_aside:
        notes.append(f"{set_aside_text(report)}.")
    if report.unread:
        notes.append(
            f"{report.unread} records come after the position that the workers have committed, and were not checked."
        )
    if report.left_out:
        notes.append(
            f"{report.left_out} ids could not be judged: components of them, or a command that changed them, lie outside the range that was read."
        )
    fates = [(fate.value, report.count(fate), report.found.get(fate)) for fate in report.fates]
    partitions = [
        (partition, sum(counts.values()), ", ".join(f"{n} {fate.value}" for fate, n in counts.items()))
        for partition, counts in report.expected.items()
    ]
    tables = [
        _table("Records by fate", ("fate", "expected", "found"), fates),
        _table("Partitions", ("partition", "records", "fates"), partitions),
    ]
    if not report.is_clean:
        totals = [(what.value, count) for what, count in report.totals.items()]
        examples = [(each.what.value, each.source, each.id, each.place, each.detail) for each in report.examples]
        tables = [
            _table("Differences", ("difference", "number"), totals),
            _table("Examples", ("difference", "in", "id", "where", "what"), examples),
            *tables,
        ]
    paragraphs = "".join(f"<p>{_text(note)}</p>\n" for note in notes)
    heading = f'<h2>{_text(report.destination)} <span class="verdict {kind}">{verdict}</span></h2>\n'
    return f"<section>\n{heading}{paragraphs}{''.join(tables)}</section>\n"


def _table(caption: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    first = rows[0] if rows else columns
    head = "".join(
        f'<th scope="col"{_kind(value)}>{_text(column)}</th>' for column, value in zip(columns, first, strict=True)
    )
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>\n" for row in rows)
    return (
        f"<table><caption>{_text(caption)}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table>\n"
    )


def _kind(value: object) -> str:
    """Attribute of a cell, and of the heading above it: numbers stand at the right."""
    return ' class="number"' if isinstance(value, int) else ""


def _cell(value: object) -> str:
    return f"<td{_kind(value)}>{'' if value is None else _text(str(value))}</td>"


def _text(text: str) -> str:
    """Text for HTML; ids and topics may be any characters."""
    return escape(printable(text))
