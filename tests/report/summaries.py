"""Numbers for pages: those of an ordinary day, of hostile senders, and none."""

from __future__ import annotations

from itertools import accumulate
from typing import Final

from uow.processor.engine.group_view import OpenGroup
from uow.schemas.records import Range
from uow.spark_sink.summary import (
    QUANTILES,
    Counted,
    Durations,
    IncompleteGroup,
    Interval,
    Latecomer,
    Pace,
    Summary,
    Totals,
)

NOW: Final = 1_760_180_000_000
HOUR: Final = 3_600_000
STARTS: Final = tuple(NOW - NOW % HOUR - HOUR * back for back in (3, 2, 1))
MS: Final = tuple(
    accumulate(
        ({0.5: 1_000, 0.9: 5_000, 0.99: 40_000, 1.0: 120_000}.get(each, round(each * 1_000)) for each in QUANTILES), max
    )
)

ORDINARY: Final = Summary(
    since=None,
    until=None,
    totals=(
        Totals("megazon", 1_000, 5_000, 90_000, 1_000, 9, 9, 1, 2),
        Totals("payments", 250, 500, 9_000, 250, 3, 0, 0, 0),
    ),
    first=STARTS[0],
    last=NOW,
    durations=(Durations(None, 1_250, MS), Durations("megazon", 1_000, MS), Durations("payments", 250, MS)),
    interval_ms=HOUR,
    intervals=tuple(
        Interval(start, name, units, 5 * units, 90 * units)
        for start in STARTS
        for name, units in (("megazon", 300), ("payments", 80))
    ),
    paces=tuple(Pace(start, 900, 4_000, 30_000) for start in STARTS),
    late_numbers=(
        Latecomer("megazon", "2", 300, 600_000, 2_000),
        Latecomer("payments", "1", 100, 300_000, 1_000),
        Latecomer(None, None, 50, 150_000, None),
    ),
    late_producers=(Latecomer("megazon", "gadget-planet", 300, 600_000, 2_000),),
    refusals=(
        Counted("DuplicateSequenceNumberError", "checkout", 5),
        Counted("BadUnitIdError", "checkout", 4),
        Counted("DuplicateSequenceNumberError", None, 2),
        Counted(None, None, 1),
    ),
    missing=(Counted("1", "expired", 4), Counted("5-", "partial", 3), Counted(None, "expired", 2)),
    latest_incomplete=(IncompleteGroup("megazon", "order-7", "expired", "age", STARTS[0], STARTS[1], 2, "1"),),
    unreadable=(Counted("Avro bytes that are no unit", "megazon", 2),),
)

OPEN: Final = {
    "megazon": [
        OpenGroup("order-8", 0, 1, (Range(1, 2),), (Range(3, 3),), (), 3, 2, 90, NOW - 2 * HOUR, NOW + HOUR),
        OpenGroup("order-9", 1, 1, (Range(1, 1),), (Range(2, 2**31 - 1),), (), None, 1, 90, NOW - HOUR, None),
    ],
    "payments": [],
}

EMPTY: Final = Summary(None, None, (Totals("megazon"),), None, None, (), 1_000, (), (), (), (), (), (), (), ())

HOSTILE_TEXTS: Final = (
    "<script>alert(1)</script>",
    "</script><img src=x onerror=document.title='owned'>",
    "<a href='javascript:document.title=1'>b</a>",
    "&lt;b&gt;<b>%{y}</b>",
    "\0\x1b[31m\u202eevil\ud800",
    "]]><!--",
    "x" * 1_000_000,
)
"""Texts that a page must not have as they are."""
HOSTILE_NAMES: Final = (*HOSTILE_TEXTS, "$\\alpha$", "1970-01-01", "")
"""Also those that a plotting library may take for something else."""

HOSTILE: Final = Summary(
    since=-(2**62),
    until=2**62,
    totals=tuple(Totals(text, 2**62, 2**62, 10**30, 1, 1, 1, 1, 1) for text in HOSTILE_NAMES),
    first=-(2**62),
    last=2**62,
    durations=(
        Durations(None, 1, (2**62,) * len(QUANTILES)),
        *(Durations(text, 1, (0,) * len(QUANTILES)) for text in HOSTILE_NAMES),
    ),
    interval_ms=2**57,
    intervals=tuple(Interval(2**62, text, 1, 1, 10**30) for text in HOSTILE_NAMES),
    paces=(Pace(-(2**62), 0, 0, 2**62),),
    late_numbers=tuple(Latecomer(text, text, 1, 10**25, 2**62) for text in HOSTILE_NAMES),
    late_producers=tuple(Latecomer(text, text, 1, 0, 0) for text in HOSTILE_NAMES),
    refusals=tuple(Counted(text, other, 1) for text in HOSTILE_NAMES for other in HOSTILE_NAMES),
    missing=tuple(Counted(text, text, 2**62) for text in HOSTILE_NAMES),
    latest_incomplete=tuple(IncompleteGroup(text, text, text, text, None, 2**62, None, text) for text in HOSTILE_NAMES),
    unreadable=tuple(Counted(text, text, 1) for text in HOSTILE_NAMES),
)
