"""A proof as one HTML file, without scripts or external resources, in light and dark colours.

Belongs here: drawing. Does not belong here: texts that the text report also prints (`proof_report`), and the events (`timeline`).
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from uow.prove.faults import TEXTS
from uow.prove.proof import Proof, versions
from uow.prove.proof_report import (
    FATES,
    answers,
    kinds_of,
    verdict,
)
from uow.prove.round import Result
from uow.prove.timeline import (
    BROKER,
    GROUP,
    NETWORK,
    Event,
)

DRAWN = 12
"""The timeline of this many rounds is drawn, and that of each round with an anomaly."""

WIDTH, LEFT, RIGHT = 1080, 64, 12
CHART, LANE, GAP = 120, 22, 6
TICKS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600)

STYLE = """\
:root { color-scheme: light dark;
  --bg: #f7f7f5; --card: #ffffff; --ink: #1d2126; --soft: #646b75; --line: #e2e3e0; --grid: #ececea;
  --good: #1a7f4b; --bad: #c0262d; --sent: #c3cad4; --delivered: #2563a8;
  --up: #b9d3c3; --starting: #e6ece8; --kill: #c0262d; --stop: #2563a8; --freeze: #d08700; --clock: #7a55c7; --group: #0e8a8a; --broker: #4b515a; --frames: #a8572a; }
@media (prefers-color-scheme: dark) { :root {
  --bg: #15181c; --card: #1d2126; --ink: #e8eaec; --soft: #9aa2ad; --line: #30363d; --grid: #272c33;
  --good: #4cc38a; --bad: #ff6b6b; --sent: #48515d; --delivered: #6cabf0;
  --up: #2f5a45; --starting: #26332d; --kill: #ff6b6b; --stop: #6cabf0; --freeze: #f0b23e; --clock: #ab8df0; --group: #3fc4c4; --broker: #a7afba; --frames: #e0915f; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--bg); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1140px; margin: 0 auto; padding: 32px 24px 64px; }
h1 { font-size: 26px; margin: 0 0 4px; letter-spacing: -.01em; } h2 { font-size: 17px; margin: 36px 0 10px; }
p { margin: 4px 0; max-width: 84ch; } .soft { color: var(--soft); } code { font: 13px ui-monospace, monospace; overflow-wrap: anywhere; }
section.card { margin-bottom: 10px; background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 16px 18px; overflow-x: auto; }
.verdict { display: flex; gap: 12px; align-items: baseline; margin: 14px 0 18px; font-size: 18px; font-weight: 600; }
.good { color: var(--good); } .bad { color: var(--bad); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 10px; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 10px 14px; }
.tile b { display: block; font-size: 24px; font-weight: 600; letter-spacing: -.02em; } .tile span { color: var(--soft); font-size: 13px; }
table { border-collapse: collapse; width: 100%; } th { text-align: left; font-weight: 500; color: var(--soft); font-size: 13px; }
td, th { padding: 6px 14px 6px 0; border-bottom: 1px solid var(--grid); vertical-align: top; } tr:last-child td { border-bottom: 0; }
table.narrow { width: auto; } td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; } td.mark { width: 24px; font-weight: 700; }
svg { display: block; width: 100%; min-width: 760px; height: auto; font: 11px system-ui, sans-serif; } svg text { fill: var(--soft); }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; margin-bottom: 10px; font-size: 13px; color: var(--soft); }
.legend i { display: inline-block; width: 14px; height: 10px; border-radius: 2px; margin-right: 6px; }
pre { margin: 0; white-space: pre-wrap; font: 12px/1.5 ui-monospace, monospace; }
"""

COLOURS = (
    ("kill", "kill"),
    ("step", "kill"),
    ("stop", "stop"),
    ("freeze", "freeze"),
    ("clock", "clock"),
    ("roll", "group"),
    ("storm", "group"),
    ("broker", "broker"),
    ("disk", "broker"),
    ("frames", "frames"),
)
"""Prefix of a fault's name, and the variable of its colour."""

LEGEND = (
    ("sent", "records sent a second"),
    ("delivered", "records delivered a second, in units or passed through"),
    ("up", "worker ready"),
    ("starting", "worker starting"),
    ("kill", "kill -9 (a triangle: at a named step of the commit)"),
    ("stop", "SIGTERM"),
    ("freeze", "frozen"),
    ("clock", "clock shifted"),
    ("group", "rolling restart, rebalance storm"),
    ("broker", "broker down, frozen or out of disk"),
    ("frames", "requests held, lost, repeated or cut off"),
)


def page(proof: Proof) -> str:
    """The complete file."""
    drawn = [(number, result) for number, result in enumerate(proof.results) if number < DRAWN or not result.is_good]
    body = [
        _head(proof),
        _tiles(proof),
        "<h2>Checks</h2>",
        _card(_questions(proof)),
        *_anomalies(proof),
        "<h2>Faults and timelines</h2>",
        _card(_faults(proof)),
        "<h2>When</h2>",
        _legend(),
        *(_timeline(number, result) for number, result in drawn),
        *([_soft(f"{len(drawn)} of {len(proof.results)} rounds are drawn")] if len(drawn) < len(proof.results) else []),
        "<h2>Where the records are</h2>",
        _card(_fates(proof)),
        "<h2>How to check this proof</h2>",
        _card(_doubts(proof)),
    ]
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    title = f"<title>uow prove, seed {proof.settings.seed}</title>"
    return f'<!doctype html><html lang="en"><head>{head}{title}<style>{STYLE}</style></head><body><main>{"".join(body)}</main></body></html>\n'


# -- words and numbers


def _head(proof: Proof) -> str:
    began = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(proof.began_at))
    mark, style = ("✓", "good") if proof.is_good else ("✗", "bad")
    told = f"{proof.settings.workers} workers on {proof.where}, seed {proof.settings.seed}, {began}"
    return (
        f'<h1>uow prove</h1><p class="soft">{escape(told)}</p>'
        f'<div class="verdict {style}"><span>{mark}</span><span>{escape(verdict(proof))}</span></div>'
    )


def _tiles(proof: Proof) -> str:
    counts = proof.findings.counts
    found = sum(proof.findings.anomalies.values())
    plural = "round" if len(proof.results) == 1 else "rounds"
    tiles = [
        (f"{counts['records']:,}", "records judged"),
        (f"{counts['units']:,}", "units delivered"),
        (f"{sum(proof.faults.values()):,}", "faults"),
        (f"{proof.kills:,}", "of them kill -9 of a worker"),
        (f"{len(proof.results):,}", f"{plural} in {proof.seconds / 60:.1f} minutes"),
        (f"{found:,}", "anomalies"),
    ]
    return f'<div class="tiles">{"".join(f"<div class=tile><b>{n}</b><span>{text}</span></div>" for n, text in tiles)}</div>'


def _questions(proof: Proof) -> str:
    rows = []
    for question, count in answers(proof.findings.anomalies):
        mark = '<td class="mark bad">✗</td>' if count else '<td class="mark good">✓</td>'
        told = f' <span class="bad">{count:,} anomalies</span>' if count else ""
        rows.append(
            f'<tr>{mark}<td>{escape(question.name)}{told}</td><td class="soft">{escape(question.how)}</td></tr>'
        )
    return f"<table><tr><th></th><th>expected</th><th>how it was checked</th></tr>{''.join(rows)}</table>"


def _anomalies(proof: Proof) -> Iterator[str]:
    texts = [*([proof.failure] if proof.failure else []), *proof.findings.texts]
    if texts:
        yield "<h2>Anomalies</h2>"
        yield _card(f"<pre>{escape(chr(10).join(texts))}</pre>")


def _faults(proof: Proof) -> str:
    rows = [
        f'<tr><td><code>{kind}</code></td><td class="n">{count:,}</td><td>{escape(TEXTS[kind])}'
        f"{f'<br><span class=soft>{escape(steps)}</span>' if steps else ''}</td></tr>"
        for kind, count, steps in kinds_of(proof.faults)
    ]
    return f'<table><tr><th>fault</th><th class="n">times</th><th></th></tr>{"".join(rows)}</table>'


def _fates(proof: Proof) -> str:
    counts = proof.findings.counts
    rows = [
        f'<tr><td class="n">{counts[word]:,}</td><td>{text}</td></tr>' for word, text in FATES.items() if counts[word]
    ]
    told = f"{counts['records']:,} records are in D.components; each has exactly one result."
    also = f"{counts['aborted']:,} records of aborted transactions were also sent, and appear nowhere."
    return f"<p>{told}</p><table class=narrow>{''.join(rows)}</table>{_soft(also)}"


def _doubts(proof: Proof) -> str:
    told = ", ".join(f"{name} {text}" for name, text in versions(proof.cluster).items())
    return (
        "<p>Read the checker: the modules <code>checker</code>, <code>judge</code> and <code>reading</code> of <code>uow.prove</code>. They import "
        "nothing of the worker. The project's tests show that it finds damaged output and workers with planted defects.</p><p>Or repeat the proof "
        "(the timing will differ):</p>"
        f"<p><code>{escape(proof.settings.command)}</code></p>{_soft(told)}"
    )


def _card(inner: str) -> str:
    return f'<section class="card">{inner}</section>'


def _soft(text: str) -> str:
    return f'<p class="soft">{escape(text)}</p>'


# -- the timeline


@dataclass(frozen=True, slots=True)
class Axis:
    """Time, from left to right."""

    begin: float
    end: float

    def x(self, at: float) -> float:
        """The x coordinate of a moment."""
        share = (at - self.begin) / (self.end - self.begin)
        return LEFT + min(1.0, max(0.0, share)) * (WIDTH - LEFT - RIGHT)

    @property
    def ticks(self) -> Iterator[tuple[float, str]]:
        """About ten round moments, in seconds since the beginning."""
        long = self.end - self.begin
        step = next((step for step in TICKS if long / step <= 12), TICKS[-1])
        for at in range(0, int(long) + 1, step):
            yield self.x(self.begin + at), f"{at} s"


def _timeline(number: int, result: Result) -> str:
    events = sorted(result.event_log.events, key=lambda event: event.at)
    axis = Axis(events[0].at, max(event.at + event.lasts_s for event in events))
    present = {event.lane for event in events}
    lanes = [lane for lane in (BROKER, NETWORK, GROUP, *result.setup.worker_names) if lane in present]
    height = CHART + 14 + len(lanes) * (LANE + GAP) + 22
    parts = [*_grid(axis, height), *_chart(axis, result)]
    for at, lane in enumerate(lanes):
        top = CHART + 14 + at * (LANE + GAP)
        parts.append(f'<text x="{LEFT - 10}" y="{top + LANE / 2 + 4}" text-anchor="end">{escape(_called(lane))}</text>')
        parts += _lane(axis, top, [event for event in events if event.lane == lane])
    counts = result.findings.counts
    told = (
        f"Round {number}: {counts['records']:,} records, {counts['units']:,} units, {sum(result.faults.values())} faults; "
        f"groups expire after {result.setup.expiration_ms / 1000:g} s, {result.setup.poll_records:,} records to a poll"
    )
    mark = "" if result.is_good else ' <b class="bad">with anomalies</b>'
    svg = f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(told)}">{"".join(parts)}</svg>'
    return _card(f"<p>{escape(told)}{mark}</p>{svg}")


def _legend() -> str:
    spans = "".join(f'<span><i style="background:var(--{name})"></i>{text}</span>' for name, text in LEGEND)
    return f'<div class="legend">{spans}</div>'


def _called(lane: str) -> str:
    return lane if lane in (BROKER, NETWORK, GROUP) else f"worker {lane}"


def _grid(axis: Axis, height: int) -> Iterator[str]:
    for x, text in axis.ticks:
        yield f'<line x1="{x:.1f}" y1="8" x2="{x:.1f}" y2="{height - 18}" stroke="var(--grid)"/>'
        yield f'<text x="{x:.1f}" y="{height - 4}" text-anchor="middle">{text}</text>'


def _chart(axis: Axis, result: Result) -> Iterator[str]:
    """Records a second, sent and delivered, on one scale."""
    seconds = int(axis.end - axis.begin) + 1
    sent, delivered = _sent(axis, seconds, result.event_log.sent), _delivered(axis, seconds, result.delivered)
    top = _ceiling(max([1.0, *sent, *delivered]))

    def y(value: float) -> float:
        return CHART - value / top * (CHART - 14)

    def points(values: Sequence[float]) -> str:
        return " ".join(f"{axis.x(axis.begin + at + 0.5):.1f},{y(value):.1f}" for at, value in enumerate(values))

    for value in (top, top / 2, 0.0):
        yield f'<line x1="{LEFT}" y1="{y(value):.1f}" x2="{WIDTH - RIGHT}" y2="{y(value):.1f}" stroke="var(--line)"/>'
        yield f'<text x="{LEFT - 10}" y="{y(value) + 4:.1f}" text-anchor="end">{value:,.0f}/s</text>'
    right = axis.x(axis.begin + len(sent) - 0.5)
    area = f"{axis.x(axis.begin + 0.5):.1f},{CHART} {points(sent)} {right:.1f},{CHART}"
    yield f'<polygon points="{area}" fill="var(--sent)" opacity=".75"/>'
    yield f'<polyline points="{points(delivered)}" fill="none" stroke="var(--delivered)" stroke-width="1.6" stroke-linejoin="round"/>'


def _sent(axis: Axis, seconds: int, samples: Sequence[tuple[float, int]]) -> list[float]:
    """The number of records sent in each second, from samples of the total."""
    found = [0.0] * seconds
    for (since, before), (until, after) in pairwise(samples):
        first, last = int(since - axis.begin), int(until - axis.begin)
        spread = range(max(0, first), min(seconds - 1, last) + 1)
        for at in spread:
            found[at] += (after - before) / len(spread)
    return found


def _delivered(axis: Axis, seconds: int, delivered: Iterable[tuple[float, int]]) -> list[float]:
    found: Counter[int] = Counter()
    for at, count in delivered:
        found[int(at - axis.begin)] += count
    return [float(found[at]) for at in range(seconds)]


def _ceiling(value: float) -> float:
    """The next larger round number."""
    size = 10.0 ** math.floor(math.log10(value))
    return next(step * size for step in (1, 2, 4, 6, 8, 10) if step * size >= value)


def _lane(axis: Axis, top: float, events: Sequence[Event]) -> Iterator[str]:
    yield from _runs(axis, top, events)
    for event in events:
        if event.what not in ("start", "ready", "end"):
            yield _fault(axis, top, event)


def _runs(axis: Axis, top: float, events: Sequence[Event]) -> Iterator[str]:
    """Bars from a worker's start until it is ready, and from then until its end."""
    since, variable = 0.0, ""
    for event in events:
        if event.what not in ("start", "ready", "end"):
            continue
        if variable:
            x = axis.x(since)
            width = max(0.5, axis.x(event.at) - x)
            yield f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="{LANE}" fill="var(--{variable})"/>'
        since, variable = event.at, {"start": "starting", "ready": "up", "end": ""}[event.what]


def _fault(axis: Axis, top: float, event: Event) -> str:
    """A fault: a bar if it has a duration, a triangle if it came at a named step, else a dot."""
    colour = f"var(--{next(name for start, name in COLOURS if event.what.startswith(start))})"
    x, middle = axis.x(event.at), top + LANE / 2
    told = escape(", ".join(text for text in (event.what, event.detail, f"at {event.at - axis.begin:.1f} s") if text))
    if event.lasts_s:
        width = max(2.0, axis.x(event.at + event.lasts_s) - x)
        label = (
            f'<text x="{x + 5:.1f}" y="{middle + 4}" style="fill:var(--card)">{escape(event.what)}</text>'
            if width > 80
            else ""
        )
        shape = (
            f'<rect x="{x:.1f}" y="{top + 3}" width="{width:.1f}" height="{LANE - 6}" rx="3" fill="{colour}"/>{label}'
        )
    elif event.what.startswith("step"):
        shape = f'<path d="M{x:.1f} {top + 4} l7 {LANE - 8} h-14 z" fill="{colour}" stroke="var(--card)"/>'
    else:
        shape = f'<circle cx="{x:.1f}" cy="{middle}" r="6" fill="{colour}" stroke="var(--card)"/>'
    return f"<g><title>{told}</title>{shape}</g>"
