"""The texts of `complete_when`, `give_up_when`, `age_from` and `order_by`, and the policy that a row makes of a destination's. Pure.

    complete_when = "any(count(10), predicate(sum(quantity) >= 500))"
    complete_when = "urgent(priority == 'high', alone)"
    give_up_when  = "all(age(60000), not(count(3)))"
    give_up_when  = "any(at(17:00, Europe/Berlin, mon-fri, 2026-12-25), behind(50))"

Names and meanings: `uow.topics.conditions`. Belongs here: their texts. Does not belong here: asking them (`uow.processor.core`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from uow.processor.rules.calendars import Calendar
from uow.processor.rules.expressions import MAX_DEPTH, Expression, Predicate, compile_expression, compile_predicate
from uow.processor.rules.paths import MAX_CHARS, ExpressionError, Place
from uow.processor.rules.record_view import RecordView
from uow.topics import conditions
from uow.topics.conditions import Condition, alternatives
from uow.topics.grouping import Choice, GroupPolicy, Headers, Measure, Moment, Rank, Tally, parts_of, policy_of
from uow.topics.policies import DestinationPolicy
from uow.topics.rules import ResolvedRow

MAX_NUMBER: Final = 2**53
"""Largest count, size or duration in a condition."""
TIMED: Final = (
    conditions.Age,
    conditions.Idle,
    conditions.At,
    conditions.Behind,
    conditions.ComponentDeadline,
)
"""Conditions that time alone fulfils."""
MAX_CALENDARS: Final = 4
"""Most `at(...)` of a row: each open group keeps a moment for each."""

_NAME: Final = re.compile(r"\s*([a-z_]+)\s*")
_SIMPLE: Final[Mapping[str, Condition]] = {
    "end_flag_without_gaps": conditions.EndFlagWithoutGaps(),
    "per_source": conditions.PerSource(),
    "manifest": conditions.Manifest(),
    "command": conditions.ByCommand(),
    "component_deadline": conditions.ComponentDeadline(),
}
_QUORUM: Final = re.compile(r"([0-9]{1,9})\s+of\s+([0-9]{1,9})", re.ASCII)
_NUMBERED: Final[Mapping[str, Callable[[int], Condition]]] = {
    "count": conditions.Count,
    "bytes": conditions.Bytes,
    "manifest": conditions.Manifest,
    "age": conditions.Age,
    "idle": conditions.Idle,
    "behind": conditions.Behind,
}
_JOINED: Final[Mapping[str, Callable[[tuple[Condition, ...]], Condition]]] = {
    "any": conditions.AnyOf,
    "all": conditions.AllOf,
}
_OF_TEXT: Final[Mapping[str, Callable[[str], Condition]]] = {
    "predicate": lambda text: conditions.Predicate(compile_predicate(text).source),
    "at": lambda text: conditions.At(Calendar(text).source),
    "urgent": lambda text: _urgent(text),
}
_KNOWN: Final = sorted({*_SIMPLE, *_NUMBERED, *_JOINED, *_OF_TEXT, "not"})


def read_complete_when(text: str) -> Condition:
    """Reads a condition that makes a group complete.

    Raises:
        ExpressionError: It is none, or time alone would fulfil it.
    """
    condition = _read(
        text, "time alone completes no group: that is give_up_when", lambda part: not isinstance(part, TIMED)
    )
    if any(isinstance(part, conditions.At | conditions.Behind) for part in parts_of(condition)):
        raise ExpressionError("at(...) and behind(p) stand in give_up_when")
    if len([*_alone(parts_of(condition))]) > len([*_alone(alternatives(condition))]):
        raise ExpressionError("urgent(..., alone) cannot be part of all() or not()")
    return condition


def read_give_up_when(text: str) -> Condition:
    """Reads a condition that gives a group up.

    Raises:
        ExpressionError: It is none, or has no part that time fulfils.
    """
    condition = _read(
        text, "needs age(ms), idle(ms), at(...), behind(p) or component_deadline", lambda part: isinstance(part, TIMED)
    )
    if sum(isinstance(part, conditions.At) for part in parts_of(condition)) > MAX_CALENDARS:
        raise ExpressionError(f"has more than {MAX_CALENDARS} at(...)")
    if any(_alone(parts_of(condition))):
        raise ExpressionError("urgent(..., alone) completes a group: that is complete_when")
    return condition


def _read(text: str, rule: str, is_needed: Callable[[Condition], bool]) -> Condition:
    if len(text) > MAX_CHARS:
        raise ExpressionError(f"is longer than {MAX_CHARS} characters")
    condition, rest = _condition(text, 1)
    if rest.strip():
        raise ExpressionError(f"expected the end, found {rest.strip()[:50]!r}")
    if not any(is_needed(part) for part in parts_of(condition)):
        raise ExpressionError(rule)
    return condition


def _condition(text: str, depth: int) -> tuple[Condition, str]:
    """The condition that a text begins with, and what follows it."""
    found = _NAME.match(text)
    if found is None:
        raise ExpressionError(f"expected a condition, found {text.strip()[:50] or 'the end'!r}")
    name, rest = found[1], text[found.end() :]
    if name not in _KNOWN:
        raise ExpressionError(f"there is no condition {name[:50]}; known are {', '.join(_KNOWN)}")
    if depth > MAX_DEPTH:
        raise ExpressionError(f"is nested deeper than {MAX_DEPTH}")
    if not rest.startswith("("):
        if name not in _SIMPLE:
            raise ExpressionError(f"expected ( after {name}")
        return _SIMPLE[name], rest
    inside, rest = _inside(rest)
    if name in _OF_TEXT:
        return _OF_TEXT[name](inside), rest
    if name in _JOINED or name == "not":
        return _joined(name, inside, depth), rest
    return _numbered(name, inside), rest


def _inside(text: str) -> tuple[str, str]:
    """The text between the bracket that a text begins with and its counterpart, and what follows that one; brackets in quotes do not count."""
    depth, quote, is_escaped = 0, "", False
    for at, sign in enumerate(text):
        if quote:
            quote = "" if sign == quote and not is_escaped else quote
            is_escaped = sign == "\\" and not is_escaped
        elif sign in "'\"":
            quote = sign
        else:
            depth += (sign == "(") - (sign == ")")
            if depth == 0:
                return text[1:at].strip(), text[at + 1 :]
    raise ExpressionError("a bracket is not closed")


def _joined(name: str, inside: str, depth: int) -> Condition:
    parts, rest = [], f",{inside}"
    while rest.startswith(","):
        part, rest = _condition(rest[1:], depth + 1)
        rest = rest.lstrip()
        parts.append(part)
    if rest:
        raise ExpressionError(f"expected a comma or ), found {rest[:50]!r}")
    if name != "not":
        return _JOINED[name](tuple(parts))
    if len(parts) != 1:
        raise ExpressionError("not() is of one condition")
    return conditions.Not(parts[0])


def _urgent(inside: str) -> Condition:
    text, comma, last = inside.rpartition(",")
    is_alone = bool(comma) and last.strip() == "alone"
    return conditions.Urgent(compile_expression((text if is_alone else inside).strip()).source, is_alone)


def _alone(several: Sequence[Condition]) -> Iterator[conditions.Urgent]:
    return (each for each in several if isinstance(each, conditions.Urgent) and each.alone)


def _numbered(name: str, inside: str) -> Condition:
    number, comma, word = (part.strip() for part in inside.partition(","))
    if name == "manifest" and (quorum := _QUORUM.fullmatch(inside)) is not None:
        k, n = int(quorum[1]), int(quorum[2])
        if not 1 <= k <= n:
            raise ExpressionError(f"manifest({inside}): from 1 to {n} replies of {n} can be enough")
        return conditions.Manifest(k, n)
    if name not in _NUMBERED or (comma and (name, word) != ("bytes", "strict")):
        raise ExpressionError(f"{name}({inside[:50]}) is no condition")
    if not (number.isascii() and number.isdigit() and len(number) <= 16 and 1 <= int(number) <= MAX_NUMBER):
        raise ExpressionError(f"{name}() needs a whole number from 1, not {number[:50]!r}")
    if name == "behind" and int(number) > 100:
        raise ExpressionError(f"behind() is of 1 to 100 percent, not {number}")
    return conditions.Bytes(int(number), strict=True) if comma else _NUMBERED[name](int(number))


# -- age_from, order_by


def read_age_from(text: str) -> Moment | None:
    """Reads `age_from`: None for `arrival` and `manifest`; of `event:PATH` how the moment is found.

    Raises:
        ExpressionError: It is none of these.
    """
    if text in ("arrival", "manifest"):
        return None
    place = _after("event:", text, "arrival, manifest or event:PATH")

    def moment(headers: Headers, value: bytes | None) -> int | str:
        said = place.text(RecordView(None, value, headers)) or ""
        at = epoch_ms(said)
        return f"{place.source} is no epoch time in s, ms, us or ns" if at is None else at

    return moment


def epoch_ms(text: str) -> int | None:
    """An epoch time in whichever unit, in ms; None if it is none.

    The units tell themselves apart from 1973 on: seconds are below 10^11 until the year 5138, and each other unit has a thousand times as many.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        return None
    at = int(text)
    for above, per_ms in ((10**17, 1_000_000), (10**14, 1_000)):
        if at >= above:
            return at // per_ms
    return at if at >= 10**11 else at * 1_000


def read_order_by(text: str) -> Rank | None:
    """Reads `order_by`: None for `sequence`, `arrival` and `source`; of `field:PATH` how the sort key is found.

    Numbers come before texts, in order of their values; what has neither comes last.

    Raises:
        ExpressionError: It is none of these.
    """
    if text in ("sequence", "arrival", "source"):
        return None
    place = _after("field:", text, "sequence, arrival, source or field:PATH")

    def rank(headers: Headers, value: bytes | None) -> tuple[int, Decimal, str]:
        said = place.text(RecordView(None, value, headers))
        if said is None:
            return 2, Decimal(0), ""
        is_number = len(said) <= 40 and re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", said, re.ASCII) is not None
        return (0, Decimal(said), "") if is_number else (1, Decimal(0), said)

    return rank


def _after(prefix: str, text: str, forms: str) -> Place:
    if not text.startswith(prefix):
        raise ExpressionError(f"must be {forms}, not {text[:50]!r}")
    path = text.removeprefix(prefix)
    return Place(path if path.startswith(("header:", "path:")) else f"path:{path}")


# -- policies


def group_policy(row: ResolvedRow, destination: DestinationPolicy) -> GroupPolicy:
    """The policy of the groups of a row, compiled: what a `uow.topics.grouping.RuleTable` answers.

    Raises:
        ExpressionError: A text of the row is none. Of a row that was checked (`checks.py`) it never is.
    """
    complete = None if row.row.complete_when is None else read_complete_when(row.row.complete_when)
    give_up = None if row.row.give_up_when is None else read_give_up_when(row.row.give_up_when)
    several = [part for each in (complete, give_up) if each is not None for part in parts_of(each)]
    calendars = dict.fromkeys(part.text for part in several if isinstance(part, conditions.At))
    return policy_of(
        row,
        destination,
        complete,
        give_up,
        measures_of(several),
        read_age_from(row.row.age_from),
        read_order_by(row.rule.order_by),
        [(text, Calendar(text)) for text in calendars],
        _choice([UrgentComponent(Expression(each.text)) for each in _alone(several)]),
    )


@dataclass(frozen=True, slots=True)
class UrgentComponent:
    """The expression of `urgent(...)` as a `uow.topics.grouping.Measure`: 1 of a component of which it is true, else 0."""

    expression: Expression

    def measure(self, headers: Headers, value: bytes | None) -> tuple[Decimal, ...]:
        """1 or 0. A component that cannot be read is not urgent, and not refused."""
        return (Decimal(self.chooses(headers, value)),)

    def holds(self, tallies: Sequence[Tally]) -> bool:
        """True if one of the components was urgent."""
        return tallies[0].most > 0

    def chooses(self, headers: Headers, value: bytes | None) -> bool:
        """True of an urgent component."""
        return self.expression.boolean(RecordView(None, value, headers))


def _choice(several: Sequence[UrgentComponent]) -> Choice | None:
    if not several:
        return None
    return lambda headers, value: any(each.chooses(headers, value) for each in several)


def measures_of(several: Sequence[Condition]) -> tuple[tuple[str, Measure], ...]:
    """The predicates among simple conditions, and what makes a component urgent, compiled, each once."""
    found: dict[str, Measure] = {}
    for part in several:
        if isinstance(part, conditions.Predicate):
            found.setdefault(part.name, Predicate(part.text))
        elif isinstance(part, conditions.Urgent):
            found.setdefault(part.name, UrgentComponent(Expression(part.text)))
    return tuple(found.items())
