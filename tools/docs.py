"""Write the generated pages of docs/ again, or list those that are out of date: `python -m tools.docs [--check]`.

| Page | Made from |
| --- | --- |
| docs/configuration.md | `uow.config.settings` |
| docs/metrics.md | `uow.processor.shell.monitor`, `uow.spark_sink.monitor` |
| docs/decision-table.md | the decision table's lines below, each played through `uow.processor.core` |
| docs/requirements.md | `tools.requirements` |
| docs/questions.md | `tools.questions`, from `uow.spark_sink.views` |
| tables in docs/guarantees.md and docs/prove.md, costs in README.md | `tools.measured` |
| docs/nightly.md | `tools.nightly` |
| docs/access.md | `tools.access_page`, from `uow.topics.access` |

Belongs here: the list of pages, the text around the generated parts, and examples for each line of the decision table. Does not
belong here: any setting, metric or rule.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, assert_never

from tools import access_page, measured, nightly, questions, requirements
from uow.config import settings_page
from uow.processor.core import decide
from uow.processor.core.changes import (
    Answered,
    DeadlineWarning,
    Delivered,
    Dropped,
    Effect,
    Passed,
    Rejected,
    Rerouted,
    TakenOut,
    Undelivered,
)
from uow.processor.core.partition import Partition
from uow.processor.core.partition_state import PartitionAddress
from uow.processor.shell.monitor import COMMIT_SECONDS, FATES, HISTOGRAMS, METRICS, ROW
from uow.schemas.records import ranges_text
from uow.spark_sink.monitor import METRICS as SINK_METRICS
from uow.topics import headers as names
from uow.topics.partitioner import partition_for
from uow.topics.policies import (
    DestinationPolicy,
    DuplicatePolicy,
    ExpirationPolicy,
    HandlingPolicy,
    LatePolicy,
    ViolationPolicy,
)

ROOT = Path(__file__).resolve().parent.parent
WRITTEN_BY = "<!-- Written by `make docs` from `{source}`. Do not edit. -->"

# -- docs/metrics.md ------------------------------------------------------------------------------------------------

METRICS_HEAD = f"""\
# Metrics

{WRITTEN_BY.format(source="processor/shell/monitor.py")}

Each worker serves them in Prometheus' text format on `/metrics` of its web address (`[worker] web`). A worker reports the partitions that it
owns at present, so sum over workers. They cost nothing per record, since they are read from the state when they are scraped.
[operations.md](operations.md) says what to do about a value.

| Metric | Type | Labels | Meaning |
| --- | --- | --- | --- |
"""

SINK_METRICS_HEAD = """\
## The sink

`uow sink --metrics-port PORT` serves these, from `spark_sink/monitor.py`. Each has the label `destination`. They begin anew with the process.

| Metric | Type | Meaning |
| --- | --- | --- |
"""

FATE_TEXTS = {
    "received": "every record of `D.components` that was read",
    "held": "components taken into a group",
    "duplicate": "refused or dropped: the number is held already, or the unit is delivered",
    "rejected": "refused for any other reason, to `D.rejected`",
    "passed": "plain traffic to `D.units`, or sent on to its right partition",
    "ignored": "read again after it was applied already",
    "delivered": "delivered in a unit",
    "expired": "components of a group that a deadline closed without a unit",
    "cancelled": "components of a group that was cancelled",
    "failed": "components of a group that a limit, a conflict or a digest closed",
    "open": "held in groups still open; scraped as `uow_open_components`",
}


def metrics_page() -> str:
    """The whole of `docs/metrics.md`."""
    rows = [
        (f"{spec.name}_total" if spec.kind == "counter" else spec.name, spec.kind, spec.labels, spec.text)
        for spec in METRICS
    ]
    rows += [(name, "histogram", ROW, text) for name, text, _ in HISTOGRAMS]
    name, text = COMMIT_SECONDS
    rows.append((f"{name}_count`, `{name}_sum", "summary", (), text))
    table = "".join(
        f"| `{name}` | {kind} | {', '.join(f'`{label}`' for label in labels)} | {text} |\n"
        for name, kind, labels, text in rows
    )
    fates = "".join(f"| `{fate}` | {FATE_TEXTS[fate]} |\n" for fate in FATES)
    of_sink = "".join(
        f"| `{spec.name}{'_total' if spec.kind == 'counter' else ''}` | {spec.kind} | {spec.text} |\n"
        for spec in SINK_METRICS
    )
    return (
        f"{METRICS_HEAD}{table}\n{SINK_METRICS_HEAD}{of_sink}\n## Fates\n\nResults of the records of a partition. Two sums always hold: received = held + duplicate + "
        f"rejected + passed + ignored, and\nheld = delivered + expired + cancelled + failed + open. Components that were restored "
        f"count as received and held.\n\n| `fate` | Records |\n| --- | --- |\n{fates}"
    )


# -- docs/decision-table.md: playing a line -------------------------------------------------------------------------

NOON = 1_700_000_000_000
PARTITIONS = 4


class Sent(NamedTuple):
    """A record of `D.components`, with the methods that the core uses."""

    pairs: list[tuple[str, bytes | None]]
    content: bytes = b"x"
    seconds: float = 0
    place: int | None = None

    def offset(self) -> int:
        assert self.place is not None
        return self.place

    def key(self) -> bytes | None:
        return None

    def value(self) -> bytes | None:
        return self.content

    def headers(self) -> Any:
        return self.pairs

    def timestamp(self) -> tuple[int, int]:
        return 2, NOON + round(self.seconds * 1000)


class Clock(NamedTuple):
    """An event: the partition is read to its end, and the wall clock is so many seconds after noon."""

    seconds: float


def c(seq: object, end: object = None, *, content: bytes = b"x", at: float = 0, **more: object) -> Sent:
    """A component of the unit `u`: `c(1)`, `c(3, end=True)`, `c(2, count=3)`. None leaves a header out."""
    marks = {names.ID: "u", names.SEQ: seq, names.END: "true" if end is True else end}
    marks |= {f"uow-{name.replace('_', '-')}": value for name, value in more.items() if name != "order"}
    if "order" in more:
        marks[names.ORDER_NAME] = more["order"]
    return Sent([(name, str(value).encode()) for name, value in marks.items() if value is not None], content, at)


class Outcome(NamedTuple):
    """The result of the last of several events: its effects in order, and a description."""

    effects: tuple[Effect, ...]
    words: str


def played(events: Iterable[Sent | Clock], policy: DestinationPolicy, misplaced: bool = False) -> Outcome:
    """Events through `uow.processor.core`; the unit `u` is on its own partition unless `misplaced`."""
    home = partition_for(b"u", PARTITIONS)
    number = (home + 1) % PARTITIONS if misplaced else home
    partition = Partition(PartitionAddress("D", "D.components", number, PARTITIONS), policy)
    for offset, event in enumerate(events):
        partition.take_happened()
        if isinstance(event, Clock):
            partition.advance(NOON + round(event.seconds * 1000))
        else:
            partition.on_records([event if event.place is not None else event._replace(place=offset)])
    effects = tuple(effect for effect, _, _ in partition.happened.effects)
    if effects:
        return Outcome(effects, ", then ".join(map(_told, effects)))
    return Outcome((), "ignored" if partition.counts.ignored else f"held; the group is open with {_open(partition)}")


def _open(partition: Partition) -> str:
    return ", ".join(ranges_text(group.held_ranges()) for group in partition.groups.values())


def _told(effect: Effect) -> str:
    match effect:
        case Delivered(closed):
            return f"unit, outcome `{closed.outcome}`, reason `{closed.reason}`"
        case Undelivered(closed, error):
            return f"group closed, outcome `{closed.outcome}`, reason `{closed.reason}`, class `{error.__name__}`"
        case Rejected(refusal):
            return f"`{refusal.error.__name__}`" + (f" `{refusal.case}`" if refusal.case else "")
        case Passed():
            return "passed through"
        case Rerouted():
            return "sent on to its partition"
        case Dropped(case):
            return f"dropped (`{case}`)"
        case TakenOut(_, missing):
            return f"one component given up; missing {ranges_text(missing)}"
        case DeadlineWarning(missing=missing):
            return f"a warning: missing {ranges_text(missing)}"
        case Answered(_, done, text):
            return f"{text} ({'done' if done else 'not done'})"
        case _:
            assert_never(effect)


# -- docs/decision-table.md: the lines ------------------------------------------------------------------------------

UNITS = DestinationPolicy(handling_policy=HandlingPolicy.SINGLE_MESSAGE_DELIVERY)


class Example(NamedTuple):
    """Events in words, the events, and the settings that differ from the default."""

    words: str
    events: Sequence[Sent | Clock]
    more: Mapping[str, Any] = MappingProxyType({})
    misplaced: bool = False

    @property
    def result(self) -> Outcome:
        """The outcome, computed by the core itself."""
        return played(self.events, replace(UNITS, **self.more), self.misplaced)


class TableLine(NamedTuple):
    """A line of the table: its condition, its result, its place in the code, and examples."""

    number: str
    condition: str
    result: str
    code: Callable[..., Any]
    examples: tuple[Example, ...]


HEADERS = names.Reading.read
JUDGE: dict[str, Callable[..., Any]] = {line.number: line.judge for line in decide.LINES}
AN_HOUR = {"incomplete_expiration_ms": 3_600_000}

TABLE: tuple[TableLine, ...] = (
    TableLine(
        "1",
        "`uow-id` and `uoo-name` both present",
        "reject",
        HEADERS,
        (Example("number 1 with `uoo-name`", [c(1, order="o")]),),
    ),
    TableLine(
        "2",
        "no `uow-id`; or `uow-kind=unit` (or `uow-origin-kind=unit`) without `uow-seq`: a finished unit sent on",
        "pass through to `D.units`; what only units carry is named `uow-origin-...` there",
        HEADERS,
        (Example("no headers", [Sent([])]), Example("a unit sent on", [c(None, kind="unit")])),
    ),
    TableLine(
        "3",
        "id empty, undecodable, longer than 255 bytes, repeated with different values or other than an accepted alias",
        "reject",
        HEADERS,
        (
            Example("empty id", [Sent([(names.ID, b""), (names.SEQ, b"1")])]),
            Example("two ids", [Sent([(names.ID, b"u"), (names.ID, b"v"), (names.SEQ, b"1")])]),
            Example("no UTF-8", [Sent([(names.ID, b"\xff"), (names.SEQ, b"1")])]),
        ),
    ),
    TableLine(
        "4",
        "number missing, below 1, or no number",
        "reject",
        HEADERS,
        (
            Example("no number", [c(None)]),
            Example("number 0", [c(0)]),
            Example("number `one`", [c("one")]),
        ),
    ),
    TableLine(
        "5",
        "end mark neither true nor false; `uow-count` unreadable",
        "reject",
        HEADERS,
        (Example("end mark `maybe`", [c(1, end="maybe")]), Example("`uow-count` `few`", [c(1, count="few")])),
    ),
    TableLine(
        "5b",
        "`uow-expires-at`, `uow-deliver-at`, `uow-priority`, `uow-digest`, `uow-order-key`, `uow-segment-at` or `uow-segment-end` unreadable, or `uow-order-key` without path "
        "routing; `uow-depth` that is no number, or above 3; `uow-erased`, which only workers write; more or longer headers than `max_headers` and `max_header_name_bytes` allow",
        "reject; the case is the header, `headers` or `depth`",
        HEADERS,
        (
            Example("`uow-priority` `high`", [c(1, priority="high")]),
            Example("`uow-depth` 4", [c(1, depth=4)]),
        ),
    ),
    TableLine(
        "6",
        "on another partition than its id belongs to",
        "send it once more to the right one; reject it the second time",
        JUDGE["6"],
        (
            Example("on a wrong partition", [c(1)], misplaced=True),
            Example("again, with `uow-rerouted`", [c(1, rerouted=1)], misplaced=True),
        ),
    ),
    TableLine(
        "7",
        "same source offset already applied",
        "ignore: a replay",
        Partition.on_records,
        (Example("offset 0 again", [c(1), c(1)._replace(place=0)]),),
    ),
    TableLine(
        "8",
        "id closed as complete",
        "reject: its number was held then, or lies above its end",
        JUDGE["8"],
        (
            Example("1, 2 with end mark; 2 again", [c(1), c(2, end=True), c(2, end=True)]),
            Example("1, 2 with end mark; 3", [c(1), c(2, end=True), c(3)]),
        ),
    ),
    TableLine(
        "9",
        "id closed otherwise",
        'reject; or a new group by `late_policy = "reopen"`; by `"amend"` a corrected unit, if it was delivered in part and lines 10 to 15 do not refuse the component',
        JUDGE["9"],
        (
            Example("1; an hour later 2", [c(1), Clock(3601), c(2, at=3602)], AN_HOUR),
            Example(
                "the same with `reopen`",
                [c(1), Clock(3601), c(2, at=3602)],
                AN_HOUR | {"late_policy": LatePolicy.REOPEN},
            ),
            Example(
                "1 delivered in part; later 2 with end mark, under `amend`",
                [c(1), Clock(3601), c(2, end=True, at=3602)],
                AN_HOUR | {"late_policy": LatePolicy.AMEND, "expiration_policy": ExpirationPolicy.DELIVER_PARTIAL},
            ),
        ),
    ),
    TableLine(
        "10",
        "number held already",
        'reject as resend (same component id), duplicate (same bytes) or conflict; `duplicate_policy = "drop_identical"` drops the first two',
        JUDGE["10"],
        (
            Example("1, 1 with the same component id", [c(1, component_id="i"), c(1, component_id="i")]),
            Example("1, 1 with the same bytes", [c(1), c(1)]),
            Example("1, 1 with other bytes", [c(1), c(1, content=b"y")]),
            Example(
                "the same bytes, `drop_identical`", [c(1), c(1)], {"duplicate_policy": DuplicatePolicy.DROP_IDENTICAL}
            ),
            Example(
                'other bytes, `violation_policy = "fail_group"`',
                [c(1), c(1, content=b"y")],
                {"violation_policy": ViolationPolicy.FAIL_GROUP},
            ),
        ),
    ),
    TableLine(
        "11",
        "end known, by mark or count, and number above it",
        "reject",
        JUDGE["11"],
        (
            Example("2 with end mark, 3", [c(2, end=True), c(3)]),
            Example("1 with count 2, 3", [c(1, count=2), c(3)]),
        ),
    ),
    TableLine(
        "12",
        "end mark or count below the highest number held, or other than the end already known",
        "reject",
        JUDGE["12"],
        (
            Example("3, 2 with end mark", [c(3), c(2, end=True)]),
            Example("1 with count 3, 2 with end mark", [c(1, count=3), c(2, end=True)]),
        ),
    ),
    TableLine(
        "13",
        "component expired already",
        "the group expires",
        decide._hold,
        (Example("1; 2, which expired a second ago", [c(1, at=9), c(2, at=10, expires_at=NOON + 9000)]),),
    ),
    TableLine(
        "14",
        "more components or bytes than the limit",
        "the group fails",
        decide._hold,
        (Example("1, 2 with `max_components = 1`", [c(1), c(2)], {"max_components": 1}),),
    ),
    TableLine(
        "15",
        "otherwise",
        "hold it; deliver and close when complete and ready",
        decide._hold,
        (
            Example("1, 3 with end mark", [c(1), c(3, end=True)]),
            Example("1, 3 with end mark, 2", [c(1), c(3, end=True), c(2)]),
            Example("1, 2, each with count 2", [c(1, count=2), c(2, count=2)]),
        ),
    ),
)

CLOCK: tuple[Example, ...] = (
    Example("1; exactly an hour later", [c(1), Clock(3600)], AN_HOUR),
    Example("1; a millisecond more", [c(1), Clock(3600.001)], AN_HOUR),
    Example("the same, `idle_expiration_ms` instead", [c(1), Clock(3600.001)], {"idle_expiration_ms": 3_600_000}),
    Example(
        "the same, `deliver_partial`",
        [c(1), Clock(3600.001)],
        AN_HOUR | {"expiration_policy": ExpirationPolicy.DELIVER_PARTIAL},
    ),
    Example(
        "1 that expires after a minute; a minute and a millisecond later",
        [c(1, expires_at=NOON + 60_000), Clock(60.001)],
    ),
    Example(
        "1, 2 with end mark and `uow-deliver-at` in a minute; a second later",
        [c(1), c(2, end=True, deliver_at=NOON + 60_000), Clock(1)],
    ),
    Example("a minute later", [c(1), c(2, end=True, deliver_at=NOON + 60_000), Clock(60)]),
)

DECISION_HEAD = f"""\
# Decision table

{WRITTEN_BY.format(source="tools/docs.py")}

The effect of one arriving record on its group. The first line that matches decides. Every example is played through `uow.processor.core` when
this page is written: the last record of the example comes to what stands behind the arrow. Where nothing else is said the destination has
the default policies; numbers are `uow-seq`, all of one id.

| # | Condition | What happens | Examples |
| --- | --- | --- | --- |
"""

CLOCK_HEAD = """\
## The clock

A deadline has passed when the partition's clock is strictly after it. Deadlines that have passed close groups before the record in hand is
judged. While there is backlog the clock is the append time of the record in hand; once the partition is read to its end, the wall clock.

| Example | Comes to |
| --- | --- |
"""

STATES_HEAD = """\
## How a group closes

From the examples of this page, by outcome and reason:

```mermaid
stateDiagram-v2
    [*] --> open: a component is held
    open --> open: held, refused or dropped
"""

CODE_HEAD = """\
## Where it is in the code

Lines 6 and 8 to 12 are the rows of `LINES` in `processor/core/decide.py`, tried in this order.

| # | Function | Says |
| --- | --- | --- |
"""


def decision_page() -> str:
    """The whole of `docs/decision-table.md`."""
    lines = "".join(
        f"| {line.number} | {line.condition} | {line.result} | {'<br>'.join(map(_example, line.examples))} |\n"
        for line in TABLE
    )
    clock = "".join(f"| {each.words} | {each.result.words} |\n" for each in CLOCK)
    code = "".join(map(_code_row, [[*lines] for _, lines in groupby(TABLE, key=lambda line: line.code)]))
    return f"{DECISION_HEAD}{lines}\n{CLOCK_HEAD}{clock}\n{STATES_HEAD}{_closings()}```\n\n{CODE_HEAD}{code}"


def _example(example: Example) -> str:
    return f"{example.words} → {example.result.words}"


def _closings() -> str:
    """Edges of the diagram: each outcome of an example, with its reasons."""
    reasons: dict[str, list[str]] = {}
    examples = [*(example for line in TABLE for example in line.examples), *CLOCK]
    for effect in (effect for example in examples for effect in example.result.effects):
        if isinstance(effect, Delivered | Undelivered):
            found = reasons.setdefault(effect.closed.outcome.value, [])
            if effect.closed.reason.value not in found:
                found.append(effect.closed.reason.value)
    edges = "".join(f"    open --> {outcome}: {', '.join(sorted(why))}\n" for outcome, why in sorted(reasons.items()))
    return edges + "".join(f"    {outcome} --> [*]\n" for outcome in sorted(reasons))


def _code_row(lines: Sequence[TableLine]) -> str:
    """Neighbouring lines that the same function implements."""
    code = lines[0].code
    numbers = lines[0].number if len(lines) == 1 else f"{lines[0].number} to {lines[-1].number}"
    name = f"{code.__module__.rpartition('.')[2]}.{code.__qualname__}"
    return f"| {numbers} | `{name}` | {(inspect.getdoc(code) or '').partition(chr(10))[0]} |\n"


# -- all of them ----------------------------------------------------------------------------------------------------

PAGES: dict[Path, Callable[[], str]] = {
    settings_page.PAGE: settings_page.page,
    Path("docs") / "metrics.md": metrics_page,
    Path("docs") / "decision-table.md": decision_page,
    requirements.PAGE: requirements.page,
    questions.PAGE: questions.page,
    measured.GUARANTEES: measured.guarantees_page,
    measured.PROVE: measured.prove_page,
    measured.README: measured.readme,
    nightly.PAGE: nightly.page,
    access_page.PAGE: access_page.page,
}
"""Each generated page, with the function that makes its text."""


def drifted() -> list[Path]:
    """Pages that are out of date."""
    return [
        page
        for page, make in PAGES.items()
        if not (ROOT / page).is_file() or (ROOT / page).read_text("utf-8") != make()
    ]


def main(arguments: list[str] | None = None) -> int:
    """Command line: write, or check."""
    parser = argparse.ArgumentParser(prog="python -m tools.docs", description="Write the generated pages again.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a page has drifted")
    check = parser.parse_args(arguments).check
    pages = drifted()
    for page in pages:
        if not check:
            (ROOT / page).write_text(PAGES[page](), encoding="utf-8")
        print(f"{page}: {'has drifted; `make docs` writes it again' if check else 'written'}")
    return 1 if check and pages else 0


if __name__ == "__main__":
    sys.exit(main())
