"""The report as one HTML file. It loads nothing: Plotly's JavaScript, the figures and the styles are all inside.

Texts of records are escaped in HTML, in Plotly's labels (`uow.report.charts`) and in the figures' JSON. Should one get through all the same, the
page's content security policy lets no script run but the two of this module, by their digests, and lets nothing be loaded or sent.

Belongs here: HTML and CSS. Does not belong here: the content (`uow.report.sections`).
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from html import escape
from typing import Any, Final

from plotly.offline import get_plotlyjs

from uow.report.charts import shown


@dataclass(frozen=True, slots=True)
class Headline:
    """A figure in the first row of the page: the figure, its name, and an explanation."""

    value: str
    name: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A question and its answer.

    Attributes:
        title: The question.
        lead: The answer in a sentence.
        figure: The plot, a Plotly figure; None where there is nothing to plot.
        columns: Columns of the table with the plot's numbers.
        rows: Its cells; None is an empty cell, and numbers are aligned.
    """

    title: str
    lead: str
    figure: Any = None
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str | int | None]] = ()


def html_page(title: str, lines: Iterable[str], headlines: Iterable[Headline], sections: Sequence[Section]) -> str:
    """The page. All texts are plain; this function escapes them."""
    plotly = get_plotlyjs()
    figures = {f"plot-{index}": each.figure.to_plotly_json() for index, each in enumerate(sections) if each.figure}
    policy = f"default-src 'none'; script-src {_digest(plotly)} {_digest(_DRAW)}; style-src 'unsafe-inline'; img-src data: blob:"
    return "".join(
        (
            f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">\n',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n<meta name="color-scheme" content="light dark">\n',
            f"<title>{_text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<header>\n<h1>{_text(title, 500)}</h1>\n",
            *(f"<p>{_text(line, 500)}</p>\n" for line in lines),
            '</header>\n<div class="headlines">\n',
            *map(_headline, headlines),
            "</div>\n<main>\n",
            *(_section(f"plot-{index}", each) for index, each in enumerate(sections)),
            '</main>\n<script type="application/json" id="figures">',
            json.dumps(figures).replace("<", "\\u003c"),
            f"</script>\n<script>{plotly}</script>\n<script>{_DRAW}</script>\n</body>\n</html>\n",
        )
    )


def _text(text: str, chars: int = 120) -> str:
    return escape(shown(text, chars))


def _headline(each: Headline) -> str:
    note = f"<small>{_text(each.note)}</small>" if each.note else ""
    return f"<div><strong>{_text(each.value)}</strong><span>{_text(each.name)}</span>{note}</div>\n"


def _section(name: str, section: Section) -> str:
    plot = (
        f'<div class="plot" id="{name}" role="img" aria-label="{_text(section.title)}"></div>' if section.figure else ""
    )
    table = _table(section.columns, section.rows) if section.rows else ""
    if plot and table:
        table = f"<details><summary>the numbers</summary>{table}</details>"
    return (
        f"<section>\n<h2>{_text(section.title)}</h2>\n<p>{_text(section.lead, 500)}</p>\n{plot}\n{table}\n</section>\n"
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[str | int | None]]) -> str:
    head = "".join(f"<th>{_text(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>\n" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>"


def _cell(value: str | int | None) -> str:
    if isinstance(value, int):
        return f'<td class="number">{value:,}</td>'
    return f"<td>{_text(value or '')}</td>"


def _digest(script: str) -> str:
    return f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"


_DRAW: Final = """
"use strict";
const config = {displayModeBar: false, responsive: true};
for (const [id, figure] of Object.entries(JSON.parse(document.getElementById("figures").textContent)))
  Plotly.newPlot(id, figure.data, figure.layout, config);
"""

_STYLE: Final = """
:root { --ink: #1d2430; --soft: #5b6575; --line: #dde2ea; --page: #f5f6f9; --card: #ffffff; --accent: #2a5fbd; }
@media screen and (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ef; --soft: #9aa4b5; --line: #333b49; --page: #14181f; --card: #1c222c; --accent: #7ba7f0; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 28px 24px; max-width: 1360px; background: var(--page); color: var(--ink);
  font: 15px/1.45 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { margin: 0; font-size: 25px; font-weight: 650; overflow-wrap: anywhere; }
h2 { margin: 0 0 2px; font-size: 16px; font-weight: 650; }
p { margin: 0; color: var(--soft); overflow-wrap: anywhere; }
.headlines { display: grid; grid-template-columns: repeat(auto-fit, minmax(135px, 1fr)); gap: 12px; margin: 20px 0; }
.headlines div, section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
.headlines div { padding: 12px 14px; display: flex; flex-direction: column; }
.headlines strong { font-size: 23px; font-weight: 650; color: var(--accent); font-variant-numeric: tabular-nums; }
.headlines small { color: var(--soft); font-size: 12px; }
main { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(560px, 100%), 1fr)); gap: 16px; align-items: start; }
section { padding: 16px 18px; min-width: 0; break-inside: avoid; }
.plot { margin-top: 6px; }
details { margin-top: 6px; } summary { cursor: pointer; color: var(--soft); font-size: 13px; }
table { border-collapse: collapse; margin-top: 8px; font-size: 13px; width: 100%; }
th, td { text-align: left; padding: 3px 10px 3px 0; border-bottom: 1px solid var(--line); overflow-wrap: anywhere; vertical-align: top; }
th { color: var(--soft); font-weight: 500; overflow-wrap: normal; } .number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td:first-child { min-width: 8em; }
.js-plotly-plot text:not(.hovertext text) { fill: var(--ink) !important; }
.js-plotly-plot .gridlayer path { stroke: var(--line) !important; }
.js-plotly-plot .xaxislayer-above path, .js-plotly-plot .yaxislayer-above path { stroke: var(--soft) !important; }
@media print {
  @page { size: A4; margin: 12mm; }
  body { padding: 0; background: none; font-size: 12px; }
  main { display: block; } section { margin-bottom: 10px; } details { display: none; }
  .headlines { grid-template-columns: repeat(4, 1fr); }
}
"""
