"""Texts of rules tried on records as strangers may send them, so that a version is refused at which the router would fail (B-15). Pure.

The names in a text are put into records in every place where it may look: as fields of JSON, as elements of XML, as headers; with values of every
kind, too deep ones and half characters among them. A text may find nothing there, or refuse the record; it may not raise.

Belongs here: those records, and the attempts. Does not belong here: the texts' own rules (`expressions.py`, `paths.py`, `conditions.py`).
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from functools import partial
from typing import Any, Final

from uow.processor.rules.conditions import measures_of
from uow.processor.rules.expressions import MAX_LEVELS, MAX_TOKENS, Expression
from uow.processor.rules.group_keys import GroupKey
from uow.processor.rules.paths import Place
from uow.processor.rules.record_view import RecordView
from uow.processor.rules.routing import APPEND_TIME, RecordRouting, RouteTarget, RuleRouting
from uow.processor.rules.rule_set import RuleSet
from uow.schemas.error_classes import shown
from uow.schemas.faults import ENDS
from uow.topics.grouping import Headers, Measure, Tally, parts_of
from uow.topics.rules import Rule

_NAME: Final = re.compile(r"[^\W\d][\w.-]*")
_DIGITS: Final = re.compile(r"[0-9]+")
_FIELD: Final = re.compile(
    r"(?<!\w)(?!(?:in|true|false|null|and|or|div|mod|key|request|alone)\b)[A-Za-z_]\w*(?=\.[A-Za-z_]|[^\w(:.]|$)",
    re.ASCII,
)
"""A word that is no function, no kind of a place and none of the language."""
BUDGET_S: Final = 2.0
"""Time for the attempts of one version: those who follow the rules wait for it."""
_MOST_NAMES: Final = 12
_DEEP: Final[Any] = json.loads("[" * 2 * MAX_LEVELS + "]" * 2 * MAX_LEVELS)
_JSON: Final[tuple[Any, ...]] = (
    "x",
    "",
    "\ud800",
    "9" * 400,
    1,
    -0.5,
    10**400,
    True,
    None,
    [],
    {},
    ["x", 1],
    {"x": 1},
    _DEEP,
)
_PLAIN: Final = (
    None, b"", b"\xff\x00", b"{", b"NaN", b"[NaN]", b"1", b"null", b'"\\ud800"', b"\xef\xbb\xbf{}", b"[" * 100_000,
    b"<a/>", b"<a>", b"<a>&b;</a>", b"<?xml version='1.0' encoding='utf-16'?><a/>", b"<a>" * 200 + b"</a>" * 200,
)  # fmt: skip
_HEADERS: Final = (None, b"", b"x", b"\xff", b"\xed\xa0\x80", b"9" * 400, b"r/x/y.1")
_NONE: Final = Decimal(0)
_TALLIES: Final = (
    Tally(0, _NONE, _NONE, _NONE),
    Tally(2, Decimal("9E+999"), Decimal("-9E+999"), Decimal("9E+999")),
)


class Trials:
    """The attempts for one version of rules.

    Texts of one shape, which differ in names and numbers alone, are tried once: a rule may have ten thousand rows of such. Once the time is over,
    no further text is tried: the router's own boundary is still around each record (`RecordRouting.route`).

    Args:
        budget_s: Time for all of them.
        monotonic: Seconds, from anywhere.
    """

    def __init__(self, budget_s: float = BUDGET_S, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._until, self._monotonic = monotonic() + budget_s, monotonic

    def failure(self, read: Callable[[str], object], text: str) -> str:
        """Why a text cannot be used: what it raises at one of the records; empty if it raises at none, or is not tried.

        Args:
            read: Reads it.
            text: It can be read.

        Raises:
            ExpressionError: It is none.
        """
        meant, kind = read(text), (read, _shape(text))
        why = _tried.pop(kind, None)
        if why is None:
            for attempt in _attempts(meant):
                for record in _records(text):
                    if self._monotonic() > self._until:
                        return ""
                    if why := _failure(attempt, record):
                        return why
            why = ""
            if len(_tried) >= _MOST_TRIED:
                del _tried[next(iter(_tried))]
        _tried[kind] = why  # at the end: the one that was asked for least lately goes first
        return why

    def routing_failure(self, rule: Rule, rules: RuleSet, target: RouteTarget) -> str:
        """The same of a whole rule, as the router uses it.

        Raises:
            ExpressionError: A text of the rule is none.
        """
        routing = RecordRouting([RuleRouting(rule, rules, target)])
        for record in _plain(_names(rule.group_key)):
            if self._monotonic() > self._until:
                return ""
            routed = routing.route(_Sample(record), [*record.headers], 0)
            if routed.fault is not None:
                return f"the router fails at a record such as {_shown(record)}: {shown(routed.fault)}"[:300]
        return ""


def _failure(attempt: Callable[[RecordView], object], record: RecordView) -> str:
    try:
        attempt(record)
    except ENDS:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever it is, a router would meet it as well
        return f"fails at a record such as {_shown(record)}: {shown(error)}"[:300]
    return ""


_tried: Final[dict[tuple[Callable[[str], object], str], str]] = {}
_MOST_TRIED: Final = 1_000


def _shape(text: str) -> str:
    """A text whose fields and numbers have all the same name; the words that have a meaning stay."""
    return text if text.isidentifier() else _DIGITS.sub("0", _FIELD.sub("x", text))


class _Sample:
    """A view as a record of an input."""

    def __init__(self, view: RecordView) -> None:
        self._view = view

    def topic(self) -> str:
        return "input"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 0

    def key(self) -> bytes | None:
        return self._view.key

    def value(self) -> bytes | None:
        return self._view.value

    def timestamp(self) -> tuple[int, int]:
        return APPEND_TIME, 0


def _attempts(meant: Any) -> Iterator[Callable[[RecordView], object]]:
    """Everything that is ever asked of the meaning of a text."""
    match meant:
        case Expression():
            yield from (meant.boolean, meant.text)
        case Place():
            yield meant.text
        case GroupKey():
            yield from (meant.name, lambda record: meant.request_id(record, None))
        case _ if callable(meant):  # of `age_from` and `order_by`
            yield partial(_asked, meant)
        case None:
            return
        case _:
            for _, measure in measures_of(parts_of(meant)):
                yield partial(_asked, measure.measure)
                yield partial(_held, measure)


def _asked(ask: Callable[[Headers, bytes | None], object], record: RecordView) -> None:
    ask(record.headers, record.value)


def _held(measure: Measure, record: RecordView) -> None:
    for tally in _TALLIES:
        measure.holds([tally] * MAX_TOKENS)


def _names(text: str) -> list[str]:
    return list(dict.fromkeys(_NAME.findall(text)))[:_MOST_NAMES]


def _records(text: str) -> Iterator[RecordView]:
    names = _names(text)
    yield from _plain(names)
    for each in _JSON:
        fields = dict.fromkeys(names, each)
        for document in (fields, dict.fromkeys(names, fields), [fields, each], each):
            yield RecordView(None, json.dumps(document).encode())
    for name in names:
        inside = "".join(f"<{each} {each}='1'>x</{each}>" for each in names if each != name)
        yield RecordView(None, f"<{name} id='1'>{inside}{inside}</{name}>".encode())


def _plain(names: Iterable[str]) -> Iterator[RecordView]:
    for value in _PLAIN:
        yield RecordView(value, value)
    for raw in _HEADERS:
        yield RecordView(raw, b"{}", [(name, raw) for name in names])


def _shown(record: RecordView) -> str:
    return repr(record.value if record.value is None else record.value[:60])
