"""Plots of the report, as figures of Plotly: bars, stacked bars, lines over time, and shares of units by time.

Texts come from records, and Plotly reads tags and entities in every text that it shows: all of them go through `label`. Bars stand at numbers
rather than at names, since two names may look the same once they are shortened, and a name may look like a date.

Belongs here: traces and axes. Does not belong here: the choice of numbers (`uow.report.sections`) and colours of text and lines, which follow
the reader's dark or light setting (`uow.report.page`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from html import escape
from typing import Any, Final

import plotly.graph_objects as go

from uow.terminal.printing import printable, span_text

COLOURS: Final = ("#3b76d6", "#e5803c", "#2f9e77", "#b45fb0", "#c9a227", "#45a9c9", "#d24f62", "#7d6bd6")
REST: Final = "#8b93a1"
"""Colour of what stands for all others."""
OTHERS_TEXT: Final = "others"
LABEL_CHARS: Final = 28
TEXT_CHARS: Final = 120
NOTE_CHARS: Final = 3 * TEXT_CHARS

Named = Mapping[str | None, Sequence[float | None]]
"""Values by name, None for all others."""


def shown(text: str, chars: int = TEXT_CHARS) -> str:
    """A text of a record for people: on one line, with escapes for unprintable characters, shortened."""
    text = printable(text[: chars + 1])
    return text if len(text) <= chars else f"{text[: chars - 1]}…"


def label(text: str, chars: int = LABEL_CHARS) -> str:
    """A text of a record as Plotly shows it unchanged; between dollar signs it would look for mathematics."""
    return escape(shown(text, chars)).replace("$", "&#36;")


def moment(ms: int) -> str:
    """A moment for an axis, UTC; the first or last one that an axis can have for moments beyond it."""
    bounded = min(max(ms, -62_135_596_800_000), 253_402_300_799_000)
    found = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=bounded)
    return found.replace(tzinfo=None).isoformat(" ", "milliseconds")


def bars(names: Sequence[str], values: Sequence[float], unit: str, notes: Sequence[str]) -> go.Figure:
    """Horizontal bars, the first one at the top; a note for each when pointed at."""
    figure = go.Figure(
        go.Bar(
            x=[*values],
            y=[*range(len(names))],
            orientation="h",
            customdata=[label(note, NOTE_CHARS) for note in notes],
            hovertemplate="%{customdata}<extra></extra>",
            marker={"color": [REST if name == OTHERS_TEXT else COLOURS[0] for name in names]},
        )
    )
    return _with_names(figure, [*map(label, names)], unit)


def stacked_bars(names: Sequence[str], parts: Named, unit: str) -> go.Figure:
    """Horizontal bars, the first one at the top, each with parts of several colours."""
    figure = go.Figure()
    for (part, values), colour in zip(parts.items(), _colours(parts), strict=True):
        notes = [
            f"{label(name, TEXT_CHARS)}<br>{_name(part, TEXT_CHARS)}: {value:,.0f}"
            for name, value in zip(names, values, strict=True)
            if value is not None
        ]
        figure.add_bar(
            x=[*values],
            y=[*range(len(names))],
            orientation="h",
            name=_name(part),
            customdata=notes,
            hovertemplate="%{customdata}<extra></extra>",
            marker={"color": colour},
        )
    figure.update_layout(barmode="stack", legend_traceorder="normal")
    return _with_names(figure, [*map(label, names)], unit)


def columns_over_time(starts: Sequence[int], width_ms: int, parts: Named, unit: str) -> go.Figure:
    """Columns by time, each with parts of several colours. The interval of a column is `width_ms` long."""
    figure = go.Figure()
    for (part, values), colour in zip(parts.items(), _colours(parts), strict=True):
        figure.add_bar(
            x=[*map(moment, starts)],
            y=[*values],
            width=width_ms * 0.92,
            offset=0,
            name=_name(part),
            hovertemplate="%{x}<br>%{fullData.name}: %{y:,}<extra></extra>",
            marker={"color": colour},
        )
    figure.update_layout(barmode="stack", legend_traceorder="normal")
    figure.update_yaxes(title=unit, rangemode="tozero")
    return _over_time(figure)


def lines_over_time(starts: Sequence[int], lines: Mapping[str, Sequence[int]]) -> go.Figure:
    """Times in milliseconds over time, on a logarithmic axis."""
    figure = go.Figure()
    for (name, values), colour in zip(lines.items(), COLOURS, strict=False):
        figure.add_scatter(
            x=[*map(moment, starts)],
            y=[max(value, 1) for value in values],
            name=name,
            mode="lines+markers",
            marker={"size": 5},
            line={"color": colour, "width": 2},
            customdata=[*map(span_text, values)],
            hovertemplate="%{x}<br>%{fullData.name}: %{customdata}<extra></extra>",
        )
    figure.update_yaxes(**_time_axis([value for values in lines.values() for value in values]))
    return _over_time(figure)


def shares(by_name: Mapping[str | None, Sequence[tuple[int, float]]]) -> go.Figure:
    """The share of units that were complete within a time: (milliseconds, share from 0 to 1) by name."""
    figure = go.Figure()
    for index, (name, points) in enumerate(by_name.items()):
        figure.add_scatter(
            x=[max(ms, 1) for ms, _ in points],
            y=[share * 100 for _, share in points],
            name="all" if name is None else label(name),
            mode="lines",
            line={"color": COLOURS[index % len(COLOURS)], "width": 3 if name is None else 1.5},
            customdata=[span_text(ms) for ms, _ in points],
            hovertemplate="%{y:.4~g} % within %{customdata}<extra>%{fullData.name}</extra>",
        )
    figure.update_xaxes(**_time_axis([ms for points in by_name.values() for ms, _ in points]))
    figure.update_yaxes(title="units complete within", ticksuffix=" %", range=[0, 101])
    return _laid_out(figure)


_TICKS: Final = {
    1: "1 ms",
    10: "10 ms",
    100: "100 ms",
    1_000: "1 s",
    10_000: "10 s",
    60_000: "1 min",
    600_000: "10 min",
    3_600_000: "1 h",
    6 * 3_600_000: "6 h",
    86_400_000: "1 d",
    7 * 86_400_000: "7 d",
    70 * 86_400_000: "70 d",
    700 * 86_400_000: "700 d",
}


def _time_axis(values: Sequence[int]) -> dict[str, Any]:
    """A logarithmic axis of times, with ticks that people use."""
    return {"type": "log", "tickvals": [*_TICKS], "ticktext": [*_TICKS.values()], "title": None}


def _colours(names: Mapping[str | None, Any]) -> list[str]:
    return [REST if name is None else COLOURS[index % len(COLOURS)] for index, name in enumerate(names)]


def _name(name: str | None, chars: int = LABEL_CHARS) -> str:
    return OTHERS_TEXT if name is None else label(name, chars)


def _with_names(figure: go.Figure, names: Sequence[str], unit: str) -> go.Figure:
    """Names for the bars at 0, 1, 2 ..., from the top."""
    positions = [*range(len(names))]
    figure.update_yaxes(
        tickvals=positions, ticktext=[*names], range=[len(names) - 0.4, -0.6], showgrid=False, ticklabelstandoff=6
    )
    figure.update_xaxes(title=unit, rangemode="tozero")
    return _laid_out(figure, height=130 + 26 * max(len(names), 4))


def _over_time(figure: go.Figure) -> go.Figure:
    figure.update_xaxes(type="date", title="UTC")
    return _laid_out(figure)


def _laid_out(figure: go.Figure, height: int = 330) -> go.Figure:
    figure.update_layout(
        template="none",
        height=height,
        margin={"l": 10, "r": 16, "t": 34, "b": 10},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, sans-serif", "size": 12},
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        showlegend=len(figure.data) > 1,
        hoverlabel={"align": "left"},
        dragmode="zoom",
    )
    figure.update_xaxes(automargin=True, zeroline=False, ticks="outside", ticklen=4)
    figure.update_yaxes(automargin=True, zeroline=False)
    return figure
